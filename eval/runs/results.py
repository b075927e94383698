"""A run on disk, and what scores, reports and comparisons read from it: gold labels beside predictions.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from court.digests import sha256_of
from court.errors import BadRequest
from eval.datasets.card import DatasetCard, card_of
from eval.datasets.items import JudgedMeme, Outcome, Prediction, Protocol
from eval.runs.spec import JudgingSpec
from eval.session.directory import MANIFEST, SessionFolder, SessionManifest, replace_file
from eval.solvers.question import Question

SCORED = "scored.json"
"""Description of predictions from elsewhere, in place of the manifest of a run."""
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
    encoder: str
    excluded: dict[str, int] = Field(default_factory=dict)
    """Number of precedents left out, by reason."""
    checked: dict[str, JsonValue] = Field(default_factory=dict)
    """Thresholds above which a precedent was too similar (:class:`retrieval.audit.leakage.LeakThresholds`)."""
    card: dict[str, JsonValue] = Field(default_factory=dict)
    """Card of its data set: its file may change, or be gone."""
    notes: tuple[str, ...] = ()
    """Sentences on the data set: rows that were not used, and counts that differ from the published ones."""


def dataset_of(manifest: RunManifest) -> DatasetCard:
    """The data set of a run, by the card in its manifest. Raises BadRequest if another version wrote it."""
    return card_of(manifest.card, MANIFEST)


class ScoredManifest(_FrozenModel):
    """Description of predictions from elsewhere, stored beside memes and predictions like those of a run."""

    name: str
    dataset: str
    split: str
    protocols: tuple[Protocol, ...] = ()
    question: Question | None = None
    """Question that the predictions answer; None for verdicts."""
    card: dict[str, JsonValue]
    file: str
    """Name of the file of predictions."""
    sha256: str
    scorer: str = ""
    notes: tuple[str, ...] = ()
    """Sentences on the file and on the data set."""
    command: str


class RunFolder(SessionFolder[RunManifest]):
    """A directory that holds, or will hold, a run."""

    what = "run"
    manifest_type = RunManifest
    # The precedents were compared and counted when the run began.
    changes = frozenset(
        {"name", "protocols", "card", "settings_digest", "library_size", "excluded", "checked", "notes"}
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


@dataclass(frozen=True, slots=True)
class Judged:
    """A meme and its prediction; a missing prediction has outcome FAILED."""

    meme: JudgedMeme
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Results:
    """All predictions on a split, or on the sample that a run was limited to."""

    name: str
    dataset: str
    split: str
    protocols: tuple[Protocol, ...]
    judged: tuple[Judged, ...]
    manifest: RunManifest | None = None
    root: Path | None = None
    answered_question: Question | None = None
    """Question that external predictions answer; None if they are verdicts or a manifest names it."""
    card: DatasetCard | None = None
    """Card of the data set of external predictions; that of a run stands in its manifest."""
    notes: tuple[str, ...] = ()
    """Sentences on the data set, and on external predictions, which stand in front of the figures."""

    @property
    def finished(self) -> bool:
        """True if the run is complete: every meme has an answer. External predictions count as complete."""
        return self.manifest is None or self.manifest.finished is not None

    @property
    def tried(self) -> tuple[Judged, ...]:
        """The memes that were judged so far, including failures."""
        # The placeholder of a meme that is not judged yet has neither rounds nor cost.
        return tuple(one for one in self.judged if one.prediction.reason != NOT_JUDGED)

    @property
    def question(self) -> Question | None:
        """Question that was asked instead of trials; None if trials were run or it is unknown."""
        return self.manifest.question if self.manifest else self.answered_question

    def under(self, protocol: Protocol) -> tuple[tuple[bool, Judged], ...]:
        """Gold (harmful or not) and prediction per meme, without memes that the protocol drops.

        Raises:
            BadRequest: The run asked a question and holds no verdicts.
            ValueError: The protocol does not apply to a data set of this kind.
        """
        require_verdicts(self)
        pairs = ((one.meme.gold(protocol), one) for one in self.judged)
        return tuple((gold, one) for gold, one in pairs if gold is not None)

    @property
    def scorable(self) -> tuple[Protocol, ...]:
        """The protocols that score any meme; all protocols if none does, so that scoring reports why."""
        there = tuple(one for one in self.protocols if any(each.meme.gold(one) is not None for each in self.judged))
        return there or self.protocols


NOT_JUDGED = "NOT_JUDGED"
"""Reason of the placeholder prediction for a meme that was not judged."""


def runs_below(path: Path) -> tuple[Path, ...]:
    """The folder itself if it is a run, or else the runs in it, by name.

    Raises BadRequest: The folder is no run, and contains none.
    """
    if (path / MANIFEST).exists() or (path / SCORED).exists():
        return (path,)
    if found := sorted(each.parent for name in (MANIFEST, SCORED) for each in path.glob(f"*/{name}")):
        return tuple(found)
    raise BadRequest(
        f"{path} holds no run and no folder of one. `memecourt-eval run` writes one where --out says.",
        reason="RUN_MISSING",
    )


def read_runs(paths: Iterable[Path]) -> list[Results]:
    """The results of runs, each named by its folder or by a folder of runs, such as an ablation's.

    Raises BadRequest: A folder holds no run, or one can't be read.
    """
    return [read_results(root) for path in paths for root in runs_below(path)]


def read_results(root: Path) -> Results:
    """The results of a run, complete or not: memes not judged yet have FAILED with reason NOT_JUDGED.

    Raises BadRequest: There is no run, or it can't be read.
    """
    folder = RunFolder(root)
    if (root / SCORED).is_file():
        try:
            scored = ScoredManifest.model_validate_json((root / SCORED).read_bytes())
        except ValidationError:
            raise BadRequest(f"{root / SCORED} can't be read.", reason="RUN_UNREADABLE") from None
        return _results(folder, scored, answered_question=scored.question, card=card_of(scored.card, SCORED))
    manifest = folder.manifest()
    return _results(folder, manifest, manifest=manifest, root=root)


def _results(folder: RunFolder, described: RunManifest | ScoredManifest, **more: Any) -> Results:
    # If a meme has several lines, the last counts, as after retrying failures.
    predictions = {prediction.meme: prediction for prediction in folder.predictions()}
    return Results(
        name=described.name,
        dataset=described.dataset,
        split=described.split,
        protocols=described.protocols,
        judged=tuple(Judged(meme, predictions.get(meme.id) or not_judged(meme.id)) for meme in folder.memes()),
        notes=described.notes,
        **more,
    )


def write_scored(
    root: Path, results: Results, *, file: Path, scorer: str = "", notes: Sequence[str] = (), command: str = ""
) -> None:
    """Stores predictions from elsewhere in a new folder, which :func:`read_results` reads like a run without records.

    Raises BadRequest: The folder is there and not empty.
    """
    if root.exists() and any(root.iterdir()):
        raise BadRequest(f"{root} is not empty. Name another folder.", reason="FOLDER_NOT_EMPTY", field="out")
    folder = RunFolder(root)
    folder.write(MEMES, [one.meme for one in results.judged])
    folder.write(PREDICTIONS, [one.prediction for one in results.judged])
    card = card_of_results(results)
    manifest = ScoredManifest(
        name=results.name,
        dataset=results.dataset,
        split=results.split,
        protocols=results.protocols,
        question=results.question,
        card=card.to_json() if card else {},
        file=file.name,
        sha256=sha256_of(file),
        scorer=scorer,
        notes=tuple(notes),
        command=command,
    )
    # Last, so that a folder with it is whole.
    replace_file(root / SCORED, manifest.model_dump_json(indent=1))


def card_of_results(results: Results) -> DatasetCard | None:
    """The card of the data set of a run or of external predictions; None if it is of another version."""
    if results.manifest is None:
        return results.card
    try:
        return dataset_of(results.manifest)
    except BadRequest:  # figures do not depend on the card, only its wording is missing
        return None


def require_verdicts(results: Results) -> None:
    """Refuses answers to a question other than harm, which would count as missing verdicts. Raises BadRequest."""
    if results.question is not None:
        raise BadRequest(
            f"{results.name} asked for {results.question.task} and holds no verdicts to score: its answers are shown "
            "by memecourt-eval report.",
            reason="NOTHING_TO_SCORE",
        )


def not_judged(meme: str) -> Prediction:
    """Builds the placeholder prediction for a meme that was not judged."""
    return Prediction(meme=meme, outcome=Outcome.FAILED, reason=NOT_JUDGED)
