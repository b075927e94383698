"""Side-by-side comparison of two trials."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from court.display import word
from court.events import ReviewOutcome, Side, Summarised
from court.record import TrialRecord
from court.transcript import Transcript, transcript

_PIECE = re.compile(r"\w+|\s+|[^\w\s]")
_MOST_PIECES = 4000
"""Limit on the pieces of both texts in a word-by-word comparison, whose time is quadratic."""
_KINDRED = 0.5
"""Least similarity at which differing words are marked; below it, the whole text is marked as different."""
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One line of a comparison.

    Attributes:
        words: True if the values are texts, to be compared word by word.
    """

    name: str
    left: str
    right: str
    words: bool = False

    @property
    def same(self) -> bool:
        """True if there is no difference."""
        return self.left == self.right

    @property
    def pieces(self) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
        """Returns the pieces of both texts, each with True if the other text has it."""
        left, right = (_PIECE.findall(text) for text in (self.left, self.right))
        # Marked as a whole: a page must not take minutes for two long texts.
        if len(left) + len(right) > _MOST_PIECES:
            return [(self.left, self.same)], [(self.right, self.same)]
        # With autojunk, difflib ignores frequent pieces of a long text, such as spaces.
        matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
        # Two texts about different things share small words everywhere: marking those would only confuse.
        if matcher.ratio() < _KINDRED:
            return [(self.left, False)], [(self.right, False)]
        sides: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
        for what, a, b, c, d in matcher.get_opcodes():
            for pieces, side, first, last in ((left, 0, a, b), (right, 1, c, d)):
                if first < last:
                    sides[side].append(("".join(pieces[first:last]), what == "equal"))
        return sides


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that belong together."""

    name: str
    rows: tuple[ComparedRow, ...]

    @property
    def differing(self) -> int:
        """Number of rows that differ."""
        return sum(not row.same for row in self.rows)


def compare(first: TrialRecord, second: TrialRecord) -> tuple[Group, ...]:
    """Compares everything in which two trials can differ, in reading order."""
    left, right = ({name: dict(rows) for name, rows in _sections(record)} for record in (first, second))
    groups = []
    # The order of the first, then what only the second has, so that no section or row is lost.
    for name in dict.fromkeys((*left, *right)):
        one, other = left.get(name, {}), right.get(name, {})
        rows = []
        for key in dict.fromkeys((*one, *other)):
            (here, words), (also, _) = one.get(key, ("", False)), other.get(key, ("", False))
            # A row that only one trial has says in that one alone whether it is a text.
            words = words or other.get(key, ("", False))[1]
            rows.append(ComparedRow(key, here or NOTHING, also or NOTHING, words))
        groups.append(Group(name, tuple(rows)))
    return tuple(groups)


_Rows = Iterator[tuple[str, tuple[str, bool]]]


def _sections(record: TrialRecord) -> Iterator[tuple[str, _Rows]]:
    transcribed = transcript(record)
    yield "Verdict", _verdict(record)
    yield "Meme", _meme(record, transcribed)
    yield "Sides", _sides(record, transcribed)
    yield "Precedents", _precedents(record, transcribed)
    yield "Versions", _versions(record)
    yield "Settings", ((str(name), (str(value), False)) for name, value in sorted(record.opened.settings.items()))


def _verdict(record: TrialRecord) -> _Rows:
    verdict, review = record.verdict, record.review
    yield "state", (word(record.state), False)
    yield "decision", (record.decision or "", False)
    yield "label", (word(verdict.label) if verdict else "", False)
    if verdict and verdict.strengths:
        yield "evidence of harm", (word(verdict.strengths.harmful), False)
        yield "benign evidence", (word(verdict.strengths.benign), False)
    for name, value in verdict.facts() if verdict else ():
        # The decision is the one in force; strengths have rows of their own, from which the rule gives the label.
        if name not in ("decision", "strengths", "rule"):
            yield name, (value, False)
    if review:
        overruled = review.outcome is ReviewOutcome.OVERRULED
        yield "review", (f"{'overruled' if overruled else 'upheld'}: {word(review.label)}, {review.reason}", True)
    yield "rationale", (verdict.rationale if verdict else "", True)
    for number, reason in enumerate(verdict.review if verdict else (), 1):
        yield f"a person should look, {number}", (reason.detail, True)


def _meme(record: TrialRecord, transcribed: Transcript) -> _Rows:
    meme = record.opened.meme
    yield "picture", (meme.pixels_sha256[:16] if meme.picture_given else "none was sent", False)
    text = record.text
    yield "text", (text.text if text else "", True)
    yield "where the text is from", (word(text.source) if text else "", False)
    yield "description", (transcribed.description, True)


def _sides(record: TrialRecord, transcribed: Transcript) -> _Rows:
    rested = record.rested
    for side in Side:
        if side in rested:
            yield f"{side.lower()}: rounds", (f"{rested[side].rounds}, {word(rested[side].reason)}", False)
        bits = [f"{e.entropy:.2f}" for e in record.all(Summarised) if e.side is side and e.round]
        if bits:
            yield f"{side.lower()}: entropy by round", (", ".join(bits), False)
        argument = transcribed.arguments[side]
        yield f"{side.lower()}: justification", (argument.argument if argument else "", True)


def _precedents(record: TrialRecord, transcribed: Transcript) -> _Rows:
    yield "library", (transcribed.searched, False)
    readings = record.readings
    for number, one in enumerate(transcribed.precedents, 1):
        read = f"; the Judge: {readings[one.id].supports}" if one.id in readings else ""
        yield f"precedent {number}", (f"{one.id}, {word(one.label)}, similarity {one.similarity:.3f}{read}", False)
    if transcribed.vote:
        vote = transcribed.vote
        yield "vote", (f"{vote.harmful} of {vote.voters} harmful, probability {vote.probability:.3f}", False)


def _versions(record: TrialRecord) -> _Rows:
    opened = record.opened
    yield "procedure", (word(opened.procedure), False)
    yield "policy", (f"{opened.policy.id} {opened.policy.version} {opened.policy.digest}", False)
    for name, value in opened.versions.model_dump().items():
        if isinstance(value, dict):
            for role, model in sorted(value.items()):
                yield f"model of the {role.lower()}", (str(model), False)
        else:
            yield word(name), (str(value), False)
    yield "seconds", (f"{record.seconds:.1f}", False)
