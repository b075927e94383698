"""WatchTrial over a real channel: the recorded events, each once and in order, live or afterwards."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import pytest
from google.rpc import error_details_pb2

from court.errors import Unavailable
from court.events import FlipsSought, ReviewOutcome
from court.flips import flips_of
from court.verdict import Label
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import Caller, Scope, set_current
from serving.docket.open import Docket
from serving.judging.executor import EventFeed, TrialExecutor
from serving.judging.request import TrialRequest
from serving.rpc.watch import watch_trial
from tests.support.cast import Cast, full_court
from tests.support.dockets import open_trials
from tests.support.fakes import FakeReader
from tests.support.playing import until
from tests.support.scenes import IMAGE, FakePictures, a_scene, play, remaining_responses
from tests.support.service_calls import Refusal
from tests.support.trial import a_court


async def watch(it, **fields):
    call = it.stub.WatchTrial(wire.WatchTrialRequest(**fields), timeout=60)
    return [response.event for response in await remaining_responses(call)]


async def refused(it, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch(it, **fields)
    return Refusal(caught.value)


def forum_request(**fields):
    return judge_request(IMAGE, request_id="r", namespace="forum", **fields)


NAMED = wire.RequestName(namespace="forum", request_id="r")


def matches_record(events, record, from_seq=0):
    """Asserts that streamed events equal the recorded ones from a number on."""
    recorded = record.events[from_seq:]
    assert [(e.trial_id, e.seq, e.kind) for e in events] == [(e.trial_id, e.seq, e.kind) for e in recorded]
    assert [json.loads(e.json) for e in events] == [json.loads(e.model_dump_json()) for e in recorded]
    assert [e.at.ToDatetime(UTC) for e in events] == [e.at for e in recorded]
    return True


@asynccontextmanager
async def trial_at_another_server(it, path, reader):
    """Starts a trial at another server, which waits for its text; yields the trial's id and its task."""
    reader.wait, reader.asked = asyncio.Event(), asyncio.Event()
    docket = Docket.open(path / "docket.sqlite")
    elsewhere = TrialExecutor(a_court(None, reader), FakePictures(), docket)
    hearing = asyncio.create_task(elsewhere.run(TrialRequest(image=IMAGE)))
    await reader.asked.wait()
    (trial_id,) = await open_trials(it.docket)
    try:
        yield trial_id, hearing
    finally:
        hearing.cancel()
        await asyncio.wait([hearing])
        await docket.close()


async def test_a_trial_can_be_watched_from_any_number(tmp_path):
    async with a_scene(tmp_path) as it:
        response = await it.stub.Judge(forum_request(text="x"), timeout=60)
        record = await it.docket.trials.record(response.verdict_id)
        last = len(record.events) - 1
        streamed = {seq: await watch(it, trial_id=record.trial_id, from_seq=seq) for seq in (0, 1, last, last + 5)}
        by_name = await watch(it, request=NAMED)
    assert len(record.events) > 4
    for from_seq, events in streamed.items():
        assert matches_record(events, record, from_seq)
    assert matches_record(by_name, record)


async def test_flips_are_streamed_to_reviewers_alone(tmp_path):
    """A platform that asks for verdicts is never told what would free its content."""
    async with a_scene(tmp_path) as it:
        response = await it.stub.Judge(forum_request(text="x"), timeout=60)
        record = await it.docket.trials.record(response.verdict_id)
        flips = flips_of(record)
        assert flips is not None
        sought = FlipsSought(trial_id=record.trial_id, seq=len(record.events), at=record.events[-1].at, flips=flips)
        await it.docket.writer.append(sought)

        async def kinds(*scopes):
            set_current(Caller("platform", frozenset(scopes)))
            request, feed = wire.WatchTrialRequest(trial_id=record.trial_id), EventFeed()
            parts = {"trials": it.docket.trials, "log": it.docket.log, "runner": None, "feed": feed}
            return [each.event.kind async for each in watch_trial(request, **parts)]

        platform, reviewer = await kinds(Scope.JUDGE), await kinds(Scope.JUDGE, Scope.REVIEW)
    assert platform[-1] == "VerdictGiven" and reviewer == [*platform, "FlipsSought"]


async def test_many_watchers_see_a_running_trial_without_gaps(tmp_path):
    """They join at different events of a full trial; each gets all events in order, until the trial ends."""

    begun = asyncio.Event()

    def describe(_):
        begun.set()
        return {"description": "A crowd stands under a green flag."}

    async with a_scene(tmp_path, court=full_court(Cast(rounds=3, delay_s=0.03, describe=describe))) as it:
        judging = it.stub.Judge(forum_request(text="x", procedure=wire.PROCEDURE_FULL), timeout=60)
        await begun.wait()
        (trial_id,) = await open_trials(it.docket)
        watching = []
        while not judging.done():
            watching.append(asyncio.create_task(watch(it, trial_id=trial_id, from_seq=len(watching) % 3)))
            await asyncio.sleep(0.02 if len(watching) < 10 else 0.1)
        await judging
        streams, record = [await one for one in watching], await it.docket.trials.record(trial_id)
    assert len(streams) >= 3
    for number, events in enumerate(streams):
        assert matches_record(events, record, number % 3)


