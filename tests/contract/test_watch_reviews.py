"""The contract of WatchReviews over a real channel: pipelines are notified of reviews of their verdicts."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from google.rpc import error_details_pb2

from memecourt.v1 import court_pb2 as wire
from serving.docket.errors import DocketError
from serving.docket.open import Docket
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.trials import SqlTrialReader
from tests.support.docket_service import AT, TIMEOUT, a_scene
from tests.support.playing import run_within
from tests.support.service_calls import caller_metadata, refusal_of

OVERRULED = {"outcome": wire.REVIEW_OUTCOME_OVERRULED, "label": wire.LABEL_NOT_HARMFUL, "clause": "4"}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "docket.sqlite"


def play(place, work):
    return run_within(a_scene(place, docket=Docket.open(place)), work)


@asynccontextmanager
async def watching(it, caller="", **fields):
    call = it.stub.WatchReviews(wire.WatchReviewsRequest(**fields), metadata=caller_metadata(caller))
    try:
        yield call
    finally:
        call.cancel()


async def read_responses(call, count):
    async with asyncio.timeout(TIMEOUT):
        return [await call.read() for _ in range(count)]


def test_the_number_of_watchers_is_limited(place, monkeypatch):
    monkeypatch.setattr("serving.rpc.calls._MOST_STREAMS", 2)

    async def work(it):
        await it.tried("t-1")
        async with watching(it) as first, watching(it) as second:
            await read_responses(first, 1)
            await read_responses(second, 1)
            async with watching(it) as third:
                refusal = await refusal_of(third.read())
            await it.reviewed("t-1")  # no limit applies to other calls
            await read_responses(first, 1)
        while True:  # until the server has noticed that they left
            async with watching(it) as fourth:
                try:
                    await read_responses(fourth, 1)
                    return refusal
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)

    refusal = play(place, work)
    assert refusal.summary == ("RESOURCE_EXHAUSTED", "BUSY", "") and refusal.of(error_details_pb2.RetryInfo)


async def test_a_review_is_streamed_with_all_that_a_pipeline_needs(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        await it.tried("t-1", namespace="forum")
        async with watching(it) as call:
            (first,) = await read_responses(call, 1)
            review = await it.reviewed("t-1", reason="Satire.", **OVERRULED)
            (response,) = await read_responses(call, 1)
        size = await it.docket.log.size()
    assert not first.HasField("reviewed") and first.next_entry == 3
    reviewed = response.reviewed
    assert (reviewed.trial_id, reviewed.content.namespace, reviewed.content.id) == ("t-1", "forum", "content of t-1")
    assert (reviewed.request_id, reviewed.verdict) == ("request of t-1", wire.LABEL_HARMFUL)
    assert reviewed.review == review.review and reviewed.review.label == wire.LABEL_NOT_HARMFUL
    assert response.next_entry == size == 4


async def test_resuming_from_next_entry_yields_each_review_once_in_order(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        for number in range(12):
            await it.tried(f"t-{number:02}")
        reasons: list[str] = []
        start: dict[str, int] = {"from_entry": 0}
        reviewing = asyncio.create_task(_review_all(it, 12))
        while len(reasons) < 12:
            async with watching(it, **start) as call:
                for response in (await read_responses(call, 3))[1:]:  # then the connection breaks
                    reasons.append(response.reviewed.review.reason)
                    start["from_entry"] = response.next_entry
        await reviewing
        assert reasons == [f"reason {number}" for number in range(12)]


async def _review_all(it, count):
    for number in range(count):
        await it.reviewed(f"t-{number:02}", reason=f"reason {number}")
        await asyncio.sleep(0.01 * (number % 3))


async def test_watching_only_new_reviews_or_only_overrulings(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        for name in ("a", "b", "c", "d"):
            await it.tried(name)
        await it.reviewed("a", reason="before", **OVERRULED)
        async with watching(it) as live, watching(it, from_entry=0, overruled_only=True) as overruled:
            await read_responses(live, 1)
            await read_responses(overruled, 1)
            await it.reviewed("b", reason="upheld")
            await it.reviewed("c", reason="overruled", **OVERRULED)
            later = await read_responses(live, 2)
            overrulings = []
            while len(overrulings) < 2:
                (response,) = await read_responses(overruled, 1)
                if response.HasField("reviewed"):
                    overrulings.append(response.reviewed.review.reason)
        assert ([one.reviewed.review.reason for one in later], overrulings) == (
            ["upheld", "overruled"],
            ["before", "overruled"],
        )


async def test_reviews_of_other_servers_and_consoles_are_streamed_too(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        await it.tried("a")
        async with watching(it) as call, a_scene(place, docket=Docket.open(place)) as other:
            await read_responses(call, 1)
            await other.reviewed("a", reason="elsewhere")
            (response,) = await read_responses(call, 1)
            assert str(response.reviewed.review.reason) == "elsewhere"


async def test_a_caller_limited_to_namespaces_sees_only_their_reviews(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        await it.tried("own", namespace="forum")
        await it.tried("other", namespace="shop")
        async with watching(it, caller="forum") as call:
            await read_responses(call, 1)
            await it.reviewed("other", reason="not for the forum")
            await it.reviewed("own", reason="for the forum")
            responses = []
            while not responses or not responses[-1].HasField("reviewed"):
                responses += await read_responses(call, 1)
    assert [one.reviewed.trial_id for one in responses if one.HasField("reviewed")] == ["own"]
    # The position is streamed all the same, so that a later start need not read everything again.
    assert [one.next_entry for one in responses] == sorted({one.next_entry for one in responses})


async def test_a_start_beyond_the_log_s_end_is_refused(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        await it.tried("a")
        call = it.stub.WatchReviews(wire.WatchReviewsRequest(from_entry=4), timeout=TIMEOUT)
        assert (await refusal_of(_first(call))).summary == ("INVALID_ARGUMENT", "OUT_OF_RANGE", "from_entry")


async def _first(call):
    async for response in call:
        return response


@pytest.mark.parametrize("altered", ["the review", "its kind", "the trial"])
async def test_altered_reviews_are_skipped_with_a_log_line(place, monkeypatch, caplog, altered):
    entries, record = TransparencyLog.entries, SqlTrialReader.record

    async def read(self, *arguments):
        page = list(await entries(self, *arguments))
        if page and altered == "the review":
            page[0] = replace(page[0], body="{}")
        if page and altered == "its kind":
            page[0] = replace(page[0], body=(await entries(self, 0, 1))[0].body)
        return page

    async def recall(self, trial_id):
        if trial_id == "a" and altered == "the trial":
            raise DocketError("What is kept is no record.")
        return await record(self, trial_id)

    async with a_scene(place, docket=Docket.open(place)) as it:
        for name in ("a", "b"):
            await it.tried(name, at=AT)
            await it.reviewed(name)
        monkeypatch.setattr(TransparencyLog, "entries", read)
        monkeypatch.setattr(SqlTrialReader, "record", recall)
        async with watching(it, from_entry=0) as call:
            assert (await read_responses(call, 2))[1].reviewed.trial_id == "b"
    assert "the review in it is not told" in caplog.text


async def test_closing_the_court_ends_watches(place):
    async with a_scene(place, docket=Docket.open(place)) as it:
        await it.tried("a")
        async with watching(it) as call:
            await read_responses(call, 1)
            it.service.close()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await read_responses(call, 1)
            await it.service.empty(5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
