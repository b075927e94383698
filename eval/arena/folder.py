"""An arena on disk.

=====================  =================================================================================
``manifest.json``      everything that has to be the same for it to be repeated (:class:`ArenaManifest`)
``events.jsonl``       what happened, an event a line (:mod:`eval.arena.events`)
``usage.json``         what each model was asked, in all sessions together (:class:`Spent`)
``calls.sqlite``       the store of model calls, unless arenas share one
=====================  =================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from eval.arena.events import AnyEvent, Event, MemeDone, MemeLeftOut
from eval.arena.settings import ArenaSettings
from eval.datasets.json_lines import read_json_lines
from eval.datasets.stored_files import json_line, read_manifest, replace_file, replace_lines, stored_lines
from eval.models.samples import SampledSet
from eval.runs.sole_use import differing

FORMAT = 1
MANIFEST, EVENTS, USAGE, CALLS = "manifest.json", "events.jsonl", "usage.json", "calls.sqlite"


class _ArenaFileModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelEntry(_ArenaFileModel):
    """A model as named by the user."""

    model: str
    family: str = ""
    usd_in: float = 0.0
    usd_out: float = 0.0


class MemeEntry(_ArenaFileModel):
    """A meme of the arena: only what identifies it."""

    id: str
    harmful: bool
    source_label: str
    pixels_sha256: str
    dataset: str = ""
    """Its data set, where the arena has several."""


class FixedTask(_ArenaFileModel):
    """A supplied question, used instead of one written by the controller; one line of ``--tasks``."""

    meme: str
    rounds: tuple[str, ...] = Field(min_length=1)
    language: str = ""
    reference: str = ""
    """What people answered."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Groups that the question belongs to, such as its field or its difficulty, for boards by group."""


class HumanReference(_ArenaFileModel):
    """Human reference for a meme, for the setting ``human``; one line of ``--references``."""

    meme: str
    background: str = ""
    reasoning: str = Field(min_length=1)


class ArenaManifest(_ArenaFileModel):
    """Description of an arena. Only ``finished`` and ``interruptions`` change."""

    format: int = FORMAT
    name: str
    created: AwareDatetime
    finished: AwareDatetime | None = None
    interruptions: int = 0
    dataset: str
    split: str
    data: dict[str, str]
    limit: int | None
    seed: int
    sample_seed: int | None = None
    """Seed of the sample where it is another: repeats of an arena are about the same memes."""
    samples: tuple[SampledSet, ...] = ()
    """The data sets, where they are several or only some of their memes count."""
    cards: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Cards of data sets that no version of the program knows, by id: their files may change."""
    settings: ArenaSettings
    models: dict[str, ModelEntry]
    memes: tuple[MemeEntry, ...]
    without_picture: dict[str, str] = Field(default_factory=dict)
    tasks: str = ""
    """Digest of the questions that came with a set; empty where the controller wrote them."""
    references: str = ""
    """Digest of what people wrote, likewise."""
    prompts: dict[str, str]
    """Digest of each role's words."""
    software: str
    commit: str = ""
    python: str
    machine: str
    command: str

    @property
    def drawn_by(self) -> int:
        """Seed of the sample of memes."""
        return self.seed if self.sample_seed is None else self.sample_seed

    def differs_from(self, other: ArenaManifest) -> list[str]:
        """Returns the names of fields that differ but must not."""
        # Times, machine and software belong to a session, and an arena may have several.
        passing = {"name", "created", "finished", "interruptions", "software", "commit", "python", "machine", "command"}
        # An arena begun by an earlier version does not record its cards: it continues as before.
        if not self.cards:
            passing.add("cards")
        return differing(self, other, passing)


class Spent(_ArenaFileModel):
    """Usage of one model over all sessions; a killed session counts up to its last finished meme."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    repaired: int = 0
    unusable: int = 0
    failed: int = 0
    usd: float = 0.0


class ArenaFolder:
    """A directory that contains, or will contain, an arena."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def begun(self) -> bool:
        """True if the folder contains an arena."""
        return (self.root / MANIFEST).exists()

    def manifest(self) -> ArenaManifest:
        """Reads the arena's manifest. Raises BadRequest if it is missing or of another format."""
        return read_manifest(
            self.root / MANIFEST, ArenaManifest, "arena", missing="ARENA_MISSING", unreadable="ARENA_UNREADABLE"
        )

    def events(self) -> tuple[Event, ...]:
        """Reads the events so far. Skips a last line that a crash truncated."""
        path = self.root / EVENTS
        return stored_lines(path, AnyEvent.validate_json, reason="ARENA_UNREADABLE") if path.exists() else ()

    def take_up(self) -> frozenset[str]:
        """Drops the events of unfinished memes; returns the ids of the finished ones.

        Dropped steps are repeated with replies from the call cache.
        """
        events = self.events()
        done = frozenset(event.meme for event in events if isinstance(event, MemeDone | MemeLeftOut))
        # Rewritten even if nothing is dropped: otherwise the next event would be appended to a truncated line.
        replace_lines(self.root / EVENTS, (event for event in events if event.meme in done))
        return done

    def drop_cut_line(self) -> None:
        """Drops a last line that a crash truncated: the next event would be appended to it."""
        path = self.root / EVENTS
        if path.exists():
            with path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, events: Iterable[Event]) -> None:
        """Stores events, before anything acts on them."""
        # Not synced to disk: steps lost in a power cut are repeated with replies from the call cache.
        with (self.root / EVENTS).open("a", encoding="utf-8") as file:
            file.write("".join(map(json_line, events)))

    def write_manifest(self, manifest: ArenaManifest) -> None:
        """Writes the manifest atomically: a reader sees the old one or the new one."""
        replace_file(self.root / MANIFEST, manifest.model_dump_json(indent=2) + "\n")

    def spent(self) -> dict[str, Spent]:
        """Returns the usage of each model so far."""
        path = self.root / USAGE
        if not path.exists():
            return {}
        return {name: Spent.model_validate(spent) for name, spent in json.loads(path.read_bytes()).items()}

    def write_spent(self, spent: Mapping[str, Spent]) -> None:
        """Writes the usage of each model atomically."""
        content: dict[str, JsonValue] = {name: one.model_dump() for name, one in spent.items()}
        replace_file(self.root / USAGE, json.dumps(content, indent=2) + "\n")


G = TypeVar("G", bound=BaseModel)


def read_lines(path: Path, kind: type[G]) -> Sequence[G]:
    """Reads the lines of a file of questions or references. Raises BadRequest if a line is invalid."""
    return [one for _, one in read_json_lines(path, kind)]
