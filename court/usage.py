"""Accounts for the cost of all model calls of a trial, including those that its events do not report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from court.events import Event, ModelCall, Unused
from court.ports import ChatReply


@dataclass(slots=True)
class UsageMeter:
    """Counts calls as they are made, and reported calls as events are stored; keyed by the fields of `Unused`."""

    broke_off: int = 0
    _made: Counter[str] = field(default_factory=Counter)
    _reported: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Attributes disconnects during the block, and in tasks started in it, to this trial."""
        before = _OF_TRIAL.set(self)
        try:
            yield
        finally:
            _OF_TRIAL.reset(before)

    def answered(self, reply: ChatReply) -> None:
        """Counts a call that was answered, usably or not."""
        self._made.update(_figures(reply, calls=1))

    def unanswered(self) -> None:
        """Counts a call that was cancelled or failed."""
        self._made["unanswered"] += 1

    def count_stored(self, event: Event) -> None:
        """Counts the calls reported by a stored event."""
        self._reported.update(_reported_by(event))

    def unused(self, *last: Event) -> Unused | None:
        """Returns the usage reported neither by stored events nor by these last ones; None if no model was asked."""
        if not self._made:
            return None
        # Counter subtraction drops negative counts, which `Unused` rejects.
        return Unused(**(self._made - self._reported - sum(map(_reported_by, last), Counter())))


_OF_TRIAL: ContextVar[UsageMeter | None] = ContextVar("tally of the trial", default=None)


def broke_off(times: int) -> None:
    """Counts how many times servers disconnected during a call that ended without an answer.

    Reported to the current trial, if any, in addition to the call's error: a call that is cancelled, or preceded by
    another failure, can't raise its error to anyone, and a request that kills servers must not go unnoticed.
    """
    if (meter := _OF_TRIAL.get()) is not None:
        # The maximum, not the sum: one crash ends all concurrent calls, and an unanswered call ends the trial.
        meter.broke_off = max(meter.broke_off, times)


def _reported_by(event: Event) -> Counter[str]:
    reported: Counter[str] = Counter()
    for call, _, requests in event.reported_calls:
        reported.update(_figures(call, calls=requests))
    return reported


def _figures(reply: ChatReply | ModelCall, *, calls: int) -> dict[str, int]:
    return {
        "calls": calls,
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "tokens_cached": reply.tokens_cached,
    }
