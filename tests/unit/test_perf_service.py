"""The benchmarks of the service, each in a size that says nothing but that it runs and what it counts."""

import asyncio
import json
import sqlite3

import pytest

from eval.perf import bench
from eval.perf.load import clients as asking
from eval.perf.load import overload
from eval.perf.load import process as served
from eval.perf.load.process import Resources
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
def test_it_runs_and_measures_what_it_is_held_against(name):
    result = bench.measure(name, **SCALES[name])
    assert set(result.goals) <= set(result.figures)
    exact = {figure: bound for figure, bound in result.goals.items() if bound.startswith("==")}
    assert {figure for figure in exact if not result.within_bound(figure)} == set()


# The clients, which all figures rest on


def test_the_clients_count_answers_and_take_their_time():
    with asking.echo(77) as (address, pid):
        process = served.Process(address, pid, None)
        outcome = asyncio.run(
            asking.do(asking.Job(address, [], clients=3, seconds=30, warm_s=0, most=50), [b"x", b"y"])
        )
        held = process.resources()
    assert outcome.codes == {"OK": 50} and outcome.answer_bytes == 77
    assert 0 < outcome.p50_ms <= outcome.p99_ms and outcome.rate == 50 / outcome.seconds
    assert held.memory > 1 and held.handles > 3 and held.threads >= 1


def test_at_a_rate_so_many_are_asked_as_were_due():
    with asking.echo(1) as (address, _):
        outcome = asyncio.run(asking.do(asking.Job(address, [], clients=2, seconds=0.5, warm_s=0.1, rate=40), [b"x"]))
    assert outcome.answered == 20 and outcome.first_ms > 0


def test_an_answer_that_is_an_error_is_not_measured():
    job = asking.Job("127.0.0.1:1", [], clients=1, seconds=5, warm_s=0, most=2)
    outcome = asyncio.run(asking.do(job, [b"x"]))
    assert outcome.codes == {"UNAVAILABLE": 2} and outcome.answered == 0
    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        outcome.require_all_answered()


def test_own_fields_go_before_those_that_stand_in_the_request():
    from memecourt.v1 import court_pb2 as wire

    made = wire.JudgeRequest(request_id="old", text="old", image=b"picture").SerializeToString()
    made += asking.with_field(asking.REQUEST_ID, b"new") + asking.with_field(asking.TEXT, b"another")
    request = wire.JudgeRequest.FromString(made)
    assert (request.request_id, request.text, request.image) == ("new", "another", b"picture")


# What the soak counts


def test_the_soak_finds_growth_losses_and_errors_of_our_own():
    told = overload._Answers({"a": "1", "b": "2", "c": "3"}, {"d": "MODEL_GONE", "e": "INTERNAL"})
    rows = {"a": (1, 0, "DECIDED"), "b": (2, 0, "DECIDED"), "d": (0, 1, "FAILED"), "f": (0, 0, "OPEN")}
    looks = [Resources(100 + number, 50, 20 + (number > 15)) for number in range(20)]
    figures = overload._figures(told, looks, rows, seconds=60)
    assert (figures["verdicts_missing"], figures["ends_missing"], figures["ends_twice"]) == (2, 1, 1)
    assert figures["errors_not_injected"] == 1 and figures["trials_a_minute"] == 3
    assert figures["memory_over_early"] == pytest.approx(117.5 / 105.5)
    assert figures["handles_over_early"] == 1 and figures["threads_over_early"] == pytest.approx(1.05)


def test_the_ends_are_read_off_the_docket(tmp_path):
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


def test_a_server_that_can_t_start_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="ended before it was ready"), served.served(tmp_path, "--nonsense"):
        pass


def test_a_job_survives_its_way_to_the_other_process():
    job = asking.Job("127.0.0.1:1", ["a"], rate=2.5, text="t")
    assert asking.Job(**json.loads(json.dumps({name: getattr(job, name) for name in job.__slots__}))) == job
