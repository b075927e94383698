"""One side's examination of the Proposer: the ChatCaptioner loop with the entropy stop (Algorithm 1; design, §2).

``for r = 1 … R_max: q_r = ask(H, D, T); a_r = answer(q_r, G); H += (q_r, a_r); S_r = summarise(H)``; it ends when
``r >= R_min`` and ``|Entropy(S_r) - Entropy(S_{r-1})| < epsilon``.

Asking reads the history and not the summary. So while ``S_r`` is written the next question can already be asked and
answered; where the summary then ends the examination, that question is cancelled, and what has been said of it stays on
record as said, outside the rounds that count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from court.agents import Advocate, Exchange, Proposer, Said
from court.budget import Budget
from court.entropy import entropy
from court.events import AnswerGiven, QuestionAsked, RestReason, SideRested, Summarised
from court.replies import Argument
from court.settings import TrialSettings

_CALLS_BEFORE_VERDICT = 2  # this side's last summary and the Judge's ruling, one after the other
_CALLS_OF_A_ROUND = 3


class Note(Protocol):
    """Has an event taken note of; returns once that is done."""

    async def __call__(self, kind: type, /, **values: object) -> object:
        """Raises what keeps it from being kept."""
        ...


@dataclass(frozen=True, slots=True)
class SideCase:
    """What a side brings before the Judge.

    Attributes:
        argument: Its last summary and justification.
        rounds: That count.
        reason: Why it rested.
    """

    argument: Argument
    rounds: int
    reason: RestReason


@dataclass(frozen=True, slots=True)
class Examination:
    """One side's examination.

    Attributes:
        advocate: Who asks.
        proposer: Who answers.
        settings: R_min, R_max, epsilon and what else there is.
        budget: What the caller's deadline leaves.
        note: Keeps events.
        room: Whether the server has room for a call that may turn out to be superfluous.
    """

    advocate: Advocate
    proposer: Proposer
    settings: TrialSettings
    budget: Budget
    note: Note
    room: Callable[[], bool]

    async def hold(self) -> SideCase:
        """Examines until there is nothing new, no round or no time left.

        Raises:
            ReplyUnusable, Unavailable, ModelRefused: A step failed, and with it the examination.
        """
        if not self.settings.captioner:
            said = await self.advocate.summarise(())
            await self._summarised(0, said, None)
            return await self._rest(said.value, 0, RestReason.NO_EXAMINATION)

        history: list[Exchange] = []
        previous: float | None = None
        ahead: asyncio.Task[Exchange] | None = None
        try:
            for number in range(1, self.settings.rounds_max + 1):
                history.append(await (ahead or self._exchange(number, tuple(history))))
                ahead = None
                if self._worth_asking_ahead(number, previous):
                    ahead = asyncio.create_task(self._exchange(number + 1, tuple(history)))
                said = await self.advocate.summarise(tuple(history))
                bits = entropy(said.value.summary)
                change = None if previous is None else abs(bits - previous)
                await self._summarised(number, said, change)
                if number >= self.settings.rounds_min and change is not None and change < self.settings.epsilon:
                    return await self._rest(said.value, number, RestReason.CONVERGED)
                if number == self.settings.rounds_max:
                    return await self._rest(said.value, number, RestReason.ROUND_LIMIT)
                if not self.budget.allows(_CALLS_OF_A_ROUND + _CALLS_BEFORE_VERDICT):
                    return await self._rest(said.value, number, RestReason.TIME)
                previous = bits
            raise AssertionError("unreachable: the last round returns")
        finally:
            if ahead is not None:
                ahead.cancel()
                # Its error, if it has one, is nobody's any more: the examination has ended without it.
                await asyncio.gather(ahead, return_exceptions=True)

    def _worth_asking_ahead(self, number: int, previous: float | None) -> bool:
        return (
            self.settings.overlap
            and number < self.settings.rounds_max
            and self.budget.allows(_CALLS_OF_A_ROUND + _CALLS_BEFORE_VERDICT)
            and self.room()
        )

    async def _exchange(self, number: int, history: Sequence[Exchange]) -> Exchange:
        side = self.advocate.side
        asked = await self.advocate.ask(history)
        await self.note(QuestionAsked, side=side, round=number, question=asked.value, call=asked.call)
        answered = await self.proposer.answer(asked.value)
        await self.note(AnswerGiven, side=side, round=number, answer=answered.value, call=answered.call)
        return Exchange(asked.value, answered.value)

    async def _summarised(self, number: int, said: Said[Argument], change: float | None) -> None:
        await self.note(
            Summarised,
            side=self.advocate.side,
            round=number,
            summary=said.value.summary,
            justification=said.value.justification,
            entropy=entropy(said.value.summary),
            entropy_change=change,
            call=said.call,
        )

    async def _rest(self, argument: Argument, rounds: int, reason: RestReason) -> SideCase:
        await self.note(SideRested, side=self.advocate.side, rounds=rounds, reason=reason)
        return SideCase(argument, rounds, reason)
