"""Prediction: a system's answer for one meme, the common exchange format of runs, scores and reports."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.protocol import Level


class Outcome(StrEnum):
    """Outcome for a meme."""

    HARMFUL = "HARMFUL"
    NOT_HARMFUL = "NOT_HARMFUL"
    UNDECIDED = "UNDECIDED"
    """The system abstained: lowers coverage, and counts as wrong in the strict figures."""
    FAILED = "FAILED"
    """There was no answer: scored like UNDECIDED, but reported separately."""
    ANSWERED = "ANSWERED"
    """A question other than harm was answered: ``Prediction.said`` has the labels."""

    @property
    def harmful(self) -> bool | None:
        """The predicted class; None if there is none."""
        return {Outcome.HARMFUL: True, Outcome.NOT_HARMFUL: False}.get(self)


class Cost(BaseModel):
    """Cost of one meme, as reported by the model server.

    Replies from the call cache are counted like any other: the figures describe what the trial needs, not what this run
    happened to pay. ``stored`` is the number of such replies.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = Field(default=0, ge=0)
    stored: int = Field(default=0, ge=0)
    """Calls out of ``calls`` that were answered from the call cache."""
    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    """Tokens out of ``tokens_in`` that came from the server's prefix cache."""
    chain: int = Field(default=0, ge=0)
    """Number of calls on the longest chain of dependent calls."""
    # No infinity: it becomes null in JSON, and the line could not be read back.
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Duration of the trial."""


class SideCourse(BaseModel):
    """Course of one side's examination."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(ge=0)
    rested: str = ""
    """Reason why it ended, a value of ``court.events.QuestioningEnd``."""
    entropies: tuple[float, ...] = ()
    """Entropy of each round's summary, in bits."""


class TaskAnswer(BaseModel):
    """Answer to a question of a data set's card."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[str, ...]
    """Labels in the card's order; empty if no label of a multi-label task applies."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Probability of each label, if the system provides one."""
    rotations: tuple[tuple[str, ...], ...] = ()
    """Labels given with each order of the options, if it was asked more than once; ``labels`` has the majority's."""


class Prediction(BaseModel):
    """One line of ``predictions.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    meme: str = Field(min_length=1)
    """Id of the meme in its data set."""
    outcome: Outcome
    score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Probability of harm, if the system provides one."""
    level: Level | None = None
    """Predicted level for data sets with three. For a court's verdict: very harmful if the harmful evidence is strong,
    somewhat harmful if a harmful verdict rests on less."""
    vote: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The precedents' vote as a probability of harm, however distant they are; None if there was no vote."""
    vote_harmful: bool | None = None
    """The vote's label by the library's own threshold."""
    needs_review: bool = False
    reason: str = ""
    """Reason why there is no class: that of the failure, or the first review reason of an undecided verdict."""
    trial: str = ""
    """Id of the trial in the run's docket; empty for external predictions."""
    cost: Cost = Cost()
    sides: dict[str, SideCourse] = Field(default_factory=dict)
    """Examination by side, ``ACCUSER`` and ``DEFENDER``; empty if there were none."""
    said: dict[str, TaskAnswer] = Field(default_factory=dict)
    """Answers by task; empty in a run of trials."""
