"""A paper whose figures come from our other commands: its stages, tables and claims, as data.

A *stage* is a command of ``memecourt-eval`` with its arguments; its figures are what it prints with ``--json``. Tables
and claims name figures by path, ``arms[arm=no-rank].accuracy``, in a stage or in a file of published figures.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field

from court.errors import BadRequest
from eval.datasets.known import published_file
from eval.reproduce.paper import (
    FOLDER,
    Claim,
    ClaimPart,
    ClaimVerdict,
    PaperPart,
    Reached,
    above,
    below,
    has_share,
    whole,
)
from eval.scores.measure import SURE, Figure

STAGES = "stages"
"""Folder of the stages' figures, a file each, and of what a stage writes itself."""


class StageSpec(PaperPart):
    """A command, what it needs, and what is different in the demonstration.

    ``{data}``, ``{out}``, ``{models}``, ``{url}`` and ``{model}`` are filled in; ``published`` has further words for
    the paper's settings, ``tables`` further tables of its file of models, ``after`` the stages whose folders it reads,
    ``among`` such of which two suffice, ``items`` the memes or claims, and ``calls`` the fewest and most for each. One
    that is ``seeded`` takes a seed, and a limit unless its tables name the memes.
    """

    id: str
    title: str
    command: tuple[str, ...]
    published: tuple[str, ...] = ()
    seeded: bool = False
    items: int = 0
    calls: tuple[float, float] = (0, 0)
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
    places: int = 2
    share: bool = False


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
    """A measurement that a claim rests on: its whole interval is above or below a bound."""

    what: str
    stage: str
    path: str
    above: float | None = None
    below: float | None = None
    p: str = ""


class StagedClaim(PaperPart):
    """A claim of the paper."""

    id: str
    claim: str
    parts: tuple[PartSpec, ...] = ()
    demo: tuple[PartSpec, ...] = ()
    why: str = ""


class StagedPaper(PaperPart):
    """A paper, as its file has it."""

    paper: str
    source: str
    card: str = ""
    stages: tuple[StageSpec, ...]
    tables: tuple[TableSpec, ...]
    claims: tuple[StagedClaim, ...]
    differs: tuple[dict[str, str], ...]
    unread: dict[str, str] = Field(default_factory=dict)

    def demonstrated(self) -> StagedPaper:
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
def read_staged(name: str) -> StagedPaper:
    """Reads the file of a paper."""
    return StagedPaper.model_validate(tomllib.loads((files("eval.reproduce") / FOLDER / f"{name}.toml").read_text()))


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


def figure_of(value: Any, more: float = 0.0) -> Figure | None:
    """A number, or a figure with its interval, and a number more."""
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        return Figure(*(more + float(value[end]) for end in ("value", "low", "high")))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Figure(*[more + float(value)] * 3)
    return None


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a table, beside ours."""

    row: str
    figure: str
    n: int | None
    published: float | None
    ours: Figure | None
    occurs: bool | None
    reached: Reached
    places: int

    @property
    def difference(self) -> float | None:
        """Ours less the published one; None if either is missing."""
        return None if self.ours is None or self.published is None else self.ours.value - self.published


@dataclass(frozen=True)
class StagedOutcome:
    """Figures of the stages that are finished, and the reasons for the others."""

    paper: StagedPaper
    figures: Mapping[str, Any]
    left: Mapping[str, str]
    planted: Mapping[str, Any] | None = None

    def tables(self) -> dict[str, list[Cell]]:
        """Cells by the id of their table."""
        return {
            one.id: [self._cell(row, column) for row in one.rows for column in one.columns] for one in self.paper.tables
        }

    def _cell(self, row: RowSpec, column: ColumnSpec) -> Cell:
        def at(content: Any, path: str) -> Any:
            # A row without a source has no published figure, whatever the rest of the path finds.
            if not path or ("{cite}" in path and not row.cite):
                return None
            return find(content, path.replace("{key}", row.key or row.name).replace("{cite}", row.cite))

        stage = self.figures.get(row.stage)
        ours = figure_of(at(stage, column.ours), column.above)
        if self.planted is None or not row.stage:
            theirs = figure_of(at(self.paper.figures(), column.published))
        else:
            theirs = figure_of(at(self.planted.get(row.stage), column.ours), column.above)
        published, n = theirs.value if theirs else None, at(stage, column.n)
        rounding = 0.5 * 10**-column.places + 1e-9
        occurs = None
        if column.share and published is not None and isinstance(n, int):
            occurs = has_share(published, n, rounding)
        reached = _reached(published, ours, rounding, occurs=occurs)
        return Cell(
            row.name, column.title, n=n, published=published, ours=ours, occurs=occurs, reached=reached,
            places=column.places,
        )  # fmt: skip

    def claims(self) -> tuple[Claim, ...]:
        """The paper's claims, each tested if its stages are finished."""
        return tuple(map(self._claim, self.paper.claims))

    def _claim(self, spec: StagedClaim) -> Claim:
        parts: list[ClaimPart] = []
        lacks: list[str] = []
        for one in spec.parts:
            stage = self.figures.get(one.stage)
            figure, p = figure_of(find(stage, one.path)), find(stage, one.p) if one.p else None
            if figure is None:
                lacks.append(f"{one.stage}: {one.what}")
                continue
            verdict = above(figure, one.above) if one.above is not None else below(figure, one.below or 0.0)
            # An interval that excludes the bound says little where the exact test does not agree.
            if p is not None and p >= SURE:
                verdict = ClaimVerdict.OPEN
            parts.append(ClaimPart(one.what, figure, p, verdict))
        if lacks or not parts:
            why = spec.why or f"not run, or without a figure: {'; '.join(lacks)}"
            return Claim(spec.id, spec.claim, ClaimVerdict.UNTESTED, why=why)
        return Claim(spec.id, spec.claim, whole(parts), parts=tuple(parts), why=spec.why)


