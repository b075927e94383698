"""One server with what operators set once it runs: retention, a quota, a shadow; and an appeal over the wire."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from memecourt.client import Client, JudgeError
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from serving.docket.ports import TrialErased, TrialUnknown
from serving.runner.shadow import shadow_id
from tests.support.dockets import append_all, events_of, with_docket

pytestmark = pytest.mark.integration


def record_of(place, trial_id):
    return with_docket(place, lambda docket: docket.trials.record(trial_id), create=False)


def eventually(look, *, seconds=120):
    until = time.monotonic() + seconds
    while True:
        try:
            return look()
        except (TrialUnknown, AssertionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.25)


def erased(place, trial_id):
    try:
        record_of(place, trial_id)
    except TrialErased:
        return True
    raise AssertionError("it is still there")


def test_a_server_erases_by_age_keeps_to_a_quota_tries_in_the_shadow_and_takes_appeals(start, tmp_path, monkeypatch):
    place, shadow = tmp_path / "kept.sqlite", tmp_path / "shadow.sqlite"
    old, new = datetime.now(UTC) - timedelta(days=3), datetime.now(UTC) - timedelta(hours=3)

    async def fill(docket):
        await asyncio.gather(append_all(docket, events_of("old", old)), append_all(docket, events_of("new", new)))

    with_docket(place, fill)
    config = tmp_path / "memecourt.toml"
    config.write_text(
        f'retention_days = 2\nreuse = "off"\n[namespaces.shop]\ntrials_per_day = 1\n[shadow]\ndocket = "{shadow}"\n'
    )
    monkeypatch.setenv("MEMECOURT_CONFIG", str(config))
    server = start(place).ready()
    with Client(server.address, retries=Retries(attempts=1)) as client:
        content = wire.Content(namespace="shop", id="post 7")
        judged = client.ask(wire.JudgeRequest(text="people from Blueland are late", content=content), timeout=120)
        with pytest.raises(JudgeError) as refused:
            client.ask(wire.JudgeRequest(text="another text", content=content), timeout=120)
        assert refused.value.reason == "QUOTA_EXCEEDED"
        asked = wire.OpenAppealRequest(content=content, statement="It is satire.", by="forum", reference="1")
        assert client.appeal(asked) == client.appeal(asked)
        tried = eventually(lambda: record_of(shadow, shadow_id(judged.verdict_id)))
    assert tried.opened.of_trial == judged.verdict_id and tried.opened.meme.content_id == "post 7"
    eventually(lambda: erased(place, "old"))
    assert record_of(place, "new").trial_id == "new"
    assert [event.kind for event in record_of(place, judged.verdict_id).events][-1] == "AppealOpened"
