"""WatchTrial through a real channel: the events as the docket has them, each once and in order, live or afterwards."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import pytest
from google.rpc import error_details_pb2

from court.errors import Unavailable
from court.events import ReviewOutcome
from court.verdict import Label
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.docket.open import Docket
from serving.runner.executor import TrialExecutor
from serving.runner.request import TrialRequest
from tests.contract.scenes import IMAGE, FakePictures, play, rest_of
from tests.support.cast import Cast, full_court
from tests.support.dockets import open_trials
from tests.support.fakes import FakeReader
from tests.support.playing import until
from tests.support.service_calls import Refusal
from tests.unit.test_trial import a_court


async def watched(it, **fields):
    call = it.stub.WatchTrial(wire.WatchTrialRequest(**fields), timeout=60)
    return [response.event for response in await rest_of(call)]


async def refused(it, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watched(it, **fields)
    return Refusal(caught.value)


def asked(**fields):
    return judge_request(IMAGE, request_id="r", namespace="forum", **fields)


NAMED = wire.RequestName(namespace="forum", request_id="r")


def same(events, record, from_seq=0):
    """Whether what was told is what is on record, from a number on."""
    kept = record.events[from_seq:]
    assert [(e.trial_id, e.seq, e.kind) for e in events] == [(e.trial_id, e.seq, e.kind) for e in kept]
    assert [json.loads(e.json) for e in events] == [json.loads(e.model_dump_json()) for e in kept]
    assert [e.at.ToDatetime(UTC) for e in events] == [e.at for e in kept]
    return True


@asynccontextmanager
async def held_elsewhere(it, path, reader):
    """Another server holds a trial, which waits for its text: the trial's id, and what comes of it."""
    reader.wait, reader.asked = asyncio.Event(), asyncio.Event()
    docket = Docket.open(path / "docket.sqlite")
    elsewhere = TrialExecutor(a_court(None, reader), FakePictures(), docket)
    hearing = asyncio.create_task(elsewhere.hear(TrialRequest(image=IMAGE)))
    await reader.asked.wait()
    (trial_id,) = await open_trials(it.docket)
    try:
        yield trial_id, hearing
    finally:
        hearing.cancel()
        await asyncio.wait([hearing])
        await docket.close()


def test_a_trial_can_be_watched_from_the_start_from_a_number_on_and_beyond_its_end(tmp_path):
    async def work(it):
        response = await it.stub.Judge(asked(text="x"), timeout=60)
        record = await it.docket.trials.record(response.verdict_id)
        last = len(record.events) - 1
        told = {seq: await watched(it, trial_id=record.trial_id, from_seq=seq) for seq in (0, 1, last, last + 5)}
        return record, told, await watched(it, request=NAMED)

    record, told, by_name = play(work, tmp_path)
    assert len(record.events) > 4
    for from_seq, events in told.items():
        assert same(events, record, from_seq)
    assert same(by_name, record)


def test_a_trial_is_watched_live_by_many_without_gaps(tmp_path):
    """They come at different events of a full trial; each is told all, in order, and the end of the trial ends it."""

    begun = asyncio.Event()

    def describe(_):
        begun.set()
        return {"description": "A crowd stands under a green flag."}

    async def work(it):
        judging = it.stub.Judge(asked(text="x", procedure=wire.PROCEDURE_FULL), timeout=60)
        await begun.wait()
        (trial_id,) = await open_trials(it.docket)
        watching = []
        while not judging.done():
            watching.append(asyncio.create_task(watched(it, trial_id=trial_id, from_seq=len(watching) % 3)))
            await asyncio.sleep(0.02 if len(watching) < 10 else 0.1)
        await judging
        return [await one for one in watching], await it.docket.trials.record(trial_id)

    told, record = play(work, tmp_path, court=full_court(Cast(rounds=3, delay_s=0.03, describe=describe)))
    assert len(told) >= 3
    for number, events in enumerate(told):
        assert same(events, record, number % 3)


def test_events_are_told_while_the_trial_runs(tmp_path):
    reader = FakeReader("as read")

    async def work(it):
        reader.wait = asyncio.Event()
        judging = it.stub.Judge(asked(), timeout=60)
        await reader.asked.wait()
        call = it.stub.WatchTrial(wire.WatchTrialRequest(request=NAMED), timeout=60)
        first = (await call.read()).event.kind
        running = not judging.done()
        reader.wait.set()
        rest = [response.event.kind for response in await rest_of(call)]
        return first, running, rest

    first, running, rest = play(work, tmp_path, reader=reader)
    assert first == "TrialOpened" and running
    assert rest[0] == "TextRead" and rest[-1] == "VerdictGiven"


def test_a_trial_of_another_server_is_watched_through_the_docket(tmp_path):
    reader = FakeReader("as read")

    async def work(it):
        async with held_elsewhere(it, tmp_path, reader) as (trial_id, hearing):
            call = it.stub.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), timeout=60)
            first = (await call.read()).event
            reader.wait.set()
            events = [first] + [response.event for response in await rest_of(call)]
            return events, (await hearing).record

    assert same(*play(work, tmp_path, reader=reader))


