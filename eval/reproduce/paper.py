"""A published paper as data: the commands that its figures take, its tables and its claims.

A further paper is a further file in ``papers``. A *stage* is a command of ``memecourt-eval`` with its arguments; its
figures are what it prints with ``--json``. Tables and claims name figures by path, ``arms[arm=no-rank].accuracy``, in a
stage or in a file of published figures.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.known import published_file
from eval.scores.measure import Figure


class PaperPart(BaseModel):
    """A part of a paper's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StageSpec(PaperPart):
    """A command, what it needs, and what is different in the demonstration.

    ``{data}``, ``{out}``, ``{models}``, ``{url}`` and ``{model}`` are filled in, and ``{server}`` with the options that
    name the model's server, or have a vLLM started where the file of models has no address. ``published`` has further
    words for the paper's settings, ``tables`` further tables of its file of models, ``after`` the stages whose folders
    it reads, ``among`` such of which two suffice, ``items`` the memes or claims, ``calls`` the fewest and most for
    each, and ``served`` those without the paper's settings. One that is ``seeded`` takes a seed, and a limit unless its
    tables name the memes.
    """

    id: str
    title: str
    command: tuple[str, ...]
    published: tuple[str, ...] = ()
    seeded: bool = False
    items: int = 0
    calls: tuple[float, float] = (0, 0)
    served: tuple[float, float] | None = None
    needs: dict[str, str] = Field(default_factory=dict)
    models: tuple[str, ...] = ()
    tables: dict[str, dict[str, Any]] = Field(default_factory=dict)
    after: tuple[str, ...] = ()
    among: tuple[str, ...] = ()
    page: str = ""
    demo: dict[str, Any] = Field(default_factory=dict)


class ColumnSpec(PaperPart):
    """A figure of each row of a table; ``{key}`` and ``{cite}`` are those of the row."""

    title: str
    ours: str
    published: str = ""
    n: str = ""
    above: float = 0.0
    """Number that our figure is below the published scale by, such as of a rating with another anchor."""
    percent: bool = False
    """True for a share that is published in percent."""
    places: int = 2
    share: bool = False
    classes: str = ""
    """Path of our numbers of memes by class, if the figure is a macro-F1 of two."""
    accuracy: str = ""
    """Path of the accuracy that was published with such a macro-F1."""


class RowSpec(PaperPart):
    """A row of a table; without a stage it is one that the paper quotes, or whose model is not run."""

    name: str
    stage: str = ""
    key: str = ""
    cite: str = ""


class TableSpec(PaperPart):
    """A table or figure of the paper."""

    id: str
    title: str
    columns: tuple[ColumnSpec, ...]
    rows: tuple[RowSpec, ...]
    demo: tuple[RowSpec, ...] = ()
    note: str = ""


class PartSpec(PaperPart):
    """A measurement that a claim rests on: its whole interval is above or below a bound.

    It is a figure of a stage, or a measure of arms of its study (:data:`eval.reproduce.debates.MEASURES`).
    """

    what: str
    stage: str
    path: str = ""
    less: str = ""
    """Path of a number to be subtracted."""
    p: str = ""
    measure: str = ""
    arms: tuple[str, ...] = ()
    of: str = ""
    above: float | None = None
    below: float | None = None
    decides: bool = True
    """False for a measurement that is shown, and that the claim does not rest on."""


class ClaimSpec(PaperPart):
    """A claim of the paper."""

    id: str
    claim: str
    parts: tuple[PartSpec, ...] = ()
    demo: tuple[PartSpec, ...] = ()
    why: str = ""


class DebateSpec(PaperPart):
    """Stages whose debates are shown: each is a study with the arm ``full``."""

    stage: str
    late: str
    """Arm of that study in which sides learn their stance at the summary."""
    rounds: dict[str, str]
    """Stages by name of the data set."""
    chain: str
    meme: str
    """Meme whose chain of questions the paper shows."""
    note: str


class Paper(PaperPart):
    """A paper, as its file has it."""

    paper: str
    source: str
    card: str = ""
    preset: str = ""
    """Settings that the court is run with as published; empty if no court is run."""
    remark: str = ""
    """Sentence on what the published figures are."""
    stages: tuple[StageSpec, ...]
    tables: tuple[TableSpec, ...]
    claims: tuple[ClaimSpec, ...]
    debate: DebateSpec | None = None
    differs: tuple[dict[str, str], ...] = ()
    unread: dict[str, str] = Field(default_factory=dict)

    def demonstrated(self) -> Self:
        """The paper on drawn data."""
        stages = [StageSpec.model_validate({**dict(one), "demo": {}, **one.demo}) for one in self.stages if one.demo]
        # Tables that nothing drawn is for have their published figures, and no figure of ours.
        quoted = {one.id: [row.model_copy(update={"stage": ""}) for row in one.rows] for one in self.tables}
        tables = [one.model_copy(update={"rows": one.demo or tuple(quoted[one.id])}) for one in self.tables]
        claims = [one.model_copy(update={"parts": one.demo or one.parts}) for one in self.claims]
        return self.model_copy(update={"stages": tuple(stages), "tables": tuple(tables), "claims": tuple(claims)})

    def figures(self) -> Mapping[str, Any]:
        """The published figures."""
        if not self.card:
            return published_file(self.source)
        card = tomllib.loads((files("eval.datasets") / "cards" / f"{self.card}.toml").read_text("utf-8"))
        return {**published_file(self.source), "card": card}


@cache
def read_paper(name: str) -> Paper:
    """Reads the file of a paper."""
    file = files("eval.reproduce") / "papers" / f"{name}.toml"
    return Paper.model_validate(tomllib.loads(file.read_text("utf-8")))


_STEP = re.compile(r"\[(\w+=[^\]]*)\]|\[(\d+)\]|([^.\[\]]+)")


def find(content: Any, path: str) -> Any:
    """The value at a path: names between points, ``[3]`` an index, ``[name=value&…]`` the only entry with these values.

    A list of one stands for its entry. None if there is no such value, or several entries have those values.
    """
    for wanted, index, name in _STEP.findall(path):
        if name and isinstance(content, list) and len(content) == 1:
            content = content[0]
        match content:
            case list() if wanted:
                content = [one for one in content if all(_has(one, pair) for pair in wanted.split("&"))]
                content = content[0] if len(content) == 1 else None
            case list() if index and int(index) < len(content):
                content = content[int(index)]
            case dict() if name:
                content = content.get(name)
            case _:
                return None
    return content


def _has(entry: Any, pair: str) -> bool:
    key, _, value = pair.partition("=")
    # Rows of a description are lists, whose cells have numbers in place of names.
    return str(entry[int(key)] if key.isdecimal() else entry.get(key)) == value


def figure_of(value: Any, more: float = 0.0, times: float = 1.0) -> Figure | None:
    """A number, or a figure with its interval, multiplied, and a number more."""
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        return Figure(*(more + times * float(value[end]) for end in ("value", "low", "high")))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Figure(*[more + times * float(value)] * 3)
    return None
