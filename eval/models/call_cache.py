"""The call cache: model calls that were answered once are not made again.

Runs have one each, or share one, so that the arms of an ablation make their common calls only once. A call is
identified by everything that determines its reply (:func:`key_of`); the reply is stored
unchanged, usage figures included.

A reply that was cut off (``LENGTH``) or declined is stored like any other. At temperature 0 the same request ends the
same way again; above, redrawing only bad draws would be cherry-picking. Errors are not replies and are never stored,
nor is a server's inability to return log-probabilities.
"""

import asyncio
import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from court.digests import digest
from court.errors import Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatModel, ChatReply, ChatRequest, Odds, ReplicatedModel
from court.roles import RoleModel, RoleModels
from serving.docket.store.transactions import GroupCommit, sqlite_engine, transaction

T = TypeVar("T")

_REPLY: TypeAdapter[ChatReply] = TypeAdapter(ChatReply)
_ODDS: TypeAdapter[Odds | None] = TypeAdapter(Odds | None)


def key_of(
    model: str, server: Mapping[str, Any], request: ChatRequest, *, options: Sequence[str] | None = None, seed: int = 0
) -> str:
    """Returns the key of a call: SHA-256 of everything that determines its reply.

    Args:
        seed: Seed of the run; counts only if the temperature makes a reply random.
    """
    return digest(
        {
            "model": model,
            "server": server,
            "system": request.system,
            "parts": [
                {"picture": hashlib.sha256(part.png).hexdigest()} if isinstance(part, Frame) else part
                for part in request.parts
            ],
            "schema": request.reply_schema,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "options": None if options is None else list(options),
            # At temperature 0 the seed has no effect, and all runs share the reply.
            "seed": seed if request.temperature > 0 else None,
            "thought_tokens": request.thought_tokens,
            "avoid_repetition": request.avoid_repetition,
            # Several rulings by one model are separate draws.
            "judge": request.call_id.judge if request.call_id else 1,
        }
    )


@dataclass(slots=True)
class HitCounter:
    """Counts the calls of a trial that were answered from the cache."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A :class:`~court.ports.ChatModel` that answers from the call cache when possible."""

    inner: ChatModel
    store: "CallCache"
    server: Mapping[str, Any]
    seed: int = 0
    hits: HitCounter = field(default_factory=HitCounter)

    @property
    def name(self) -> str:
        """Model name used in calls."""
        return self.inner.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """See :meth:`court.ports.ChatModel.reply`; also raises CallsError."""
        key = key_of(self.name, self.server, request, seed=self.seed)
        return await self._once(key, partial(self.inner.reply, request), within_s, _REPLY)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """See :meth:`court.ports.ChatModel.odds`; also raises CallsError."""
        key = key_of(self.name, self.server, request, options=options, seed=self.seed)
        return await self._once(key, partial(self.inner.odds, request, options), within_s, _ODDS)

    async def _once(self, key: str, ask: Callable[..., Awaitable[T]], within_s: float, kind: TypeAdapter[T]) -> T:
        async def body(seconds: float) -> tuple[str, bool]:
            answer = await ask(within_s=seconds)
            return kind.dump_json(answer).decode(), _lasts(answer)

        found, stored = await self.store.once(key, self.name, body, within_s=within_s)
        try:
            answer = kind.validate_json(found)
        except ValidationError:
            raise _damaged(key) from None
        self.hits.count += stored and _lasts(answer)
        return answer


def _lasts(answer: object) -> bool:
    """True for an answer that is stored: any but odds that a server could not give."""
    return bool(answer.masses) if isinstance(answer, Odds) else answer is not None