def test_a_review_is_told_and_a_failed_trial_ends_the_watching(tmp_path):
    async def work(it):
        response = await it.stub.Judge(asked(text="x"), timeout=60)
        await it.docket.reviews.review(
            response.verdict_id,
            outcome=ReviewOutcome.OVERRULED,
            label=Label.NOT_HARMFUL,
            reason="a quotation",
            clause="",
            reviewer="somebody",
            at=datetime.now(UTC),
        )
        return await watched(it, trial_id=response.verdict_id)

    assert [event.kind for event in play(work, tmp_path)][-2:] == ["VerdictGiven", "VerdictReviewed"]

    async def failing(it):
        refusal = await it.refusal(asked(text="x"))
        return await watched(it, trial_id=refusal.info.metadata["trial_id"])

    (tmp_path / "2").mkdir()
    assert play(failing, tmp_path / "2", found=RuntimeError("broken"))[-1].kind == "TrialFailed"


def test_what_can_not_be_watched_is_said(tmp_path):
    async def work(it):
        return [
            await refused(it, trial_id="nobody"),
            await refused(it, request=NAMED),
            await refused(it),
            await refused(it, request=wire.RequestName(namespace="forum")),
            await refused(it, trial_id="x" * 300),
            await refused(it, trial_id="nobody", from_seq=-1),
        ]

    told = play(work, tmp_path)
    assert [(r.code.name, r.info.reason) for r in told] == [
        ("NOT_FOUND", "TRIAL_UNKNOWN"),
        ("NOT_FOUND", "TRIAL_UNKNOWN"),
        ("INVALID_ARGUMENT", "FIELD_MISSING"),
        ("INVALID_ARGUMENT", "FIELD_MISSING"),
        ("INVALID_ARGUMENT", "FIELD_TOO_LONG"),
        ("INVALID_ARGUMENT", "OUT_OF_RANGE"),
    ]


def test_when_the_court_closes_a_running_trial_is_watched_to_its_end_and_no_other(tmp_path):
    reader = FakeReader("as read")

    async def work(it):
        reader.wait = asyncio.Event()
        judging = it.stub.Judge(asked(), timeout=60)
        await reader.asked.wait()
        call = it.stub.WatchTrial(wire.WatchTrialRequest(request=NAMED), timeout=60)
        await call.read()
        it.service.close()
        reader.wait.set()
        await judging
        kinds = [response.event.kind for response in await rest_of(call)]
        refusal = await refused(it, trial_id="any")
        return kinds, refusal

    kinds, refusal = play(work, tmp_path, reader=reader)
    assert kinds[-1] == "VerdictGiven"
    assert refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.info.reason == "NOT_IN_SESSION"

    async def cut_off(it):
        """A trial that is open in the docket and held by nobody."""
        async with held_elsewhere(it, tmp_path / "2", reader) as (trial_id, _):
            call = it.stub.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), timeout=60)
            await call.read()
            it.service.close()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            return Refusal(caught.value)

    (tmp_path / "2").mkdir()
    refusal = play(cut_off, tmp_path / "2")
    assert refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.of(error_details_pb2.RetryInfo)


def test_many_who_watch_what_stands_still_ask_the_docket_no_more_than_one(tmp_path, monkeypatch):
    """What another server keeps is looked for once for all of them, and all of them are told of it."""
    reader = FakeReader("as read")
    many = 30

    async def work(it):
        asked, read = [], it.docket.transactions.read

        async def counted(what):
            asked.append(what)
            return await read(what)

        async with held_elsewhere(it, tmp_path, reader) as (trial_id, hearing):
            calls = [it.stub.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), timeout=60) for _ in range(many)]
            for call in calls:
                await call.read()
            await asyncio.sleep(0.2)  # the last of them go on from what they have read
            monkeypatch.setattr(it.docket.transactions, "read", counted)
            await asyncio.sleep(1.6)
            await until(lambda: asked)
            still = len(asked)
            reader.wait.set()
            ends = [[response.event.kind for response in await rest_of(call)][-1] for call in calls]
            await hearing
            return still, ends

    still, ends = play(work, tmp_path, reader=reader)
    assert 1 <= still < many  # every half a second
    assert ends == ["VerdictGiven"] * many


def test_who_watches_is_told_when_the_docket_can_not_be_read(tmp_path, monkeypatch):
    reader = FakeReader("as read")

    async def work(it):
        reader.wait = asyncio.Event()
        judging = it.stub.Judge(asked(), timeout=60)
        await reader.asked.wait()
        call = it.stub.WatchTrial(wire.WatchTrialRequest(request=NAMED), timeout=60)
        await call.read()

        async def broken(_):
            raise Unavailable("The docket can't be written or read now: its file is gone.", reason="DOCKET_UNAVAILABLE")

        with monkeypatch.context() as patched:
            patched.setattr(it.docket.transactions, "read", broken)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rest_of(call)
        reader.wait.set()
        await judging
        return Refusal(caught.value)

    refusal = play(work, tmp_path, reader=reader)
    assert refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.info.reason == "DOCKET_UNAVAILABLE"
