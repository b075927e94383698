"""Two model servers, each a subprocess, behind the real court; one is killed in mid-trial."""

import concurrent.futures
import json
import urllib.request

import pytest

from court.events import VerdictGiven
from court.record import TrialState
from memecourt.v1 import court_pb2 as wire
from tests.support.server import FULL, ModelServer, ask, records

pytestmark = pytest.mark.integration


@pytest.fixture
def model_servers():
    servers = {server.url: server for server in (ModelServer("--call-s", "0.15") for _ in range(2))}
    yield servers
    for server in servers.values():
        if server.process.poll() is None:
            server.kill()


def calls(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/stats", timeout=60) as answer:
        return json.load(answer)["calls"]


def test_trial_stays_on_one_model_server_and_fails_over_when_it_is_killed(start, model_servers):
    # Reuse is off because the same picture is tried twice.
    court = start(None, "--reuse", "off", "--llm-url", ",".join(model_servers), "--model", "stand-in").ready()
    address = court.address
    probed = {url: calls(server) for url, server in model_servers.items()}
    assert all(probed.values()), "each is probed for its capabilities at start"

    first = ask(address, procedure=FULL)
    (used,) = [url for url, server in model_servers.items() if calls(server) > probed[url]]
    (other,) = set(model_servers) - {used}
    (record,) = records(court.docket, first.verdict_id)
    assert record.opened.servers["JUDGE"] == (used, other)

    # The same picture goes to the same server again, which is killed in mid-trial.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(ask, address, procedure=FULL)
        court.wait_for(lambda line: "event=AnswerGiven" in line and first.verdict_id not in line)
        assert calls(model_servers[other]) == probed[other]
        model_servers[used].kill()
        response = pending.result()
    assert response.label in (wire.LABEL_HARMFUL, wire.LABEL_NOT_HARMFUL)
    (record,) = records(court.docket, response.verdict_id)
    assert record.state is TrialState.DECIDED
    servers = [event.call.server for event in record.events if getattr(event, "call", None)]
    assert servers[0] == used and record.last(VerdictGiven).call.server == other
    assert set(servers) == {used, other}
