"""A consumer on a real Redis: each meme is answered once, whatever happens to consumers, court and queue."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager

import grpc
import pytest
import redis.asyncio

from court.errors import BadRequest, Unavailable
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import NotAllowed
from serving.queue.consumer import QueueConsumer
from serving.queue.metrics import QueueMetrics
from serving.queue.open import RemoteCourt, open_queue
from serving.queue.source import QueueAnswer
from tests.support.playing import until
from tests.support.queue import AGAIN_S, LONG_S, FakeCourt, failed, no_fetch, over_quota, settings
from tests.support.real_court import IMAGE, real_court
from tests.support.redis_server import entries_of, redis_server


@pytest.fixture(autouse=True)
def short_block(monkeypatch):
    """Consumers stop as soon as the server's wait for a message ends."""
    monkeypatch.setattr("serving.queue.redis_streams._BLOCK_MS", 100)


@asynccontextmanager
async def consuming(
    url, court, *, fetch=no_fetch, at_once=8, deliveries=3, grace_s=5, hold_s=AGAIN_S / 4, metrics=None, **options
):
    """Runs a consumer until the block is left."""
    stopping = asyncio.Event()
    async with open_queue(settings(url, **options)) as source:
        consumer = QueueConsumer(
            source, court, fetch=fetch, at_once=at_once, deliveries=deliveries, hold_s=hold_s, metrics=metrics
        )
        running = asyncio.create_task(consumer.run(stopping, grace_s=grace_s))
        try:
            yield consumer
        finally:
            stopping.set()
            await running


async def put(url, **parts):
    async with redis.asyncio.Redis.from_url(url) as client:
        return (await client.xadd("memes", parts)).decode()


async def pending(url):
    async with redis.asyncio.Redis.from_url(url) as client:
        return (await client.xpending("memes", "courts"))["pending"]


