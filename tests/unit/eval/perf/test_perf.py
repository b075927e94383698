import ast
import asyncio
import json
from functools import partial

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

from court.events import ModelCall, QuestionAsked, Role, Side, SideRested
from eval.cli import cli
from eval.perf import bench, search
from eval.perf import clients as load_clients
from eval.perf.bench import Result
from eval.perf.docket import docket
from eval.perf.install import startup
from eval.perf.search import DIM, drawn
from eval.perf.trials import Speed, bar, case, needed, unwatched
from eval.standin import process as served
from eval.standin.replies import TOKENS
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings, parsed
from memecourt.v1 import court_pb2 as wire
from retrieval.index.exact import FusedIndex, Hits
from tests.support import cast as casts
from tests.support import virtual_time
from tests.support.cast import Cast
from tests.support.paths import ROOT
from tests.support.sizes import FULL


def test_perf_alone_lists_the_benchmarks():
    outcome = CliRunner().invoke(cli, ["perf"])
    assert outcome.exit_code == 0
    assert [line.split()[0] for line in outcome.output.splitlines()] == list(bench.BENCHMARKS)


def test_unknown_benchmark_is_an_error_that_names_the_known_ones():
    outcome = CliRunner().invoke(cli, ["perf", "nonsense"])
    assert outcome.exit_code == 2 and "install" in outcome.output


@pytest.mark.parametrize(("bound", "holds"), [("<= 2", True), ("<= 1", False), (">= 1.5", True), ("== 1.5", True)])
def test_goal_is_a_bound_on_a_figure(monkeypatch, bound, holds):
    monkeypatch.setattr("eval.commands.perf.measure", lambda name: Result({"x": 1.5, "y": 9}, {"x": bound}))
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
    assert result.figures["heavy_modules"] == 0 and result.figures["help_over_empty"] > 1
    assert set(result.goals) <= set(result.figures)


def test_docket_benchmark_reports_its_figures_and_finds_the_altered_entry():
    result = docket(trials=4, events=3, rounds=1, verified=150, findings=500, lookups=100, listed=200)
    figures = result.figures
    assert set(result.goals) <= set(figures) and figures["events_missing"] == 0
    assert figures["over_bulk"] > 0
    assert figures["entries"] >= 150 and figures["faults"] == 0 and figures["found"] == 1
    assert figures["finding_over_verdict"] > 0 and figures["verified_over_read"] > 0
    for name in ("newest", "by_label"):
        assert figures[f"list_{name}_over_100"] > 0


def hits(*scores):
    array = np.array(scores)
    return Hits(np.arange(array.size), array, array, array)


def test_recall_counts_positions_and_treats_equal_scores_as_interchangeable():
    assert search.recall(hits(0.9, 0.8, 0.7), hits(0.9, 0.8, 0.7)) == 1
    assert search.recall(hits(0.9, 0.7, 0.6), hits(0.9, 0.8, 0.6)) == pytest.approx(2 / 3)
    assert search.recall(hits(0.8, 0.7, 0.6), hits(0.9, 0.8, 0.7)) == 0


def test_compared_search_methods_find_the_same_rows():
    rows, queries = drawn(3000, seed=0), drawn(5, seed=1)
    index = FusedIndex(rows, DIM)
    for query, alpha in zip(queries, (0.0, 0.3, 0.5, 0.9, 1.0), strict=True):
        ours = search.nearest(index, query, alpha).rows.tolist()
        scores = alpha * (rows[:, :DIM] @ query[:DIM]) + (1 - alpha) * (rows[:, DIM:] @ query[DIM:])
        assert np.argsort(-scores)[:3].tolist() == ours
        assert search.knn(rows, query, alpha)[1][0].tolist() == ours


def test_random_rows_have_unit_length_halves_in_clusters():
    rows = drawn(20_000, seed=0)
    halves = rows.reshape(-1, 2, DIM)
    assert np.linalg.norm(halves, axis=2) == pytest.approx(1, abs=1e-5)
    nearest = np.partition(halves[:50, 0] @ halves[:, 0].T, -2, axis=1)[:, -2]
    assert 0.5 < nearest.mean() < 0.8


def test_search_benchmark_reports_every_figure_with_a_goal(monkeypatch):
    monkeypatch.setattr(search, "library", lambda **_: Result({}, {}))
    result = search.search(memes=3000, queries=2)
    assert set(result.goals) <= set(result.figures)
    assert sum(name.startswith("recall_") for name in result.goals) == 7
    # With so few memes, the candidates cover all rows, so the search equals a full scan.
    assert all(result.figures[f"recall_{alpha}"] == 1 for alpha in (0.0, 0.5, 1.0))


