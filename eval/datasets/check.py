"""Checks the files of a data set for faults: missing, damaged, duplicate, mislabelled, other than published."""

import asyncio
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from court.digests import sha256_of
from court.errors import BadPicture, BadRequest, CourtError
from court.ports import PictureReader
from eval.datasets.card import CardSplit, DatasetCard
from eval.datasets.card_rows import MemeBlock, RowGold
from eval.datasets.card_split import CardReader
from eval.datasets.known import is_own, mistaken_for, recognised

_AT_ONCE = 4
"""Maximum number of pictures decoded concurrently: the number of the reader's processes."""
Progress = Callable[[int, int], None]
Visit = Callable[[CardReader, MemeBlock], None]
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
    """A fault in a data set."""

    kind: DatasetFaultKind
    split: str
    """Name of the split; several, joined by ``+``, if the fault lies between them."""
    what: str
    """One-sentence description, without any content of a meme."""
    count: int = 1
    """Number of memes, or groups of memes, concerned."""
    where: tuple[str, ...] = ()
    """Positions of the fault: lines of files, or ids that belong together."""


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """Results of checking a split."""

    split: str
    file: str = ""
    """Name of its file below the directory; empty if missing."""
    rows: int = 0
    """Rows of the split, usable or not: the sum of ``memes``, ``refused`` and ``excluded``."""
    memes: int = 0
    pictures: int = 0
    refused: int = 0
    """Unusable rows; the findings give the reasons."""
    excluded: int = 0
    """Rows that the card drops."""
    elsewhere: int = 0
    """Rows of other splits in the same file; not counted in ``rows``."""
    tasks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Memes per label of every task, in the data set's own words."""


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """Results of checking a data set."""

    dataset: str
    splits: tuple[SplitCheck, ...]
    findings: tuple[DatasetFault, ...]
    """Faults in the order in which they were found."""
    decoded: bool
    """True if pictures were decoded, rather than only located."""


async def check(
    card: DatasetCard,
    data: Path,
    *,
    reader: PictureReader | None = None,
    progress: Progress = lambda *_: None,
    columns: Collection[str] = (),
    visit: Visit = lambda *_: None,
) -> DatasetCheck:
    """Checks all splits that are present, each by itself and against the others.

    Args:
        card: Card of the expected data set.
        reader: Sandboxed decoder for every picture, which also detects equal pixels in different files; None to check
            only that pictures exist and whether files are identical byte for byte.
        progress: Callback with the number of decoded pictures and the total.
        columns: Columns whose cells ``visit`` gets beside the memes.
        visit: Callback with memes as they are read, and their reader, for work on the same rows.

    Raises:
        BadRequest: A file can't be read at all.
        Unavailable: Decoding failed for reasons other than the pictures themselves.
    """
    found = _Found(card)
    found.note_other(data)
    # Includes splits that are missing on disk: a missing file is a finding.
    splits = [found.read(data, split, columns, visit) for split in card.splits]
    # Comes first: by the digests, equal pictures and conflicting labels are found.
    digests = await found.digests(reader, progress)
    for values, kind, what in (
        (found.ids, DatasetFaultKind.ID_TWICE, "an id"),
        (found.texts, DatasetFaultKind.TEXT_TWICE, "a text (but for case and spacing)"),
        (digests, DatasetFaultKind.PICTURE_TWICE, f"a picture, by its {'pixels' if reader else 'bytes'},"),
    ):
        found.note_twice(values, kind, what)
    found.note_conflicts(digests)
    return DatasetCheck(card.id, tuple(splits), tuple(found.findings), decoded=reader is not None)


