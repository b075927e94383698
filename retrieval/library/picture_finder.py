"""Finds the pictures of a data set by the names in its rows."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PureWindowsPath

from court.errors import BadRequest
from retrieval.library.cells import BadCell, fill

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_BELOW = "/**"
_DEPTH = 3
"""Levels of folders below the directory that are searched for pictures."""
LOOKED_FOR = 50
"""Number of pictures that are tried in a folder before it is ruled out."""
Named = tuple[str, Mapping[str, str]]
"""Name of a picture, and the fields of its meme that may be used in a folder's name."""


def leads_out(name: str) -> bool:
    """True if a file name is absolute (here or on Windows) or contains ``..``."""
    # Checked lexically, so that nothing outside is touched. The fast path comes first: nearly all names take it.
    if name.isprintable() and ".." not in name and "\\" not in name and ":" not in name and name[:1] != "/":
        return False
    windows = PureWindowsPath(name)
    return "\0" in name or name.startswith("/") or bool(windows.drive or windows.root) or ".." in windows.parts


def plain_name(name: str) -> str:
    """A file's name without the differences of case and Unicode normalisation that copies of it may have."""
    # macOS stores letters and accents decomposed, other systems composed.
    return unicodedata.normalize("NFC", name).casefold()


def picture_path(folder: Path, name: str) -> Path | None:
    """Returns the path of a picture; None for a name that leads out of the folder.

    A data file must not be able to make the program read other files.
    """
    if not name or leads_out(name):
        return None
    path = folder / name
    # Users link folders on purpose; a link in place of a picture comes with an archive.
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        return None
    return path


class DatasetPictures:
    """Finder of the pictures of a split.

    Args:
        data: Directory of the data set; nothing outside it is read.
        rows: Folder of the split's rows.
        patterns: Folders as written in a card; ``{field}`` is replaced with the meme's field, and ``**`` at the end
            matches any folder below.
    """

    def __init__(self, data: Path, rows: Path, patterns: Sequence[str]) -> None:
        places = (rows, rows.parent, data)
        # Never above the directory that the user named, even if the rows are at its top.
        self._bases = [base for base in dict.fromkeys(places) if base == data or data in base.parents]
        self._data = data
        self._patterns = tuple(patterns)
        self._listed: dict[tuple[Path, bool], dict[str, list[Path]]] = {}
        self.folder: Path | None = None
        """Folder that names are relative to, once :meth:`find_folder` has found it."""

    def find_folder(self, pictures: Iterable[Named]) -> Path | None:
        """Finds the folder that these names are relative to; None if none of the first of them exists anywhere.

        The folders of the card are searched first, then every other, three levels deep. If the path to a picture
        depends on a field of its meme, the result is the directory of the data set.
        """
        wanted = list(islice(((name, fields) for name, fields in pictures if name), LOOKED_FOR))
        if any("{" in pattern or "**" in pattern for pattern in self._patterns):
            self.folder = self._data if any(self.find(name, fields) for name, fields in wanted) else None
        else:
            self.folder = self._folder_of(wanted)
        return self.folder

    def _folder_of(self, wanted: Sequence[Named]) -> Path | None:
        likely = [base / pattern for base in self._bases for pattern in self._patterns]
        # Likely folders before all others, and none of them twice.
        for folder in dict.fromkeys((*likely, *_below(self._data, _DEPTH))):
            if any(self._is_in(folder, name) for name, _ in wanted):
                return folder
        # Names that match no file exactly: they differ in case or lack an ending.
        found = next((path for path in (self.find(name, fields) for name, fields in wanted) if path), None)
        return next((f for f in likely if found and found.is_relative_to(f)), self._data) if found else None

    @staticmethod
    def _is_in(folder: Path, name: str) -> bool:
        path = picture_path(folder, name)
        return path is not None and path.is_file()

    def name_of(self, name: str, fields: Mapping[str, str]) -> str:
        """Name of a picture below the folder; the row's own if that is right or no picture matches.

        Raises:
            BadRequest: Several files match.
        """
        if self.folder is None:
            return name
        path = picture_path(self.folder, name)
        if path is None or path.is_file():
            return name
        found = self.find(name, fields)
        return found.relative_to(self.folder).as_posix() if found and found.is_relative_to(self.folder) else name

    def find(self, name: str, fields: Mapping[str, str]) -> Path | None:
        """The file of a picture; None if missing.

        Tries the exact name, then the name ignoring case (``A.JPG``), then, for a name without an ending, the name with
        any ending.

        Raises:
            BadRequest: Several files match.
        """
        record = {f"@{field}": value for field, value in fields.items()}
        # As written, then with slashes, in case it was written on Windows.
        for candidate in dict.fromkeys((name, name.replace("\\", "/"))):
            folders = list(self._folders(record))
            for folder, deep in folders:
                path = picture_path(folder, candidate)
                if path is not None and not deep and path.is_file():
                    return path
            for folder, deep in folders if picture_path(self._data, candidate) else ():
                found = self._similar_names(folder, candidate, deep)
                if len(found) > 1:
                    raise BadRequest(
                        f"The picture {candidate} could be any of {', '.join(path.name for path in found[:3])} below "
                        f"{folder.relative_to(self._data).as_posix()}. Name the file in full.",
                        reason="PICTURE_AMBIGUOUS",
                    )
                if found:
                    return picture_path(found[0].parent, found[0].name)
        return None

    def _folders(self, record: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
        """Folders that a picture may be in, each with True if all of its subfolders count too."""
        if self.folder is not None:
            yield self.folder, False
        for base in self._bases:
            for pattern in self._patterns:
                try:
                    filled = f"/{fill(pattern, record)}"
                except BadCell:  # the folder does not exist for this meme
                    continue
                yield base / filled.removesuffix(_BELOW).lstrip("/"), filled.endswith(_BELOW)

    def _similar_names(self, folder: Path, name: str, deep: bool) -> list[Path]:
        """Files whose names differ only in case, or in an ending that the name lacks."""
        parent, _, last = name.rpartition("/")
        files = self._list(folder / parent if parent else folder, deep)
        found = files.get(plain_name(last), [])
        # Exact names take precedence over names that differ in case.
        found = [path for path in found if path.name == last] or found
        if not found and Path(last).suffix.lower() not in PICTURE_ENDINGS:
            found = [path for ending in PICTURE_ENDINGS for path in files.get(plain_name(last) + ending, [])]
        return found

    def _list(self, folder: Path, deep: bool) -> dict[str, list[Path]]:
        """Files of a folder by plain name; if deep, including its subfolders."""
        if (folder, deep) not in self._listed:
            found: dict[str, list[Path]] = {}
            for parent, below, names in os.walk(folder):
                # Sorted in place, because os.walk continues in this order.
                below.sort()
                for name in sorted(names):
                    found.setdefault(plain_name(name), []).append(Path(parent) / name)
                if not deep:
                    break
            self._listed[(folder, deep)] = found
        return self._listed[(folder, deep)]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth == 0:
        return
    try:
        # Links are not followed: they may lead out of the directory or form a cycle. Sorted, so that the same folder is
        # found on every file system.
        below = sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for each in below:
        yield from _below(each, depth - 1)
