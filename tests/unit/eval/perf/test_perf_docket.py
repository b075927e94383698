"""The benchmark of the docket, at a scale that takes a moment."""

from eval.perf.docket import docket


def test_docket_benchmark_reports_its_figures_and_finds_the_altered_entry():
    result = docket(trials=4, events=3, rounds=1, verified=150, findings=500, lookups=100, listed=200)
    figures = result.figures
    assert set(result.goals) <= set(figures) and figures["events_missing"] == 0
    assert figures["events_a_second"] > 0 and figures["over_bulk"] > 0
    assert figures["entries"] >= 150 and figures["faults"] == 0 and figures["found"] == 1
    assert figures["finding_over_verdict"] > 0 and figures["verified_over_read"] > 0
    for name in ("newest", "by_label"):
        assert figures[f"list_{name}_ms"] > 0 and figures[f"list_{name}_over_100"] > 0