def test_memes_are_answered_and_acknowledged():
    async def scene(url):
        court = FakeCourt(harmful=[wire.LABEL_HARMFUL])
        mine = json.dumps({"request_id": "harmful", "content": {"namespace": "forum", "id": "7"}, "language": "en"})
        first = await put(url, image=b"\x89PNG", text="für alle")
        await put(url, request=mine, image=b"\xff\xd8")
        await put(url, request=json.dumps({"image": "AAEC", "request_id": "base64"}))
        async with consuming(url, court) as consumer:
            answers = await entries_of(url, "answers", at_least=3)
        assert consumer.answered == 3
        by_name = {answer["request_id"].decode(): answer for answer in answers}
        assert by_name.keys() == {f"memes/{first}", "harmful", "base64"}
        assert by_name[f"memes/{first}"]["id"].decode() == first
        assert [by_name[name]["decision"] for name in ("harmful", "base64")] == [b"block", b"allow"]
        verdict = json.loads(by_name["harmful"]["verdict"])
        assert (verdict["decision"], verdict["verdict_id"]) == ("block", "verdict of harmful")
        requests = {request.request_id: request for request in court.asked}
        assert (requests[f"memes/{first}"].image, requests[f"memes/{first}"].text) == (b"\x89PNG", "für alle")
        assert requests["harmful"].content.namespace == "forum"
        assert not requests["harmful"].HasField("text"), "its text is read from the picture"
        assert requests["base64"].image == b"\0\1\2"
        assert await pending(url) == 0
        async with redis.asyncio.Redis.from_url(url) as client:
            assert await client.xlen("memes") == 3, "another group may consume them"
            assert await client.xinfo_consumers("memes", "courts") == [], "the consumer is removed from its group"

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_answered_messages_can_be_deleted():
    async def scene(url):
        await put(url, text="a")
        async with consuming(url, FakeCourt(), remove=True):
            await entries_of(url, "answers", at_least=1)
        assert await entries_of(url, "memes") == []

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_pictures_are_fetched_as_over_http():
    async def fetch(url):
        if url == "https://cdn.example.org/slow.png":
            raise Unavailable("The host can't be reached.", reason="PICTURE_NOT_FETCHED")
        assert url == "https://cdn.example.org/meme.png"
        return b"\x89PNG fetched"

    async def scene(url):
        court = FakeCourt()
        for name, image_url in (("cdn", "https://cdn.example.org/meme.png"), ("data", "data:image/png;base64,AAEC")):
            await put(url, request=json.dumps({"request_id": name, "image_url": image_url}))
        async with consuming(url, court, fetch=fetch):
            await entries_of(url, "answers", at_least=2)
        assert {request.request_id: request.image for request in court.asked} == {
            "cdn": b"\x89PNG fetched",
            "data": b"\0\1\2",
        }
        # A host that can't be reached may come back, but an unlisted one is never fetched from.
        await put(url, request=json.dumps({"request_id": "slow", "image_url": "https://cdn.example.org/slow.png"}))
        async with consuming(url, court, fetch=fetch, deliveries=2):
            (letter,) = await entries_of(url, "dead", at_least=1)
        assert (letter["dead_reason"], letter["dead_deliveries"]) == (b"PICTURE_NOT_FETCHED", b"2")
        await put(url, request=json.dumps({"request_id": "other", "image_url": "https://elsewhere.example.org/"}))
        async with consuming(url, court):
            letter = (await entries_of(url, "dead", at_least=2))[1]
        assert (letter["dead_reason"], letter["dead_deliveries"]) == (b"URL_NOT_ALLOWED", b"1")

    with redis_server() as server:
        asyncio.run(scene(server.url))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"request": "no JSON"}, "MALFORMED_REQUEST"),
        ({"request": '{"txt": "a"}'}, "MALFORMED_REQUEST"),
        ({"picture": b"\x89PNG"}, "MALFORMED_REQUEST"),
        ({"image": b"", "text": "a"}, "PICTURE_EMPTY"),
        ({"text": "a", "request": '{"image": null}'}, "PICTURE_EMPTY"),
        ({"text": "a", "request": '{"image_url": null}'}, "MALFORMED_REQUEST"),
        ({"image": b"a", "request": '{"image": "AAEC"}'}, "MALFORMED_REQUEST"),
        ({"text": b"\xff"}, "MALFORMED_REQUEST"),
        ({"text": "a", "request": '{"text": "b"}'}, "ADDRESS_CONTRADICTS"),
        ({"request": '{"image": "%%%"}'}, "BAD_BASE64"),
    ],
)
def test_malformed_messages_are_dead_lettered_with_the_reason(parts, reason):
    async def scene(url):
        court = FakeCourt()
        id_ = await put(url, **parts)
        async with consuming(url, court) as consumer:
            (letter,) = await entries_of(url, "dead", at_least=1)
        assert (consumer.answered, consumer.buried, court.asked) == (0, 1, [])
        assert (letter["dead_reason"].decode(), letter["dead_id"].decode()) == (reason, id_)
        assert letter["dead_code"] == b"INVALID_ARGUMENT"
        assert letter["dead_message"]
        sent = {name: value if isinstance(value, bytes) else value.encode() for name, value in parts.items()}
        assert {name: letter[name] for name in sent} == sent
        assert await pending(url) == 0
        assert await entries_of(url, "answers") == []

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_failed_messages_are_redelivered_and_finally_dead_lettered():
    async def scene(url):
        internal = failed(grpc.StatusCode.INTERNAL, "INTERNAL")
        court = FakeCourt(
            passes=[internal, failed(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")],
            never=[internal] * 10,
            refused=[failed(grpc.StatusCode.INVALID_ARGUMENT, "PICTURE_FORMAT_NOT_READ")],
            large=[failed(grpc.StatusCode.RESOURCE_EXHAUSTED)],
            theirs=[failed(grpc.StatusCode.PERMISSION_DENIED, "NAMESPACE_NOT_ALLOWED")],
        )
        names = list(court.scripted)
        for name in names:
            await put(url, request=json.dumps({"request_id": name, "text": "a"}))
        async with consuming(url, court, deliveries=3):
            (answer,) = await entries_of(url, "answers", at_least=1)
            letters = await entries_of(url, "dead", at_least=4)
        assert answer["request_id"] == b"passes"
        assert {letter["dead_request_id"].decode(): letter["dead_reason"].decode() for letter in letters} == {
            "never": "INTERNAL",
            "refused": "PICTURE_FORMAT_NOT_READ",
            "large": "RESOURCE_EXHAUSTED",
            "theirs": "NAMESPACE_NOT_ALLOWED",
        }
        times = [request.request_id for request in court.asked]
        assert {name: times.count(name) for name in names} == {
            "passes": 3,
            "never": 3,
            "refused": 1,
            "large": 1,
            "theirs": 1,
        }

    with redis_server() as server:
        asyncio.run(scene(server.url))


@pytest.mark.slow
def test_while_the_court_is_away_or_busy_deliveries_do_not_count(monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._AGAIN_S", 0.05)

    async def scene(url):
        away = failed(grpc.StatusCode.UNAVAILABLE)
        busy = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY", 0.01)
        court = FakeCourt(m0=[busy, away], m1=[away, busy], **{f"m{number}": [busy] for number in range(2, 6)})
        court.serves = False
        for name in court.scripted:
            await put(url, request=json.dumps({"request_id": name, "text": "a"}))
        async with consuming(url, court, at_once=2, deliveries=1) as consumer:
            await until(lambda: {request.request_id for request in court.asked} >= {"m0", "m1"})
            await asyncio.sleep(5 * AGAIN_S)  # longer than the redelivery delay
            assert {request.request_id for request in court.asked} == {"m0", "m1"}
            assert await pending(url) == 2
            court.serves = True
            await entries_of(url, "answers", at_least=6)
        assert (consumer.answered, consumer.buried) == (6, 0)

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_a_rejected_token_ends_the_consumer_without_losing_messages():
    async def scene(url):
        await put(url, request='{"request_id": "mine", "text": "a"}')
        court = FakeCourt(mine=[failed(grpc.StatusCode.UNAUTHENTICATED, "TOKEN_UNKNOWN")])
        with pytest.raises(NotAllowed, match="TOKEN_UNKNOWN"):
            async with consuming(url, court):
                await until(lambda: court.asked)
                await asyncio.sleep(0.1)
        assert await pending(url) == 1
        async with consuming(url, court):
            await entries_of(url, "answers", at_least=1)

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_messages_over_a_quota_wait_and_are_never_dead_lettered(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._AGAIN_S", 0.05)
    monkeypatch.setattr("serving.queue.open._LONGEST_TOLD_S", 0.0)
    # Shortens the minute of the quota to a second.
    monkeypatch.setattr("serving.runner.quotas._MINUTE_S", 1.0)
    monkeypatch.setattr("serving.runner.quotas._SLICES", {1.0: 4})
    monkeypatch.setattr("serving.runner.quotas._NAMES", {1.0: "minute"})

    async def scene(url):
        shop = json.dumps({"content": {"namespace": "shop"}})
        sent = [await put(url, request=shop, text=f"people from Blueland are late, {number}") for number in range(3)]
        sent.append(await put(url, text="of another namespace", image=IMAGE))
        async with (
            real_court(tmp_path, namespaces={"shop": {"trials_per_minute": 1}}, reuse="off") as it,
            RemoteCourt(it.address, tls=None, token=None, timeout_s=120) as court,
            consuming(url, court, deliveries=1, again_after_s=LONG_S) as consumer,
        ):
            answers = await entries_of(url, "answers", at_least=4, within_s=120)
        assert (consumer.answered, consumer.buried) == (4, 0)
        assert {answer["id"].decode() for answer in answers} == set(sent)
        assert await entries_of(url, "dead") == []

    with redis_server() as server:
        asyncio.run(scene(server.url))


async def put_shop_and_others(url, shop):
    for name in shop:
        request = {
            "request_id": name,
            "content": {"namespace": "shop"},
            "image_url": "https://cdn.example.org/meme.png",
        }
        await put(url, request=json.dumps(request))
    for number in range(3):
        await put(url, request=json.dumps({"request_id": f"other-{number}", "text": "a"}))


def test_a_namespace_over_its_quota_blocks_no_other_and_is_answered_later(monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._AGAIN_S", 0.05)
    fetched = []

    async def fetch(url):
        fetched.append(url)
        return b"\x89PNG"

    async def scene(url):
        court, metrics = FakeCourt(**{f"shop-{number}": [over_quota(3600)] * 2 for number in range(6)}), QueueMetrics()
        await put_shop_and_others(url, court.scripted)

        def count(name, **labels):
            return metrics.registry.get_sample_value(f"memecourt_queue_{name}", labels)

        # Two slots, and six messages that must wait come before the others.
        async with consuming(url, court, at_once=2, deliveries=1, fetch=fetch, metrics=metrics) as consumer:
            answers = await entries_of(url, "answers", at_least=3)
            assert {answer["request_id"] for answer in answers} == {b"other-0", b"other-1", b"other-2"}
            await until(lambda: count("over_quota") == 6 and count("working") == 0)
            assert len(fetched) <= 2, "for a namespace known to be over its quota nothing is fetched or asked"
            await asyncio.sleep(3 * AGAIN_S)
            assert await pending(url) == 6, "they are neither redelivered nor dead-lettered"
            consumer._over_quota._until.clear()  # as if the hour had passed
            for name in court.scripted:
                court.scripted[name] = []
            await entries_of(url, "answers", at_least=9)
        assert (consumer.answered, consumer.buried) == (9, 0)
        assert count("answered_total", decision="allow") == 9
        assert await pending(url) == 0
        assert {request.image for request in court.asked if request.request_id.startswith("shop")} == {b"\x89PNG"}

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_messages_waiting_for_a_quota_are_bounded_and_returned_on_stop(monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._AGAIN_S", 0.05)

    async def fetch(url):
        return b"\x89PNG"

    async def scene(url):
        court = FakeCourt(**{f"shop-{number}": [over_quota(3600)] * 9 for number in range(4)})
        await put_shop_and_others(url, court.scripted)
        async with consuming(
            url, court, at_once=2, deliveries=1, grace_s=0, again_after_s=3600, fetch=fetch
        ) as consumer:
            consumer._over_quota._most = 2
            # The other two hold both slots, as earlier all four did: no further message is read.
            await until(lambda: len(consumer._over_quota) == 2 and len(consumer._working) == 2)
            assert await entries_of(url, "answers") == []
        for name in court.scripted:
            court.scripted[name] = []
        # Returned at once, and without counting a delivery.
        async with consuming(url, court, deliveries=1, again_after_s=3600, fetch=fetch) as consumer:
            await entries_of(url, "answers", at_least=7)
        assert (consumer.answered, consumer.buried) == (7, 0)

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_messages_deleted_while_waiting_for_a_quota_are_acknowledged():
    async def scene(url):
        court = FakeCourt(gone=[over_quota(3600)])
        request = {"request_id": "gone", "content": {"namespace": "shop"}, "text": "a"}
        gone = await put(url, request=json.dumps(request))
        # Without a heartbeat: since Redis 7 one acknowledges deleted messages, too.
        async with consuming(url, court, hold_s=3600, again_after_s=3600) as consumer:
            await until(lambda: len(consumer._over_quota) == 1)
            async with redis.asyncio.Redis.from_url(url) as client:
                await client.xdel("memes", gone)
            consumer._over_quota._until.clear()  # as if the hour had passed
            await until(lambda: not consumer._over_quota and not consumer._working)
            assert await pending(url) == 0
        assert (consumer.answered, consumer.buried, len(court.asked)) == (0, 0, 1)

    with redis_server() as server:
        asyncio.run(scene(server.url))


@pytest.mark.slow
def test_late_heartbeats_do_not_redeliver_a_consumer_s_own_messages():
    """On a busy machine it received its own messages again and again, until they were dead-lettered."""

    async def scene(url):
        court = FakeCourt()
        court.may_answer.clear()
        await put(url, request='{"request_id": "long", "text": "a"}')
        async with consuming(url, court, deliveries=2, hold_s=3600) as consumer:
            await until(lambda: court.asked)
            await asyncio.sleep(6 * AGAIN_S)
            assert await entries_of(url, "dead") == []
            court.may_answer.set()
            await entries_of(url, "answers", at_least=1)
        assert (consumer.answered, consumer.buried, len(court.asked)) == (1, 0, 1)
        # A message that it failed to answer is redelivered to it, for it may be the only consumer.
        court.scripted["again"] = [failed(grpc.StatusCode.INTERNAL, "INTERNAL")]
        await put(url, request='{"request_id": "again", "text": "a"}')
        async with consuming(url, court, deliveries=2, hold_s=3600):
            await entries_of(url, "answers", at_least=2)

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_restarts_of_the_court_count_against_no_message(monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._AGAIN_S", 0.05)

    async def scene(url):
        court = FakeCourt(mine=[failed(grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPED")] * 3)
        await put(url, request='{"request_id": "mine", "text": "a"}')
        async with consuming(url, court, deliveries=1) as consumer:
            await entries_of(url, "answers", at_least=1)
        assert (consumer.answered, consumer.buried) == (1, 0)

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_metrics_count_the_outcomes_of_messages(monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._COUNT_S", 0.05)

    async def scene(url):
        court = FakeCourt(
            harmful=[wire.LABEL_HARMFUL], passes=[failed(grpc.StatusCode.INTERNAL, "INTERNAL")], unread=[]
        )
        for name in ("harmful", "passes"):
            await put(url, request=json.dumps({"request_id": name, "text": "a"}))
        await put(url, request="no JSON")
        metrics = QueueMetrics()

        def count(name, **labels):
            return metrics.registry.get_sample_value(f"memecourt_queue_{name}", labels)

        assert math.isnan(count("unread"))
        assert count("answered_total", decision="block") == count("given_back_total", why="stopped") == 0
        async with consuming(url, court, at_once=1, metrics=metrics, grace_s=0):
            await entries_of(url, "answers", at_least=2)
            await entries_of(url, "dead", at_least=1)
            await until(lambda: count("unread") == 0 and count("working") == 0)
            court.may_answer.clear()
            for name in ("unread", "unread too", "and this"):
                await put(url, request=json.dumps({"request_id": name, "text": "a"}))
            await until(lambda: count("unread") == 2 and count("working") == 1)
        assert count("answered_total", decision="block") == count("answered_total", decision="allow") == 1
        assert count("dead_total", reason="MALFORMED_REQUEST") == 1
        assert count("given_back_total", why="failed") == count("given_back_total", why="stopped") == 1
        assert count("message_duration_seconds_count") == 2

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_a_stopped_consumer_returns_its_messages_uncounted():
    async def scene(url):
        court = FakeCourt(mine=[failed(grpc.StatusCode.UNAUTHENTICATED, "TOKEN_UNKNOWN")] * 2)
        await put(url, request='{"request_id": "mine", "text": "a"}')
        for times in (1, 2):
            with pytest.raises(NotAllowed):
                async with consuming(url, court, deliveries=1, again_after_s=3600):
                    await until(lambda times=times: len(court.asked) >= times)
                    await asyncio.sleep(0.1)
        court.may_answer.clear()
        for times in (3, 4):
            async with consuming(url, court, deliveries=1, grace_s=0, again_after_s=3600):
                await until(lambda times=times: len(court.asked) >= times)
        court.may_answer.set()
        # The message is not at fault, however often it is returned, and is available at once.
        async with consuming(url, court, deliveries=1, again_after_s=3600) as consumer:
            await entries_of(url, "answers", at_least=1)
        assert (consumer.answered, consumer.buried) == (1, 0)

    with redis_server() as server:
        asyncio.run(scene(server.url))


@pytest.mark.slow
def test_a_message_in_work_for_long_goes_to_no_other_consumer():
    async def scene(url):
        slow, quick = FakeCourt(), FakeCourt()
        slow.may_answer.clear()
        await put(url, request='{"request_id": "long", "text": "a"}')
        async with consuming(url, slow, again_after_s=LONG_S):
            await until(lambda: slow.asked)
            async with consuming(url, quick, again_after_s=LONG_S):
                await asyncio.sleep(1.5 * LONG_S)
                assert quick.asked == []
                slow.may_answer.set()
                await entries_of(url, "answers", at_least=1)

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_messages_of_a_dead_consumer_are_answered_once_by_another():
    async def scene(url):
        await put(url, request='{"request_id": "left", "text": "a"}')
        # The dead consumer's own delay never expires; the other consumer has the usual one.
        async with open_queue(settings(url, again_after_s=3600)) as dead:
            (left,) = await dead.receive(5)
            assert (left.deliveries, await dead.receive(5)) == (1, [])
            async with consuming(url, FakeCourt()) as consumer:
                await entries_of(url, "answers", at_least=1)
            assert consumer.answered == 1
            # If the first was only slow, its late answer is not stored beside the other's.
            late = QueueAnswer(left.id, "left", "allow", b"{}")
            assert await dead.answer(left, late) is False
            assert len(await entries_of(url, "answers")) == 1

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_a_message_that_kills_its_consumers_is_finally_dead_lettered():
    async def scene(url):
        await put(url, request='{"request_id": "poison", "text": "a"}')
        court = FakeCourt()
        async with open_queue(settings(url)) as dies:
            for times in (1, 2, 3):
                while not (got := await dies.receive(1)):  # noqa: ASYNC110
                    await asyncio.sleep(AGAIN_S / 4)
                assert got[0].deliveries == times
            async with consuming(url, court, deliveries=3):
                (letter,) = await entries_of(url, "dead", at_least=1)
        assert (letter["dead_reason"], court.asked) == (b"DELIVERED_TOO_OFTEN", [])

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_stopping_finishes_work_in_progress_and_reads_no_more():
    async def scene(url):
        court = FakeCourt()
        court.may_answer.clear()
        for number in range(4):
            await put(url, request=json.dumps({"request_id": f"m{number}", "text": "a"}))
        async with consuming(url, court, at_once=2, grace_s=10):
            await until(lambda: len(court.asked) == 2)
            asyncio.get_running_loop().call_later(0.3, court.may_answer.set)
        assert len(court.asked) == 2
        assert len(await entries_of(url, "answers")) == 2
        assert await pending(url) == 0
        court.may_answer.clear()
        async with consuming(url, court, at_once=2, grace_s=0):
            await until(lambda: len(court.asked) == 4)
        assert await pending(url) == 2, "interrupted messages stay for the next consumer"

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_a_consumer_continues_when_the_queue_comes_back():
    async def scene(server):
        court = FakeCourt()
        court.may_answer.clear()
        await put(server.url, request='{"request_id": "before", "text": "a"}')
        async with consuming(server.url, court, deliveries=5):
            await until(lambda: court.asked)
            await asyncio.to_thread(server.stop)
            court.may_answer.set()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
            await put(server.url, request='{"request_id": "after", "text": "a"}')
            answers = await entries_of(server.url, "answers", at_least=2)
            async with redis.asyncio.Redis.from_url(server.url) as client:
                await client.flushall()
            await put(server.url, request='{"request_id": "emptied", "text": "a"}')
            (again,) = await entries_of(server.url, "answers", at_least=1)
        assert {answer["request_id"] for answer in answers} == {b"before", b"after"}
        assert again["request_id"] == b"emptied"

    with redis_server() as server:
        asyncio.run(scene(server))


def test_an_answer_refused_by_redis_acknowledges_nothing():
    async def scene(url):
        async with redis.asyncio.Redis.from_url(url) as client:
            await client.set("answers", "no stream")
            await put(url, request='{"request_id": "mine", "text": "a"}')
            async with open_queue(settings(url)) as source:
                (meme,) = await source.receive(1)
                with pytest.raises(Unavailable, match="WRONGTYPE"):
                    await source.answer(meme, QueueAnswer(meme.id, "mine", "allow", b"{}"))
            assert await pending(url) == 1

    with redis_server() as server:
        asyncio.run(scene(server.url))


def test_unusable_queues_are_refused_with_a_message():
    async def opened(url, **options):
        async with open_queue(settings(url, **options)):
            pass

    with redis_server("--requirepass", "secret") as server:
        with pytest.raises(BadRequest, match="Redis refuses this consumer") as refused:
            asyncio.run(opened(server.url))
        assert refused.value.reason == "QUEUE_REFUSED"
        with_password = server.url.replace("unix://", "unix://:secret@")
        asyncio.run(opened(with_password))
        with pytest.raises(BadRequest, match="a stream of their own"):
            asyncio.run(opened(with_password, dead="memes"))
        with pytest.raises(BadRequest, match="at most 100"):
            asyncio.run(opened(with_password, stream="m" * 101))
    with pytest.raises(Unavailable, match="can't be reached"):
        asyncio.run(opened("redis://127.0.0.1:1/0"))
    for address in ("kafka://here", "redis://host:port/0", "memes"):
        with pytest.raises(BadRequest, match="address of"):
            asyncio.run(opened(address))
