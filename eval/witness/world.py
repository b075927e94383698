"""A synthetic world of 200 facts about invented places, with documents that state, contradict or half state them.

The correct finding on each fact is known in advance for every arm (:func:`expected`): it depends only on how the
documents are made.

A stand-in model with exact reading: it acts as the witness in the synthetic world and knows only what it is shown. It
parses claim, results and documents from its messages and answers by what they state. Without documents, it remembers
a share of the facts, chosen by digest. :func:`open_drawn` opens it with a corpus of the world's documents.
"""

import random
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

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

_NAME = r"\b([A-Z]\w+(?: [A-Z]\w+)*)"
_VALUE = r"(\d+|\w+days)\b"
DATE = "2024"
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


COUNTS = dict(zip(Situation, (60, 35, 25, 10, 25, 25, 20), strict=True))
"""Number of facts in each situation."""
_MISSED = {
    Situation.STATED: (),
    Situation.BURIED: (Arm.NO_RANK, Arm.ONE_SHOT, Arm.FIRE),
    Situation.LINKED: (Arm.NO_SELF_CONTAINED, Arm.NO_SECOND_LOOK),
}
"""Arms that miss a fact that the register states; of facts in other situations nothing can be known."""


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
        return tuple((match[1], match[2], match[0]) for match in re.finditer(pattern, text))

    def stated(self, who: str, value: str) -> str:
        """A sentence that states the value."""
        return f"{self.statement.format(who=who, value=value)}."


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
        return PROPERTIES[self.trait].stated(self.place, self.value if self.true else self.other)

    @property
    def gold(self) -> GoldClaim:
        """Claim with its truth."""
        return GoldClaim(f"f{self.number:03}", self.claim, Gold.TRUE if self.true else Gold.FALSE)

    def documents(self) -> list[FactDocument]:
        """The documents about it."""
        one, nickname = PROPERTIES[self.trait], NICKNAMES[self.place]
        key, title = f"{self.place}-{self.trait}", f"{self.place}, {one.words}"
        # Repeats the claim's words more often than the register, so that keyword search ranks these first.
        question = f"{self.place}! {self.place} {one.words}? Who can say? {self.place} {one.words}!"
        letter = f"{self.place}: letter from {self.place}, {one.words}"
        called = f"{nickname} is what sailors call {self.place}."
        register = (key, title, one.stated(self.place, self.value), REGISTER, DATE)
        match self.situation:
            case Situation.STATED:
                rows = [register]
            case Situation.BURIED:
                rows = [register, *((f"{key}-question-{n}", title, question, GOSSIP, DATE) for n in range(3))]
            case Situation.LINKED:
                names = (f"{key}-name", f"Names of {self.place}: {one.words}", called, REGISTER, DATE)
                rows = [(key, letter, one.stated(nickname, self.value), REGISTER, DATE), names]
            case Situation.OUTDATED:
                # A false claim was true once; a true one states the present value.
                rows = [(key, title, one.stated(self.place, self.other), REGISTER, "1990")]
            case Situation.DISPUTED:
                texts = [one.stated(self.place, value) for value in (self.value, self.other)]
                rows = [(f"{key}-guide-{n}", title, text, GUIDE, DATE) for n, text in enumerate(texts, 1)]
            case Situation.HALF:
                rows = [(key, title, f"{one.half.format(who=self.place)}.", REGISTER, DATE)]
            case Situation.ABSENT:
                rows = []
        fields = ("id", "title", "text", "source", "date")
        return [FactDocument(**dict(zip(fields, row, strict=True))) for row in rows]


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
    return tuple(document for fact in facts for document in fact.documents())


def expected(fact: Fact, arm: Arm, *, remembers: bool) -> ClaimLabel:
    """Returns the finding that a model with exact reading must reach."""
    right, wrong = ClaimLabel.SUPPORTED, ClaimLabel.REFUTED
    if not fact.true:
        right, wrong = wrong, right
    if arm is Arm.CLOSED_BOOK:
        return right if remembers else ClaimLabel.NOT_ENOUGH
    if fact.situation is Situation.OUTDATED:
        return wrong
    return ClaimLabel.NOT_ENOUGH if arm in _MISSED.get(fact.situation, tuple(Arm)) else right


class _DrawnClaim(NamedTuple):
    trait: str
    place: str
    value: str

    @property
    def query(self) -> str:
        return f"{self.place} {PROPERTIES[self.trait].words}"


