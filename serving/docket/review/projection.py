"""Review projection: what the queue knows of a trial, derived from the log: whether a person should look, and why."""

from __future__ import annotations

import hashlib
import json
import logging
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, insert, select, update

from court.display import word
from court.events import (
    AnyEvent,
    AppealOpened,
    Described,
    SecondOpinionAsked,
    TextRead,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from court.record import TrialState
from court.verdict import Label, ReviewReason, Verdict
from serving.docket.log.entries import Entry
from serving.docket.store import review_tables as t
from serving.docket.store.bodies import event_in
from serving.docket.store.tables import stamp

_log = logging.getLogger("memecourt.desk")

ERASED: Final = "Erased"
"""The kind of the entry that says that a trial was erased."""

KINDS: Final = frozenset(
    {
        "TrialOpened",
        "TextRead",
        "Described",
        "VerdictGiven",
        "TrialFailed",
        "TrialResumed",
        "VerdictReviewed",
        "SecondOpinionAsked",
        "AppealOpened",
        ERASED,
    }
)
"""Of the entries that are read."""


class ReviewPriority(StrEnum):
    """Why a person should look at a verdict; the most urgent first."""

    APPEAL = "APPEAL"
    """Somebody whom the verdict concerns contests it."""
    REVIEWERS_DISAGREE = "REVIEWERS_DISAGREE"
    """Two reviewers found it to be different things."""
    SECOND_OPINION = "SECOND_OPINION"
    """Somebody asked for another person's word."""
    UNDECIDED = "UNDECIDED"
    """The court came to no label."""
    DISAGREE = "DISAGREE"
    """The Judge, its own odds, the precedents or an earlier trial say different things, or both sides are as strong.

    One reason for both: that sides are as strong alone would tell the label, which the rule then gives.
    """
    COURT_ASKS = "COURT_ASKS"
    """The verdict asks for a person for a reason of its own."""
    LOW_SCORE = "LOW_SCORE"
    """The score hardly speaks for the label."""
    SAMPLED = "SAMPLED"
    """Drawn by chance, to know how good verdicts are that nobody doubts."""

    @property
    def urgency(self) -> int:
        """0 for what is taken first."""
        return _URGENCY[self]


# From 0: appeals came to those that dockets already hold by their numbers.
_URGENCY = {why: place for place, why in enumerate(ReviewPriority)}
_VOTES = {
    ReviewReason.JUDGES_DISAGREE,
    ReviewReason.VOTE_DISAGREES,
    ReviewReason.SCORE_DISAGREES,
    ReviewReason.GUARD_DISAGREES,
    ReviewReason.CLAIM_REFUTED,
    ReviewReason.PRECEDENTS_DISAGREE,
    ReviewReason.JUDGE_CONTRADICTS_ITSELF,
    ReviewReason.NEAR_DUPLICATE_HARMFUL,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that bring a verdict to review without its asking.

    They apply to verdicts read from then on.

    Attributes:
        sure: A score that puts the probability of the given label below this is low; in (0.5, 1).
        sampled: Share of all verdicts that chance picks; in [0, 1].
        sampled_in: Share in namespaces where it is another.
    """

    sure: float = 0.6
    sampled: float = 0.01
    sampled_in: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.5 <= self.sure <= 1 or not all(0 <= each <= 1 for each in (self.sampled, *self.sampled_in.values())):
            raise ValueError("sure lies in [0.5, 1] and sampled in [0, 1]")

    def share_of(self, namespace: str) -> float:
        """Share of the verdicts of a namespace that chance picks."""
        return self.sampled_in.get(namespace, self.sampled)


USUAL: Final = Rules()

Reasons = tuple[tuple[ReviewPriority, str], ...]


def is_sampled(trial_id: str, share: float) -> bool:
    """True if a trial is in the random sample: by its id, so that processes agree and a larger share adds to it."""
    digest = hashlib.sha256(b"memecourt desk\0" + trial_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def reasons_of(verdict: Verdict, trial_id: str, rules: Rules, namespace: str = "") -> Reasons:
    """Why a person should look at a verdict, the most urgent first; nothing where nobody has to."""
    found: list[tuple[ReviewPriority, str]] = []
    undecided = verdict.label is Label.UNDECIDED
    if undecided:
        found += [(ReviewPriority.UNDECIDED, review.detail) for review in verdict.review]
    else:
        for review in verdict.review:
            found.append(
                (ReviewPriority.DISAGREE if review.reason in _VOTES else ReviewPriority.COURT_ASKS, review.detail)
            )
    strengths = verdict.strengths
    if strengths is not None and strengths.harmful is strengths.benign:
        level = strengths.harmful.lower()
        found.append(
            (
                ReviewPriority.DISAGREE,
                f"Evidence of harm and of no harm are both {level}; a tie is harmful by the rule.",
            )
        )
    if verdict.harm_score is not None and not undecided:
        own = verdict.harm_score if verdict.label is Label.HARMFUL else 1 - verdict.harm_score
        if own < rules.sure:
            label = word(verdict.label)
            found.append((ReviewPriority.LOW_SCORE, f"The score puts the probability of {label} at {own:.2f}."))
    share = rules.share_of(namespace)
    if is_sampled(trial_id, share):
        found.append((ReviewPriority.SAMPLED, f"Drawn by chance: {share:.1%} of all verdicts are."))
    return tuple(sorted(found, key=lambda each: each[0].urgency))


def folded(text: str) -> str:
    """A text as it is searched: case, width and kinds of spaces make no difference."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def same_letters(text: str) -> str:
    """Returns the form that texts share if they differ in case and spaces alone; empty for no text."""
    letters = folded(text)
    return hashlib.sha256(letters.encode("utf-8", "surrogatepass")).hexdigest() if letters else ""


def apply_entries(connection: Connection, entries: Sequence[Entry], rules: Rules) -> None:
    """Draws entries in the order of their numbers. Whoever calls keeps how far it has come, in the same transaction."""
    named = sorted({entry.trial_id for entry in entries if entry.trial_id})
    cases = {trial_id: _Case(dict(row)) for trial_id, row in _rows(connection, named)}
    for entry in entries:
        if not entry.trial_id:
            continue
        case = cases.setdefault(entry.trial_id, _Case({"trial_id": entry.trial_id}, new=True))
        if entry.kind == ERASED:
            t.forget(connection, entry.trial_id)
            # forget() has written the row that stays: this one must not be written over it.
            cases.pop(entry.trial_id)
            continue
        # Entries that were fetched before the trial was erased may still hold their bodies.
        if case.row.get("erased") or entry.body is None:
            continue
        try:
            # Without parts: nothing that the desk stores is quoted from a precedent.
            event = event_in(entry.body, {})
        except ValueError:
            # Somebody altered it, which `memecourt docket verify` tells of; the desk goes on without it.
            _log.error("entry %d can't be read, and the desk does without it", entry.number)
            continue
        case.take(event, entry.number, rules, connection)
    _keep(connection, cases.values())


class _Case:
    """A row that is being drawn."""

    def __init__(self, row: dict[str, Any], *, new: bool = False) -> None:
        self.row = row
        self.new = new
        self.changed = False

    def take(self, event: AnyEvent, number: int, rules: Rules, connection: Connection) -> None:
        row = self.row
        self.changed = True
        match event:
            case TrialOpened():
                row["opened_at"] = stamp(event.at)
                row["namespace"], row["content_id"] = event.meme.namespace, event.meme.content_id
                row["pixels_sha256"] = event.meme.digest
                models = sorted(set(event.versions.models.values()))
                # A line break at either end of each name, so that a search can match whole names.
                row["models"] = "".join(f"\n{model}" for model in models) + "\n" if models else ""
                row["state"] = TrialState.OPEN
            case TextRead():
                row["text"], row["same"] = event.text, same_letters(event.text)
                self._search(event.text)
            case Described():
                self._search(event.description)
            case TrialFailed():
                row["state"] = TrialState.FAILED
            case TrialResumed():
                row["state"] = TrialState.OPEN
            case VerdictGiven():
                self._decided(event, rules)
            case VerdictReviewed():
                self._reviewed(event, number, connection)
            case SecondOpinionAsked():
                row["asked_by"] = event.by
                self._waits(((ReviewPriority.SECOND_OPINION, f"{event.by} asks for a second opinion: {event.reason}"),))
            case AppealOpened():
                self._waits(((ReviewPriority.APPEAL, f"{event.by} hands in an appeal: {event.statement}"),))
            case _:
                self.changed = False

    def _decided(self, event: VerdictGiven, rules: Rules) -> None:
        row, verdict = self.row, event.verdict
        row["state"], row["label"], row["holds"] = TrialState.DECIDED, str(verdict.label), str(verdict.label)
        row["score"] = verdict.harm_score
        row["category"] = verdict.finding.category if verdict.finding else ""
        namespace = row.get("namespace", "")
        row["drawn"] = is_sampled(event.trial_id, rules.share_of(namespace))
        row["rationale"] = folded(verdict.rationale)
        reasons = reasons_of(verdict, event.trial_id, rules, namespace)
        if reasons:
            self._waits(reasons)

    def _reviewed(self, event: VerdictReviewed, number: int, connection: Connection) -> None:
        row = self.row
        reviewed_before = event.reviewer in _last_words(connection, event.trial_id)
        connection.execute(
            insert(t.reviews),
            {
                "number": number,
                "trial_id": event.trial_id,
                "reviewer": event.reviewer,
                "at": stamp(event.at),
                "outcome": str(event.outcome),
                "label": str(event.label),
                "verdict": row.get("label", ""),
                "blind": event.blind,
            },
        )
        row["holds"], row["outcome"] = str(event.label), str(event.outcome)
        if row.get("asked_by") == event.reviewer:
            return  # one's own is no second opinion
        if reviewed_before and row.get("waiting") and row.get("urgency") == ReviewPriority.APPEAL.urgency:
            return  # nor does who reviewed a verdict decide on an appeal against it
        row["asked_by"], row["waiting"] = "", False
        labels = _last_words(connection, event.trial_id)
        # Of two alone: what the third person says decides, and nobody more is asked.
        if len(labels) == 2 and len(set(labels.values())) == 2:
            text = ", ".join(f"{who} says {label.replace('_', ' ').lower()}" for who, label in sorted(labels.items()))
            self._waits(((ReviewPriority.REVIEWERS_DISAGREE, f"{text}: a third person decides."),))

    def _waits(self, reasons: Reasons) -> None:
        row = self.row
        # What was said before stays to be read, each kind of what people say once.
        fresh = {why for why, _ in reasons}
        before = [
            (ReviewPriority(why), words)
            for why, words in json.loads(row.get("reasons") or "[]")
            if ReviewPriority(why) not in fresh
        ]
        in_order = sorted([*reasons, *before], key=lambda each: each[0].urgency)
        row["reasons"] = json.dumps(in_order)
        urgency = min(why.urgency for why, _ in reasons)
        # An appeal that nobody has decided on stays one when whoever has the case asks for a second opinion.
        row["urgency"] = min(urgency, row["urgency"]) if row.get("waiting") else urgency
        row["waiting"] = True

    def _search(self, text: str) -> None:
        self.row["letters"] = f"{self.row.get('letters') or ''}{folded(text)}\n"


def _last_words(connection: Connection, trial_id: str) -> Mapping[str, str]:
    """Returns the last finding of each reviewer of a trial's meme."""
    row = t.reviews.c
    query = select(row.reviewer, row.label).where(row.trial_id == trial_id).order_by(row.number)
    # By number, so that a reviewer's later finding replaces an earlier one.
    return {reviewer: label for reviewer, label in connection.execute(query)}


def _rows(connection: Connection, trial_ids: Sequence[str]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    # In pieces: databases bound the parameters of a statement.
    for first in range(0, len(trial_ids), 500):
        chosen = t.cases.c.trial_id.in_(trial_ids[first : first + 500])
        for row in connection.execute(select(t.cases).where(chosen)).mappings():
            yield str(row["trial_id"]), {column.name: row[column.name] for column in t.cases.c}


def _keep(connection: Connection, cases: Iterable[_Case]) -> None:
    new = [case.row for case in cases if case.new and case.changed]
    # All rows of one statement must have the same columns.
    defaults = {column.name: column.default.arg for column in t.cases.c if column.default is not None}  # type: ignore[attr-defined]
    if new:
        connection.execute(insert(t.cases), [{"score": None, **defaults, **row} for row in new])
    for case in cases:
        if case.changed and not case.new:
            connection.execute(update(t.cases).where(t.cases.c.trial_id == case.row["trial_id"]).values(case.row))