@dataclass(frozen=True, slots=True)
class StoredServers(CachedModel):
    """Call cache in front of a :class:`~court.ports.ReplicatedModel`."""

    inner: ReplicatedModel

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers, without keys."""
        return self.inner.urls

    def pinned(self, key: str) -> Self:
        """See :meth:`court.ports.ReplicatedModel.pinned`. A reply is the same from any of the servers."""
        return replace(self, inner=self.inner.pinned(key))

    def room(self) -> bool:
        """True if the current server would start one more call at once."""
        return self.inner.room()


def stored_models(
    role_models: RoleModels, store: "CallCache", *, server: str = "", seed: int = 0, hits: HitCounter
) -> RoleModels:
    """Puts the call cache in front of the models of a trial."""
    wrapped: dict[int, StoredServers] = {}

    def of(role_model: RoleModel) -> RoleModel:
        servers = role_model.servers
        able = getattr(role_model.model, "capabilities", None)
        urls = sorted(servers.urls if servers else getattr(role_model.model, "urls", ()))
        # All besides the request that determines a reply: its origin and the form of the call, as a schema that the
        # server cannot enforce is described in the prompt.
        known = {
            "name": server or urls,
            "json_schema": getattr(able, "json_schema", None),
            "log_probs": str(getattr(able, "log_probs", "")),
            "thoughts": list(role_model.thoughts_by),
        }
        if servers is None:
            return replace(
                role_model, model=CachedModel(inner=role_model.model, store=store, server=known, seed=seed, hits=hits)
            )
        # Roles that share a model share one wrapper: they fail over together when their server is gone.
        own = wrapped.setdefault(
            id(servers), StoredServers(inner=servers, store=store, server=known, seed=seed, hits=hits)
        )
        return replace(role_model, model=own, servers=own)

    return role_models.each(of)


FORMAT = 1
"""Version of the tables below; a file of a later format is refused."""
_APPLICATION = 0x4D434353  # "MCCS": distinguishes a call cache from other SQLite files

_TABLES = (
    # Times in ISO 8601, UTC; bodies are JSON of a ChatReply or of Odds; the digest is of key and body, as SQLite has no
    # checksums of its own.
    "CREATE TABLE calls (key VARCHAR NOT NULL PRIMARY KEY, at VARCHAR NOT NULL, model VARCHAR NOT NULL, "
    "body TEXT NOT NULL, sha256 VARCHAR NOT NULL)",
    "CREATE TABLE secret (fence_key BLOB NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
# The first answer wins, in case another process made the same call at the same time.
_INSERT = "INSERT INTO calls (key, at, model, body, sha256) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


class CallsError(Unavailable):
    """The call cache cannot be used; says what is wrong, and what to do. Ends a run, not just a trial."""

    default_reason = "BAD_CALLS"


@dataclass(slots=True)
class _Flight:
    """A call being looked up or made, shared by all its callers."""

    task: asyncio.Task[tuple[str, bool]]
    """Returns the body, and whether it came from the cache."""
    waiters: int = 0
    answered: bool = False
    """True once the model has answered: from then on the reply is stored, even if all callers have left."""


class CallCache(ABC):
    """Cache of model calls, independent of its storage.

    Valid within one event loop.
    """

    def __init__(self, fence_key: bytes) -> None:
        self.fence_key = fence_key
        self.before_call: Callable[[], None] = lambda: None
        """Called before each call that is not stored; what it raises is raised in place of the call."""
        self._flights: dict[str, _Flight] = {}

    @abstractmethod
    async def read(self, key: str) -> str | None:
        """Reads the entry of a key. Raises CallsError if it cannot be read or was altered."""

    @abstractmethod
    async def keep(self, key: str, model: str, body: str) -> None:
        """Stores the reply of a model; an existing one stays unchanged. Raises CallsError if it cannot be stored."""

    def fence_mark(self, *names: str) -> str:
        """Returns the mark of the fences in one meme's trials, 16 hex digits.

        The same wherever this cache is used, so that requests are identical to the letter; different for every other
        cache, and unpredictable without this one.
        """
        # The NUL keeps adjacent names apart.
        return hmac.new(self.fence_key, "\0".join(names).encode(), hashlib.sha256).hexdigest()[:16]

    async def once(
        self, key: str, model: str, ask: Callable[[float], Awaitable[tuple[str, bool]]], *, within_s: float
    ) -> tuple[str, bool]:
        """Returns the stored value of a key.

        If there is none, calls the model and stores the reply before returning it.

        Concurrent callers with the same key share one call, which is cancelled when the last of them leaves.

        Args:
            ask: Makes the call; returns the value, and True if it is to be stored.

        Returns:
            The value, and True if this caller did not have to make the call.

        Raises:
            CallsError: The cache cannot be read or written.
            Overrun: The reply did not come in time.
            CourtError: Any error that ``ask`` raises; nothing is stored.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while True:
            flight = self._flights.get(key)
            own = flight is None
            if flight is None:
                flight = self._flights[key] = self._fly(key, model, ask, end - loop.time())
            try:
                body, stored = await self._wait(key, flight, end - loop.time())
                # A caller that joined made no call either.
                return body, stored or not own
            except Overrun:
                # The timeout of another caller, who had less time than this one.
                if own or loop.time() >= end:
                    raise

    def _fly(
        self, key: str, model: str, ask: Callable[[float], Awaitable[tuple[str, bool]]], within_s: float
    ) -> _Flight:
        async def fly() -> tuple[str, bool]:
            try:
                stored = await self.read(key)
                if stored is not None:
                    return stored, True
                self.before_call()
                body, lasting = await ask(within_s)
                # From here on the call is not cancelled: the reply is paid for, and is stored before it is used, so
                # that a trial that continues from it finds it again after a crash.
                flight.answered = True
                if lasting:
                    await self.keep(key, model, body)
                return body, False
            finally:
                # A cancelled call was removed already, and a new one may have its place.
                if self._flights.get(key) is flight:
                    del self._flights[key]

        # The task first runs after this function returns: by then the name that fly() uses is bound.
        flight = _Flight(asyncio.create_task(fly()))
        return flight

    async def _wait(self, key: str, flight: _Flight, within_s: float) -> tuple[str, bool]:
        flight.waiters += 1
        try:
            async with asyncio.timeout(within_s) as clock:
                # A caller that leaves, or runs out of time, must not end the call for the others.
                return await asyncio.shield(flight.task)
        except TimeoutError:
            # A timeout that the call itself raised does not mean that this caller's time is up.
            if not clock.expired():
                raise
            raise Overrun("The model did not answer in the time it was given.", reason="MODEL_TOO_SLOW") from None
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done() and not flight.answered:
                # Removed first, so that new callers do not join a call that is being cancelled.
                del self._flights[key]
                flight.task.cancel()
                # Until the call has ended at the model too; wait() does not raise its exception.
                await asyncio.wait([flight.task])

    async def close(self) -> None:
        """Waits until all answered calls are stored."""
        # A failure concerns only the callers that wait for the call.
        await asyncio.gather(*(flight.task for flight in self._flights.values()), return_exceptions=True)


