"""Consumers on real brokers: each meme ends in one answer or one dead letter, whatever happens on the way."""

import asyncio
import hashlib
import json
import math
import os
import random
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from memecourt.errors import JudgeError
from memecourt.v1 import court_pb2 as wire
from memecourt_queue import consumer as consumer_module
from memecourt_queue import jetstream as jetstream_module
from memecourt_queue import redis_streams
from memecourt_queue.cli import open_queue
from memecourt_queue.consumer import QueueConsumer
from memecourt_queue.metrics import QueueMetrics
from memecourt_queue.request import fault
from memecourt_queue.source import BrokerAway, QueueAnswer, Unusable
from tests.support.brokers import running
from tests.support.playing import until

LONG_S = 6.0
"""For tests in which nothing may be redelivered by itself: longer than a busy machine keeps a loop waiting."""
FULL = os.environ.get("MEMECOURT_FULL") == "1"


@pytest.fixture(params=["redis", "nats"])
def broker(request, tmp_path):
    with running(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def redis_broker(tmp_path):
    with running("redis", tmp_path) as found:
        yield found


@pytest.fixture
def nats_broker(tmp_path):
    with running("nats", tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Consumers stop and retry soon."""
    monkeypatch.setattr(redis_streams, "_BLOCK_MS", 100)
    monkeypatch.setattr(jetstream_module, "_WAIT_S", 0.2)
    monkeypatch.setattr(consumer_module, "_AGAIN_S", 0.05)
    monkeypatch.setattr(consumer_module, "_COUNT_S", 0.1)


class FakeCourt:
    """Answers each request_id with its scripted answers in turn, and then as not harmful."""

    def __init__(self, **scripted):
        self.scripted = {name: list(answers) for name, answers in scripted.items()}
        self.asked = []
        self.serves = True
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def judge(self, request):
        self.asked.append(request)
        await self.may_answer.wait()
        answers = self.scripted.get(request.request_id)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, JudgeError):
            raise answer
        if isinstance(answer, wire.JudgeResponse):
            return answer
        return wire.JudgeResponse(
            request_id=request.request_id,
            verdict_id=f"verdict of {request.request_id}",
            label=answer or wire.LABEL_NOT_HARMFUL,
            decision="block" if answer else "allow",
        )

    async def is_serving(self):
        return self.serves

    def times(self, name):
        return [request.request_id for request in self.asked].count(name)


def failed(code, reason="", retry_after=None):
    return fault(reason, "Not now.", code, retry_after)


INTERNAL = failed(grpc.StatusCode.INTERNAL, "INTERNAL")


async def no_fetch(url):
    raise fault("URL_NOT_ALLOWED", "Nothing is fetched.")


@asynccontextmanager
async def consuming(
    broker, court, *, fetch=no_fetch, at_once=8, deliveries=3, grace_s=5, metrics=None, again_after_s=1.0, **options
):
    """Runs a consumer until the block is left."""
    stopping = asyncio.Event()
    async with open_queue(broker.settings(again_after_s=again_after_s, **options)) as source:
        consumer = QueueConsumer(
            source,
            court,
            fetch=fetch,
            at_once=at_once,
            deliveries=deliveries,
            again_after_s=again_after_s,
            metrics=metrics or QueueMetrics(),
        )
        work = asyncio.create_task(consumer.run(stopping, grace_s=grace_s))
        try:
            yield consumer
        finally:
            stopping.set()
            await work


def nothing(_):
    return False


async def receive(source, most=5):
    """Waits for the next messages."""
    async with asyncio.timeout(120):
        while not (memes := await source.receive(most, nothing)):
            pass
        return memes


def text(name):
    return {"request_id": name, "text": "a"}


async def test_memes_are_answered_and_acknowledged(broker):
    court = FakeCourt(harmful=[wire.LABEL_HARMFUL], odd=[wire.JudgeResponse(label=99, request_id="odd")])
    mine = {"request_id": "harmful", "content": {"namespace": "forum", "id": "7"}, "language": "en"}
    await broker.put({**mine, "image": "iVBO"})
    nameless = await broker.put({"image": "AAEC"})
    await broker.put(text("odd"))
    async with consuming(broker, court) as consumer:
        answers = {answer["id"]: answer for answer in await broker.answers(3)}
    assert (consumer.answered, consumer.buried, await broker.pending()) == (3, 0, 0)
    by_name = {answer["request_id"]: answer for answer in answers.values()}
    assert answers[nameless]["request_id"].startswith(f"memes/{nameless}/")
    assert by_name["harmful"]["decision"] == "block"
    assert (answers[nameless]["decision"], by_name["odd"]["decision"]) == ("allow", "review")
    verdict = by_name["harmful"]["verdict"]
    assert (verdict["decision"], verdict["verdict_id"]) == ("block", "verdict of harmful")
    requests = {request.request_id: request for request in court.asked}
    assert requests["harmful"].content.namespace == "forum"
    assert not requests["harmful"].HasField("text"), "its text is read from the picture"
    assert requests[answers[nameless]["request_id"]].image == b"\0\1\2"


async def test_failed_messages_are_redelivered_and_finally_dead_lettered(broker):
    court = FakeCourt(
        passes=[INTERNAL, failed(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")],
        never=[INTERNAL] * 10,
        refused=[failed(grpc.StatusCode.INVALID_ARGUMENT, "PICTURE_FORMAT_NOT_READ")],
        large=[failed(grpc.StatusCode.RESOURCE_EXHAUSTED)],
        theirs=[failed(grpc.StatusCode.PERMISSION_DENIED, "NAMESPACE_NOT_ALLOWED")],
    )
    names = list(court.scripted)
    for name in names:
        await broker.put(text(name))
    await broker.put(b'{"txt": "a"}')
    async with consuming(broker, court, deliveries=3):
        (answer,) = await broker.answers(1)
        letters = {letter["reason"]: letter for letter in await broker.letters(5)}
    assert answer["request_id"] == "passes"
    assert {reason: letter["request_id"] for reason, letter in letters.items() if letter["request_id"] in names} == {
        "INTERNAL": "never",
        "PICTURE_FORMAT_NOT_READ": "refused",
        "RESOURCE_EXHAUSTED": "large",
        "NAMESPACE_NOT_ALLOWED": "theirs",
    }
    malformed = letters["MALFORMED_REQUEST"]
    assert (malformed["request"], malformed["code"]) == (b'{"txt": "a"}', "INVALID_ARGUMENT")
    assert malformed["message"]
    assert [court.times(name) for name in names] == [3, 3, 1, 1, 1]
    assert await broker.pending() == 0


@pytest.mark.slow
async def test_while_the_court_is_away_or_busy_deliveries_do_not_count(broker):
    away = failed(grpc.StatusCode.UNAVAILABLE)
    busy = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY", 0.01)
    stopped = failed(grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPED")
    court = FakeCourt(m0=[busy, away], m1=[away, busy], m2=[busy], m3=[stopped] * 3)
    court.serves = False
    for name in court.scripted:
        await broker.put(text(name))
    async with consuming(broker, court, at_once=2, deliveries=1) as consumer:
        await until(lambda: {request.request_id for request in court.asked} >= {"m0", "m1"})
        await asyncio.sleep(2.5)  # longer than the redelivery delay
        assert {request.request_id for request in court.asked} == {"m0", "m1"}
        assert await broker.pending() == 2
        court.serves = True
        await broker.answers(4)
    assert (consumer.answered, consumer.buried) == (4, 0)


async def test_rejected_tokens_and_stops_count_against_no_message(broker):
    court = FakeCourt(mine=[failed(grpc.StatusCode.UNAUTHENTICATED, "TOKEN_UNKNOWN")])
    await broker.put(text("mine"))
    with pytest.raises(Unusable, match="TOKEN_UNKNOWN"):
        async with consuming(broker, court, deliveries=1, again_after_s=60):
            await until(lambda: court.asked)
            await asyncio.sleep(0.1)
    assert await broker.pending() <= 1
    court.may_answer.clear()
    for times in (2, 3):
        async with consuming(broker, court, deliveries=1, grace_s=0, again_after_s=60):
            await until(lambda times=times: len(court.asked) >= times)
    court.may_answer.set()
    # The message is not at fault, however often it is returned, and is available at once.
    async with consuming(broker, court, deliveries=1, again_after_s=60) as consumer:
        await broker.answers(1)
    assert (consumer.answered, consumer.buried) == (1, 0)


async def test_metrics_count_the_outcomes_of_messages(broker):
    court = FakeCourt(harmful=[wire.LABEL_HARMFUL], passes=[INTERNAL])
    for name in ("harmful", "passes"):
        await broker.put(text(name))
    await broker.put(b"no JSON")
    metrics = QueueMetrics()

    def count(name, **labels):
        return metrics.registry.get_sample_value(f"memecourt_queue_{name}", labels)

    assert math.isnan(count("unread"))
    assert count("answered_total", decision="block") == count("given_back_total", why="stopped") == 0
    async with consuming(broker, court, at_once=1, metrics=metrics, grace_s=0):
        await broker.answers(2)
        await broker.letters(1)
        await until(lambda: count("unread") == 0 and count("working") == 0)
        assert count("reachable") == 1
        court.may_answer.clear()
        for name in ("one", "two", "three"):
            await broker.put(text(name))
        await until(lambda: count("unread") == 2 and count("working") == 1)
    assert count("answered_total", decision="block") == count("answered_total", decision="allow") == 1
    assert count("dead_total", reason="MALFORMED_REQUEST") == 1
    assert count("given_back_total", why="failed") == count("given_back_total", why="stopped") == 1
    assert count("message_duration_seconds_count") == 2


@pytest.mark.slow
async def test_a_message_in_work_for_long_goes_to_no_other_consumer(broker):
    slow, quick = FakeCourt(), FakeCourt()
    slow.may_answer.clear()
    await broker.put(text("long"))
    # Without capacity for another message, or a redelivery could go back to the same consumer.
    async with consuming(broker, slow, at_once=1, again_after_s=LONG_S):
        await until(lambda: slow.asked)
        async with consuming(broker, quick, again_after_s=LONG_S):
            await asyncio.sleep(1.5 * LONG_S)
            assert quick.asked == []
            slow.may_answer.set()
            await broker.answers(1)


async def test_messages_of_a_dead_consumer_are_answered_once_by_another(broker):
    court = FakeCourt()
    await broker.put(text("left"))
    async with open_queue(broker.settings()) as dead:
        (left,) = await receive(dead)
        async with consuming(broker, court) as consumer:
            await broker.answers(1)
        assert consumer.answered == 1
        # If the first was only slow, its late answer is not stored beside the other's.
        late = QueueAnswer(left.id, "left", "allow", b"{}")
        assert await dead.answer(left, late) is False
        assert len(await broker.answers(1)) == 1
    assert len(court.asked) == 1


async def test_a_message_that_kills_its_consumers_is_finally_dead_lettered(broker):
    await broker.put(text("poison"))
    court = FakeCourt()
    async with open_queue(broker.settings()) as dies:
        for times in (1, 2):
            (meme,) = await receive(dies)
            assert meme.deliveries == times
        async with consuming(broker, court, deliveries=2):
            letter = await broker.letter()
    assert (letter["reason"], court.asked) == ("DELIVERED_TOO_OFTEN", [])


async def test_stopping_finishes_work_in_progress_and_reads_no_more(broker):
    court = FakeCourt()
    court.may_answer.clear()
    for number in range(4):
        await broker.put(text(f"m{number}"))
    async with consuming(broker, court, at_once=2, grace_s=60, again_after_s=60):
        await until(lambda: len(court.asked) == 2)
        asyncio.get_running_loop().call_later(0.3, court.may_answer.set)
    assert len(court.asked) == 2
    assert len(await broker.answers(2)) == 2


@pytest.mark.slow
async def test_late_heartbeats_do_not_redeliver_a_consumer_s_own_messages(broker):
    """On a busy machine it received its own messages again and again, until they were dead-lettered."""

    court = FakeCourt()
    court.may_answer.clear()
    await broker.put(text("long"))
    async with consuming(broker, court, deliveries=1) as consumer:
        consumer._hold_s = 3600  # read before the first heartbeat: the consumer has not begun yet
        await until(lambda: court.asked)
        await asyncio.sleep(4)
        court.may_answer.set()
        await broker.answers(1)
    assert (consumer.answered, consumer.buried, len(court.asked)) == (1, 0, 1)
    # A message that it failed to answer is redelivered to it, for it may be the only consumer.
    court.scripted["again"] = [INTERNAL]
    await broker.put(text("again"))
    async with consuming(broker, court, deliveries=2):
        await broker.answers(2)


async def test_a_consumer_continues_when_the_broker_comes_back(broker):
    court, metrics = FakeCourt(), QueueMetrics()
    court.may_answer.clear()
    await broker.put(text("before"))
    async with consuming(broker, court, deliveries=9, metrics=metrics):
        await until(lambda: court.asked)
        await asyncio.to_thread(broker.stop)
        await until(lambda: metrics.registry.get_sample_value("memecourt_queue_reachable") == 0)
        court.may_answer.set()
        await asyncio.to_thread(broker.start)
        await broker.put(text("after"))
        answers = await broker.answers(2)
    assert {answer["request_id"] for answer in answers} == {"before", "after"}


async def test_answers_wait_while_the_broker_is_full_and_no_delivery_counts(broker):
    court = FakeCourt()
    court.may_answer.clear()
    for number in range(3):
        await broker.put(text(f"m{number}"))
    async with consuming(broker, court, deliveries=1, again_after_s=1.0) as consumer:
        await until(lambda: len(court.asked) == 3)
        await broker.fill()
        court.may_answer.set()
        await asyncio.sleep(2.5)  # longer than the redelivery delay
        assert (consumer.answered, consumer.buried) == (0, 0)
        await broker.drain()
        answers = await broker.answers(3)
    assert (consumer.answered, consumer.buried, len(court.asked)) == (3, 0, 3)
    assert {answer["request_id"] for answer in answers} == {"m0", "m1", "m2"}


@pytest.mark.parametrize("lives", [1, 3])
async def test_messages_of_a_stream_made_anew_are_messages_of_their_own(broker, lives):
    court = FakeCourt()
    async with consuming(broker, court, again_after_s=60) as consumer:
        for life in range(lives + 1):
            court.may_answer.clear()
            before = len(court.asked)
            # In Redis, the sender names the ids, as NATS does by numbers: they begin again in each life.
            ids = {"id_": "1-1"} if broker.name == "redis" else {}
            id_ = await broker.put({"text": f"life {life}"}, **ids)
            assert id_ in ("1", "1-1")
            await until(lambda before=before: len(court.asked) > before)
            if life < lives:
                await broker.renew()
            court.may_answer.set()
        answers = await broker.answers(lives + 1)
    assert (consumer.answered, consumer.buried, await broker.pending()) == (lives + 1, 0, 0)
    assert len({answer["request_id"] for answer in answers}) == lives + 1
    assert {request.text for request in court.asked} == {f"life {life}" for life in range(lives + 1)}


async def test_late_answers_of_an_earlier_life_acknowledge_no_other_message(broker):
    ids = {"id_": "7-1"} if broker.name == "redis" else {}
    async with open_queue(broker.settings(again_after_s=60)) as source:
        await broker.put({"text": "old"}, **ids)
        (old,) = await receive(source)
        await broker.renew()
        await broker.put({"text": "new"}, **ids)
        (new,) = await receive(source)
        assert old.id == new.id and old.request_id != new.request_id and old.key != new.key
        assert await source.answer(old, QueueAnswer(old.id, old.request_id, "allow", b"{}")) is True
        await source.give_back(old, None)
        assert await broker.pending() == 1, "the new message is still to be answered"
        assert await source.answer(new, QueueAnswer(new.id, new.request_id, "allow", b"{}")) is True
    assert len(await broker.answers(2)) == 2
    assert await broker.pending() == 0


async def test_a_missing_group_is_made_again(broker):
    court = FakeCourt()
    async with consuming(broker, court) as consumer:
        await broker.put(text("first"))
        await broker.answers(1)
        await broker.drop_group()
        await broker.put(text("second"))
        await until(lambda: court.times("second"))
        await until(lambda: consumer.answered >= 2)


async def test_messages_of_one_request_id_each_get_an_answer(broker):
    ids = [await broker.put(text("same")) for _ in range(3)]
    async with consuming(broker, FakeCourt()):
        answers = await broker.answers(3)
    assert sorted(answer["id"] for answer in answers) == sorted(ids)
    assert await broker.pending() == 0


@pytest.mark.parametrize("bytes_", [100, 120_000, 199_990])
@pytest.mark.parametrize("id_chars", [1, 150_000])
async def test_dead_letters_always_fit(broker, bytes_, id_chars):
    if bytes_ + id_chars > 200_000:
        pytest.skip("the broker would not take the message itself")

    body = json.dumps({"request_id": "i" * min(id_chars, bytes_ - 60), "txt": ""})
    body = body.ljust(bytes_).encode()
    id_ = await broker.put(body)
    await broker.put(text("next"))
    async with consuming(broker, FakeCourt()) as consumer:
        letter = await broker.letter()
        await broker.answers(1)
    assert (letter["id"], letter["reason"], int(letter["size"])) == (id_, "MALFORMED_REQUEST", _size(broker, body))
    assert letter["request"] == (body if letter["content"] == "kept" else None)
    assert (consumer.answered, consumer.buried, await broker.pending()) == (1, 1, 0)


def _size(broker, body):
    return len(body) + (len("request") if broker.name == "redis" else 0)


@pytest.mark.parametrize("fields", [101, 3_500, 4_100, 30_000])
async def test_redis_messages_of_many_fields_are_dead_lettered_once(redis_broker, fields):
    async with redis_broker.client() as client:
        id_ = (await client.xadd("memes", {f"f{number}": "x" for number in range(fields)})).decode()
    async with consuming(redis_broker, FakeCourt()) as consumer:
        letter = await redis_broker.letter()
    assert (letter["id"], letter["content"], letter["reason"]) == (id_, "left out", "MALFORMED_REQUEST")
    assert int(letter["size"]) > fields and len(letter["sha256"]) == 64
    assert (consumer.buried, await redis_broker.pending()) == (1, 0)


@pytest.mark.parametrize("limit", [{"max_msg_size": 1_200}, {"max_bytes": 2_000, "discard": "new"}])
async def test_letters_that_their_stream_refuses_are_shortened(nats_broker, limit):
    body = json.dumps({"txt": "x" * 50_000}).encode()

    async def bound(jetstream):
        await jetstream.update_stream(name="dead", subjects=["dead"], **limit)

    await nats_broker._do(bound)
    await nats_broker.put(body)
    async with consuming(nats_broker, FakeCourt()) as consumer:
        letter = await nats_broker.letter()
    assert (letter["content"], letter["sha256"]) == ("left out", hashlib.sha256(body).hexdigest())
    assert (consumer.buried, await nats_broker.pending()) == (1, 0)


async def test_answers_that_never_fit_become_dead_letters(nats_broker):
    large = wire.JudgeResponse(request_id="large", rationale="x" * nats_broker.max_payload)
    await nats_broker.put(text("large"))
    async with consuming(nats_broker, FakeCourt(large=[large])):
        assert (await nats_broker.letter())["reason"] == "ANSWER_TOO_LARGE"


@pytest.mark.parametrize(
    "error", ["maximum payload violation", "unknown protocol operation", "authorization violation"]
)
async def test_a_client_closed_by_an_error_is_opened_again(nats_broker, error):
    court = FakeCourt()
    court.may_answer.clear()
    await nats_broker.put(text("before"))
    async with consuming(nats_broker, court, again_after_s=60) as consumer:
        await until(lambda: court.asked)
        closed = consumer.source._nats
        await closed._process_err(f"'{error}'")
        await until(lambda: consumer.source._nats is not closed and consumer.source._nats.is_connected)
        court.may_answer.set()
        await nats_broker.put(text("after"))
        await nats_broker.answers(2)
    assert (consumer.answered, consumer.buried, await nats_broker.pending()) == (2, 0, 0)


@pytest.mark.parametrize("loss", ["purged", "another's"])
async def test_a_duplicate_is_believed_only_of_one_s_own_sending(nats_broker, loss, monkeypatch):
    await nats_broker.put(text("mine"))
    async with open_queue(nats_broker.settings(again_after_s=60)) as source:
        (meme,) = await receive(source)
        delivery = source._deliveries[meme.key]
        answer = QueueAnswer(meme.id, "mine", "allow", b"{}")
        assert await source.answer(meme, answer) is True
        if loss == "purged":
            await nats_broker._do(lambda jetstream: jetstream.purge_stream("answers"))
        else:
            (stored,) = await nats_broker.messages("answers", 1)
            await nats_broker._do(lambda jetstream: jetstream.delete_msg("answers", stored.seq))
            await nats_broker._do(lambda jetstream: jetstream.publish("answers", b'{"id": "another"}'))
        source._deliveries[meme.key] = replace(delivery, is_new=None)
        assert await source.answer(meme, answer) is True
        assert "mine" in {each.get("request_id") for each in await nats_broker.answers(1)}
        # Its own earlier sending is still there: nothing is stored again.
        stored = len(await nats_broker.answers(1))
        source._deliveries[meme.key] = replace(delivery, is_new=None)
        await source.answer(meme, answer)
        assert len(await nats_broker.answers(1)) - stored <= 1


@pytest.mark.parametrize(("retry_after", "least_s"), [(None, 0.0), (0.2, 0.0), (3.0, 3.0)])
async def test_a_picture_s_host_with_passing_trouble_means_later(broker, retry_after, least_s):
    times = []

    async def fetch(url):
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise fault("PICTURE_NOT_FETCHED", "Busy.", grpc.StatusCode.UNAVAILABLE, retry_after)
        return b"\x89PNG"

    court = FakeCourt()
    await broker.put({"request_id": "mine", "image_url": "https://cdn.example.org/1.png"})
    async with consuming(broker, court, fetch=fetch, deliveries=2) as consumer:
        await broker.answers(1)
    assert (consumer.answered, consumer.buried, len(times)) == (1, 0, 2)
    assert times[1] - times[0] >= least_s


async def test_a_picture_s_host_that_refuses_is_final_and_one_that_never_answers_ends(broker):
    async def fetch(url):
        if "gone" in url:
            raise fault("PICTURE_NOT_FETCHED", "Gone.")
        raise fault("PICTURE_NOT_FETCHED", "Busy.", grpc.StatusCode.UNAVAILABLE)

    for name in ("gone", "down"):
        await broker.put({"request_id": name, "image_url": f"https://cdn.example.org/{name}"})
    async with consuming(broker, FakeCourt(), fetch=fetch, deliveries=2):
        letters = {letter["request_id"]: letter for letter in await broker.letters(2)}
    assert {name: int(letter["deliveries"]) for name, letter in letters.items()} == {"gone": 1, "down": 2}
    assert {letter["code"] for letter in letters.values()} == {"INVALID_ARGUMENT", "UNAVAILABLE"}


async def test_redis_fields_hold_picture_and_text(redis_broker):
    court = FakeCourt()
    async with redis_broker.client() as client:
        await client.xadd("memes", {"image": b"\x89PNG", "text": "für alle"})
        await client.xadd("memes", {"picture": b"\x89PNG"})
        async with consuming(redis_broker, court, remove=True):
            await redis_broker.answers(1)
            await redis_broker.letters(1)
        (request,) = court.asked
        assert (request.image, request.text) == (b"\x89PNG", "für alle")
        assert await client.xlen("memes") == 0
        members = {member["name"][:5] for member in await client.xinfo_consumers("memes", "courts")}
        assert members == {b"life-"}, "the consumer is removed from its group"
        (letter,) = await client.xrange("dead")
        assert letter[1][b"picture"] == b"\x89PNG"


async def test_uncounted_deliveries_are_stored_again_after_an_outage(nats_broker, monkeypatch):
    name = jetstream_module._BUCKET

    async def scene(jetstream, source):
        # Created by the operator with other options: the consumer could not create one of that name.
        await jetstream.create_key_value(bucket=name, history=5)
        await nats_broker.put({"text": "a"})

        async def deliveries_after_return():
            """Returns a message uncounted, and returns the delivery number of its redelivery."""
            nonlocal meme
            await source.give_back(meme, None)
            (meme,) = await receive(source)
            return meme.deliveries

        (meme,) = await receive(source)
        assert await deliveries_after_return() == 1
        monkeypatch.setattr(jetstream_module, "_BUCKET", "no bucket's name")
        source._bucket = None
        assert await deliveries_after_return() == 3, "nothing could be stored or read"
        monkeypatch.setattr(jetstream_module, "_BUCKET", name)
        source._without_bucket_until = 0.0
        assert await deliveries_after_return() == 3, "one more delivery, which does not count"
        # A bucket deleted while in use is created anew.
        await jetstream.delete_key_value(name)
        await deliveries_after_return()
        source._without_bucket_until = 0.0
        before = meme.deliveries
        assert await deliveries_after_return() == before

    client, jetstream = await nats_broker.connect()
    try:
        async with open_queue(nats_broker.settings(again_after_s=3600)) as source:
            await scene(jetstream, source)
    finally:
        await client.close()


async def test_returned_messages_go_to_no_pull_request_of_a_stopping_consumer(nats_broker):
    """A pull request that reaches the server late would receive messages that no one handles."""

    court = FakeCourt()
    court.may_answer.clear()
    for number in range(3):
        await nats_broker.put(text(f"m{number}"))
    async with consuming(nats_broker, court, deliveries=1, again_after_s=3600, grace_s=0) as consumer:
        await until(lambda: len(court.asked) == 3)
        pulled = consumer.source._pulled
        await pulled._nc.publish(pulled._nms, b'{"batch": 3, "expires": 3600000000000}', pulled._deliver)
        await pulled._nc.flush()
    court.may_answer.set()
    async with consuming(nats_broker, court, deliveries=1, again_after_s=3600) as consumer:
        await nats_broker.answers(3)
    assert (consumer.answered, consumer.buried) == (3, 0)


def test_unusable_redis_queues_are_refused_with_a_message():
    from tests.support.redis_server import redis_server

    async def opened(broker, **options):
        async with open_queue(broker.settings(**options)):
            pass

    with redis_server("--requirepass", "secret") as server:
        from tests.support.brokers import Redis

        broker = Redis(server)
        with pytest.raises(Unusable, match="Redis refuses this consumer"):
            asyncio.run(opened(broker))
        with_password = server.url.replace("unix://", "unix://:secret@")
        asyncio.run(opened(broker, address=with_password))
        with pytest.raises(Unusable, match="a stream of their own"):
            asyncio.run(opened(broker, address=with_password, dead="memes"))
        with pytest.raises(BrokerAway, match="can't be reached"):
            asyncio.run(opened(broker, address="redis://127.0.0.1:1/0"))
        for address in ("kafka://here", "redis://host:port/0", "memes"):
            with pytest.raises(Unusable, match="address of"):
                asyncio.run(opened(broker, address=address))


async def test_unusable_nats_queues_are_refused_with_a_message(nats_broker):
    async def opened(**options):
        async with open_queue(nats_broker.settings(**options)):
            pass

    with pytest.raises(BrokerAway, match="can't be reached"):
        await opened(address="nats://127.0.0.1:1")
    with pytest.raises(Unusable, match="no stream that keeps what is sent to other"):
        await opened(dead="other")
    with pytest.raises(Unusable, match="would come back as a meme"):
        await opened(answers="memes.answers")
    with pytest.raises(Unusable, match="no stream others"):
        await opened(stream="others")
    with pytest.raises(Unusable, match="leave --remove out"):
        await opened(remove=True)
    await opened()


MESSAGES = 2500 if FULL else 75
"""Messages in each of two lives of a stream, of each of two brokers."""
POISON = "poison"


class PoisonedCourt(FakeCourt):
    """Fails at some texts, whenever they come."""

    async def judge(self, request):
        if request.text.startswith(POISON):
            self.asked.append(request)
            raise INTERNAL
        return await super().judge(request)


@pytest.mark.slow
@pytest.mark.promise("QU-1", "10,000 messages x kill, full, away, made anew, oversized, poison, same ids, two brokers")
def test_each_message_ends_in_one_answer_or_one_letter(tmp_path):
    """Two brokers with one court; consumers are cut off while they work, and brokers fail under them."""
    chance = random.Random(7)

    async def send(broker, life, number):
        kind = chance.choice(["text", "text", "text", "bad", "large", "poison", "same"])
        name = f"{broker.name} {life}"
        request = {
            "text": {"text": f"{name} {number}"},
            "bad": {"txt": f"{name} {number}"},
            "large": {"txt": f"{name} {number}", "y": "x" * 199_800},
            "poison": {"text": f"{POISON} {name} {number}"},
            "same": {"request_id": f"same {name}", "text": "one"},
        }[kind]
        return await broker.put(json.dumps(request).encode()[:199_990]), kind

    async def trouble(broker, kind):
        if kind == "full":
            await broker.fill()
            await asyncio.sleep(0.3)
            await broker.drain()
        elif kind == "away":
            await asyncio.to_thread(broker.stop)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(broker.start)

    async def ended(broker, earlier):
        """Returns answers and letters by message, without those of the stream's earlier life."""
        if FULL:
            await asyncio.sleep(1)  # thousands are read each time
        found = ({}, {})
        for kind, each in [
            *((0, each) for each in await broker.answers(0)),
            *((1, each) for each in await broker.letters(0)),
        ]:
            if (key := (each["id"], each["request_id"])) not in earlier:
                assert found[kind].setdefault(key, each) == each or kind, "a repeat after a kill is equal"
        return found

    async def one(broker, court):
        earlier = set()
        for life in (1, 2):
            sent = {}
            while len(sent) < MESSAGES:
                # Cut off without a farewell, as by a kill: nothing is given back.
                async with killed(broker, court):
                    for _ in range(min(250 if FULL else 25, MESSAGES - len(sent))):
                        id_, kind = await send(broker, life, len(sent))
                        sent[id_] = kind
                    await trouble(broker, chance.choice(["full", "away", "none"]))
                    await asyncio.sleep(0.2)

            async def settled(sent=sent, earlier=frozenset(earlier)):
                return {id_ for found in await ended(broker, earlier) for id_, _ in found} >= set(sent)

            async def acknowledged():
                return await broker.pending() == 0

            async with consuming(broker, court, deliveries=4, again_after_s=1.0):
                await until(settled, 600)
                await until(acknowledged)
                answers, letters = await ended(broker, earlier)
                answered, buried = ({id_ for id_, _ in found} for found in (answers, letters))
                assert answered | buried == set(sent), "none is lost"
                assert not answered & buried, "none ends twice"
                assert {sent[id_] for id_ in answered} == {"text", "same"}
                earlier |= answers.keys() | letters.keys()
                if life == 1:
                    await broker.renew()  # under a consumer that is running

    async def scene(*brokers):
        court = PoisonedCourt()
        await asyncio.gather(*(one(broker, court) for broker in brokers))
        texts = {}
        for request in court.asked:
            assert texts.setdefault(request.request_id, request.text) == request.text, "two messages shared an id"

    (tmp_path / "nats").mkdir()
    with running("redis", tmp_path) as first, running("nats", tmp_path / "nats") as second:
        asyncio.run(scene(first, second))


@asynccontextmanager
async def killed(broker, court):
    """Runs a consumer that is cut off at the end of the block: what it holds is not given back."""
    source = None
    stack = open_queue(broker.settings())
    source = await stack.__aenter__()
    consumer = QueueConsumer(source, court, fetch=no_fetch, at_once=8, deliveries=4, again_after_s=1.0)
    work = asyncio.create_task(consumer.run(asyncio.Event(), grace_s=0))
    try:
        yield
    finally:
        tasks = [work, *consumer._working]
        consumer.source = None  # what is left of it can reach no broker
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stack.__aexit__(None, None, None)
