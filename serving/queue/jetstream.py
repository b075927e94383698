"""A queue in NATS JetStream: a durable pull consumer, with answers and dead letters under subjects of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any, Self

import nats
import orjson
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js.api import AckPolicy, ConsumerConfig, KeyValueConfig
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError, NoStreamResponseError, NotFoundError
from typing_extensions import override

from court.errors import BadRequest, Unavailable
from serving.queue.source import DeadLetter, QueueAnswer, QueuedMeme, QueueSettings, QueueSource, no_message

_WAIT_S = 1.0
"""Seconds that a look for messages lasts: also how long a consumer may take to stop."""
_REPLY_S = 10.0
_BUCKET = "memecourt-queue"
"""Key-value bucket with the deliveries that count for nothing, by message."""
_ABOUT_BUCKET = "Deliveries of memes that count for nothing, for consumers were stopped (memecourt consume)"
_REMEMBERED_S = 14 * 86_400.0
_BUCKET_AGAIN_S, _LONGEST_BUCKET_AGAIN_S = 15.0, 600.0
"""Seconds for which the bucket is done without after an error, which are longer each time, and at most."""

_log = logging.getLogger("memecourt.queue")


class JetStreamQueue(QueueSource):
    """One consumer of a stream."""

    def __init__(self, settings: QueueSettings) -> None:
        """Connects to nothing yet.

        Raises:
            BadRequest: Messages are to be removed: what a stream keeps, its own settings say.
        """
        if settings.remove:
            raise BadRequest(
                "JetStream's own retention says what a stream keeps: leave --remove out.",
                reason="QUEUE_NAME",
                field="remove",
            )
        self._settings = settings
        self._nats: Any = None
        self._jetstream: Any = None
        self._pulled: Any = None
        # Acknowledgements go to an address that comes with each delivery.
        self._messages: dict[str, Any] = {}
        self._uncounted: dict[str, int] = {}
        self._bucket: Any = None
        self._without_bucket_until = 0.0
        self._bucket_pause_s = _BUCKET_AGAIN_S

    async def open(self) -> Self:
        """Connects, and makes the consumer where there is none: it begins with the first message that is there.

        Raises:
            BadRequest: There is no such stream, or none that keeps answers or dead letters.
            Unavailable: The server can't be reached.
        """
        settings = self._settings
        try:
            with _errors():
                # Few attempts at first: with as many as later, it would wait for ever for what never was there.
                first = await nats.connect(
                    settings.address,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.1,
                    connect_timeout=_REPLY_S,
                    error_cb=_ignore,
                )
                # It has shown that the server is there; the lasting connection then reconnects for as long as it takes.
                await first.close()
                self._nats = await nats.connect(settings.address, max_reconnect_attempts=-1, error_cb=_ignore)
                self._jetstream = self._nats.jetstream(timeout=_REPLY_S)
                # At the start: otherwise each answer would fail after its meme was tried.
                for subject in (settings.answers, settings.dead):
                    await self._find_stream(subject)
                config = ConsumerConfig(
                    # One name for all of them: they share the messages, and the server remembers how far they are.
                    durable_name=settings.group,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=settings.again_after_s,
                    # The consumer counts deliveries itself, and buries with a reason. JetStream would only stop
                    # delivering.
                    max_deliver=-1,
                )
                try:
                    await self._jetstream.add_consumer(settings.stream, config)
                except NotFoundError:
                    raise _refused(f"there is no stream {settings.stream}") from None
                except APIError as error:
                    raise _refused(f"{error.description}") from None
                self._pulled = await self._jetstream.pull_subscribe_bind(
                    consumer=settings.group, stream=settings.stream
                )
        # Also where the start is cancelled: a connection that is left open goes on reconnecting.
        except BaseException:
            await self.aclose()
            raise
        return self

    @override
    async def receive(self, most: int, is_claimed: Callable[[str], bool] = no_message) -> Sequence[QueuedMeme]:
        with _errors():
            try:
                messages = await self._pulled.fetch(most, timeout=_WAIT_S)
            # Not of NATS's kind alone: where a busy machine leaves it no time at all, the library raises Python's own.
            except TimeoutError:
                if not self._nats.is_connected:
                    raise NoServersError from None
                return ()
            found = []
            for message in messages:
                about = message.metadata
                id_, data = str(about.sequence.stream), message.data
                # A later delivery replaces an earlier one, whose address for acknowledgements no longer counts. Without
                # its content, which messages that wait for long would otherwise have in memory.
                message.data = b""
                self._messages[id_] = message
                if is_claimed(id_):
                    self._uncounted[id_] = self._uncounted.get(id_, 0) + 1
                    continue
                # Of a first delivery there is nothing to be looked up.
                self._uncounted[id_] = await self._count_uncounted(id_) if about.num_delivered > 1 else 0
                deliveries = max(1, about.num_delivered - self._uncounted[id_])
                found.append(QueuedMeme(id_, f"{about.stream}/{id_}", {"request": data}, deliveries=deliveries))
        return found

    @override
    async def stop_receiving(self) -> None:
        # A request for messages that reached the server late is there for longer than the look that it was for. What
        # is given back would be delivered to it: to nobody, and counted. The server hears of this before that, for
        # both go over one connection.
        with _errors():
            await self._pulled.unsubscribe()

    @override
    async def read_again(self, meme: QueuedMeme) -> QueuedMeme | None:
        # From the stream and not by another delivery, which would count.
        with _errors():
            try:
                message = await self._jetstream.get_msg(self._settings.stream, seq=int(meme.id))
            except NotFoundError:
                return None
        return replace(meme, parts={"request": message.data or b""})

    @override
    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        with _errors():
            for meme in memes:
                if (message := self._messages.get(meme.id)) is not None:
                    await message.in_progress()

    @override
    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        # The verdict is JSON already, and goes in as it is.
        body = {**asdict(answer), "verdict": orjson.Fragment(answer.verdict)}
        return await self._settle(meme, self._settings.answers, orjson.dumps(body), {})

    @override
    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        # In a header, so that the message itself stays as it came.
        header = json.dumps(asdict(letter))  # in ASCII, as headers are
        return await self._settle(meme, self._settings.dead, meme.parts["request"], {"Memecourt-Dead": header})

    @override
    async def give_back(self, meme: QueuedMeme, *, counted: bool = True) -> None:
        message, uncounted = self._messages.pop(meme.id, None), self._uncounted.pop(meme.id, 0)
        if message is not None:
            with _errors():
                # JetStream counts every delivery, and takes none back: those that no fault of the message brought about
                # are counted apart. Before it is given back, so that whoever gets it knows.
                if uncounted := uncounted + (not counted):
                    await self._store_uncounted(meme.id, uncounted)
                await message.nak(delay=self._settings.again_after_s if counted else None)

    @override
    async def drop(self, meme: QueuedMeme) -> None:
        self._uncounted.pop(meme.id, None)
        if (message := self._messages.pop(meme.id, None)) is not None:
            with _errors():
                await message.ack()

    @override
    async def waiting(self) -> int | None:
        with _errors():
            return int((await self._pulled.consumer_info()).num_pending)

    @override
    async def aclose(self) -> None:
        if self._nats is not None and not self._nats.is_closed:
            with contextlib.suppress(NatsError, OSError):
                await self._nats.close()

    def _key_of(self, id_: str) -> str:
        # Messages of two streams may have the same number, and two groups may read the same stream.
        # By digest: names of streams may hold characters that no key may.
        consumer_key = sha256(f"{self._settings.stream}\0{self._settings.group}".encode()).hexdigest()
        return f"{consumer_key[:32]}.{id_}"

    async def _count_uncounted(self, id_: str) -> int:
        """Number of a message's earlier deliveries that count for nothing, as a consumer has stored it."""
        with self._trying_bucket() as tries:
            if tries:
                with contextlib.suppress(BucketNotFoundError, KeyNotFoundError):
                    bucket = await self._found_bucket()
                    return int((await bucket.get(self._key_of(id_))).value)
        return 0

    async def _store_uncounted(self, id_: str, number: int) -> None:
        with self._trying_bucket() as tries:
            if tries:
                try:
                    # One that the operator has made, with other settings, is taken as it is.
                    bucket = await self._found_bucket()
                except BucketNotFoundError:
                    config = KeyValueConfig(bucket=_BUCKET, description=_ABOUT_BUCKET, ttl=_REMEMBERED_S)
                    bucket = self._bucket = await self._jetstream.create_key_value(config)
                await bucket.put(self._key_of(id_), str(number).encode())

    async def _found_bucket(self) -> Any:
        self._bucket = self._bucket or await self._jetstream.key_value(_BUCKET)
        return self._bucket

    @contextmanager
    def _trying_bucket(self) -> Iterator[bool]:
        """Gives True if the bucket is to be tried. After an error it is done without for a time.

        Where a right is missing, each attempt waits for seconds in vain; what was an outage is soon over.
        """
        clock = asyncio.get_running_loop()
        tries = clock.time() >= self._without_bucket_until
        try:
            yield tries
        except NatsError as error:
            pause_s, self._bucket_pause_s = self._bucket_pause_s, min(2 * self._bucket_pause_s, _LONGEST_BUCKET_AGAIN_S)
            self._without_bucket_until = clock.time() + pause_s
            self._bucket = None  # somebody may have deleted it
            why = error.description if isinstance(error, APIError) else type(error).__name__
            _log.warning(
                "the bucket %s can't be used, and for %.0f s every delivery of a message counts: %s",
                _BUCKET,
                pause_s,
                why,
            )
        else:
            if tries:
                self._bucket_pause_s = _BUCKET_AGAIN_S

    async def _find_stream(self, subject: str) -> None:
        try:
            keeps = await self._jetstream.find_stream_name_by_subject(subject)
        except NotFoundError:
            raise _refused(f"no stream keeps what is sent to {subject}") from None
        if keeps == self._settings.stream:
            raise _refused(f"what is sent to {subject} would come back as a meme, for {keeps} keeps it")

    async def _settle(self, meme: QueuedMeme, subject: str, data: bytes, headers: dict[str, str]) -> bool:
        if (message := self._messages.get(meme.id)) is None:
            return False
        # By this id JetStream knows what was sent before, within the stream's window for duplicates.
        headers = {**headers, "Nats-Msg-Id": f"{meme.request_id}@{subject}"}
        with _errors():
            # The answer before the acknowledgement: a crash in between brings the message again, and the id tells the
            # copy.
            stored = await self._jetstream.publish(subject, data, headers=headers)
            await message.ack_sync(timeout=_REPLY_S)
        # Only now: what could not be answered is still held, and can be given back.
        self._messages.pop(meme.id, None)
        self._uncounted.pop(meme.id, None)
        return not stored.duplicate


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of NATS as ours."""
    try:
        yield
    except NoServersError as error:
        raise Unavailable("The queue's server can't be reached.", reason="QUEUE_UNAVAILABLE") from error
    except NoStreamResponseError:
        raise Unavailable("No stream keeps what is sent there.", reason="QUEUE_UNAVAILABLE") from None
    except (NatsError, OSError) as error:
        raise Unavailable(
            f"The queue's server does not answer ({type(error).__name__}).", reason="QUEUE_UNAVAILABLE"
        ) from None


def _refused(why: str) -> BadRequest:
    return BadRequest(f"NATS can't be used so: {why}.", reason="QUEUE_REFUSED", field="queue")


async def _ignore(_: Exception) -> None:
    """Is told what the library prints otherwise; what matters is raised where it is waited for."""
