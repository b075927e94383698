"""Rebuilds the Judge's brief from a record, as it was when the Judge ruled on harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from pydantic import ValidationError

from court.events import PrecedentsCited, Side, Summarised
from court.expert.findings import testimony_of
from court.expert.messages import findings_words
from court.guard import opinion_words
from court.messages import Exhibit, JudgeBrief
from court.policy import Policy
from court.precedents import Precedent
from court.prompts import Fence, PromptSet
from court.record import TrialRecord
from court.settings import TrialSettings

P = TypeVar("P")


class NotOnRecord(Exception):
    """Something that was part of the messages is not in the record."""


@dataclass(frozen=True)
class RecordedCase:
    """The parts of a recorded trial from which messages are built. Its properties raise NotOnRecord."""

    record: TrialRecord

    @cached_property
    def settings(self) -> TrialSettings:
        """Settings of the trial, without those of its models, which are recorded alongside."""
        known = self.record.opened.settings.items()
        own = {name: value for name, value in known if name in TrialSettings.model_fields}
        try:
            return TrialSettings.model_validate(own)
        except ValidationError as error:
            names = ", ".join(str(fault["loc"][0]) for fault in error.errors() if fault["loc"]) or "together"
            raise NotOnRecord(f"The record's settings are none that a trial could be held with: {names}.") from None

    @property
    def policy(self) -> Policy:
        """Policy of the trial."""
        policy = self.record.opened.policy
        if policy.content is None:
            raise NotOnRecord(
                f"The record names the policy ({policy.id} {policy.version}) and does not hold its words."
            )
        return policy.content

    @property
    def text(self) -> str:
        """Text of the meme."""
        if self.record.text is None:
            raise NotOnRecord("The record does not hold the text of the meme.")
        return self.record.text.text

    @property
    def language(self) -> str:
        """Language of the text if it is shown to roles; otherwise empty."""
        text = self.record.text
        return text.language if text is not None and self.settings.language_shown else ""

    @property
    def description(self) -> str | None:
        """The Proposer's description; None without a picture that models see."""
        if not (self.record.opened.meme.picture_given and self.settings.pictures_shown):
            return None
        # The Judge of this ablation is shown only the meme.
        if self.settings.dull_judge:
            return ""
        described = self.record.described
        if described is None:
            raise NotOnRecord("The record does not hold the description.")
        return described.description

    @property
    def exhibits(self) -> tuple[tuple[Precedent, str], ...]:
        """Precedents shown to the Judge, each with the SHA-256 of its picture, which is empty if none was shown."""
        cited = self._cited
        if cited is None or not self.settings.exhibits_shown:
            return ()
        read = self.record.readings
        return tuple((each, read[each.id].picture if each.id in read else "") for each in cited.findings.exhibits)

    @property
    def _cited(self) -> PrecedentsCited | None:
        shown = self.settings.precedents and not self.settings.dull_judge
        return self.record.precedents if shown else None

    def justification(self, side: Side) -> str:
        """Returns the justification shown to the Judge: of the last round that counts. Empty without advocates."""
        rested = self.record.rested.get(side)
        # Without advocates there is no SideRested event, and the Judge saw no arguments.
        if rested is None:
            return ""
        for event in self.record.all(Summarised):
            if event.side is side and event.round == rested.rounds:
                return event.justification
        raise NotOnRecord(f"The record holds no Summarised of the {side.lower()}'s round {rested.rounds}.")

    def judge_brief(
        self, pictures: tuple[P, ...], precedent_pictures: Mapping[str, P], *, fence: Fence, prompts: PromptSet
    ) -> JudgeBrief[P]:
        """Builds the Judge's brief; pictures are frames or stand-ins such as digests, those of precedents by id."""
        settings, cited = self.settings, self._cited
        accuser, defender = (self.justification(side) for side in Side)
        # In the swap_sides experiment the Judge sees each argument under the other side's name.
        if settings.swap_sides:
            accuser, defender = defender, accuser
        opinion = self.record.guard
        return JudgeBrief(
            pictures=pictures,
            policy=self.policy,
            fence=fence,
            text=self.text,
            description=self.description,
            accuser=accuser,
            defender=defender,
            exhibits=tuple(Exhibit(each, precedent_pictures.get(each.id)) for each, _ in self.exhibits),
            vote=None if cited is None or not settings.tally_shown else cited.vote,
            guard=opinion.adapter if opinion else "",
            opinion=opinion_words(opinion) if opinion else "",
            claims=findings_words(testimony_of(self.record.events).findings) if self.record.claims_found else "",
            meme_only=settings.dull_judge,
            prompts=prompts,
            defender_first=settings.judge_order == "defender first",
            similarity_shown=settings.similarity_shown,
            original_labels=settings.exhibit_labels == "original",
            language=self.language,
        )
