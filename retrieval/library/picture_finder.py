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
_COMPARED = 5
"""Number of pictures of a folder that are compared with those of the same name elsewhere."""
Named = tuple[str, Mapping[str, str]]
"""Name of a picture, and the fields of its meme that may be used in a folder's name."""


ADDRESS = "its picture is an address: download the pictures, and name their files"


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
        self._subfolders: dict[Path, list[str]] = {}
        self.folder: Path | None = None
        """Folder that names are relative to, once :meth:`find_folder` has found it."""
        self.named = False
        """True if rows name pictures, whether or not these are there."""

    def find_folder(self, pictures: Iterable[Named]) -> Path | None:
        """Finds the folder that these names are relative to; None if none of the first of them exists anywhere.

        The folders of the card are searched first, then every other, three levels deep. If the path to a picture
        depends on a field of its meme, the result is the directory of the data set.
        """
        wanted = list(islice(((name, fields) for name, fields in pictures if name), LOOKED_FOR))
        self.named = bool(wanted)
        if any("{" in pattern or "**" in pattern for pattern in self._patterns):
            self.folder = self._data if any(self.find(name, fields) for name, fields in wanted) else None
        else:
            self.folder = self._folder_of(wanted)
        return self.folder

    def _folder_of(self, wanted: Sequence[Named]) -> Path | None:
        names = [name for name, _ in wanted]
        # Folders that a card names, nearest to the rows first; all others only if the pictures are in none of these.
        likely = [[base / pattern for pattern in self._patterns] for base in self._bases]
        below = list(_below(self._data, _DEPTH))
        # Exact names in all folders before names that differ in case or in how accents are written, or lack an ending.
        for find_in in (self._exact, self._similar):
            for folders in (*likely, below):
                for folder in dict.fromkeys(folders):
                    paths = ((name, find_in(folder, name)) for name in names)
                    # No more than are compared, so that a later name in doubt doesn't hide the folder of the others.
                    found = list(islice(((name, path) for name, path in paths if path is not None), _COMPARED))
                    if found:
                        self._refuse_others(found, folder, [one for one in folders if one != folder])
                        return folder
        return None

    def _refuse_others(self, found: Sequence[tuple[str, Path]], folder: Path, others: Iterable[Path]) -> None:
        """Raises BadRequest if another folder has a different picture of a name: that of another split, perhaps."""
        for other in dict.fromkeys(others):
            for name, path in found:
                same_name = self._exact(other, name)
                if same_name is not None and same_name.resolve() != path.resolve() and _differ(path, same_name):
                    places = " and ".join(self._place_of(one) for one in (folder, other))
                    raise BadRequest(
                        f"The picture {name} is in {places}, and the two differ. Name the folder: --pictures "
                        'FOLDER for a table; in a card, pictures = ["FOLDER"], with {split} for the name of the split.',
                        reason="PICTURE_AMBIGUOUS",
                    )

    def _place_of(self, path: Path) -> str:
        return path.relative_to(self._data).as_posix()

    @staticmethod
    def _exact(folder: Path, name: str) -> Path | None:
        path = picture_path(folder, name)
        return path if path is not None and path.is_file() else None

    def _similar(self, folder: Path, name: str) -> Path | None:
        if picture_path(folder, name) is None:
            return None
        return self._only(self._similar_names(folder, name.replace("\\", "/"), deep=False), name)

    def _only(self, found: Sequence[Path], name: str) -> Path | None:
        """The only file of a name, or the first of equal ones; raises BadRequest if files differ, and names them."""
        if any(_differ(found[0], other) for other in found[1:]):
            raise BadRequest(
                f"The picture {name} could be any of {', '.join(map(self._place_of, found[:3]))}. Name the file in "
                "full.",
                reason="PICTURE_AMBIGUOUS",
            )
        return found[0] if found else None

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
                if (similar := self._only(self._similar_names(folder, candidate, deep), candidate)) is not None:
                    return picture_path(similar.parent, similar.name)
        return None

    def find_tail(self, name: str) -> Path | None:
        """The file of a picture by its name, or by its name without folders of another machine before it."""
        parts = [part for part in name.replace("\\", "/").split("/") if part]
        tails = ("/".join(parts[first:]) for first in range(len(parts)))
        return next((path for tail in tails if (path := self.find(tail, {})) is not None), None)

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
        for part in filter(None, parent.split("/")):
            folder = self._subfolder(folder, part)
        files = self._list(folder, deep)
        found = files.get(plain_name(last), [])
        # Exact names take precedence over names that differ in case.
        found = [path for path in found if path.name == last] or found
        if not found and Path(last).suffix.lower() not in PICTURE_ENDINGS:
            found = [path for ending in PICTURE_ENDINGS for path in files.get(plain_name(last) + ending, [])]
        return found

    def _subfolder(self, folder: Path, name: str) -> Path:
        """The folder of this name, or the only one whose name differs from it as those of pictures may."""
        if name in (".", "..") or (folder / name).is_dir():
            return folder / name
        if folder not in self._subfolders:
            self._subfolders[folder] = [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
        found = [one for one in self._subfolders[folder] if plain_name(one) == plain_name(name)]
        return folder / (found[0] if len(found) == 1 else name)

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


def _differ(one: Path, other: Path) -> bool:
    """True if two files are different pictures."""
    return one.stat().st_size != other.stat().st_size or one.read_bytes() != other.read_bytes()


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
