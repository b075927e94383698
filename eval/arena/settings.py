"""Settings of an arena: the table ``[arena]`` of the file that names its models."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from court.errors import BadRequest
from eval.arena.ranking.bradley_terry import K
from eval.arena.words import OVERALL

_MOST = 12
"""Criteria at most: a verdict for each is a word of the judge's reply."""


class Criterion(BaseModel):
    """One criterion for comparing answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name in replies and in reports."""
    words: str = Field(min_length=10, max_length=400)
    """Question that a judge answers about each of the two."""

    @property
    def title(self) -> str:
        """Name as shown in reports."""
        return self.key.replace("_", " ")


_OVERALL = Criterion(
    key=OVERALL, words="which one is the better answer to this question? Weigh the others as the question needs it."
)
_SETS = ("memearena", "probench")
"""Criteria that the package has, as files."""


def read_criteria(named: str, folder: Path) -> tuple[Criterion, ...]:
    """Returns the criteria of a name, with the overall verdict last.

    Args:
        named: ``memearena``, ``probench``, or a TOML file with tables ``[[criteria]]`` (``key``, ``words``).

    Raises BadRequest: The file does not exist or does not contain valid criteria.
    """
    path = files("eval.arena") / "criteria" / f"{named}.toml" if named in _SETS else folder / named
    try:
        return _CriteriaFile.model_validate(tomllib.loads(path.read_text("utf-8-sig"))).criteria
    except ValidationError as error:
        why = _faults(error)
    except (OSError, ValueError) as error:
        why = str(error)
    raise BadRequest(
        f"{path} can't be read as criteria: {why}. Name {', '.join(_SETS)}, or a TOML file.", reason="ARENA_SETTINGS"
    )


def _faults(error: ValidationError) -> str:
    return "; ".join(
        # Without the prefix that pydantic adds to a validator's message.
        ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, "))))
        for fault in error.errors()
    )


