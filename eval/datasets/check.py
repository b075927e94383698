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

from court.errors import BadPicture, CourtError
from court.ports import PictureReader
from eval.datasets.known import Dataset, Split
from eval.datasets.picture_finder import picture_path
from eval.datasets.places import expected, files_of, mistaken_for, pictures_of
from retrieval.library.readers import format_of, read_source
from retrieval.library.sources import Row, Source
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
        rows: Rows of the file, those that can't be used among them.
        memes: Rows that can be used.
        classes: Memes per label, in the data set's own words.
        pictures: Pictures that are at hand.
        sha256: SHA-256 of the file, in hex.
    """

    split: str
    file: str = ""
    rows: int = 0
    memes: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)
    pictures: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """Content of a data set, and its faults.

    Attributes:
        dataset: Its id.
        splits: All that it should have.
        findings: In the order in which they were looked for.
        decoded: True if pictures were decoded, and not only looked for.
    """

    dataset: str
    splits: tuple[SplitCheck, ...]
    findings: tuple[DatasetFault, ...]
    decoded: bool


@dataclass(slots=True)
class _FoundMeme:
    """A row and its picture."""

    split: str
    row: Row
    path: Path | None
    picture: str = ""
    """Digest of its bytes, or of its pixels where it was decoded; empty where it has not been compared."""

    @property
    def name(self) -> str:
        return f"{self.split}:{self.row.line} ({self.row.id})"


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
    other = mistaken_for(dataset, data)
    if other is not None:
        what = f"the train split has as many rows as {other.title}, not as {dataset.title}: check with --dataset "
        findings.append(DatasetFault(DatasetFaultKind.OTHER_DATA_SET, "train", what + other.id))
    splits, seen = [], []
    for split in dataset.splits.values():
        checked, rows = _split(dataset, data, split, findings)
        splits.append(checked)
        seen += rows
    # First: equal pictures and conflicting labels are found by the digests that this fills in.
    await _pictures(seen, reader, findings, progress)
    _twice(seen, DatasetFaultKind.ID_TWICE, what="an id", key=lambda one: one.row.id, findings=findings)
    _twice(
        seen,
        DatasetFaultKind.TEXT_TWICE,
        what="a text (but for case and spacing)",
        key=lambda one: text_key(one.row.text),
        findings=findings,
    )
    same = "a picture, by its pixels," if reader else "a picture, by its bytes,"
    _twice(seen, DatasetFaultKind.PICTURE_TWICE, what=same, key=lambda one: one.picture, findings=findings)
    _conflicts(seen, findings)
    return DatasetCheck(dataset.id, tuple(splits), tuple(findings), reader is not None)


def _split(
    dataset: Dataset, data: Path, split: Split, findings: list[DatasetFault]
) -> tuple[SplitCheck, list[_FoundMeme]]:
    files = files_of(dataset, data, split)
    if files is None:
        what = f"{expected(dataset, split.files)} is not there; it is had from {dataset.source_url}"
        findings.append(DatasetFault(DatasetFaultKind.FILE_MISSING, split.name, what))
        return SplitCheck(split.name), []
    if split.labels and files.labels is None:
        what = f"the labels, {expected(dataset, split.labels)}, are not there; they are had from {dataset.source_url}"
        findings.append(DatasetFault(DatasetFaultKind.FILE_MISSING, split.name, what))
    if format_of(files.rows) not in (dataset.format, None):
        what = f"the file is laid out as {format_of(files.rows)}, not as {dataset.format}"
        findings.append(DatasetFault(DatasetFaultKind.OTHER_DATA_SET, split.name, what))
    source = Source(files.rows, split.name, format=dataset.format, labels=files.labels)
    rows = read_source(source)
    for reason, problems in _grouped(rows.problems, lambda problem: problem.reason).items():
        where = tuple(
            f"{problem.source}:{problem.line}" + f" ({problem.id})" * bool(problem.id) for problem in problems
        )
        findings.append(
            DatasetFault(
                kind=DatasetFaultKind.ROW_DAMAGED, split=split.name, what=reason, count=len(problems), where=where
            )
        )
    folder = pictures_of(dataset, data, files.rows, (row.image for row in rows.good))
    seen = [_FoundMeme(split.name, row, picture_path(folder, row.image) if folder else None) for row in rows.good]
    for one in seen:
        if one.path is not None and not one.path.is_file():
            one.path = None
    there = [one for one in seen if one.path is not None]
    if rows.good and not there:
        what = (
            f"none of {len(rows.good):,} pictures is there (looked for in the folders of the data set and three levels "
            f"deep below the directory); they are had from {dataset.source_url}"
        )
        findings.append(DatasetFault(DatasetFaultKind.PICTURES_MISSING, split.name, what, len(rows.good)))
    elif len(there) < len(rows.good):
        missing = tuple(one.name for one in seen if one.path is None)
        what = "pictures named in the file are not in the folder of the others"
        findings.append(
            DatasetFault(
                kind=DatasetFaultKind.PICTURES_MISSING, split=split.name, what=what, count=len(missing), where=missing
            )
        )
    classes = dict(Counter(row.source_label for row in rows.good))
    ordered = {label: classes[label] for label in dataset.labels if label in classes}
    # A row may have several problems, and problems of the file of labels are none of its rows.
    lines = {problem.line for problem in rows.problems if problem.source == split.name}
    checked = SplitCheck(
        split=split.name,
        file=files.rows.relative_to(data).as_posix(),
        rows=len(rows.good) + len(lines),
        memes=len(rows.good),
        classes=ordered,
        pictures=len(there),
        sha256=hashlib.sha256(files.rows.read_bytes()).hexdigest(),
    )
    findings += _counts(split, checked)
    return checked, seen


def _counts(split: Split, checked: SplitCheck) -> list[DatasetFault]:
    """Finds numbers that differ from those that were published."""
    found = []
    remark = f" ({split.remark})" if split.remark else ""
    if split.memes is not None and checked.rows != split.memes:
        what = f"{checked.rows:,} rows; {split.memes:,} were published{remark}"
        found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, what))
    if split.classes and dict(checked.classes) != dict(split.classes):
        ours, theirs = (_in_words(classes) for classes in (checked.classes, split.classes))
        found.append(DatasetFault(DatasetFaultKind.COUNT_DIFFERS, split.name, f"{ours}; published: {theirs}{remark}"))
    return found


def _in_words(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {label}" for label, count in classes.items()) or "no labels"


async def _pictures(
    seen: Sequence[_FoundMeme], reader: PictureReader | None, findings: list[DatasetFault], progress: Progress
) -> None:
    """Gives each picture that is at hand what it is compared by; finds those that can't be read."""
    there = [one for one in seen if one.path is not None]
    if reader is None:
        await asyncio.to_thread(_equal_digests, there)
        return
    gate, done = asyncio.Semaphore(_AT_ONCE), 0
    refused: list[tuple[_FoundMeme, str]] = []

    async def decode(one: _FoundMeme) -> None:
        nonlocal done
        async with gate:
            assert one.path is not None
            try:
                data = await asyncio.to_thread(one.path.read_bytes)
                picture = await reader.read(data)
                one.picture = picture.pixels_sha256
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
        where = tuple(one.name for one, _ in sorted(group_, key=lambda pair: pair[0].row.line))
        findings.append(
            DatasetFault(
                kind=DatasetFaultKind.PICTURE_UNREADABLE, split=split, what=reason, count=len(where), where=where
            )
        )


