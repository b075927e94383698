"""Quality of the precedents' vote on memes that are not in the library."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadPicture, BadRequest
from court.meme import Picture
from court.precedents import Relation
from court.summary import vote_if_close, vote_of
from court.verdict import Label
from eval.scores.measure import Figure, measure
from eval.scores.metrics import harm_arrays, known_figure
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


async def _picture(row: Row, source: Source, reader: GuardedPictureReader) -> Picture | None:
    if source.pictures is None or not row.image:
        return None
    try:
        return await reader.read(await asyncio.to_thread((source.pictures / row.image).read_bytes))
    # If a picture can't be read, the text alone is judged, which `without_picture` counts.
    except (OSError, BadPicture):
        return None
