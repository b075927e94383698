"""The full procedure: description, examination by both sides at once, precedents, judgment (docs/trials.md)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from court import judgment
from court.deadline import Deadline, completed, gather_or_cancel
from court.errors import Overrun
from court.events import Described, Side, TextRead
from court.examination import Examination, SideCase
from court.meme import Frame, Meme
from court.policy import Policy
from court.precedents import Findings, Vote
from court.recorder import Recorder
from court.review_flags import give_verdict
from court.roles import Advocate, Exhibit, Judge, Proposer, RoleModels
from court.settings import TrialSettings
from court.untrusted import Fence

Found = tuple[Findings, Vote | None]

_GRACE_S = 0.15  # after the deadline: later than a model's own, which says better what it was that took so long


@dataclass(frozen=True, slots=True)
class Known:
    """What a cascade has found before it comes to a full trial."""

    text: TextRead
    findings: Findings
    vote: Vote | None


@dataclass(frozen=True, slots=True)
class FullTrial:
    """One full trial.

    Attributes:
        meme: What is tried.
        chairs: Who speaks.
        settings: How.
        policy: What counts as harm.
        fence: Around everything that strangers wrote.
        budget: What the caller's deadline leaves.
        clerk: Keeps the record.
        room: Whether the model server has room for a call that may turn out to be superfluous.
        read_text: Reads the meme's text, and keeps it.
        find: Finds precedents for a query, and keeps them.
        pictures: Pictures of precedents by their ids.
    """

    meme: Meme
    chairs: RoleModels
    settings: TrialSettings
    policy: Policy
    fence: Fence
    budget: Deadline
    clerk: Recorder
    room: Callable[[], bool]
    read_text: Callable[[], Coroutine[Any, Any, TextRead]]
    find: Callable[[str], Coroutine[Any, Any, Found]]
    pictures: Callable[[Sequence[str]], Coroutine[Any, Any, Sequence[Frame | None]]]

    async def hold(self, known: Known | None) -> None:
        """Holds it, up to the verdict.

        Args:
            known: What has been found already, or None.

        Raises:
            CourtError: A step failed, or the time is over; nothing of the trial runs on.
        """
        try:
            # Every step keeps to the time by itself, and the models do; this is for one that hangs.
            left = None if self.budget.left == math.inf else max(self.budget.left, 0) + _GRACE_S
            async with asyncio.timeout(left) as clock:
                given = await self._hold(known)
        except TimeoutError:
            if not clock.expired():
                raise
            raise Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0) from None
        # Not under the clock: a verdict that has been kept is not taken back.
        await give_verdict(self.clerk, **given)

    async def _hold(self, known: Known | None) -> dict[str, Any]:
        """What the verdict's event says."""
        proposer = Proposer(
            self.chairs.proposer, self.fence, self.budget, self.settings.reply_chars, self.meme.picture.frames
        )
        self.clerk.step = "description"
        # Neither needs the other: the Proposer never sees the text.
        description, text = await gather_or_cancel(
            self._describe(proposer), completed(known.text) if known else self.read_text()
        )
        self.clerk.step = "examination"
        if self.settings.query == "text":
            sides, (exhibits, held) = await gather_or_cancel(
                self._examine(proposer, text.text, description), self._search(text.text, known)
            )
        else:
            sides = await self._examine(proposer, text.text, description)
            query = "\n".join([text.text, *(side.argument.summary for side in sides)])
            exhibits, held = await self._search(query, known)
        self.clerk.step = "judgment"
        return await self._judge(text, description, sides, exhibits, held)

    async def _describe(self, proposer: Proposer) -> str:
        if self.settings.dull_judge:
            return ""
        described = self.clerk.recall(Described)
        if described is None:
            said = await proposer.describe()
            described = await self.clerk.note(Described, description=said.value, call=said.call)
        return described.description

    async def _examine(self, proposer: Proposer, text: str, description: str) -> Sequence[SideCase]:
        """The Accuser's case and the Defender's; none where there are no advocates."""
        if not self.settings.advocates or self.settings.dull_judge:
            return ()
        stanced = self.settings.stance_at == "start"
        sides = ((Side.ACCUSER, self.chairs.accuser), (Side.DEFENDER, self.chairs.defender))
        return await gather_or_cancel(
            *(
                Examination(
                    Advocate(
                        chair,
                        self.fence,
                        self.budget,
                        self.settings.reply_chars,
                        side,
                        self.policy,
                        text,
                        description,
                        stanced,
                    ),
                    proposer,
                    self.settings,
                    self.budget,
                    self.clerk,
                    self.room,
                ).hold()
                for side, chair in sides
            )
        )

    async def _search(self, query: str, known: Known | None) -> tuple[tuple[Exhibit, ...], Vote | None]:
        """The precedents as the Judge is shown them, pictures and all, and their vote; none where there are none."""
        if not self.settings.precedents or self.settings.dull_judge:
            return (), None
        if known is not None and self.settings.query == "text":
            findings, held = known.findings, known.vote
        else:
            findings, held = await self.find(query)
        shown = findings.exhibits
        pictures = await self.pictures([precedent.id for precedent in shown]) if shown else ()
        return tuple(Exhibit(precedent, frame) for precedent, frame in zip(shown, pictures, strict=True)), held

    async def _judge(
        self,
        text: TextRead,
        description: str,
        sides: Sequence[SideCase],
        exhibits: tuple[Exhibit, ...],
        held: Vote | None,
    ) -> dict[str, Any]:
        accuser, defender = (side.argument.justification for side in sides) if sides else ("", "")
        if self.settings.swap_sides:
            accuser, defender = defender, accuser
        judge = Judge(
            self.chairs.judge,
            self.fence,
            self.budget,
            self.settings.reply_chars,
            self.meme.picture.frames,
            self.policy,
            text.text,
            description,
            accuser,
            defender,
            exhibits,
            held,
            self.settings.dull_judge,
        )
        said, odds = await gather_or_cancel(judge.rule(), judge.odds() if self.settings.score else completed(None))
        return {
            "verdict": judgment.verdict_of(said.value, odds, held, sides, text, self.settings),
            "ruling": judgment.on_record(said.value, exhibits),
            "odds": odds,
            "call": said.call,
        }
