"""Faults in the files of a data set: missing, damaged, doubled, mislabelled, not as published."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from court.errors import BadPicture, BadRequest, CourtError
from court.ports import PictureReader
from eval.datasets.card import CardSplit, DatasetCard
from eval.datasets.card_split import CardReader, first_memes
from eval.datasets.check_pictures import PictureSearch
from eval.datasets.check_table import SAME_ID, SAME_MEME, SAME_PICTURE, SAME_TEXT, FoundMeme, FoundMemes
from eval.datasets.faults import DatasetFault, DatasetFaultKind
from eval.datasets.known import Dataset
from eval.datasets.recognise import mistaken_for, recognised
from retrieval.library.picture_files import picture_sha256, picture_size, read_picture
from retrieval.library.sources import Problem

_AT_ONCE = 4
"""Pictures that are decoded at once, at most: as many as the reader has processes."""
Progress = Callable[[int, int], None]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


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
    found = FoundMemes()
    # All splits of the card, those that are not there too: a missing file is a finding.
    splits = [_split(dataset.card, data, split, found=found, findings=findings) for split in dataset.card.splits]
    # First: equal pictures and conflicting labels are found by the digests that this fills in.
    await _pictures(found, reader, findings, progress)
    findings += _twice(found.groups(SAME_ID), DatasetFaultKind.ID_TWICE, "an id")
    findings += _twice(found.groups(SAME_TEXT), DatasetFaultKind.TEXT_TWICE, "a text (but for case and spacing)")
    same = "a picture, by its pixels," if reader else "a picture, by its bytes,"
    findings += _twice(found.groups(SAME_PICTURE), DatasetFaultKind.PICTURE_TWICE, same)
    findings += _conflicts(found)
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
    card: DatasetCard, data: Path, split: CardSplit, *, found: FoundMemes, findings: list[DatasetFault]
) -> SplitCheck:
    # Labels of other tasks are counted as well; this one is what conflicts are told by.
    task = card.court_task or card.all_tasks()[0]
    counts: dict[str, Counter[str]] = {one.id: Counter() for one in card.all_tasks()}
    number = 0
    try:
        # With doubles: they are what is looked for here, and a run would refuse them.
        reader = CardReader(card, data, split.name, doubles=True)
        memes = iter(reader)
        first = first_memes(memes)
        pictures = PictureSearch(reader, first)
        for meme in chain(first, memes):
            number += 1
            for one, labels in meme.gold.items():
                counts[one].update(labels)
            found.add(split.name, meme, meme.gold.get(task.id, ()), pictures.find(meme))
    except BadRequest as error:
        # Anything but a missing file is no finding but a reason to stop.
        if error.reason != "DATA_MISSING":
            raise
        findings.append(DatasetFault(DatasetFaultKind.FILE_MISSING, split.name, error.message))
        return SplitCheck(split.name)
    _problems(split.name, reader.problems, findings)
    findings += pictures.faults(number, lambda: found.without_picture(split.name))
    # In the order of the task, and without labels that no row has.
    ordered = {
        one.id: {label: counts[one.id][label] for label in one.labels if label in counts[one.id]}
        for one in card.all_tasks()
    }
    digests = reader.digests()
    checked = SplitCheck(
        split=split.name,
        file=", ".join(path.relative_to(data).as_posix() for path in reader.paths),
        rows=reader.rows - reader.elsewhere,
        memes=number,
        classes=ordered[task.id],
        pictures=pictures.found,
        sha256=digests.get(reader.paths[0].relative_to(data).as_posix(), ""),
        refused=reader.refused,
        excluded=len(reader.excluded),
        elsewhere=reader.elsewhere,
        tasks=ordered,
    )
    findings += _counts(card, split, checked)
    return checked


def _problems(split: str, problems: Sequence[Problem], findings: list[DatasetFault]) -> None:
    # One finding a reason, with all its lines: a column that is wrong throughout gives one line and not thousands.
    for reason, group in _grouped(problems, lambda problem: problem.reason).items():
        # Line 0 is the file as a whole.
        where = tuple(one.source + f":{one.line}" * bool(one.line) + f" ({one.id})" * bool(one.id) for one in group)
        findings.append(
            DatasetFault(kind=DatasetFaultKind.ROW_DAMAGED, split=split, what=reason, count=len(group), where=where)
        )


def _counts(card: DatasetCard, split: CardSplit, checked: SplitCheck) -> list[DatasetFault]:
    """Finds numbers that differ from those that were published."""
    found = []
    remark = f" ({split.remark})" if split.remark else ""
    # Published numbers are those of each language's file.
    files = max(1, len(split.languages))
    if split.rows is not None and checked.rows != split.rows * files:
        what = f"{checked.rows:,} rows; {split.rows * files:,} were published{remark}"
        found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, what))
    # A published number says so already. Not nothing: a file that was cut off, or a value of `where` that no row has.
    elif split.rows is None and not checked.rows:
        found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, "no row is of this split"))
    # With one variant chosen the task has its bare id, and the labels of other annotators are not read.
    ids = {name: one.id for one in card.all_tasks() for name in (one.id, f"{one.id}:{one.variant}")}
    for task, published in split.classes.items():
        if task not in ids:
            continue
        # Zeros are left out on both sides: whether a label without memes is listed says nothing.
        ours = {label: count for label, count in checked.tasks[ids[task]].items() if count}
        theirs = {label: count * files for label, count in published.items() if count}
        if ours != theirs:
            of = f"{task}: " if len(checked.tasks) > 1 else ""
            what = f"{of}{_in_words(ours)}; published: {_in_words(theirs)}{remark}"
            found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, what))
    return found


def _in_words(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {label}" for label, count in classes.items()) or "no labels"


async def _pictures(
    found: FoundMemes, reader: PictureReader | None, findings: list[DatasetFault], progress: Progress
) -> None:
    """Gives each picture that is at hand what it is compared by; finds those that can't be read."""
    if reader is None:
        await asyncio.to_thread(_equal_digests, found)
        return
    # The reader has that many processes; more tasks would only hold more files in memory.
    gate, done, total = asyncio.Semaphore(_AT_ONCE), 0, found.count_pictures()
    refused: list[tuple[FoundMeme, str]] = []

    async def decode(one: FoundMeme, path: Path) -> None:
        nonlocal done
        async with gate:
            try:
                # Off the loop, as reading a file blocks.
                data = await asyncio.to_thread(read_picture, path)
                picture = await reader.read(data)
                found.set_picture(one, picture.pixels_sha256)
                # Judged all the same, so the digest stands, and the finding beside it.
                if picture.incomplete:
                    refused.append((one, "the file was cut short; what there is of it is judged"))
            except OSError:
                refused.append((one, "the file can't be read"))
            except BadPicture as bad:
                refused.append((one, bad.message))
        done += 1
        progress(done, total)

    try:
        for page in found.pictures():
            async with asyncio.TaskGroup() as group:
                for one, path in page:
                    group.create_task(decode(one, path))
    except ExceptionGroup as errors:  # what is nobody's fault: no process, no time
        raise next((e for e in errors.exceptions if isinstance(e, CourtError)), errors.exceptions[0]) from None
    for (split, reason), group_ in _grouped(refused, lambda pair: (pair[0].split, pair[1])).items():
        # Tasks end in any order; findings are in that of the file.
        where = tuple(one.name for one, _ in sorted(group_, key=lambda pair: pair[0].line))
        findings.append(
            DatasetFault(
                kind=DatasetFaultKind.PICTURE_UNREADABLE, split=split, what=reason, count=len(where), where=where
            )
        )


