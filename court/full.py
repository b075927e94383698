"""The full procedure: description, concurrent examination by both sides, precedents, judgment.

If only a text was sent, there is nothing for the Proposer to describe or answer questions about: it is not called, each
side argues once from the text, and the Judge is told that there is no picture.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from court import judgment
from court.audition import Calibration, Weighed
from court.checks import is_mistrial, of_description, of_odds, of_sides
from court.deadline import completed, gather_or_cancel
from court.errors import BadText, Overrun
from court.events import (
    CheckFailed,
    Described,
    GuardHeard,
    JudgeRuled,
    OddsGiven,
    PrecedentsCited,
    Side,
    TextRead,
    TrialChecked,
)
from court.evidence import Evidence
from court.examination import Examination, SideCase
from court.expert.findings import Testimony
from court.expert.witness import ExpertWitness, asks_for_claims, may_be_called
from court.guard import GuardWitness
from court.judgment import Opinion, spokesman_of
from court.meme import Frame
from court.messages import AdvocateBrief, Exhibit, JudgeBrief
from court.policy import Policy
from court.ports import EvidenceSource
from court.precedents import Precedent, Vote
from court.prompts import Fence, PromptSet
from court.prompts.sets import packaged
from court.recorded_case import RecordedCase
from court.recorder import EventDraft, Recorder
from court.replies import RulingReply
from court.roles import Advocate, Judge, Proposer, RoleModel, RoleModels, RoleReply, Speaker, check_ruling
from court.settings import TrialSettings
from court.summary import precedents_for

_GRACE_S = 0.15  # after the deadline: later than a model's own, which says better what it was that took so long


@dataclass(frozen=True, slots=True)
class _Expert:
    called: asyncio.Event
    due: Callable[[], Awaitable[Testimony | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullTrial:
    """One full trial."""

    evidence: Evidence
    models: RoleModels
    policy: Policy
    fence: Fence
    batch: bool = False
    prompts: PromptSet = field(default_factory=packaged)
    source: EvidenceSource | None = None
    calibration: Calibration | None = None

    async def run(self, text: TextRead | None = None) -> None:
        """Tries the meme, up to the recorded verdict; ``text`` if a cascade has already read it.

        Raises:
            CourtError: A step failed or the deadline passed; no task of the trial is left running.
        """
        deadline = self.evidence.deadline
        try:
            # Steps and model calls enforce the deadline themselves; this is a safety net for one that hangs.
            left = None if deadline.left == math.inf else max(deadline.left, 0) + _GRACE_S
            async with asyncio.timeout(left) as clock:
                verdict = await self._verdict(text)
        except TimeoutError:
            # A TimeoutError raised within a step is that step's error, not the deadline.
            if not clock.expired():
                raise
            raise Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0) from None
        # Outside the timeout: a verdict that has been recorded is not taken back.
        checked = verdict.pop("checked")
        checked["mistrial"] = is_mistrial(checked["failed"], self._settings)
        await judgment.give_verdict(
            self._recorder, *([EventDraft(TrialChecked, checked)] if any(checked.values()) else []), **verdict
        )

    @property
    def _settings(self) -> TrialSettings:
        return self.evidence.settings

    @property
    def _recorder(self) -> Recorder:
        return self.evidence.recorder

    @property
    def _frames(self) -> tuple[Frame, ...]:
        return self.evidence.meme.frames if self._settings.pictures_shown else ()

    def _speaker(self, model: RoleModel) -> Speaker:
        return Speaker(
            model=model,
            fence=self.fence,
            deadline=self.evidence.deadline,
            reply_chars=self._settings.reply_chars,
            batch=self.batch,
            prompts=self.prompts,
            repairs=self._settings.mistrials,
        )

    async def _verdict(self, text_read: TextRead | None) -> dict[str, Any]:
        proposer = Proposer(self._speaker(self.models.proposer), self._frames) if self._frames else None
        self._recorder.step = "description"
        # Independent of each other: the Proposer never sees the text.
        description, text = await gather_or_cancel(
            self._describe(proposer), completed(text_read) if text_read else self.evidence.text_and_duplicates()
        )
        # A debate about nothing would end in a label all the same.
        if not self._frames and not text.text.strip():
            raise BadText(
                "There is no text on this picture, and the models of this court see nothing else of it (trial.input).",
                reason="TEXT_MISSING",
            )
        async with self._expert(text.text, description) as expert:
            return await self._judge(proposer, text, description, expert, in_cascade=text_read is not None)

    async def _judge(
        self, proposer: Proposer | None, text: TextRead, description: str | None, expert: _Expert, *, in_cascade: bool
    ) -> dict[str, Any]:
        """Runs the trial from the examination on and returns the fields of the verdict's event."""
        self._recorder.step = "examination"
        unheard: OddsGiven | None = None
        if self._settings.advocates_see != "none":
            # Advocates that see precedents have to wait for them, so search and examination can't run concurrently.
            exhibits, vote = await self._precedents(text.text)
            sides = await self._examine(proposer, text, description, expert.called)
        elif self._settings.query == "text":
            sides, (exhibits, vote, unheard) = await gather_or_cancel(
                self._examine(proposer, text, description, expert.called), self._precedents_unheard(text.text)
            )
        else:
            sides = await self._examine(proposer, text, description, expert.called)
            summaries = [side.argument.summary for side in sides]
            # Without advocates there are no summaries to search by.
            known = [text.text] if self._settings.query == "text and summaries" or not summaries else []
            exhibits, vote = await self._precedents("\n".join([*known, *summaries]))
        self._recorder.step = "judgment"
        # Asked before the witness is stopped, so that it can use the time of this call.
        opinion = await self._ask_guard(text.text, description)
        testimony = await expert.due()
        # What the Judge is shown is what was recorded before.
        brief = self._brief(exhibits)
        cited = self._recorder.find(PrecedentsCited)
        evidence: dict[str, Any] = {
            # Also a vote that the Judge is not shown: if it contradicts the Judge, the verdict still needs review.
            "vote": vote,
            "findings": cited.findings if cited else None,
            # Only a cascade passes a text in; the vote is then that of its summary.
            "prior": cited.vote if cited and in_cascade else None,
            "sides": sides,
            "text": text,
            "settings": self._settings,
            "guard": opinion,
            "testimony": testimony,
            "facts": self.policy.turns_on_facts,
            "unseen": self.evidence.meme.picture is not None and not self._settings.pictures_shown,
        }
        panel = self.models.panel(self._settings.judges)
        opinions: Sequence[Opinion]
        # Beside the ruling, whose prefix the requests for odds share.
        if len(panel) > 1:
            opinions, supports = await gather_or_cancel(
                gather_or_cancel(*(self._rule(number, model, brief) for number, model in enumerate(panel, 1))),
                self._supports(brief, sides),
            )
            spokesman = spokesman_of(opinions)
            own: dict[str, Any] = {"judge": spokesman + 1}
        else:
            (reply, odds), supports = await gather_or_cancel(
                self._ask_judge(Judge(self._speaker(self.models.judge)), brief), self._supports(brief, sides)
            )
            opinions, spokesman, own = [Opinion(reply.value, odds)], 0, {"odds": odds, "call": reply.call}
        ruling = opinions[spokesman].ruling
        failed = self._failed(ruling, brief, sides, description=description, supports=supports)
        weighed = self._weighed(opinions, unheard, vote, failed)
        return {
            "verdict": judgment.verdict_of(opinions, failed=failed, weighed=weighed, **evidence),
            "weighed": weighed,
            "checked": {"failed": failed, "unheard": unheard, "supports": supports},
            "ruling": judgment.on_record(ruling, exhibits),
            **own,
        }

    def _failed(
        self,
        ruling: RulingReply,
        brief: JudgeBrief[Frame],
        sides: Sequence[SideCase],
        *,
        description: str | None,
        supports: Mapping[Side, OddsGiven],
    ) -> tuple[CheckFailed, ...]:
        """Returns the checks that failed; none of what the settings leave out of the trial."""
        if self._settings.dull_judge:
            return ()
        return (
            *of_description(description, self._settings.reply_chars),
            *(failed for side in sides for failed in side.failed),
            *(failed for side, odds in supports.items() for failed in of_odds(side, odds)),
            *(of_sides(*(side.argument.justification for side in sides)) if sides else ()),
            *check_ruling(ruling, brief, self._settings.reply_chars),
        )

    def _weighed(
        self, opinions: Sequence[Opinion], unheard: OddsGiven | None, vote: Vote | None, failed: Sequence[CheckFailed]
    ) -> Weighed | None:
        """Returns the evidence as an audition weighs it; None where none holds, or evidence is missing."""
        if self.calibration is None:
            return None
        least = self._settings.least_label_mass
        return self.calibration.of(
            before=judgment.score_of(unheard, least),
            after=judgment.mean_score(opinions, least),
            vote=vote.probability if vote else None,
            failed=len({each.check for each in failed}),
        )

    async def _precedents_unheard(self, query: str) -> tuple[tuple[Exhibit[Frame], ...], Vote | None, OddsGiven | None]:
        """Returns precedents and vote, and the odds before the sides are heard, if the settings ask for them."""
        exhibits, vote = await self._precedents(query)
        if not self._settings.probes or self._settings.dull_judge:
            return exhibits, vote, None
        brief = self._brief(exhibits)
        return exhibits, vote, await Judge(self._speaker(self.models.judge)).probe(brief, None)

    async def _supports(self, brief: JudgeBrief[Frame], sides: Sequence[SideCase]) -> dict[Side, OddsGiven]:
        """Returns the odds of what each side's argument supports, if the settings ask for them."""
        # Under the other side's name an argument is no longer its own.
        if not (self._settings.probes and sides) or self._settings.swap_sides:
            return {}
        judge = Judge(self._speaker(self.models.judge))
        odds = await gather_or_cancel(*(judge.probe(brief, side) for side in Side))
        return {side: found for side, found in zip(Side, odds, strict=True) if found is not None}

    def _brief(self, exhibits: Sequence[Exhibit[Frame]]) -> JudgeBrief[Frame]:
        return RecordedCase(self._recorder.trial).judge_brief(
            self._frames,
            {exhibit.precedent.id: exhibit.picture for exhibit in exhibits if exhibit.picture is not None},
            fence=self.fence,
            prompts=self.prompts,
        )

    async def _ask_judge(
        self, judge: Judge, brief: JudgeBrief[Frame]
    ) -> tuple[RoleReply[RulingReply], OddsGiven | None]:
        """Returns a judge's ruling, and the odds of its model if the settings ask for them."""
        # Concurrently, as both share a prompt prefix. They are stored together, so a crash in between loses the first
        # (docs/explanation/full-trial.md).
        return await gather_or_cancel(judge.rule(brief), judge.odds(brief) if self._settings.score else completed(None))

    async def _rule(self, number: int, model: RoleModel, brief: JudgeBrief[Frame]) -> Opinion:
        """Returns the opinion of one judge of a panel, and records it as soon as it is known."""
        recorded = self._recorder.find(JudgeRuled, judge=number)
        if recorded is None:
            ruling, odds = await self._ask_judge(Judge(self._speaker(model), number), brief)
            opinion = Opinion(ruling.value, odds)
            recorded = await self._recorder.record(
                JudgeRuled,
                judge=number,
                strengths=opinion.strengths,
                ruling=judgment.on_record(ruling.value, brief.exhibits),
                category=ruling.value.category,
                clause=ruling.value.clause,
                target=ruling.value.target,
                rationale=ruling.value.rationale,
                odds=odds,
                call=ruling.call,
            )
        # Even a new ruling is read back from its event, so that a resumed panel reaches the same verdict.
        return judgment.from_record(recorded)

    async def _describe(self, proposer: Proposer | None) -> str | None:
        """Returns the Proposer's description; None without a picture."""
        if proposer is None:
            return None
        # The Judge of this ablation sees only the meme, so a description would be a wasted call.
        if self._settings.dull_judge:
            return ""
        described = self._recorder.find(Described)
        if described is None:
            reply = await proposer.describe()
            described = await self._recorder.record(Described, description=reply.value, call=reply.call)
        return described.description

    async def _examine(
        self, proposer: Proposer | None, text: TextRead, description: str | None, called: asyncio.Event
    ) -> Sequence[SideCase]:
        """Returns the cases of Accuser and Defender; empty without advocates."""
        if not self._settings.advocates or self._settings.dull_judge:
            return ()
        return await gather_or_cancel(
            *(
                Examination(
                    advocate=Advocate(
                        self._speaker(model),
                        side,
                        AdvocateBrief(
                            policy=self.policy,
                            fence=self.fence,
                            text=text.text,
                            description=description,
                            precedents=self._precedents_for(side),
                            prompts=self.prompts,
                            on_claim=self.models.expert is not None and asks_for_claims(self._settings, self.policy),
                            language=text.language if self._settings.language_shown else "",
                        ),
                        self._settings,
                    ),
                    proposer=proposer,
                    settings=self._settings,
                    deadline=self.evidence.deadline,
                    recorder=self._recorder,
                    models=self.models,
                    claimed=called.set,
                ).run()
                for side, model in ((Side.ACCUSER, self.models.accuser), (Side.DEFENDER, self.models.defender))
            )
        )

    def _precedents_for(self, side: Side) -> tuple[Precedent, ...]:
        """Returns the precedents shown to an advocate; they are on record by now if it is shown any."""
        cited = self._recorder.find(PrecedentsCited)
        if cited is None or not self._settings.precedents:
            return ()
        return precedents_for(side, cited.findings, self._settings)

    @asynccontextmanager
    async def _expert(self, text: str, description: str | None) -> AsyncIterator[_Expert]:
        """Runs the expert witness concurrently with the block; yields a no-op handle if it can't be called."""
        called = asyncio.Event()
        if self.models.expert is None or self.source is None or not may_be_called(self._settings, self.policy):
            yield _Expert(called, partial(completed, None))
            return
        if self._settings.expert == "always":
            called.set()
        witness = ExpertWitness(
            speaker=self._speaker(self.models.expert),
            source=self.source,
            settings=self._settings,
            recorder=self._recorder,
            called=called,
        )
        async with witness.concurrently(text, description) as due:
            yield _Expert(called, due)

    async def _ask_guard(self, text: str, description: str | None) -> GuardHeard | None:
        """Returns the event of the guard's opinion or failure; None without a guard."""
        if self.models.guard is None or self._settings.dull_judge:
            return None
        recorded = self._recorder.find(GuardHeard)
        if recorded is None:
            self._recorder.step = "guard"
            guard = GuardWitness(
                speaker=self._speaker(self.models.guard.model),
                guard=self.models.guard,
                frames=self._frames,
                policy=self.policy,
            )
            (event,) = await self._recorder.record_all(await guard.opinion(text, description))
            assert isinstance(event, GuardHeard)
            recorded = event
        self._recorder.step = "judgment"
        return recorded

    async def _precedents(self, query: str) -> tuple[tuple[Exhibit[Frame], ...], Vote | None]:
        """Returns the exhibits for the Judge, with pictures, and the vote; empty and None if precedents are off."""
        if not self._settings.precedents or self._settings.dull_judge:
            return (), None
        findings, vote = await self.evidence.precedents(query)
        shown = findings.exhibits if self._settings.exhibits_shown else ()
        pictures: Sequence[Frame | None] = [None] * len(shown)
        if shown and self._settings.pictures_shown:
            pictures = await self.evidence.pictures([precedent.id for precedent in shown])
        # Strict, so that no picture is ever paired with another precedent's label.
        return tuple(Exhibit(precedent, frame) for precedent, frame in zip(shown, pictures, strict=True)), vote
