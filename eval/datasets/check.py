"""Faults in the files of a data set: missing, damaged, doubled, mislabelled, not as published."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from court.errors import BadPicture, BadRequest, CourtError
from court.ports import PictureReader
from eval.datasets.card import CardSplit, DatasetCard
from eval.datasets.card_split import CardMeme, CardReader
from eval.datasets.known import Dataset
from eval.datasets.recognise import mistaken_for, recognised
from retrieval.library.sources import Problem
from retrieval.text import text_key

_AT_ONCE = 4
"""Pictures that are decoded at once, at most: as many as the reader has processes."""
Progress = Callable[[int, int], None]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class DatasetFaultKind(StrEnum):
    """Kind of a finding."""

    FILE_MISSING = "file missing"
    ROW_DAMAGED = "row damaged"
    ID_TWICE = "id twice"
    TEXT_TWICE = "text twice"
    PICTURE_TWICE = "picture twice"
    LABELS_CONFLICT = "labels conflict"
    PICTURES_MISSING = "pictures missing"
    PICTURES_DOUBTFUL = "pictures doubtful"
    PICTURE_UNREADABLE = "picture unreadable"
    COUNT_DIFFERS = "count differs"
    OTHER_DATA_SET = "other data set"


@dataclass(frozen=True, slots=True)
class DatasetFault:
    """One thing that is wrong.

    Attributes:
        kind: Kind of the finding.
        split: In which split; several, joined by ``+``, where it lies between them.
        what: In a sentence, without any of a meme.
        count: Number of memes or groups of memes concerned.
        where: Each of them: a line of a file, or ids that belong together.
    """

    kind: DatasetFaultKind
    split: str
    what: str
    count: int = 1
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """Content of a split.

    Attributes:
        split: Its name.
        file: Name of its file below the directory; empty where it is not there.
        rows: Rows of the split, those that can't be used among them: ``memes``, ``refused`` and ``excluded`` together.
        memes: Rows that can be used.
        classes: Memes per label, in the data set's own words: of the task that trials are scored on, else the first.
        pictures: Pictures that are at hand.
        sha256: SHA-256 of the file, in hex.
        refused: Rows that can't be used; why stands in the findings.
        excluded: Rows that the card leaves out.
        elsewhere: Rows of other splits in the same file; not in ``rows``.
        tasks: Memes per label of every task.
    """

    split: str
    file: str = ""
    rows: int = 0
    memes: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)
    pictures: int = 0
    sha256: str = ""
    refused: int = 0
    excluded: int = 0
    elsewhere: int = 0
    tasks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """Content of a data set, and its faults.

    Attributes:
        dataset: Its id.
        splits: All that it should have.
        findings: In the order in which they were looked for.
        decoded: True if pictures were decoded, and not only looked for.
        title: Its title.
        caveats: Caveats of its card, of any figure on it.
    """

    dataset: str
    splits: tuple[SplitCheck, ...]
    findings: tuple[DatasetFault, ...]
    decoded: bool
    title: str = ""
    caveats: tuple[str, ...] = ()


@dataclass(slots=True)
class _FoundMeme:
    """A meme and its picture."""

    split: str
    meme: CardMeme
    path: Path | None
    label: tuple[str, ...]
    picture: str = ""
    """Digest of its bytes, or of its pixels where it was decoded; empty where it has not been compared."""

    @property
    def name(self) -> str:
        return f"{self.split}:{self.meme.line} ({self.meme.id})"


async def check(
    dataset: Dataset, data: Path, *, reader: PictureReader | None = None, progress: Progress = lambda *_: None
) -> DatasetCheck:
    """Checks all splits that are there, each by itself and against the others.

    Args:
        dataset: Expected data set.
        data: Directory of the data set.
        reader: Decodes every picture under guard, and tells the same pixels in another file; None to see only whether
            pictures are there, and whether two files hold the same bytes.
        progress: Told how many pictures of how many are decoded.

    Raises:
        BadRequest: A file can't be read at all.
        Unavailable: Pictures could not be tried, which is not their fault.
    """
    findings: list[DatasetFault] = []
    if other := _other(dataset, data):
        findings.append(other)
    splits, seen = [], []
    # All splits of the card, those that are not there too: a missing file is a finding.
    for split in dataset.card.splits:
        checked, memes = _split(dataset.card, data, split, findings)
        splits.append(checked)
        seen += memes
    # First: equal pictures and conflicting labels are found by the digests that this fills in.
    await _pictures(seen, reader, findings, progress)
    _twice(seen, DatasetFaultKind.ID_TWICE, what="an id", key=lambda one: one.meme.id, findings=findings)
    _twice(
        seen,
        DatasetFaultKind.TEXT_TWICE,
        what="a text (but for case and spacing)",
        key=lambda one: text_key(one.meme.text),
        findings=findings,
    )
    same = "a picture, by its pixels," if reader else "a picture, by its bytes,"
    _twice(seen, DatasetFaultKind.PICTURE_TWICE, what=same, key=lambda one: one.picture, findings=findings)
    _conflicts(seen, findings)
    return DatasetCheck(
        dataset=dataset.id,
        splits=tuple(splits),
        findings=tuple(findings),
        decoded=reader is not None,
        title=dataset.title,
        caveats=dataset.card.caveats,
    )


def _other(dataset: Dataset, data: Path) -> DatasetFault | None:
    """Finds that what lies there is another data set."""
    # By rows alone first: parts of one data set have the same file names.
    other = mistaken_for(dataset, data)
    if other is not None:
        what = f"the train split has as many rows as {other.title}, not as {dataset.title}: check with --dataset "
        return DatasetFault(DatasetFaultKind.OTHER_DATA_SET, "train", what + other.id)
    try:
        found = recognised(data)
    except BadRequest:  # of none, or of several: nothing speaks against the one that was asked for
        return None
    # A card of one's own was named on purpose; a variant of a data set is that data set.
    if dataset in found or dataset.own_card is not None or dataset.id.partition(":")[0] in {one.id for one in found}:
        return None
    what = f"by its files and their numbers of rows this is {' and '.join(one.id for one in found)}"
    return DatasetFault(DatasetFaultKind.OTHER_DATA_SET, "", what)


def _split(
    card: DatasetCard, data: Path, split: CardSplit, findings: list[DatasetFault]
) -> tuple[SplitCheck, list[_FoundMeme]]:
    try:
        # With doubles: they are what is looked for here, and a run would refuse them.
        reader = CardReader(card, data, split.name, doubles=True)
        memes = list(reader)
    except BadRequest as error:
        # Anything but a missing file is no finding but a reason to stop.
        if error.reason != "DATA_MISSING":
            raise
        findings.append(DatasetFault(DatasetFaultKind.FILE_MISSING, split.name, error.message))
        return SplitCheck(split.name), []
    _problems(split.name, reader.problems, findings)
    # Labels of other tasks are counted below; this one is what conflicts are told by.
    task = card.court_task or card.all_tasks()[0]
    seen = [_FoundMeme(split.name, meme, None, meme.gold.get(task.id, ())) for meme in memes]
    _find_pictures(card, reader, seen, findings)
    ordered = {}
    for one in card.all_tasks():
        counts = Counter(label for meme in memes for label in meme.gold.get(one.id, ()))
        # In the order of the task, and without labels that no row has.
        ordered[one.id] = {label: counts[label] for label in one.labels if label in counts}
    digests = reader.digests()
    checked = SplitCheck(
        split=split.name,
        file=", ".join(path.relative_to(data).as_posix() for path in reader.paths),
        rows=reader.rows - reader.elsewhere,
        memes=len(memes),
        classes=ordered[task.id],
        pictures=sum(one.path is not None for one in seen),
        sha256=digests.get(reader.paths[0].relative_to(data).as_posix(), ""),
        refused=reader.refused,
        excluded=len(reader.excluded),
        elsewhere=reader.elsewhere,
        tasks=ordered,
    )
    findings += _counts(split, checked)
    return checked, seen


def _problems(split: str, problems: Sequence[Problem], findings: list[DatasetFault]) -> None:
    # One finding a reason, with all its lines: a column that is wrong throughout gives one line and not thousands.
    for reason, alike in _grouped(problems, lambda problem: problem.reason).items():
        where = tuple(f"{one.source}:{one.line}" + f" ({one.id})" * bool(one.id) for one in alike)
        findings.append(
            DatasetFault(kind=DatasetFaultKind.ROW_DAMAGED, split=split, what=reason, count=len(alike), where=where)
        )


def _find_pictures(
    card: DatasetCard, reader: CardReader, seen: Sequence[_FoundMeme], findings: list[DatasetFault]
) -> None:
    """Gives each meme the file of its picture; finds those that have none."""
    split = reader.split.name
    if card.fields.picture is None or not seen:
        return
    try:
        reader.pictures.find_folder(one.meme.picture for one in seen)
        for one in seen:
            one.path = reader.pictures.find(*one.meme.picture)
    # Several files that fit: which one is meant is for the user to say, and the other checks go on.
    except BadRequest as error:
        findings.append(DatasetFault(DatasetFaultKind.PICTURES_DOUBTFUL, split, error.message))
        return
    missing = tuple(one.name for one in seen if one.path is None)
    # All missing is another fault than some: the pictures were never unpacked, or lie elsewhere.
    if len(missing) == len(seen):
        what = (
            f"none of {len(seen):,} pictures is there (looked for in the folders of the data set and three levels "
            f"deep below the directory){f'; they are had from {card.source_url}' if card.source_url else ''}"
        )
        findings.append(DatasetFault(DatasetFaultKind.PICTURES_MISSING, split, what, len(seen)))
    elif missing:
        what = "pictures named in the file are not in the folder of the others"
        findings.append(
            DatasetFault(
                kind=DatasetFaultKind.PICTURES_MISSING, split=split, what=what, count=len(missing), where=missing
            )
        )


def _counts(split: CardSplit, checked: SplitCheck) -> list[DatasetFault]:
    """Finds numbers that differ from those that were published."""
    found = []
    remark = f" ({split.remark})" if split.remark else ""
    # Published numbers are those of each language's file.
    files = max(1, len(split.languages))
    if split.rows is not None and checked.rows != split.rows * files:
        what = f"{checked.rows:,} rows; {split.rows * files:,} were published{remark}"
        found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, what))
    for task, published in split.classes.items():
        # Zeros are left out on both sides: whether a label without memes is listed says nothing.
        ours = {label: count for label, count in checked.tasks[task].items() if count}
        theirs = {label: count * files for label, count in published.items() if count}
        if ours != theirs:
            of = f"{task}: " if len(checked.tasks) > 1 else ""
            what = f"{of}{_in_words(ours)}; published: {_in_words(theirs)}{remark}"
            found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, what))
    return found


def _in_words(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {label}" for label, count in classes.items()) or "no labels"


async def _pictures(
    seen: Sequence[_FoundMeme], reader: PictureReader | None, findings: list[DatasetFault], progress: Progress
) -> None:
    """Gives each picture that is at hand what it is compared by; finds those that can't be read."""
    there = [one for one in seen if one.path is not None]
    if reader is None:
        # In a thread: files are read and hashed.
        await asyncio.to_thread(_equal_digests, there)
        return
    # The reader has that many processes; more tasks would only hold more files in memory.
    gate, done = asyncio.Semaphore(_AT_ONCE), 0
    refused: list[tuple[_FoundMeme, str]] = []

    async def decode(one: _FoundMeme) -> None:
        nonlocal done
        async with gate:
            assert one.path is not None
            try:
                # Off the loop, as reading a file blocks.
                data = await asyncio.to_thread(one.path.read_bytes)
                picture = await reader.read(data)
                one.picture = picture.pixels_sha256
                # Judged all the same, so the digest stands, and the finding beside it.
                if picture.incomplete:
                    refused.append((one, "the file was cut short; what there is of it is judged"))
            except OSError:
                refused.append((one, "the file can't be read"))
            except BadPicture as bad:
                refused.append((one, bad.message))
        done += 1
        progress(done, len(there))

    try:
        async with asyncio.TaskGroup() as group:
            for one in there:
                group.create_task(decode(one))
    except ExceptionGroup as errors:  # what is nobody's fault: no process, no time
        raise next((e for e in errors.exceptions if isinstance(e, CourtError)), errors.exceptions[0]) from None
    for (split, reason), group_ in _grouped(refused, lambda pair: (pair[0].split, pair[1])).items():
        # Tasks end in any order; findings are in that of the file.
        where = tuple(one.name for one, _ in sorted(group_, key=lambda pair: pair[0].meme.line))
        findings.append(
            DatasetFault(
                kind=DatasetFaultKind.PICTURE_UNREADABLE, split=split, what=reason, count=len(where), where=where
            )
        )


