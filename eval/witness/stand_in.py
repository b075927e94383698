"""A model whose reading is exact: it plays the witness in the drawn world, and knows no more than it is shown.

It reads claim, results and documents off its messages, and answers by what they state. Without documents it remembers a
share of the facts, by a digest of each. :func:`open_drawn` opens the world's documents as a corpus beside it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from court.backends.chat.scripted import ScriptedModel
from court.ports import ChatModel, ChatRequest, EvidenceSource
from eval.witness.world import (
    GUIDE,
    PROPERTIES,
    REGISTER,
    Fact,
    claim_in,
    documents_of,
    draw_world,
    nicknames_in,
)
from retrieval.facts.corpus import open_corpus
from retrieval.facts.source import CorpusEvidence
from retrieval.facts.writer import write_corpus

REMEMBERED = 0.4
"""Share of the facts that it knows without documents."""
MISQUOTED = 0.1
"""Share of the facts about which it also cites words that stand nowhere."""
_NOWHERE = "as everybody in the harbour will tell you"
_FENCED = re.compile(r"\[begin (\w+)\]\n(.*?)\n\[end \1\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Content of a document as far as it bears on a claim.

    Attributes:
        values: Values that it states for the place, with the words.
        half: Words that half state it.
        names: Names of the place that it explains, with the words.
        unclear: True if it states a value for a name that nobody has explained.
        authority: True if its publisher's word is enough.
    """

    values: tuple[tuple[str, str], ...]
    half: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    unclear: bool
    authority: bool

    @property
    def quotes(self) -> list[str]:
        """The words that bear on the claim."""
        return [*(words for _, words in self.values), *self.half, *(words for _, words in self.names)]


