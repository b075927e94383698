"""One split of a data set, as memes to be judged or as a source of precedents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest
from court.verdict import Label
from eval.datasets.items import JudgedMeme
from eval.datasets.known import DATASETS, SYNTHETIC_KEY, Dataset, Split
from eval.datasets.places import Files, mistaken_for, must_be_there, pictures_of, recognised
from eval.datasets.protocol import Level, Protocol, of_level
from retrieval.library.readers import read_source
from retrieval.library.sources import Problem, Row, Source, SourceFormat

LEVELS: Mapping[str, Level] = {
    "not harmful": Level.NOT_HARMFUL,
    "somewhat harmful": Level.SOMEWHAT_HARMFUL,
    "very harmful": Level.VERY_HARMFUL,
}


def labels_dropped(dataset: Dataset, protocols: Sequence[Protocol]) -> tuple[str, ...]:
    """Lists the labels, in the data set's own words, of memes that none of these protocols scores.

    Raises:
        BadRequest: There are none: all labels are scored.
    """
    dropped = tuple(
        label
        for label in dataset.labels
        if label in LEVELS and all(of_level(LEVELS[label], protocol) is None for protocol in protocols)
    )
    if not dropped:
        raise BadRequest(
            f"Scored as {', '.join(protocols)}, {dataset.title} has no label to drop. Labels are dropped by the "
            "protocol extreme, where it is the only one.",
            reason="NOTHING_TO_DROP",
            field="protocol",
        )
    return dropped


@dataclass(frozen=True, slots=True)
class SplitRead:
    """Content read from a split.

    Attributes:
        memes: In the order of the file; ids are unique.
        problems: Rows that could not be used, and those whose id stood before.
        file: The file.
        sha256: SHA-256 of the file, in hex.
        pictures: The folder that picture names are relative to; None where no picture is at hand.
        files: SHA-256 of every file that was read, by its name below the directory: with labels that stand apart, two.
    """

    memes: tuple[JudgedMeme, ...]
    problems: tuple[Problem, ...]
    file: Path
    sha256: str
    pictures: Path | None
    files: Mapping[str, str]


def read_split(dataset: Dataset, data: Path, split: str) -> SplitRead:
    """The memes of a split, with gold labels.

    Raises:
        BadRequest: There is no such split, its files are not there or are those of another data set, or no row of them
            can be used, as where a test split has no labels.
    """
    what, files = _located(dataset, data, split)
    source = _source(dataset, data, split=what, files=files, pictures=None)
    rows = read_source(source)
    memes: list[JudgedMeme] = []
    problems = list(rows.problems)
    seen: set[str] = set()
    for row in rows.good:
        # Records, predictions and leaks all go by ids: a second meme of an id could not be told from the first.
        if row.id in seen:
            problems.append(Problem(row.source, row.line, row.id, "its id stands in the file already"))
            continue
        seen.add(row.id)
        memes.append(_meme(dataset, what, row))
    if not memes:
        why = problems[0].reason if problems else "the file is empty"
        raise BadRequest(
            f"No row of {files.rows.name} can be used as the split {split} of {dataset.title}: {why}. The labels are "
            f"had from {dataset.source_url}.",
            reason="DATA_UNUSABLE",
        )
    digests = {
        file.relative_to(data).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (files.rows, files.labels)
        if file is not None
    }
    return SplitRead(
        memes=tuple(memes),
        problems=tuple(sorted(problems, key=lambda problem: problem.line)),
        file=files.rows,
        sha256=digests[files.rows.relative_to(data).as_posix()],
        pictures=pictures_of(dataset, data, files.rows, (meme.image for meme in memes)),
        files=digests,
    )


def source_of(dataset: Dataset, data: Path, split: str) -> Source:
    """A split as what a precedent library is built from, pictures and all. Raises BadRequest as :func:`read_split`."""
    what, files = _located(dataset, data, split)
    bare = _source(dataset, data, split=what, files=files, pictures=None)
    images = (row.image for row in read_source(bare).good)
    return _source(dataset, data, split=what, files=files, pictures=pictures_of(dataset, data, files.rows, images))


def named_source(dataset: str, data: Path, split: str) -> Source | None:
    """Returns the source of the data set with this id, as :func:`source_of`; None if it is not one of ours.

    What ``memecourt precedents build --dataset`` finds under the entry points ``memecourt.datasets``.
    """
    return source_of(DATASETS[dataset], data, split) if dataset in DATASETS else None


def _located(dataset: Dataset, data: Path, split: str) -> tuple[Split, Files]:
    if split not in dataset.splits:
        raise BadRequest(f"{dataset.title} has no split {split!r}; it has {', '.join(dataset.splits)}.")
    what = dataset.splits[split]
    # The files would be read without a fault, and figures on drawn memes taken for those of the data set.
    if (data / SYNTHETIC_KEY).is_file() and not dataset.id.startswith("synthetic"):
        raise BadRequest(
            f"{data} holds a synthetic benchmark: figures on it are none on {dataset.title}. Ask for --dataset "
            f"{recognised(data)[0].id}, or name the directory of {dataset.id}.",
            reason="DATA_OF_ANOTHER",
        )
    files = must_be_there(dataset, data, what)
    other = mistaken_for(dataset, data)
    if other is not None:
        raise BadRequest(
            f"{data} has as many rows in its train split as {other.title}, and not as {dataset.title}. Name the "
            f"directory of {dataset.id}, or ask for --dataset {other.id}.",
            reason="DATA_OF_ANOTHER",
        )
    return what, files


def _source(dataset: Dataset, data: Path, split: Split, files: Files, pictures: Path | None) -> Source:
    return Source(
        path=files.rows,
        name=f"{dataset.id} {split.name}",
        pictures=pictures,
        format=dataset.format,
        labels=files.labels,
    )


def _meme(dataset: Dataset, split: Split, row: Row) -> JudgedMeme:
    three = Protocol.PLAIN not in dataset.protocols
    return JudgedMeme(
        id=row.id,
        split=split.name,
        line=row.line,
        image=row.image,
        text=row.text,
        harmful=row.label is Label.HARMFUL,
        level=LEVELS[row.source_label] if three else None,
        source_label=row.source_label,
        targets=row.categories if dataset.format is not SourceFormat.FHM else (),
    )
