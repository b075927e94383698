"""The contract of WatchReviews, through a real channel: what pipelines that gave a verdict on are told by people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from memecourt.client import AsyncClient
from memecourt.v1 import court_pb2 as wire
from serving.docket.open import Docket
from serving.docket.ports import DocketError
from serving.docket.store.log_queries import SqlTransparencyLog
from serving.docket.store.trials import SqlTrialReader
from tests.contract.test_docket_service import AT, TIMEOUT, Scene, a_scene
from tests.support.playing import play_in
from tests.support.service_calls import by, refused

OVERRULED = {"outcome": wire.REVIEW_OUTCOME_OVERRULED, "label": wire.LABEL_NOT_HARMFUL, "clause": "4"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "docket.sqlite"


def play(place: Path, work: Any) -> Any:
    return play_in(a_scene(place, docket=Docket.open(place)), work)


@asynccontextmanager
async def watching(it: Scene, caller: str = "", **asked: Any) -> AsyncIterator[Any]:
    call = it.stub.WatchReviews(wire.WatchReviewsRequest(**asked), metadata=by(caller))
    try:
        yield call
    finally:
        call.cancel()


async def told(call: Any, count: int) -> Sequence[wire.WatchReviewsResponse]:
    async with asyncio.timeout(TIMEOUT):
        return [await call.read() for _ in range(count)]


def test_so_many_watch_at_once_and_others_are_told_to_come_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.rpc.calls._MOST_STREAMS", 2)

    async def work(it: Scene) -> Any:
        await it.tried("t-1")
        async with watching(it) as first, watching(it) as second:
            await told(first, 1)
            await told(second, 1)
            async with watching(it) as third:
                refusal = await refused(third.read())
            await it.reviewed("t-1")  # nothing else is in the way of
            await told(first, 1)
        while True:  # until the server has noticed that they have left
            async with watching(it) as fourth:
                try:
                    await told(fourth, 1)
                    return refusal
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)

    refusal = play(place, work)
    assert refusal.said == ("RESOURCE_EXHAUSTED", "BUSY", "") and refusal.of(error_details_pb2.RetryInfo)


def test_a_review_is_told_with_all_that_a_pipeline_needs(place: Path) -> None:
    async def work(it: Scene) -> Any:
        await it.tried("t-1", namespace="forum")
        async with watching(it) as call:
            (first,) = await told(call, 1)
            review = await it.reviewed("t-1", reason="Satire.", **OVERRULED)
            (response,) = await told(call, 1)
        return first, response, review, await it.docket.log.size()

    first, response, review, size = play(place, work)
    assert not first.HasField("reviewed") and first.next_entry == 3
    said = response.reviewed
    assert (said.trial_id, said.content.namespace, said.content.id) == ("t-1", "forum", "content of t-1")
    assert (said.request_id, said.verdict) == ("request of t-1", wire.LABEL_HARMFUL)
    assert said.review == review.review and said.review.label == wire.LABEL_NOT_HARMFUL
    assert response.next_entry == size == 4


def test_whoever_goes_on_from_next_entry_hears_each_review_once_in_order(place: Path) -> None:
    async def work(it: Scene) -> list[str]:
        for number in range(12):
            await it.tried(f"t-{number:02}")
        heard: list[str] = []
        asked: dict[str, int] = {"from_entry": 0}
        reviewing = asyncio.create_task(_review_all(it, 12))
        while len(heard) < 12:
            async with watching(it, **asked) as call:
                for response in (await told(call, 3))[1:]:  # and then the connection breaks
                    heard.append(response.reviewed.review.reason)
                    asked["from_entry"] = response.next_entry
        await reviewing
        return heard

    assert play(place, work) == [f"reason {number}" for number in range(12)]


async def _review_all(it: Scene, count: int) -> None:
    for number in range(count):
        await it.reviewed(f"t-{number:02}", reason=f"reason {number}")
        await asyncio.sleep(0.01 * (number % 3))


def test_only_those_to_come_or_only_the_overruled(place: Path) -> None:
    async def work(it: Scene) -> Any:
        for name in ("a", "b", "c", "d"):
            await it.tried(name)
        await it.reviewed("a", reason="before", **OVERRULED)
        async with watching(it) as live, watching(it, from_entry=0, overruled_only=True) as overruled:
            await told(live, 1)
            await told(overruled, 1)
            await it.reviewed("b", reason="upheld")
            await it.reviewed("c", reason="overruled", **OVERRULED)
            later = await told(live, 2)
            hard = []
            while len(hard) < 2:
                (response,) = await told(overruled, 1)
                if response.HasField("reviewed"):
                    hard.append(response.reviewed.review.reason)
        return [one.reviewed.review.reason for one in later], hard

    assert play(place, work) == (["upheld", "overruled"], ["before", "overruled"])


def test_reviews_of_other_servers_and_consoles_are_told_too(place: Path) -> None:
    async def work(it: Scene) -> str:
        await it.tried("a")
        async with watching(it) as call, a_scene(place, docket=Docket.open(place)) as other:
            await told(call, 1)
            await other.reviewed("a", reason="elsewhere")
            (response,) = await told(call, 1)
            return str(response.reviewed.review.reason)

    assert play(place, work) == "elsewhere"


def test_a_caller_of_some_namespaces_hears_of_its_own_alone(place: Path) -> None:
    async def work(it: Scene) -> Any:
        await it.tried("own", namespace="forum")
        await it.tried("other", namespace="shop")
        async with watching(it, caller="forum") as call:
            await told(call, 1)
            await it.reviewed("other", reason="not for the forum")
            await it.reviewed("own", reason="for the forum")
            heard = []
            while not heard or not heard[-1].HasField("reviewed"):
                heard += await told(call, 1)
        return heard

    heard = play(place, work)
    assert [one.reviewed.trial_id for one in heard if one.HasField("reviewed")] == ["own"]
    # Where the stream stands is told all the same: a later start needs not read all of it again.
    assert [one.next_entry for one in heard] == sorted({one.next_entry for one in heard})


def test_a_log_that_has_lost_its_end_is_not_taken_for_a_quiet_one(place: Path) -> None:
    async def work(it: Scene) -> Any:
        await it.tried("a")
        call = it.stub.WatchReviews(wire.WatchReviewsRequest(from_entry=4), timeout=TIMEOUT)
        return await refused(_first(call))

    assert play(place, work).said == ("INVALID_ARGUMENT", "OUT_OF_RANGE", "from_entry")


async def _first(call: Any) -> Any:
    async for response in call:
        return response


@pytest.mark.parametrize("altered", ["the review", "its kind", "the trial"])
def test_what_was_altered_is_passed_over_aloud_and_the_others_are_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, altered: str
) -> None:
    entries, record = SqlTransparencyLog.entries, SqlTrialReader.record

    async def read(self: SqlTransparencyLog, *given: Any) -> Any:
        page = list(await entries(self, *given))
        if page and altered == "the review":
            page[0] = replace(page[0], body="{}")
        if page and altered == "its kind":
            page[0] = replace(page[0], body=(await entries(self, 0, 1))[0].body)
        return page

    async def recall(self: SqlTrialReader, trial_id: str) -> Any:
        if trial_id == "a" and altered == "the trial":
            raise DocketError("What is kept is no record.")
        return await record(self, trial_id)

    async def work(it: Scene) -> Any:
        for name in ("a", "b"):
            await it.tried(name, at=AT)
            await it.reviewed(name)
        monkeypatch.setattr(SqlTransparencyLog, "entries", read)
        monkeypatch.setattr(SqlTrialReader, "record", recall)
        async with watching(it, from_entry=0) as call:
            return (await told(call, 2))[1].reviewed.trial_id

    assert play(place, work) == "b"
    assert "the review in it is not told" in caplog.text


def test_who_watches_is_sent_away_when_the_court_closes(place: Path) -> None:
    async def work(it: Scene) -> Any:
        await it.tried("a")
        async with watching(it) as call:
            await told(call, 1)
            it.service.close()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await told(call, 1)
            await it.service.empty(5)
            return caught.value.code()

    assert play(place, work) is grpc.StatusCode.UNAVAILABLE


def test_the_client_follows_reviews_of_a_real_service(place: Path) -> None:
    async def work(it: Scene) -> list[str]:
        for name in ("a", "b"):
            await it.tried(name, at=AT)
        await it.reviewed("a", reason="first")
        heard = []
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([it.service.handler()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        async with AsyncClient(address) as client:
            reviews = client.reviews(0)
            async for response in reviews:
                heard.append(response.reviewed.review.reason)
                if len(heard) == 1:
                    await it.reviewed("b", reason="second", **OVERRULED)
                else:
                    break
            await reviews.aclose()
        await server.stop(0)
        return heard

    assert play(place, work) == ["first", "second"]
