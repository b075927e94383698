"""A queue in NATS JetStream: a durable pull consumer, with separate subjects for answers and dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Self

import nats
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js.api import AckPolicy, ConsumerConfig, KeyValueConfig
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError, NotFoundError

from memecourt_queue.source import (
    AnswerTooLarge,
    BrokerAway,
    BrokerRefused,
    DeadLetter,
    IsClaimed,
    QueueAnswer,
    QueuedMeme,
    QueueSettings,
    QueueSource,
    Unusable,
    request_id_of,
)

_WAIT_S = 1.0  # that a fetch waits for messages, and so how long a consumer may take to stop
_REPLY_S = 10.0
_BUCKET = "memecourt-queue"  # key-value bucket with the number of uncounted deliveries by message
_WITHOUT_BUCKET_S = 60.0  # for which the bucket is not used after an error
_TOO_LARGE = 10054  # the server's code for a message that its stream never takes
_ID = "Nats-Msg-Id"

_log = logging.getLogger("memecourt.queue")


@dataclass(slots=True)
class _Delivery:
    """The latest delivery of a message: acknowledgements go to its reply address."""

    reply: str
    request_id: str
    uncounted: int = 0
    is_new: bool | None = None  # the answer that was stored, which no other consumer had stored before


class JetStreamQueue(QueueSource):
    """One consumer of a stream."""

    def __init__(self, settings: QueueSettings) -> None:
        if settings.remove:
            raise Unusable("JetStream's own retention says what a stream keeps: leave --remove out.")
        self._settings = settings
        self._nats: Any = None
        self._jetstream: Any
        self._pulled: Any
        self._life = ""
        self._connecting = asyncio.Lock()
        self._deliveries: dict[tuple[str, str], _Delivery] = {}
        self._without_bucket_until = 0.0

    async def open(self) -> Self:
        """Connects, and creates the durable consumer if missing. Raises Unusable, BrokerAway."""
        settings = self._settings
        try:
            with _errors():
                await self._connect()
                # At startup: otherwise each answer would fail after its meme was tried.
                for subject in (settings.answers, settings.dead):
                    try:
                        keeps = await self._jetstream.find_stream_name_by_subject(subject)
                    except NotFoundError:
                        raise Unusable(f"NATS has no stream that keeps what is sent to {subject}.") from None
                    if keeps == settings.stream:
                        raise Unusable(f"What is sent to {subject} would come back as a meme, for {keeps} keeps it.")
                try:
                    await self._make_consumer()
                except NotFoundError:
                    raise Unusable(f"NATS has no stream {settings.stream}.") from None
                except APIError as error:
                    raise Unusable(f"NATS refuses this consumer: {error.description}.") from None
        # Also on cancellation: an open connection would keep reconnecting.
        except BaseException:
            await self.aclose()
            raise
        return self

    async def receive(self, most: int, is_claimed: IsClaimed) -> Sequence[QueuedMeme]:
        clock = asyncio.get_running_loop()
        with _errors():
            await self._reopen()
            began, messages = clock.time(), []
            # Python's TimeoutError, not only NATS's subclass: the library raises it if a busy machine leaves no time.
            with contextlib.suppress(TimeoutError, APIError):
                messages = await self._pulled.fetch(most, timeout=_WAIT_S)
            if not self._nats.is_connected:
                raise NoServersError
            # An empty fetch may come from a durable consumer that no longer exists. If there is another now, it is
            # unknown from which the messages are: they are delivered again.
            if not await self._is_same_life():
                return ()
            if not messages:
                await asyncio.sleep(max(0.0, began + _WAIT_S / 2 - clock.time()))
            return [meme for message in messages if (meme := await self._received(message, is_claimed)) is not None]

    async def _received(self, message: Any, is_claimed: IsClaimed) -> QueuedMeme | None:
        about, data = message.metadata, message.data
        id_, digest = str(about.sequence.stream), sha256(data).hexdigest()
        # A stream made anew counts its messages from one again, but none is stored at the same time.
        request_id = request_id_of(about.stream, id_, about.timestamp.isoformat(), digest)
        key = self._life, id_
        # A later delivery replaces an earlier one, whose reply address is no longer valid.
        before = self._deliveries.get(key)
        delivery = self._deliveries[key] = _Delivery(message.reply, request_id)
        if before is not None and is_claimed(key):
            delivery.uncounted = before.uncounted + 1
            return None
        # There is nothing to look up for a first delivery.
        if about.num_delivered > 1:
            delivery.uncounted = await self._uncounted(delivery)
        return QueuedMeme(
            id=id_,
            life=self._life,
            request_id=request_id,
            parts={"request": data},
            size=len(data),
            sha256=digest,
            deliveries=max(1, about.num_delivered - delivery.uncounted),
        )

    async def stop_receiving(self) -> None:
        # A fetch request that reached the server late outlives its fetch. Messages given back would be delivered to it,
        # that is, to nobody, and counted. Unsubscribing reaches the server first, since both use one connection.
        with _errors():
            await self._pulled.unsubscribe()

    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        with _errors():
            for meme in memes:
                if meme.life == self._life and (delivery := self._deliveries.get(meme.key)) is not None:
                    await self._nats.publish(delivery.reply, b"+WPI")

    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        about = asdict(answer)
        del about["verdict"]
        # The verdict is already JSON and is embedded as is.
        body = json.dumps(about).encode()[:-1] + b', "verdict": ' + answer.verdict + b"}"
        return await self._settle(meme, self._settings.answers, body)

    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        try:
            return await self._settle(meme, self._settings.dead, meme.parts["request"], letter)
        except (AnswerTooLarge, BrokerRefused):
            # Also if its stream is too full for the content: then at least this is stored.
            return await self._settle(meme, self._settings.dead, b"", letter.shortened())

    async def give_back(self, meme: QueuedMeme, after_s: float | None) -> None:
        delivery = self._deliveries.pop(meme.key, None)
        if delivery is None or meme.life != self._life:
            return
        with _errors():
            # JetStream's delivery count can't be decremented, so deliveries that are not the message's fault are
            # counted separately, before it is given back, so that the next consumer knows.
            if uncounted := delivery.uncounted + (after_s is None):
                await self._uncounted(delivery, uncounted)
            delay = "" if after_s is None else json.dumps({"delay": round(after_s * 1e9)})
            await self._nats.publish(delivery.reply, f"-NAK {delay}".rstrip().encode())

    async def waiting(self) -> int | None:
        with _errors():
            return int((await self._info()).num_pending)

    async def aclose(self) -> None:
        if self._nats is not None and not self._nats.is_closed:
            with contextlib.suppress(NatsError, OSError):
                await self._nats.close()

    async def _connect(self) -> None:
        address = self._settings.address
        # Few attempts at first: with the unlimited ones below it would wait for ever for a server that never existed.
        first = await nats.connect(
            address, max_reconnect_attempts=1, reconnect_time_wait=0.1, connect_timeout=_REPLY_S, error_cb=_ignore
        )
        await first.close()
        self._nats = await nats.connect(address, max_reconnect_attempts=-1, error_cb=_ignore)
        self._jetstream = self._nats.jetstream(timeout=_REPLY_S)
        names = {"consumer": self._settings.group, "stream": self._settings.stream}
        self._pulled = await self._jetstream.pull_subscribe_bind(**names)

    async def _reopen(self) -> None:
        """Connects again if the library has closed its client for good, as after some errors of the server."""
        async with self._connecting:
            if self._nats.is_closed:
                await self._connect()

    async def _make_consumer(self) -> None:
        config = ConsumerConfig(
            # One name for the group: its members share the messages, and the server stores its position.
            durable_name=self._settings.group,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._settings.again_after_s,
            max_deliver=-1,  # the consumer counts itself: JetStream would only stop delivering
        )
        self._life = str((await self._jetstream.add_consumer(self._settings.stream, config)).created)

    async def _info(self) -> Any:
        return await self._jetstream.consumer_info(self._settings.stream, self._settings.group)

    async def _is_same_life(self) -> bool:
        """True if the durable consumer is the one that was there before; makes a missing one again."""
        try:
            info = await self._info()
        except NotFoundError:
            await self._make_consumer()
            return False
        before, self._life = self._life, str(info.created)
        return before == self._life

    async def _settle(self, meme: QueuedMeme, subject: str, data: bytes, letter: DeadLetter | None = None) -> bool:
        if (delivery := self._deliveries.get(meme.key)) is None:
            return False
        # In a header, so that the message itself stays unchanged; in ASCII, as headers are.
        headers = {"Memecourt-Dead": json.dumps(asdict(letter))} if letter else {}
        # JetStream removes duplicates by this id within the stream's window. Each group has answers of its own.
        own_id = sha256("\0".join((delivery.request_id, self._settings.group, subject)).encode()).hexdigest()
        with _errors():
            await self._reopen()
            # First the answer: after a crash the message is redelivered, and the id identifies the duplicate.
            if delivery.is_new is None:
                stored = await self._publish(subject, data, {**headers, _ID: own_id})
                is_new = not stored.duplicate or not await self._is_stored(stored, own_id)
                if stored.duplicate and is_new:
                    # The broker only remembers the id: what it stood for is gone, or is not this consumer's.
                    await self._publish(subject, data, {**headers, _ID: f"{own_id}-{secrets.token_hex(8)}"})
                delivery.is_new = is_new
            # In another life, the reply address would acknowledge another message.
            if meme.life == self._life and await self._is_same_life():
                await self._nats.request(delivery.reply, b"+ACK", timeout=_REPLY_S)
        # Only now: a message that could not be answered is still held, and can be given back.
        self._deliveries.pop(meme.key, None)
        return delivery.is_new

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> Any:
        # As the library writes them: it counts only the data, and the server ends the connection of who sends more.
        size = len(data) + 14 + sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self._nats.max_payload:
            raise AnswerTooLarge
        try:
            return await self._jetstream.publish(subject, data, headers=headers)
        except APIError as error:
            if error.err_code == _TOO_LARGE:
                raise AnswerTooLarge from None
            raise

    async def _is_stored(self, stored: Any, own_id: str) -> bool:
        try:
            message = await self._jetstream.get_msg(stored.stream, seq=stored.seq)
        except (APIError, TimeoutError):  # it was removed, or may not be read
            return False
        return bool((message.headers or {}).get(_ID) == own_id)

    async def _uncounted(self, delivery: _Delivery, number: int | None = None) -> int:
        """Reads or stores the number of a message's uncounted deliveries, in a bucket that is made if missing."""
        clock = asyncio.get_running_loop()
        # If a permission is missing, each attempt would waste seconds.
        if clock.time() < self._without_bucket_until:
            return 0
        # Several groups may read the same stream. Hashed, since names may contain characters that keys may not.
        key = sha256(f"{delivery.request_id}\0{self._settings.group}".encode()).hexdigest()
        try:
            try:
                # A bucket that the operator created with other settings is used as is.
                bucket = await self._jetstream.key_value(_BUCKET)
            except BucketNotFoundError:
                bucket = await self._jetstream.create_key_value(KeyValueConfig(bucket=_BUCKET, ttl=14 * 86_400.0))
            if number is None:
                return int((await bucket.get(key)).value)
            await bucket.put(key, str(number).encode())
        except KeyNotFoundError:
            pass
        except NatsError as error:
            self._without_bucket_until = clock.time() + _WITHOUT_BUCKET_S
            why = error.description if isinstance(error, APIError) else type(error).__name__
            _log.warning("the bucket %s can't be used now, and every delivery of a message counts: %s", _BUCKET, why)
        return 0


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except NoServersError:
        raise BrokerAway("The queue's server can't be reached.") from None
    except APIError as error:
        raise BrokerRefused(f"NATS refuses this consumer: {error.description}") from None
    except (NatsError, OSError) as error:
        raise BrokerAway(f"The queue's server does not answer ({type(error).__name__}).") from None


async def _ignore(_: Exception) -> None:
    """Discards errors that the library would print; important ones are raised where they are awaited."""
