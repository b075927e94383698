"""Sessions about memes sampled from one or several data sets: arenas and probes, and their repeats."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, JsonValue

from eval.models.samples import SampledSet, Samples, ShownMemes, read_memes
from eval.session.directory import CALLS, SessionManifest, circumstances, refuse_others


class SampledManifest(SessionManifest):
    """Description of a session about sampled memes: an arena or a probe."""

    dataset: str
    split: str
    data: dict[str, str]
    """SHA-256 of the data files, by name."""
    without_picture: dict[str, str] = Field(default_factory=dict)
    """Memes that were drawn and can't be shown, and why."""
    limit: int | None
    seed: int
    sample_seed: int | None = None
    """Seed of the sample where it is another: repeats are about the same memes."""
    samples: tuple[SampledSet, ...] = ()
    """The data sets."""
    cards: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Cards of data sets that no version of the program knows, by id: their files may change."""


@dataclass(frozen=True)
class SampledPlan:
    """Plan of a session about sampled memes."""

    out: Path
    samples: Samples
    seed: int = field(default=0, kw_only=True)
    sample_seed: int | None = field(default=None, kw_only=True)
    command: str = field(default="", kw_only=True)

    @property
    def drawn_by(self) -> int:
        """Seed of the sample of memes."""
        return self.seed if self.sample_seed is None else self.sample_seed

    async def read_memes(self, keep: Callable[[str], bool] = lambda _: True) -> tuple[ShownMemes, dict[str, Any]]:
        """Reads the memes; returns them and the fields of a :class:`SampledManifest`, for a session that starts now."""
        shown = await read_memes(self.samples, seed=self.drawn_by, keep=keep)
        seeds = {"seed": self.seed, "sample_seed": self.sample_seed}
        return shown, {**circumstances(self.command), **shown.described, **seeds}


P = TypeVar("P", bound=SampledPlan)
_REPEAT = re.compile(r"repeat-(\d+)")


def repeats_in(out: Path) -> tuple[Path, ...]:
    """Finds the folders of repeats, in order; empty if the folder holds something else."""
    found = {int(match[1]): path for path in out.glob("repeat-*") if (match := _REPEAT.fullmatch(path.name))}
    # Sorted numerically: as text, repeat-10 precedes repeat-2.
    return tuple(found[number] for number in sorted(found))


def repeats_of(plan: P, count: int, what: str) -> tuple[P, ...]:
    """Plans repeats of a session: the same memes, each with the next seed, in folders below the plan's.

    Raises BadRequest: The folder holds something else, such as a session without repeats.
    """
    out = plan.out
    out.mkdir(parents=True, exist_ok=True)
    # May also contain report pages and the call cache with SQLite's auxiliary files.
    ours = (path.name for path in out.iterdir() if path.name.startswith(CALLS) or path.suffix == ".html")
    refuse_others(out, f"repeats of {what}", {*ours, *(path.name for path in repeats_in(out))})
    return tuple(
        replace(
            plan,
            out=out / f"repeat-{number + 1}",
            seed=plan.seed + number,
            # The first draws its sample by its own seed, which the others get for the sample alone: repeats differ in
            # what models say and not in what they are asked about.
            sample_seed=plan.seed if number else None,
        )
        for number in range(count)
    )
