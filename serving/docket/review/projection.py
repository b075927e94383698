"""Review projection: derives from the log what the queue stores about a trial, and why it needs review."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select, update

from court.display import word
from court.events import (
    AnyEvent,
    AppealOpened,
    Described,
    FlipsSought,
    NoteLeft,
    ReviewWithdrawn,
    TextRead,
    TrialOpened,
    VerdictGiven,
    VerdictReviewed,
)
from court.in_force import standing
from court.verdict import DISAGREEMENTS, Label, Verdict
from retrieval.text import text_key
from serving.access.callers import SANDBOX
from serving.docket.log.entries import Entry
from serving.docket.store import review_tables as t
from serving.docket.store.bodies import event_in
from serving.docket.store.listing import events_by_people
from serving.docket.store.tables import stamp
from serving.docket.store.trials import LISTED_KINDS

_log = logging.getLogger("memecourt.desk")

ERASED: Final = "Erased"
"""Kind of the entry that records the erasure of a trial."""

KINDS: Final = LISTED_KINDS | {Described.__name__, FlipsSought.__name__, ERASED}
"""Kinds of the entries that are read."""


class ReviewPriority(StrEnum):
    """Reasons for human review, the most urgent first."""

    APPEAL = "APPEAL"
    """Somebody affected has appealed against the verdict."""
    REVIEWERS_DISAGREE = "REVIEWERS_DISAGREE"
    """Two reviewers disagree."""
    SECOND_OPINION = "SECOND_OPINION"
    """A reviewer asked for a second opinion."""
    UNDECIDED = "UNDECIDED"
    """The court reached no label."""
    DISAGREE = "DISAGREE"
    """The Judge, its own odds, the precedents or an earlier trial disagree, or both sides are equally strong.

    One reason for both: equally strong sides alone would reveal the label, which the rule then determines.
    """
    COURT_ASKS = "COURT_ASKS"
    """The verdict itself asks for review for another reason."""
    LOW_SCORE = "LOW_SCORE"
    """The score hardly supports the label."""
    SAMPLED = "SAMPLED"
    """Randomly sampled, to measure the quality of verdicts that nobody doubts."""
    OBJECTION = "OBJECTION"
    """Somebody without an account has appealed by the link of a notice.

    Last, since anybody may send many; the queue gives out one of them for each few other cases.
    """

    @property
    def urgency(self) -> int:
        """Rank of the reason; 0 is the most urgent."""
        return _URGENCY[self]


_BY_PEOPLE = {
    ReviewPriority.APPEAL,
    ReviewPriority.OBJECTION,
    ReviewPriority.REVIEWERS_DISAGREE,
    ReviewPriority.SECOND_OPINION,
}
# Numbers are stored in dockets; appeals were added later and start at 0.
_URGENCY = {why: urgency for urgency, why in enumerate(ReviewPriority)}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that send a verdict to review without anybody asking for it.

    They apply to verdicts that are projected from now on.

    Attributes:
        sure: Probability of the given label, by its score, below which the score counts as low; in (0.5, 1).
        sampled: Share of all verdicts that are randomly sampled; in [0, 1].
    """

    sure: float = 0.6
    sampled: float = 0.01
    sampled_in: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.5 <= self.sure <= 1 or not all(0 <= each <= 1 for each in (self.sampled, *self.sampled_in.values())):
            raise ValueError("sure lies in [0.5, 1] and sampled in [0, 1]")

    def share_of(self, namespace: str) -> float:
        """Share of a namespace's verdicts that are randomly sampled."""
        return self.sampled_in.get(namespace, self.sampled)


USUAL: Final = Rules()

Reasons = tuple[tuple[ReviewPriority, str], ...]


