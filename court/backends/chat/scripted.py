"""A fake chat model that follows a script and raises if calls and script do not match."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from court.errors import Overrun
from court.ports import ChatReply, ChatRequest, FinishReason, Odds

Says = ChatReply | str | Mapping[str, Any] | Exception
"""A reply; its text; its content as JSON; or an exception to raise."""
Line = tuple[str | Callable[[ChatRequest], bool] | None, Says | Callable[[ChatRequest], Says]]
"""Condition and reply. The condition is a substring of the request, a predicate, or None for any request."""


class OffScript(AssertionError):
    """The calls made and those in the script differ."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One call."""

    request: ChatRequest
    options: tuple[str, ...] | None
    within_s: float


class ScriptedModel:
    """A :class:`~court.ports.ChatModel` that follows a script.

    Each line is used once; a call gets the first unused one that matches, so that concurrent calls may come in any
    order. As a context manager it raises at the end if lines are left over.
    """

    def __init__(
        self,
        script: Sequence[Line] | Callable[[ChatRequest], Says],
        *,
        odds: Callable[[ChatRequest, tuple[str, ...]], Sequence[float] | None] | None = None,
        name: str = "scripted",
        delay_s: float = 0.0,
    ) -> None:
        self.asked: list[ScriptedCall] = []
        self.cancelled = 0
        self._answers = script if callable(script) else None
        self._lines = [] if callable(script) else list(script)
        self._odds = odds
        self._name = name
        self._delay_s = delay_s
        self._beyond = 0

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the next reply of the script. Raises the scripted exception, or OffScript if no line matches."""
        self.asked.append(ScriptedCall(request, None, within_s))
        says = self._answers(request) if self._answers else self._line(request)
        await self._take_time(within_s)
        if isinstance(says, Exception):
            raise says
        if isinstance(says, ChatReply):
            return says
        return self._reply(request, says if isinstance(says, str) else json.dumps(says, ensure_ascii=False))

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the scripted ``odds``."""
        self.asked.append(ScriptedCall(request, tuple(options), within_s))
        await self._take_time(within_s)
        masses = self._odds(request, tuple(options)) if self._odds else None
        return None if masses is None else Odds(tuple(masses), self._reply(request, options[0]))

    def finish(self) -> None:
        """Raises OffScript if script is left over, or if more was asked for than it has: whoever asked may have taken
        that error for one of the model's."""  # noqa: D205, D209
        if self._beyond or self._lines:
            raise OffScript(f"{self._beyond} calls were not in the script, {len(self._lines)} lines of it are left")

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:  # an exception inside explains left-over lines
            self.finish()

    def _line(self, request: ChatRequest) -> Says:
        for number, (when, says) in enumerate(self._lines):
            if when is None or (_stands_in(when, request) if isinstance(when, str) else when(request)):
                del self._lines[number]
                return says(request) if callable(says) else says
        self._beyond += 1
        raise OffScript(f"call {len(self.asked)} is not in the script; {len(self._lines)} lines are left")

    async def _take_time(self, within_s: float) -> None:
        try:
            await asyncio.sleep(max(min(self._delay_s, within_s), 0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._delay_s > within_s or within_s <= 0:
            raise Overrun("The scripted model takes longer than that.", reason="MODEL_TOO_SLOW")

    def _reply(self, request: ChatRequest, text: str) -> ChatReply:
        sent = " ".join([request.system, *(part for part in request.parts if isinstance(part, str))])
        return ChatReply(
            text=text,
            finish=FinishReason.STOP,
            model=self._name,
            tokens_in=len(sent.split()),
            tokens_out=len(text.split()),
            tokens_cached=0,
            latency_s=self._delay_s,
        )


def _stands_in(text: str, request: ChatRequest) -> bool:
    return any(text in part for part in (request.system, *request.parts) if isinstance(part, str))
