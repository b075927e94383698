"""Small changes of a generation, one behind the other in a file that only grows.

::

    header size  u32 LE     picture size  u32 LE
    header                  the change, as JSON
    vector                  float32 LE, where a meme goes in
    picture                 a JPEG, where it keeps one

The head is ``h_0`` = SHA-256 of the manifest, ``h_i`` = SHA-256 of ``h_(i-1)`` and the i-th entry. ``CURRENT`` names
the last, so that a bit flipped in any entry is found, and an entry that was cut off, and one that was put in.
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
# Far above any change, which tells of a meme twice at most: a text has up to 10,000 characters.
_MAX_HEADER = 1 << 20
# An entry is read in four pieces: without a large buffer each would be a call to the system.
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry.

    Attributes:
        change: Change of the entry.
        vector: float32 of shape (text_dim + picture_dim,) where a meme went in; else None.
        kept: Place of its picture in the journal; None if it has none.
    """

    change: Change
    vector: NDArray[np.float32] | None = None
    kept: StoredPicture | None = None


def frame_of(change: Change, vector: NDArray[np.float32] | None, picture: bytes | None) -> bytes:
    """An entry as it stands in the journal."""
    header = change.model_dump_json(exclude_defaults=True).encode()
    if len(header) > _MAX_HEADER:
        raise ValueError("a change is larger than any that is kept")
    data = b"" if vector is None else np.ascontiguousarray(vector, dtype="<f4").tobytes()
    return b"".join((_SIZES.pack(len(header), len(picture or b"")), header, data, picture or b""))


def picture_of_frame(frame: bytes, start: int, picture: bytes | None) -> StoredPicture | None:
    """Returns the place of the picture of an entry that begins at ``start``."""
    if not picture:
        return None
    # The picture is the last part of its entry, so that its place is counted from the end.
    return StoredPicture(
        offset=start + len(frame) - len(picture), size=len(picture), sha256=hashlib.sha256(picture).hexdigest()
    )


def next_head(head: str, frame: bytes) -> str:
    """The head with one entry more."""
    return hashlib.sha256(bytes.fromhex(head) + frame).hexdigest()


def append(path: Path, size: int, frames: bytes) -> None:
    """Writes entries behind the first ``size`` bytes, which hold; what else was there was never acknowledged.

    Raises:
        BadLibrary: There is less than that.
        OSError: The disk will not have it; what held before, holds.
    """
    new = not path.exists()
    # For its owner alone: the memes of a library are in it.
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(handle).st_size < size:
            raise damaged(f"{JOURNAL} is shorter than it was when written")
        # Else the bytes of a crashed writer would lie between what holds and what is written now.
        os.ftruncate(handle, size)
        remaining, place = memoryview(frames), size
        while remaining:
            # It may write less than it is given, as where the disk is nearly full.
            written = os.pwrite(handle, remaining, place)
            remaining, place = remaining[written:], place + written
        os.fsync(handle)
    finally:
        os.close(handle)
    # A new file outlives a power cut only once its name is on the disk too.
    if new:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read(
    path: Path, start: int, head: str, stop: int, head_then: str, dim: int, pictures_end: int
) -> Iterator[JournalEntry]:
    """The entries from ``start``, where the head is ``head``, up to ``stop``, where it must be ``head_then``.

    Their vectors have ``dim`` values, and where their pictures are is counted from ``pictures_end`` on. Whoever goes
    through them must not use any before the last has come: only then is it known that they are right.

    Raises:
        BadLibrary: They are not what they were when written.
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
    # Before anything is read by them: damaged sizes must not make us allocate gigabytes, or read on into bytes that
    # were never acknowledged.
    if header_size > _MAX_HEADER or picture_size > MAX_KEPT_BYTES or place + header_size > stop:
        raise spoilt
    # Parsed before its digest is checked: only the header says whether a vector follows, and so where the entry ends.
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