def is_sampled(trial_id: str, share: float, purpose: str = "memecourt desk") -> bool:
    """True if a trial is sampled; decided by its id, so that processes agree and larger shares are supersets.

    Args:
        purpose: Name that makes samples for different purposes independent.
    """
    digest = hashlib.sha256(f"{purpose}\0{trial_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def reasons_of(verdict: Verdict, trial_id: str, rules: Rules, namespace: str = "") -> Reasons:
    """Returns the reasons for reviewing a verdict, the most urgent first; none if it needs no review."""
    found: list[tuple[ReviewPriority, str]] = []
    undecided = verdict.label is Label.UNDECIDED
    if undecided:
        found += [(ReviewPriority.UNDECIDED, review.detail) for review in verdict.review]
    else:
        for review in verdict.review:
            why = ReviewPriority.DISAGREE if review.reason in DISAGREEMENTS else ReviewPriority.COURT_ASKS
            found.append((why, review.detail))
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


def same_letters(text: str) -> str:
    """Returns a form that is equal for texts that differ only in case and spaces; empty for no text."""
    letters = text_key(text)
    return hashlib.sha256(letters.encode("utf-8", "surrogatepass")).hexdigest() if letters else ""


def apply_entries(connection: Connection, entries: Sequence[Entry], rules: Rules) -> None:
    """Projects entries in order; the caller stores the new position in the same transaction."""
    named = sorted({entry.trial_id for entry in entries if entry.trial_id})
    cases = {trial_id: _Case(dict(row)) for trial_id, row in _rows(connection, named)}
    for entry in entries:
        if not entry.trial_id:
            continue
        case = cases.setdefault(entry.trial_id, _Case({"trial_id": entry.trial_id}, new=True))
        if entry.kind == ERASED:
            t.forget(connection, entry.trial_id)
            # forget() has written the final row, which this one must not overwrite.
            cases.pop(entry.trial_id)
            continue
        # Entries that were read before the trial was erased may still have their bodies.
        if case.row.get("erased") or entry.body is None:
            continue
        try:
            # Without parts: the queue stores nothing that is quoted from a precedent.
            event = event_in(entry.body, {})
        except ValueError:
            # Somebody altered it, which `memecourt docket verify` reports; the queue skips it.
            _log.error("entry %d can't be read; the review queue skips it", entry.number)
            continue
        case.take(event, entry.number, rules, connection)
    _keep(connection, cases.values())


class _Case:
    """A case row that is being updated."""

    def __init__(self, row: dict[str, Any], *, new: bool = False) -> None:
        self.row = row
        self.new = new
        self.changed = False

    def take(self, event: AnyEvent, number: int, rules: Rules, connection: Connection) -> None:
        row = self.row
        self.changed = True
        if event.state is not None:
            row["state"] = event.state
        match event:
            case TrialOpened():
                row["opened_at"] = stamp(event.at)
                row["namespace"], row["content_id"] = event.meme.namespace, event.meme.content_id
                row["pixels_sha256"] = event.meme.digest
                models = sorted(set(event.versions.models.values()))
                # Line breaks around each name, so that a search can match whole names.
                row["models"] = "".join(f"\n{model}" for model in models) + "\n" if models else ""
            case TextRead():
                row["text"], row["same"] = event.text, same_letters(event.text)
                self._search(event.text)
            case Described():
                self._search(event.description)
            case VerdictGiven():
                self._decided(event, rules)
            # An acquittal that nobody has looked at. A block needs no review for it: a meme could provoke one.
            case FlipsSought() if row.get("holds") == Label.NOT_HARMFUL and not row.get("outcome"):
                if (risk := event.flips.risk) is not None:
                    words = f"{event.flips.in_words} The risk of a wrong label is at least {risk:.2f}."
                    self._waits(((ReviewPriority.COURT_ASKS, words),))
            case VerdictReviewed():
                self._reviewed(event, number, connection)
            case ReviewWithdrawn():
                self._withdrawn(number, rules, connection)
            case NoteLeft(second_opinion=True):
                row["asked_by"] = event.by
                self._waits(((ReviewPriority.SECOND_OPINION, f"{event.by} asks for a second opinion: {event.note}"),))
            case AppealOpened():
                row["appealed"] = True
                why = ReviewPriority.OBJECTION if event.by_link else ReviewPriority.APPEAL
                self._waits(((why, f"{event.by} hands in an appeal: {event.statement}"),))
            case _:
                self.changed = event.state is not None

    def _decided(self, event: VerdictGiven, rules: Rules) -> None:
        row, verdict = self.row, event.verdict
        row["label"] = row["holds"] = str(verdict.label)
        row["score"] = verdict.harm_score
        row["category"] = verdict.finding.category if verdict.finding else ""
        namespace = row.get("namespace", "")
        row["drawn"] = namespace != SANDBOX and is_sampled(event.trial_id, rules.share_of(namespace))
        row["rationale"] = text_key(verdict.rationale)
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
                "seq": event.seq,
                "look_s": event.look_s,
            },
        )
        row["holds"], row["outcome"] = str(event.label), str(event.outcome)
        if row.get("asked_by") == event.reviewer:
            return  # a reviewer's own review is no second opinion
        if reviewed_before and row.get("appealed"):
            return  # nor may the reviewer of a verdict decide an appeal against it
        row["asked_by"], row["waiting"], row["appealed"] = "", False, False
        labels = _last_words(connection, event.trial_id)
        # Only for two reviewers: a third one decides, and nobody else is asked.
        if len(labels) == 2 and len(set(labels.values())) == 2:
            text = ", ".join(f"{who} says {label.replace('_', ' ').lower()}" for who, label in sorted(labels.items()))
            self._waits(((ReviewPriority.REVIEWERS_DISAGREE, f"{text}: a third person decides."),))

    def _withdrawn(self, number: int, rules: Rules, connection: Connection) -> None:
        """Goes back to the verdict, and from there on without the reviews that were withdrawn."""
        row = self.row
        connection.execute(delete(t.reviews).where(t.reviews.c.trial_id == row["trial_id"]))
        events = {at: event for at, event in events_by_people(connection, row["trial_id"]).items() if at <= number}
        remaining = standing(events.values())
        reasons = [(ReviewPriority(why), words) for why, words in json.loads(row.get("reasons") or "[]")]
        row |= {"holds": row.get("label", ""), "outcome": "", "asked_by": "", "waiting": False, "reasons": "[]"}
        if by_court := tuple(each for each in reasons if each[0] not in _BY_PEOPLE):
            self._waits(by_court)
        for at, event in events.items():
            if event in remaining:
                self.take(event, at, rules, connection)

    def _waits(self, reasons: Reasons) -> None:
        row = self.row
        if row.get("namespace") == SANDBOX:
            return  # nobody reviews a try
        # Earlier reasons remain visible, each kind given by people only once.
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
        self.row["letters"] = f"{self.row.get('letters') or ''}{text_key(text)}\n"


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