def _equal_digests(there: Iterable[_FoundMeme]) -> None:
    """Digests of pictures that are as large as another: only those can be the same."""
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
    by_splits = _grouped(groups, lambda group: "+".join(dict.fromkeys(one.split for one in group)))
    for splits, alike in by_splits.items():
        differ = sum(len({one.row.source_label for one in group}) > 1 for group in alike)
        told = f"{what} stands in several rows, {sum(map(len, alike)):,} in all"
        if "+" in splits:
            told += f", of the splits {splits.replace('+', ', ')}"
        if differ and kind is not DatasetFaultKind.ID_TWICE:
            told += f"; under different labels in {differ:,} of the {len(alike):,} cases"
        where = tuple(" = ".join(one.name for one in group) for group in alike)
        findings.append(DatasetFault(kind=kind, split=splits, what=told, count=len(alike), where=where))


def _conflicts(seen: Sequence[_FoundMeme], findings: list[DatasetFault]) -> None:
    """Memes that are the same in picture and text and labelled differently: one of the labels must be wrong.

    The same text under another picture is not one of them: FHM has such on purpose.
    """
    groups = _grouped(seen, lambda one: (one.picture, text_key(one.row.text)))
    differ = [
        group for (picture, _), group in groups.items() if picture and len({one.row.source_label for one in group}) > 1
    ]
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
