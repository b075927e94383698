"""A probe on disk.

====================  ====================================================================================
``manifest.json``     everything that must be the same to repeat the probe (:class:`ProbeManifest`)
``memes.jsonl``       the memes, in order, and the text erased from their pictures (:class:`ProbedMeme`)
``erased/``           their pictures without text
``mined.jsonl``       the sorting of each meme (:class:`Mined`)
``taxonomy.json``     the final categories
``scored.jsonl``      each meme and category with misbelief, reference, answer and score (:class:`Scored`)
``rewritten.jsonl``   each step of the refinement (:class:`Step`); its texts stay here, and every line says so
``seeds.json``        the memes that searches began with, by category, for ``--seeds-from`` of another target
``usage.json``        what each model was asked, in all sessions together
``calls.sqlite``      the store of model calls
====================  ====================================================================================

A probe is resumed from the store of calls: it runs again from the start, and stored calls are not repeated. The other
files have the results in a form that is easy to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from court.errors import BadRequest
from eval.probe.agents import HIGHEST, LOWEST, Category
from eval.reports.records import shrunk
from eval.session.directory import SessionFolder, replace_file
from eval.session.sampled import SampledManifest
from eval.session.spec import Option
from retrieval.library.sources import NOT_FOR_LIBRARIES

SEEDS = "seeds.json"
SeedSet = Mapping[str, tuple[str, ...]]
"""Memes that searches begin with, by category and in order."""


def read_seeds(root: Path) -> SeedSet:
    """Reads the seeds of another probe. Raises BadRequest if there are none."""
    file = root / SEEDS
    try:
        return TypeAdapter(dict[str, tuple[str, ...]]).validate_json(file.read_bytes())
    except OSError:
        why = "can't be read. Name the folder of a probe that has come to its refinement."
    except ValidationError:
        why = "is no list of seeds: an object with lists of memes by category."
    raise BadRequest(f"{file} {why}", reason="FILE_UNREADABLE")


def small_pictures(root: Path, meme: ProbedMeme, side: int) -> tuple[bytes, ...]:
    """The meme's pictures without text as small JPEG files; pictures missing from the folder are omitted."""
    paths = (root / ERASED / name for name in meme.erased)
    return tuple(jpeg for path in paths if path.is_file() and (jpeg := shrunk(path.read_bytes(), side)) is not None)


MEMES, ERASED = "memes.jsonl", "erased"
MINED, TAXONOMY, SCORED, REWRITTEN = "mined.jsonl", "taxonomy.json", "scored.jsonl", "rewritten.jsonl"
Mark = Literal["rewritten by memecourt-eval probe"]
MARK: Mark = "rewritten by memecourt-eval probe"
"""Mark on each rewritten text."""


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProbedMeme(_Stored):
    """A meme that is probed; one line of ``memes.jsonl``."""

    id: str
    harmful: bool
    """True if the gold label is harmful. No agent sees it."""
    source_label: str
    """Gold, in the data set's own words."""
    text: str
    text_read: bool
    """True if the text was read off the picture, as the data set has none."""
    pixels_sha256: str
    lines: int
    """Lines that were painted over."""
    left: int
    """Lines that could still be read afterwards."""
    # The pattern lets no line that was changed by hand name a file outside the folder.
    erased: tuple[Annotated[str, Field(pattern=r"^\d{5,}-\d+\.png$")], ...]
    """Names of the pictures without text, below ``erased/``: one a frame."""


class Sorted(StrEnum):
    """Outcome of sorting a meme."""

    HARMFUL = "harmful"
    """It belongs to at least one category."""
    HARMLESS = "harmless"
    """It belongs to none, and is not probed further."""
    UNREAD = "unread"
    """Too few Miners gave a readable reply; it is not probed further either."""


class Proposal(_Stored):
    """A new category that a Miner proposed."""

    category: Category
    examiner: bool
    """True if the Examiner finds it in this meme."""
    judge: bool
    """True if the Judge finds it distinct and neither too broad nor too narrow; not asked if the Examiner does not find
    it, or if it has been admitted already."""
    why: str = ""
    """Reason why a reply of one of them was unreadable."""

    @property
    def admitted(self) -> bool:
        """True if both agreed."""
        return self.examiner and self.judge


class Mined(_Stored):
    """Sorting of a meme; one line of ``mined.jsonl``."""

    meme: str
    outcome: Sorted
    categories: tuple[str, ...]
    """By majority of the Miners, and what was proposed for it and admitted."""
    votes: dict[str, int]
    """Number of Miners' votes by category."""
    miners: int
    """Number of Miners, of three, with a readable reply."""
    proposals: tuple[Proposal, ...] = ()


class ScoringOutcome(StrEnum):
    """Outcome of a scoring. Only the first has a score: a failure is never a number."""

    SCORED = "scored"
    REFUSED = "refused"
    """The target declined to explain the meme."""
    UNSCORED = "unscored"
    """There was no answer, no reference, or no rating that can be read."""


class Scoring(_Stored):
    """Score of a target's answer."""

    outcome: ScoringOutcome
    score: int | None = Field(default=None, ge=LOWEST, le=HIGHEST)
    why: str = ""
    """Why there is no score."""
    references: int = 0
    """Number of drafts that the reference was merged from."""
    reference: str = ""
    answer: str = ""
    """The target's."""
    cut: bool = False
    """True if the answer was cut off at its limit; it is scored as it is."""
    comment: str = ""
    """The Scorer's reply."""


