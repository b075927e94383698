"""A run on disk.

=====================  =================================================================================
``manifest.json``      everything that has to be the same to repeat the run (:class:`RunManifest`)
``memes.jsonl``        the memes to be judged, in order, with gold labels (:class:`JudgedMeme`)
``excluded.jsonl``     precedents that were left out as too similar to the judged memes
``predictions.jsonl``  the predictions, one line per meme, in the order of the memes once all are judged
``docket.sqlite``      the records of all trials, with ``docket.sqlite-pictures`` and ``docket.key``
``library/``           the precedents that the run used
=====================  =================================================================================

The call cache is the run's own (``calls.sqlite``) or one that several runs share.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from court.errors import BadRequest
from eval.datasets.card import DatasetCard, card_of
from eval.datasets.items import JudgedMeme
from eval.datasets.known import find_card
from eval.runs.spec import JudgingSpec
from eval.session.directory import MANIFEST, SessionFolder, SessionManifest
from eval.solvers.prediction import Prediction
from eval.solvers.question import Question

MEMES, EXCLUDED, PREDICTIONS = "memes.jsonl", "excluded.jsonl", "predictions.jsonl"
DOCKET, LIBRARY = "docket.sqlite", "library"


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Excluded(_FrozenModel):
    """A precedent left out of the run's library; one line of ``excluded.jsonl``."""

    precedent: str
    meme: str
    """Id of the judged meme that it is too similar to (the first one found)."""
    why: str
    """``same id``, ``same file``, ``same picture``, ``same text``, ``near-duplicate`` or ``same template``."""
    text_similarity: float | None = None
    picture_similarity: float | None = None


class RunSpec(JudgingSpec):
    """Specification of a run, with the changes that make it an arm of a study."""

    control: str = ""
    """Control condition, if any: ``random precedents``, ``shuffled labels``, ``swapped sides``, ``with leaks``,
    ``translated text``."""
    comparator: str = ""
    """Value of :class:`eval.solvers.comparator.Comparator` in a run without trials; otherwise empty."""
    question: Question | None = None
    """Question asked about every meme, if other than harm; None in a run of trials."""


class RunManifest(RunSpec, SessionManifest):
    """Description of a run, written before the first trial."""

    name: str
    """Display name; the arm's name in an ablation."""
    dropped_labels: tuple[str, ...] = ()
    """Labels, in the data set's words, whose memes were neither judged nor used as precedents."""
    data: dict[str, str]
    """SHA-256 of every data file, by its name below the data set's directory."""
    data_dir: str = ""
    """Directory of the data set; a report looks for pictures there again."""
    pictures_dir: str = ""
    settings: dict[str, JsonValue]
    """The trial's settings as stored in every record."""
    settings_digest: str
    models: dict[str, str] = Field(default_factory=dict)
    """Model by role; empty if no model is asked."""
    prompts: str = ""
    """Digest of the prompt set; empty if no model is asked."""
    policy: str
    library: str
    """Digest of the library."""
    library_size: int
    library_dir: str = ""
    """Directory of a library shared by several runs; empty for the run's own."""
    calls_file: str = ""
    """Path of a call cache shared by several runs; empty for the run's own."""
    encoder: str
    excluded: dict[str, int] = Field(default_factory=dict)
    """Number of precedents left out, by reason."""
    checked: dict[str, JsonValue] = Field(default_factory=dict)
    """Thresholds above which a precedent was too similar (:class:`retrieval.audit.leakage.LeakThresholds`)."""
    card: dict[str, JsonValue] = Field(default_factory=dict)
    """Card of its data set if it is the user's own; empty for a data set known by its id."""


def dataset_of(manifest: RunManifest) -> DatasetCard:
    """The data set of a run; a user's own card is taken from the manifest, as its file may have changed.

    Raises BadRequest: The data set has another version, or its card is not available.
    """
    return card_of(manifest.card, MANIFEST) if manifest.card else find_card(manifest.dataset)


class RunFolder(SessionFolder[RunManifest]):
    """A directory that holds, or will hold, a run."""

    what = "run"
    manifest_type = RunManifest
    # The same data may be in another place now; the precedents were compared and counted when the run began.
    changes = frozenset(
        {"name", "protocols", "card", "settings_digest", "data_dir", "pictures_dir", "library_dir", "library_size"}
        | {"calls_file", "excluded", "checked"}
    )

    def memes(self) -> tuple[JudgedMeme, ...]:
        """Reads the judged memes, in order. Raises BadRequest if a line can't be read."""
        if not (self.root / MEMES).exists():
            raise BadRequest(f"{self.root} holds no run: there is no {MEMES}.", reason="RUN_MISSING")
        return self.read(MEMES, JudgedMeme, torn=False)

    def excluded(self) -> tuple[Excluded, ...]:
        """Reads the excluded precedents; empty if no comparison was made."""
        return self.read(EXCLUDED, Excluded, torn=False)

    def predictions(self) -> tuple[Prediction, ...]:
        """Reads the predictions so far. Skips a last line truncated by a crash: its meme is judged again."""
        return self.read(PREDICTIONS, Prediction)

    def write_memes(self, memes: Sequence[JudgedMeme]) -> None:
        """Replaces the memes atomically."""
        self.write(MEMES, memes)

    def write_excluded(self, excluded: Sequence[Excluded]) -> None:
        """Replaces the excluded precedents atomically."""
        self.write(EXCLUDED, excluded)

    def write_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Replaces the predictions atomically."""
        self.write(PREDICTIONS, predictions)
