"""A queue in Redis Streams: a consumer group, with separate streams for answers and dead letters."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from hashlib import sha256
from typing import Any, Self, TypeAlias

import redis.asyncio as redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from memecourt_queue.source import (
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

_BLOCK_MS = 1000  # that a read waits for a message, and so how long a consumer may take to stop
_SOCKET_S = 10.0  # more than _BLOCK_MS: a waiting read must not be mistaken for a dead connection
_PAGE = 100  # pending messages at once
_MAX_FIELDS = 100  # of a message that its dead letter repeats; a script of Redis takes some thousand arguments

_LIFE = """
for _, member in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if string.sub(member[2], 1, 5) == 'life-' then return member[2] end
end
redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]
"""
"""Returns the token of a group's life, which is kept as a member of the group: it ends with the group or its stream."""
_SETTLE = """
local alive = false
local members = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
for _, member in ipairs(members) do alive = alive or member[2] == ARGV[3] end
if alive and #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5))
if alive then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
  if ARGV[4] == '1' then redis.call('XDEL', KEYS[1], ARGV[2]) end
end
return 1
"""
"""Answers, then acknowledges a message, at once; does nothing if another consumer has done so. A message of an earlier
life is only answered, since its id may belong to another message now."""


_Entries: TypeAlias = list[tuple[bytes, Mapping[bytes, bytes], int]]
"""Messages by id, each with its fields and the number of its deliveries."""


