"""The exchange format of runs, scores and reports: memes with their gold labels, and predictions about them."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Level(IntEnum):
    """HarMeme's three labels, in ascending order of harm (Pramanick et al. 2021, section 3)."""

    NOT_HARMFUL = 0
    SOMEWHAT_HARMFUL = 1
    VERY_HARMFUL = 2


LEVELS: Mapping[str, Level] = {
    "not harmful": Level.NOT_HARMFUL,
    "somewhat harmful": Level.SOMEWHAT_HARMFUL,
    "very harmful": Level.VERY_HARMFUL,
}
"""HarMeme's labels, in its words."""


class Protocol(StrEnum):
    """Rule that turns a gold label into one of two classes. Results under different protocols can't be compared."""

    MERGED = "merged"
    """Somewhat and very harmful count as harmful: what nearly everyone reports on HarMeme."""
    EXTREME = "extreme"
    """Somewhat harmful memes are dropped, as in the court's paper."""
    PLAIN = "plain"
    """The data set has two classes of its own."""


def of_level(level: Level, protocol: Protocol) -> bool | None:
    """True if a meme of this level is harmful; None if the protocol drops it."""
    if protocol is Protocol.EXTREME and level is Level.SOMEWHAT_HARMFUL:
        return None
    return level is not Level.NOT_HARMFUL


class JudgedMeme(BaseModel):
    """A meme of a data set; one line of ``memes.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    split: str
    file: str = ""
    """Name of its file below the data set's directory."""
    line: int = Field(ge=0)
    """Position in its file, counted from 1: a line, or a row in formats without lines."""
    image: str = ""
    """Name of its picture: as given in the row, or relative to the folder of pictures where that was found."""
    text: str = ""
    ocr: str = ""
    """Text in the picture as provided by the data set."""
    caption: str = ""
    """Description of the picture by the data set's authors."""
    language: str = ""
    """Language of the text according to the data set's card; empty if unknown."""
    group: str = ""
    """Template, family or source; confidence intervals resample whole groups."""
    template: str = ""
    """Id of the first judged meme with a near-duplicate picture, in a run that separates templates; empty if no other
    meme of the run shares it. Confidence intervals resample these groups, too."""
    tasks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Gold labels by task of the card: one, or for a task with several labels any number of them. A task that is absent
    has no gold label for this meme: its annotators left it open, or it applies only to some memes."""
    shares: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Share of annotators per label, by task, if the card keeps their votes."""
    annotators: dict[str, int] = Field(default_factory=dict)
    """Number of annotators by task, if the card keeps their votes."""
    harmful: bool | None = None
    """Class in the data set's own two classes, or by ``merged`` if it has three; None without a label of harm: no trial
    is scored on such a meme."""
    level: Level | None = None
    """Level of harm, if the data set has three."""
    source_label: str = ""
    """Label of harm in the data set's own words."""
    targets: tuple[str, ...] = ()

    @property
    def picture(self) -> tuple[str, dict[str, str]]:
        """Name of its picture, and the fields that may be used in a folder's name."""
        return self.image, {"id": self.id, "language": self.language, "group": self.group}

    def gold(self, protocol: Protocol) -> bool | None:
        """True if the meme is harmful; None if the protocol drops it.

        Raises:
            ValueError: The protocol does not apply to a data set of this kind.
        """
        # Each kind of protocol is refused for the other kind of data, as results would be labelled wrongly.
        if self.level is None:
            if protocol is not Protocol.PLAIN:
                raise ValueError(f"a data set of two classes has no protocol {protocol}")
            return self.harmful
        if protocol is Protocol.PLAIN:
            raise ValueError("a data set of three levels needs the protocol merged or extreme")
        return of_level(self.level, protocol)


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
    """The precedents' vote as a probability of harm; None if none was near enough to vote."""
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
    checks: tuple[str, ...] = ()
    """Checks of the trial that failed, values of ``court.verdict.ReviewReason``."""
    mistrial: bool = False
    determined: bool | None = None
    """True if the verdict's stated reasons determine it (:func:`court.flips.determined_by_reasons`); None if it is not
    known."""
    said: dict[str, TaskAnswer] = Field(default_factory=dict)
    """Answers by task; empty in a run of trials."""
