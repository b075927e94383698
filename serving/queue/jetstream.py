"""A queue in NATS JetStream: a durable pull consumer, with answers and dead letters under subjects of their own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

import nats
import orjson
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError
from typing_extensions import override

from court.errors import BadRequest, Unavailable
from serving.queue.source import DeadLetter, QueueAnswer, QueuedMeme, QueueSettings, QueueSource

_WAIT_S = 1.0
"""Seconds that a look for messages lasts: also how long a consumer may take to stop."""
_REPLY_S = 10.0


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

    async def open(self) -> Self:
        """Connects, and makes the consumer where there is none: it begins with the first message that is there.

        Raises:
            BadRequest: There is no such stream, or none that keeps answers or dead letters.
            Unavailable: The server can't be reached.
        """
        asked = self._settings
        try:
            with _errors():
                # Few attempts at first: with as many as later, it would wait for ever for what never was there.
                first = await nats.connect(
                    asked.address,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.1,
                    connect_timeout=_REPLY_S,
                    error_cb=_ignore,
                )
                # It has shown that the server is there; the lasting connection then reconnects for as long as it takes.
                await first.close()
                self._nats = await nats.connect(asked.address, max_reconnect_attempts=-1, error_cb=_ignore)
                self._jetstream = self._nats.jetstream(timeout=_REPLY_S)
                # At the start: otherwise each answer would fail after its meme was tried.
                for subject in (asked.answers, asked.dead):
                    await self._find_stream(subject)
                config = ConsumerConfig(
                    # One name for all of them: they share the messages, and the server remembers how far they are.
                    durable_name=asked.group,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=asked.again_after_s,
                    # The consumer counts deliveries itself, and buries with a reason. JetStream would only stop
                    # delivering.
                    max_deliver=-1,
                )
                try:
                    await self._jetstream.add_consumer(asked.stream, config)
                except NotFoundError:
                    raise _refused(f"there is no stream {asked.stream}") from None
                except APIError as error:
                    raise _refused(f"{error.description}") from None
                self._pulled = await self._jetstream.pull_subscribe_bind(consumer=asked.group, stream=asked.stream)
        # Also where the start is cancelled: a connection that is left open goes on reconnecting.
        except BaseException:
            await self.aclose()
            raise
        return self

    @override
    async def receive(self, most: int) -> Sequence[QueuedMeme]:
        with _errors():
            try:
                messages = await self._pulled.fetch(most, timeout=_WAIT_S)
            except NatsTimeout:
                return ()
        found = []
        for message in messages:
            about = message.metadata
            id_ = str(about.sequence.stream)
            # A later delivery replaces an earlier one, whose address for acknowledgements no longer counts.
            self._messages[id_] = message
            found.append(
                QueuedMeme(id_, f"{about.stream}/{id_}", {"request": message.data}, deliveries=about.num_delivered)
            )
        return found

    @override
    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        with _errors():
            for meme in memes:
                if (message := self._messages.get(meme.id)) is not None:
                    await message.in_progress()

    @override
    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        # The verdict is JSON already, and goes in as it is.
        said = {**asdict(answer), "verdict": orjson.Fragment(answer.verdict)}
        return await self._settle(meme, self._settings.answers, orjson.dumps(said), {})

    @override
    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        # In a header, so that the message itself stays as it came.
        header = json.dumps(asdict(letter))  # in ASCII, as headers are
        return await self._settle(meme, self._settings.dead, meme.parts["request"], {"Memecourt-Dead": header})

    @override
    async def give_back(self, meme: QueuedMeme, *, counted: bool = True) -> None:
        if (message := self._messages.pop(meme.id, None)) is not None:
            with _errors():
                # JetStream counts every delivery, and takes none back.
                await message.nak(delay=self._settings.again_after_s if counted else None)

    @override
    async def aclose(self) -> None:
        if self._nats is not None and not self._nats.is_closed:
            with contextlib.suppress(NatsError, OSError):
                await self._nats.close()

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