class Scored(_Stored):
    """A meme as it is, scored in a category; one line of ``scored.jsonl``."""

    meme: str
    category: str
    misbelief: str
    """Misbelief behind the meme; empty if the Narrator's reply was unreadable."""
    why: str = ""
    """Reason for a missing misbelief."""
    text: str
    scoring: Scoring

    @property
    def score(self) -> int | None:
        """Its score; None if there is none."""
        return self.scoring.score

    @property
    def usable(self) -> bool:
        """True if a search can start from it: it has a misbelief and a score."""
        return bool(self.misbelief) and self.score is not None


class StepOutcome(StrEnum):
    """Outcome of a step of the refinement. After all but the first, the search stops."""

    LOWER = "lower"
    """The rewritten meme's score is below the meme's."""
    NOT_LOWER = "not lower"
    UNSCORED = "unscored"
    """There is no score to compare, or the target refused."""
    ASTRAY = "astray"
    """The Examiner does not find the misbelief in it any more, so it was not scored."""
    NOT_REWRITTEN = "not rewritten"
    """The Refiner or the Examiner could not be understood, or declined."""


class Step(_Stored):
    """One step of the refinement; one line of ``rewritten.jsonl``."""

    mark: Mark = Field(default=MARK, alias=NOT_FOR_LIBRARIES)
    """Mark that keeps the line out of every library (:data:`retrieval.library.sources.NOT_FOR_LIBRARIES`)."""
    category: str
    seed: str
    """The meme that the search began with."""
    number: int = Field(ge=1)
    """Number of the step, counted from 1."""
    meme: str
    """The meme whose text is rewritten."""
    misbelief: str
    before: int = Field(ge=LOWEST, le=HIGHEST)
    """Its score as it is."""
    examples: tuple[str, ...]
    """Ids of the examples shown to the Refiner, in order, with a trailing ``+`` for a rewritten meme."""
    outcome: StepOutcome
    text: str = ""
    """The rewritten one."""
    explanation: str = ""
    """The Refiner's: what the target is likely to miss."""
    why: str = ""
    """What was wrong, where it has no score."""
    scoring: Scoring | None = None

    @property
    def score(self) -> int | None:
        """Score of the rewritten meme; None if there is none."""
        return self.scoring.score if self.scoring else None


class ProbeSpec(BaseModel):
    """Specification of a probe, which is compared when it is resumed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: Annotated[int, Field(ge=1, le=100), Option("Maximum steps of a search (N).")] = 10
    seeds: Annotated[int, Field(ge=0, le=1000), Option("Searches in a category.")] = 5
    examples: int = 3
    """Largest number of examples shown to the Refiner."""
    examples_order: Annotated[
        Literal["descending", "ascending"],
        Option(
            "Order by score of the examples that the Refiner is shown; the paper's is descending.", flag="--examples"
        ),
    ] = "descending"
    batch: Annotated[int, Field(ge=1), Option("Memes sorted alike; see docs.")] = 8
    per_category: Annotated[
        int | None,
        Field(ge=1),
        Option("Score at most so many memes of a category, drawn by seed: the same for every target."),
    ] = None


class ProbeManifest(ProbeSpec, SampledManifest):
    """Description of a probe, written before the first call."""

    kind: Literal["probe"] = "probe"
    target: str
    controllers: tuple[str, ...]
    models: dict[str, str]
    """The models' own names, by what the run calls them."""
    taxonomy: tuple[Category, ...]
    """To begin with."""
    seed_set: str = ""
    """Digest of the list of memes that searches begin with; empty where they were drawn."""
    prompts: dict[str, str]
    """Digests, by id."""
    text_reader: str


class ProbeFolder(SessionFolder[ProbeManifest]):
    """A directory that holds, or will hold, a probe."""

    what = "probe"
    manifest_type = ProbeManifest

    def memes(self) -> tuple[ProbedMeme, ...]:
        """The memes whose pictures have been prepared. Raises BadRequest if a line can't be read."""
        return self.read(MEMES, ProbedMeme)

    def write_erased(self, name: str, png: bytes) -> None:
        """A picture without its text."""
        folder = self.root / ERASED
        folder.mkdir(parents=True, exist_ok=True)
        # Not in one step: until the meme's own line stands, nothing relies on its pictures.
        (folder / name).write_bytes(png)

    def erased(self, name: str) -> bytes:
        """A picture without its text. Raises BadRequest if it is gone."""
        try:
            return (self.root / ERASED / name).read_bytes()
        except OSError:
            raise BadRequest(
                f"{self.root / ERASED / name} can't be read. Remove {self.root / MEMES}: then the pictures are "
                "prepared anew.",
                reason="RUN_UNREADABLE",
            ) from None

    def taxonomy(self) -> tuple[Category, ...]:
        """The final categories."""
        return TypeAdapter(tuple[Category, ...]).validate_json((self.root / TAXONOMY).read_bytes())

    def write_json(self, name: str, content: object) -> None:
        """Replaces a JSON file atomically."""
        replace_file(self.root / name, json.dumps(content, indent=2) + "\n")
