"""The full procedure: description, examination by both sides at once, precedents, judgment (docs/trials.md)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from court import judgment
from court.deadline import completed, gather_or_cancel
from court.errors import Overrun
from court.events import Described, GuardHeard, PrecedentsCited, Side, TextRead
from court.evidence import Evidence
from court.examination import Examination, SideCase
from court.guard import Guard, opinion_words
from court.meme import Frame
from court.messages import AdvocateBrief, Exhibit, JudgeBrief
from court.policy import Policy
from court.precedents import Vote
from court.recorder import Recorder
from court.roles import Advocate, Judge, Proposer, RoleModel, RoleModels, Speaker
from court.settings import TrialSettings
from court.untrusted import Fence

_GRACE_S = 0.15  # after the deadline: later than a model's own, which says better what it was that took so long


@dataclass(frozen=True, slots=True, kw_only=True)
class FullTrial:
    """One full trial.

    Attributes:
        evidence: The meme, its text and precedents; with the trial's settings, recorder and deadline.
        models: One chat model per role.
        policy: Policy that defines harm.
        fence: Around everything that strangers wrote.
    """

    evidence: Evidence
    models: RoleModels
    policy: Policy
    fence: Fence

    async def run(self, text: TextRead | None = None) -> None:
        """Tries the meme, up to the recorded verdict.

        Args:
            text: The meme's text, where a cascade has read it already and has looked for near duplicates.

        Raises:
            CourtError: A step failed, or the time is over; nothing of the trial runs on.
        """
        deadline = self.evidence.deadline
        try:
            # Every step keeps to the time by itself, and the models do; this is for one that hangs.
            left = None if deadline.left == math.inf else max(deadline.left, 0) + _GRACE_S
            async with asyncio.timeout(left) as clock:
                verdict = await self._verdict(text)
        except TimeoutError:
            if not clock.expired():
                raise
            raise Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0) from None
        # Not under the clock: a verdict that has been recorded is not taken back.
        await judgment.give_verdict(self._recorder, **verdict)

    @property
    def _settings(self) -> TrialSettings:
        return self.evidence.settings

    @property
    def _recorder(self) -> Recorder:
        return self.evidence.recorder

    @property
    def _frames(self) -> tuple[Frame, ...]:
        return self.evidence.meme.picture.frames

    def _speaker(self, model: RoleModel) -> Speaker:
        return Speaker(
            model=model,
            fence=self.fence,
            deadline=self.evidence.deadline,
            reply_chars=self._settings.reply_chars,
        )

    async def _verdict(self, text_read: TextRead | None) -> dict[str, Any]:
        """Values of the verdict's event."""
        proposer = Proposer(self._speaker(self.models.proposer), self._frames)
        self._recorder.step = "description"
        # Neither needs the other: the Proposer never sees the text.
        description, text = await gather_or_cancel(
            self._describe(proposer), completed(text_read) if text_read else self.evidence.text_and_duplicates()
        )
        self._recorder.step = "examination"
        if self._settings.query == "text":
            sides, (exhibits, vote) = await gather_or_cancel(
                self._examine(proposer, text.text, description), self._precedents(text.text)
            )
        else:
            sides = await self._examine(proposer, text.text, description)
            exhibits, vote = await self._precedents("\n".join([text.text, *(side.argument.summary for side in sides)]))
        self._recorder.step = "judgment"
        accuser, defender = (side.argument.justification for side in sides) if sides else ("", "")
        if self._settings.swap_sides:
            accuser, defender = defender, accuser
        heard = await self._hear_guard(text.text, description)
        brief = JudgeBrief(
            pictures=self._frames,
            policy=self.policy,
            fence=self.fence,
            text=text.text,
            description=description,
            accuser=accuser,
            defender=defender,
            exhibits=exhibits,
            vote=vote,
            guard=heard.adapter if heard else "",
            opinion=opinion_words(heard) if heard else "",
            meme_only=self._settings.dull_judge,
        )
        judge = Judge(self._speaker(self.models.judge))
        ruling, odds = await gather_or_cancel(
            judge.rule(brief), judge.odds(brief) if self._settings.score else completed(None)
        )
        cited = self._recorder.recall(PrecedentsCited)
        return {
            "verdict": judgment.verdict_of(
                ruling.value,
                odds=odds,
                vote=vote,
                findings=cited.findings if cited else None,
                sides=sides,
                text=text,
                settings=self._settings,
                guard=heard,
            ),
            "ruling": judgment.on_record(ruling.value, exhibits),
            "odds": odds,
            "call": ruling.call,
        }

    async def _describe(self, proposer: Proposer) -> str:
        if self._settings.dull_judge:
            return ""
        described = self._recorder.recall(Described)
        if described is None:
            reply = await proposer.describe()
            described = await self._recorder.note(Described, description=reply.value, call=reply.call)
        return described.description

    async def _examine(self, proposer: Proposer, text: str, description: str) -> Sequence[SideCase]:
        """The Accuser's case and the Defender's; none where there are no advocates."""
        if not self._settings.advocates or self._settings.dull_judge:
            return ()
        brief = AdvocateBrief(policy=self.policy, fence=self.fence, text=text, description=description)
        return await gather_or_cancel(
            *(
                Examination(
                    advocate=Advocate(self._speaker(model), side, brief, self._settings.stance_at == "start"),
                    proposer=proposer,
                    settings=self._settings,
                    deadline=self.evidence.deadline,
                    recorder=self._recorder,
                    models=self.models,
                ).run()
                for side, model in ((Side.ACCUSER, self.models.accuser), (Side.DEFENDER, self.models.defender))
            )
        )

    async def _hear_guard(self, text: str, description: str) -> GuardHeard | None:
        """The guard's opinion, or that it gave none; None where no guard is to be heard."""
        if self.models.guard is None or self._settings.dull_judge:
            return None
        heard = self._recorder.recall(GuardHeard)
        if heard is None:
            self._recorder.step = "guard"
            guard = Guard(
                speaker=self._speaker(self.models.guard.model),
                guard=self.models.guard,
                frames=self._frames,
                policy=self.policy,
            )
            (event,) = await self._recorder.note_all(await guard.opinion(text, description))
            assert isinstance(event, GuardHeard)
            heard = event
        self._recorder.step = "judgment"
        return heard

    async def _precedents(self, query: str) -> tuple[tuple[Exhibit[Frame], ...], Vote | None]:
        """The precedents as the Judge is shown them, pictures and all, and their vote; none where there are none."""
        if not self._settings.precedents or self._settings.dull_judge:
            return (), None
        findings, vote = await self.evidence.precedents(query)
        shown = findings.exhibits
        pictures = await self.evidence.pictures([precedent.id for precedent in shown]) if shown else ()
        return tuple(Exhibit(precedent, frame) for precedent, frame in zip(shown, pictures, strict=True)), vote
