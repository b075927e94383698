"""Two model servers behind the real court, each a process of its own, one of which is killed in mid-trial."""

import concurrent.futures
import json
import urllib.request

import pytest

from court.events import VerdictGiven
from court.record import TrialState
from memecourt.v1 import court_pb2 as wire
from tests.integration.test_full_server import FULL, ModelServer, ask
from tests.integration.test_server import records

pytestmark = pytest.mark.integration


@pytest.fixture
def two():
    servers = {server.url: server for server in (ModelServer("--call-s", "0.15") for _ in range(2))}
    yield servers
    for server in servers.values():
        if server.process.poll() is None:
            server.kill()


def calls(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/stats", timeout=60) as answer:
        return json.load(answer)["calls"]


def test_a_trial_keeps_to_one_server_and_goes_on_at_the_other_when_that_is_killed(start, two):
    # The same picture is tried twice here.
    court = start(None, "--reuse", "off", "--llm-url", ",".join(two), "--model", "stand-in").ready()
    address = court.address
    probed = {url: calls(server) for url, server in two.items()}
    assert all(probed.values()), "each is asked at start what it can do"

    whole = ask(address, procedure=FULL)
    (used,) = [url for url, server in two.items() if calls(server) > probed[url]]
    (other,) = set(two) - {used}
    (record,) = records(court.docket, whole.verdict_id)
    assert record.opened.servers["JUDGE"] == (used, other)

    # The same picture comes to the same server, which does not survive it.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, address, procedure=FULL)
        court.wait_for(lambda line: "event=AnswerGiven" in line and whole.verdict_id not in line)
        assert calls(two[other]) == probed[other]
        two[used].kill()
        response = asked.result()
    assert response.label in (wire.LABEL_HARMFUL, wire.LABEL_NOT_HARMFUL)
    (record,) = records(court.docket, response.verdict_id)
    assert record.state is TrialState.DECIDED
    servers = [event.call.server for event in record.events if getattr(event, "call", None)]
    assert servers[0] == used and record.last(VerdictGiven).call.server == other
    assert set(servers) == {used, other}
