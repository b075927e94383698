"""Places of a card's files below the directory that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import PICTURE_ENDINGS, CardSplit, DatasetCard, FileKind
from eval.datasets.record_files import Numbered


def first_present(data: Path, folders: Iterable[str], names: Sequence[str]) -> tuple[Path, ...]:
    """The first of these files that is there, folder by folder; none where none is.

    A name with ``*`` is all files that it fits, in the order of their names: the shards of a split.

    Raises:
        BadRequest: A file is a link that leads out of the directory.
    """
    for folder in folders:
        for name in names:
            place = data / folder
            # The parts of a split are read in the order of their names.
            paths = sorted(place.glob(name)) if "*" in name and place.is_dir() else [place / name]
            found = tuple(path for path in paths if path.is_file())
            for path in found:
                refuse_link_out(path, data)
            if found:
                return found
    return ()


def refuse_link_out(path: Path, data: Path) -> None:
    """Refuses a file that is a link to one outside of the data set. Raises BadRequest."""
    # Of links to folders people make use on purpose; a link in place of a file comes with an archive.
    if not path.is_symlink():
        return
    root = data.resolve()
    # The cache of the Hugging Face hub holds files apart from the snapshots that name them.
    if root.parent.name == "snapshots":
        root = root.parents[1]
    if not path.resolve().is_relative_to(root):
        raise BadRequest(
            f"{path.name} is a link that leads out of {data}. Put the file itself there.", reason="DATA_LINK"
        )


def located(card: DatasetCard, data: Path, names: Sequence[str]) -> tuple[tuple[Path, ...], bool] | None:
    """Files of a split, and True if they lie in a folder that is this data set's alone; None where there are none.

    Of a tree of pictures, it is the folder that has some.
    """
    layout = card.layout
    named = data.resolve().name in {folder for folder in layout.own if folder and "/" not in folder}
    # Its own folders first: parts of HarMeme that lie side by side have the same file names.
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
    """Files of a split, as :func:`located`.

    Raises:
        BadRequest: There are none: the message has its names, its expected places, and where the data are had from.
    """
    found = located(card, data, names)
    if found is None:
        raise missing(card, data, f"no split {split.name} of {card.title}", names)
    return found[0]


def missing(card: DatasetCard, data: Path, what: str, names: Sequence[str]) -> BadRequest:
    """The error of a file that is not there."""
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
    """A row for every picture of a folder and those below it, in the order of their names."""
    # Links are not followed by rglob: they may lead out of the folder, or around in it.
    paths = (
        sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_ENDINGS) if folder.is_dir() else []
    )
    for number, path in enumerate(paths, 1):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            yield number, {"@path": name, "@name": path.name, "@stem": path.stem, "@parent": path.parent.name}
