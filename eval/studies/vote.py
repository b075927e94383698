"""Quality of the precedents' vote on memes that are not in the library, and of verdicts on its own texts in folds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadPicture, BadRequest
from court.events import TextRead, TextSource
from court.meme import Picture
from court.policy import DEFAULT_POLICY
from court.precedents import Relation, Vote
from court.settings import TrialSettings
from court.summary import vote_if_close, vote_of, weigh
from court.verdict import Decision, Label, Verdict
from eval.scores.measure import Figure, measure, paired_differences
from eval.scores.metrics import harm_arrays, known_figure
from retrieval.audit.leakage import template_numbers
from retrieval.calibration.calibrate import calibrate, safeguarded_votes
from retrieval.calibration.leave_one_out import NEARLY, leave_one_out_neighbours
from retrieval.embed.encoder import Encoder
from retrieval.library.library import Library
from retrieval.library.readers import read_source
from retrieval.library.sources import Problem, Row, Source
from retrieval.open import load_encoder_for
from retrieval.precedents.finder import LibraryFinder


@dataclass(frozen=True, slots=True)
class VoteReport:
    """Quality of a library's vote."""

    library: str
    n: int
    """Number of memes, each judged by the vote, however distant its precedents are."""
    harmful: int
    accuracy: Figure
    macro_f1: Figure
    brier: float
    undecided: int
    """Number of memes that the court would not decide, as every precedent is too distant."""
    same_text: int
    """Number of memes whose exact text is in the library."""
    without_picture: int
    """Number of memes judged by text alone, as their picture was not given or can't be read."""
    problems: tuple[Problem, ...]
    precedents: int


async def measure_vote(place: Path, source: Source, *, seed: int = 0) -> VoteReport:
    """Measures the vote of the library in ``place`` on every labelled meme of ``source``.

    Raises:
        BadLibrary: The library can't be opened.
        BadRequest: The source can't be read, or has no meme.
    """
    rows = read_source(source)
    if not rows.good:
        raise BadRequest(f"No meme of {source.path.name} is left to be judged.")
    encoder = await asyncio.to_thread(load_encoder_for, place)
    library = Library.open(place, encoder.identity)
    gold, predicted, probabilities = [], [], []
    undecided = same_text = without_picture = 0
    finder, pictures = LibraryFinder(library, encoder), GuardedPictureReader()
    try:
        for row in rows.good:
            picture = await _picture(row, source, pictures)
            findings = await finder.find(
                text=row.text,
                frames=picture.frames if picture else (),
                pixels_sha256=picture.pixels_sha256 if picture else "",
                exhibits=3,
                tally=1,
                alpha=None,
            )
            vote = vote_of(findings)
            if vote is None:
                continue  # no part of the meme could be compared
            gold.append(row.label is Label.HARMFUL)
            predicted.append(vote.probability >= vote.settings.threshold)
            probabilities.append(vote.probability)
            # The scores cover all memes; this counts those that the court would leave undecided.
            undecided += vote_if_close(findings) is None
            without_picture += picture is None
            same = (Relation.SAME_TEXT, Relation.SAME_MEME)
            same_text += any(exhibit.relation in same for exhibit in findings.exhibits)
    finally:
        finder.close()
        await pictures.aclose()
    if not gold:
        raise BadRequest(f"No meme of {source.path.name} could be compared with the library.")
    figures = measure(harm_arrays(gold, predicted), ("accuracy", "macro-f1"), None, seed=seed)
    return VoteReport(
        library=library.digest,
        n=len(gold),
        harmful=sum(gold),
        accuracy=known_figure(figures["accuracy"]),
        macro_f1=known_figure(figures["macro-f1"]),
        brier=float(((np.array(probabilities) - np.array(gold)) ** 2).mean()),
        undecided=undecided,
        same_text=same_text,
        without_picture=without_picture,
        problems=tuple(rows.problems),
        precedents=len(library.memes),
    )


def left_out_probabilities(place: Path) -> list[tuple[str, bool, float | None]]:
    """Id and label of each meme of a library, and the probability of harm by the vote of the others.

    As in calibration, memes with the same picture or words, near-duplicates and the meme's neighbours in the library
    are left out, too: memes that were labelled together would confirm each other's labels. The probability is None if
    no precedent is left.

    Raises BadLibrary: The library can't be opened.
    """
    # Opened without an encoder: nothing is embedded, as rows of the library are compared with each other.
    library = Library.open(place, None)
    tuning = library.manifest.tuning
    (neighbours,) = leave_one_out_neighbours(
        library.rows,
        library.memes,
        library.manifest.encoder.text_dim,
        # One alpha, so that there is one result.
        alphas=[tuning.alpha],
        depth=tuning.vote.k + 1,
        limit=len(library.memes),
        apart=True,
        safeguards=tuning.safeguards,
    )
    probabilities = safeguarded_votes(
        neighbours.similarities, neighbours.harmful, tuning.vote, tuning.safeguards
    ).tolist()
    by_row = dict(zip(neighbours.rows.tolist(), probabilities, strict=True))
    # A meme that can't be compared with any other has no probability.
    return [(meme.id, meme.harmful, by_row.get(row)) for row, meme in enumerate(library.memes)]


@contextmanager
def part_of(library: Library, indices: Sequence[int]) -> Iterator[Library]:
    """A recalibrated copy of a library with some of its memes."""
    # Without stored pictures: a vote only needs rows and labels.
    memes = [library.memes[row].model_copy(update={"kept": None}) for row in indices]
    rows = np.ascontiguousarray(library.rows[indices])
    manifest = library.manifest
    tuning = calibrate(
        rows,
        memes,
        manifest.encoder.text_dim,
        manifest.tuning.floors,
        text_floors=manifest.tuning.text_floors,
        error=manifest.tuning.settle_error,
        safeguards=manifest.tuning.safeguards,
    )
    # A library is a folder; this one is only needed while it is queried.
    with TemporaryDirectory(prefix="memecourt-") as folder:
        yield Library.create(
            Path(folder), name=manifest.name, encoder=manifest.encoder, memes=memes, rows=rows, tuning=tuning
        )


async def _picture(row: Row, source: Source, reader: GuardedPictureReader) -> Picture | None:
    if source.pictures is None or not row.image:
        return None
    try:
        return await reader.read(await asyncio.to_thread((source.pictures / row.image).read_bytes))
    # If a picture can't be read, the text alone is judged, which `without_picture` counts.
    except (OSError, BadPicture):
        return None


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
