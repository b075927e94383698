"""Models that answer from the call cache when possible.

A call is identified by everything that determines its reply (:func:`key_of`).
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
    """Returns the key of a call: SHA-256 of everything that determines its reply.

    Args:
        request: Request of the call. Pictures count by the SHA-256 of their PNG.
        options: Options of a log-probability call; None for a call for a reply.
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
            # Left out at its default, so that the keys of earlier caches stay valid.
            **({"thought_tokens": request.thought_tokens} if request.thought_tokens else {}),
            **({"avoid_repetition": True} if request.avoid_repetition else {}),
            # Several rulings by one model are separate draws; left out for one, so that earlier keys stay valid.
            **({"judge": request.call_id.judge} if request.call_id and request.call_id.judge > 1 else {}),
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
    store: CallCache
    server: Mapping[str, Any]
    seed: int = 0
    hits: HitCounter = field(default_factory=HitCounter)

    @property
    def name(self) -> str:
        """Model name used in calls."""
        return self.inner.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """See :meth:`court.ports.ChatModel.reply`; also raises CallsError."""

        async def ask(seconds: float) -> str:
            return _REPLY.dump_json(await self.inner.reply(request, within_s=seconds)).decode()

        return await self._once(key_of(self.name, self.server, request, seed=self.seed), ask, within_s, _REPLY)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """See :meth:`court.ports.ChatModel.odds`; also raises CallsError."""

        async def ask(seconds: float) -> str:
            odds = await self.inner.odds(request, options, within_s=seconds)
            # Raised, so that nothing is stored.
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
    """Call cache in front of a :class:`~court.ports.ReplicatedModel`."""

    inner: ReplicatedModel

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers, without keys."""
        return self.inner.urls

    def pinned(self, key: str) -> StoredServers:
        """See :meth:`court.ports.ReplicatedModel.pinned`. A reply is the same from any of the servers."""
        return replace(self, inner=self.inner.pinned(key))

    def room(self) -> bool:
        """True if the current server would start one more call at once."""
        return self.inner.room()


def stored_models(
    role_models: RoleModels, store: CallCache, *, server: str = "", seed: int = 0, hits: HitCounter
) -> RoleModels:
    """Puts the call cache in front of the models of a trial.

    Args:
        server: Name of the servers in keys; their addresses if empty.
    """
    wrapped: dict[int, StoredServers] = {}

    def of(role_model: RoleModel) -> RoleModel:
        known = _known_of(role_model, server)
        servers = role_model.servers
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


def _known_of(role_model: RoleModel, server: str) -> dict[str, Any]:
    """Lists everything besides the request that determines a reply: its origin and the form of the call."""
    # The form of a request matters too: a schema that the server cannot enforce is described in the prompt.
    able = getattr(role_model.model, "capabilities", None)
    urls = sorted(role_model.servers.urls) if role_model.servers else sorted(getattr(role_model.model, "urls", ()))
    return {
        "name": server or urls,
        "json_schema": getattr(able, "json_schema", None),
        "log_probs": str(getattr(able, "log_probs", "")),
        **({"thoughts": list(role_model.thoughts_by)} if role_model.thoughts_by else {}),
    }
