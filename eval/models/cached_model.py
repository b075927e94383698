"""Models that answer from the store of calls what they can.

A call is known by everything that decides its reply (:func:`key_of`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from court.digests import digest
from court.meme import Frame
from court.ports import ChatModel, ChatReply, ChatRequest, Odds, ReplicatedModel
from court.roles import RoleModel, RoleModels
from eval.models.call_cache import CallCache, damaged_call

T = TypeVar("T")

_REPLY: TypeAdapter[ChatReply] = TypeAdapter(ChatReply)
_ODDS: TypeAdapter[Odds] = TypeAdapter(Odds)


def key_of(
    model: str,
    server: Mapping[str, Any],
    request: ChatRequest,
    *,
    options: Sequence[str] | None = None,
    seed: int = 0,
) -> str:
    """Returns the key of a call: SHA-256 of everything that decides its reply.

    Args:
        model: Its name.
        server: Known facts about the servers that have it.
        request: Request of the call. Pictures count by the SHA-256 of their PNG.
        options: Options of a call for odds; None for one for a reply.
        seed: Seed of the run; counts only where the temperature makes a reply a draw.
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
            # At temperature 0 the seed decides nothing, and all runs share the reply.
            "seed": seed if request.temperature > 0 else None,
            # Not where they are as they always were, so that the keys of earlier stores stay.
            **({"thought_tokens": request.thought_tokens} if request.thought_tokens else {}),
            **({"avoid_repetition": True} if request.avoid_repetition else {}),
            # Of several rulings by one model each is a draw of its own; not of one, so that earlier keys stay.
            **({"judge": request.place.judge} if request.place and request.place.judge > 1 else {}),
        }
    )


@dataclass(slots=True)
class HitCounter:
    """Counts the calls of a trial that did not have to be made."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A :class:`~court.ports.ChatModel` that answers from a store what it can.

    Attributes:
        inner: Model that is called if the store has no reply.
        store: Store of calls.
        server: Known facts about the servers behind it, for the key.
        seed: Seed of the run.
        hits: Counts what came out of the store.
    """

    inner: ChatModel
    store: CallCache
    server: Mapping[str, Any]
    seed: int = 0
    hits: HitCounter = field(default_factory=HitCounter)

    @property
    def name(self) -> str:
        """The model's name, as calls are made with it."""
        return self.inner.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """See :meth:`court.ports.ChatModel.reply`; raises CallsError besides."""

        async def ask(seconds: float) -> str:
            return _REPLY.dump_json(await self.inner.reply(request, within_s=seconds)).decode()

        return await self._once(key_of(self.name, self.server, request, seed=self.seed), ask, within_s, _REPLY)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """See :meth:`court.ports.ChatModel.odds`; raises CallsError besides."""

        async def ask(seconds: float) -> str:
            odds = await self.inner.odds(request, options, within_s=seconds)
            # Raised, so that nothing of it is stored.
            if odds is None or not odds.masses:
                raise _CantSay(odds)
            return _ODDS.dump_json(odds).decode()

        key = key_of(self.name, self.server, request, options=options, seed=self.seed)
        try:
            return await self._once(key, ask, within_s, _ODDS)
        except _CantSay as said:
            return said.odds

    async def _once(self, key: str, ask: Callable[[float], Awaitable[str]], within_s: float, kind: TypeAdapter[T]) -> T:
        body, stored = await self.store.once(key, self.name, ask, within_s=within_s)
        try:
            read = kind.validate_json(body)
        except ValidationError:
            raise damaged_call(key) from None
        self.hits.count += stored
        return read


class _CantSay(Exception):
    def __init__(self, odds: Odds | None) -> None:
        super().__init__()
        self.odds = odds


@dataclass(frozen=True, slots=True)
class StoredServers(CachedModel):
    """Store of calls in front of a :class:`~court.ports.ReplicatedModel`."""

    inner: ReplicatedModel

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers, without keys."""
        return self.inner.urls

    def pinned(self, key: str) -> StoredServers:
        """See :meth:`court.ports.ReplicatedModel.pinned`. A reply is the same whichever of the servers gives it."""
        return replace(self, inner=self.inner.pinned(key))

    def room(self) -> bool:
        """True if the server that is asked now would work on one more call at once."""
        return self.inner.room()


def stored_chairs(
    chairs: RoleModels, store: CallCache, *, server: str = "", seed: int = 0, hits: HitCounter
) -> RoleModels:
    """Puts a store of calls in front of the models of a trial.

    Args:
        chairs: Models of the trial.
        store: Store of calls.
        server: Name of the servers in keys; their addresses if empty.
        seed: Seed of the run.
        hits: Counts what comes out of the store.
    """
    wrapped: dict[int, StoredServers] = {}

    def of(chair: RoleModel) -> RoleModel:
        known = _known_of(chair, server)
        servers = chair.servers
        if servers is None:
            return replace(chair, model=CachedModel(inner=chair.model, store=store, server=known, seed=seed, hits=hits))
        # One object for all roles that share one: they move on together when their server is gone.
        own = wrapped.setdefault(
            id(servers), StoredServers(inner=servers, store=store, server=known, seed=seed, hits=hits)
        )
        return replace(chair, model=own, servers=own)

    return chairs.each(of)


def _known_of(chair: RoleModel, server: str) -> dict[str, Any]:
    """Lists everything besides the request that decides a reply: its origin and the form of the call."""
    # The form of a request decides its reply too: a schema that it can't enforce is described in the prompt.
    able = getattr(chair.model, "capabilities", None)
    urls = sorted(chair.servers.urls) if chair.servers else sorted(getattr(chair.model, "urls", ()))
    return {
        "name": server or urls,
        "json_schema": getattr(able, "json_schema", None),
        "log_probs": str(getattr(able, "log_probs", "")),
        **({"thoughts": list(chair.thoughts_by)} if chair.thoughts_by else {}),
    }
