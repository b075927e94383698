"""A queue in Redis Streams: a consumer group, with separate streams for answers and dead letters."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

import redis.asyncio as redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from typing_extensions import override

from court.errors import BadRequest, CourtError, Unavailable
from serving.queue.source import DeadLetter, QueueAnswer, QueuedMeme, QueueSettings, QueueSource, no_message

_BLOCK_MS = 1000
"""Milliseconds that a read waits for a message, and so how long a consumer may take to stop."""
# Longer than _BLOCK_MS: a waiting read must not be mistaken for a dead connection.
_SOCKET_S = 10.0
_PAGE = 100
"""Pending messages per page."""
_MAX_STREAM_CHARS = 100
"""Maximum characters of a stream's name, which together with a message's id must fit into a request_id."""
_LONGEST_FAULT = 200
_SETTLE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if ARGV[3] == '1' then redis.call('XDEL', KEYS[1], ARGV[2]) end
return 1
"""
"""Answers and acknowledges a message atomically; does nothing if another consumer has done so.

The answer comes first: if Redis refuses it for lack of memory, nothing was acknowledged."""


class RedisStreams(QueueSource):
    """One consumer of a stream."""

    def __init__(self, settings: QueueSettings) -> None:
        """Prepares the queue without connecting.

        Raises:
            BadRequest: The address is not that of a Redis server, or a name is invalid.
        """
        self._settings = settings
        if len(settings.stream) > _MAX_STREAM_CHARS:
            raise BadRequest(
                f"The name of a stream has at most {_MAX_STREAM_CHARS} characters.", reason="QUEUE_NAME", field="stream"
            )
        if len({settings.stream, settings.answers, settings.dead}) < 3:
            raise BadRequest(
                "Memes, answers and what is put aside each have a stream of their own.",
                reason="QUEUE_NAME",
                field="stream",
            )
        self._again_after_ms = round(settings.again_after_s * 1000)
        self._remove = settings.remove
        # Host names and process ids repeat in containers: two consumers of one name would take each other's messages.
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # An abandoned message is found at most a quarter later than its idle time.
        self._check_s = settings.again_after_s / 4
        self._looked = 0.0
        try:
            self._redis: Any = redis.Redis.from_url(
                settings.address,
                # Version 2, which all Redis-compatible servers support; replies differ in version 3.
                protocol=2,
                socket_timeout=_SOCKET_S,
                socket_connect_timeout=_SOCKET_S,
            )
        except (ValueError, TypeError):  # for an invalid port or option
            raise BadRequest(
                "The address of the queue is none of a Redis server: redis://HOST:PORT/DATABASE.",
                reason="QUEUE_ADDRESS",
                field="queue",
            ) from None
        self._settle: Any = self._redis.register_script(_SETTLE)

    async def open(self) -> Self:
        """Creates the consumer group if missing: it starts with the first existing message.

        Raises:
            BadRequest: The server refuses it: a name or a password is wrong, or the key is not a stream.
            Unavailable: The server can't be reached.
        """
        try:
            with _errors(refused=BadRequest):
                await self._make_group()
        # Also on cancellation, since nobody else would close the connection.
        except BaseException:
            await self._redis.aclose()
            raise
        return self

    @override
    async def receive(self, most: int, is_claimed: Callable[[str], bool] = no_message) -> Sequence[QueuedMeme]:
        with _errors():
            # Before new ones: abandoned messages have waited longest.
            if found := await self._left_behind(most, is_claimed):
                return found
            try:
                streams = {self._settings.stream: ">"}
                answer = await self._redis.xreadgroup(
                    self._settings.group, self._name, streams, count=most, block=_BLOCK_MS
                )
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                await self._make_group()  # somebody emptied the database
                return ()
        return [self._meme(id_, parts) for _, entries in answer for id_, parts in entries]

    @override
    async def stop_receiving(self) -> None:
        # Nothing to do: Redis only delivers during a read.
        return

    @override
    async def read_again(self, meme: QueuedMeme) -> QueuedMeme | None:
        with _errors():
            entries = await self._redis.xrange(self._settings.stream, min=meme.id, max=meme.id)
        if not entries:
            return None
        ((id_, parts),) = entries
        return self._meme(id_, parts, meme.deliveries)

    @override
    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        if not memes:
            return
        with _errors():
            # JUSTID resets the idle time without counting a delivery.
            ids = [meme.id for meme in memes]
            await self._redis.xclaim(
                self._settings.stream,
                self._settings.group,
                self._name,
                min_idle_time=0,
                message_ids=ids,
                justid=True,
            )

    @override
    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        return await self._settled(meme, self._settings.answers, asdict(answer))

    @override
    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        about = {f"dead_{name}": value for name, value in asdict(letter).items()}
        return await self._settled(meme, self._settings.dead, {**meme.parts, **about})

    @override
    async def give_back(self, meme: QueuedMeme, *, counted: bool = True) -> None:
        if counted:
            return  # it stays pending, and is redelivered once it has been idle for long enough
        with _errors():
            # As if it had been abandoned and not delivered here: idle for long enough, and one delivery fewer.
            await self._redis.xclaim(
                self._settings.stream,
                self._settings.group,
                self._name,
                min_idle_time=0,
                message_ids=[meme.id],
                idle=self._again_after_ms,
                retrycount=meme.deliveries - 1,
                justid=True,
            )

    @override
    async def drop(self, meme: QueuedMeme) -> None:
        with _errors():
            await self._redis.xack(self._settings.stream, self._settings.group, meme.id)

    @override
    async def waiting(self) -> int | None:
        with _errors():
            groups = await self._redis.xinfo_groups(self._settings.stream)
        for group in groups:
            if group["name"] == self._settings.group.encode():
                lag = group.get("lag")  # since Redis 7, and only if known
                return None if lag is None else int(lag)
        return None

    @override
    async def aclose(self) -> None:
        try:
            with _errors():
                settings = self._settings
                # Deleting a consumer discards its pending messages, so one that has any is kept.
                if not await self._redis.xpending_range(
                    settings.stream, settings.group, min="-", max="+", count=1, consumername=self._name
                ):
                    await self._redis.xgroup_delconsumer(settings.stream, settings.group, self._name)
        except Unavailable:
            pass
        finally:
            await self._redis.aclose()

    async def _make_group(self) -> None:
        try:
            await self._redis.xgroup_create(self._settings.stream, self._settings.group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _left_behind(self, most: int, is_claimed: Callable[[str], bool]) -> Sequence[QueuedMeme]:
        """Claims abandoned messages; done only now and then, since it reads all pending ones."""
        now = asyncio.get_running_loop().time()
        # The first check is immediate: messages of a dead consumer have waited long enough.
        if self._looked and now < self._looked + self._check_s:
            return ()
        settings, first = self._settings, "-"
        found: list[QueuedMeme] = []
        # Not XAUTOCLAIM: after late heartbeats it would claim messages that this consumer itself holds and count
        # deliveries, until a message in progress is dead-lettered.
        while len(found) < most:
            try:
                pending = await self._redis.xpending_range(
                    settings.stream, settings.group, min=first, max="+", count=_PAGE, idle=self._again_after_ms
                )
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                break
            if not pending:
                break
            # Continue with the next page: this consumer's own messages may fill a page.
            first = f"({pending[-1]['message_id'].decode()}"
            left = {
                each["message_id"]: each["times_delivered"]
                for each in pending
                if not is_claimed(each["message_id"].decode())
            }
            if ids := list(left)[: most - len(found)]:
                # Only if still idle, since another consumer may have been faster.
                entries = await self._redis.xclaim(
                    settings.stream, settings.group, self._name, min_idle_time=self._again_after_ms, message_ids=ids
                )
                # Before Redis 7, deleted messages have no id.
                found += [self._meme(id_, parts, left[id_] + 1) for id_, parts in entries if id_ is not None]
        if not found:
            self._looked = now  # otherwise there may be more
        return found

    async def _settled(self, meme: QueuedMeme, target: str, fields: Mapping[str, Any]) -> bool:
        settings = self._settings
        flat = [part for field in fields.items() for part in field]
        with _errors():
            done = await self._settle(
                keys=[settings.stream, target], args=[settings.group, meme.id, int(self._remove), *flat]
            )
        return bool(done)

    def _meme(self, id_: bytes, parts: Mapping[bytes, bytes], deliveries: int = 1) -> QueuedMeme:
        name = id_.decode()
        # Includes the stream's name: ids of two streams may be equal, and a court may serve both.
        return QueuedMeme(
            name,
            f"{self._settings.stream}/{name}",
            {key.decode(errors="replace"): value for key, value in parts.items()},
            deliveries,
        )


@contextmanager
def _errors(refused: type[CourtError] = Unavailable) -> Iterator[None]:
    """Converts errors of Redis; ``refused`` is used if the server refuses, which may be fixed meanwhile."""
    try:
        yield
    except (RedisError, OSError) as error:
        cause = error.__cause__ or error  # the library wraps a wrong password in a connection error
        if isinstance(cause, AuthenticationError | ResponseError):
            raise refused(f"Redis refuses this consumer: {_words_of(cause)}", reason="QUEUE_REFUSED") from None
        raise Unavailable(
            f"The queue's server can't be reached ({type(error).__name__}).", reason="QUEUE_UNAVAILABLE"
        ) from None


def _words_of(error: BaseException) -> str:
    """Returns the server's message for the operator of the consumer."""
    return "".join(char if char.isprintable() else " " for char in str(error)[:_LONGEST_FAULT])
