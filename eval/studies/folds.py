"""Verdicts of the summary procedure on a library's own memes, by grouped five-fold cross-validation of their texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.errors import BadRequest
from court.events import TextRead, TextSource
from court.policy import DEFAULT_POLICY
from court.precedents import Vote
from court.settings import TrialSettings
from court.summary import vote_if_close, vote_of, weigh
from court.verdict import Decision, Label, Verdict
from eval.scores.bootstrap import Figure
from eval.scores.compare import paired_differences
from eval.scores.metrics import harm_arrays
from eval.studies.vote import part_of
from retrieval.audit.leakage import template_numbers
from retrieval.calibration.leave_one_out import NEARLY
from retrieval.embed.encoder import Encoder
from retrieval.library.library import Library
from retrieval.open import load_encoder_for
from retrieval.precedents.finder import LibraryFinder

_FOLDS = 5
_FEWEST = 3
"""Memes with a label: one for each zone."""
_READ = TextRead(trial_id="fold", seq=1, at=datetime(1970, 1, 1, tzinfo=UTC), text="", source=TextSource.CALLER)


@dataclass(frozen=True, slots=True)
class FoldVerdict:
    """Verdict on a meme by the folds that it is not in, and the vote at any distance that it rests on."""

    harmful: bool
    nearest: float
    verdict: Verdict
    vote: Vote

    @property
    def predicted(self) -> bool | None:
        """True for harmful; None if undecided."""
        return None if self.verdict.label is Label.UNDECIDED else self.verdict.label is Label.HARMFUL

    @property
    def voted(self) -> bool:
        """True for harmful by the vote alone."""
        return self.vote.probability >= self.vote.settings.threshold


@dataclass(frozen=True, slots=True)
class Zone:
    """Mean probabilities beside the share of harm, for a third of the memes by similarity of the nearest precedent."""

    name: str
    n: int
    similarity: float
    """Lowest of its memes."""
    accuracy: float
    shown: float
    """Mean probability that people are shown, over memes that have one."""
    voted: float
    """Mean probability by the vote, over the same memes."""
    harmful: float
    """Share of harm among the same memes."""


@dataclass(frozen=True, slots=True)
class FoldsReport:
    """Verdicts beside votes at any distance, on the same memes."""

    n: int
    groups: int
    """Number of groups of nearly the same texts, which share a fold."""
    decided: int
    """Memes with a label."""
    automatic: int
    """Memes that nobody has to look at."""
    guessed: float | None
    """Share of the memes without a label whose distant precedents favour the right one; None without any."""
    accuracy: tuple[float, float]
    """Share of the memes with a label that have the right one, and of their votes."""
    difference: Figure
    """Difference of these two, with the interval over groups."""
    zones: tuple[Zone, ...]
    """Near, middle and far."""


def measure_folds(place: Path, *, seed: int = 0) -> FoldsReport:
    """Judges each text of the library in ``place`` by a library of the other folds, calibrated anew.

    Raises:
        BadLibrary: The library can't be opened.
        BadRequest: Too few of its texts get a label.
    """
    library = Library.open(place, (encoder := load_encoder_for(place)).identity)
    groups = template_numbers(library.rows[:, : library.manifest.encoder.text_dim], NEARLY)
    # Shuffled, since neighbouring groups of a data set were often collected together.
    fold = np.random.default_rng(seed).permutation(int(groups.max()) + 1)[groups] % _FOLDS
    found: dict[int, FoldVerdict] = {}
    for number in range(_FOLDS):
        with part_of(library, np.flatnonzero(fold != number).tolist()) as part:
            found |= asyncio.run(_judged(library, part, encoder, np.flatnonzero(fold == number).tolist()))
    indices = sorted(found)
    return _report([found[index] for index in indices], groups[indices], seed)


async def _judged(library: Library, part: Library, encoder: Encoder, indices: Sequence[int]) -> dict[int, FoldVerdict]:
    finder = LibraryFinder(part, encoder)
    settings = TrialSettings()
    found = {}
    try:
        for index in indices:
            meme = library.memes[index]
            findings = await finder.find(
                text=meme.text, frames=(), pixels_sha256="", exhibits=settings.exhibits, tally=1, alpha=None
            )
            if (vote := vote_of(findings)) is not None:
                verdict = weigh(findings, vote_if_close(findings), _READ, settings, policy=DEFAULT_POLICY)
                found[index] = FoldVerdict(meme.harmful, findings.tally[0].similarity, verdict, vote)
    finally:
        finder.close()
    return found


def _report(memes: Sequence[FoldVerdict], groups: NDArray[np.int64], seed: int) -> FoldsReport:
    decided = [index for index, meme in enumerate(memes) if meme.predicted is not None]
    labelled = [memes[index] for index in decided]
    if len(labelled) < _FEWEST:
        raise BadRequest(
            f"Only {len(labelled)} of the library's texts get a label by its other folds, and at least {_FEWEST} are "
            "needed. Measure a library with more texts.",
            reason="TOO_FEW_TO_SAY",
        )
    others = [meme.voted == meme.harmful for meme in memes if meme.predicted is None]
    gold = [meme.harmful for meme in labelled]
    systems = (
        harm_arrays(gold, [meme.predicted for meme in labelled]),
        harm_arrays(gold, [meme.voted for meme in labelled]),
    )
    _, numbers = np.unique(groups[decided], return_inverse=True)
    return FoldsReport(
        n=len(memes),
        groups=len(np.unique(groups)),
        decided=len(decided),
        automatic=sum(meme.verdict.decision is not Decision.REVIEW for meme in memes),
        guessed=float(np.mean(others)) if others else None,
        accuracy=(
            float(np.mean([meme.predicted == meme.harmful for meme in labelled])),
            float(np.mean([meme.voted == meme.harmful for meme in labelled])),
        ),
        difference=paired_differences(("accuracy",), systems, numbers, seed=seed)["accuracy"],
        zones=tuple(_zones(labelled)),
    )


def _zones(memes: Sequence[FoldVerdict]) -> list[Zone]:
    nearest_first = sorted(memes, key=lambda meme: -meme.nearest)
    bounds = [round(len(memes) * part / 3) for part in range(4)]
    zones = []
    for name, start, end in zip(("near", "middle", "far"), bounds, bounds[1:], strict=False):
        zone = nearest_first[start:end]
        shown = [(meme.verdict.shown_score, meme) for meme in zone if meme.verdict.shown_score is not None]
        zones.append(
            Zone(
                name=name,
                n=len(zone),
                similarity=zone[-1].nearest,
                accuracy=float(np.mean([meme.predicted == meme.harmful for meme in zone])),
                shown=float(np.mean([score for score, _ in shown])),
                voted=float(np.mean([meme.vote.probability for _, meme in shown])),
                harmful=float(np.mean([meme.harmful for _, meme in shown])),
            )
        )
    return zones
