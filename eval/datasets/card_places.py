"""Locates a card's files below the directory that the user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import CardSplit, DatasetCard, FileKind
from eval.datasets.record_files import Numbered
from retrieval.library.picture_finder import PICTURE_ENDINGS


def first_present(data: Path, folders: Iterable[str], names: Sequence[str]) -> tuple[Path, ...]:
    """The first of these files that exists, folder by folder; empty if there is none.

    A name with ``*`` stands for all matching files, sorted by name: the shards of a split.

    Raises:
        BadRequest: A file is a symlink that leads out of the directory.
    """
    for folder in folders:
        for name in names:
            place = data / folder
            # The shards of a split are read in the order of their names.
            paths = sorted(place.glob(name)) if "*" in name and place.is_dir() else [place / name]
            found = tuple(path for path in paths if path.is_file())
            for path in found:
                refuse_link_out(path, data)
            if found:
                return found
    return ()


def refuse_link_out(path: Path, data: Path) -> None:
    """Refuses a file that is a symlink to a target outside the data set. Raises BadRequest."""
    # Users link folders on purpose; a link in place of a file comes from an archive and may be hostile.
    if not path.is_symlink():
        return
    root = data.resolve()
    # The cache of the Hugging Face hub stores files outside the snapshots that link to them.
    if root.parent.name == "snapshots":
        root = root.parents[1]
    if not path.resolve().is_relative_to(root):
        raise BadRequest(
            f"{path.name} is a link that leads out of {data}. Put the file itself there.", reason="DATA_LINK"
        )


def located(card: DatasetCard, data: Path, names: Sequence[str]) -> tuple[tuple[Path, ...], bool] | None:
    """Files of a split, and True if they are in a folder that only this data set uses; None if there are none.

    For a tree of pictures, the folder that contains some.
    """
    layout = card.layout
    named = data.resolve().name in {folder for folder in layout.own if folder and "/" not in folder}
    # The data set's own folders first: parts of HarMeme stored side by side have the same file names.
    found: tuple[Path, ...]
    for folders, surely in ((layout.own, True), (layout.folders, named)):
        if layout.kind is FileKind.TREE:
            found = next(((p,) for f in folders for name in names if any(tree_rows(p := data / f / name))), ())
        else:
            found = first_present(data, folders, names)
        if found:
            return found, surely
    return None


def find_files(card: DatasetCard, data: Path, split: CardSplit, names: Sequence[str]) -> tuple[Path, ...]:
    """Files of a split, as returned by :func:`located`.

    Raises:
        BadRequest: There are none: the message lists the names, the expected places, and the source of the data.
    """
    found = located(card, data, names)
    if found is None:
        raise missing(card, data, f"no split {split.name} of {card.title}", names)
    return found[0]


def missing(card: DatasetCard, data: Path, what: str, names: Sequence[str]) -> BadRequest:
    """Error for a missing file."""
    folders = [
        f"{folder}/" if folder else "the directory itself" for folder in (*card.layout.own, *card.layout.folders)
    ]
    source = f" It is had from {card.source_url}." if card.source_url else ""
    return BadRequest(
        f"{data} has {what}: {' or '.join(names)} is not there (looked for in {', '.join(folders[:4])}"
        f"{', …' if len(folders) > 4 else ''}).{source}",
        reason="DATA_MISSING",
    )


def tree_rows(folder: Path) -> Iterator[Numbered]:
    """One row for every picture in a folder and its subfolders, sorted by name."""
    # rglob does not follow links: they may lead out of the folder or form a cycle.
    paths = (
        sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_ENDINGS) if folder.is_dir() else []
    )
    for number, path in enumerate(paths, 1):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            yield number, {"@path": name, "@name": path.name, "@stem": path.stem, "@parent": path.parent.name}
