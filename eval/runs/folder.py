"""A run on disk.

=====================  =================================================================================
``manifest.json``      everything that has to be the same for the run to be repeated (:class:`RunManifest`)
``memes.jsonl``        the memes to be judged, in order, with gold labels (:class:`JudgedMeme`)
``excluded.jsonl``     precedents that were left out because they are too near to what is judged
``predictions.jsonl``  what was said, a line a meme, in the order in which they were done
``docket.sqlite``      the records of all trials, with ``docket.sqlite-pictures`` and ``docket.key``
``library/``           the precedents that the run was held with
=====================  =================================================================================

The store of model calls is the run's own (``calls.sqlite``), or one that runs share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import AwareDatetime, BaseModel, Field, JsonValue

from court.errors import BadRequest
from court.events import Procedure
from eval.datasets.card import card_of
from eval.datasets.items import JudgedMeme, _ItemModel
from eval.datasets.known import Dataset, dataset_of_card, find_dataset
from eval.datasets.protocol import Protocol
from eval.datasets.stored_files import read_manifest, replace_file, replace_lines, stored_lines
from eval.runs.prediction import Prediction
from eval.runs.question import Question

FORMAT = 1
MANIFEST, MEMES, EXCLUDED, PREDICTIONS = "manifest.json", "memes.jsonl", "excluded.jsonl", "predictions.jsonl"
DOCKET, LIBRARY, CALLS = "docket.sqlite", "library", "calls.sqlite"
STAND_IN = "no-picture.png"
"""What earlier versions judged in place of every meme's picture in a run by the texts alone."""


class Excluded(_ItemModel):
    """A precedent that the run was held without; one line of ``excluded.jsonl``."""

    precedent: str
    meme: str
    """Id of the judged meme that it is too near to (the first found)."""
    why: str
    """``same id``, ``same file``, ``same picture``, ``same text``, ``near-duplicate`` or ``same template``."""
    text_similarity: float | None = None
    picture_similarity: float | None = None


class RunManifest(_ItemModel):
    """Description of a run. Written before the first trial; only ``finished`` and ``interruptions`` change."""

    format: int = FORMAT
    name: str
    """What people call it; the arm's name in an ablation."""
    created: AwareDatetime
    finished: AwareDatetime | None = None
    interruptions: int = 0
    """How often it was taken up again."""
    dataset: str
    split: str
    data: dict[str, str]
    """SHA-256 of every data file, by its name below the data set's directory."""
    data_dir: str = ""
    """Where the data set was; pictures are looked for here again by a report."""
    pictures_dir: str = ""
    protocols: tuple[Protocol, ...]
    limit: int | None = None
    seed: int = 0
    procedure: Procedure
    settings: dict[str, JsonValue]
    """The trial's settings as they stand in every record."""
    settings_digest: str
    models: dict[str, str] = Field(default_factory=dict)
    """Per role; empty where no model is asked."""
    prompts: str = ""
    """Digest of the prompt set; empty likewise."""
    policy: str
    library: str
    """Digest of the library."""
    library_size: int
    library_dir: str = ""
    """Where it was, if several runs share it; empty where it is the run's own."""
    calls_file: str = ""
    """Where the store of calls was, likewise."""
    server: str = ""
    """What the model servers are called in the store of calls; empty where they go by their addresses."""
    encoder: str
    excluded: dict[str, int] = Field(default_factory=dict)
    """Precedents left out, by why."""
    checked: dict[str, JsonValue] = Field(default_factory=dict)
    """From where on a precedent was too near to what is judged (:class:`retrieval.audit.leakage.LeakThresholds`)."""
    control: str = ""
    """What was altered to see what it is worth: ``random precedents``, ``shuffled labels``, ``swapped sides``,
    ``with leaks``, ``translated text``."""
    comparator: str = ""
    """Of :class:`eval.runs.comparators.Comparator`, where no trials were held; empty where they were."""
    question: Question | None = None
    """What was asked of every meme, where it is another question than of harm; None in a run of trials."""
    dropped_labels: tuple[str, ...] = ()
    """Labels, in the data set's words, of which memes were neither judged nor precedents."""
    text_only: bool = False
    """True if memes were judged by their text alone; by earlier versions, with a plain picture in place of theirs."""
    language: str = ""
    """BCP 47 tag of the memes' language, ``detect`` if it was detected of each text, ``card`` if the card names it of
    each, or empty."""
    software: str
    commit: str = ""
    """Of the source tree, ``+`` appended where it was changed; empty where it is not one."""
    python: str
    machine: str
    """System, processor kind, number of cores."""
    command: str
    """As it was called."""
    card: dict[str, JsonValue] = Field(default_factory=dict)
    """Card of its data set, where that is its user's own; empty for a data set that is known by its id."""


def dataset_of(manifest: RunManifest) -> Dataset:
    """The data set of a run, by the card in its manifest where that is its user's own: the file may have changed.

    Raises:
        BadRequest: The data set is of another version, or of a card that is not at hand.
    """
    return dataset_of_card(card_of(manifest.card, MANIFEST)) if manifest.card else find_dataset(manifest.dataset)


S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A directory that holds, or will hold, a run."""

    root: Path

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.root.name

    def manifest(self) -> RunManifest:
        """Reads the run's manifest. Raises BadRequest if there is none, or none of this format."""
        return read_manifest(self.root / MANIFEST, RunManifest, "run")

    def memes(self) -> tuple[JudgedMeme, ...]:
        """Reads the judged memes, in order. Raises BadRequest if a line can't be read."""
        return self._read(MEMES, JudgedMeme)

    def excluded(self) -> tuple[Excluded, ...]:
        """Reads the memes left out of the precedents; empty if none were looked for."""
        return self._read(EXCLUDED, Excluded) if (self.root / EXCLUDED).exists() else ()

    def predictions(self) -> tuple[Prediction, ...]:
        """Reads the predictions so far. Skips a last line that a crash cut: its meme is judged again."""
        return self._read(PREDICTIONS, Prediction, torn=True) if (self.root / PREDICTIONS).exists() else ()

    def write_manifest(self, manifest: RunManifest) -> None:
        """In one step: a reader sees the old one or the new one."""
        replace_file(self.root / MANIFEST, manifest.model_dump_json(indent=2) + "\n")

    def write_memes(self, memes: Sequence[JudgedMeme]) -> None:
        """In one step."""
        replace_lines(self.root / MEMES, memes)

    def write_excluded(self, excluded: Sequence[Excluded]) -> None:
        """In one step."""
        replace_lines(self.root / EXCLUDED, excluded)

    def write_predictions(self, predictions: Sequence[Prediction]) -> None:
        """In one step, in place of those that are there."""
        replace_lines(self.root / PREDICTIONS, predictions)

    def _read(self, name: str, kind: type[S], *, torn: bool = False) -> tuple[S, ...]:
        try:
            return stored_lines(self.root / name, kind.model_validate_json, torn=torn)
        except FileNotFoundError:
            raise BadRequest(f"{self.root} holds no run: there is no {name}.", reason="RUN_MISSING") from None