class _Found:
    """Memes of all splits as they are compared with each other, by columns; and the faults found so far."""

    def __init__(self, card: DatasetCard) -> None:
        self._card = card
        # Labels of other tasks are counted too; conflicts are reported on this one.
        self._task = (card.court_task or card.all_tasks()[0]).id
        self.findings: list[DatasetFault] = []
        self._splits: list[str] = []
        self._lines: list[int] = []
        self.ids: list[str] = []
        self._golds: list[RowGold] = []
        # Hashes of texts but for case and spacing, as texts may be long; 0 without a text.
        self.texts = array("q")
        self._paths: list[Path | None] = []
        """Files of their pictures; None if missing."""

    def read(self, data: Path, split: CardSplit, columns: Collection[str], visit: Visit) -> SplitCheck:
        """Reads a split, and notes its own faults."""
        start, doubts = len(self.ids), list[str]()
        try:
            # Keeps duplicates, which are among the faults searched for; a run would refuse them.
            reader = CardReader(self._card, data, split.name, doubles=True, columns=columns)
            for block in reader.pictured_blocks(doubts):
                self._splits.extend(repeat(block.split, len(block)))
                self._lines.extend(block.rows.numbers)
                self.ids.extend(block.ids)
                self._golds.extend(block.golds)
                self.texts.extend(map(hash, block.text_column.keys()))
                self._paths.extend(_paths_of(reader, block, doubts))
                visit(reader, block)
        except BadRequest as error:
            # A missing file is a finding; any other error stops the check.
            if error.reason != "DATA_MISSING":
                raise
            self._note(DatasetFaultKind.FILE_MISSING, split.name, error.message)
            return SplitCheck(split.name)
        # One finding per reason, with all its lines: a wrong column gives one finding instead of thousands.
        for reason, group in _grouped(reader.problems, lambda problem: problem.reason).items():
            # Line 0 stands for the file as a whole.
            where = [one.source + f":{one.line}" * bool(one.line) + f" ({one.id})" * bool(one.id) for one in group]
            self._note(DatasetFaultKind.ROW_DAMAGED, split.name, reason, where)
        memes = range(start, len(self.ids))
        # If the folder is ambiguous, it is unknown which pictures exist.
        for doubt in doubts:
            what = f"{doubt} The pictures of later rows were not looked for."
            self._note(DatasetFaultKind.PICTURES_DOUBTFUL, split.name, what)
        missing = [place for place in memes if self._paths[place] is None]
        if missing and not doubts and self._card.fields.picture is not None:
            self._note_missing_pictures(split.name, missing, len(memes))
        # In the task's order, without labels that no row has.
        tasks = {
            task.id: {label: count for label in task.labels if (count := reader.labels[task.id][label])}
            for task in self._card.all_tasks()
        }
        rows = reader.rows - reader.elsewhere
        for what in self._card.count_differences(split, rows, tasks):
            self._note(DatasetFaultKind.COUNT_DIFFERS, split.name, what)
        return SplitCheck(
            split=split.name,
            file=", ".join(path.relative_to(data).as_posix() for path in reader.paths),
            rows=rows,
            memes=len(memes),
            pictures=len(memes) - len(missing),
            refused=reader.refused,
            excluded=reader.excluded,
            elsewhere=reader.elsewhere,
            tasks=tasks,
        )

    def _note_missing_pictures(self, split: str, missing: Sequence[int], memes: int) -> None:
        kind, source = DatasetFaultKind.PICTURES_MISSING, self._card.source_url
        if len(missing) < memes:
            what = "pictures named in the file are not in the folder of the others"
            self._note(kind, split, what, list(map(self._name_of, missing)))
            return
        # All missing is a different fault than some missing: the pictures were never unpacked, or are elsewhere.
        what = (
            f"none of {memes:,} pictures is there (looked for in the folders of the data set and three levels "
            f"deep below the directory){f'; they are had from {source}' if source else ''}"
        )
        self._note(kind, split, what, count=memes)

    def _note(self, kind: DatasetFaultKind, split: str, what: str, where: Sequence[str] = (), count: int = 0) -> None:
        """Adds a fault, of as many memes as there are positions."""
        self.findings.append(DatasetFault(kind, split, what, count=count or len(where) or 1, where=tuple(where)))

    def _name_of(self, place: int) -> str:
        return f"{self._splits[place]}:{self._lines[place]} ({self.ids[place]})"

    def note_other(self, data: Path) -> None:
        """Reports a fault if the directory holds another data set."""
        card = self._card
        # Number of rows first: parts of one data set have the same file names.
        if (other := mistaken_for(card, data)) is not None:
            what = f"the train split has as many rows as {other.title}, not as {card.title}: check with --dataset "
            self._note(DatasetFaultKind.OTHER_DATA_SET, "train", what + other.id)
        # A user's own card was named on purpose, and a variant of a data set is that data set.
        elif not is_own(card):
            # None or several recognised: nothing contradicts the requested one.
            with suppress(BadRequest):
                known = [one.id for one in recognised(data)]
                if card.id.partition(":")[0] not in known:
                    what = f"by its files and their numbers of rows this is {' and '.join(known)}"
                    self._note(DatasetFaultKind.OTHER_DATA_SET, "", what)

    async def digests(self, reader: PictureReader | None, progress: Progress) -> list[str | None]:
        """Computes the digest by which each picture is compared, None if unknown; notes pictures that can't be read."""
        digests: list[str | None] = [None] * len(self._paths)
        pictured = [(place, path) for place, path in enumerate(self._paths) if path is not None]
        if reader is None:
            await asyncio.to_thread(_equal_digests, pictured, digests)
            return digests
        refused: list[tuple[int, str]] = []
        waiting, done = iter(pictured), 0

        async def decode() -> None:
            nonlocal done
            for place, path in waiting:
                try:
                    # In a thread, since reading a file blocks the event loop.
                    picture = await reader.read(await asyncio.to_thread(path.read_bytes))
                    digests[place] = picture.pixels_sha256
                    # An incomplete picture is judged all the same, so its digest counts, and the fault is reported too.
                    if picture.incomplete:
                        refused.append((place, "the file was cut short; what there is of it is judged"))
                except OSError:
                    refused.append((place, "the file can't be read"))
                except BadPicture as bad:
                    refused.append((place, bad.message))
                done += 1
                progress(done, len(pictured))

        try:
            async with asyncio.TaskGroup() as group:
                # More tasks than reader processes would only hold more files in memory.
                for _ in range(_AT_ONCE):
                    group.create_task(decode())
        except ExceptionGroup as errors:  # failures unrelated to the pictures: no process, no time
            raise next((e for e in errors.exceptions if isinstance(e, CourtError)), errors.exceptions[0]) from None
        # Tasks finish in any order; findings are listed in that of the file.
        for (split, reason), cases in _grouped(sorted(refused), lambda one: (self._splits[one[0]], one[1])).items():
            where = [self._name_of(place) for place, _ in cases]
            self._note(DatasetFaultKind.PICTURE_UNREADABLE, split, reason, where)
        return digests

    def note_twice(self, values: Sequence[Hashable | None], kind: DatasetFaultKind, what: str) -> None:
        """Reports values that occur more than once, by the splits in which they occur."""
        # A leak from train to test is another finding than a duplicate within train.
        for splits, cases in self._by_splits(_sharing(values)).items():
            differ = sum(map(self._labels_differ, cases))
            words = f"{what} stands in several rows, {sum(map(len, cases)):,} in all"
            if "+" in splits:
                words += f", of the splits {splits.replace('+', ', ')}"
            # A duplicate id may belong to two different memes, whose labels need not agree.
            if differ and kind is not DatasetFaultKind.ID_TWICE:
                words += f"; under different labels in {differ:,} of the {len(cases):,} cases"
            self._note(kind, splits, words, self._names_of(cases))

    def note_conflicts(self, digests: Sequence[str | None]) -> None:
        """Reports memes with equal picture and text but different labels: one of the labels must be wrong.

        The same text on another picture is no conflict: FHM contains such pairs on purpose.
        """
        same_pictures = sorted(chain.from_iterable(_sharing(digests)))
        whole = _grouped(same_pictures, lambda place: (digests[place], self.texts[place]))
        what = "memes of the same picture and text are labelled differently"
        for splits, cases in self._by_splits(filter(self._labels_differ, whole.values())).items():
            self._note(DatasetFaultKind.LABELS_CONFLICT, splits, what, self._names_of(cases))

    def _by_splits(self, groups: Iterable[list[int]]) -> dict[str, list[list[int]]]:
        return _grouped(groups, lambda group: "+".join(dict.fromkeys(self._splits[place] for place in group)))

    def _names_of(self, groups: Iterable[Sequence[int]]) -> list[str]:
        return [" = ".join(map(self._name_of, group)) for group in groups]

    def _labels_differ(self, group: Sequence[int]) -> bool:
        """True if at least two of these memes have different labels; a meme without a label contradicts none."""
        return len({labels for place in group if (labels := self._golds[place].tasks.get(self._task))}) > 1


