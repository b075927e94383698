"""Events of an arena, a closed union; the record of an arena lists them, one per line."""

from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from court.events import ModelCall
from eval.arena.words import LossError, Relevance, Setting, Verdict


class ArenaValue(BaseModel):
    """A value in a file of an arena."""

    # Unknown fields are rejected: resuming an arena rewrites its events, which would lose them.
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplyCost(ArenaValue):
    """Cost of a model's reply."""

    model: str
    """Model that was asked, by its name in the run."""
    served: str
    """As the server names it."""
    prompt: str
    """Id of the prompt, its version, and the task in it."""
    digest: str
    """Of the prompt's words."""
    calls: int = Field(ge=1)
    """2 where the first reply could not be used."""
    tokens_in: int
    tokens_out: int
    latency_s: float
    fault: str = ""
    """Why the first reply could not be used."""


def cost_of(model: str, call: ModelCall) -> ReplyCost:
    """Returns the cost of a call of the model with this name in the run."""
    return ReplyCost(
        model=model,
        served=call.model,
        prompt=call.prompt_id,
        digest=call.prompt_digest,
        calls=len(call.replies),
        tokens_in=call.tokens_in,
        tokens_out=call.tokens_out,
        latency_s=call.latency_s,
        fault=call.fault,
    )


class _Event(ArenaValue):
    meme: str
    """Its id."""


class ContextSimulated(_Event):
    """Three people who come across the meme were written."""

    kind: Literal["ContextSimulated"] = "ContextSimulated"
    high: str
    moderate: str
    unrelated: str
    call: ReplyCost


class TaskFormulated(_Event):
    """A question was written, or was supplied with the data set."""

    kind: Literal["TaskFormulated"] = "TaskFormulated"
    task: int = Field(ge=0)
    """Which of the meme's, counted from 0."""
    relevance: Relevance | None = None
    """Of the profile that asks; None where the question came with the set."""
    rounds: tuple[str, ...] = Field(min_length=1)
    """The question; several where they follow each other."""
    language: str = ""
    """Asked for in the answers; BCP 47, empty where none is."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Groups that it belongs to, where it came with the set."""
    call: ReplyCost | None = None


class Style(ArenaValue):
    """Style of an answer, regardless of its content."""

    words: int
    headings: int
    lists: int
    bold: int


class Answered(_Event):
    """A target answered a task."""

    kind: Literal["Answered"] = "Answered"
    task: int
    target: str
    background: str
    """Empty where the question came with the set."""
    reasoning: tuple[str, ...]
    """One, or one for each round."""
    style: Style
    calls: tuple[ReplyCost, ...]
    forgotten: int = Field(default=0, ge=0)
    """Rounds that the last question was asked without, as the history was too long."""

    @property
    def tokens_out(self) -> int:
        """Number of tokens of the answer."""
        return sum(call.tokens_out for call in self.calls)


Wanted = Literal["answer", "merging", "battle", "explanation", "second explanation", "label", "difficulty"]


class FollowUp(NamedTuple):
    """A question after an arena, by the fields of :class:`NoReply`."""

    to: Wanted
    model: str
    meme: str
    task: int | None = None
    about: tuple[str, ...] = ()


class NoReply(_Event):
    """A model gave no usable reply, so that what it was asked for is missing."""

    kind: Literal["NoReply"] = "NoReply"
    to: Wanted
    model: str
    task: int | None = None
    """None for a label, which is of the meme alone."""
    about: tuple[str, ...] = ()
    """Models whose answers it was shown: the drawn one, the two of a battle as shown, or winner and loser."""
    reason: str


class FusionBegun(_Event):
    """A guideline was started from a judge's own answer."""

    kind: Literal["FusionBegun"] = "FusionBegun"
    task: int
    judge: str


class FusionRound(_Event):
    """An answer was merged into the guideline by a judge that did not write it."""

    kind: Literal["FusionRound"] = "FusionRound"
    task: int
    round: int = Field(ge=1)
    drawn: str
    """Who wrote the answer."""
    judge: str
    guideline_first: bool
    """Whether the guideline was the first of the two texts; the judge was not told which is which."""
    background: str
    reasoning: str
    call: ReplyCost


Study = Literal["arena", "bias", "rounds"]


class Judged(_Event):
    """A judge compared two answers."""

    kind: Literal["Judged"] = "Judged"
    task: int
    a: str
    """Whose answer was shown first."""
    b: str
    judge: str
    setting: Setting
    turn: int = 0
    """1 where the same battle is judged again with the order swapped."""
    study: Study = "arena"
    """What it is for: battles about the judges' bias, or about one round of a conversation, rank nobody."""
    round: int = Field(default=0, ge=0)
    """Round whose answers alone were compared, counted from 1; 0 for the whole conversation."""
    verdicts: dict[str, Verdict]
    """By dimension."""
    answer: str = ""
    """The judge's own answer, where it was asked for one first."""
    why: str
    call: ReplyCost


class LossExplained(_Event):
    """A model explained why an answer lost a battle."""

    kind: Literal["LossExplained"] = "LossExplained"
    task: int
    winner: str
    loser: str
    explainer: str
    second: bool = False
    """Whether it is the second opinion on the loss, which is for agreement alone."""
    aspect: str
    """The dimension in which it lost most."""
    asked: bool
    """Whether the explainer said so; otherwise the verdicts of the battle did."""
    error: LossError
    why: str
    call: ReplyCost


class Detected(_Event):
    """A target labelled the meme as harmful or not, without an explanation."""

    kind: Literal["Detected"] = "Detected"
    target: str
    harmful: bool
    call: ReplyCost


class DifficultyRated(_Event):
    """A model rated how hard a task is, from 0 to 10."""

    kind: Literal["DifficultyRated"] = "DifficultyRated"
    task: int
    annotator: str
    text: int = Field(ge=0, le=10)
    image: int = Field(ge=0, le=10)
    reasoning: int = Field(ge=0, le=10)
    why: str
    call: ReplyCost

    @property
    def difficulty(self) -> float:
        """Mean of the three ratings."""
        return (self.text + self.image + self.reasoning) / 3


class MemeLeftOut(_Event):
    """Event: no question could be made about the meme."""

    kind: Literal["MemeLeftOut"] = "MemeLeftOut"
    reason: str


class MemeDone(_Event):
    """All of a meme's events are stored; a resumed run skips it."""

    kind: Literal["MemeDone"] = "MemeDone"


Event = (
    ContextSimulated
    | TaskFormulated
    | Answered
    | NoReply
    | FusionBegun
    | FusionRound
    | Judged
    | LossExplained
    | Detected
    | DifficultyRated
    | MemeLeftOut
    | MemeDone
)

AnyEvent: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
"""Reads a line of the record."""