def _reached(published: float | None, ours: Figure | None, rounding: float, *, occurs: bool | None) -> Reached:
    if ours is None:
        return Reached.NOT_RUN
    if published is None:
        return Reached.NONE
    if occurs is False:
        return Reached.UNREACHABLE
    # Published figures are rounded: half of the last place is allowed for.
    if ours.low == ours.high and abs(published - ours.value) > rounding:
        return Reached.DIFFERS
    return Reached.WITHIN if ours.low - rounding <= published <= ours.high + rounding else Reached.OUTSIDE


@dataclass(frozen=True)
class StagePlan:
    """A stage with its words, ready to run."""

    spec: StageSpec
    words: tuple[str, ...]
    file: Path
    missing: str
    content: str = ""
    url: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """Its words but for the server's address, at which another server may be next time."""
        return ["URL" if self.url and word == self.url else word for word in self.words]

    def stored(self) -> Any:
        """Its figures, if it has finished. Raises BadRequest if those of other arguments are there."""
        if not self.file.exists():
            return None
        found = json.loads(self.file.read_text("utf-8"))
        if (found["command"], found["tables"]) != (self.command, self.tables):
            raise BadRequest(
                f"{self.file} is of another reproduction: memecourt-eval {' '.join(found['command'])}. Name another "
                "--out, or give the same options.",
                reason="RUN_DIFFERS",
            )
        return found["figures"]

    def store(self, figures: Any) -> None:
        """Keeps the figures of the finished stage."""
        content = {"command": self.command, "tables": self.tables, "figures": figures}
        self.file.write_text(json.dumps(content) + "\n", "utf-8")


def plan_stages(
    paper: StagedPaper,
    out: Path,
    data: Path | None,
    models: Mapping[str, Mapping[str, Any]],
    *,
    tables: Mapping[str, Mapping[str, Any]],
    published: bool = True,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[StagePlan, ...]:
    """The stages in order, with what each lacks.

    Args:
        models: Tables of the file of models, by name.
        tables: Other tables of that file; their values take precedence over the paper's.
    """
    plans: list[StagePlan] = []
    lacking: set[str] = set()
    for spec in paper.stages:
        missing = [
            f"{data / name if data else name} is missing: {fetch}"
            for name, fetch in spec.needs.items()
            if data is None or not (data / name).exists()
        ]
        if unknown := [name for name in spec.models if name not in models]:
            missing.append(f"the file of models (--models) has no {', '.join(unknown)}")
        missing += [f"it needs the stage {one}" for one in spec.after if one in lacking]
        if spec.among and len(set(spec.among) - lacking) < 2:
            missing.append("it needs two of the stages before it")
        lacking |= {spec.id} if missing else set()
        named = models.get(spec.models[0], {}) if spec.models else {}
        url = named.get("url", "")
        own = {name: _limited({**table, **tables.get(name, {})}, limit) for name, table in spec.tables.items()}
        content = "".join(f"{name} = {_toml(table)}\n" for name, table in {"models": models, **own}.items())
        filled = {
            "data": str(data or ""),
            "out": str(out / STAGES),
            "models": str(out / STAGES / f"{spec.id}.toml"),
            "url": url if isinstance(url, str) else ",".join(url),
            "model": str(named.get("model", "")),
        }
        absent = {f"{{out}}/{one}-run" for one in lacking.intersection(spec.among)}
        words = (*(word for word in spec.command if word not in absent), *(spec.published if published else ()))
        words += ("--seed", str(seed)) if spec.seeded else ()
        names_memes = any("sample" in table for table in own.values())
        words += ("--limit", str(limit)) if limit and spec.seeded and not names_memes else ()
        plans.append(
            StagePlan(
                spec,
                tuple(_filled(word, filled) for word in words),
                out / STAGES / f"{spec.id}.json",
                missing="; ".join(missing),
                content=content.replace("{data}", filled["data"]) if "{models}" in spec.command else "",
                url=filled["url"],
                tables=json.loads(json.dumps(own)),
            )
        )
    return tuple(plans)


def _limited(table: Mapping[str, Any], limit: int | None) -> Mapping[str, Any]:
    """The table with the memes that a limit leaves, divided among its data sets."""
    sets = table.get("sample", ())
    if not limit or not sets:
        return table
    each = -(-limit // len(sets))
    return {**table, "sample": [{**one, "memes": min(each, one.get("memes", each))} for one in sets]}


def _filled(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], word)


def _toml(value: Any) -> str:
    """A value in TOML, tables in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
