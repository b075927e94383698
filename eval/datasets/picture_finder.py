"""Pictures of a data set by the names that its rows have for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from court.errors import BadRequest
from eval.datasets.card_places import PICTURE_ENDINGS
from eval.datasets.verbs import BadCell, fill

_BELOW = "/**"


def picture_path(folder: Path, name: str) -> Path | None:
    """Returns the path of a picture; None for a name that leads out of the folder.

    A data file is no reason to read others.
    """
    # Checked by the words of the name: nothing outside is touched to find out.
    if not name or "\0" in name:
        return None
    windows = PureWindowsPath(name)
    if Path(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        return None
    return folder / name


class DatasetPictures:
    """Finds the pictures of a split.

    Args:
        data: Directory of the data set; nothing outside of it is looked at.
        beside: Folder of the split's rows.
        patterns: Folders as a card has them; ``{field}`` is the meme's, and ``**`` at the end is any folder below.
    """

    def __init__(self, data: Path, beside: Path, patterns: Sequence[str]) -> None:
        near = (beside, beside.parent, data)
        self._bases = [base for base in dict.fromkeys(near) if base == data or data in base.parents]
        self._data, self._patterns = data, tuple(patterns)
        self._listed: dict[tuple[Path, bool], dict[str, list[Path]]] = {}

    def find(self, name: str, fields: Mapping[str, str]) -> Path | None:
        """The file of a picture; None where it is not there.

        It is looked for under its name, then under the same name in other letters (``A.JPG``), then, for a name
        without an ending, under the name with one.

        Args:
            name: Name as the row has it.
            fields: Fields of the meme that may stand in the name of a folder.

        Raises:
            BadRequest: Several files fit.
        """
        record = {f"@{field}": value for field, value in fields.items()}
        for candidate in dict.fromkeys((name, name.replace("\\", "/"))):
            if picture_path(self._data, candidate) is None:
                return None
            folders = list(self._folders(record))
            for folder, deep in folders:
                path = picture_path(folder, candidate)
                if path is not None and not deep and path.is_file():
                    return self._inside(path)
            for folder, deep in folders:
                found = self._alike(folder, candidate, deep)
                if len(found) > 1:
                    raise BadRequest(
                        f"The picture {candidate} could be {' or '.join(path.name for path in found[:3])} below "
                        f"{folder.relative_to(self._data)}. Name the file in full.",
                        reason="PICTURE_AMBIGUOUS",
                    )
                if found:
                    return self._inside(found[0])
        return None

    def _folders(self, record: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
        """Folders that a picture may be in, and True for those that it may be anywhere below."""
        for base in self._bases:
            for pattern in self._patterns:
                try:
                    filled = fill(pattern, record)
                except BadCell:
                    continue
                deep = f"/{filled}".endswith(_BELOW)
                yield base / (f"/{filled}".removesuffix(_BELOW).lstrip("/") if deep else filled), deep

    def _alike(self, folder: Path, name: str, deep: bool) -> list[Path]:
        """Files whose names differ in their letters' case, or in an ending that the name has not."""
        parent, _, last = name.rpartition("/")
        files = self._list(folder / parent if parent else folder, deep)
        exact = [path for path in files.get(last.lower(), []) if path.name == last]
        found = exact or files.get(last.lower(), [])
        if not found and Path(last).suffix.lower() not in PICTURE_ENDINGS:
            found = [path for ending in PICTURE_ENDINGS for path in files.get(last.lower() + ending, [])]
        return found

    def _list(self, folder: Path, deep: bool) -> dict[str, list[Path]]:
        """Files of a folder by their names in lower case; with those of folders below it where it is deep."""
        if (folder, deep) not in self._listed:
            found: dict[str, list[Path]] = {}
            for parent, _, names in os.walk(folder):
                for name in sorted(names):
                    found.setdefault(name.lower(), []).append(Path(parent) / name)
                if not deep:
                    break
            self._listed[(folder, deep)] = found
        return self._listed[(folder, deep)]

    def _inside(self, path: Path) -> Path | None:
        """The path itself; None for a link to a file outside of the data set."""
        if path.is_symlink() and not path.resolve().is_relative_to(self._data.resolve()):
            return None
        return path
