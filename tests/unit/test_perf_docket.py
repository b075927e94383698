"""The benchmark of the docket, at a size that takes a moment."""

import asyncio

import pytest

from eval.perf import docket
from eval.perf.bench import BENCHMARKS


def test_it_measures_what_it_says(tmp_path):
    figures = asyncio.run(docket.measured(tmp_path, trials=4, events=3, rounds=1))
    assert figures["events_missing"] == figures["held_up_by_readers"] == 0
    ours = figures["events_a_second"]
    assert figures["over_bulk"] == pytest.approx(ours / figures["bulk_a_second"])
    assert figures["over_bulk_in_one_commit"] == pytest.approx(ours / figures["bulk_in_one_commit_a_second"])
    assert 0 < figures["append_p50_ms"] <= figures["append_p99_ms"]
    assert BENCHMARKS["docket"][0] == docket.__name__
