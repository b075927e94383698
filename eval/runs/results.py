"""Gold labels beside predictions: the input to scores, reports and comparisons, from any system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.items import JudgedMeme
from eval.datasets.known import find_card
from eval.datasets.protocol import Protocol
from eval.runs.folder import RunFolder, RunManifest, dataset_of
from eval.solvers.prediction import Outcome, Prediction
from eval.solvers.question import Question


@dataclass(frozen=True, slots=True)
class Judged:
    """A meme and its prediction; a missing prediction has outcome FAILED."""

    meme: JudgedMeme
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Results:
    """All predictions on a split, or on the sample that a run was limited to.

    Attributes:
        answered_question: Question that external predictions answer; None if they are verdicts or a manifest names it.
        card: Card of the data set of external predictions; None if the data set's id identifies it.
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
        """True if the run is complete: every meme has an answer. External predictions count as complete."""
        return self.manifest is None or self.manifest.finished is not None

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


def read_results(root: Path) -> Results:
    """The results of a run, complete or not: memes not judged yet have FAILED with reason NOT_JUDGED.

    Raises BadRequest: There is no run, or it can't be read.
    """
    folder = RunFolder(root)
    manifest = folder.manifest()
    # If a meme has several lines, the last counts, as after retrying failures.
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
    """The card of the data set of a run or of external predictions; None if unavailable or of another version."""
    # A card given by path can't be found by its id.
    if results.card is not None:
        return results.card
    try:
        return dataset_of(results.manifest) if results.manifest else find_card(results.dataset)
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
