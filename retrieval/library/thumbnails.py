"""Thumbnails that a library stores of its memes, to be shown beside a verdict.

Each is the first representative frame, scaled to at most 512 pixels on the longer side and re-encoded as JPEG, so that
nothing of the original file but the visible pixels is kept. They are concatenated in one file; the memes hold the
offsets.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import weakref
from pathlib import Path
from typing import Protocol, Self

from PIL import Image

from court.meme import Frame
from retrieval.library.manifest import MAX_KEPT_BYTES, StoredPicture
from retrieval.library.storage import GENERATIONS, damaged

SIDE = 512
"""Longest side of a picture that is kept, in pixels."""


def shrink(frame: Frame) -> bytes:
    """The frame as a thumbnail, in JPEG."""
    # Safe to open: these bytes are our own encoding of what the sandboxed reader decoded.
    with Image.open(io.BytesIO(frame.png), formats=["PNG"]) as opened:
        picture = opened.convert("RGB")
    # No reducing gap: it would apply a box filter first.
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
    jpeg = io.BytesIO()
    # Built from the bare pixels, so that no metadata is carried over. No subsampling: captions have coloured edges.
    bare = Image.frombytes("RGB", picture.size, picture.tobytes())
    bare.save(jpeg, "JPEG", quality=90, subsampling="4:4:4", optimize=True)
    return jpeg.getvalue()


def frame_of(data: bytes) -> Frame:
    """Decodes a stored thumbnail to the frame that is shown.

    Raises:
        BadLibrary: The bytes are not a thumbnail written by :func:`shrink`.
    """
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as opened:
            # Checked before anything is decoded: a library can be written by hand.
            if max(opened.size) > SIDE:
                raise damaged("a picture in it is larger than any that is kept")
            picture = opened.convert("RGB")
    # Pillow raises SyntaxError for some truncated or broken files.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise damaged("a picture in it can't be read") from error
    png = io.BytesIO()
    # Fast rather than small: it is encoded again each time it is shown.
    picture.save(png, "PNG", compress_level=1)
    return Frame(png.getvalue(), picture.width, picture.height)


class ThumbnailStore(Protocol):
    """Store of the library's thumbnails."""

    def read(self, stored: StoredPicture) -> bytes:
        """Reads a thumbnail. Raises BadLibrary if it was altered; OSError if it can't be read."""


class PictureFile:
    """An open file of thumbnails, which stays readable after the next write has unlinked it.

    Thread-safe. It is only closed with the last reference to it: a thread may still be reading after its caller has
    given up.
    """

    def __init__(self, handle: int) -> None:
        """Takes ownership of the file descriptor."""
        self._handle = handle
        weakref.finalize(self, os.close, handle)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a file of thumbnails. Raises OSError."""
        return cls(os.open(path, os.O_RDONLY))

    @property
    def size(self) -> int:
        """Size of the file, in bytes."""
        return os.fstat(self._handle).st_size

    def read(self, stored: StoredPicture) -> bytes:
        """Reads a thumbnail.

        Raises:
            BadLibrary: The picture was altered.
            OSError: The picture can't be read.
        """
        # Not seek and read: threads would move each other's position.
        data = os.pread(self._handle, stored.size, stored.offset)
        # The digest also detects a short read from a truncated file.
        if hashlib.sha256(data).hexdigest() != stored.sha256:
            raise damaged("a picture in it is not what it was when written")
        return data

    def sha256(self) -> str:
        """SHA-256 of the whole file, in hex. Raises OSError."""
        digest, place = hashlib.sha256(), 0
        while block := os.pread(self._handle, MAX_KEPT_BYTES, place):
            digest.update(block)
            place += len(block)
        return digest.hexdigest()


class JoinedPictures:
    """The thumbnails of a generation followed by those in its journal, with offsets as if in one file."""

    def __init__(self, file: PictureFile, journal: PictureFile | None = None) -> None:
        """``journal`` may be None if the journal holds no thumbnail."""
        self._file = file
        self._journal = journal
        self._size = file.size

    def read(self, stored: StoredPicture) -> bytes:
        """Reads a picture as :meth:`PictureFile.read`."""
        if stored.offset < self._size:
            return self._file.read(stored)
        if self._journal is None:
            raise damaged("a picture in it is not where it is said to be")
        return self._journal.read(stored.model_copy(update={"offset": stored.offset - self._size}))


class ThumbnailWriter(PictureFile):
    """Thumbnails of a library being built, in an unnamed file that disappears with the process."""

    def __init__(self, root: Path) -> None:
        """Opens a file on the disk of the library in ``root``, which need not exist yet. Raises OSError."""
        there = next(path for path in (root / GENERATIONS, root, *root.absolute().parents) if path.is_dir())
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            # Duplicated because the first descriptor closes with the block, and the file has no name to reopen.
            super().__init__(os.dup(file.fileno()))
        self._end = 0

    def append(self, data: bytes) -> StoredPicture:
        """Appends a picture and returns its place. Raises OSError."""
        if len(data) > MAX_KEPT_BYTES:
            raise ValueError(f"a picture of {len(data)} bytes is larger than any that is kept")
        remaining = memoryview(data)
        # pwrite may write less than requested, for example if the disk is nearly full.
        while remaining:
            remaining = remaining[os.pwrite(self._handle, remaining, self._end + len(data) - len(remaining)) :]
        stored = StoredPicture(offset=self._end, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        self._end += len(data)
        return stored
