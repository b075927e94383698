"""The benchmark of checking a docket, at a size that takes no time."""

from __future__ import annotations

import pytest

from eval.perf import docket_verify
from eval.perf.bench import BENCHMARKS


def test_it_checks_what_it_wrote_and_finds_what_it_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BENCHMARKS["docket-verify"][0] == docket_verify.__name__
    monkeypatch.setattr(docket_verify, "_EVENTS", 150)
    monkeypatch.setattr(docket_verify, "_ROUNDS", 2)
    result = docket_verify.measure()
    figures = result.figures
    assert figures["entries"] >= 150 and figures["faults"] == 0 and figures["found"] == 1
    assert figures["events_per_s"] > 0 and figures["over_reading"] > 0
    assert result.holds
