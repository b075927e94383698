"""One split of a data set, as memes to be judged or as a source of precedents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from court.digests import digest
from court.errors import BadRequest
from court.verdict import Label
from eval.datasets.card import CardTask, DatasetCard
from eval.datasets.card_split import CardMeme, CardReader
from eval.datasets.items import JudgedMeme
from eval.datasets.known import SYNTHETIC_KEY, Dataset, find_dataset
from eval.datasets.picture_finder import DatasetPictures
from eval.datasets.protocol import Level, Protocol, of_level
from eval.datasets.recognise import mistaken_for, recognised
from retrieval.library.sources import Problem, Row, Rows, Source, SourceFormat


def labels_dropped(dataset: Dataset, protocols: Sequence[Protocol]) -> tuple[str, ...]:
    """Lists the labels, in the data set's own words, of memes that none of these protocols scores.

    Raises:
        BadRequest: There are none: all labels are scored.
    """
    dropped = tuple(
        label
        for place, label in enumerate(dataset.labels)
        if Protocol.PLAIN not in protocols and all(of_level(Level(place), one) is None for one in protocols)
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


Choose = Callable[[Iterable[JudgedMeme]], Sequence[JudgedMeme]]
"""Choice of memes that are kept, of all that are read one after the other; such as a sample."""


def read_split(dataset: Dataset, data: Path, split: str, *, choose: Choose = tuple) -> SplitRead:
    """The memes of a split, with gold labels.

    Args:
        dataset: Which data set.
        data: Directory of the data set.
        split: Which part of it.
        choose: Chooses among the memes while they are read; only those it keeps are in memory.

    Raises:
        BadRequest: There is no such split, its files are not there or are those of another data set, or no row of them
            can be used, as where a test split has no labels.
    """
    task = court_task_of(dataset.card)
    refuse_others(dataset, data, split)
    reader = CardReader(dataset.card, data, split)
    # Counted while they pass: they are gone when the choice is made.
    without_label: list[Problem] = []
    labelled = False

    def judged() -> Iterator[JudgedMeme]:
        nonlocal labelled
        for meme in reader.with_pictures():
            found = _judged(task, meme)
            if found is None:
                reason = f"it has no label of {task.id}"
                without_label.append(Problem(Path(meme.file).name, meme.line, meme.id, reason))
            else:
                labelled = True
                yield found

    memes = choose(judged())
    problems = [*reader.problems, *without_label]
    if not labelled:
        raise BadRequest(
            f"No row of the split {split} of {dataset.title} can be used: {problems[0].reason}. The labels are had "
            f"from {dataset.source_url}.",
            reason="DATA_UNUSABLE",
        )
    # After the rows: only then are the joined files known.
    files = reader.digests()
    # The rows' own file; joined ones stand behind it.
    first = next(iter(files))
    return SplitRead(
        memes=with_picture_names(memes, reader.pictures),
        # In the order of the file: missing labels were found after all else.
        problems=tuple(sorted(problems, key=lambda problem: problem.line)),
        file=data / first,
        sha256=files[first],
        pictures=reader.pictures.folder,
        files=files,
    )


def with_picture_names(memes: Iterable[JudgedMeme], pictures: DatasetPictures) -> tuple[JudgedMeme, ...]:
    """The memes with the names by which their pictures are found. Raises BadRequest where several files fit."""
    found = []
    # Only of memes that are kept: each name is a look at the disk.
    for meme in memes:
        name = pictures.name_of(meme.image, {"id": meme.id, "language": meme.language, "group": meme.group})
        found.append(meme if name == meme.image else meme.model_copy(update={"image": name}))
    return tuple(found)


def keep_none(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
    """Chooses no meme: all are read, for what is to be known of their files."""
    deque(memes, maxlen=0)
    return ()


def source_of(dataset: Dataset, data: Path, split: str) -> Source:
    """A split as what a precedent library is built from, pictures and all. Raises BadRequest as :func:`read_split`."""
    # Of the files alone, so that what is wrong is found before a library is built: rows are read when they are used.
    read = read_split(dataset, data, split, choose=keep_none)
    name = f"{dataset.id} {split}"

    def rows() -> Rows:
        # Read anew, so that no rows stay in memory between naming a source and building from it.
        again = read_split(dataset, data, split)
        good = [row_of(meme, name) for meme in again.memes]
        # Under the source's name, by which a library's report puts them in order.
        return Rows(SourceFormat.CARD, good, [replace(problem, source=name) for problem in again.problems])

    return Source(
        path=read.file,
        name=name,
        pictures=read.pictures,
        format=SourceFormat.CARD,
        rows=rows,
        files=tuple(data / file for file in read.files if (data / file).is_file()),
        # Those that come with the program are known by the files; a card of one's own may be changed. A tree has none.
        recipe=digest([dataset.own_card.to_json(), dict(read.files)]) if dataset.own_card else "",
    )


def row_of(meme: JudgedMeme, source: str = "") -> Row:
    """A meme as a source of precedents has it, labelled by the data set's two classes."""
    # By harm alone: a library knows no levels.
    return Row(
        line=meme.line,
        id=meme.id,
        label=Label.HARMFUL if meme.harmful else Label.NOT_HARMFUL,
        source_label=meme.source_label,
        text=meme.text,
        categories=meme.targets,
        image=meme.image,
        source=source,
    )


