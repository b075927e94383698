"""Helpers of tests of webhooks."""

from contextlib import asynccontextmanager

import pytest

from court.events import TrialFailed
from court.verdict import Review, ReviewReason
from serving.docket.store.hooks import NOTHING
from serving.judging.heartbeat import Heartbeat
from serving.telemetry import SILENT
from serving.webhooks.attempts import Receiver
from serving.webhooks.sender import HookSender
from tests.support.dockets import NOON, events_of
from tests.support.receivers import running_receiver


@pytest.fixture
def receiver():
    with running_receiver() as server:
        yield server


def decided(trial_id, *, label=None, review=False, namespace="forum"):
    """Returns the events of a trial with a verdict, which may request a review."""
    opened, *others, verdict_event = events_of(trial_id, NOON)
    meme = opened.meme.model_copy(update={"namespace": namespace, "content_id": f"content-{trial_id}"})
    opened = opened.model_copy(update={"meme": meme, "request_id": f"request-{trial_id}"})
    reasons = (Review(reason=ReviewReason.TEXT_UNSURE, detail="a detail of Blueland"),) if review else ()
    verdict = verdict_event.verdict.model_copy(update={"review": reasons})
    return [opened, *others, verdict_event.model_copy(update={"verdict": verdict})]


def failed(trial_id):
    opened = decided(trial_id)[0]
    return [
        opened,
        TrialFailed(trial_id=trial_id, seq=1, at=NOON, step="text", reason="GONE", message="Blueland", retryable=True),
    ]


@asynccontextmanager
async def sending(docket, hook, *, clock=None, name="s1", metrics=SILENT.metrics):
    """Yields a sender that works only on request."""
    receiver = Receiver(hook, **({"clock": clock} if clock else {}))
    heartbeat = Heartbeat(docket.heartbeats, name)
    options = {"clock": clock} if clock else {}
    try:
        yield HookSender(receiver, docket, heartbeat, metrics=metrics, **options)
    finally:
        await receiver.aclose()


async def hooks_of(docket):
    return [*(await docket.deliveries.states()).hooks.values()]


async def backlog_of(docket, name):
    return (await docket.deliveries.states()).backlogs.get(name, NOTHING)


async def until_idle(hook_sender):
    while await hook_sender.work():
        pass
