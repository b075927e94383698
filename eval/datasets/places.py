"""Places of a data set's files and pictures below the directory that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.known import DATASETS, FUNCTIONAL_KEY, SYNTHETIC_KEY, Dataset, Split, SplitRole
from retrieval.library.readers import format_of

_DEPTH = 3
"""Folders below the directory that are looked into for pictures."""
_LOOKED_FOR = 50
"""Pictures that are looked for in a folder before it is passed over."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a split.

    Attributes:
        rows: The memes.
        labels: Their labels, where those stand apart.
        surely: True if they lie in a folder that is this data set's alone.
    """

    rows: Path
    labels: Path | None
    surely: bool


def files_of(dataset: Dataset, data: Path, split: Split) -> Files | None:
    """The files of a split, where they are; None where they are not."""
    # Its own folders first: parts of HarMeme that lie side by side have the same file names.
    for folders, surely in ((dataset.own_folders, True), (dataset.folders, _named_after(dataset, data))):
        rows = _first(data, folders, split.files)
        if rows is not None:
            # Its labels may lie beside it or where the split's own might.
            labels = _first(data, (*folders, *dataset.folders), split.labels)
            return Files(rows, labels, surely)
    return None


def must_be_there(dataset: Dataset, data: Path, split: Split) -> Files:
    """Finds files as :func:`files_of`. Raises BadRequest with the missing files, their expected places and a remedy."""
    if not data.is_dir():
        raise BadRequest(f"{data} is no directory. Name the one that {dataset.title} was unpacked in.")
    files = files_of(dataset, data, split)
    if files is None:
        raise BadRequest(
            f"{data} has no split {split.name} of {dataset.title}: {expected(dataset, split.files)} is not there. It "
            f"is had from {dataset.source_url}.",
            reason="DATA_MISSING",
        )
    if split.labels and files.labels is None:
        raise BadRequest(
            f"{data} has the split {split.name} of {dataset.title} without its labels: "
            f"{expected(dataset, split.labels)} is not there. They are had from {dataset.source_url}.",
            reason="DATA_MISSING",
        )
    return files


def expected(dataset: Dataset, names: tuple[str, ...]) -> str:
    """Describes where a file is expected."""
    within = [f"{folder}/" for folder in (*dataset.own_folders, *dataset.folders) if folder]
    told = ["the directory itself", *within[:2], *([f"{len(within) - 2} other folders"] if len(within) > 2 else [])]
    return f"{' or '.join(names)} (looked for in {', '.join(told)})"


def pictures_of(dataset: Dataset, data: Path, rows: Path, images: Iterable[str]) -> Path | None:
    """The folder that these names of pictures are relative to; None where none of the first of them is anywhere.

    The folders that data sets are known to have are looked at first, then every other, three levels deep.
    """
    wanted = [name for name in images if name][:_LOOKED_FOR]
    near = (rows.parent, rows.parent.parent, data)
    likely = (base / folder for base in near if base == data or data in base.parents for folder in dataset.pictures)
    for folder in dict.fromkeys((*likely, *_below(data, _DEPTH))):
        if any(path is not None and path.is_file() for path in (picture_path(folder, name) for name in wanted)):
            return folder
    return None


def picture_path(folder: Path, name: str) -> Path | None:
    """Returns the path of a picture; None for a name that leads out of the folder.

    A data file is no reason to read others.
    """
    # Checked by the words of the name: nothing outside is touched to find out.
    if not name or Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        return None
    return folder / name


def recognised(data: Path) -> tuple[Dataset, ...]:
    """The data sets that lie in a directory.

    A folder of a data set's own name tells which it is; else the number of rows of a split does, where it is one that
    was published. Harm-P's versions are told apart by the rows of their train split.

    Raises:
        BadRequest: The path is no directory, contains no known data set, or its content fits several.
    """
    if not data.is_dir():
        raise BadRequest(f"{data} is no directory.")
    layouts = {dataset.id: _found(dataset, data) for dataset in DATASETS.values()}
    # First: synthetic data have the very layout of the published ones.
    if (data / SYNTHETIC_KEY).is_file():
        if (data / FUNCTIONAL_KEY).is_file():
            return (DATASETS["synthetic-functional"],)
        fhm = "test_seen" in layouts["synthetic-fhm"] or "dev_seen" in layouts["synthetic-fhm"]
        return (DATASETS["synthetic-fhm" if fhm else "synthetic-harmeme"],)
    claims: dict[Path, dict[Dataset, bool]] = {}
    for dataset in DATASETS.values():
        found = layouts[dataset.id]
        # Harm-P's versions share file names: the one whose rows are there claims them, and the other does not.
        if dataset.id.startswith("synthetic") or mistaken_for(dataset, data) or version_of(dataset, data) != dataset:
            continue
        for name, files in found.items():
            counted = _row_count(files.rows) == dataset.splits[name].memes
            alone = _only_one_of(dataset) and format_of(files.rows) is dataset.format
            if files.surely or counted or alone:
                claims.setdefault(files.rows, {})[dataset] = files.surely
    owners = [[d for d, sure in claim.items() if sure] or list(claim) for claim in claims.values()]
    doubtful = next((owner for owner in owners if len(owner) > 1), None)
    if doubtful:
        raise BadRequest(
            f"What lies in {data} could be {' or '.join(dataset.id for dataset in doubtful)}. Name it with --dataset."
        )
    chosen = [dataset for dataset in DATASETS.values() if [dataset] in owners]
    if not chosen:
        known = ", ".join(id_ for id_ in DATASETS)
        if any(layouts.values()):
            raise BadRequest(
                f"What lies in {data} has the file names of several data sets and as many rows as none of them. Name "
                f"it with --dataset ({known})."
            )
        raise BadRequest(
            f"{data} holds no file of a data set that is known ({known}). memecourt-eval datasets says which are "
            "expected.",
            reason="DATA_MISSING",
        )
    return tuple(chosen)


def version_of(dataset: Dataset, data: Path) -> Dataset:
    """Which of two versions lies there, by the rows of the train split; the one that was asked for in doubt."""
    if not dataset.sibling:
        return dataset
    other = DATASETS[dataset.sibling]
    (ours,), (theirs,) = dataset.of_role(SplitRole.TRAIN), other.of_role(SplitRole.TRAIN)
    files = files_of(dataset, data, ours) or files_of(other, data, theirs)
    if files is None:
        return dataset
    # The authors gave that name to V1 alone: no rows need be counted.
    if files.rows.name == "train_v1.jsonl":
        return dataset if "train_v1.jsonl" in ours.files else other
    count = _row_count(files.rows)
    if count == theirs.memes:
        return other
    # Neither's number: V1, which is the one to use, wherever nobody asked.
    return dataset if count == ours.memes or "train_v1.jsonl" in ours.files else other


def mistaken_for(dataset: Dataset, data: Path) -> Dataset | None:
    """Another data set whose train split has just as many rows as the one found here; None where it is as published.

    HarMeme's parts and versions have the same file names: the wrong directory would be read without a word.
    """
    (train,) = dataset.of_role(SplitRole.TRAIN)
    files = files_of(dataset, data, train)
    if files is None or train.memes is None:
        return None
    count = _row_count(files.rows)
    if count == train.memes:
        return None
    alike = (other for other in DATASETS.values() if other.format is dataset.format and other is not dataset)
    return next((other for other in alike if other.of_role(SplitRole.TRAIN)[0].memes == count), None)


def _only_one_of(dataset: Dataset) -> bool:
    """True if no other data set of its format was published: the format identifies it."""
    return sum(o.format is dataset.format and not o.id.startswith("synthetic") for o in DATASETS.values()) == 1


def _row_count(file: Path) -> int:
    """Lines that are not blank; of a table with a header, one less."""
    with file.open("rb") as lines:
        count = sum(bool(line.strip()) for line in lines)
    return count if file.suffix == ".jsonl" else max(count - 1, 0)


def _found(dataset: Dataset, data: Path) -> dict[str, Files]:
    found = {name: files_of(dataset, data, split) for name, split in dataset.splits.items()}
    return {name: files for name, files in found.items() if files is not None}


def _named_after(dataset: Dataset, data: Path) -> bool:
    """True if the directory itself has the name of one of the data set's own folders: ``--data …/Harm-C``."""
    return data.resolve().name in {folder.split("/")[0] for folder in dataset.own_folders if "-" in folder}


def _first(data: Path, folders: Iterable[str], names: Iterable[str]) -> Path | None:
    names = tuple(names)
    paths = (data / folder / name for folder in folders for name in names)
    return next((path for path in paths if path.is_file()), None)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth == 0:
        return
    try:
        # Links are not followed: they may lead out of the directory, or around in it. Sorted, so that of several
        # folders the same one is found on every file system.
        below = sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for each in below:
        yield from _below(each, depth - 1)
