"""Reads a generation without trusting it: files are checked against the manifest, and the manifest by ``CURRENT``.

FAISS and numpy read flipped bits without an error, so the digests are checked first; then the contents are compared
with the manifest, since a manifest can be written by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from court.errors import BadLibrary
from retrieval.embed.encoder import UNIT_TOLERANCE, EncoderIdentity
from retrieval.library.manifest import (
    BINDING,
    FLAGS,
    FORMAT,
    HAS_PICTURE,
    HAS_TEXT,
    MANIFEST,
    MEMES,
    PICTURES,
    VECTORS,
    Counts,
    FileEntry,
    Manifest,
)
from retrieval.library.meme_table import MemeTable
from retrieval.library.storage import Pointer, damaged
from retrieval.library.thumbnails import PictureFile

FILES = frozenset({VECTORS, FLAGS, MEMES, PICTURES})
"""Of a generation, as its manifest lists them."""
_BLOCK = 8192
"""Rows checked at once."""
_READ = 4 << 20
"""Bytes read at once."""

Progress = Callable[[int, int], None]
"""Told how many bytes of how many were checked."""


class Check(StrEnum):
    """Extent to which a library is read before use."""

    WHOLE = "whole"
    """Every byte but those of the pictures."""
    LATER = "later"
    """What says how large the files are and what is in them; the vectors and the table of memes when
    :meth:`retrieval.library.library.Library.check` is called. For a library of gigabytes that is to answer at once."""


def read_manifest(directory: Path, pointer: Pointer) -> Manifest:
    """The manifest that ``CURRENT`` vouches for. Raises BadLibrary if it is damaged or of another format."""
    try:
        raw = (directory / MANIFEST).read_bytes()
    except OSError as error:
        raise damaged(f"{MANIFEST} of generation {pointer.generation} can't be read") from error
    # Checked before parsing, so that the parser only sees what was written.
    if hashlib.sha256(raw).hexdigest() != pointer.manifest_sha256:
        raise damaged(f"{MANIFEST} of generation {pointer.generation} is not what it was when written")
    try:
        # The format first: another one has other fields and would otherwise be reported as damaged.
        content = json.loads(raw)
        stated = content.get("format") if isinstance(content, dict) else None
        if isinstance(stated, int) and stated != FORMAT:
            raise _other_format(stated)
        manifest = Manifest.model_validate_json(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{MANIFEST} can't be understood") from error
    # These names become paths, and a manifest can be written by hand: it must not open any other file.
    if manifest.files.keys() != FILES:
        raise damaged(f"{MANIFEST} does not list the files {', '.join(sorted(FILES))}")
    return manifest


def _other_format(stated: int) -> BadLibrary:
    if stated > FORMAT:
        return BadLibrary(
            f"The precedent library has format {stated}; this version of MemeCourt reads format {FORMAT}. "
            "Upgrade MemeCourt, or build the library again with this version.",
            reason="LIBRARY_TOO_NEW",
        )
    return BadLibrary(
        f"The precedent library has format {stated}, which is older than format {FORMAT} that this version of "
        "MemeCourt reads. Build it again from its sources.",
        reason="LIBRARY_TOO_OLD",
    )


@dataclass(frozen=True, eq=False)
class Base:
    """The files of a generation, open.

    Attributes:
        rows: float32 of shape (memes, text_dim + picture_dim), ``[t|g]``, memory-mapped, read-only.
        flags: uint8 of shape (memes,): see :mod:`retrieval.library.manifest`.
    """

    rows: NDArray[np.float32]
    flags: NDArray[np.uint8]
    table: MemeTable
    pictures: PictureFile

    # Cached: a search needs it for every meme that it reads.
    @cached_property
    def size(self) -> int:
        """Number of rows."""
        return int(self.flags.size)

    @cached_property
    def copies(self) -> Mapping[str, Sequence[int]]:
        """Rows of binding memes by :attr:`LabelledMeme.copy_key`. Reads all of them; raises BadLibrary."""
        found = defaultdict[str, list[int]](list)
        rows = np.flatnonzero(self.flags & BINDING).tolist()
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            for row, meme in zip(some, self.table.read(some), strict=True):
                found[meme.copy_key].append(row)
        return dict(found)

    def row_of(self, id_: str) -> int | None:
        """Returns the row of a meme; None if there is none. Raises BadLibrary."""
        return self.table.row_of(id_)


def read_base(directory: Path, manifest: Manifest, check: Check, progress: Progress | None = None) -> Base:
    """Opens the files of a generation, with the vectors memory-mapped.

    Raises:
        BadLibrary: The generation was altered.
    """
    # Of the thumbnails only the file size and the offsets are checked: they take ten times as many bytes as all else,
    # and each is checked against its own digest when it is read.
    # Sizes first: the check is free and finds truncated files before gigabytes of them are hashed.
    for name, entry in manifest.files.items():
        _check_size(directory / name, entry)
    # Always checked, even if the rest is deferred: the first search already uses the flags, and they are small.
    _check_digest(directory / FLAGS, manifest.files[FLAGS])
    if check is Check.WHOLE:
        check_digests(directory, manifest, progress)
    flags = _read_array(directory / FLAGS)
    if flags.dtype != np.uint8 or flags.ndim != 1:
        raise damaged(f"{FLAGS} is not a row of flags")
    try:
        pictures = PictureFile.open(directory / PICTURES)
    except OSError as error:
        raise damaged(f"{PICTURES} can't be read") from error
    # Flags are copied into memory because every search uses them; vectors stay mapped.
    base = Base(_read_array(directory / VECTORS), np.array(flags), MemeTable(directory / MEMES), pictures)
    base.flags.flags.writeable = False
    problem = _counts_problem(base, manifest) or shape_problem(base.rows, base.size, manifest.encoder)
    # Last, because it relies on shapes and counts.
    if problem is None and check is Check.WHOLE:
        problem = content_problem(base, manifest)
    if problem:
        raise damaged(problem)
    return base


def check_digests(directory: Path, manifest: Manifest, progress: Progress | None = None) -> None:
    """Checks the digests of vectors and memes, which also loads them into the page cache. Raises BadLibrary."""
    names = (VECTORS, MEMES)
    total, before = sum(manifest.files[name].size for name in names), 0
    for name in names:
        _check_digest(directory / name, manifest.files[name], progress and _shifted(progress, before, total))
        before += manifest.files[name].size


def content_problem(base: Base, manifest: Manifest) -> str | None:
    """Describes the first contradiction between the files of a generation; None if there is none. Raises BadLibrary."""
    return problem_of(base.rows, base.flags, manifest.encoder) or base.table.check(
        base.flags, manifest.files[PICTURES].size
    )


def shape_problem(rows: NDArray[np.float32], size: int, encoder: EncoderIdentity) -> str | None:
    """Describes why an array can't be the rows of ``size`` memes; None if it can."""
    if rows.dtype != np.float32 or not rows.flags.c_contiguous or rows.shape != (size, encoder.dim):
        return f"{VECTORS} is not {size} rows of {encoder.dim} values"
    return None


