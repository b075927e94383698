"""Accounts for the cost of a trial's model calls, whatever became of them, beside what its events report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from court.events import Event, JudgeRuled, ModelCall, Unused, VerdictGiven, calls_in
from court.ports import ChatReply


@dataclass(slots=True)
class UsageMeter:
    """Counts calls as they are made, and those that events tell of as these are kept; by the names of `Unused`.

    Attributes:
        broke_off: Number of calls that a server broke off and left unanswered.
    """

    broke_off: int = 0
    _made: Counter[str] = field(default_factory=Counter)
    _reported: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts model calls of the block, and of tasks that it begins, for this trial."""
        before = _OF_TRIAL.set(self)
        try:
            yield
        finally:
            _OF_TRIAL.reset(before)

    def answered(self, reply: ChatReply) -> None:
        """A call was answered, usably or not."""
        self._made.update(_figures(reply, calls=1))

    def unanswered(self) -> None:
        """A call was cancelled, or failed."""
        self._made["unanswered"] += 1

    def count_stored(self, event: Event) -> None:
        """An event that was kept tells of its calls."""
        self._reported.update(_reported_by(event))

    def unused(self, *last: Event) -> Unused | None:
        """Returns the usage that neither stored nor these last events report; None where no model was asked."""
        if not self._made:
            return None
        # Counter's minus drops what would be negative, which `Unused` refuses.
        return Unused(**(self._made - self._reported - sum(map(_reported_by, last), Counter())))


_OF_TRIAL: ContextVar[UsageMeter | None] = ContextVar("tally of the trial", default=None)


def broke_off(times: int) -> None:
    """Counts how many times servers broke off while they worked on a call that is over and has no answer.

    Told to the trial that runs here, if one does, and not in the call's error alone: who is cancelled, or overtaken by
    another failure, has nobody left to raise an error to, and a request that kills servers must not do so unseen.
    """
    if (meter := _OF_TRIAL.get()) is not None:
        # Not added up: one death ends all calls that run side by side, and what is not answered ends the trial.
        meter.broke_off = max(meter.broke_off, times)


def _reported_by(event: Event) -> Counter[str]:
    reported: Counter[str] = Counter()
    for call in calls_in(event):
        # A call with a fault was made twice, and has the figures of both.
        reported.update(_figures(call, calls=2 if call.fault else 1))
    if isinstance(event, VerdictGiven | JudgeRuled) and event.odds is not None:
        reported.update(_figures(event.odds.call, calls=len(event.odds.harmful)))
    return reported


def _figures(reply: ChatReply | ModelCall, *, calls: int) -> dict[str, int]:
    return {
        "calls": calls,
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "tokens_cached": reply.tokens_cached,
    }
