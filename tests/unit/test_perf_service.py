"""The benchmarks of the service, at scales that only show that they run and what they count."""

import asyncio
import json
import sqlite3

import pytest

from eval.perf import bench
from eval.perf.load import clients as load_clients
from eval.perf.load import overload
from eval.standin import process as served
from eval.standin.process import Resources
from tests.support.sizes import FULL

SCALES = {
    "service": {"memes": 2, "clients": 4, "seconds": 0.5, "turns": 1},
    "service-summary": {"pictures": 2, "clients": 2, "requests": 6, "turns": 1},
    "memory": {"early": 60, "late": 120, "memes": 2},
    "slow-streams": {"slow": 40, "rate": 10, "clients": 2, "seconds": 1},
    "overload": {"trials": 2, "waiting": 2, "seconds": 6, "times": 8, "timeout_s": 6},
    "soak": {"seconds": 4, "trials": 2},
    "bombs": {"rate": 6, "known": 5, "fresh": 1, "seconds": 3},
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


def test_load_clients_count_answers_and_measure_time():
    with load_clients.echo(77) as (address, pid):
        process = served.Process(address, pid, None)
        outcome = asyncio.run(
            load_clients.do(load_clients.Job(address, [], clients=3, seconds=30, warm_s=0, most=50), [b"x", b"y"])
        )
        resources = process.resources()
    assert outcome.codes == {"OK": 50} and outcome.answer_bytes == 77
    assert 0 < outcome.p50_ms <= outcome.p99_ms and outcome.rate == 50 / outcome.seconds
    assert resources.memory > 1 and resources.handles > 3 and resources.threads >= 1


def test_load_clients_keep_to_a_fixed_rate():
    with load_clients.echo(1) as (address, _):
        outcome = asyncio.run(
            load_clients.do(load_clients.Job(address, [], clients=2, seconds=0.5, warm_s=0.1, rate=40), [b"x"])
        )
    assert outcome.answered == 20 and outcome.first_ms > 0


def test_error_responses_are_not_measured():
    job = load_clients.Job("127.0.0.1:1", [], clients=1, seconds=5, warm_s=0, most=2)
    outcome = asyncio.run(load_clients.do(job, [b"x"]))
    assert outcome.codes == {"UNAVAILABLE": 2} and outcome.answered == 0
    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        outcome.require_all_answered()


def test_fields_added_last_override_those_in_the_request():
    from memecourt.v1 import court_pb2 as wire

    made = wire.JudgeRequest(request_id="old", text="old", image=b"picture").SerializeToString()
    made += load_clients.with_field(load_clients.REQUEST_ID, b"new") + load_clients.with_field(
        load_clients.TEXT, b"another"
    )
    request = wire.JudgeRequest.FromString(made)
    assert (request.request_id, request.text, request.image) == ("new", "another", b"picture")


# Figures of the soak test


def test_soak_test_finds_growth_lost_trials_and_internal_errors():
    answers = overload._Answers({"a": "1", "b": "2", "c": "3"}, {"d": "MODEL_GONE", "e": "INTERNAL"})
    rows = {"a": (1, 0, "DECIDED"), "b": (2, 0, "DECIDED"), "d": (0, 1, "FAILED"), "f": (0, 0, "OPEN")}
    samples = [Resources(100 + number, 50, 20 + (number > 15)) for number in range(20)]
    figures = overload._figures(answers, samples, rows, seconds=60)
    assert (figures["verdicts_missing"], figures["ends_missing"], figures["ends_twice"]) == (2, 1, 1)
    assert figures["errors_not_injected"] == 1 and figures["trials_a_minute"] == 3
    assert figures["memory_over_early"] == pytest.approx(117.5 / 105.5)
    assert figures["handles_over_early"] == 1 and figures["threads_over_early"] == pytest.approx(1.05)


def test_trial_ends_are_read_from_the_docket(tmp_path):
    path = tmp_path / "docket.sqlite"
    with sqlite3.connect(path) as file:
        file.executescript(
            "CREATE TABLE requests (namespace, request_id, trial_id); CREATE TABLE trials (trial_id, state);"
            "CREATE TABLE entries (trial_id, kind);"
            "INSERT INTO requests VALUES ('', 'a', 't1'), ('n', 'b', 't2'), ('', 'c', 't3'), ('\\0meme', 'key', 't1');"
            "INSERT INTO trials VALUES ('t1', 'DECIDED'), ('t2', 'FAILED');"
            "INSERT INTO entries VALUES ('t1', 'TrialOpened'), ('t1', 'VerdictGiven'), ('t2', 'TrialFailed');"
        )
    assert overload._ends(path) == {"a": (1, 0, "DECIDED"), "b": (0, 1, "FAILED"), "c": (0, 0, "")}


def test_server_that_cannot_start_is_reported(tmp_path):
    with pytest.raises(RuntimeError, match="ended before it was ready"), served.served(tmp_path, "--nonsense"):
        pass


def test_load_job_round_trips_as_json():
    job = load_clients.Job("127.0.0.1:1", ["a"], rate=2.5, text="t")
    assert load_clients.Job(**json.loads(json.dumps({name: getattr(job, name) for name in job.__slots__}))) == job
