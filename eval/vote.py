"""What the precedents' vote is worth on labelled memes that the library has not seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from court.backends.picture_reader import GuardedPictureReader
from court.errors import BadPicture
from court.meme import Picture
from court.precedents import Relation
from court.summary import hold_vote
from court.verdict import Label
from court.vote import probability, share, vote
from eval.metrics import Scores, score
from retrieval.builtin import BuiltinEncoder
from retrieval.finder import LibraryFinder
from retrieval.left_out import neighbours
from retrieval.library import Library
from retrieval.readers import read_source
from retrieval.sources import Problem, Row, Source


@dataclass(frozen=True, slots=True)
class VoteReport:
    """What a library's vote is worth.

    Attributes:
        library: Digest of the library.
        scores: Over all memes, each judged by the vote, however far its precedents are.
        undecided: Memes that the court would not decide: every precedent is too far.
        same_text: Memes whose own text stands in the library.
        without_picture: Memes that were judged by their text alone: no pictures were given, or theirs can't be read.
        problems: Rows that could not be used.
    """

    library: str
    scores: Scores
    undecided: int
    same_text: int
    without_picture: int
    problems: tuple[Problem, ...]


async def measure_vote(
    place: Path, source: Source, *, seed: int = 0, progress: Callable[[int, int], None] = lambda *_: None
) -> VoteReport:
    """Asks the library in ``place`` about every labelled meme of ``source``.

    Raises:
        BadLibrary: The library can't be opened.
        BadRequest: The source can't be read.
    """
    rows = read_source(source)
    encoder = await asyncio.to_thread(BuiltinEncoder)
    library = Library.open(place, encoder.identity)
    finder = LibraryFinder(library, encoder)
    pictures = GuardedPictureReader()
    gold, said, probabilities = [], [], []
    undecided = same_text = without_picture = 0
    try:
        for number, row in enumerate(rows.good, 1):
            picture = await _picture(row, source, pictures)
            findings = await finder.find(
                text=row.text,
                frames=picture.frames if picture else (),
                pixels_sha256=picture.pixels_sha256 if picture else "",
                exhibits=3,
                tally=1,
                alpha=None,
            )
            held = vote(findings.tally, findings.vote_settings)
            gold.append(row.label is Label.HARMFUL)
            said.append(held.probability >= held.settings.threshold)
            probabilities.append(held.probability)
            undecided += hold_vote(findings) is None
            without_picture += picture is None
            same = (Relation.SAME_TEXT, Relation.SAME_MEME)
            same_text += any(exhibit.relation in same for exhibit in findings.exhibits)
            progress(number, len(rows.good))
    finally:
        finder.close()
        await pictures.aclose()
    return VoteReport(
        library=library.digest,
        scores=score(gold, said, probabilities, seed=seed),
        undecided=undecided,
        same_text=same_text,
        without_picture=without_picture,
        problems=tuple(rows.problems),
    )


def measure_left_out(place: Path, *, twins_too: bool, seed: int = 0) -> Scores:
    """Asks the library in ``place`` about each of its own memes, that meme left out; with the library's own settings.

    The settings were chosen on the same memes, so this flatters a little; the manifest's own figure does not.

    Args:
        place: The library.
        twins_too: Whether memes with the same picture or words are left out with it.
        seed: Of the bootstrap.

    Raises:
        BadLibrary: The library can't be opened.
    """
    library = Library.open(place, None)
    tuning = library.manifest.tuning
    (near,) = neighbours(
        library.rows,
        library.memes,
        library.manifest.encoder.text_dim,
        alphas=[tuning.alpha],
        depth=tuning.vote.k,
        limit=len(library.memes),
        twins_too=twins_too,
    )
    probabilities = [
        probability(share(similarities, harmful, tuning.vote), tuning.vote)
        for similarities, harmful in zip(near.similarities.tolist(), near.harmful.tolist(), strict=True)
    ]
    said = [p >= tuning.vote.threshold for p in probabilities]
    return score(near.labels.tolist(), said, probabilities, seed=seed)


async def _picture(row: Row, source: Source, reader: GuardedPictureReader) -> Picture | None:
    if source.pictures is None or not row.image:
        return None
    try:
        return await reader.read(await asyncio.to_thread((source.pictures / row.image).read_bytes))
    except (OSError, BadPicture):
        return None
