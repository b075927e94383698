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
    """A model as it was named."""

    model: str
    family: str = ""
    usd_in: float = 0.0
    usd_out: float = 0.0


class MemeEntry(_ArenaFileModel):
    """A meme of the arena: no more than tells it."""

    id: str
    harmful: bool
    source_label: str
    pixels_sha256: str
    dataset: str = ""
    """Its data set, where the arena has several."""


class FixedTask(_ArenaFileModel):
    """A question that comes with a set, instead of being written by the controller; one line of ``--tasks``."""

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
        """Names of what differs that may not."""
        # Times, machine and software are those of a session, and an arena may have several.
        passing = {"name", "created", "finished", "interruptions", "software", "commit", "python", "machine", "command"}
        # Of an arena that an earlier version began, nobody knows its cards: it goes on as it did.
        if not self.cards:
            passing.add("cards")
        return differing(self, other, passing)


class Spent(_ArenaFileModel):
    """Usage of one model in all sessions together; of a killed session, up to the last meme that was done."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    repaired: int = 0
    unusable: int = 0
    failed: int = 0
    usd: float = 0.0


class ArenaFolder:
    """A directory that holds, or will hold, an arena."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def begun(self) -> bool:
        """True if the folder contains an arena."""
        return (self.root / MANIFEST).exists()

    def manifest(self) -> ArenaManifest:
        """Reads the arena's manifest. Raises BadRequest if there is none, or none of this format."""
        return read_manifest(
            self.root / MANIFEST, ArenaManifest, "arena", missing="ARENA_MISSING", unreadable="ARENA_UNREADABLE"
        )

    def events(self) -> tuple[Event, ...]:
        """Reads the events so far. Skips a last line that a crash cut."""
        path = self.root / EVENTS
        return stored_lines(path, AnyEvent.validate_json, reason="ARENA_UNREADABLE") if path.exists() else ()

    def take_up(self) -> frozenset[str]:
        """Drops the events of memes that were not done; returns the ids of those that were.

        What is dropped happens again, from the store of calls.
        """
        events = self.events()
        done = frozenset(event.meme for event in events if isinstance(event, MemeDone | MemeLeftOut))
        # Written anew even if nothing is dropped: the next event would be appended to a line that was cut off.
        replace_lines(self.root / EVENTS, (event for event in events if event.meme in done))
        return done

    def drop_cut_line(self) -> None:
        """Drops a last line that a crash cut: the next event would be appended to it."""
        path = self.root / EVENTS
        if path.exists():
            with path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, events: Iterable[Event]) -> None:
        """Keeps events, before anything is done about them."""
        # Not synced to the disk: what a power cut loses happens again, from the store of calls.
        with (self.root / EVENTS).open("a", encoding="utf-8") as file:
            file.write("".join(map(json_line, events)))

    def write_manifest(self, manifest: ArenaManifest) -> None:
        """In one step: a reader sees the old one or the new one."""
        replace_file(self.root / MANIFEST, manifest.model_dump_json(indent=2) + "\n")

    def spent(self) -> dict[str, Spent]:
        """Returns the usage of each model so far."""
        path = self.root / USAGE
        if not path.exists():
            return {}
        return {name: Spent.model_validate(spent) for name, spent in json.loads(path.read_bytes()).items()}

    def write_spent(self, spent: Mapping[str, Spent]) -> None:
        """In one step."""
        content: dict[str, JsonValue] = {name: one.model_dump() for name, one in spent.items()}
        replace_file(self.root / USAGE, json.dumps(content, indent=2) + "\n")


G = TypeVar("G", bound=BaseModel)


def read_lines(path: Path, kind: type[G]) -> Sequence[G]:
    """The lines of a file of questions or of references. Raises BadRequest where one can't be read."""
    return [one for _, one in read_json_lines(path, kind)]
