"""Sessions about memes sampled from one or several data sets: arenas and probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from eval.models.samples import SampledSet, Samples, ShownMemes, read_memes
from eval.session.directory import SessionManifest, circumstances


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
    """The data sets, where they are several or only some of their memes count."""
    cards: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Cards of data sets that no version of the program knows, by id: their files may change."""

    @property
    def drawn_by(self) -> int:
        """Seed of the sample of memes."""
        return self.seed if self.sample_seed is None else self.sample_seed


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
        shown, sets = await read_memes(self.samples, seed=self.drawn_by, keep=keep)
        return shown, {
            **circumstances(self.command),
            "dataset": self.samples.dataset,
            "split": self.samples.split,
            "data": shown.files,
            "without_picture": shown.without_picture,
            "limit": self.samples.limit,
            "seed": self.seed,
            "sample_seed": self.sample_seed,
            "samples": sets,
            "cards": self.samples.own_cards,
        }
