"""Question about every meme of a run: a task of a data set's card, and how it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from court.errors import BadRequest
from court.question import CourtQuestion, QuestionSides
from eval.datasets.card import CardTask
from eval.datasets.items import JudgedMeme

INPUTS = ("picture", "text", "ocr", "caption", "language", "description")
"""What of a meme may be shown; besides them ``gold:TASK``, its gold labels of another task."""
GOLD = "gold:"
PRECEDENTS = "precedents"
"""In place of a model's name: the embedded classifier, which asks no model."""
ELSEWHERE = "elsewhere"
"""In place of all inputs: another system answered, and it is not known what it was shown."""
TEXTS = ("text", "ocr", "caption")
"""Inputs that the data set itself has as words."""
WORDS = (*TEXTS, "language")
"""Inputs of :func:`words_of`: the texts, and the language, which no vote of labelled memes compares."""


class Answerer(StrEnum):
    """System that answers."""

    MODEL = "model"
    """A chat model, one call a meme and order of the options."""
    PRECEDENTS = "precedents"
    """The vote of labelled memes like it, label by label."""
    TRIAL = "trial"
    """The Judge of a full trial on harm, once it has its verdict, from the evidence of that trial."""


class Question(BaseModel):
    """A task and how it is asked; stored in the manifest of its run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    title: str = ""
    """The question in words; the task's id stands for it where it is empty."""
    kind: str
    """``binary``, ``ordinal``, ``single`` or ``multi``."""
    labels: tuple[str, ...] = Field(min_length=2)
    define: dict[str, str] = Field(default_factory=dict)
    """A sentence on each label."""
    metrics: tuple[str, ...] = ()
    """By which the data set's authors score it."""
    official: str = ""
    inputs: tuple[str, ...] = Field(min_length=1)
    """What is shown of a meme, in the order of :data:`INPUTS`."""
    shots: int = Field(default=0, ge=0, le=16)
    """Labelled memes of the train split that are shown first, the nearest ones."""
    rotate: bool = False
    """True if it is asked once for each rotation of the options."""
    odds: bool = False
    """True if a model is asked for the probability of each label too."""
    draw: int = Field(default=0, ge=0)
    """Number of the repeat: each draws other replies where a temperature is set."""
    by: Answerer = Answerer.MODEL
    sides: tuple[str, ...] = Field(default=(), max_length=2)
    """The two labels of three of which a trial's Judge weighs one against the other; none where it weighs none."""

    @property
    def multi(self) -> bool:
        """True if a meme may have any number of the labels."""
        return self.kind == "multi"

    @property
    def needs_examples(self) -> bool:
        """True if labelled memes of the train split are needed."""
        return self.shots > 0 or self.by is not Answerer.MODEL

    @property
    def needs_picture(self) -> bool:
        """True if a meme can't be answered about without its picture."""
        return "picture" in self.inputs or "description" in self.inputs

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of the labels as options, the card's own first."""
        turns = len(self.labels) if self.rotate else 1
        # Rotations, not all permutations: each label stands at each place once, with as few calls as that takes.
        return tuple(self.labels[turn:] + self.labels[:turn] for turn in range(turns))

    def in_order(self, labels: Sequence[str] | frozenset[str] | set[str]) -> tuple[str, ...]:
        """Returns labels in the card's order."""
        return tuple(label for label in self.labels if label in labels)

    def for_court(self) -> CourtQuestion:
        """The question as a court is asked it. Raises BadRequest where its words are none that it can be asked in."""
        try:
            return CourtQuestion(
                id=self.task,
                text=_one_line(self.title or self.task),
                options=self.labels,
                define={label: _one_line(meaning) for label, meaning in self.define.items()},
                several=self.multi,
                sides=QuestionSides(accuser=self.sides[0], defender=self.sides[1]) if self.sides else None,
            )
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise BadRequest(f"A court can't be asked for {self.task}: {faults}.", reason="QUESTION_UNUSABLE") from None

    def material(self) -> dict[str, JsonValue]:
        """Returns what of it decides the memes and their gold, for the comparison of a resumed run."""
        return {"task": self.task, "kind": self.kind, "labels": list(self.labels)}


def question_about(task: CardTask, **how: Any) -> Question:
    """The question that a task of a card is; ``how`` has the fields of how it is asked, and other words."""
    of_card = {name: getattr(task, name) for name in ("title", "labels", "define", "metrics", "official")}
    return Question(task=task.id, kind=str(task.kind), **of_card | how)


def _one_line(words: str) -> str:
    """Words of a card, which may be laid out over several lines, as one."""
    return " ".join(words.split())


def gold_of(meme: JudgedMeme, task: str) -> frozenset[str] | None:
    """Gold labels of a meme in a task, possibly none of them; None where the task says nothing of it."""
    labels = meme.tasks.get(task)
    return None if labels is None else frozenset(labels)


def words_of(meme: JudgedMeme, kind: str) -> str:
    """Words of a meme that the data set has for an input of :data:`WORDS`; empty where it has none."""
    return {"text": meme.text, "ocr": meme.ocr, "caption": meme.caption, "language": meme.language}[kind]


def parse_inputs(text: str, tasks: Sequence[str], task: str) -> tuple[str, ...]:
    """Inputs from words parted by commas, in the order in which they are shown.

    Args:
        text: The words.
        tasks: Tasks that the data set has gold labels for.
        task: The task that is asked about.

    Raises:
        BadRequest: One is no input, or would give the answer away.
    """
    named = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    others = [f"{GOLD}{other}" for other in tasks if other != task]
    wrong = [word for word in named if word not in INPUTS and word not in others]
    if f"{GOLD}{task}" in wrong:
        raise BadRequest(f"The gold label of {task} is what is asked for: it can't be shown.", field="inputs")
    if wrong or not named:
        raise BadRequest(
            f"{', '.join(wrong) or 'Nothing'} can't be shown of a meme. Name some of {', '.join((*INPUTS, *others))}.",
            field="inputs",
        )
    # In one order whichever was typed, so that the same inputs give the same prompts and find their replies stored.
    return tuple(word for word in (*INPUTS, *others) if word in named)


def require_inputs(question: Question, memes: Sequence[JudgedMeme]) -> None:
    """Raises BadRequest where no meme has words that are to be shown: it would be asked about nothing."""
    for kind in WORDS:
        if kind in question.inputs and not any(words_of(meme, kind).strip() for meme in memes):
            raise BadRequest(
                f"No meme has a field {kind}: the data set's card names none, or its cells are empty. Leave {kind} out "
                "of --inputs.",
                reason="INPUT_MISSING",
                field="inputs",
            )
