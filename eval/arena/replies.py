"""Replies of models in the arena, parsed strictly (:mod:`court.replies`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from court.replies import Reply, TextBounds, UnusableReply, Words, object_schema, parse, schema_of
from eval.arena.words import LossError, Relevance, Verdict, Verdicts, words_of

_PART, _WHY = 6000, 2000
"""Maximum length of a part of an answer, and of reasons, in characters."""


class Profiles(Reply):
    """Three people, by the relevance of their background to the meme."""

    high: Annotated[Words, TextBounds()] = Field(max_length=1200)
    moderate: Annotated[Words, TextBounds()] = Field(max_length=1200)
    unrelated: Annotated[Words, TextBounds()] = Field(max_length=1200)

    def of(self, relevance: Relevance) -> str:
        """Returns the person of one relevance."""
        profile: str = getattr(self, relevance)
        return profile


class TaskQuestion(Reply):
    """Question written by a model."""

    question: Annotated[Words, TextBounds(least=10)] = Field(min_length=10, max_length=800)


class TargetAnswer(Reply):
    """Answer of a target, or several merged answers."""

    background_knowledge: Annotated[Words, TextBounds()] = Field(max_length=_PART)
    reasoning: Annotated[Words, TextBounds()] = Field(max_length=_PART)


class FreeAnswer(Reply):
    """Answer of a target to a supplied question."""

    answer: Annotated[Words, TextBounds()] = Field(max_length=2 * _PART)


_Why = Annotated[Words, TextBounds(), Field(max_length=_WHY)]


def form_of(kind: type[Reply], chars: int, **overrides: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of a reply, with at most ``chars`` characters of each text, and no more than is read."""
    marks = (mark for info in kind.model_fields.values() for mark in info.metadata)
    return schema_of(
        kind, min([chars, *(mark.max_length for mark in marks if hasattr(mark, "max_length"))]), **overrides
    )


def verdicts_form(keys: tuple[str, ...], *, levels: int, chars: int) -> dict[str, Any]:
    """Returns the JSON schema of a comparison of this many levels: reasons first, as a model writes in order."""
    word = {"type": "string", "enum": list(words_of(levels))}
    reasons = form_of(_Reasons, chars)["properties"]
    return object_schema({**reasons, **dict.fromkeys(keys, word)})


class _Reasons(Reply):
    why: _Why


# Cached per set of keys: creating the class takes longer than parsing a reply with it.
@cache
def _comparison(keys: tuple[str, ...]) -> type[_Reasons]:
    # Plain strings: the allowed words depend on the levels, so parse_verdicts checks them. Aliases, because a custom
    # key may be a reserved word of pydantic or Python.
    fields: dict[str, Any] = {f"criterion_{place}": (str, Field(alias=key)) for place, key in enumerate(keys)}
    return create_model("Comparison", __base__=_Reasons, **fields)


def parse_verdicts(text: str, *, keys: tuple[str, ...], levels: int) -> Verdicts:
    """Parses one verdict per criterion, each one of the allowed words. Raises UnusableReply.

    Args:
        levels: Number of levels, 3 or 5.
    """
    parsed = parse(_comparison(keys), text)
    words: dict[str, str] = {key: getattr(parsed, f"criterion_{place}") for place, key in enumerate(keys)}
    offered: Mapping[str, Verdict] = words_of(levels)
    wrong = [key for key, word in words.items() if word not in offered]
    if wrong:
        raise UnusableReply("REPLY_MALFORMED", f"{', '.join(wrong)} must be one of {', '.join(offered)}")
    return Verdicts(parsed.why, {key: offered[word] for key, word in words.items()})


class Detection(Reply):
    """Bare label of a meme."""

    label: Literal["harmful", "not harmful"]


class Difficulty(Reply):
    """Difficulty of a task in three respects, 0 to 10."""

    why: _Why
    text: int = Field(ge=0, le=10)
    image: int = Field(ge=0, le=10)
    reasoning: int = Field(ge=0, le=10)


RATED = {key: {"type": "integer", "minimum": 0, "maximum": 10} for key in ("text", "image", "reasoning")}
"""Schemas of the numbers of :class:`Difficulty`."""


class Explanation(Reply):
    """Reason why an answer lost."""

    why: _Why
    aspect: str = ""
    error: str
    """One of :class:`~eval.arena.words.LossError`."""


def explanation_form(aspects: Sequence[str], chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`Explanation`; with fewer than two aspects, the model is not asked for one."""
    properties = {"aspect": {"type": "string", "enum": list(aspects)}} if len(aspects) > 1 else {}
    error = {"type": "string", "enum": [str(error) for error in LossError]}
    return object_schema({**form_of(_Reasons, chars)["properties"], **properties, "error": error})


def parse_explanation(text: str, *, aspects: Sequence[str]) -> Explanation:
    """Parses a reason; it must name one of the aspects if there was a choice. Raises UnusableReply."""
    explanation = parse(Explanation, text)
    # Without a choice, the model was not asked for an aspect, and any that it names is ignored.
    if len(aspects) > 1 and explanation.aspect not in aspects:
        raise UnusableReply("REPLY_MALFORMED", f"aspect must be one of {', '.join(aspects)}")
    if explanation.error not in list(LossError):
        raise UnusableReply("REPLY_MALFORMED", f"error must be one of {', '.join(LossError)}")
    return explanation
