"""A queue in NATS JetStream: a durable pull consumer, with separate subjects for answers and dead letters."""

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
"""Seconds that a fetch waits for messages, and so how long a consumer may take to stop."""
_REPLY_S = 10.0
_BUCKET = "memecourt-queue"
"""Key-value bucket with the number of uncounted deliveries by message."""
_ABOUT_BUCKET = "Deliveries of memes that count for nothing, for consumers were stopped (memecourt consume)"
_REMEMBERED_S = 14 * 86_400.0
_BUCKET_AGAIN_S, _LONGEST_BUCKET_AGAIN_S = 15.0, 600.0
"""Initial and maximum seconds, increasing each time, for which the bucket is not used after an error."""

_log = logging.getLogger("memecourt.queue")


class JetStreamQueue(QueueSource):
    """One consumer of a stream."""

    def __init__(self, settings: QueueSettings) -> None:
        """Prepares the queue without connecting.

        Raises:
            BadRequest: Messages are to be removed, which is up to the stream's own settings.
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
        # Acknowledgements go to the reply address of each delivery.
        self._messages: dict[str, Any] = {}
        self._uncounted: dict[str, int] = {}
        self._bucket: Any = None
        self._without_bucket_until = 0.0
        self._bucket_pause_s = _BUCKET_AGAIN_S

    async def open(self) -> Self:
        """Connects, and creates the consumer if missing: it starts with the first existing message.

        Raises:
            BadRequest: The stream does not exist, or there is none for answers or dead letters.
            Unavailable: The server can't be reached.
        """
        settings = self._settings
        try:
            with _errors():
                # Few attempts at first: with unlimited ones it would wait for ever for a server that never existed.
                first = await nats.connect(
                    settings.address,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.1,
                    connect_timeout=_REPLY_S,
                    error_cb=_ignore,
                )
                # The server exists; the permanent connection then reconnects without limit.
                await first.close()
                self._nats = await nats.connect(settings.address, max_reconnect_attempts=-1, error_cb=_ignore)
                self._jetstream = self._nats.jetstream(timeout=_REPLY_S)
                # At startup: otherwise each answer would fail after its meme was tried.
                for subject in (settings.answers, settings.dead):
                    await self._find_stream(subject)
                config = ConsumerConfig(
                    # One name for the group: its members share the messages, and the server stores its position.
                    durable_name=settings.group,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=settings.again_after_s,
                    # The consumer counts deliveries itself, and dead-letters with a reason. JetStream would only stop
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
        # Also on cancellation: an open connection would keep reconnecting.
        except BaseException:
            await self.aclose()
            raise
        return self

    @override
    async def receive(self, most: int, is_claimed: Callable[[str], bool] = no_message) -> Sequence[QueuedMeme]:
        with _errors():
            try:
                messages = await self._pulled.fetch(most, timeout=_WAIT_S)
            # Python's TimeoutError, not only NATS's subclass: the library raises it if a busy machine leaves no time.
            except TimeoutError:
                if not self._nats.is_connected:
                    raise NoServersError from None
                return ()
            found = []
            for message in messages:
                about = message.metadata
                id_, data = str(about.sequence.stream), message.data
                # A later delivery replaces an earlier one, whose reply address is no longer valid. Without its content,
                # which would stay in memory while the message waits.
                message.data = b""
                self._messages[id_] = message
                if is_claimed(id_):
                    self._uncounted[id_] = self._uncounted.get(id_, 0) + 1
                    continue
                # There is nothing to look up for a first delivery.
                self._uncounted[id_] = await self._count_uncounted(id_) if about.num_delivered > 1 else 0
                deliveries = max(1, about.num_delivered - self._uncounted[id_])
                found.append(QueuedMeme(id_, f"{about.stream}/{id_}", {"request": data}, deliveries=deliveries))
        return found

    @override
    async def stop_receiving(self) -> None:
        # A fetch request that reached the server late outlives its fetch. Messages given back would be delivered to it,
        # that is, to nobody, and counted. Unsubscribing reaches the server first, since both use one connection.
        with _errors():
            await self._pulled.unsubscribe()

    @override
    async def read_again(self, meme: QueuedMeme) -> QueuedMeme | None:
        # From the stream rather than by another delivery, which would count.
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
        # The verdict is already JSON and is embedded as is.
        body = {**asdict(answer), "verdict": orjson.Fragment(answer.verdict)}
        return await self._settle(meme, self._settings.answers, orjson.dumps(body), {})

    @override
    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        # In a header, so that the message itself stays unchanged.
        header = json.dumps(asdict(letter))  # in ASCII, as headers are
        return await self._settle(meme, self._settings.dead, meme.parts["request"], {"Memecourt-Dead": header})

    @override
    async def give_back(self, meme: QueuedMeme, *, counted: bool = True) -> None:
        message, uncounted = self._messages.pop(meme.id, None), self._uncounted.pop(meme.id, 0)
        if message is not None:
            with _errors():
                # JetStream's delivery count can't be decremented, so deliveries that are not the message's fault are
                # counted separately, before it is given back, so that the next consumer knows.
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
        # Message numbers are per stream, and several groups may read the same stream. Hashed, since names may contain
        # characters that keys may not.
        consumer_key = sha256(f"{self._settings.stream}\0{self._settings.group}".encode()).hexdigest()
        return f"{consumer_key[:32]}.{id_}"

    async def _count_uncounted(self, id_: str) -> int:
        """Reads the number of a message's uncounted deliveries."""
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
                    # A bucket that the operator created with other settings is used as is.
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
        """Yields True if the bucket should be tried; after an error it is skipped for a time.

        If a permission is missing, each attempt would waste seconds; an outage is soon over.
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
        # JetStream deduplicates by this id within the stream's duplicate window.
        headers = {**headers, "Nats-Msg-Id": f"{meme.request_id}@{subject}"}
        with _errors():
            # First the answer, then the acknowledgement: after a crash in between the message is redelivered, and the
            # id identifies the duplicate.
            stored = await self._jetstream.publish(subject, data, headers=headers)
            await message.ack_sync(timeout=_REPLY_S)
        # Only now: a message that could not be answered is still held, and can be given back.
        self._messages.pop(meme.id, None)
        self._uncounted.pop(meme.id, None)
        return not stored.duplicate


@contextmanager
def _errors() -> Iterator[None]:
    """Converts errors of NATS."""
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
    """Discards errors that the library would print; important ones are raised where they are awaited."""