async def test_a_trial_of_another_server_is_watched_through_the_docket(tmp_path):
    reader = FakeReader("as read")
    async with (
        a_scene(tmp_path, reader=reader) as it,
        trial_at_another_server(it, tmp_path, reader) as (trial_id, hearing),
    ):
        call = it.stub.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), timeout=60)
        first = (await call.read()).event
        reader.wait.set()
        events = [first] + [response.event for response in await remaining_responses(call)]
        assert matches_record(events, (await hearing).record)


def test_reviews_are_streamed_and_a_failure_ends_the_stream(tmp_path):
    async def work(it):
        response = await it.stub.Judge(forum_request(text="x"), timeout=60)
        await it.docket.reviews.review(
            response.verdict_id,
            outcome=ReviewOutcome.OVERRULED,
            label=Label.NOT_HARMFUL,
            reason="a quotation",
            clause="",
            reviewer="somebody",
            at=datetime.now(UTC),
        )
        return await watch(it, trial_id=response.verdict_id)

    assert [event.kind for event in play(work, tmp_path)][-2:] == ["VerdictGiven", "VerdictReviewed"]

    async def failing(it):
        refusal = await it.refusal(forum_request(text="x"))
        return await watch(it, trial_id=refusal.info.metadata["trial_id"])

    (tmp_path / "2").mkdir()
    assert play(failing, tmp_path / "2", found=RuntimeError("broken"))[-1].kind == "TrialFailed"


async def test_invalid_watches_are_refused(tmp_path):
    async with a_scene(tmp_path) as it:
        refusals = [
            await refused(it, trial_id="nobody"),
            await refused(it, request=NAMED),
            await refused(it),
            await refused(it, request=wire.RequestName(namespace="forum")),
            await refused(it, trial_id="x" * 300),
            await refused(it, trial_id="nobody", from_seq=-1),
        ]
    assert [(r.code.name, r.info.reason) for r in refusals] == [
        ("NOT_FOUND", "TRIAL_UNKNOWN"),
        ("NOT_FOUND", "TRIAL_UNKNOWN"),
        ("INVALID_ARGUMENT", "FIELD_MISSING"),
        ("INVALID_ARGUMENT", "FIELD_MISSING"),
        ("INVALID_ARGUMENT", "FIELD_TOO_LONG"),
        ("INVALID_ARGUMENT", "OUT_OF_RANGE"),
    ]


def test_closing_the_court_lets_running_trials_be_watched_to_their_end(tmp_path):
    reader = FakeReader("as read")

    async def work(it):
        reader.wait = asyncio.Event()
        judging = it.stub.Judge(forum_request(), timeout=60)
        await reader.asked.wait()
        call = it.stub.WatchTrial(wire.WatchTrialRequest(request=NAMED), timeout=60)
        await call.read()
        it.service.close()
        reader.wait.set()
        await judging
        kinds = [response.event.kind for response in await remaining_responses(call)]
        refusal = await refused(it, trial_id="any")
        return kinds, refusal

    kinds, refusal = play(work, tmp_path, reader=reader)
    assert kinds[-1] == "VerdictGiven"
    assert refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.info.reason == "CLOSING"

    async def cut_off(it):
        """Watches a trial that is open in the docket, but that no server runs."""
        async with trial_at_another_server(it, tmp_path / "2", reader) as (trial_id, _):
            call = it.stub.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), timeout=60)
            await call.read()
            it.service.close()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            return Refusal(caught.value)

    (tmp_path / "2").mkdir()
    refusal = play(cut_off, tmp_path / "2")
    assert refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.of(error_details_pb2.RetryInfo)


async def test_many_watchers_of_an_idle_trial_share_the_queries(tmp_path, monkeypatch):
    """Events stored by another server are queried once for all watchers, and reach all of them."""
    reader = FakeReader("as read")
    many = 30
    async with a_scene(tmp_path, reader=reader) as it:
        queries, read = [], it.docket.transactions.read

        async def counted(query):
            queries.append(query)
            return await read(query)

        async with trial_at_another_server(it, tmp_path, reader) as (trial_id, hearing):
            calls = [it.stub.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), timeout=60) for _ in range(many)]
            for call in calls:
                await call.read()
            await asyncio.sleep(0.2)  # the last watchers have caught up
            monkeypatch.setattr(it.docket.transactions, "read", counted)
            await asyncio.sleep(1.6)
            await until(lambda: queries)
            while_idle = len(queries)
            reader.wait.set()
            ends = [[response.event.kind for response in await remaining_responses(call)][-1] for call in calls]
            await hearing
    assert 1 <= while_idle < many  # one query per half second
    assert ends == ["VerdictGiven"] * many


async def test_watchers_get_an_error_when_the_docket_cannot_be_read(tmp_path, monkeypatch):
    reader = FakeReader("as read")
    async with a_scene(tmp_path, reader=reader) as it:
        reader.wait = asyncio.Event()
        judging = it.stub.Judge(forum_request(), timeout=60)
        await reader.asked.wait()
        call = it.stub.WatchTrial(wire.WatchTrialRequest(request=NAMED), timeout=60)
        await call.read()

        async def broken(_):
            raise Unavailable("The docket can't be written or read now: its file is gone.", reason="DOCKET_UNAVAILABLE")

        with monkeypatch.context() as patched:
            patched.setattr(it.docket.transactions, "read", broken)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await remaining_responses(call)
        reader.wait.set()
        await judging
        refusal = Refusal(caught.value)
    assert refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.info.reason == "DOCKET_UNAVAILABLE"
