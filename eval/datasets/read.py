"""Reads one split of a data set, as memes to be judged or as a source of precedents."""

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
    """Content of a split.

    Attributes:
        memes: In the order of the file; ids are unique.
        problems: Rows that could not be used, including duplicates of an id.
        sha256: SHA-256 of the file, in hex.
        pictures: The folder that picture names are relative to; None if no picture was found.
        files: SHA-256 of every file that was read, by its name below the directory; separate label files are included.
    """

    memes: tuple[JudgedMeme, ...]
    problems: tuple[Problem, ...]
    file: Path
    sha256: str
    pictures: Path | None
    files: Mapping[str, str]


Choose = Callable[[Iterable[JudgedMeme]], Sequence[JudgedMeme]]
"""Selects the memes to keep while the split is streamed, such as a sample."""


def read_split(dataset: Dataset, data: Path, split: str, *, choose: Choose = tuple) -> SplitRead:
    """Reads the memes of a split, with gold labels.

    Args:
        choose: Selects memes while they are streamed; only selected ones are kept in memory.

    Raises:
        BadRequest: There is no such split, its files are missing or belong to another data set, or no row is usable,
            for instance because a test split has no labels.
    """
    task = court_task_of(dataset.card)
    refuse_others(dataset, data, split)
    reader = CardReader(dataset.card, data, split)
    # Collected while streaming: the memes are gone when the selection is made.
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
    # Joined files are known only after the rows were read.
    files = reader.digests()
    # The rows' own file comes first; joined ones follow.
    first = next(iter(files))
    return SplitRead(
        memes=with_picture_names(memes, reader.pictures),
        # Sorted by line: missing labels were collected after the other problems.
        problems=tuple(sorted(problems, key=lambda problem: problem.line)),
        file=data / first,
        sha256=files[first],
        pictures=reader.pictures.folder,
        files=files,
    )


def with_picture_names(memes: Iterable[JudgedMeme], pictures: DatasetPictures) -> tuple[JudgedMeme, ...]:
    """The memes with the names by which their pictures are found. Raises BadRequest if several files match."""
    found = []
    # Only for selected memes: each name costs a disk access.
    for meme in memes:
        name = pictures.name_of(meme.image, {"id": meme.id, "language": meme.language, "group": meme.group})
        found.append(meme if name == meme.image else meme.model_copy(update={"image": name}))
    return tuple(found)


def keep_none(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
    """Selects no meme: the files are read only for their digests and problems."""
    deque(memes, maxlen=0)
    return ()


def source_of(dataset: Dataset, data: Path, split: str) -> Source:
    """A split as a source for a precedent library, with pictures. Raises BadRequest like :func:`read_split`."""
    # Reads the files without keeping memes, so that errors appear before a library is built; rows are read on use.
    read = read_split(dataset, data, split, choose=keep_none)
    name = f"{dataset.id} {split}"

    def rows() -> Rows:
        # Read again, so that no rows stay in memory between naming a source and building from it.
        again = read_split(dataset, data, split)
        good = [row_of(meme, name) for meme in again.memes]
        # Under the source's name, by which a library's report sorts them.
        return Rows(SourceFormat.CARD, good, [replace(problem, source=name) for problem in again.problems])

    return Source(
        path=read.file,
        name=name,
        pictures=read.pictures,
        format=SourceFormat.CARD,
        rows=rows,
        files=tuple(data / file for file in read.files if (data / file).is_file()),
        # Shipped cards are identified by the files; a user's card may change. A tree of pictures has no file digest.
        recipe=digest([dataset.own_card.to_json(), dict(read.files)]) if dataset.own_card else "",
    )


def row_of(meme: JudgedMeme, source: str = "") -> Row:
    """A meme as a row for a precedent library, labelled by the data set's two classes."""
    # Harm only: a library has no levels.
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
    """Returns the source for this data set, like :func:`source_of`; None if the data set is unknown.

    Entry point ``memecourt.datasets``, by which ``memecourt precedents build --dataset`` finds data sets.

    Raises:
        BadRequest: The data set, or the card with this name, can't be read.
    """
    try:
        found = find_dataset(dataset)
    except BadRequest as error:
        if error.reason == "DATASET_UNKNOWN":
            return None
        raise
    return source_of(found, data, split)


def court_task_of(card: DatasetCard) -> CardTask:
    """The task that trials are scored on. Raises BadRequest if there is none or a jury has to be chosen."""
    if card.court_task is not None:
        return card.court_task
    # A task with several juries is listed once for each.
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
    """Refuses data that certainly belong to another data set. Raises BadRequest."""
    dataset.card.split(split)
    # They would be read without an error, and results on synthetic memes taken for those of the data set.
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
    """The meme as trials are scored on it; None if it has no gold label for the task."""
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
        # Cards with this protocol list their labels in ascending order; validation enforces it.
        level=Level(task.labels.index(label)) if Protocol.MERGED in task.protocols else None,
        source_label=label,
        targets=meme.gold.get(task.court.targets, ()),
        # Only votes on harm: those on other tasks are read again where needed.
        shares={task.id: meme.shares[task.id]} if task.id in meme.shares else {},
        annotators={task.id: meme.annotators[task.id]} if task.id in meme.annotators else {},
        language=meme.language,
        group=meme.group,
    )
