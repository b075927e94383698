"""One server with retention as operators configure it, and an appeal over the wire."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from memecourt.client import Client
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from serving.docket.errors import TrialErased, TrialUnknown
from tests.support.dockets import append_all, events_of, with_docket

pytestmark = pytest.mark.integration


def record_of(docket_path, trial_id):
    return with_docket(docket_path, lambda docket: docket.trials.record(trial_id), create=False)


def eventually(check, *, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except (TrialUnknown, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


def erased(docket_path, trial_id):
    try:
        record_of(docket_path, trial_id)
    except TrialErased:
        return True
    raise AssertionError("the trial is still on record")


def test_server_erases_old_trials_and_takes_appeals(start, tmp_path, monkeypatch):
    docket_path = tmp_path / "docket.sqlite"
    old, new = datetime.now(UTC) - timedelta(days=3), datetime.now(UTC) - timedelta(hours=3)

    async def fill(docket):
        await asyncio.gather(append_all(docket, events_of("old", old)), append_all(docket, events_of("new", new)))

    with_docket(docket_path, fill)
    config = tmp_path / "memecourt.toml"
    config.write_text('retention_days = 2\nreuse = "off"\n')
    monkeypatch.setenv("MEMECOURT_CONFIG", str(config))
    server = start(docket_path).ready()
    with Client(server.address, retries=Retries(attempts=1)) as client:
        content = wire.Content(namespace="shop", id="post 7")
        response = client.ask(wire.JudgeRequest(text="people from Blueland are late", content=content), timeout=120)
        appeal = wire.OpenAppealRequest(content=content, statement="It is satire.", by="forum", reference="1")
        assert client.appeal(appeal) == client.appeal(appeal)
    eventually(lambda: erased(docket_path, "old"))
    assert record_of(docket_path, "new").trial_id == "new"
    assert [event.kind for event in record_of(docket_path, response.verdict_id).events][-1] == "AppealOpened"
