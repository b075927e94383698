"""One side's examination of the Proposer: the ChatCaptioner loop with the entropy stop (Algorithm 1).

``for r = 1 … R_max: q_r = ask(H, D, T); a_r = answer(q_r, G); H += (q_r, a_r); S_r = summarise(H)``; it ends when
``r >= R_min`` and ``|Entropy(S_r) - Entropy(S_{r-1})| < epsilon``.

A question depends on the history and not on the summary. So while ``S_r`` is being written, the next questions can
already be asked, answered and summarised. If ``S_r`` then ends the examination, that work is cancelled; replies already
received stay on record, outside the rounds that count. This makes the longest chain of calls ``R (q + a) + s``. With
only one question ahead it would be ``q + a + R s`` whenever a summary takes longer than question and answer, and it
does: it is the longest reply of the three.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from court.checks import is_cut
from court.deadline import Deadline, cancel_all, completed
from court.events import (
    AnswerGiven,
    CheckFailed,
    QuestionAsked,
    QuestioningEnd,
    SideRested,
    Summarised,
    SummarisedAhead,
    SummaryEvent,
)
from court.messages import Exchange
from court.recorder import Recorder
from court.replies import StatedArgument
from court.roles import Advocate, Proposer, RoleModels, RoleReply
from court.settings import TrialSettings

History = tuple[Exchange, ...]
_Summary = RoleReply[StatedArgument] | Summarised
"""A new summary, or one on record from before the trial was interrupted."""

_CALLS_BEFORE_VERDICT = 2  # this side's last summary and the Judge's ruling, in sequence
_CALLS_OF_A_ROUND = 3
_MAX_ROUNDS_AHEAD = 3
"""Maximum number of speculative rounds beyond the last one known to be needed: enough to hide a summary as long as
three questions and answers, and a bound on the rounds that are wasted when the examination stops."""


@dataclass(frozen=True, slots=True)
class SideCase:
    """Case of one side before the Judge."""

    argument: StatedArgument
    rounds: int
    reason: QuestioningEnd
    failed: tuple[CheckFailed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One side's examination.

    Attributes:
        models: Models of the trial; no speculative call is made while one of them has no spare capacity.
    """

    advocate: Advocate
    proposer: Proposer | None
    settings: TrialSettings
    deadline: Deadline
    recorder: Recorder
    models: RoleModels
    claimed: Callable[[], None] | None = None

    async def run(self) -> SideCase:
        """Runs rounds until the summary converges, or until rounds or time run out.

        Raises:
            ReplyUnusable, Unavailable, ModelRefused: A step failed, which ends the examination.
        """
        if self.proposer is None or not self.settings.captioner:
            argument = await self._record_summary(0, await self._summary(0, (), ahead=lambda: False), None)
            return await self._stop(argument, 0, QuestioningEnd.NO_EXAMINATION)

        # A side that had stopped asking before the trial was interrupted must not begin another round.
        rested_event = self.recorder.find(SideRested, side=self.advocate.side)
        last = rested_event.rounds if rested_event else self.settings.rounds_max
        needed_rounds = [asyncio.Event() for _ in range(last)]  # after round 0, which is none, after round 1 …
        needed_rounds[0].set()
        histories: list[asyncio.Task[History]] = []
        summaries: list[asyncio.Task[_Summary]] = []
        for number in range(1, last + 1):
            histories.append(
                asyncio.create_task(
                    self._run_round(number, histories[-1] if histories else completed(()), needed_rounds)
                )
            )
            # Created before the next round's tasks, so that needed calls are sent before speculative ones.
            summaries.append(asyncio.create_task(self._summarise_round(number, histories[-1], needed_rounds)))
        try:
            previous: float | None = None
            for number, summary in enumerate(summaries, 1):
                argument = await self._record_summary(number, await summary, previous)
                bits = self._entropy_if_whole(argument.summary)
                change = None if previous is None or bits is None else abs(bits - previous)
                # Round 1 has no earlier summary to compare with, so it never ends the examination, even with rounds_min
                # = 1.
                if number >= self.settings.rounds_min and change is not None and change < self.settings.epsilon:
                    return await self._stop(argument, number, QuestioningEnd.CONVERGED)
                # Checked before the time, as the last round needs no time for another one.
                if number == last:
                    return await self._stop(argument, number, QuestioningEnd.ROUND_LIMIT)
                if not self._has_time_for_round():
                    return await self._stop(argument, number, QuestioningEnd.TIME)
                needed_rounds[number].set()
                previous = bits
            raise AssertionError("unreachable: the last round returns")
        finally:
            await cancel_all(*histories, *summaries)  # the examination has ended without them

    async def _run_round(
        self, number: int, before: Awaitable[History], needed_rounds: Sequence[asyncio.Event]
    ) -> History:
        """Returns the history extended by this round's question and answer."""
        history = await before
        await self._wait_for_turn(number, needed_rounds)
        return (*history, await self._exchange(number, history, lambda: _progress(number, needed_rounds)))

    async def _summarise_round(
        self, number: int, history_task: Awaitable[History], needed_rounds: Sequence[asyncio.Event]
    ) -> _Summary:
        history = await history_task
        await self._wait_for_turn(number, needed_rounds)
        return await self._summary(
            number,
            history,
            # Evaluated once the reply has arrived: the round may have become necessary in the meantime.
            ahead=lambda: not needed_rounds[number - 1].is_set(),
            progress=lambda: _progress(number, needed_rounds),
        )

    async def _wait_for_turn(self, number: int, needed_rounds: Sequence[asyncio.Event]) -> None:
        """Waits until a round is known to be needed, or may run speculatively."""
        if self.settings.overlap:
            await needed_rounds[max(0, number - 1 - _MAX_ROUNDS_AHEAD)].wait()
        # Checked once: a round that finds no spare capacity now waits until it is needed, even if capacity appears
        # meanwhile. That costs some overlap and avoids polling the server's load.
        needed = needed_rounds[number - 1]
        if not needed.is_set() and not (self.settings.overlap and self._has_time_for_round() and self.models.room()):
            await needed.wait()

    def _has_time_for_round(self) -> bool:
        # Includes the calls that must follow: a round that leaves no time for the verdict would fail the whole trial.
        return self.deadline.allows(_CALLS_OF_A_ROUND + _CALLS_BEFORE_VERDICT)

    async def _exchange(self, number: int, history: Sequence[Exchange], progress: Callable[[], int]) -> Exchange:
        side = self.advocate.side
        question_event = self.recorder.find(QuestionAsked, side=side, round=number)
        if question_event is None:
            question = await self.advocate.ask(history, progress=progress())
            question_event = await self.recorder.record(
                QuestionAsked, side=side, round=number, question=question.value, call=question.call
            )
        answer_event = self.recorder.find(AnswerGiven, side=side, round=number)
        if answer_event is None:
            assert self.proposer is not None, "without one, nothing is asked"
            answer = await self.proposer.answer(question_event.question, side=side, number=number, progress=progress())
            answer_event = await self.recorder.record(
                AnswerGiven, side=side, round=number, answer=answer.value, call=answer.call
            )
        return Exchange(question_event.question, answer_event.answer)

    async def _summary(
        self,
        number: int,
        history: Sequence[Exchange],
        *,
        ahead: Callable[[], bool],
        progress: Callable[[], int] = lambda: 0,
    ) -> _Summary:
        """Returns the summary of a round; a speculative one is recorded at once, so that a crash does not lose it."""
        side = self.advocate.side
        # Checked first: a round that counts may have both events on record, and must not be recorded again.
        if known := self.recorder.find(Summarised, side=side, round=number):
            return known
        if early := self.recorder.find(SummarisedAhead, side=side, round=number):
            return RoleReply(_argument(early), early.call)
        summary = await self.advocate.summarise(history, progress=progress())
        if ahead():
            values = summary.value.model_dump()
            await self.recorder.record(SummarisedAhead, side=side, round=number, call=summary.call, **values)
        return summary

    async def _record_summary(self, number: int, summary: _Summary, previous: float | None) -> StatedArgument:
        """Records a summary that counts, in the order of rounds, and returns its argument."""
        # Only claims of rounds that count, so that a replayed trial, which has no others, behaves the same.
        argument = _argument(summary) if isinstance(summary, Summarised) else summary.value
        if argument.claim and self.claimed is not None:
            self.claimed()
        if isinstance(summary, Summarised):
            return argument
        bits = entropy(argument.summary)
        whole = self._entropy_if_whole(argument.summary) is not None
        await self.recorder.record(
            Summarised,
            side=self.advocate.side,
            round=number,
            entropy=bits,
            entropy_change=abs(bits - previous) if previous is not None and whole else None,
            call=summary.call,
            **argument.model_dump(),
        )
        return argument

    async def _stop(self, argument: StatedArgument, rounds: int, reason: QuestioningEnd) -> SideCase:
        side = self.advocate.side
        # A resumed examination ends at the recorded round as if at its limit; the reason on record is the actual one.
        rested_event = self.recorder.find(SideRested, side=side)
        if rested_event is None:
            rested_event = await self.recorder.record(SideRested, side=side, rounds=rounds, reason=reason)
        history = [
            Exchange("", answered.answer)
            for number in range(1, rested_event.rounds + 1)
            if (answered := self.recorder.find(AnswerGiven, side=side, round=number))
        ]
        failed = self.advocate.check(argument, history)
        return SideCase(argument, rested_event.rounds, rested_event.reason, failed)

    def _entropy_if_whole(self, summary: str) -> float | None:
        """Returns the entropy of a summary; None if it was cut off, since its end says nothing about convergence."""
        cut = self.settings.mistrials and is_cut(summary, self.settings.reply_chars)
        return None if cut else entropy(summary)


def _argument(event: SummaryEvent) -> StatedArgument:
    return StatedArgument(**event.model_dump(include=set(StatedArgument.model_fields)))


def _progress(number: int, needed_rounds: Sequence[asyncio.Event]) -> int:
    """Rank of a round's calls: later rounds go first, but speculative rounds after all needed ones."""
    # Number of the last needed round. A speculative round ranks as far below it as it is ahead: the farther ahead a
    # call is, the more likely it is wasted.
    needed = sum(event.is_set() for event in needed_rounds)
    return min(number, 2 * needed - number)


def entropy(text: str) -> float:
    """Shannon entropy of the characters of ``text``, in bits, ``-sum (n_i / N) log2 (n_i / N)``; 0 for none."""
    total = len(text)
    # max(): a text of one repeated character gives -0.0.
    return max(0.0, -sum(n / total * math.log2(n / total) for n in Counter(text).values()))
