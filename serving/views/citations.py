"""Which statements of a trial a sentence of the rationale rests on.

Said outright: a precedent by its number or id, a side, the description, the text. And by its words: statements that
hold most of the sentence's own. The latter is our reading, done in the open and word by word, and not the Judge's; a
page that shows it must say so.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from court.events import Side
from court.transcript import Transcript

_WORD = re.compile(r"[^\W_]{3,}")
_SENTENCE = re.compile(r".+?(?:(?:[。！？]+|[.!?]+[\"”’')\]]*(?=\s|$))\s*|$)", re.DOTALL)
_COMMON = frozenset(
    [
        "about",
        "and",
        "any",
        "are",
        "but",
        "can",
        "does",
        "for",
        "from",
        "has",
        "have",
        "her",
        "his",
        "into",
        "its",
        "may",
        "more",
        "not",
        "one",
        "only",
        "other",
        "our",
        "out",
        "she",
        "that",
        "the",
        "their",
        "them",
        "there",
        "they",
        "this",
        "those",
        "was",
        "were",
        "what",
        "when",
        "which",
        "who",
        "whom",
        "whose",
        "will",
        "with",
        "would",
        "you",
        "your",
        "meme",
        "picture",
        "text",
        "people",
        "harmful",
        "harmless",
        "evidence",
        "judge",
        "verdict",
    ]
)
_ENOUGH = 0.34
"""Share of a sentence's words, the rarer weighing more, that a statement must hold."""
_LEAST_WORDS, _MOST_LINKS = 2, 3


@dataclass(frozen=True, slots=True)
class Statement:
    """Something that was said in a trial.

    Attributes:
        anchor: Where it stands in the page.
        name: What it is called: "Accuser, answer 2".
        text: The words.
        said_outright: What in a sentence names it; empty where nothing does.
    """

    anchor: str
    name: str
    text: str
    said_outright: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """From a sentence to a statement; ``outright`` where the sentence names it, else by its words."""

    anchor: str
    name: str
    outright: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and what it rests on."""

    text: str
    links: tuple[Link, ...]


def statements(told: Transcript) -> tuple[Statement, ...]:
    """What was said in a trial before the verdict."""
    found = []
    if told.text:
        found.append(Statement("text", "text of the meme", told.text, r"\b(?:caption|meme'?s text|text of the meme)\b"))
    if told.description:
        found.append(Statement("description", "description", told.description, r"\bdescription\b"))
    for one in told.rounds:
        for side, turn in one.turns.items():
            if turn is not None and turn.answer and not turn.ahead:
                name = f"{side.capitalize()}, answer {one.number}"
                found.append(Statement(f"{side.lower()}-{one.number}", name, turn.answer))
    for side, argument in told.arguments.items():
        if argument is not None:
            found.append(
                Statement(
                    f"{side.lower()}-case", f"{side.capitalize()}’s justification", argument.justification, _NAMES[side]
                )
            )
    for place, precedent in enumerate(told.precedents, 1):
        named = rf"\b(?:precedent|exhibit)\s+(?:no\.?\s*)?{place}\b|(?<![\w-]){re.escape(precedent.id)}(?![\w-])"
        found.append(Statement(f"precedent-{place}", f"precedent {place}", precedent.text, named))
    return tuple(found)


_NAMES = {
    Side.ACCUSER: r"\b(?:accuser|accusation|prosecution)\b",
    Side.DEFENDER: r"\b(?:defender|defence|defense)\b",
}


def sentences(text: str, said: Sequence[Statement]) -> tuple[Sentence, ...]:
    """A text, sentence by sentence, each with what it rests on. Joined again they are the text."""
    weights = _weights(statement.text for statement in said)
    return tuple(Sentence(one, _links(one, said, weights)) for one in _SENTENCE.findall(text) if one)


def _links(sentence: str, said: Sequence[Statement], weights: dict[str, float]) -> tuple[Link, ...]:
    outright = [
        Link(one.anchor, one.name, outright=True)
        for one in said
        if one.said_outright and re.search(one.said_outright, sentence, re.IGNORECASE)
    ]
    named = {link.anchor for link in outright}
    own = set(_words(sentence))
    whole = sum(weights.get(word, 1.0) for word in own)
    scored = []
    for place, one in enumerate(said):
        shared = own & set(_words(one.text))
        score = sum(weights.get(word, 1.0) for word in shared) / whole if whole else 0.0
        if one.anchor not in named and len(shared) >= _LEAST_WORDS and score >= _ENOUGH:
            scored.append((-score, place, Link(one.anchor, one.name, outright=False)))
    return (*outright, *(link for _, _, link in sorted(scored)[:_MOST_LINKS]))


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if word not in _COMMON]


def _weights(texts: Iterable[str]) -> dict[str, float]:
    """How rare each word is among the statements: one that all of them hold says nothing of which is meant."""
    held = [set(_words(text)) for text in texts]
    counts = Counter(word for words in held for word in words)
    return {word: math.log((len(held) + 1) / count) for word, count in counts.items()}
