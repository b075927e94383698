"""The finding in force on content: the last one of a person, or else a binding precedent, or else the court's verdict.

Content is the normalised pixels with the text, under a policy id and in a namespace. What people found is folded from
the reviews, appeals and requests for a second opinion of all its trials, in the order of the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict

from court.digests import digest
from court.display import word
from court.events import AnyEvent, AppealOpened, NoteLeft, ReviewWithdrawn, VerdictReviewed
from court.verdict import Decision, Label, decision

_HEX = 32
"""Hex digits of a content key's parts: 128 bits."""


class ContentKey(NamedTuple):
    """Key of content: digests of the meme under namespace and policy, and of the text, if it was sent."""

    meme: str
    text: str


def content_key(namespace: str, policy_id: str, meme_digest: str, text: str | None) -> ContentKey:
    """Returns the key of content; ``text`` is None if it is read off the picture."""
    meme = digest([namespace, policy_id, meme_digest]).removeprefix("sha256:")[:_HEX]
    return ContentKey(meme, "" if text is None else sent_text_key(text))


def sent_text_key(text: str) -> str:
    """Returns the part of a content key that stands for a text that was sent."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HEX]


class Authority(StrEnum):
    """Source of a finding. People outrank precedents, and precedents outrank the court's models."""

    PERSON = "PERSON"
    PRECEDENT = "PRECEDENT"
    COURT = "COURT"


class FindingRules(BaseModel):
    """Rules for what follows from the findings of people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contested: Literal["review", "keep"] = "review"
    """Decision on content that was allowed and whose case is open again; a block always stays one."""
    acquit_by: Literal[1, 2] = 1
    """Number of people who must find content not harmful before it is allowed."""
    older_policy: Literal["keep", "review"] = "keep"
    """Decision on content that a person allowed under an older version of the policy."""
    authority: Literal["named", "local", "none"] = "named"
    """``local`` if callers are not known but all on this machine; ``none`` if strangers could sign a finding."""


DEFAULT_RULES = FindingRules()


@dataclass(frozen=True, slots=True)
class PersonFinding:
    """State of the case about content, by what people said of it.

    Attributes:
        acquitters: Number of people whose last word is that it is not harmful.
        policy: Digest of the policy that the trial applied; empty if unknown.
        until: Time after which a finding counts no longer whose trial has expired; None while there is the trial.
    """

    label: Label | None
    at: datetime
    trial_id: str
    contested: bool
    acquitters: int
    policy: str = ""
    until: datetime | None = None


class CaseNotes(BaseModel):
    """State of the case about content after some events: enough to go on with the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: Label | None = None
    contested: bool = False
    words: dict[str, Label] = {}
    """Last finding of each reviewer."""
    appealed: bool = False
    asked_by: str = ""
    """Reviewer who asked for a second opinion that has not come; empty without."""

    at: AwareDatetime | None = None
    """Time of the last finding, or of the last event if nobody has found anything."""
    trial_id: str = ""
    policy: str = ""

    def then(self, event: AnyEvent, policy: str = "") -> CaseNotes:
        """Returns the state after the next event."""
        here = {"at": event.at, "trial_id": event.trial_id, "policy": policy}
        match event:
            case NoteLeft(second_opinion=True):
                change: dict[str, object] = {"contested": True, "asked_by": event.by}
            case AppealOpened():
                change = {"contested": True, "appealed": True}
            case VerdictReviewed():
                words = {**self.words, event.reviewer: event.label}
                change = {**here, "label": event.label, "words": words}
                # Whoever asked for a second opinion does not give it, and nobody decides an appeal against themselves.
                if self.asked_by != event.reviewer and not (self.appealed and event.reviewer in self.words):
                    # A third person decides between two.
                    disagree = len(words) == 2 and len(set(words.values())) == 2
                    change |= {"contested": disagree, "appealed": False, "asked_by": ""}
            case _:
                return self
        return self.model_copy(update=change if self.label else here | change)

    @property
    def finding(self) -> PersonFinding | None:
        """Finding that follows; None before the first event."""
        if self.at is None:
            return None
        return PersonFinding(
            label=self.label,
            at=self.at,
            trial_id=self.trial_id,
            contested=self.contested,
            acquitters=sum(each is Label.NOT_HARMFUL for each in self.words.values()),
            policy=self.policy,
        )


def standing(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Returns the events without the reviews that were withdrawn, and without their withdrawals."""
    events = list(events)
    gone = {(event.trial_id, event.of) for event in events if isinstance(event, ReviewWithdrawn)}
    return [
        event for event in events if not isinstance(event, ReviewWithdrawn) and (event.trial_id, event.seq) not in gone
    ]


def case_of(events: Iterable[AnyEvent], policies: Mapping[str, str] = MappingProxyType({})) -> CaseNotes:
    """Folds the events of one or several trials of the same content, in the order of the log."""
    notes = CaseNotes()
    for event in standing(events):
        notes = notes.then(event, policies.get(event.trial_id, ""))
    return notes


def finding_of(events: Iterable[AnyEvent]) -> PersonFinding | None:
    """Returns what follows from the events of one or several trials of the same content; None without any."""
    return case_of(events).finding


@dataclass(frozen=True, slots=True)
class InForce:
    """The finding in force on content, and the decision that follows from it.

    Attributes:
        local: True if the server knows no callers, so that anybody on its machine may have signed the finding.
    """

    by: Authority
    label: Label
    decision: Decision
    at: datetime | None
    id: str
    contested: bool = False
    older_policy: bool = False
    local: bool = False

    @property
    def in_words(self) -> str:
        """Source of the decision, for people; empty for the court's own that nobody contests."""
        by = {Authority.PERSON: "a person", Authority.PRECEDENT: f"precedent {self.id}", Authority.COURT: ""}[self.by]
        words = [f"{by} found it {word(self.label)}"] if by else []
        words += ["the case is open again"] if self.contested else []
        words += ["under an older version of the policy"] if self.older_policy else []
        return "; ".join([*words, *(["local"] if self.local else [])])

    def facts(self) -> dict[str, str | bool | None]:
        """Returns it for JSON."""
        return {
            "by": self.by,
            "label": self.label,
            "decision": self.decision,
            "at": self.at.isoformat() if self.at else None,
            "id": self.id,
            "contested": self.contested,
            "older_policy": self.older_policy,
            "local": self.local,
        }


def in_force(
    label: Label,
    *,
    needs_review: bool,
    at: datetime | None,
    trial_id: str,
    policy: str = "",
    precedent: str = "",
    found: PersonFinding | None = None,
    rules: FindingRules = DEFAULT_RULES,
) -> InForce:
    """Returns the finding in force on the content of a verdict; ``at`` is its time, or that of its precedent."""
    found = None if rules.authority == "none" else found
    contested = found is not None and found.contested
    on_hold = contested and rules.contested == "review"
    if found is None or found.label is None:
        own = decision(label, needs_review=needs_review, on_hold=on_hold)
        by = Authority.PRECEDENT if precedent else Authority.COURT
        return InForce(by=by, label=label, decision=own, at=at, id=precedent or trial_id, contested=contested)
    older = "" not in (policy, found.policy) and policy != found.policy
    on_hold |= found.acquitters < rules.acquit_by or (older and rules.older_policy == "review")
    settled = decision(label, needs_review=needs_review, reviewed=found.label, on_hold=on_hold)
    return InForce(
        by=Authority.PERSON,
        label=found.label,
        decision=settled,
        at=found.at,
        id=found.trial_id,
        contested=contested,
        older_policy=older,
        local=rules.authority == "local",
    )
