"""An arena on disk.

=====================  =================================================================================
``manifest.json``      everything that has to be the same for it to be repeated (:class:`ArenaManifest`)
``events.jsonl``       what happened, an event a line (:mod:`eval.arena.events`)
``usage.json``         what each model was asked, in all sessions together
``calls.sqlite``       the store of model calls, unless arenas share one
=====================  =================================================================================
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field

from court.errors import BadRequest
from eval.arena.events import AnyEvent, ArenaValue, Event, MemeDone, MemeLeftOut
from eval.arena.settings import ArenaSettings
from eval.datasets.record_files import read_json_lines
from eval.session.directory import SessionFolder
from eval.session.sampled import SampledManifest

EVENTS = "events.jsonl"


class ModelEntry(ArenaValue):
    """A model as named by the user."""

    model: str
    family: str = ""
    usd_in: float = 0.0
    usd_out: float = 0.0


class MemeEntry(ArenaValue):
    """A meme of the arena: only what identifies it."""

    id: str
    harmful: bool
    source_label: str
    pixels_sha256: str
    dataset: str = ""
    """Id of its data set."""


class FixedTask(ArenaValue):
    """A supplied question, used instead of one written by the controller; one line of ``--tasks``."""

    meme: str
    rounds: tuple[str, ...] = Field(min_length=1)
    language: str = ""
    reference: str = ""
    """What people answered."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Groups that the question belongs to, such as its field or its difficulty, for boards by group."""


class HumanReference(ArenaValue):
    """Human reference for a meme, for the setting ``human``; one line of ``--references``."""

    meme: str
    background: str = ""
    reasoning: str = Field(min_length=1)


class ArenaManifest(SampledManifest):
    """Description of an arena."""

    name: str
    settings: ArenaSettings
    models: dict[str, ModelEntry]
    memes: tuple[MemeEntry, ...]
    tasks: str = ""
    """Digest of the questions that came with a set; empty where the controller wrote them."""
    references: str = ""
    """Digest of what people wrote, likewise."""
    prompts: dict[str, str]
    """Digest of each role's words."""


class ArenaFolder(SessionFolder[ArenaManifest]):
    """A directory that contains, or will contain, an arena."""

    what = "arena"
    missing = "ARENA_MISSING"
    unreadable = "ARENA_UNREADABLE"
    manifest_type = ArenaManifest
    changes = frozenset({"name"})

    def events(self) -> tuple[Event, ...]:
        """Reads the events so far. Skips a last line that a crash truncated."""
        return self.lines(EVENTS, AnyEvent.validate_json)

    def drop_unfinished(self) -> frozenset[str]:
        """Drops the events of unfinished memes; returns the ids of the finished ones.

        Dropped steps are repeated with replies from the call cache.
        """
        events = self.events()
        done = frozenset(event.meme for event in events if isinstance(event, MemeDone | MemeLeftOut))
        # Rewritten even if nothing is dropped: otherwise the next event would be appended to a truncated line.
        self.write(EVENTS, (event for event in events if event.meme in done))
        return done

    def add(self, event: Event) -> None:
        """Stores an event, before anything acts on it."""
        self.append(EVENTS, [event])

    @staticmethod
    def require_memes(wanted: Iterable[str], memes: Collection[str]) -> None:
        """Raises BadRequest if memes of the arena are missing."""
        if missing := {*wanted}.difference(memes):
            raise BadRequest(
                f"{len(missing):,} memes of the arena are not in the data that was named.", reason="NO_MEMES"
            )


G = TypeVar("G", bound=BaseModel)


def read_lines(path: Path, kind: type[G]) -> Sequence[G]:
    """Reads the lines of a file of questions or references. Raises BadRequest if a line is invalid."""
    return [one for _, one in read_json_lines(path, kind)]