def claim_in(text: str) -> _DrawnClaim | None:
    """Parses property, place and value of a claim; None if it is not of this world."""
    for name, one in PROPERTIES.items():
        # Must match the whole text: a sentence with anything more is not a claim of this world.
        if (found := one.read(text)) and found[0][2] == text.rstrip("."):
            return _DrawnClaim(name, found[0][0], found[0][1])
    return None


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
        """True if the model knows a fact without any document, as it does 40 % of them."""
        return chance_of("remembered", fact.trait, fact.place) < 0.4

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
            return {"queries": _further(claim, evidence) if evidence else [claim.query]}
        if wanted == {"order"}:
            hits = _shown(texts, "Result ")
            # Numbers in an order start at 1. The sort is stable, so equally useful results stay as the search ranked
            # them.
            return {"order": sorted(range(1, len(hits) + 1), key=lambda number: -_worth(claim, hits[number - 1]))}
        if wanted == {"label", "query"}:
            snippets = _shown(texts, "Document ")
            settled = _settled(claim, snippets)
            # What further documents of a guide may say is all that it would search for again.
            queries = _further(claim, snippets) if snippets else [claim.query]
            return (
                {"label": settled["label"], "query": ""}
                if settled["enough"]
                else {"label": "not yet", "query": "".join(queries)}
            )
        if wanted == {"relation"}:
            label = _settled(claim, _shown(texts, "A passage:"))["label"]
            return {"relation": {"supported": "supports", "refuted": "refutes"}.get(label, "neither")}
        if wanted == {"label"}:
            fact = self._facts.get((claim.trait, claim.place))
            if fact is not None and self.remembers(fact):
                return {"label": "true" if claim.value == fact.value else "false"}
            # The option to abstain is not in the field's name but among the schema's allowed labels. A model that must
            # not abstain and does not know says "true": a fixed guess, so that its accuracy can be computed from the
            # share of true claims.
            return {"label": "unknown" if "unknown" in str(request.reply_schema) else "true"}
        if wanted == {"quotes", "label"}:
            readings = enumerate(_read(claim, evidence), 1)
            quotes = [{"document": number, "quote": words} for number, one in readings for words in one.quotes]
            # About 10 % of the facts it also cites words that stand nowhere.
            if quotes and chance_of("misquoted", claim.trait, claim.place) < 0.1:
                # In front, because the list is cut below: an invented quote that falls off the end would test nothing.
                quotes.insert(0, {"document": 1, "quote": "as everybody in the harbour will tell you"})
            return {"quotes": quotes[:6], "label": _settled(claim, evidence)["label"]}
        if wanted == {"label", "enough"}:
            return _settled(claim, evidence)
        return _weighed(claim, evidence, _shown(texts, "A new document:")[0], wanted)


def _shown(texts: Sequence[str], heading: str) -> list[str]:
    """Extracts the fenced material under a heading."""
    return [found[0] for text in texts if text.startswith(heading) and (found := fenced([text]))]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Content of a document that is relevant to a claim: quotes."""

    values: Mapping[str, str]
    """The value that each quote states."""
    half: Sequence[str]
    names: Sequence[str]
    unclear: bool
    """True if the document states a value for an unexplained name."""

    @property
    def quotes(self) -> list[str]:
        return [*self.values, *self.half, *self.names]


def _read(claim: _DrawnClaim, documents: Sequence[str], more: Sequence[str] = ()) -> list[_Reading]:
    """Reads documents with the nicknames that they explain, and those that more of them explain."""
    called = {
        text: [match for match in _CALLED.finditer(text) if match[2] == claim.place] for text in (*documents, *more)
    }
    names = {claim.place, *(match[1] for matches in called.values() for match in matches)}
    one, readings = PROPERTIES[claim.trait], []
    half = re.escape(one.half).replace(r"\{who\}", _NAME)
    for text in documents:
        stated = one.read(text)
        readings.append(
            _Reading(
                # Dicts remove duplicates and keep the order; with a set, quotes would differ between processes, as
                # string hashes are salted.
                values={words: value for who, value, words in stated if who in names},
                half=list(dict.fromkeys(match[0] for match in re.finditer(half, text) if match[1] in names)),
                names=[match[0] for match in called[text]],
                # Nicknames start with "Old". One that no document explains may or may not be the place.
                unclear=any(who.startswith("Old ") and who not in names for who, _, _ in stated),
            )
        )
    return readings


def _settled(claim: _DrawnClaim, documents: Sequence[str]) -> dict[str, Any]:
    """The label by what documents state, and whether the publisher of one of them is enough."""
    readings = _read(claim, documents)
    values = {value for one in readings for value in one.values.values()}
    # Two contradicting values settle nothing, even if one of them is the claim's.
    if len(values) != 1:
        return {"label": "not enough", "enough": False}
    enough = any(one.values and REGISTER in text for one, text in zip(readings, documents, strict=True))
    return {"label": "supported" if claim.value in values else "refuted", "enough": enough}


def _weighed(claim: _DrawnClaim, evidence: list[str], new: str, wanted: set[str]) -> dict[str, Any]:
    (read,) = _read(claim, [new], evidence)
    useful = bool(read.quotes)
    answers = {
        "comprehensible": useful or not read.unclear,
        "new": new not in evidence,
        "useful": useful,
        "quotes": read.quotes[:3],
        # An irrelevant document changes no verdict, so it is not weighed with the others.
        **_settled(claim, [*evidence, new] if useful else evidence),
        "next": _further(claim, [new]) if useful else [],
    }
    # If the questions about a document are asked separately, a call wants only some of these fields.
    return {name: answers[name] for name in answers if name in wanted}


def _further(claim: _DrawnClaim, documents: Sequence[str]) -> list[str]:
    """Returns further queries: if one guide states something, another may disagree."""
    return [f"{claim.query} guide"] if any(GUIDE in text for text in documents) else []


def _worth(claim: _DrawnClaim, hit: str) -> int:
    """Ranks a result: best if it states a value, then if it explains a name or half states a value."""
    (read,) = _read(claim, [hit])
    # An unexplained nickname next to the place's own name may be the subject of the claim, so it is as good as a stated
    # value.
    if read.values or (read.unclear and claim.place in hit):
        return 3
    return 2 if read.names else 1 if read.half else 0


def open_drawn(stack: AsyncExitStack, seed: int = 0) -> tuple[EvidenceSource, ChatModel]:
    """Opens the corpus of a synthetic world, with keyword search, and its stand-in model."""
    facts = draw_world(seed)
    folder = Path(stack.enter_context(TemporaryDirectory())) / "facts"
    write_corpus(folder, documents_of(facts), name="drawn world", demonstration=True)
    return CorpusEvidence(open_corpus(folder)), WorldReader(facts).model()