def complete(criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Returns the criteria with the overall verdict last, adding it if it is missing.

    Raises ValueError: There are no criteria, too many, or duplicates.
    """
    keys = [one.key for one in criteria]
    if len(set(keys)) < len(keys):
        raise ValueError("each criterion is named once")
    # Judges give their reasons, and an answer of their own, under these keys.
    if taken := {"why", "answer"}.intersection(keys):
        raise ValueError(f"no criterion can be called {taken.pop()}: another part of the reply is")
    others = [one for one in criteria if one.key != OVERALL]
    if not 1 <= len(others) <= _MOST:
        raise ValueError(f"there are from 1 to {_MOST} criteria beside {OVERALL}, not {len(others)}")
    overall = next((one for one in criteria if one.key == OVERALL), _OVERALL)
    return (*others, overall)


class _CriteriaFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    criteria: Annotated[tuple[Criterion, ...], AfterValidator(complete)]


_USUAL = read_criteria("memearena", Path())
_SETTINGS = "[arena] in the file of models"
_PRESETS = tomllib.loads((files("eval.arena") / "presets.toml").read_text("utf-8"))


class ArenaSettings(BaseModel):
    """Settings of an arena; part of its manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    targets: tuple[str, ...] = Field(min_length=2)
    """Who is ranked."""
    judges: tuple[str, ...] = Field(min_length=1, max_length=10)
    """The panel, some of the targets; reports look at every smaller panel of these."""
    controller: str
    """Who writes profiles and questions."""
    answers_per_task: int = Field(default=3, ge=2)
    """How many targets meet over a task, all pairs of them."""
    pairing: Literal["coverage", "baseline"] = "coverage"
    """Whether all pairs of targets meet equally often, or each meets the anchor in each task."""
    anchor: str | None = None
    """The target whose rating is 1000; the mean of all where nobody is named."""
    judges_per_battle: int = Field(default=1, ge=1)
    """How many of the panel judge a battle, drawn for each."""
    vote: Literal["pool", "majority"] = "pool"
    """Whether each judgement of a battle counts as a battle, or all of them as one, by their majority."""
    own_case: bool = False
    """Whether a judge may judge a battle of its own model, where another could."""
    criteria: Annotated[tuple[Criterion, ...], AfterValidator(complete)] = _USUAL
    """What answers are compared by, each by itself; the verdict overall last, which ranks."""
    levels: Literal[3, 5] = 3
    """Whether a judge says who is better, or also by how much."""
    round_verdicts: bool = False
    """Whether judges also compare two conversations round by round; the whole alone ranks."""
    judge_answers: bool = False
    """Whether a judge answers the question itself before it compares two answers."""
    swapped: bool = False
    """Whether each battle is judged twice, with the order swapped."""
    guideline: Literal["fused", "none"] = "fused"
    """What judges measure answers by."""
    fusion_rounds: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """How many answers are merged into a guideline, drawn among them; fewer than all where more gain nothing."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Of the controller; everybody else answers at 0."""
    reply_chars: int = Field(default=2000, ge=64, le=6000)
    """Longest part of an answer; a profile or a question has less."""
    history_chars: int | None = Field(default=None, ge=500)
    """Longest history of questions and answers that a later round is asked with, the oldest left out; None for all."""
    elo_k: float = Field(default=K, gt=0)
    """Points that a battle moves an Elo rating by at most."""
    resamples: int = Field(default=1000, ge=100, le=100_000)
    """Of the bootstrap."""
    bias: bool = False
    """Whether the panel's bias is looked at: every judge judges every battle of some tasks under every setting."""
    bias_tasks: int = Field(default=30, ge=1)
    """How many tasks that takes in, the first of the arena."""

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the criteria, with the overall verdict last."""
        return tuple(one.key for one in self.criteria)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for what, names in (("targets", self.targets), ("judges", self.judges)):
            if len(set(names)) < len(names):
                raise ValueError(f"{what}: each is named once")
        # The guideline starts from a judge's own answer, and one setting of the bias study shows it to the judge.
        strangers = [name for name in self.judges if name not in self.targets]
        if strangers:
            raise ValueError(f"judges are some of the targets, and {', '.join(strangers)} is none")
        if self.anchor is not None and self.anchor not in self.targets:
            raise ValueError(f"the anchor is one of the targets, and {self.anchor} is none")
        if self.pairing == "baseline" and self.anchor is None:
            raise ValueError("with pairing = baseline, name the anchor that everybody meets")
        if self.answers_per_task > len(self.targets):
            raise ValueError(f"{self.answers_per_task} answers can't meet where there are {len(self.targets)} targets")
        # All of them are listed.
        if math.comb(len(self.targets), self.answers_per_task) > 200_000:
            raise ValueError(
                f"{self.answers_per_task} of {len(self.targets)} targets meet in too many ways; take fewer"
            )
        if self.judges_per_battle > len(self.judges):
            raise ValueError(f"a battle can't be judged by {self.judges_per_battle} of {len(self.judges)} judges")
        if self.guideline == "fused" and len(self.judges) < 2:
            raise ValueError(
                "a guideline is fused by at least two judges, for nobody merges its own answer; or set guideline = none"
            )
        return self


def arena_settings(table: Mapping[str, Any], models: Mapping[str, object], *, folder: Path = Path()) -> ArenaSettings:
    """Reads the table ``[arena]``.

    Raises:
        BadRequest: The table has an unknown setting, or names a model that is not in the file; or its
            criteria can't be read.
    """
    values = dict(table)
    preset = values.pop("preset", None)
    if preset is not None:
        if preset not in _PRESETS:
            raise BadRequest(
                f"{_SETTINGS}: there is no preset {preset!r}; there are {', '.join(_PRESETS)}.", reason="ARENA_SETTINGS"
            )
        judges = values.get("judges", ())
        # Values in the table take precedence over the preset.
        values = {**_PRESETS[preset], **({"judges_per_battle": len(judges)} if judges else {}), **values}
    if isinstance(values.get("criteria"), str):
        values["criteria"] = read_criteria(values["criteria"], folder)
    try:
        settings = ArenaSettings.model_validate({"targets": list(models), **values})
    except ValidationError as error:
        raise BadRequest(f"{_SETTINGS}: {_faults(error)}.", reason="ARENA_SETTINGS") from None
    for name in (*settings.targets, *settings.judges, settings.controller):
        if name not in models:
            raise BadRequest(
                f"{_SETTINGS}: there is no model {name!r}; there are {', '.join(models)}.", reason="ARENA_SETTINGS"
            )
    return settings
