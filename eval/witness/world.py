"""A synthetic world of 200 facts about invented places, with documents that state, contradict or half state them.

The correct finding on each fact is known in advance for every arm (:func:`expected`): it depends only on how the
documents are made.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from court.verdict import ClaimLabel
from eval.datasets.claims import Gold, GoldClaim
from eval.solvers.witness_arms import Arm
from retrieval.facts.documents import FactDocument

_NAME = r"\b([A-Z]\w+(?: [A-Z]\w+)*)"
_VALUE = r"(\d+|\w+days)\b"
DATE = "2024"
_LONG_AGO = "1990"
REGISTER = "Register of places"
"""Publisher whose word is enough by itself."""
GUIDE, GOSSIP = "A traveller's guide", "Letters from readers"


class Situation(StrEnum):
    """Relation of the documents to a fact."""

    STATED = "stated"
    """The register states the fact."""
    BURIED = "buried"
    """The register states it, but documents with the same words and no information rank higher."""
    LINKED = "linked"
    """The register states it under a nickname of the place, which another document explains."""
    OUTDATED = "outdated"
    """The register states an outdated value: the witness errs with its source."""
    DISPUTED = "disputed"
    """Two guides of equal weight contradict each other."""
    HALF = "half stated"
    """A document states less than the claim does."""
    ABSENT = "absent"
    """No document mentions it."""


COUNTS: Mapping[Situation, int] = {
    Situation.STATED: 60,
    Situation.BURIED: 35,
    Situation.LINKED: 25,
    Situation.OUTDATED: 10,
    Situation.DISPUTED: 25,
    Situation.HALF: 25,
    Situation.ABSENT: 20,
}


@dataclass(frozen=True, slots=True)
class Property:
    """A property of places.

    Attributes:
        statement: Sentence that states the value, with ``{who}`` and ``{value}``.
        half: Sentence that half states the value, with ``{who}``.
    """

    words: str
    statement: str
    half: str
    values: tuple[str, ...]

    def read(self, text: str) -> tuple[tuple[str, str, str], ...]:
        """Finds statements of the property in a text: name of the place, value, and quote."""
        pattern = re.escape(self.statement).replace(r"\{who\}", _NAME).replace(r"\{value\}", _VALUE)
        found = re.finditer(pattern, text)
        return tuple((match[1], match[2], match[0]) for match in found)

    def read_half(self, text: str) -> tuple[tuple[str, str], ...]:
        """Finds half statements of the property in a text: name of the place, and quote."""
        pattern = re.escape(self.half).replace(r"\{who\}", _NAME)
        return tuple((match[1], match[0]) for match in re.finditer(pattern, text))


def _numbers(start: int, step: int) -> tuple[str, ...]:
    return tuple(str(start + step * number) for number in range(40))


_DAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays")
PROPERTIES: Mapping[str, Property] = {
    "tower": Property("tower metres", "{who} has a tower of {value} metres", "{who} has a high tower", _numbers(21, 2)),
    "bridges": Property("bridges", "{who} has {value} bridges", "{who} has several bridges", _numbers(3, 1)),
    "founded": Property(
        "founded year", "{who} was founded in {value}", "{who} was founded long ago", _numbers(1103, 17)
    ),
    "people": Property(
        "inhabitants", "{who} has {value} inhabitants", "{who} has many inhabitants", _numbers(512, 311)
    ),
    "market": Property("market held", "{who} holds its market on {value}", "{who} holds a market every week", _DAYS),
}
_FIRST = ("Blue", "Red", "Green", "Gold", "Plum", "Teal", "Ash", "Birch", "Clover", "Dawn")
_LAST = ("haven", "ford", "hill", "mere")
_NAMES = ("Lantern", "Anchor", "Kettle", "Heron")
PLACES = tuple(f"{first}{last}" for last in _LAST for first in _FIRST)
NICKNAMES: Mapping[str, str] = {
    place: f"Old {_FIRST[number % 10]} {_NAMES[number // 10]}" for number, place in enumerate(PLACES)
}
_CALLED = re.compile(rf"{_NAME} is what sailors call ([A-Z]\w+)")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of the world, and a claim about it.

    Attributes:
        number: Number of the fact, from 1.
        value: True value of the property.
        true: True if the claim is true.
    """

    number: int
    place: str
    trait: str
    value: str
    other: str
    true: bool
    situation: Situation

    @property
    def claim(self) -> str:
        """Claim about the fact, as a sentence."""
        return _sentence(self.trait, self.place, self.value if self.true else self.other)

    @property
    def gold(self) -> GoldClaim:
        """Claim with its truth."""
        return GoldClaim(f"f{self.number:03}", self.claim, Gold.TRUE if self.true else Gold.FALSE)


