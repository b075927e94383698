"""Pictures of a data set by the names that its rows have for them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import PICTURE_ENDINGS
from eval.datasets.shard_index import ShardIndex
from eval.datasets.verbs import BadCell, fill
from retrieval.library.picture_files import has_picture
from retrieval.library.shards import leads_out, shard_of

_BELOW = "/**"
_SHARD = ".tar"
_DEPTH = 3
"""Folders below the directory that are looked into for pictures."""
LOOKED_FOR = 50
"""Pictures that are looked for in a folder before it is passed over."""
Named = tuple[str, Mapping[str, str]]
"""Name of a picture, and the fields of its meme that may stand in the name of a folder."""


def picture_path(folder: Path, name: str) -> Path | None:
    """Returns the path of a picture; None for a name that leads out of the folder.

    A data file is no reason to read others.
    """
    if not name or leads_out(name):
        return None
    path = folder / name
    file = shard_of(path) or path
    # Links to folders people make on purpose; one in place of a picture comes with an archive.
    if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
        return None
    return path


class DatasetPictures:
    """Finder of the pictures of a split.

    Args:
        data: Directory of the data set; nothing outside of it is looked at.
        beside: Folder of the split's rows.
        patterns: Folders as a card has them; ``{field}`` is the meme's, and ``**`` at the end is any folder below. What
            ends with ``.tar`` is tar files, and what begins with a scheme (``s3://``) a folder of an object store.
    """

    def __init__(self, data: Path, beside: Path, patterns: Sequence[str]) -> None:
        places = (beside, beside.parent, data)
        # Never above the directory that was named, however near to its edge the rows lie.
        self._bases = [base for base in dict.fromkeys(places) if base == data or data in base.parents]
        remote = [one for one in patterns if "://" in one]
        # A path begins with the scheme, and not with what has to stand in every address.
        self._remote = [Path(one.replace("://", ":/", 1)) for one in remote]
        self._data = data
        self._patterns = tuple(one for one in patterns if not one.endswith(_SHARD) and one not in remote)
        self._shards = ShardIndex(data, self._bases, [one for one in patterns if one.endswith(_SHARD)])
        self._listed: dict[tuple[Path, bool], dict[str, list[Path]]] = {}
        self.folder: Path | None = None
        """Folder that names are relative to, where :meth:`find_folder` has found it."""

    @property
    def faults(self) -> Sequence[str]:
        """Members of tar files that can't be used as pictures; known once a picture was looked for there."""
        return self._shards.faults

    def find_folder(self, pictures: Iterable[Named]) -> Path | None:
        """Looks for the folder that these names are relative to; None where none of the first of them is anywhere.

        The folders of the card are looked at first, then every other, three levels deep. Where a field of the meme is
        part of the way to its picture, it is the directory of the data set.
        """
        wanted = list(islice(((name, fields) for name, fields in pictures if name), LOOKED_FOR))
        if self._shards or any("{" in pattern or "**" in pattern for pattern in self._patterns):
            self.folder = self._data if any(self.find(name, fields) for name, fields in wanted) else None
        else:
            self.folder = self._folder_of(wanted)
        # Last: a store is asked over a network, and each question may cost money.
        if self.folder is None:
            self.folder = next((f for f in self._remote if any(self._is_in(f, name) for name, _ in wanted)), None)
        return self.folder

    def _folder_of(self, wanted: Sequence[Named]) -> Path | None:
        likely = [base / pattern for base in self._bases for pattern in self._patterns]
        # Likely folders before all others, and none of them twice.
        for folder in dict.fromkeys((*likely, *_below(self._data, _DEPTH))):
            if any(self._is_in(folder, name) for name, _ in wanted):
                return folder
        # Names that no file has as they are written: in other letters, or without an ending.
        found = next((path for path in (self.find(name, fields) for name, fields in wanted) if path), None)
        return next((f for f in likely if found and found.is_relative_to(f)), self._data) if found else None

    @staticmethod
    def _is_in(folder: Path, name: str) -> bool:
        path = picture_path(folder, name)
        return path is not None and has_picture(path)

    def name_of(self, name: str, fields: Mapping[str, str]) -> str:
        """Name of a picture below the folder: the row's own where that is right, or there is no such picture.

        Raises:
            BadRequest: Several files fit.
        """
        if self.folder is None:
            return name
        path = picture_path(self.folder, name)
        # One that leads through a tar file is of that member alone, and whether it is there is seen when it is read.
        if path is None or shard_of(path) or has_picture(path):
            return name
        found = self.find(name, fields)
        return found.relative_to(self.folder).as_posix() if found and found.is_relative_to(self.folder) else name

    def find(self, name: str, fields: Mapping[str, str]) -> Path | None:
        """The file of a picture; None where it is not there.

        It is looked for under its name, then under the same name in other letters (``A.JPG``), then, for a name
        without an ending, under the name with one.

        Raises:
            BadRequest: Several files fit.
        """
        record = {f"@{field}": value for field, value in fields.items()}
        # As it is written; and with slashes, where Windows wrote it.
        for candidate in dict.fromkeys((name, name.replace("\\", "/"))):
            folders = list(self._folders(record))
            for folder, deep in folders:
                path = picture_path(folder, candidate)
                if path is not None and not deep and has_picture(path):
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
            if picture_path(self._data, candidate) and (inside := self._shards.find(candidate)):
                return picture_path(self._data, inside)
        return None

    def _folders(self, record: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
        """Folders that a picture may be in, and True for those that it may be anywhere below."""
        if self.folder is not None:
            yield self.folder, False
        for base in self._bases:
            for pattern in self._patterns:
                try:
                    filled = f"/{fill(pattern, record)}"
                except BadCell:  # no folder is of this meme
                    continue
                yield base / filled.removesuffix(_BELOW).lstrip("/"), filled.endswith(_BELOW)

    def _similar_names(self, folder: Path, name: str, deep: bool) -> list[Path]:
        """Files whose names differ in their letters' case, or in an ending that the name has not."""
        parent, _, last = name.rpartition("/")
        files = self._list(folder / parent if parent else folder, deep)
        found = files.get(last.lower(), [])
        # A name as it is written goes before names in other letters.
        found = [path for path in found if path.name == last] or found
        if not found and Path(last).suffix.lower() not in PICTURE_ENDINGS:
            found = [path for ending in PICTURE_ENDINGS for path in files.get(last.lower() + ending, [])]
        return found

    def _list(self, folder: Path, deep: bool) -> dict[str, list[Path]]:
        """Files of a folder by their names in lower case; with those of folders below it where it is deep."""
        if (folder, deep) not in self._listed:
            found: dict[str, list[Path]] = {}
            for parent, below, names in os.walk(folder):
                # In place: os.walk goes on in this order.
                below.sort()
                for name in sorted(names):
                    found.setdefault(name.lower(), []).append(Path(parent) / name)
                if not deep:
                    break
            self._listed[(folder, deep)] = found
        return self._listed[(folder, deep)]


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