def problem_of(
    rows: NDArray[np.float32], flags: NDArray[np.uint8], encoder: EncoderIdentity, first: int = 0
) -> str | None:
    """Describes why rows can't belong to memes with these flags; None if they can."""
    problem = shape_problem(rows, flags.size, encoder)
    if problem:
        return problem
    has = np.stack([flags & HAS_TEXT, flags & HAS_PICTURE], axis=1) != 0
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        for half, part in enumerate((block[:, : encoder.text_dim], block[:, encoder.text_dim :])):
            # float32 sums are exact enough here and need no copy. Overflow gives values that are not finite and compare
            # as false, so this finds NaN and infinity too.
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.einsum("ij,ij->i", part, part)
            right = np.abs(np.sqrt(squares) - has[start : start + _BLOCK, half]) <= UNIT_TOLERANCE
            if not right.all():
                row = first + start + int(np.argmin(right))
                return f"row {row} of {VECTORS} is not a vector of length 1 or 0 as it must be"
    return None


def _counts_problem(base: Base, manifest: Manifest) -> str | None:
    if not base.size:
        return f"{FLAGS} is empty"
    if not (base.flags & (HAS_TEXT | HAS_PICTURE)).all():
        return f"{FLAGS} holds a meme without text and picture"
    if Counts.of(base.flags, manifest.counts.kept_bytes) != manifest.counts:
        return f"{FLAGS} does not hold the memes that {MANIFEST} counts"
    return None


def _shifted(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _check_size(path: Path, entry: FileEntry) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise damaged(f"{path.name} can't be read") from error
    if size != entry.size:
        raise damaged(f"{path.name} has {size:,} bytes instead of {entry.size:,}")


def _check_digest(path: Path, entry: FileEntry, progress: Callable[[int], None] | None = None) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        # Unbuffered: blocks are large, and a buffer would only copy each once more.
        with path.open("rb", buffering=0) as file:
            while block := file.read(_READ):
                digest.update(block)
                done += len(block)
                if progress is not None:
                    progress(done)
    except OSError as error:
        raise damaged(f"{path.name} can't be read") from error
    if digest.hexdigest() != entry.sha256:
        raise damaged(f"{path.name} is not what it was when written")


def _read_array(path: Path) -> NDArray[Any]:
    try:
        # open_memmap and not np.load: it only reads .npy, and refuses object arrays, which are pickles.
        mapped = npy.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise damaged(f"{path.name} is no plain array") from error
    # Viewed as a plain array: taking a row of a np.memmap costs several times as much.
    rows: NDArray[Any] = mapped.view(np.ndarray)
    return rows