def _equal_digests(found: FoundMemes) -> None:
    """Digests of pictures that are as large as another: only those can be the same."""
    # Sizes are read without reading the file, and most pictures are alone with theirs.
    for page in found.pictures():
        for one, path in page:
            found.set_size(one, picture_size(path))
    # Rows may also name the same file.
    for page in found.pictures(same_size=True):
        for one, path in page:
            found.set_picture(one, picture_sha256(path))


def _twice(groups: Iterable[Sequence[FoundMeme]], kind: DatasetFaultKind, what: str) -> list[DatasetFault]:
    """Finds values that occur more than once, grouped by the splits in which they occur."""
    found = []
    # By splits: a leak from train to test is another finding than a double within train.
    for splits, cases in _grouped(groups, _splits_of).items():
        differ = sum(_labels_differ(group) for group in cases)
        words = f"{what} stands in several rows, {sum(map(len, cases)):,} in all"
        if "+" in splits:
            words += f", of the splits {splits.replace('+', ', ')}"
        # An id that stands twice may be of two memes, whose labels need not agree.
        if differ and kind is not DatasetFaultKind.ID_TWICE:
            words += f"; under different labels in {differ:,} of the {len(cases):,} cases"
        where = tuple(" = ".join(one.name for one in group) for group in cases)
        found.append(DatasetFault(kind=kind, split=splits, what=words, count=len(cases), where=where))
    return found


def _splits_of(group: Sequence[FoundMeme]) -> str:
    return "+".join(dict.fromkeys(one.split for one in group))


def _labels_differ(group: Sequence[FoundMeme]) -> bool:
    """True if two of these memes are labelled, and differently; one without a label contradicts nothing."""
    return len({one.label for one in group if one.label}) > 1


def _conflicts(found: FoundMemes) -> list[DatasetFault]:
    """Memes that are the same in picture and text and labelled differently: one of the labels must be wrong.

    The same text under another picture is not one of them: FHM has such on purpose.
    """
    differ = (group for group in found.groups(SAME_MEME) if _labels_differ(group))
    return [
        DatasetFault(
            kind=DatasetFaultKind.LABELS_CONFLICT,
            split=splits,
            what="memes of the same picture and text are labelled differently",
            count=len(cases),
            where=tuple(" = ".join(one.name for one in group) for group in cases),
        )
        for splits, cases in _grouped(differ, _splits_of).items()
    ]


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in the order in which they come."""
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
