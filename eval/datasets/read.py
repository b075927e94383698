"""One split of a data set, as memes to be judged or as a source of precedents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest
from court.verdict import Label
from eval.datasets.card import DatasetCard, CardTask
from eval.datasets.card_split import CardMeme, CardMemes, read_by_card
from eval.datasets.items import JudgedMeme
from eval.datasets.known import SYNTHETIC_KEY, Dataset, Split, find_dataset
from eval.datasets.picture_finder import picture_path
from eval.datasets.places import LOOKED_FOR, Files, find_pictures, mistaken_for, must_be_there, pictures_of, recognised
from eval.datasets.protocol import Level, Protocol, of_level
from retrieval.library.readers import read_source
from retrieval.library.sources import Problem, Row, Rows, Source, SourceFormat

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
    if dataset.card is not None:
        return _read_by_card(dataset, dataset.card, data, split)
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
    if dataset.card is not None:
        return _source_by_card(dataset, dataset.card, data, split)
    what, files = _located(dataset, data, split)
    bare = _source(dataset, data, split=what, files=files, pictures=None)
    images = (row.image for row in read_source(bare).good)
    return _source(dataset, data, split=what, files=files, pictures=pictures_of(dataset, data, files.rows, images))


def named_source(dataset: str, data: Path, split: str) -> Source | None:
    """Returns the source of the data set of this name, as :func:`source_of`; None if it is not one of ours.

    What ``memecourt precedents build --dataset`` finds under the entry points ``memecourt.datasets``.

    Raises:
        BadRequest: It can't be read; or the name is that of a card that can't be.
    """
    try:
        found = find_dataset(dataset)
    except BadRequest as error:
        if error.reason == "DATASET_UNKNOWN":
            return None
        raise
    return source_of(found, data, split)


def court_task_of(card: DatasetCard) -> CardTask:
    """The task that trials are scored on. Raises BadRequest where there is none, or annotators have to be named."""
    if card.court_task is not None:
        return card.court_task
    juries = next((task.variants for task in card.tasks if task.court), ())
    raise BadRequest(
        f"{card.id} has labels by several juries, and a figure has no meaning without its jury. Name one: "
        f"{', '.join(f'{card.id}:{one}' for one in juries)}."
        if juries
        else f"No task of {card.id} says whether a meme is harmful (its card has no table court): no trial can be "
        "scored on it, and no precedent made of it.",
        reason="NO_COURT_TASK",
        field="dataset",
    )


def _read_by_card(dataset: Dataset, card: DatasetCard, data: Path, split: str) -> SplitRead:
    task = court_task_of(card)
    read = read_by_card(card, data, split)
    folder = _folder_of(read, data)
    memes, problems = [], list(read.problems)
    for meme in read.memes:
        judged = _judged(task, meme, _image_of(read, meme, folder, data))
        if judged is None:
            problems.append(Problem(meme.file, meme.line, meme.id, f"it has no label of {task.id}"))
        else:
            memes.append(judged)
    if not memes:
        raise BadRequest(
            f"No row of the split {split} of {dataset.title} can be used: {problems[0].reason}.", reason="DATA_UNUSABLE"
        )
    first = next(iter(read.files))
    return SplitRead(
        memes=tuple(memes),
        problems=tuple(sorted(problems, key=lambda problem: problem.line)),
        file=data / first,
        sha256=read.files[first],
        pictures=folder,
        files=read.files,
    )


def _folder_of(read: CardMemes, data: Path) -> Path | None:
    """The folder that names of pictures are relative to; None where no picture is there.

    Where a field of the meme is part of the way to its picture, that is the directory of the data set.
    """
    if any("{" in pattern or "**" in pattern for pattern in read.card.layout.pictures):
        return data if any(read.picture_of(meme) for meme in read.memes[:LOOKED_FOR]) else None
    return find_pictures(read.card.layout.pictures, data, data / next(iter(read.files)), (m.image for m in read.memes))


def _image_of(read: CardMemes, meme: CardMeme, folder: Path | None, data: Path) -> str:
    """Name of a meme's picture below the folder: the row's own where that is right."""
    if folder is None:
        return meme.image
    path = picture_path(folder, meme.image)
    if path is None or path.is_file():
        return meme.image
    found = read.picture_of(meme)
    return found.relative_to(folder).as_posix() if found and found.is_relative_to(folder) else meme.image


def _judged(task: CardTask, meme: CardMeme, image: str) -> JudgedMeme | None:
    """The meme as trials are scored on it; None where it has no gold label of the task."""
    assert task.court is not None
    if task.id not in meme.gold:
        return None
    (label,) = meme.gold[task.id]
    return JudgedMeme(
        id=meme.id,
        split=meme.split,
        line=meme.line,
        image=image,
        text=meme.text,
        harmful=label in task.court.harmful,
        level=Level(task.labels.index(label)) if Protocol.MERGED in task.protocols else None,
        source_label=label,
    )


def _source_by_card(dataset: Dataset, card: DatasetCard, data: Path, split: str) -> Source:
    court_task_of(card)
    read = _read_by_card(dataset, card, data, split)
    name = f"{dataset.id} {split}"

    def rows() -> Rows:
        again = _read_by_card(dataset, card, data, split)
        good = [
            Row(
                line=meme.line,
                id=meme.id,
                label=Label.HARMFUL if meme.harmful else Label.NOT_HARMFUL,
                source_label=meme.source_label,
                text=meme.text,
                image=meme.image,
                source=name,
            )
            for meme in again.memes
        ]
        return Rows(SourceFormat.CARD, good, list(again.problems))

    return Source(path=read.file, name=name, pictures=read.pictures, format=SourceFormat.CARD, rows=rows)


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
