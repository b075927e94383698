import ast
import json

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.perf import bench
from eval.perf.bench import Result
from eval.perf.install import startup
from tests.support.paths import ROOT


def test_perf_alone_lists_the_benchmarks():
    outcome = CliRunner().invoke(cli, ["perf"])
    assert outcome.exit_code == 0
    assert [line.split()[0] for line in outcome.output.splitlines()] == list(bench.BENCHMARKS)


def test_unknown_benchmark_is_an_error_that_names_the_known_ones():
    outcome = CliRunner().invoke(cli, ["perf", "nonsense"])
    assert outcome.exit_code == 2 and "install" in outcome.output


@pytest.mark.parametrize(("bound", "holds"), [("<= 2", True), ("<= 1", False), (">= 1.5", True), ("== 1.5", True)])
def test_goal_is_a_bound_on_a_figure(monkeypatch, bound, holds):
    monkeypatch.setattr("eval.perf.bench.measure", lambda name: Result({"x": 1.5, "y": 9}, {"x": bound}))
    outcome = CliRunner().invoke(cli, ["perf", "install", "--json"])
    assert json.loads(outcome.output) == {
        "name": "install",
        "figures": {"x": 1.5, "y": 9},
        "goals": {"x": bound},
        "holds": holds,
    }
    assert outcome.exit_code == (0 if holds else 1)
    assert ("DOES NOT HOLD" in CliRunner().invoke(cli, ["perf", "install"]).output) != holds


def test_bound_applies_to_the_exact_figure_rather_than_the_rounded_one():
    result = Result({"x": 1.00004, "counted": 123_456}, {"x": "== 1"})
    assert result.rounded == {"x": 1.0, "counted": 123_456} and not result.holds


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_each_benchmark_is_the_function_of_its_name_with_a_default_scale(name):
    # Parsed instead of imported: some benchmarks import packages that take seconds to load.
    source = (ROOT / bench.BENCHMARKS[name][0].replace(".", "/")).with_suffix(".py").read_text()
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    scale = functions[name.replace("-", "_")].args
    assert scale.kwonlyargs and None not in scale.kw_defaults and not scale.args


def test_variants_are_warmed_up_and_alternate_in_going_first():
    calls = []
    ways = [lambda n: calls.append(("a", n)) or n, lambda n: calls.append(("b", n)) or 10 * n]
    assert bench.in_turns(ways, [1, 2]) == [(1, 10), (2, 20)]
    assert calls == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert bench.medians([(1, 10), (2, 20), (4, 20)], over=lambda a, b: b / a) == {"over": 10}


def test_startup_is_measured():
    result = startup(turns=3)
    assert result.figures["heavy_modules"] == 0
    assert result.figures["help_cpu_s"] > result.figures["empty_cpu_s"] > 0
    assert set(result.goals) <= set(result.figures)
