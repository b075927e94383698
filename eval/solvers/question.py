"""Questions about every meme of a run, and predictions: the exchange format of runs, scores and reports."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from court.errors import BadRequest
from court.question import CourtQuestion, QuestionSides
from eval.datasets.card import CardTask
from eval.datasets.items import JudgedMeme

INPUTS = ("picture", "text", "ocr", "caption", "language", "description")
"""Inputs of a meme that may be shown; besides them ``gold:TASK``, its gold labels of another task."""
GOLD = "gold:"
PRECEDENTS = "precedents"
"""Value in place of a model's name: the embedded classifier, which uses no model."""
ELSEWHERE = "elsewhere"
"""Value in place of all inputs: an external system answered, and its inputs are unknown."""
TEXTS = ("text", "ocr", "caption")
"""Inputs that the data set itself provides as words."""
WORDS = (*TEXTS, "language")
"""Inputs of :func:`words_of`: the texts, and the language, which votes of labelled memes ignore."""


class Answerer(StrEnum):
    """System that answers."""

    MODEL = "model"
    """A chat model, one call per meme and order of the options."""
    PRECEDENTS = "precedents"
    """The vote of similar labelled memes, label by label."""
    TRIAL = "trial"
    """The Judge of a full trial on harm, after its verdict, based on the evidence of that trial."""


class Question(BaseModel):
    """A task and the settings for asking it; stored in the manifest of its run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    title: str = ""
    """The question in words; the task's id if empty."""
    kind: str
    """``binary``, ``ordinal``, ``single`` or ``multi``."""
    labels: tuple[str, ...] = Field(min_length=2)
    define: dict[str, str] = Field(default_factory=dict)
    """One-sentence definition of each label."""
    metrics: tuple[str, ...] = ()
    """Metrics by which the data set's authors score it."""
    official: str = ""
    inputs: tuple[str, ...] = Field(min_length=1)
    """Inputs shown of a meme, in the order of :data:`INPUTS`."""
    shots: int = Field(default=0, ge=0, le=16)
    """Number of labelled memes of the train split shown first, the most similar ones."""
    rotate: bool = False
    """True to ask once for each rotation of the options."""
    odds: bool = False
    """True to also ask the model for the probability of each label."""
    by: Answerer = Answerer.MODEL
    sides: tuple[str, ...] = Field(default=(), max_length=2)
    """The two labels out of three that a trial's Judge weighs against each other; empty if it weighs none."""

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
        """True if a meme can't be answered without its picture."""
        return "picture" in self.inputs or "description" in self.inputs

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of the labels as options, the card's own first."""
        turns = len(self.labels) if self.rotate else 1
        # Rotations rather than all permutations: each label takes each position once, with the fewest calls.
        return tuple(self.labels[turn:] + self.labels[:turn] for turn in range(turns))

    def in_order(self, labels: Sequence[str] | frozenset[str] | set[str]) -> tuple[str, ...]:
        """Sorts labels by the card's order."""
        return tuple(label for label in self.labels if label in labels)

    def for_court(self) -> CourtQuestion:
        """The question in the form that a court asks. Raises BadRequest if its wording can't be used there."""
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
        """Returns the fields that determine the memes and their gold, to compare with a resumed run."""
        return {"task": self.task, "kind": self.kind, "labels": list(self.labels)}


def question_about(task: CardTask, **how: Any) -> Question:
    """Makes a question of a card's task; ``how`` sets the fields on how it is asked, and may override its wording."""
    of_card = {name: getattr(task, name) for name in ("title", "labels", "define", "metrics", "official")}
    return Question(task=task.id, kind=str(task.kind), **of_card | how)


def _one_line(words: str) -> str:
    """Joins the lines of a card's text into one."""
    return " ".join(words.split())


def gold_of(meme: JudgedMeme, task: str) -> frozenset[str] | None:
    """Gold labels of a meme for a task, possibly none; None if the meme has no gold for the task."""
    labels = meme.tasks.get(task)
    return None if labels is None else frozenset(labels)


def words_of(meme: JudgedMeme, kind: str) -> str:
    """The data set's words for an input of :data:`WORDS`; empty if it has none for this meme."""
    return {"text": meme.text, "ocr": meme.ocr, "caption": meme.caption, "language": meme.language}[kind]


def parse_inputs(text: str, tasks: Sequence[str], task: str) -> tuple[str, ...]:
    """Parses comma-separated inputs into the order in which they are shown.

    Raises BadRequest: A name is no input, or would give the answer away.
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
    # A fixed order, so that the same inputs give the same prompts and hit the call cache.
    return tuple(word for word in (*INPUTS, *others) if word in named)


def require_inputs(question: Question, memes: Sequence[JudgedMeme]) -> None:
    """Raises BadRequest if no meme has any of the words that are to be shown."""
    for kind in WORDS:
        if kind in question.inputs and not any(words_of(meme, kind).strip() for meme in memes):
            raise BadRequest(
                f"No meme has a field {kind}: the data set's card names none, or its cells are empty. Leave {kind} out "
                "of --inputs.",
                reason="INPUT_MISSING",
                field="inputs",
            )
