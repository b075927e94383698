"""One side's examination of the Proposer: the ChatCaptioner loop with the entropy stop (Algorithm 1; docs/trials.md).

``for r = 1 … R_max: q_r = ask(H, D, T); a_r = answer(q_r, G); H += (q_r, a_r); S_r = summarise(H)``; it ends when
``r >= R_min`` and ``|Entropy(S_r) - Entropy(S_{r-1})| < epsilon``.

Asking reads the history and not the summary. So while ``S_r`` is written the next questions can already be asked,
answered and summed up; where ``S_r`` then ends the examination, all that is cancelled, and what was said of it stays on
record as said, outside the rounds that count. The longest chain is ``R (q + a) + s`` that way; with only one question
ahead it would be ``q + a + R s`` wherever a summary takes longer than question and answer, and it does: it is the
longest reply of the three.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from court.deadline import Deadline, completed
from court.events import AnswerGiven, QuestionAsked, QuestioningEnd, SideRested, Summarised, SummarisedAhead
from court.messages import Exchange
from court.recorder import Recorder
from court.replies import Argument, ArgumentOnClaim
from court.roles import Advocate, Proposer, RoleModels, RoleReply
from court.settings import TrialSettings

History = tuple[Exchange, ...]
_Summary = RoleReply[Argument] | Summarised
"""One that was just written, or one that a trial which was cut off has on record."""

_CALLS_BEFORE_VERDICT = 2  # this side's last summary and the Judge's ruling, one after the other
_CALLS_OF_A_ROUND = 3
_AHEAD = 3
"""Rounds that may be under way beyond the last one that is known to be needed: a summary as long as three questions and
answers costs no waiting, and the stop never makes more superfluous than these."""


@dataclass(frozen=True, slots=True)
class SideCase:
    """Case of one side before the Judge.

    Attributes:
        argument: Its last summary and justification.
        rounds: Number of rounds that count.
        reason: Why it rested.
    """

    argument: Argument
    rounds: int
    reason: QuestioningEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One side's examination.

    Attributes:
        advocate: Asks the questions.
        proposer: Answers them; None where there is no picture to ask about, and so no question.
        settings: R_min, R_max, epsilon and what else there is.
        deadline: Time that is left of the trial.
        recorder: Records events, and finds those of a trial that was cut off.
        models: The trial's models; while one has no room, no call is made that may turn out to be superfluous.
        claimed: Is called when a summary that counts rests on a claim of fact; None where sides are not asked for one.
    """

    advocate: Advocate
    proposer: Proposer | None
    settings: TrialSettings
    deadline: Deadline
    recorder: Recorder
    models: RoleModels
    claimed: Callable[[], None] | None = None

    async def run(self) -> SideCase:
        """Examines until there is nothing new, no round or no time left.

        Raises:
            ReplyUnusable, Unavailable, ModelRefused: A step failed, and with it the examination.
        """
        if self.proposer is None or not self.settings.captioner:
            argument = await self._summarised(0, await self._summary(0, (), ahead=lambda: False), None)
            return await self._stop(argument, 0, QuestioningEnd.NO_EXAMINATION)

        # A side that had rested before the trial was cut off must not begin a further round.
        rested = self.recorder.recall(SideRested, side=self.advocate.side)
        last = rested.rounds if rested else self.settings.rounds_max
        gone_on = [asyncio.Event() for _ in range(last)]  # after round 0, which is none, after round 1 …
        gone_on[0].set()
        histories: list[asyncio.Task[History]] = []
        summaries: list[asyncio.Task[_Summary]] = []
        for number in range(1, last + 1):
            histories.append(
                asyncio.create_task(self._run_round(number, histories[-1] if histories else completed(()), gone_on))
            )
            # Before the next round's: what is needed is sent before what may be superfluous.
            summaries.append(asyncio.create_task(self._sum_up(number, histories[-1], gone_on)))
        try:
            previous: float | None = None
            for number, summary in enumerate(summaries, 1):
                argument = await self._summarised(number, await summary, previous)
                bits = entropy(argument.summary)
                change = None if previous is None else abs(bits - previous)
                # Round 1 has no summary before it to differ from: it ends no examination, not even with rounds_min = 1.
                if number >= self.settings.rounds_min and change is not None and change < self.settings.epsilon:
                    return await self._stop(argument, number, QuestioningEnd.CONVERGED)
                # Before the check of the time, for the last round needs no time for another one.
                if number == last:
                    return await self._stop(argument, number, QuestioningEnd.ROUND_LIMIT)
                if not self._time_for_a_round():
                    return await self._stop(argument, number, QuestioningEnd.TIME)
                gone_on[number].set()
                previous = bits
            raise AssertionError("unreachable: the last round returns")
        finally:
            for task in (*histories, *summaries):
                task.cancel()
            # Their errors, if they have any, are nobody's any more: the examination has ended without them.
            await asyncio.gather(*histories, *summaries, return_exceptions=True)

    async def _run_round(self, number: int, before: Awaitable[History], gone_on: Sequence[asyncio.Event]) -> History:
        """The history with a round's question and answer."""
        history = await before
        await self._turn(number, gone_on)
        return (*history, await self._exchange(number, history, lambda: _progress(number, gone_on)))

    async def _sum_up(self, number: int, hearing: Awaitable[History], gone_on: Sequence[asyncio.Event]) -> _Summary:
        history = await hearing
        await self._turn(number, gone_on)
        return await self._summary(
            number,
            history,
            # Evaluated when the reply is there: the round may have become necessary while its summary was written.
            ahead=lambda: not gone_on[number - 1].is_set(),
            progress=lambda: _progress(number, gone_on),
        )

    async def _turn(self, number: int, gone_on: Sequence[asyncio.Event]) -> None:
        """Waits until a round is known to be needed, or may be held ahead."""
        if self.settings.overlap:
            await gone_on[max(0, number - 1 - _AHEAD)].wait()
        # Checked once: a round that finds no room now waits until it is needed, even if room appears meanwhile. That
        # costs some overlap and spares a loop that polls the server's load.
        needed = gone_on[number - 1]
        if not (needed.is_set() or self._may_ask_ahead()):
            await needed.wait()

    def _may_ask_ahead(self) -> bool:
        return self.settings.overlap and self._time_for_a_round() and self.models.room()

    def _time_for_a_round(self) -> bool:
        # With the calls that must follow: a round that leaves no time for the verdict would cost the whole trial.
        return self.deadline.allows(_CALLS_OF_A_ROUND + _CALLS_BEFORE_VERDICT)

    async def _exchange(self, number: int, history: Sequence[Exchange], progress: Callable[[], int]) -> Exchange:
        side = self.advocate.side
        question_event = self.recorder.recall(QuestionAsked, side=side, round=number)
        if question_event is None:
            question = await self.advocate.ask(history, progress=progress())
            question_event = await self.recorder.note(
                QuestionAsked, side=side, round=number, question=question.value, call=question.call
            )
        answered = self.recorder.recall(AnswerGiven, side=side, round=number)
        if answered is None:
            assert self.proposer is not None, "without one, nothing is asked"
            answer = await self.proposer.answer(question_event.question, side=side, number=number, progress=progress())
            answered = await self.recorder.note(
                AnswerGiven, side=side, round=number, answer=answer.value, call=answer.call
            )
        return Exchange(question_event.question, answered.answer)

    async def _summary(
        self,
        number: int,
        history: Sequence[Exchange],
        *,
        ahead: Callable[[], bool],
        progress: Callable[[], int] = lambda: 0,
    ) -> _Summary:
        """A summary, which is kept at once where its turn has not come: a crash must not cost it."""
        side = self.advocate.side
        # First: a round that counts may have both events on record, and then it must not be recorded again.
        if known := self.recorder.recall(Summarised, side=side, round=number):
            return known
        if early := self.recorder.recall(SummarisedAhead, side=side, round=number):
            return RoleReply(_argument(early), early.call)
        summary = await self.advocate.summarise(history, progress=progress())
        if ahead():
            argument = summary.value
            await self.recorder.note(
                SummarisedAhead,
                side=side,
                round=number,
                summary=argument.summary,
                justification=argument.justification,
                claim=_claim(argument),
                call=summary.call,
            )
        return summary

    async def _summarised(self, number: int, summary: _Summary, previous: float | None) -> Argument:
        """Keeps a summary: in the order of rounds, in whatever order they were written."""
        # Of rounds that count alone: a trial that is held again has no others.
        claim = summary.claim if isinstance(summary, Summarised) else _claim(summary.value)
        if claim and self.claimed is not None:
            self.claimed()
        if isinstance(summary, Summarised):
            return _argument(summary)
        bits = entropy(summary.value.summary)
        await self.recorder.note(
            Summarised,
            side=self.advocate.side,
            round=number,
            summary=summary.value.summary,
            justification=summary.value.justification,
            entropy=bits,
            entropy_change=None if previous is None else abs(bits - previous),
            claim=claim,
            call=summary.call,
        )
        return summary.value

    async def _stop(self, argument: Argument, rounds: int, reason: QuestioningEnd) -> SideCase:
        side = self.advocate.side
        # A resumed examination ends at the recorded round as if at its limit; the reason on record is the true one.
        rested = self.recorder.recall(SideRested, side=side)
        if rested is None:
            rested = await self.recorder.note(SideRested, side=side, rounds=rounds, reason=reason)
        return SideCase(argument, rested.rounds, rested.reason)


def _argument(event: Summarised | SummarisedAhead) -> Argument:
    return ArgumentOnClaim(summary=event.summary, justification=event.justification, claim=event.claim)


def _claim(argument: Argument) -> str:
    return argument.claim.strip() if isinstance(argument, ArgumentOnClaim) else ""


def _progress(number: int, gone_on: Sequence[asyncio.Event]) -> int:
    """Rank of a round's calls: a later one goes first, but one that may be superfluous after all that are needed."""
    # The number of the last round that is needed. A round beyond it ranks as far below it as it is ahead: the farther
    # ahead a call is, the likelier it is superfluous.
    needed = sum(event.is_set() for event in gone_on)
    return min(number, 2 * needed - number)


def entropy(text: str) -> float:
    """Shannon entropy of the characters of ``text``, in bits: ``-sum (n_i / N) log2 (n_i / N)``; 0 for an empty text.

    The measure of the examination's stop (ChatCaptioner procedure; docs/trials.md).
    """
    total = len(text)
    # max(): a text of one repeated character gives -0.0.
    return max(0.0, -sum(n / total * math.log2(n / total) for n in Counter(text).values()))
