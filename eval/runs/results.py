"""Gold labels and predictions side by side: what is scored, reported and compared, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.items import JudgedMeme
from eval.datasets.known import find_dataset
from eval.datasets.protocol import Protocol
from eval.runs.folder import RunFolder, RunManifest, dataset_of
from eval.runs.prediction import Outcome, Prediction
from eval.runs.question import Question


@dataclass(frozen=True, slots=True)
class Judged:
    """A meme and what was said of it; ``prediction`` is one of outcome FAILED where nothing was."""

    meme: JudgedMeme
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that was said of a split, or of the part of it that a run was limited to.

    Attributes:
        name: Name of the system.
        dataset: Data set of :mod:`eval.datasets.known`.
        split: Split of the data set.
        protocols: Under which it is scored.
        judged: In the order of the split, every meme once.
        manifest: Manifest of the run; None for predictions from elsewhere.
        root: Directory of the run, for its records; None likewise.
        answered_question: Question that predictions from elsewhere answer; None where they are verdicts, or a manifest
            has it.
        card: Card of the data set of predictions from elsewhere; None where it is found by the data set's id.
    """

    name: str
    dataset: str
    split: str
    protocols: tuple[Protocol, ...]
    judged: tuple[Judged, ...]
    manifest: RunManifest | None = None
    root: Path | None = None
    answered_question: Question | None = None
    card: DatasetCard | None = None

    @property
    def finished(self) -> bool:
        """True if the run was closed: every meme has an answer. Predictions from elsewhere count as finished."""
        return self.manifest is None or self.manifest.finished is not None

    @property
    def question(self) -> Question | None:
        """Question that was asked in place of trials; None where trials were held, or nobody knows."""
        return self.manifest.question if self.manifest else self.answered_question

    def under(self, protocol: Protocol) -> tuple[tuple[bool, Judged], ...]:
        """Gold (harmful or not) and what was said, without the memes that the protocol drops.

        Raises:
            BadRequest: The run asked a question and holds no verdicts.
            ValueError: The protocol is not for a data set of this kind.
        """
        require_verdicts(self)
        pairs = ((one.meme.gold(protocol), one) for one in self.judged)
        return tuple((gold, one) for gold, one in pairs if gold is not None)

    @property
    def scorable(self) -> tuple[Protocol, ...]:
        """The protocols, without those that drop all memes; all where none is left, so that scoring says why."""
        there = tuple(one for one in self.protocols if any(each.meme.gold(one) is not None for each in self.judged))
        return there or self.protocols


NOT_JUDGED = "NOT_JUDGED"
"""Reason of a prediction that stands for a meme of which nothing was said."""


def read_results(root: Path) -> Results:
    """The results of a run, finished or not: memes that were not judged yet have FAILED with reason NOT_JUDGED.

    Raises:
        BadRequest: There is no run, or it can't be read.
    """
    folder = RunFolder(root)
    manifest = folder.manifest()
    # Of several lines about a meme the last one counts, as where failures were tried again.
    predictions = {prediction.meme: prediction for prediction in folder.predictions()}
    return Results(
        name=manifest.name,
        dataset=manifest.dataset,
        split=manifest.split,
        protocols=manifest.protocols,
        judged=tuple(Judged(meme, predictions.get(meme.id) or not_judged(meme.id)) for meme in folder.memes()),
        manifest=manifest,
        root=root,
    )


def card_of_results(results: Results) -> DatasetCard | None:
    """The card of the data set of a run or of predictions; None for one that is not at hand, or of another version."""
    # A card by path is known to nobody by its id.
    if results.card is not None:
        return results.card
    try:
        dataset = dataset_of(results.manifest) if results.manifest else find_dataset(results.dataset)
    except BadRequest:  # figures don't rest on the card: only its words are missed
        return None
    return dataset.card


def require_verdicts(results: Results) -> None:
    """Refuses answers to another question than of harm, which would count as no verdict. Raises BadRequest."""
    if results.question is not None:
        raise BadRequest(
            f"{results.name} asked for {results.question.task} and holds no verdicts to score: its answers are shown "
            "by memecourt-eval report.",
            reason="NOTHING_TO_SCORE",
        )


def not_judged(meme: str) -> Prediction:
    """Builds the placeholder prediction of a meme that was not judged."""
    return Prediction(meme=meme, outcome=Outcome.FAILED, reason=NOT_JUDGED)
