"""Places of a card's files below the directory that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import CardSplit, DatasetCard, FileKind
from eval.datasets.record_files import Numbered

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def look_for(data: Path, folders: Iterable[str], names: Sequence[str]) -> Path | None:
    """The first of these files that is there, folder by folder; None where none is.

    Raises:
        BadRequest: It is a link that leads out of the directory.
    """
    for folder in folders:
        for name in names:
            path = data / folder / name
            if path.is_file():
                refuse_link_out(path, data)
                return path
    return None


def refuse_link_out(path: Path, data: Path) -> None:
    """Refuses a file that is a link to one outside of the data set. Raises BadRequest."""
    # Of links to folders people make use on purpose; a link in place of a file comes with an archive.
    if path.is_symlink() and not path.resolve().is_relative_to(data.resolve()):
        raise BadRequest(
            f"{path.name} is a link that leads out of {data}. Put the file itself there.", reason="DATA_LINK"
        )


def located(card: DatasetCard, data: Path, names: Sequence[str]) -> tuple[Path, bool] | None:
    """The file of a split, and True if it lies in a folder that is this data set's alone; None where it is not there.

    Of a tree of pictures, it is the folder that has some.
    """
    layout = card.layout
    named = data.resolve().name in {folder for folder in layout.own if folder and "/" not in folder}
    # Its own folders first: parts of HarMeme that lie side by side have the same file names.
    for folders, surely in ((layout.own, True), (layout.folders, named)):
        if layout.kind is FileKind.TREE:
            found = next((p for f in folders for name in names if any(tree_rows(p := data / f / name))), None)
        else:
            found = look_for(data, folders, names)
        if found is not None:
            return found, surely
    return None


def find_file(card: DatasetCard, data: Path, split: CardSplit, names: Sequence[str]) -> Path:
    """The file of a split, as :func:`located`.

    Raises:
        BadRequest: It is not there: the message has its names, its expected places, and where the data are had from.
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
