"""Builds a library of labelled memes, and adds memes to one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.errors import BadRequest
from court.ports import PictureReader
from court.precedents import STARTER
from retrieval.calibration.calibrate import calibrate
from retrieval.calibration.thresholds import ERROR, measure_min_similarity, measure_text_floors
from retrieval.embed.encoder import Encoder, TextEmbeddings
from retrieval.library.embedding_cache import EmbeddingCache
from retrieval.library.library import Library, refuse_place
from retrieval.library.manifest import USUAL, LabelledMeme, Safeguards, Tuning
from retrieval.library.picture_import import ImportedPicture, Wanted, embed_pictures_of
from retrieval.library.readers import read_source
from retrieval.library.sources import Problem, Provenance, Row, Source
from retrieval.library.thumbnails import ThumbnailWriter

Progress = Callable[[str, int, int], None]
"""Progress callback: step (``pictures``, ``texts``, ``calibration``), amount done and total."""

STARTER_MEMES = Path(__file__).parent / "starter" / "memes.jsonl"
_STARTER_PICTURES = STARTER_MEMES.with_name("pictures")
_BATCH = 512


_TAKEN = "its id is taken"
"""Reason for a row whose id is in the library already, or in an earlier identical row."""
_AMBIGUOUS = "another meme before it has its id"
"""Reason for a row whose id an earlier, different row has, as when a spreadsheet rounded long ids."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Report on the rows of all sources: problems, and ids of texts longer than the encoder reads."""

    rows: int
    added: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    without_picture: int
    text_cut: tuple[str, ...]

    @property
    def reasons(self) -> dict[str, int]:
        """Returns the number of skipped rows per reason, most frequent first."""
        return dict(Counter(problem.reason for problem in self.problems if not problem.kept).most_common())

    def sentences(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Notes on the sources and rows left out by reason, for the manifest of the library."""
        left_out = (f"{count:,} rows were left out: {reason}." for reason, count in self.reasons.items())
        return *(note for source in sources for note in source.notes), *self.notes, *left_out


@dataclass(frozen=True, slots=True)
class _Gathered:
    memes: list[LabelledMeme]
    rows: NDArray[np.float32]
    pictures: ThumbnailWriter | None
    report: BuildReport


async def build_library(
    path: Path,
    sources: Sequence[Source],
    *,
    name: str,
    encoder: Encoder,
    picture_reader: PictureReader | None = None,
    progress: Progress | None = None,
    replace: bool = False,
    settle_error: float = ERROR,
    safeguards: Safeguards = USUAL,
    max_lost: float = 1.0,
) -> tuple[Library, BuildReport]:
    """Builds a library: reads, decodes, embeds, calibrates and writes.

    Args:
        max_lost: Maximum share of rows, in [0, 1], that are unusable or lack a picture that they name; otherwise
            nothing is built.

    Raises:
        BadRequest: A source can't be read, too many rows are unusable, or there is a library already.
        Unavailable: Another process is writing to the library.
        OSError: The library can't be written.
    """
    # Checked before work that may take hours; Library.create checks again under its lock.
    await asyncio.to_thread(refuse_place, path, replace)
    # A cache beside the library, per encoder, so that an interrupted build resumes where it stopped.
    remembered = EmbeddingCache(path, encoder.identity)
    gathered = await _gather(
        path,
        sources,
        encoder=encoder,
        reader=picture_reader,
        progress=progress,
        taken=frozenset(),
        remembered=remembered,
        max_lost=max_lost,
    )
    tuning = await asyncio.to_thread(
        tune,
        gathered.rows,
        gathered.memes,
        encoder=encoder,
        error=settle_error,
        safeguards=safeguards,
        progress=progress,
    )
    library = await asyncio.to_thread(
        Library.create,
        path,
        name=name,
        encoder=encoder.identity,
        memes=gathered.memes,
        rows=gathered.rows,
        tuning=tuning,
        pictures=gathered.pictures,
        replace=replace,
        notes=gathered.report.sentences(sources),
    )
    # Discarded only now, as an interrupted build resumes from it until the library is written.
    await asyncio.to_thread(remembered.discard)
    return library, gathered.report


async def add_to_library(
    library: Library,
    sources: Sequence[Source],
    *,
    encoder: Encoder,
    picture_reader: PictureReader | None = None,
    progress: Progress | None = None,
    max_lost: float = 1.0,
) -> tuple[Library, BuildReport]:
    """Adds memes as a new generation of an existing library, as :func:`build_library`, and recalibrates it.

    Raises:
        BadLibrary: A stored picture has changed since it was written.
        BadRequest: A source can't be read, no usable rows are left, or the library was changed since it was opened.
        Unavailable: Another process is writing to the library.
        OSError: The new generation can't be written; the old one stays in use.
    """
    # The accepted error of votes that decide alone stays as it is.
    taken = set(library.ids())
    remembered = EmbeddingCache(library.root, encoder.identity)
    gathered = await _gather(
        library.root,
        sources,
        encoder=encoder,
        reader=picture_reader,
        progress=progress,
        taken=taken,
        remembered=remembered,
        max_lost=max_lost,
    )
    rows = np.concatenate([library.rows, gathered.rows])
    # Chosen when the library was built: adding memes must not change it silently.
    old = library.manifest.tuning
    memes = [*library.memes, *gathered.memes]
    tuning = await asyncio.to_thread(
        tune, rows, memes, encoder=encoder, error=old.settle_error, safeguards=old.safeguards, progress=progress
    )
    larger = await asyncio.to_thread(
        library.add,
        gathered.memes,
        gathered.rows,
        tuning=tuning,
        pictures=gathered.pictures,
        notes=gathered.report.sentences(sources),
    )
    await asyncio.to_thread(remembered.discard)
    return larger, gathered.report


async def build_starter(path: Path, encoder: Encoder, picture_reader: PictureReader) -> tuple[Library, BuildReport]:
    """Builds the default library of a new court: tame memes that ``eval.synthetic.scenes`` has drawn."""
    return await build_library(
        path,
        [Source(STARTER_MEMES, name=STARTER, pictures=_STARTER_PICTURES, provenance=Provenance(verified_by_row=True))],
        name=STARTER,
        encoder=encoder,
        picture_reader=picture_reader,
    )


def tune(
    rows: NDArray[np.float32],
    memes: Sequence[LabelledMeme],
    *,
    encoder: Encoder,
    error: float = ERROR,
    safeguards: Safeguards,
    progress: Progress | None,
) -> Tuning:
    """Chooses a library's settings of search and vote on its own memes, minimum similarities first."""
    text_dim = encoder.identity.text_dim
    return calibrate(
        rows,
        memes,
        text_dim,
        measure_min_similarity(rows, memes, text_dim, encoder.floors),
        text_floors=measure_text_floors(rows, memes, text_dim, encoder.floors),
        error=error,
        safeguards=safeguards,
        progress=(lambda done, total: progress("calibration", done, total)) if progress else None,
    )


async def _gather(
    root: Path,
    sources: Sequence[Source],
    encoder: Encoder,
    reader: PictureReader | None,
    progress: Progress | None,
    taken: Collection[str],
    remembered: EmbeddingCache,
    max_lost: float,
) -> _Gathered:
    tell: Progress = progress or (lambda step, done, total: None)
    wanted, problems, notes = await asyncio.to_thread(_read_all, sources, reader is not None, taken)
    read = len(wanted) + len(problems)
    # Checked before embedding, and again below, when it is known which memes have nothing to compare.
    _refuse_losses(read, problems, max_lost)
    pictures: dict[int, ImportedPicture] = {}
    without: dict[int, Problem] = {}
    spool = None
    if reader is not None:
        spool = await asyncio.to_thread(ThumbnailWriter, root)
        pictures, without = await embed_pictures_of(
            wanted,
            reader,
            encoder=encoder,
            spool=spool,
            progress=lambda done, total: tell("pictures", done, total),
            remembered=remembered,
        )
        problems += [problem for problem in without.values() if problem.kept]
    texts = await _embed_texts([item.row.text for item in wanted], encoder, tell, remembered)
    # By label, which rows have as their source.
    known = {source.label: source.provenance for source in sources}
    # One timestamp for all, so that a filter by time includes all of a build or nothing.
    now = datetime.now(UTC)

    memes: list[LabelledMeme] = []
    rows = np.zeros((len(wanted), encoder.identity.dim), dtype=np.float32)
    cut: list[str] = []
    for index, item in enumerate(wanted):
        row, half = item.row, slice(0, encoder.identity.text_dim)
        # Into the next free row: a skipped meme has zeros in both halves, so its row can be reused.
        rows[len(memes), half] = texts.vectors[index]
        if index in pictures:
            rows[len(memes), half.stop :] = pictures[index].vector
        has_text, has_picture = rows[len(memes), half].any(), rows[len(memes), half.stop :].any()
        # Known only now: the vector shows whether the encoder could read the text.
        if not has_text and not has_picture:
            lacking = (
                "the encoder can't read its text, and it has no picture"
                if row.text.strip()
                else "it has neither a text nor a picture"
            )
            nothing = Problem(row.source, row.line, row.id, lacking)
            problems.append(without.get(index, nothing))
            continue
        memes.append(
            _labelled(
                row,
                pictures.get(index),
                has_text=bool(has_text),
                has_picture=bool(has_picture),
                known=known[row.source],
                added=now,
            )
        )
        if texts.cut[index]:
            cut.append(row.id)
    if not memes:
        raise BadRequest(
            f"None of the {read} rows can be used{f': {_reasons(problems)}' if problems else ''}."
            if read
            else "There are no rows to make a library of.",
            reason="NOTHING_TO_BUILD",
        )
    _refuse_losses(read, problems, max_lost)
    order = {source.label: index for index, source in enumerate(sources)}
    report = BuildReport(
        rows=read,
        added=len(memes),
        problems=tuple(sorted(problems, key=lambda problem: (order[problem.source], problem.line))),
        notes=tuple(notes),
        without_picture=sum(not meme.has_picture for meme in memes),
        text_cut=tuple(cut),
    )
    # A copy, without the unused rows of skipped memes.
    return _Gathered(memes, rows[: len(memes)].copy(), spool, report)


def _refuse_losses(read: int, problems: Sequence[Problem], most: float) -> None:
    """Raises BadRequest if a larger share of the rows or their pictures is unusable, not counting duplicates."""
    # A repeated import finds its own ids taken, which is no loss.
    lost = [problem for problem in problems if problem.reason != _TAKEN]
    if len(lost) > most * read:
        textual = sum(problem.kept for problem in lost)
        without = f", or only by their text ({textual:,} of them)" if textual else ""
        raise BadRequest(
            f"{len(lost):,} of the {read:,} rows can't be used{without}: {_reasons(lost)}. No library was written. "
            f"Mend them, or say with --max-lost that more than {most:g} of them may be left out.",
            reason="TOO_MANY_ROWS_LOST",
        )


def _reasons(problems: Sequence[Problem]) -> str:
    return "; ".join(f"{why} ({n:,})" for why, n in Counter(p.reason for p in problems).most_common(3))


def _read_all(
    sources: Sequence[Source], with_pictures: bool, taken: Collection[str]
) -> tuple[list[Wanted], list[Problem], list[str]]:
    wanted: list[Wanted] = []
    problems: list[Problem] = []
    notes: list[str] = []
    firsts: dict[str, Row] = {}
    for source in sources:
        rows = read_source(source)
        problems += rows.problems
        folder = source.pictures
        if folder is not None and not folder.is_dir():
            # Reported once, not for each row.
            notes.append(f"{source.label}: the folder of pictures is not there; its memes go in by their texts.")
            folder = None
        elif folder is None and any(row.image for row in rows.good):
            notes.append(f"{source.label}: no folder of pictures was named; its memes go in by their texts.")
        elif folder is not None and rows.good and not any(row.image for row in rows.good):
            notes.append(f"{source.label}: none of its rows names a picture (image); its memes go in by their texts.")
        elif not with_pictures:
            notes.append(f"{source.label}: pictures are not read; its memes go in by their texts.")
        for row in rows.good:
            first = firsts.setdefault(row.id, row)
            if first is not row or row.id in taken:
                same = (row.label, row.text, row.image) == (first.label, first.text, first.image)
                problems.append(Problem(row.source, row.line, row.id, _TAKEN if same else _AMBIGUOUS))
                continue
            wanted.append(Wanted(row, folder))
    return wanted, problems, notes


async def _embed_texts(
    texts: Sequence[str], encoder: Encoder, tell: Progress, remembered: EmbeddingCache
) -> TextEmbeddings:
    vectors = np.zeros((len(texts), encoder.identity.text_dim), dtype=np.float32)
    cut: list[bool] = []
    for start in range(0, len(texts), _BATCH):
        batch = await asyncio.to_thread(_texts, texts[start : start + _BATCH], encoder, remembered)
        vectors[start : start + _BATCH] = batch.vectors
        cut += batch.cut
        tell("texts", len(cut), len(texts))
    return TextEmbeddings(vectors, tuple(cut))


def _texts(texts: Sequence[str], encoder: Encoder, remembered: EmbeddingCache) -> TextEmbeddings:
    known = remembered.texts(texts)
    new = [text for text, one in zip(texts, known, strict=True) if one is None]
    if new:
        made = encoder.embed_texts(new)
        # Stored after each batch, so that at most one batch is embedded again.
        remembered.keep_texts(new, made)
        # In the order of the missing texts.
        remaining = iter(zip(made.vectors, made.cut, strict=True))
        known = [next(remaining) if one is None else one for one in known]
    done = [one for one in known if one is not None]
    vectors = np.stack([vector for vector, _ in done])
    return TextEmbeddings(vectors, tuple(cut for _, cut in done))


def _labelled(
    row: Row, picture: ImportedPicture | None, has_text: bool, has_picture: bool, known: Provenance, added: datetime
) -> LabelledMeme:
    believed = known.verified_by_row and bool(row.verified_by)
    return LabelledMeme(
        id=row.id,
        label=row.label,
        text=row.text,
        categories=row.categories,
        source=row.source,
        source_label=row.source_label,
        bytes_sha256=picture.bytes_sha256 if picture else "",
        pixels_sha256=picture.pixels_sha256 if picture else "",
        has_text=has_text,
        has_picture=has_picture,
        kept=picture.kept if picture else None,
        split=known.split,
        namespace=known.namespace,
        language=known.language,
        policy=known.policy,
        verified=known.verified or believed or bool(known.binding_by),
        # A picture that was not imported leaves only a part of the meme that was labelled.
        binding=bool(known.binding_by) and (picture is not None or not row.image),
        who=known.binding_by or (row.verified_by if believed else ""),
        added=row.verified_on if believed and row.verified_on and not known.binding_by else added,
    )