class RedisStreams(QueueSource):
    """One consumer of a stream."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        if len({settings.stream, settings.answers, settings.dead}) < 3:
            raise Unusable("Memes, answers and dead letters each have a stream of their own.")
        self._again_after_ms = round(settings.again_after_s * 1000)
        # Host names and process ids repeat in containers: two consumers of one name would take each other's messages.
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # An abandoned message is found at most a quarter later than its idle time.
        self._check_s = settings.again_after_s / 4
        self._looked = 0.0
        self._life = ""
        self._later: dict[tuple[str, str], float] = {}
        try:
            # Version 2 of the protocol, which all Redis-compatible servers support; replies differ in version 3.
            limits: Any = {"socket_timeout": _SOCKET_S, "socket_connect_timeout": _SOCKET_S}
            self._redis: Any = redis.Redis.from_url(settings.address, protocol=2, **limits)
        except (ValueError, TypeError):  # for an invalid port or option
            raise Unusable("The address of a Redis server is redis://HOST:PORT/DATABASE.") from None
        self._settle: Any = self._redis.register_script(_SETTLE)
        self._token: Any = self._redis.register_script(_LIFE)

    async def open(self) -> Self:
        """Creates the consumer group if missing: it starts with the first message. Raises Unusable, BrokerAway."""
        try:
            with _errors():
                await self._make_group()
        except BrokerAway as error:
            await self._redis.aclose()
            if isinstance(error, BrokerRefused):
                raise Unusable(str(error)) from None
            raise
        return self

    async def receive(self, most: int, is_claimed: IsClaimed) -> Sequence[QueuedMeme]:
        with _errors():
            try:
                # Before new ones: abandoned messages have waited longest.
                if not (found := await self._left_behind(most, is_claimed)):
                    streams, group = {self._settings.stream: ">"}, self._settings.group
                    answer = await self._redis.xreadgroup(group, self._name, streams, count=most, block=_BLOCK_MS)
                    found = [(id_, parts, 1) for _, entries in answer for id_, parts in entries]
                if found and (life := await self._life_now()) != self._life:
                    # It is unknown from which life they are: they stay pending, and are delivered again.
                    self._life, found = life, []
            except ResponseError as error:
                # Somebody has emptied the database, or made the stream anew.
                if not str(error).startswith(("NOGROUP", "UNBLOCKED", "ERR no such key")):
                    raise
                await self._make_group()
                return ()
        return [self._meme(*each) for each in found]

    async def stop_receiving(self) -> None:
        """Does nothing: Redis only delivers during a read."""

    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        now = asyncio.get_running_loop().time()
        due = [key for key, at in self._later.items() if at <= now or key[0] != self._life]
        for key in due:
            del self._later[key]
        with _errors():
            await self._claim([id_ for life, id_ in due if life == self._life], idle=self._again_after_ms)
            await self._claim([id_ for life, id_ in (*self._later, *(m.key for m in memes)) if life == self._life])

    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        return await self._settled(meme, self._settings.answers, asdict(answer))

    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        if len(meme.parts) <= _MAX_FIELDS:
            try:
                return await self._settled(meme, self._settings.dead, {**meme.parts, **_fields_of(letter)})
            except BrokerRefused:
                pass  # for whatever reason: the shortened letter tells if it is the size
        return await self._settled(meme, self._settings.dead, _fields_of(letter.shortened()))

    async def give_back(self, meme: QueuedMeme, after_s: float | None) -> None:
        if meme.life != self._life:
            return
        with _errors():
            if after_s is None:
                # As if it had been abandoned and not delivered here: idle for long enough, and one delivery fewer.
                await self._claim([meme.id], idle=self._again_after_ms, retrycount=meme.deliveries - 1)
            elif after_s <= self._settings.again_after_s:
                await self._claim([meme.id], idle=self._again_after_ms - round(after_s * 1000))
            else:
                # Redis knows no delay: it is held here until then.
                self._later[meme.key] = asyncio.get_running_loop().time() + after_s
                await self._claim([meme.id])

    async def waiting(self) -> int | None:
        with _errors():
            groups = await self._redis.xinfo_groups(self._settings.stream)
        lags = [group.get("lag") for group in groups if group["name"] == self._settings.group.encode()]
        return lags[0] if lags else None  # None also before Redis 7

    async def aclose(self) -> None:
        stream, group, name = self._settings.stream, self._settings.group, self._name
        with suppress(BrokerAway), _errors():
            # Deleting a consumer discards its pending messages, so one that has any is kept.
            if not await self._redis.xpending_range(stream, group, min="-", max="+", count=1, consumername=name):
                await self._redis.xgroup_delconsumer(stream, group, name)
        await self._redis.aclose()

    async def _make_group(self) -> None:
        try:
            await self._redis.xgroup_create(self._settings.stream, self._settings.group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self._life = await self._life_now()

    async def _life_now(self) -> str:
        token = f"life-{secrets.token_hex(8)}"
        found: bytes = await self._token(keys=[self._settings.stream], args=[self._settings.group, token])
        return found.decode()

    async def _claim(self, ids: Sequence[str], **options: int) -> None:
        if ids:
            stream, group = self._settings.stream, self._settings.group
            # JUSTID resets the idle time without counting a delivery.
            await self._redis.xclaim(stream, group, self._name, 0, list(ids), justid=True, **options)

    async def _left_behind(self, most: int, is_claimed: IsClaimed) -> _Entries:
        """Claims abandoned messages; done only now and then, since it reads all pending ones."""
        now = asyncio.get_running_loop().time()
        # The first check is immediate: messages of a dead consumer have waited long enough.
        if self._looked and now < self._looked + self._check_s:
            return []
        stream, group, first, idle_ms = self._settings.stream, self._settings.group, "-", self._again_after_ms
        found: _Entries = []
        # Not XAUTOCLAIM: after late heartbeats it would claim messages that this consumer itself holds and count
        # deliveries, until a message in progress is dead-lettered.
        while len(found) < most:
            pending = await self._redis.xpending_range(stream, group, first, "+", _PAGE, idle=idle_ms)
            if not pending:
                break
            # Continue with the next page: this consumer's own messages may fill a page.
            first = f"({pending[-1]['message_id'].decode()}"
            left = {
                each["message_id"]: each["times_delivered"]
                for each in pending
                if not is_claimed(key := (self._life, each["message_id"].decode())) and key not in self._later
            }
            if ids := list(left)[: most - len(found)]:
                # Only if still idle, since another consumer may have been faster.
                entries = await self._redis.xclaim(stream, group, self._name, idle_ms, ids)
                # Before Redis 7, deleted messages have no id.
                found += [(id_, parts, left[id_] + 1) for id_, parts in entries if id_ is not None]
        if not found:
            self._looked = now  # otherwise there may be more
        return found

    async def _settled(self, meme: QueuedMeme, target: str, fields: Mapping[str, Any]) -> bool:
        settings = self._settings
        flat = [part for field in fields.items() for part in field]
        with _errors():
            own = [settings.group, meme.id, meme.life, int(settings.remove)]
            return bool(await self._settle(keys=[settings.stream, target], args=[*own, *flat]))

    def _meme(self, id_: bytes, parts: Mapping[bytes, bytes], deliveries: int) -> QueuedMeme:
        digest = sha256()
        for part in (part for name in sorted(parts) for part in (name, parts[name])):
            digest.update(len(part).to_bytes(8, "big") + part)
        name, sha = id_.decode(), digest.hexdigest()
        return QueuedMeme(
            id=name,
            life=self._life,
            request_id=request_id_of(self._settings.stream, name, sha),
            parts={key.decode(errors="replace"): value for key, value in parts.items()},
            size=sum(len(key) + len(value) for key, value in parts.items()),
            sha256=sha,
            deliveries=deliveries,
        )


def _fields_of(letter: DeadLetter) -> dict[str, Any]:
    return {f"dead_{name}": value for name, value in asdict(letter).items()}


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        cause = error.__cause__ or error  # the library wraps a wrong password in a connection error
        if isinstance(cause, AuthenticationError | ResponseError):
            words = "".join(char if char.isprintable() else " " for char in str(cause)[:200])
            raise BrokerRefused(f"Redis refuses this consumer: {words}") from None
        raise BrokerAway(f"The queue's server can't be reached ({type(error).__name__}).") from None