class SqliteCallCache(CallCache):
    """Replies of models in a SQLite file, which several processes may share. Valid within one event loop."""

    def __init__(self, path: Path, *, patience: float = 10.0) -> None:
        """Opens a call cache; creates it if it does not exist.

        Raises CallsError: The file is not a call cache, is damaged, or has a later format.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._engine = engine = sqlite_engine(path, patience)
        try:
            super().__init__(_check_or_create(engine, path))
        except (SQLAlchemyError, CallsError) as error:
            engine.dispose()
            if isinstance(error, CallsError):
                raise
            raise CallsError(
                f"The store of calls {path} can't be opened: it is damaged, locked, or something else. Restore it from "
                "a copy, or move it away: then every call is made again."
            ) from error
        # Replies that arrive together share a commit, because each commit waits for the disk.
        self._writer = GroupCommit(lambda: transaction(engine), _failed)
        self._closed = False

    async def read(self, key: str) -> str | None:
        """See :meth:`CallCache.read`."""
        # In a thread, because a read goes to the disk and may wait for a writer.
        return await asyncio.to_thread(self._read, key)

    async def keep(self, key: str, model: str, body: str) -> None:
        """See :meth:`CallCache.keep`."""
        row = (key, datetime.now(UTC).isoformat(), model, body, _check(key, body))
        await self._writer.run(lambda connection: connection.exec_driver_sql(_INSERT, row))

    async def close(self) -> None:
        """Waits until all answered calls are stored, and closes the file."""
        if not self._closed:
            self._closed = True
            await super().close()
            await self._writer.close()
            self._engine.dispose()

    def _read(self, key: str) -> str | None:
        try:
            with self._engine.connect() as connection:
                found = connection.exec_driver_sql("SELECT body, sha256 FROM calls WHERE key = ?", (key,)).first()
        except SQLAlchemyError as error:
            raise _failed(error) from error
        # An altered reply would silently become a wrong verdict.
        if found is not None and _check(key, found.body) != found.sha256:
            raise _damaged(key)
        return None if found is None else str(found.body)


def _check(key: str, body: str) -> str:
    return hashlib.sha256(f"{key}\n{body}".encode()).hexdigest()


def _check_or_create(engine: Engine, path: Path) -> bytes:
    """Returns the fence key; creates the tables in a new file."""
    with transaction(engine) as connection:

        def one(statement: str) -> Any:
            return connection.exec_driver_sql(statement).scalar_one()

        # Within one write transaction: if two processes open a new file, the second finds it initialised.
        if one("SELECT count(*) FROM sqlite_master WHERE type = 'table'") == 0:
            for statement in _TABLES:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("INSERT INTO secret VALUES (?)", (secrets.token_bytes(32),))
        elif one("PRAGMA application_id") != _APPLICATION:
            raise CallsError(f"The file {path} is a SQLite database, but no store of calls. Name another with --calls.")
        elif (found := one("PRAGMA user_version")) > FORMAT:
            raise CallsError(
                f"The store of calls {path} has format {found}; this version of MemeCourt reads up to {FORMAT}. "
                "Upgrade it."
            )
        return bytes(one("SELECT fence_key FROM secret"))


def _failed(error: Exception) -> CallsError:
    return CallsError(
        "The store of calls can't be read or written: its disk is full, its file is damaged or gone, or another "
        "process has held it for long. When that is mended, take the run up again."
    )


def _damaged(key: str) -> CallsError:
    return CallsError(
        f"The store of calls is damaged: what it holds under {key} is not what was kept. Restore it from a copy, or "
        "move it away: then every call is made again."
    )
