"""Append-only journal of small changes to a generation.

::

    header size  u32 LE     picture size  u32 LE
    header                  the change, as JSON
    vector                  float32 LE, where a meme goes in
    picture                 a JPEG, where it keeps one

The head is ``h_0`` = SHA-256 of the manifest, ``h_i`` = SHA-256 of ``h_(i-1)`` and the i-th entry. ``CURRENT`` names
the last, which detects flipped bits, truncated entries and inserted entries.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from retrieval.library.changes import Change, Effect
from retrieval.library.manifest import JOURNAL, MAX_KEPT_BYTES, StoredPicture
from retrieval.library.storage import damaged

_SIZES = struct.Struct("<II")
# Far above any change, which describes a meme at most twice, with texts of up to 10,000 characters.
_MAX_HEADER = 1 << 20
# An entry is read in four pieces, each of which would be a system call without a large buffer.
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry, with the vector of a meme that goes in, and the location of its picture in the journal."""

    change: Change
    vector: NDArray[np.float32] | None = None
    kept: StoredPicture | None = None


def frame_of(change: Change, vector: NDArray[np.float32] | None, picture: bytes | None) -> bytes:
    """Serialises an entry for the journal."""
    header = change.model_dump_json(exclude_defaults=True).encode()
    if len(header) > _MAX_HEADER:
        raise ValueError("a change is larger than any that is kept")
    data = b"" if vector is None else np.ascontiguousarray(vector, dtype="<f4").tobytes()
    return b"".join((_SIZES.pack(len(header), len(picture or b"")), header, data, picture or b""))


def picture_of_frame(frame: bytes, start: int, picture: bytes | None) -> StoredPicture | None:
    """Returns the location of the picture in an entry that begins at ``start``."""
    if not picture:
        return None
    # The picture is the last part of its entry, so its offset is computed from the end.
    return StoredPicture(
        offset=start + len(frame) - len(picture), size=len(picture), sha256=hashlib.sha256(picture).hexdigest()
    )


def next_head(head: str, frame: bytes) -> str:
    """Returns the head after one more entry."""
    return hashlib.sha256(bytes.fromhex(head) + frame).hexdigest()


def append(path: Path, size: int, frames: bytes) -> None:
    """Writes entries after the first ``size`` bytes, which are committed; anything beyond was never acknowledged.

    Raises:
        BadLibrary: The file is shorter.
        OSError: The entries can't be written; committed ones are unchanged.
    """
    new = not path.exists()
    # Readable only by its owner, as it contains memes of the library.
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(handle).st_size < size:
            raise damaged(f"{JOURNAL} is shorter than it was when written")
        # Otherwise bytes of a crashed writer would remain between committed and new entries.
        os.ftruncate(handle, size)
        remaining, place = memoryview(frames), size
        while remaining:
            # pwrite may write only a part, as when the disk is nearly full.
            written = os.pwrite(handle, remaining, place)
            remaining, place = remaining[written:], place + written
        os.fsync(handle)
    finally:
        os.close(handle)
    # A new file survives a power cut only once its directory entry is synced too.
    if new:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read(
    path: Path, start: int, head: str, stop: int, head_then: str, dim: int, pictures_end: int
) -> Iterator[JournalEntry]:
    """Yields the entries from ``start``, where the head is ``head``, to ``stop``, where it must be ``head_then``.

    Vectors have ``dim`` values, and picture offsets are counted from ``pictures_end``. Callers must not use any entry
    before the last has been read, as only then all are verified.

    Raises:
        BadLibrary: The entries were altered.
    """
    try:
        with path.open("rb", buffering=_BUFFER) as file:
            file.seek(start)
            place = start
            while place < stop:
                frame, entry = _entry(file.read, place, stop=stop, dim=dim, pictures_end=pictures_end)
                head = next_head(head, frame)
                place += len(frame)
                yield entry
    except OSError as error:
        raise damaged(f"{JOURNAL} can't be read") from error
    if head != head_then:
        raise damaged(f"{JOURNAL} is not what it was when written")


def _entry(
    take: Callable[[int], bytes], place: int, stop: int, dim: int, pictures_end: int
) -> tuple[bytes, JournalEntry]:
    def some(size: int) -> bytes:
        data = take(size)
        if len(data) != size:
            raise damaged(f"{JOURNAL} is shorter than it was when written")
        return data

    spoilt = damaged(f"{JOURNAL} is not what it was when written")
    sizes = some(_SIZES.size)
    header_size, picture_size = _SIZES.unpack(sizes)
    # Checked before use: damaged sizes must not cause huge allocations, or reads of bytes that were never acknowledged.
    if header_size > _MAX_HEADER or picture_size > MAX_KEPT_BYTES or place + header_size > stop:
        raise spoilt
    # Parsed before its digest is checked, as only the header says if a vector follows, and so where the entry ends.
    header = some(header_size)
    try:
        change = Change.model_validate_json(header)
    except ValidationError as error:
        raise spoilt from error
    data = some(4 * dim) if change.effect is Effect.APPEND else b""
    picture = some(picture_size)
    frame = b"".join((sizes, header, data, picture))
    if place + len(frame) > stop:
        raise spoilt
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32) if data else None
    return frame, JournalEntry(change, vector, picture_of_frame(frame, pictures_end + place, picture))
