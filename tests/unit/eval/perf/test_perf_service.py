"""The benchmarks of the service, at scales that only show that they run and what they count."""

import asyncio
import json

import pytest

from eval.perf import bench
from eval.perf import clients as load_clients
from eval.standin import process as served
from tests.support.sizes import FULL

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


def test_load_clients_count_answers_and_measure_time():
    with load_clients.echo(77) as (address, pid):
        process = served.Process(address, pid, None)
        outcome = asyncio.run(
            load_clients.do(load_clients.Job(address, [], clients=3, seconds=30, warm_s=0, most=50), [b"x", b"y"])
        )
        resources = process.resources()
    assert outcome.codes == {"OK": 50} and outcome.answer_bytes == 77
    assert outcome.p99_ms > 0 and outcome.rate == 50 / outcome.seconds
    assert resources.memory > 1 and resources.handles > 3 and resources.threads >= 1


def test_load_clients_keep_to_a_fixed_rate():
    with load_clients.echo(1) as (address, _):
        outcome = asyncio.run(
            load_clients.do(load_clients.Job(address, [], clients=2, seconds=0.5, warm_s=0.1, rate=40), [b"x"])
        )
    assert outcome.answered == 20


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


def test_server_that_cannot_start_is_reported(tmp_path):
    with pytest.raises(RuntimeError, match="ended before it was ready"), served.served(tmp_path, "--nonsense"):
        pass


def test_load_job_round_trips_as_json():
    job = load_clients.Job("127.0.0.1:1", ["a"], rate=2.5, text="t")
    assert load_clients.Job(**json.loads(json.dumps({name: getattr(job, name) for name in job.__slots__}))) == job
