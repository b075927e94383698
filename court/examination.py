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

from court.agents import Advocate, Exchange, Proposer
from court.budget import Budget
from court.clerk import Clerk
from court.entropy import entropy
from court.events import AnswerGiven, QuestionAsked, RestReason, SideRested, Summarised
from court.replies import Argument
from court.settings import TrialSettings

_CALLS_BEFORE_VERDICT = 2  # this side's last summary and the Judge's ruling, one after the other
_CALLS_OF_A_ROUND = 3


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
        clerk: Keeps events, and recalls those of a trial that was cut off.
        room: Whether the server has room for a call that may turn out to be superfluous.
    """

    advocate: Advocate
    proposer: Proposer
    settings: TrialSettings
    budget: Budget
    clerk: Clerk
    room: Callable[[], bool]

    async def hold(self) -> SideCase:
        """Examines until there is nothing new, no round or no time left.

        Raises:
            ReplyUnusable, Unavailable, ModelRefused: A step failed, and with it the examination.
        """
        if not self.settings.captioner:
            argument = await self._summarise(0, (), None)
            return await self._rest(argument, 0, RestReason.NO_EXAMINATION)

        history: list[Exchange] = []
        previous: float | None = None
        ahead: asyncio.Task[Exchange] | None = None
        try:
            for number in range(1, self.settings.rounds_max + 1):
                history.append(await (ahead or self._exchange(number, tuple(history))))
                ahead = None
                if self._worth_asking_ahead(number, previous):
                    ahead = asyncio.create_task(self._exchange(number + 1, tuple(history)))
                argument = await self._summarise(number, tuple(history), previous)
                bits = entropy(argument.summary)
                change = None if previous is None else abs(bits - previous)
                if number >= self.settings.rounds_min and change is not None and change < self.settings.epsilon:
                    return await self._rest(argument, number, RestReason.CONVERGED)
                if number == self.settings.rounds_max:
                    return await self._rest(argument, number, RestReason.ROUND_LIMIT)
                if not self.budget.allows(_CALLS_OF_A_ROUND + _CALLS_BEFORE_VERDICT):
                    return await self._rest(argument, number, RestReason.TIME)
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
        asked = self.clerk.recall(QuestionAsked, side=side, round=number)
        if asked is None:
            question = await self.advocate.ask(history)
            asked = await self.clerk.note(
                QuestionAsked, side=side, round=number, question=question.value, call=question.call
            )
        answered = self.clerk.recall(AnswerGiven, side=side, round=number)
        if answered is None:
            answer = await self.proposer.answer(asked.question)
            answered = await self.clerk.note(
                AnswerGiven, side=side, round=number, answer=answer.value, call=answer.call
            )
        return Exchange(asked.question, answered.answer)

    async def _summarise(self, number: int, history: Sequence[Exchange], previous: float | None) -> Argument:
        side = self.advocate.side
        known = self.clerk.recall(Summarised, side=side, round=number)
        if known is not None:
            return Argument(summary=known.summary, justification=known.justification)
        said = await self.advocate.summarise(history)
        bits = entropy(said.value.summary)
        await self.clerk.note(
            Summarised,
            side=side,
            round=number,
            summary=said.value.summary,
            justification=said.value.justification,
            entropy=bits,
            entropy_change=None if previous is None else abs(bits - previous),
            call=said.call,
        )
        return said.value

    async def _rest(self, argument: Argument, rounds: int, reason: RestReason) -> SideCase:
        side = self.advocate.side
        rested = self.clerk.recall(SideRested, side=side)
        if rested is None:
            rested = await self.clerk.note(SideRested, side=side, rounds=rounds, reason=reason)
        return SideCase(argument, rested.rounds, rested.reason)
