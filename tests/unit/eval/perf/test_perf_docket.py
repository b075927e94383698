"""The benchmark of the docket, at a scale that takes a moment."""

import pytest

from eval.perf.docket import docket


def test_docket_benchmark_reports_its_figures_and_finds_the_altered_entry():
    result = docket(trials=4, events=3, rounds=1, verified=150, findings=500, lookups=100, listed=200)
    figures = result.figures
    assert set(result.goals) <= set(figures) and figures["events_missing"] == figures["held_up_by_readers"] == 0
    ours = figures["events_a_second"]
    assert figures["over_bulk"] == pytest.approx(ours / figures["bulk_a_second"])
    assert figures["over_bulk_in_one_commit"] == pytest.approx(ours / figures["bulk_in_one_commit_a_second"])
    assert 0 < figures["append_p50_ms"] <= figures["append_p99_ms"]
    assert figures["entries"] >= 150 and figures["faults"] == 0 and figures["found"] == 1
    assert figures["findings"] == 500 and figures["finding_over_verdict"] > 0
    for name in ("newest", "by_label"):
        assert figures[f"list_{name}_ms"] > 0 and figures[f"list_{name}_over_100"] > 0
    assert 0 < figures["finding_at_hand_us"] < figures["finding_us"]
    assert figures["events_per_s"] > 0 and figures["verified_over_read"] > 0