class WorldReader:
    """The stand-in's mind."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        """Knows the facts of the world, of which it remembers some."""
        # A fact is one property of one place, so this pair is a key; the value is what claims get right
        # or wrong.
        self._facts = {(fact.trait, fact.place): fact for fact in facts}

    def model(self) -> ScriptedModel:
        """A chat model that answers as it does."""
        return ScriptedModel(self.reply, name="world-reader")

    def remembers(self, fact: Fact) -> bool:
        """True if it knows a fact without any document."""
        return _chance("remembered", fact.trait, fact.place) < REMEMBERED

    def reply(self, request: ChatRequest) -> Mapping[str, Any]:
        """The reply to a request of the witness, or of its evaluation."""
        texts = [part for part in request.parts if isinstance(part, str)]
        # Which step asks is read off the fields that the reply's schema wants: they differ from step to step.
        wanted = set((request.reply_schema or {}).get("properties", {}))
        claim = claim_in(_shown(texts, "The claim:")[0].strip())
        if claim is None:
            # A claim from elsewhere would be answered with nonsense that looks like a measurement.
            raise ValueError("the claim is not of the drawn world")
        evidence = _shown(texts, "Evidence so far, document ")
        if wanted == {"queries"}:
            # Without evidence this is the first query; afterwards the queries are further ones, which
            # follow from what was read.
            words = f"{claim[1]} {PROPERTIES[claim[0]].words}"
            return {"queries": _further(claim, evidence) if evidence else [words]}
        if wanted == {"order"}:
            hits = _shown(texts, "Result ")
            # Numbers in an order count from 1. The sort is stable, so results of the same worth stay as
            # the search ranked them.
            return {"order": sorted(range(1, len(hits) + 1), key=lambda number: -_worth(claim, hits[number - 1]))}
        if wanted == {"relation"}:
            (passage,) = _shown(texts, "A passage:")
            return {"relation": {True: "supports", False: "refutes", None: "neither"}[_verdict(claim, [passage])]}
        if wanted == {"label"}:
            # Whether it may abstain is not in the field's name but among the schema's allowed labels.
            return {"label": self._recall(claim, "unknown" in str(request.reply_schema))}
        if wanted == {"quotes", "label"}:
            return _classified(claim, evidence)
        if wanted == {"label", "enough"}:
            return _settled(claim, evidence)
        return _weighed(claim, evidence, _shown(texts, "A new document:")[0], wanted)

    def _recall(self, claim: tuple[str, str, str], may_abstain: bool) -> str:
        fact = self._facts.get((claim[0], claim[1]))
        # A model that may not abstain and does not know says "true": the guess is fixed, so that its
        # accuracy can be computed from the share of true claims.
        if fact is None or not self.remembers(fact):
            return "unknown" if may_abstain else "true"
        return "true" if claim[2] == fact.value else "false"


def _chance(*names: str) -> float:
    """A number in [0, 1) that follows from its arguments."""
    # Eight bytes of a digest in place of a random number: the same fact is remembered in every run, on
    # every machine, whatever the order of the calls. The NUL keeps ("ab", "c") apart from ("a", "bc").
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:8], "big") / 2**64


def _shown(texts: Sequence[str], heading: str) -> list[str]:
    """Material in fences under a heading."""
    # The mark of a fence can't be foreseen; the back reference in the pattern accepts only the end
    # that belongs to the beginning, so that a document can't close its fence early.
    return [found[2] for text in texts if text.startswith(heading) and (found := _FENCED.search(text))]


def _read(claim: tuple[str, str, str], document: str, names: set[str]) -> _Reading:
    name, place, _ = claim
    one = PROPERTIES[name]
    stated = one.read(document)
    explained = [(alias, words) for alias, of, words in nicknames_in(document) if of == place]
    return _Reading(
        # A dict keeps the first of equal entries and their order; a set would make the quotes differ
        # between processes, for hashes of strings are salted.
        values=tuple(dict.fromkeys((value, words) for who, value, words in stated if who in names)),
        half=tuple(dict.fromkeys(words for who, words in one.read_half(document) if who in names)),
        names=tuple(explained),
        # "Old …" is what nicknames in the drawn world look like. One that no document explains may be
        # the place, and may be another.
        unclear=any(who.startswith("Old ") and who not in names for who, _, _ in stated),
        authority=REGISTER in document,
    )


def _names(claim: tuple[str, str, str], documents: Sequence[str]) -> set[str]:
    return {claim[1], *(alias for text in documents for alias, of, _ in nicknames_in(text) if of == claim[1])}


def _verdict(claim: tuple[str, str, str], documents: Sequence[str]) -> bool | None:
    """True or false by what documents state; None where they state nothing, or contradict each other."""
    names = _names(claim, documents)
    values = {value for text in documents for value, _ in _read(claim, text, names).values}
    # Two values that contradict each other settle nothing, even where one of them is the claim's.
    return claim[2] in values if len(values) == 1 else None


def _settled(claim: tuple[str, str, str], documents: Sequence[str]) -> dict[str, Any]:
    verdict = _verdict(claim, documents)
    names = _names(claim, documents)
    readings = [_read(claim, text, names) for text in documents]
    label = {True: "supported", False: "refuted", None: "not enough"}[verdict]
    return {
        "label": label,
        "enough": verdict is not None and any(one.authority and one.values for one in readings),
    }


def _weighed(claim: tuple[str, str, str], evidence: list[str], new: str, wanted: set[str]) -> dict[str, Any]:
    # The new document counts for the names too: it may explain the nickname under which an earlier one
    # states the value.
    read = _read(claim, new, _names(claim, [*evidence, new]))
    useful = bool(read.quotes)
    # A document that bears on nothing changes no verdict, and so is not weighed with the others.
    settled = _settled(claim, [*evidence, new] if useful else evidence)
    answers = {
        "comprehensible": useful or not read.unclear,
        "new": new not in evidence,
        "useful": useful,
        "quotes": read.quotes[:3],
        **settled,
        "next": _further(claim, [new]) if useful else [],
    }
    # Where the questions about a document are asked apart, a call wants some of these fields only.
    return {name: answers[name] for name in answers if name in wanted}


def _further(claim: tuple[str, str, str], documents: Sequence[str]) -> list[str]:
    """Further queries: where one guide says something, another may say otherwise."""
    return [f"{claim[1]} {PROPERTIES[claim[0]].words} guide"] if any(GUIDE in text for text in documents) else []


def _classified(claim: tuple[str, str, str], documents: list[str]) -> dict[str, Any]:
    names = _names(claim, documents)
    quotes = [
        {"document": number, "quote": words}
        for number, text in enumerate(documents, 1)
        for words in _read(claim, text, names).quotes
    ]
    if quotes and _chance("misquoted", claim[0], claim[1]) < MISQUOTED:
        # In front, because the list is cut below: an invented quote that falls off the end would test nothing.
        quotes.insert(0, {"document": 1, "quote": _NOWHERE})
    return {"quotes": quotes[:6], "label": _settled(claim, documents)["label"]}


def _worth(claim: tuple[str, str, str], hit: str) -> int:
    """Worth of a result: one that states the claim's matter first, then one that explains a name or half states it."""
    read = _read(claim, hit, _names(claim, [hit]))
    # An unexplained nickname beside the place's own name may be what the claim is about, so it is
    # as good as a stated value.
    if read.values or (read.unclear and claim[1] in hit):
        return 3
    return 2 if read.names else 1 if read.half else 0


def open_drawn(stack: AsyncExitStack, seed: int = 0) -> tuple[EvidenceSource, ChatModel]:
    """Opens the corpus of a drawn world, searched by words, and its stand-in.

    Args:
        stack: Removes the corpus at the end.
        seed: Seed of the world.
    """
    facts = draw_world(seed)
    folder = Path(stack.enter_context(TemporaryDirectory())) / "facts"
    write_corpus(folder, documents_of(facts), name="drawn world", demonstration=True)
    return CorpusEvidence(open_corpus(folder)), WorldReader(facts).model()