def draw_world(seed: int = 0) -> tuple[Fact, ...]:
    """Draws the 200 facts: each property of each place once."""
    drawn = random.Random(seed)
    situations = [situation for situation, count in COUNTS.items() for _ in range(count)]
    pairs = [(place, name) for place in PLACES for name in PROPERTIES]
    drawn.shuffle(pairs)
    facts = []
    for number, ((place, name), situation) in enumerate(zip(pairs, situations, strict=True), 1):
        # Two different values; a false claim states the other one.
        value, other = drawn.sample(PROPERTIES[name].values, 2)
        # Alternates within a situation, so that numbers of true and false claims differ by at most one.
        facts.append(Fact(number, place, name, value=value, other=other, true=number % 2 == 0, situation=situation))
    return tuple(facts)


def documents_of(facts: tuple[Fact, ...]) -> tuple[FactDocument, ...]:
    """Returns the documents of a world."""
    return tuple(document for fact in facts for document in _documents(fact))


def nicknames_in(text: str) -> tuple[tuple[str, str, str], ...]:
    """Finds nicknames that a text explains: nickname, place, and quote."""
    return tuple((match[1], match[2], match[0]) for match in _CALLED.finditer(text))


def claim_in(text: str) -> tuple[str, str, str] | None:
    """Parses property, place and value of a claim; None if it is not of this world."""
    for name, one in PROPERTIES.items():
        # Must match the whole text: a sentence with anything more is not a claim of this world.
        if (found := one.read(text)) and found[0][2] == text.rstrip("."):
            return name, found[0][0], found[0][1]
    return None


def expected(fact: Fact, arm: Arm, *, remembers: bool) -> ClaimLabel:
    """Returns the finding that a model with exact reading must reach.

    Args:
        remembers: True if the model knows the fact without any document.
    """
    truly = ClaimLabel.SUPPORTED if fact.true else ClaimLabel.REFUTED
    if arm is Arm.CLOSED_BOOK:
        return truly if remembers else ClaimLabel.NOT_ENOUGH
    match fact.situation:
        case Situation.STATED:
            return truly
        case Situation.BURIED:
            return ClaimLabel.NOT_ENOUGH if arm in (Arm.NO_RANK, Arm.ONE_SHOT) else truly
        case Situation.LINKED:
            return ClaimLabel.NOT_ENOUGH if arm in (Arm.NO_SELF_CONTAINED, Arm.NO_SECOND_LOOK) else truly
        case Situation.OUTDATED:
            return ClaimLabel.REFUTED if fact.true else ClaimLabel.SUPPORTED
        case _:
            return ClaimLabel.NOT_ENOUGH


def _documents(fact: Fact) -> list[FactDocument]:
    one = PROPERTIES[fact.trait]
    key, title = f"{fact.place}-{fact.trait}", f"{fact.place}, {one.words}"
    stated = _document(key, title, _sentence(fact.trait, fact.place, fact.value), REGISTER)
    match fact.situation:
        case Situation.STATED:
            return [stated]
        case Situation.BURIED:
            # Repeats the claim's words more often than the register, so that keyword search ranks these first.
            question = f"{fact.place}! {fact.place} {one.words}? Who can say? {fact.place} {one.words}!"
            return [stated, *(_document(f"{key}-question-{number}", title, question, GOSSIP) for number in range(3))]
        case Situation.LINKED:
            text = _sentence(fact.trait, NICKNAMES[fact.place], fact.value)
            called = f"{NICKNAMES[fact.place]} is what sailors call {fact.place}."
            return [
                _document(key, f"{fact.place}: letter from {fact.place}, {one.words}", text, REGISTER),
                _document(f"{key}-name", f"Names of {fact.place}: {one.words}", called, REGISTER),
            ]
        case Situation.OUTDATED:
            # A false claim was true once; a true one states the present value.
            return [_document(key, title, _sentence(fact.trait, fact.place, fact.other), REGISTER, date=_LONG_AGO)]
        case Situation.DISPUTED:
            values = (fact.value, fact.other)
            return [
                _document(f"{key}-guide-{number}", title, _sentence(fact.trait, fact.place, value), GUIDE)
                for number, value in enumerate(values, 1)
            ]
        case Situation.HALF:
            return [_document(key, title, f"{one.half.format(who=fact.place)}.", REGISTER)]
        case Situation.ABSENT:
            return []


def _sentence(name: str, who: str, value: str) -> str:
    return f"{PROPERTIES[name].statement.format(who=who, value=value)}."


def _document(id_: str, title: str, text: str, source: str, date: str = DATE) -> FactDocument:
    return FactDocument(id=id_, title=title, text=text, date=date, source=source)
