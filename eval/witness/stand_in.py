"""A stand-in model with exact reading: it acts as the witness in the synthetic world and knows only what it is shown.

It parses claim, results and documents from its messages and answers by what they state. Without documents, it remembers
a share of the facts, chosen by digest. :func:`open_drawn` opens it with a corpus of the world's documents.
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
    """Content of a document that is relevant to a claim.

    Attributes:
        unclear: True if the document states a value for an unexplained name.
        authority: True if the publisher alone is sufficient evidence.
    """

    values: tuple[tuple[str, str], ...]
    half: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    unclear: bool
    authority: bool

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
        return _chance("remembered", fact.trait, fact.place) < REMEMBERED

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

    def _recall(self, claim: tuple[str, str, str], may_abstain: bool) -> str:
        fact = self._facts.get((claim[0], claim[1]))
        # A model that must not abstain and does not know says "true": a fixed guess, so that its accuracy can be
        # computed from the share of true claims.
        if fact is None or not self.remembers(fact):
            return "unknown" if may_abstain else "true"
        return "true" if claim[2] == fact.value else "false"


def _chance(*names: str) -> float:
    """Returns a number in [0, 1) determined by the arguments."""
    # Eight bytes of a digest instead of a random number: the same facts are remembered in every run, on every machine,
    # in any order of calls. The NUL distinguishes ("ab", "c") from ("a", "bc").
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:8], "big") / 2**64


def _shown(texts: Sequence[str], heading: str) -> list[str]:
    """Extracts the fenced material under a heading."""
    # Fence marks are unpredictable; the pattern's back reference accepts only the end that matches the beginning, so
    # that a document can't close its fence early.
    return [found[2] for text in texts if text.startswith(heading) and (found := _FENCED.search(text))]


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
    return {
        "label": label,
        "enough": verdict is not None and any(one.authority and one.values for one in readings),
    }


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
    if quotes and _chance("misquoted", claim[0], claim[1]) < MISQUOTED:
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