def test_library_benchmarks_compare_with_plain_numpy_and_file_appends(tmp_path):
    search.write(tmp_path / "library", 500)
    assert search.open_to_answer(tmp_path / "library") > 0
    assert 0 < search.memory(tmp_path / "library")["memory_over_vectors"] < 1000
    figures = search.changes(tmp_path / "library", 0.1)
    assert figures["adds_over_appends"] > 0 and figures["search_p99_over_undisturbed"] > 0
    # A vector of 1024 float32 and its metadata: as much is appended to the plain file each time.
    assert (tmp_path / "plain").stat().st_size > 4096


SCALES = {
    "service": {
        **{"memes": 2, "clients": 4, "seconds": 0.5, "turns": 1},
        **{"early": 60, "late": 120, "calls": 5, "trials": 2},
    },
    "overload": {"trials": 2, "waiting": 2, "seconds": 6, "times": 8, "timeout_s": 6},
}
full = pytest.mark.skipif(not FULL, reason="starts a server: a minute together")


@full
@pytest.mark.parametrize("name", SCALES)
def test_benchmark_runs_and_reports_every_figure_with_a_goal(name):
    result = bench.measure(name, **SCALES[name])
    assert set(result.goals) <= set(result.figures)
    exact = {figure: bound for figure, bound in result.goals.items() if bound.startswith("==")}
    assert {figure for figure in exact if not result.within_bound(figure)} == set()


# The load clients, on which all figures depend


def answered(address, messages=(b"x", b"y"), **how):
    return asyncio.run(load_clients.load(address, lambda number: messages[number % len(messages)], **how))


def test_load_clients_count_answers_and_measure_time():
    with load_clients.echo(77) as address:
        outcome = answered(address, clients=3, seconds=30, warm_s=0, most=50)
        with grpc.insecure_channel(address) as channel:
            assert len(channel.unary_unary(load_clients.JUDGE, None, None)(b"x")) == 77
    assert outcome.answered == 50 and outcome.p99_ms > 0 and outcome.rate > 0


def test_load_clients_keep_to_a_fixed_rate():
    with load_clients.echo(1) as address:
        assert answered(address, clients=2, seconds=0.5, warm_s=0.1, rate=40).answered == 20


def test_error_responses_are_not_measured():
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        answered("127.0.0.1:1", clients=1, seconds=5, warm_s=0, most=2)


def test_fields_added_last_override_those_in_the_request():
    made = wire.JudgeRequest(request_id="old", text="old", image=b"picture").SerializeToString()
    made += load_clients.with_field(1, b"new") + load_clients.with_field(4, b"another")
    request = wire.JudgeRequest.FromString(made)
    assert (request.request_id, request.text, request.image) == ("new", "another", b"picture")


def test_server_that_cannot_start_is_reported(tmp_path):
    with pytest.raises(RuntimeError, match="ended before it was ready"), served.served(tmp_path, "--nonsense"):
        pass


try_meme = partial(casts.try_meme, run=virtual_time.run)


def call(*, tokens_in=100, cached=0, out=10, fault=""):
    return ModelCall(
        role=Role.ACCUSER,
        model="m",
        prompt_id="p",
        prompt_digest="d",
        tokens_in=tokens_in,
        tokens_out=out,
        tokens_cached=cached,
        latency_s=0.0,
        fault=fault,
    )


def test_duration_of_a_call_follows_from_the_server_s_settings_and_token_counts():
    speed = Speed(call_s=1.0, prompt_token_s=0.01, output_token_s=0.1)
    assert speed.of(call()) == pytest.approx(1 + 1 + 1)
    assert speed.of(call(cached=60)) == pytest.approx(1 + 0.4 + 1)
    assert speed.of(call(), calls=2) == pytest.approx(2 + 1 + 1)
    with pytest.raises(ValueError, match="twice"):
        speed.of(call(fault="it was empty"))


def test_superfluous_calls_are_excluded_from_what_a_trial_needs():
    record = try_meme(Cast(rounds=2))
    rounds = {event.side: event.rounds for event in record.all(SideRested)}
    assert max(event.round for event in record.all(QuestionAsked)) > rounds[Side.ACCUSER]
    found = needed(record, Speed(call_s=1.0))
    assert found.rounds == (2, 2)
    assert (found.naive, found.score) == (2 + 3 * 4, 2)
    assert found.floor == 1 + 2 * 2 + 1 + 1


async def test_model_server_plays_a_trial_if_configured_to():
    assert parsed(["--play"])[0].play and not parsed([])[0].play
    async with serving(FakeModelServer(Settings(play=True))) as port, bar(f"http://127.0.0.1:{port}") as court:
        record = await court.run(case("m", 3), unwatched)
    assert [event.rounds for event in record.all(SideRested)] == [3, 3]
    found = needed(record, Speed(output_token_s=1.0))
    # Reply lengths alone give the published formulas.
    d, q, a, s, j = (TOKENS[task] for task in ("describe", "ask", "answer", "summarise", "judge"))
    assert found.floor == d + 3 * (q + a) + s + j
    assert found.naive == d + 2 * 3 * (q + a + s) + j and found.score == 2
