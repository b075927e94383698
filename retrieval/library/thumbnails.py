"""The pictures that a library keeps of its memes, small, to be shown beside a verdict.

Of each the first representative frame, at most 512 pixels long, as a JPEG that we wrote: nothing of the file that it
came from but what is seen. They lie one behind the other in one file; where, stands with the memes.
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
    """The frame as it is kept."""
    # These bytes are our own encoding of what was decoded under guard, so that opening them here is safe.
    with Image.open(io.BytesIO(frame.png), formats=["PNG"]) as opened:
        picture = opened.convert("RGB")
    # No reducing gap: it would put a box filter before ours.
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
    jpeg = io.BytesIO()
    # From the bare pixels, so that nothing else comes along. Without subsampling: captions have coloured edges.
    bare = Image.frombytes("RGB", picture.size, picture.tobytes())
    bare.save(jpeg, "JPEG", quality=90, subsampling="4:4:4", optimize=True)
    return jpeg.getvalue()


def frame_of(data: bytes) -> Frame:
    """A picture that was kept, as it is shown.

    Raises:
        BadLibrary: The bytes are no picture of ours.
    """
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as opened:
            # Before anything is decoded: a library can be written by hand.
            if max(opened.size) > SIDE:
                raise damaged("a picture in it is larger than any that is kept")
            picture = opened.convert("RGB")
    # SyntaxError is what Pillow raises for some files that are cut or broken.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise damaged("a picture in it can't be read") from error
    png = io.BytesIO()
    # Quick rather than small: it is made anew each time it is shown.
    picture.save(png, "PNG", compress_level=1)
    return Frame(png.getvalue(), picture.width, picture.height)


class ThumbnailStore(Protocol):
    """Store of the library's pictures."""

    def read(self, stored: StoredPicture) -> bytes:
        """The picture that stands there. Raises BadLibrary if it is not what it was; OSError if it can't be read."""
        ...


class PictureFile:
    """A file of pictures, held open: what has been opened can be read after the next write has removed its name.

    Safe to use from several threads. It is closed when nobody holds it any more, and not before: a thread may still be
    reading when whoever started it has given up.
    """

    def __init__(self, handle: int) -> None:
        """Takes the handle over."""
        self._handle = handle
        weakref.finalize(self, os.close, handle)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises OSError."""
        return cls(os.open(path, os.O_RDONLY))

    @property
    def size(self) -> int:
        """In bytes."""
        return os.fstat(self._handle).st_size

    def read(self, stored: StoredPicture) -> bytes:
        """The picture that stands there.

        Raises:
            BadLibrary: The picture was altered.
            OSError: The picture can't be read.
        """
        # Not seek and read: threads would move each other's position.
        data = os.pread(self._handle, stored.size, stored.offset)
        # A read that came up short, where the file was cut, has another digest too.
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
    """The pictures of a generation and, as if they lay behind them, those in its journal."""

    def __init__(self, file: PictureFile, journal: PictureFile | None = None) -> None:
        """``journal`` may be None where no picture lies there."""
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
    """Pictures on their way into a library: a file without a name, which is gone when the process is."""

    def __init__(self, root: Path) -> None:
        """Opens one on the disk that the library in ``root`` is, or will be, on. Raises OSError."""
        there = next(path for path in (root / GENERATIONS, root, *root.absolute().parents) if path.is_dir())
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            # A second handle: the first closes with the block, and the file has no name to open it by again.
            super().__init__(os.dup(file.fileno()))
        self._end = 0

    def append(self, data: bytes) -> StoredPicture:
        """Appends a picture and returns its place. Raises OSError."""
        if len(data) > MAX_KEPT_BYTES:
            raise ValueError(f"a picture of {len(data)} bytes is larger than any that is kept")
        remaining = memoryview(data)
        # pwrite may write less than it is given, as where the disk is nearly full.
        while remaining:
            remaining = remaining[os.pwrite(self._handle, remaining, self._end + len(data) - len(remaining)) :]
        stored = StoredPicture(offset=self._end, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        self._end += len(data)
        return stored
