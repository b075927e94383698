"""A further question about a meme on trial: its options, and the rule by which strengths select among them.

It is asked in addition to the question of harm, never instead: no answer to it is a label of harm.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from court.errors import BadRequest
from court.values import Value
from court.verdict import Strength

QUESTION_RULE = "stronger/1"
"""Name and version of the rule of :func:`options_that_fit`, stored with every ruling."""
_MOST_BYTES = 100_000


def _one_line(words: str) -> str:
    if not words.strip() or not words.isprintable():
        raise ValueError("must be one line with words in it")
    return words.strip()


OneLine = Annotated[str, AfterValidator(_one_line)]


class OptionStrengths(Value):
    """Strength of the evidence on either side of one option."""

    supporting: Strength
    opposing: Strength

    @property
    def fits(self) -> bool:
        """True if the evidence for the option is stronger than that against it; False on a tie."""
        # By level, as the members are strings, which would compare alphabetically.
        return self.supporting.level > self.opposing.level


class QuestionSides(Value):
    """The two opposing options, by the side that would argue for each."""

    accuser: OneLine
    defender: OneLine


class CourtQuestion(Value):
    """A question about a meme in addition to that of harm."""

    id: OneLine = Field(max_length=100)
    text: OneLine = Field(max_length=1000)
    options: tuple[Annotated[OneLine, Field(max_length=100)], ...] = Field(min_length=2, max_length=100)
    define: dict[str, Annotated[OneLine, Field(max_length=1000)]] = Field(default_factory=dict)
    several: bool = False
    """True if any number of the options may fit, none included."""
    sides: QuestionSides | None = None
    """Two of three options: the one with stronger evidence is the answer, and the third option on a tie."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Options of the same name could not be told apart.
        if len(set(self.options)) < len(self.options):
            raise ValueError("an option stands in it twice")
        # A misspelt option would silently lose its definition.
        if unknown := sorted(self.define.keys() - set(self.options)):
            raise ValueError(f"define names {', '.join(unknown)}, which is no option")
        if self.sides is None:
            return self
        named = {self.sides.accuser, self.sides.defender}
        if self.several or len(self.options) != 3 or len(named) != 2 or not named <= set(self.options):
            raise ValueError(
                "sides need three options of which one fits: the accuser's, the defender's, and one for neither"
            )
        return self

    @property
    def weighed(self) -> tuple[str, ...]:
        """Options that are given strengths; empty if the Judge names one option."""
        if self.sides is not None:
            return (self.sides.accuser, self.sides.defender)
        return self.options if self.several else ()

    def in_order(self, chosen: set[str]) -> tuple[str, ...]:
        """Chosen options in the order of the question."""
        return tuple(option for option in self.options if option in chosen)


def options_that_fit(question: CourtQuestion, strengths: Mapping[str, OptionStrengths]) -> tuple[str, ...]:
    """Returns the options that follow from the strengths of a question's weighed options."""
    # If several may apply, each with more evidence for than against it. Of two sides the stronger, or the third option
    # on a tie.
    fitting = {option for option, each in strengths.items() if each.fits}
    # Two sides of equal strength leave the third option, which has no strength of its own.
    if question.sides is not None and not fitting:
        fitting = set(question.options) - set(question.weighed)
    return question.in_order(fitting)


def read_question(file: Path) -> CourtQuestion:
    """Reads a question from a TOML file. Raises BadRequest, which names the faults."""
    try:
        content = file.read_bytes()
        # The question is part of every call; a file this long was named by mistake.
        if len(content) > _MOST_BYTES:
            raise BadRequest(f"{file} is too long for a question.", reason="QUESTION_UNUSABLE", field="question")
        return CourtQuestion.model_validate(tomllib.loads(content.decode("utf-8-sig")))
    except OSError as error:
        raise BadRequest(f"{file} can't be read: {error.strerror}.", reason="QUESTION_UNUSABLE") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadRequest(f"{file} is no TOML file: {error}.", reason="QUESTION_UNUSABLE", field="question") from None
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'question'}: {fault['msg']}" for fault in error.errors()
        )
        raise BadRequest(
            f"{file} is no question: {faults}. It has id, text and options, and may have define, several and sides.",
            reason="QUESTION_UNUSABLE",
            field="question",
        ) from None
