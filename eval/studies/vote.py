"""Worth of the precedents' vote on labelled memes that the library has not seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import numpy as np

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadPicture, BadRequest
from court.meme import Picture
from court.precedents import Relation
from court.summary import vote_if_close, vote_of
from court.verdict import Label
from eval.datasets.protocol import LEVELS, Protocol, of_level
from eval.scores.metrics import Scores, score
from retrieval.audit.leakage import TEMPLATE, template_numbers
from retrieval.calibration.calibrate import calibrate, safeguarded_votes
from retrieval.calibration.leave_one_out import Neighbours, leave_one_out_neighbours
from retrieval.embed.encoder import Encoder
from retrieval.embed.onnx_texts import NAME as ONNX_TEXTS
from retrieval.library.library import Library
from retrieval.library.picture_files import read_picture
from retrieval.library.readers import read_source
from retrieval.library.sources import Problem, Row, Source
from retrieval.open import BUILTIN, load_encoder_for, name_of
from retrieval.precedents.finder import LibraryFinder

_SPARE = 75
"""Precedents found beyond those that vote, in the place of near-duplicates by text."""


@dataclass(frozen=True, slots=True)
class VoteReport:
    """Worth of a library's vote.

    Attributes:
        library: Digest of the library.
        scores: Over all memes, each judged by the vote, however far its precedents are.
        undecided: Memes that the court would not decide: every precedent is too far.
        same_text: Memes whose own text stands in the library.
        without_picture: Memes that were judged by their text alone: no pictures were given, or theirs can't be read.
        problems: Rows that could not be used.
        protocol: Protocol by which the memes' labels became two classes.
        dropped: Memes that the protocol drops; they are not judged.
        precedents: Number of precedents that voted.
        precedents_dropped: Number of precedents that did not vote, because the protocol drops their label too.
    """

    library: str
    scores: Scores
    undecided: int
    same_text: int
    without_picture: int
    problems: tuple[Problem, ...]
    protocol: Protocol
    dropped: int
    precedents: int
    precedents_dropped: int


async def measure_vote(
    place: Path, source: Source, *, protocol: Protocol = Protocol.MERGED, drop_precedents: bool = False, seed: int = 0
) -> VoteReport:
    """Asks the library in ``place`` about every labelled meme of ``source`` that the protocol keeps.

    Args:
        place: The library.
        source: The memes.
        protocol: ``MERGED``, or ``EXTREME`` to drop memes that are somewhat harmful.
        drop_precedents: True if precedents of the labels that the protocol drops give no vote either; the rest is then
            calibrated anew. The court's paper drops the label entirely; a court in use would keep what it knows.
        seed: Seed of the bootstrap.

    Raises:
        BadLibrary: The library can't be opened.
        BadRequest: The source can't be read, nothing of it is left, or its labels don't fit the protocol.
    """
    rows = read_source(source)
    # Of the file's own rows; precedents are restricted in `_voters`.
    usable = [row for row in rows.good if _keeps_label(row.source_label, protocol)]
    if not usable:
        raise BadRequest(f"No meme of {source.path.name} is left to be judged under the protocol {protocol}.")
    encoder = await asyncio.to_thread(load_encoder_for, place)
    whole = Library.open(place, encoder.identity)
    # The report below names the whole library's digest: the reduced one exists only while it is measured.
    with _voters(whole, protocol, drop_precedents) as library:
        report = await _measured(library, encoder, source=source, rows=usable, seed=seed)
    return VoteReport(
        library=whole.digest,
        problems=tuple(rows.problems),
        protocol=protocol,
        dropped=len(rows.good) - len(usable),
        precedents=len(library.memes),
        precedents_dropped=len(whole.memes) - len(library.memes),
        **report,
    )


NEAR_TEXT = 0.95
"""Cosine from which on two texts are nearly the same, where there are no pictures to tell."""


@dataclass(frozen=True, slots=True)
class PlainVote:
    """Worth of an unweighted majority of the nearest precedents.

    Attributes:
        k: Number of voters.
        scores: Over all memes, however far their precedents are.
    """

    k: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class PlainVotes:
    """Unweighted votes on the same memes by number of voters.

    Attributes:
        votes: In the order that they were asked for.
        with_near: Memes that had a near-duplicate, or their own text, in the library; None where that was not asked.
        problems: Rows that could not be used.
    """

    votes: tuple[PlainVote, ...]
    with_near: int | None
    problems: tuple[Problem, ...]


async def measure_plain_votes(
    place: Path, source: Source, ks: Sequence[int], *, without_duplicates: bool = False, seed: int = 0
) -> PlainVotes:
    """Asks the library in ``place`` about every labelled meme of ``source``, by the majority of its k nearest.

    Nothing is chosen by these figures, and nothing was calibrated for them but alpha; clones count once. Labels are
    those of the protocol ``merged``.

    Args:
        place: The library.
        source: The memes.
        ks: Odd numbers of voters, so that there is no tie.
        without_duplicates: True to exclude precedents that are near-duplicates of the meme: see
            :meth:`retrieval.precedents.finder.LibraryFinder.find`; and where no pictures are compared, those whose text
            lies at :data:`NEAR_TEXT` or nearer.
        seed: Seed of the bootstrap.

    Raises:
        BadLibrary: The library can't be opened.
        BadRequest: The source can't be read, nothing of it can be used, or a number of voters is even or not positive.
    """
    if not ks or any(k < 1 or k % 2 == 0 for k in ks):
        raise BadRequest("Numbers of voters must be odd: an even number can be divided equally.")
    rows = read_source(source)
    if not rows.good:
        raise BadRequest(f"No meme of {source.path.name} can be used.")
    encoder = await asyncio.to_thread(load_encoder_for, place)
    finder = LibraryFinder(Library.open(place, encoder.identity), encoder)
    pictures = GuardedPictureReader()
    gold: list[bool] = []
    predicted: list[list[bool]] = [[] for _ in ks]
    with_duplicates = 0
    try:
        for row in rows.good:
            picture = await _picture(row, source, pictures)
            findings = await finder.find(
                text=row.text,
                frames=picture.frames if picture else (),
                pixels_sha256=picture.pixels_sha256 if picture else "",
                exhibits=1,
                # Near copies by text are dropped after the search, hence the spare ones.
                tally=max(ks) + (_SPARE if without_duplicates else 0),
                alpha=None,
                leave_out_duplicates=without_duplicates,
            )
            tally = list(findings.tally)
            # At 1 texts alone were compared: the search could not tell near-duplicates by picture and text.
            by_text = findings.search.alpha == 1
            if without_duplicates and by_text:
                tally = [entry for entry in tally if entry.similarity < NEAR_TEXT]
            with_duplicates += findings.search.excluded > 0 or len(tally) < len(findings.tally)
            gold.append(row.label is Label.HARMFUL)
            for votes, k in zip(predicted, ks, strict=True):
                voters = tally[:k]
                # Twice the count against the number: exact, and of an odd k never even. Fewer than k
                # voters may be even, which is then not harmful.
                votes.append(2 * sum(entry.label is Label.HARMFUL for entry in voters) > len(voters))
    finally:
        finder.close()
        # Also where a meme raised: both hold threads or processes.
        await pictures.aclose()
    return PlainVotes(
        votes=tuple(PlainVote(k, score(gold, votes, seed=seed)) for k, votes in zip(ks, predicted, strict=True)),
        with_near=with_duplicates if without_duplicates else None,
        problems=tuple(rows.problems),
    )


class _Figures(TypedDict):
    scores: Scores
    undecided: int
    same_text: int
    without_picture: int


async def _measured(
    library: Library,
    encoder: Encoder,
    source: Source,
    rows: Sequence[Row],
    seed: int,
) -> _Figures:
    finder = LibraryFinder(library, encoder)
    pictures = GuardedPictureReader()
    gold, predicted, probabilities = [], [], []
    undecided = same_text = without_picture = 0
    try:
        for row in rows:
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
                continue  # nothing of it could be compared
            gold.append(row.label is Label.HARMFUL)
            predicted.append(vote.probability >= vote.settings.threshold)
            probabilities.append(vote.probability)
            # Beside the vote: the figure is of all memes, this says how many the court would pass on.
            undecided += vote_if_close(findings) is None
            without_picture += picture is None
            same = (Relation.SAME_TEXT, Relation.SAME_MEME)
            same_text += any(exhibit.relation in same for exhibit in findings.exhibits)
    finally:
        finder.close()
        await pictures.aclose()
    return _Figures(
        scores=score(gold, predicted, probabilities, seed=seed),
        undecided=undecided,
        same_text=same_text,
        without_picture=without_picture,
    )


def measure_left_out(
    place: Path,
    *,
    twins_too: bool,
    templates_too: bool = False,
    protocol: Protocol = Protocol.MERGED,
    drop_precedents: bool = False,
    seed: int = 0,
) -> Scores:
    """Asks the library in ``place`` about each of its own memes, that meme left out; with the library's own settings.

    The settings were chosen on the same memes, so this flatters a little; the manifest's own figure does not.

    Args:
        place: The library.
        twins_too: True to leave out memes with the same picture or words together with it.
        templates_too: True to leave out, too, memes on the same template: cross-validation with templates held apart.
            Intervals are then drawn over whole templates.
        protocol: Protocol, as for :func:`measure_vote`.
        drop_precedents: True to drop precedents, as for :func:`measure_vote`.
        seed: Seed of the bootstrap.

    Raises:
        BadLibrary: The library can't be opened.
        BadRequest: Its labels don't fit the protocol, none is left, or templates are to be held apart by pictures that
            another encoder than the built-in one embedded: the threshold was measured of that one.
    """
    # Without an encoder: nothing is embedded, rows of the library are compared with each other.
    whole = Library.open(place, None)
    # An encoder of one's own texts describes pictures as the built-in one does.
    if templates_too and whole.manifest.encoder.name not in (name_of(BUILTIN), ONNX_TEXTS):
        raise BadRequest(
            f"Templates are told by the built-in encoder, and {whole.manifest.name} was made with "
            f"{whole.manifest.encoder.name}. Build it with --encoder builtin.",
            reason="TEMPLATES_UNKNOWN",
        )
    with _voters(whole, protocol, drop_precedents) as library:
        return _left_out(library, twins_too, templates_too=templates_too, protocol=protocol, seed=seed)


def left_out_probabilities(place: Path) -> list[tuple[str, bool, float | None]]:
    """Id and label of each meme of a library, and the probability of harm by the vote of the others.

    As calibration holds them apart, what is nearly the same is left out with a meme, and its neighbours in the library:
    memes that were labelled together would vouch for each other's labels. The probability is None where nothing is
    left.

    Raises:
        BadLibrary: The library can't be opened.
    """
    library = Library.open(place, None)
    neighbours, probabilities = _votes_left_out(library, apart=True)
    by_row = dict(zip(neighbours.rows.tolist(), probabilities, strict=True))
    # A meme that can be compared with nothing has no probability.
    return [(meme.id, meme.harmful, by_row.get(row)) for row, meme in enumerate(library.memes)]


def _votes_left_out(
    library: Library, *, twins_too: bool = True, apart: bool = False, template: float | None = None
) -> tuple[Neighbours, list[float]]:
    """Neighbours of each meme with what is left out, and the probability of harm by their vote."""
    tuning = library.manifest.tuning
    (neighbours,) = leave_one_out_neighbours(
        library.rows,
        library.memes,
        library.manifest.encoder.text_dim,
        # One alpha, so that one result comes back.
        alphas=[tuning.alpha],
        depth=tuning.vote.k + 1,
        limit=len(library.memes),
        twins_too=twins_too,
        apart=apart,
        template=template,
        safeguards=tuning.safeguards,
    )
    return neighbours, safeguarded_votes(
        neighbours.similarities, neighbours.harmful, tuning.vote, tuning.safeguards
    ).tolist()


def _left_out(library: Library, twins_too: bool, *, templates_too: bool, protocol: Protocol, seed: int) -> Scores:
    neighbours, probabilities = _votes_left_out(
        library, twins_too=twins_too, template=TEMPLATE if templates_too else None
    )
    # Dropped after the vote, not before: memes that are not judged are precedents all the same, unless
    # `_voters` took them out.
    counted = [_keeps_label(library.memes[row].source_label, protocol) for row in neighbours.rows.tolist()]
    gold = [label for label, keep in zip(neighbours.labels.tolist(), counted, strict=True) if keep]
    probabilities = [p for p, keep in zip(probabilities, counted, strict=True) if keep]
    groups = None
    # What is left out together is no independent draw either.
    if templates_too:
        judged = neighbours.rows[np.asarray(counted, dtype=np.bool_)]
        groups = template_numbers(library.rows[judged][:, library.manifest.encoder.text_dim :], TEMPLATE)
    if not gold:
        raise BadRequest(f"No meme of the library is left to be judged under the protocol {protocol}.")
    threshold = library.manifest.tuning.vote.threshold
    return score(gold, [p >= threshold for p in probabilities], probabilities, seed=seed, groups=groups)


def _keeps_label(source_label: str, protocol: Protocol) -> bool:
    """True if the protocol keeps memes of this label. Raises BadRequest if it knows no such label."""
    # Merged keeps every label, so that data sets with labels of other kinds pass too.
    if protocol is not Protocol.EXTREME:
        return True
    if source_label not in LEVELS:
        raise BadRequest(
            "The protocol extreme is for HarMeme's three labels, and there is a meme with another. Leave it out."
        )
    return of_level(LEVELS[source_label], protocol) is not None


@contextmanager
def _voters(library: Library, protocol: Protocol, drop: bool) -> Iterator[Library]:
    """The library, or what is left of it without the labels that the protocol drops, calibrated anew."""
    places = [row for row, meme in enumerate(library.memes) if not drop or _keeps_label(meme.source_label, protocol)]
    # Nothing was dropped: the library as it is, with the calibration that it came with.
    if len(places) == len(library.memes):
        yield library
        return
    if not places:
        raise BadRequest(f"No precedent is left under the protocol {protocol}.")
    # Without their stored pictures: a vote needs rows and labels alone.
    memes = [library.memes[row].model_copy(update={"kept": None}) for row in places]
    rows = np.ascontiguousarray(library.rows[places])
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
    # A library is a folder; this one is needed for as long as it is asked and no longer.
    with TemporaryDirectory(prefix="memecourt-") as folder:
        yield Library.create(
            Path(folder), name=manifest.name, encoder=manifest.encoder, memes=memes, rows=rows, tuning=tuning
        )


async def _picture(row: Row, source: Source, reader: GuardedPictureReader) -> Picture | None:
    if source.pictures is None or not row.image:
        return None
    try:
        return await reader.read(await asyncio.to_thread(read_picture, source.pictures / row.image))
    # A picture that can't be read leaves the text to be judged alone, and is counted in `without_picture`.
    except (OSError, BadPicture):
        return None