def _paths_of(reader: CardReader, block: MemeBlock, doubts: list[str]) -> list[Path | None]:
    """Files of the pictures of some memes, None for those that are missing; and the doubt that ends the search."""
    # If the card has no pictures, none can be missing.
    if reader.card.fields.picture is not None and not doubts:
        try:
            return [reader.pictures.find(*one) for one in block.pictures()]
        # Several files match: the user has to choose, and the other checks continue.
        except BadRequest as error:
            doubts.append(error.message)
    return [None] * len(block)


def _equal_digests(pictured: Sequence[tuple[int, Path]], digests: list[str | None]) -> None:
    """Hashes the pictures that share a file size with another: only those can be identical."""
    # Sizes are known without reading the files, and most are unique.
    for _, alike in _grouped(pictured, lambda pair: pair[1].stat().st_size).items():
        for place, path in alike if len(alike) > 1 else ():
            digests[place] = sha256_of(path)


def _sharing(values: Sequence[Hashable | None]) -> list[list[int]]:
    """Groups of places that share a value, in order of their first places; those with None or 0 are in none."""
    # Nearly always each value is that of one meme, which counting tells faster than grouping.
    several = {value for value, count in Counter(values).items() if count > 1 and value}
    places = (place for place, value in enumerate(values) if value in several) if several else ()
    return list(_grouped(places, values.__getitem__).values())


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Groups items by key, in order of first occurrence."""
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
