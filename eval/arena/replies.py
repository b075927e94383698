"""Replies of models in the arena, parsed strictly (:mod:`court.replies`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from court.replies import Reply, UnusableReply, Words, object_schema, parse
from eval.arena.words import LossError, Relevance, Verdict, Verdicts, words_of

_PROFILE, _QUESTION, _PART, _WHY = 1200, 800, 6000, 2000
"""Characters at most of what is taken."""


class Profiles(Reply):
    """Three people, by the relevance of their background to the meme."""

    high: Words = Field(max_length=_PROFILE)
    moderate: Words = Field(max_length=_PROFILE)
    unrelated: Words = Field(max_length=_PROFILE)

    def of(self, relevance: Relevance) -> str:
        """Returns the person of one relevance."""
        profile: str = getattr(self, relevance)
        return profile


class TaskQuestion(Reply):
    """Question written by a model."""

    question: Words = Field(min_length=10, max_length=_QUESTION)


class TargetAnswer(Reply):
    """Answer of a target, or several merged answers."""

    background_knowledge: Words = Field(max_length=_PART)
    reasoning: Words = Field(max_length=_PART)


class FreeAnswer(Reply):
    """Answer of a target to a supplied question."""

    answer: Words = Field(max_length=2 * _PART)


_Why = Annotated[Words, Field(max_length=_WHY)]


def profiles_schema(chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`Profiles`, with at most ``chars`` characters each."""
    return object_schema({name: _text(min(chars, _PROFILE)) for name in Profiles.model_fields})


def question_schema(chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`TaskQuestion`."""
    return object_schema({"question": {**_text(min(chars, _QUESTION)), "minLength": 10}})


def answer_schema(chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`TargetAnswer`, with at most ``chars`` characters per part."""
    return object_schema({name: _text(min(chars, _PART)) for name in TargetAnswer.model_fields})


def free_schema(chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`FreeAnswer`."""
    return object_schema({"answer": _text(min(chars, 2 * _PART))})


def verdicts_schema(keys: Sequence[str], *, levels: int, chars: int) -> dict[str, Any]:
    """Returns the JSON schema of a comparison: reasons first, as a model writes in order.

    Args:
        levels: Number of levels, 3 or 5.
        chars: Maximum length of the reasons, in characters.
    """
    word = {"type": "string", "enum": list(words_of(levels))}
    return object_schema({"why": _text(min(chars, _WHY)), **dict.fromkeys(keys, word)})


def parse_profiles(text: str) -> Profiles:
    """Parses the three people. Raises UnusableReply."""
    return parse(Profiles, text)


def parse_question(text: str) -> str:
    """Parses a question. Raises UnusableReply."""
    return parse(TaskQuestion, text).question


def parse_answer(text: str) -> TargetAnswer:
    """Parses an answer in two parts. Raises UnusableReply."""
    return parse(TargetAnswer, text)


def parse_free(text: str) -> str:
    """Parses a free answer. Raises UnusableReply."""
    return parse(FreeAnswer, text).answer


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


DETECTION_SCHEMA = object_schema({"label": {"type": "string", "enum": ["harmful", "not harmful"]}})


def difficulty_schema(chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`Difficulty`, with reasons of at most ``chars`` characters."""
    number = {"type": "integer", "minimum": 0, "maximum": 10}
    return object_schema({"why": _text(min(chars, _WHY)), **dict.fromkeys(("text", "image", "reasoning"), number)})


def parse_detection(text: str) -> bool:
    """True if the label is harmful. Raises UnusableReply."""
    return parse(Detection, text).label == "harmful"


def parse_difficulty(text: str) -> Difficulty:
    """Parses a rating of difficulty. Raises UnusableReply."""
    return parse(Difficulty, text)


class Explanation(Reply):
    """Reason why an answer lost."""

    why: _Why
    aspect: str = ""
    error: str
    """One of :class:`~eval.arena.words.LossError`."""


def explanation_schema(aspects: Sequence[str], chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`Explanation`.

    Args:
        aspects: Dimensions to choose from; with fewer than two, the model is not asked for one.
        chars: Maximum length of the sentence, in characters.
    """
    properties = {"aspect": {"type": "string", "enum": list(aspects)}} if len(aspects) > 1 else {}
    error = {"type": "string", "enum": [str(error) for error in LossError]}
    return object_schema({"why": _text(min(chars, _WHY)), **properties, "error": error})


def parse_explanation(text: str, *, aspects: Sequence[str]) -> Explanation:
    """Parses a reason; it must name one of the aspects if there was a choice. Raises UnusableReply."""
    explanation = parse(Explanation, text)
    # Without a choice, the model was not asked for an aspect, and any that it names is ignored.
    if len(aspects) > 1 and explanation.aspect not in aspects:
        raise UnusableReply("REPLY_MALFORMED", f"aspect must be one of {', '.join(aspects)}")
    if explanation.error not in list(LossError):
        raise UnusableReply("REPLY_MALFORMED", f"error must be one of {', '.join(LossError)}")
    return explanation


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}