def named_source(dataset: str, data: Path, split: str) -> Source | None:
    """Returns the source of the data set of this name, as :func:`source_of`; None if it is not one of ours.

    What ``memecourt precedents build --dataset`` finds under the entry points ``memecourt.datasets``.

    Raises:
        BadRequest: The data set, or the card of this name, can't be read.
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
    # Such a task stands in the list once for each of its juries.
    juries = [task.variant for task in card.all_tasks() if task.court]
    raise BadRequest(
        f"{card.id} has labels by several juries, and a figure has no meaning without its jury. Name one of "
        f"{', '.join(juries)} behind the data set or the card: {card.id}:{juries[0]}, FILE.toml:{juries[0]}."
        if juries
        else f"No task of {card.id} says whether a meme is harmful (its card has no table court): no trial can be "
        "scored on it, and no precedent made of it.",
        reason="NO_COURT_TASK",
        field="dataset",
    )


def refuse_others(dataset: Dataset, data: Path, split: str) -> None:
    """Refuses data that are surely another data set's. Raises BadRequest."""
    dataset.card.split(split)
    # The files would be read without a fault, and figures on drawn memes taken for those of the data set.
    if (data / SYNTHETIC_KEY).is_file() and not dataset.id.startswith("synthetic") and dataset.own_card is None:
        raise BadRequest(
            f"{data} holds a synthetic benchmark: figures on it are none on {dataset.title}. Ask for --dataset "
            f"{recognised(data)[0].id}, or name the directory of {dataset.id}.",
            reason="DATA_OF_ANOTHER",
        )
    other = mistaken_for(dataset, data)
    if other is not None:
        raise BadRequest(
            f"{data} has as many rows in its train split as {other.title}, and not as {dataset.title}. Name the "
            f"directory of {dataset.id}, or ask for --dataset {other.id}.",
            reason="DATA_OF_ANOTHER",
        )


def _judged(task: CardTask, meme: CardMeme) -> JudgedMeme | None:
    """The meme as trials are scored on it; None where it has no gold label of the task."""
    assert task.court is not None
    if task.id not in meme.gold:
        return None
    (label,) = meme.gold[task.id]
    return JudgedMeme(
        id=meme.id,
        split=meme.split,
        line=meme.line,
        image=meme.image,
        text=meme.text,
        harmful=label in task.court.harmful,
        # Cards with this protocol list their labels from least to most: a card of another order is refused.
        level=Level(task.labels.index(label)) if Protocol.MERGED in task.protocols else None,
        source_label=label,
        targets=meme.gold.get(task.court.targets, ()),
        # Votes on harm alone: what was said of other tasks is read again where it is asked for.
        shares={task.id: meme.shares[task.id]} if task.id in meme.shares else {},
        annotators={task.id: meme.annotators[task.id]} if task.id in meme.annotators else {},
        language=meme.language,
        group=meme.group,
    )