def _equal_digests(there: Iterable[_FoundMeme]) -> None:
    """Digests of pictures that are as large as another: only those can be the same."""
    # Sizes are read without opening a file, and most pictures are alone with theirs.
    by_size = _grouped(there, lambda one: one.path.stat().st_size if one.path else 0)
    for alike in by_size.values():
        # Rows may also name the same file.
        for one in alike if len(alike) > 1 else ():
            assert one.path is not None
            one.picture = hashlib.sha256(one.path.read_bytes()).hexdigest()


def _twice(
    seen: Sequence[_FoundMeme],
    kind: DatasetFaultKind,
    what: str,
    key: Callable[[_FoundMeme], Hashable],
    findings: list[DatasetFault],
) -> None:
    """Finds values that occur more than once, grouped by the splits in which they occur."""
    # Empty ones are not the same: a blank text, or a picture that was not compared.
    groups = [group for value, group in _grouped(seen, key).items() if value and len(group) > 1]
    # By splits: a leak from train to test is another finding than a double within train.
    by_splits = _grouped(groups, lambda group: "+".join(dict.fromkeys(one.split for one in group)))
    for splits, alike in by_splits.items():
        differ = sum(_labels_differ(group) for group in alike)
        told = f"{what} stands in several rows, {sum(map(len, alike)):,} in all"
        if "+" in splits:
            told += f", of the splits {splits.replace('+', ', ')}"
        # An id that stands twice may be of two memes, whose labels need not agree.
        if differ and kind is not DatasetFaultKind.ID_TWICE:
            told += f"; under different labels in {differ:,} of the {len(alike):,} cases"
        where = tuple(" = ".join(one.name for one in group) for group in alike)
        findings.append(DatasetFault(kind=kind, split=splits, what=told, count=len(alike), where=where))


def _labels_differ(group: Sequence[_FoundMeme]) -> bool:
    """True if two of these memes are labelled, and differently; one without a label contradicts nothing."""
    return len({one.label for one in group if one.label}) > 1


def _conflicts(seen: Sequence[_FoundMeme], findings: list[DatasetFault]) -> None:
    """Memes that are the same in picture and text and labelled differently: one of the labels must be wrong.

    The same text under another picture is not one of them: FHM has such on purpose.
    """
    groups = _grouped(seen, lambda one: (one.picture, text_key(one.meme.text)))
    # Without a digest two memes can't be said to have the same picture.
    differ = [group for (picture, _), group in groups.items() if picture and _labels_differ(group)]
    for splits, alike in _grouped(differ, lambda group: "+".join(dict.fromkeys(one.split for one in group))).items():
        where = tuple(" = ".join(one.name for one in group) for group in alike)
        what = "memes of the same picture and text are labelled differently"
        findings.append(
            DatasetFault(kind=DatasetFaultKind.LABELS_CONFLICT, split=splits, what=what, count=len(alike), where=where)
        )


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in the order in which they come."""
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
