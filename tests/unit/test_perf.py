import json

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.perf import bench
from eval.perf.bench import Result


def test_perf_alone_lists_what_there_is():
    outcome = CliRunner().invoke(cli, ["perf"])
    assert outcome.exit_code == 0
    assert [line.split()[0] for line in outcome.output.splitlines()] == list(bench.BENCHMARKS)


def test_an_unknown_benchmark_is_an_error_that_names_the_known():
    outcome = CliRunner().invoke(cli, ["perf", "nonsense"])
    assert outcome.exit_code == 2 and "startup" in outcome.output


@pytest.mark.parametrize(("bound", "holds"), [("<= 2", True), ("<= 1", False), (">= 1.5", True), ("== 1.5", True)])
def test_a_goal_is_a_bound(monkeypatch, bound, holds):
    monkeypatch.setattr("eval.perf.bench.measure", lambda name: Result(name, {"x": 1.5, "y": 9}, {"x": bound}))
    outcome = CliRunner().invoke(cli, ["perf", "startup", "--json"])
    assert json.loads(outcome.output) == {
        "name": "startup",
        "figures": {"x": 1.5, "y": 9},
        "goals": {"x": bound},
        "holds": holds,
    }
    assert outcome.exit_code == (0 if holds else 1)
    assert ("DOES NOT HOLD" in CliRunner().invoke(cli, ["perf", "startup"]).output) != holds


def test_startup_is_measured():
    result = bench.measure("startup")
    assert result.figures["heavy_modules"] == 0
    assert result.figures["help_cpu_s"] > result.figures["empty_cpu_s"] > 0
    assert set(result.goals) <= set(result.figures)
