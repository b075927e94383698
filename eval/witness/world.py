"""A synthetic world of 200 facts about invented places, with documents that state, contradict or half state them.

The correct finding on each fact is known in advance for every arm (:func:`expected`): it depends only on how the
documents are made.

A stand-in model with exact reading: it acts as the witness in the synthetic world and knows only what it is shown. It
parses claim, results and documents from its messages and answers by what they state. Without documents, it remembers
a share of the facts, chosen by digest. :func:`open_drawn` opens it with a corpus of the world's documents.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from court.backends.chat.scripted import ScriptedModel
from court.ports import ChatModel, ChatRequest, EvidenceSource
from court.verdict import ClaimLabel
from eval.datasets.claims import Gold, GoldClaim
from eval.solvers.witness import Arm
from eval.synthetic.messages import chance_of, fenced
from retrieval.facts.corpus import open_corpus
from retrieval.facts.documents import FactDocument
from retrieval.facts.source import CorpusEvidence
from retrieval.facts.writer import write_corpus

REMEMBERED = 0.4
"""Share of the facts that it knows without documents."""
MISQUOTED = 0.1
"""Share of the facts about which it also cites words that stand nowhere."""
_NOWHERE = "as everybody in the harbour will tell you"


@dataclass(frozen=True, slots=True)
class _Reading:
    """Content of a document that is relevant to a claim."""

    values: tuple[tuple[str, str], ...]
    half: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    unclear: bool
    """True if the document states a value for an unexplained name."""
    authority: bool
    """True if the publisher alone is sufficient evidence."""

    @property
    def quotes(self) -> list[str]:
        """Lists the quotes that are relevant to the claim."""
        return [*(words for _, words in self.values), *self.half, *(words for _, words in self.names)]


class WorldReader:
    """Logic of the stand-in model."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        """Stores the facts of the world; the model remembers some of them."""
        # A fact is one property of one place, so this pair is its key; claims get the value right or wrong.
        self._facts = {(fact.trait, fact.place): fact for fact in facts}

    def model(self) -> ScriptedModel:
        """Returns a chat model that replies with :meth:`reply`."""
        return ScriptedModel(self.reply, name="world-reader")

    def remembers(self, fact: Fact) -> bool:
        """True if the model knows a fact without any document."""
        return chance_of("remembered", fact.trait, fact.place) < REMEMBERED

    def reply(self, request: ChatRequest) -> Mapping[str, Any]:
        """Returns the reply to a request of the witness or of its evaluation."""
        texts = [part for part in request.parts if isinstance(part, str)]
        # The fields of the reply's schema identify the step that asks: they differ between steps.
        wanted = set((request.reply_schema or {}).get("properties", {}))
        claim = claim_in(_shown(texts, "The claim:")[0].strip())
        if claim is None:
            # A foreign claim would be answered with nonsense that looks like a measurement.
            raise ValueError("the claim is not of the drawn world")
        evidence = _shown(texts, "Evidence so far, document ")
        if wanted == {"queries"}:
            # Without evidence this is the first query; later queries depend on what was read.
            words = f"{claim[1]} {PROPERTIES[claim[0]].words}"
            return {"queries": _further(claim, evidence) if evidence else [words]}
        if wanted == {"order"}:
            hits = _shown(texts, "Result ")
            # Numbers in an order start at 1. The sort is stable, so equally useful results stay as the search ranked
            # them.
            return {"order": sorted(range(1, len(hits) + 1), key=lambda number: -_worth(claim, hits[number - 1]))}
        if wanted == {"label", "query"}:
            return self._step(claim, _shown(texts, "Document "))
        if wanted == {"relation"}:
            (passage,) = _shown(texts, "A passage:")
            return {"relation": {True: "supports", False: "refutes", None: "neither"}[_verdict(claim, [passage])]}
        if wanted == {"label"}:
            # The option to abstain is not in the field's name but among the schema's allowed labels.
            return {"label": self._recall(claim, "unknown" in str(request.reply_schema))}
        if wanted == {"quotes", "label"}:
            return _classified(claim, evidence)
        if wanted == {"label", "enough"}:
            return _settled(claim, evidence)
        return _weighed(claim, evidence, _shown(texts, "A new document:")[0], wanted)

    def _step(self, claim: tuple[str, str, str], snippets: list[str]) -> Mapping[str, Any]:
        settled = _settled(claim, snippets)
        if settled["enough"]:
            return {"label": settled["label"], "query": ""}
        # What further documents of a guide may say is all that it would search for again.
        queries = _further(claim, snippets) if snippets else [f"{claim[1]} {PROPERTIES[claim[0]].words}"]
        return {"label": "not yet", "query": "".join(queries)}

    def _recall(self, claim: tuple[str, str, str], may_abstain: bool) -> str:
        fact = self._facts.get((claim[0], claim[1]))
        # A model that must not abstain and does not know says "true": a fixed guess, so that its accuracy can be
        # computed from the share of true claims.
        if fact is None or not self.remembers(fact):
            return "unknown" if may_abstain else "true"
        return "true" if claim[2] == fact.value else "false"


def _shown(texts: Sequence[str], heading: str) -> list[str]:
    """Extracts the fenced material under a heading."""
    return [found[0] for text in texts if text.startswith(heading) and (found := fenced([text]))]


def _read(claim: tuple[str, str, str], document: str, names: set[str]) -> _Reading:
    name, place, _ = claim
    one = PROPERTIES[name]
    stated = one.read(document)
    explained = [(alias, words) for alias, of, words in nicknames_in(document) if of == place]
    return _Reading(
        # A dict removes duplicates and keeps the order; with a set, quotes would differ between processes, as string
        # hashes are salted.
        values=tuple(dict.fromkeys((value, words) for who, value, words in stated if who in names)),
        half=tuple(dict.fromkeys(words for who, words in one.read_half(document) if who in names)),
        names=tuple(explained),
        # Nicknames in the synthetic world start with "Old". One that no document explains may or may not be the place.
        unclear=any(who.startswith("Old ") and who not in names for who, _, _ in stated),
        authority=REGISTER in document,
    )


def _names(claim: tuple[str, str, str], documents: Sequence[str]) -> set[str]:
    return {claim[1], *(alias for text in documents for alias, of, _ in nicknames_in(text) if of == claim[1])}


def _verdict(claim: tuple[str, str, str], documents: Sequence[str]) -> bool | None:
    """Returns True or False by what documents state; None if they state nothing or contradict each other."""
    names = _names(claim, documents)
    values = {value for text in documents for value, _ in _read(claim, text, names).values}
    # Two contradicting values settle nothing, even if one of them is the claim's.
    return claim[2] in values if len(values) == 1 else None


def _settled(claim: tuple[str, str, str], documents: Sequence[str]) -> dict[str, Any]:
    verdict = _verdict(claim, documents)
    names = _names(claim, documents)
    readings = [_read(claim, text, names) for text in documents]
    label = {True: "supported", False: "refuted", None: "not enough"}[verdict]
    return {"label": label, "enough": verdict is not None and any(one.authority and one.values for one in readings)}


def _weighed(claim: tuple[str, str, str], evidence: list[str], new: str, wanted: set[str]) -> dict[str, Any]:
    # Names include those from the new document: it may explain a nickname for which an earlier one states the value.
    read = _read(claim, new, _names(claim, [*evidence, new]))
    useful = bool(read.quotes)
    # An irrelevant document changes no verdict, so it is not weighed with the others.
    settled = _settled(claim, [*evidence, new] if useful else evidence)
    answers = {
        "comprehensible": useful or not read.unclear,
        "new": new not in evidence,
        "useful": useful,
        "quotes": read.quotes[:3],
        **settled,
        "next": _further(claim, [new]) if useful else [],
    }
    # If the questions about a document are asked separately, a call wants only some of these fields.
    return {name: answers[name] for name in answers if name in wanted}


def _further(claim: tuple[str, str, str], documents: Sequence[str]) -> list[str]:
    """Returns further queries: if one guide states something, another may disagree."""
    return [f"{claim[1]} {PROPERTIES[claim[0]].words} guide"] if any(GUIDE in text for text in documents) else []


def _classified(claim: tuple[str, str, str], documents: list[str]) -> dict[str, Any]:
    names = _names(claim, documents)
    quotes = [
        {"document": number, "quote": words}
        for number, text in enumerate(documents, 1)
        for words in _read(claim, text, names).quotes
    ]
    if quotes and chance_of("misquoted", claim[0], claim[1]) < MISQUOTED:
        # In front, because the list is cut below: an invented quote that falls off the end would test nothing.
        quotes.insert(0, {"document": 1, "quote": _NOWHERE})
    return {"quotes": quotes[:6], "label": _settled(claim, documents)["label"]}


def _worth(claim: tuple[str, str, str], hit: str) -> int:
    """Ranks a result: best if it states a value, then if it explains a name or half states a value."""
    read = _read(claim, hit, _names(claim, [hit]))
    # An unexplained nickname next to the place's own name may be the subject of the claim, so it is as good as a stated
    # value.
    if read.values or (read.unclear and claim[1] in hit):
        return 3
    return 2 if read.names else 1 if read.half else 0


def open_drawn(stack: AsyncExitStack, seed: int = 0) -> tuple[EvidenceSource, ChatModel]:
    """Opens the corpus of a synthetic world, with keyword search, and its stand-in model."""
    facts = draw_world(seed)
    folder = Path(stack.enter_context(TemporaryDirectory())) / "facts"
    write_corpus(folder, documents_of(facts), name="drawn world", demonstration=True)
    return CorpusEvidence(open_corpus(folder)), WorldReader(facts).model()


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
    """A property of places."""

    words: str
    statement: str
    """Sentence that states the value, with ``{who}`` and ``{value}``."""
    half: str
    """Sentence that half states the value, with ``{who}``."""
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
    """A fact of the world, and a claim about it."""

    number: int
    """Number of the fact, from 1."""
    place: str
    trait: str
    value: str
    """True value of the property."""
    other: str
    true: bool
    """True if the claim is true."""
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
    """Returns the finding that a model with exact reading must reach."""
    truly = ClaimLabel.SUPPORTED if fact.true else ClaimLabel.REFUTED
    if arm is Arm.CLOSED_BOOK:
        return truly if remembers else ClaimLabel.NOT_ENOUGH
    match fact.situation:
        case Situation.STATED:
            return truly
        case Situation.BURIED:
            return ClaimLabel.NOT_ENOUGH if arm in (Arm.NO_RANK, Arm.ONE_SHOT, Arm.FIRE) else truly
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
