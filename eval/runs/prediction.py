"""Prediction: a system's answer for one meme, the one form in which runs, scores and reports exchange it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.protocol import Level


class Outcome(StrEnum):
    """Outcome for a meme."""

    HARMFUL = "HARMFUL"
    NOT_HARMFUL = "NOT_HARMFUL"
    UNDECIDED = "UNDECIDED"
    """The system would not say: counts against coverage, and as wrong in the strict figures."""
    FAILED = "FAILED"
    """There was no answer: counted like UNDECIDED, and told apart from it."""
    ANSWERED = "ANSWERED"
    """A question about the meme was answered that is none of harm: ``Prediction.said`` has the labels."""

    @property
    def harmful(self) -> bool | None:
        """The class that was said; None where none was."""
        return {Outcome.HARMFUL: True, Outcome.NOT_HARMFUL: False}.get(self)


class Cost(BaseModel):
    """Cost of one meme, in the model server's own figures.

    A reply that came out of the run's store of calls is counted like any other: it is what the trial takes, not what
    this machine happened to pay. ``stored`` says how many those were.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = Field(default=0, ge=0)
    stored: int = Field(default=0, ge=0)
    """Of ``calls``, those answered from the store."""
    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    """Of ``tokens_in``, those from the server's prefix cache."""
    chain: int = Field(default=0, ge=0)
    """Calls on the longest chain of which each waits for the one before."""
    # No infinity: in JSON it becomes null, and the line could not be read again.
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """From the beginning of the trial to its end."""


class SideCourse(BaseModel):
    """Course of one side's examination."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(ge=0)
    rested: str = ""
    """Why it ended, as ``court.events.QuestioningEnd``."""
    entropies: tuple[float, ...] = ()
    """Of the summary of each round, in bits."""


class TaskAnswer(BaseModel):
    """Answer to a question of a data set's card."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[str, ...]
    """Labels that were given, in the card's order; none where a task of several labels has none."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Probability of each label, where the system gives one."""
    rotations: tuple[tuple[str, ...], ...] = ()
    """Labels that were given with each order of the options, where it was asked more than once; ``labels`` are those
    that most of them gave."""


class Prediction(BaseModel):
    """One line of ``predictions.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    meme: str = Field(min_length=1)
    """Id of the meme in its data set."""
    outcome: Outcome
    score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Probability of harm, where the system gives one."""
    level: Level | None = None
    """For data sets of three levels: which one was said. Of a court's verdict: very harmful where the harmful evidence
    is strong, somewhat harmful where a harmful verdict rests on less."""
    vote: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The precedents' vote as a probability of harm, held however far they are; None where none could be held."""
    vote_harmful: bool | None = None
    """Its label, by the library's own threshold."""
    needs_review: bool = False
    reason: str = ""
    """Why there is no class: a failure's reason, or the first review reason of an undecided verdict."""
    trial: str = ""
    """Id of the trial in the run's docket; empty for predictions from elsewhere."""
    cost: Cost = Cost()
    sides: dict[str, SideCourse] = Field(default_factory=dict)
    """Per side, ``ACCUSER`` and ``DEFENDER``; empty where there were none."""
    said: dict[str, TaskAnswer] = Field(default_factory=dict)
    """Answers by task; empty in a run of trials."""
