"""Picture storage: in a table of the database, or in an object store.

In an object store, each frame is an object named by the digest of the picture's pixels, in a directory or anywhere that
`obstore` supports (``s3://…``). A picture exists once its first frame does, which is written last and removed last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url
from sqlalchemy import Connection, bindparam, select

from court.errors import BadRequest, Unavailable
from court.events import MemeIdentity
from court.meme import Frame, Picture, PictureFormat
from serving.docket.store import tables as t
from serving.docket.store.tables import insert_into
from serving.docket.store.transactions import Batch, Rank

T = TypeVar("T")

_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")  # a digest becomes a path: no dots, no slashes
_log = logging.getLogger(__name__)

_THREADS = 4  # each mostly waits for the disk or a server

# Built once: building a statement takes longer than running it.
_FRAMES = select(t.pictures.c.png).where(t.pictures.c.pixels_sha256 == bindparam("pixels")).order_by(t.pictures.c.place)


class ObjectPictures:
    """Stores frames of pictures in an object store; blocking calls run in its own threads."""

    def __init__(self, store: ObjectStore, root: Path | None) -> None:
        """Uses an object store; ``root`` is its directory, or None if it is remote."""
        self._store = store
        self._root = root
        self._threads = ThreadPoolExecutor(_THREADS, "pictures")

    @classmethod
    def open(cls, address: Path | str) -> Self:
        """Opens a directory, which is created if missing, or the object store of a URL.

        Raises:
            BadRequest: The kind of URL is not supported.
            Unavailable: The directory can't be created.
        """
        try:
            if isinstance(address, Path):
                address.mkdir(mode=0o700, parents=True, exist_ok=True)
                return cls(LocalStore(address), address)
            return cls(from_url(address), None)
        except (BaseError, OSError, ValueError):
            if isinstance(address, Path):
                raise _unavailable() from None
            # Without its cause, since an address may contain a key.
            raise BadRequest(
                "The place for pictures is a directory, or an address such as s3://BUCKET/FOLDER.", field="pictures"
            ) from None

    async def keep(self, pixels_sha256: str, frames: Sequence[bytes]) -> None:
        """Stores frames durably; idempotent. Raises Unavailable."""
        await self._run(lambda: self.keep_now([(pixels_sha256, frames)]))

    async def frames(self, pixels_sha256: str) -> list[bytes]:
        """Returns the frames of a picture; none if it is missing. Raises Unavailable."""
        return await self._run(lambda: self.frames_now(pixels_sha256))

    def close(self) -> None:
        """Waits for pending writes."""
        self._threads.shutdown()

    def keep_now(self, pictures: Sequence[tuple[str, Sequence[bytes]]]) -> None:
        """Stores many pictures in the calling thread, as :meth:`keep`."""
        self._find()
        put = [
            _path(pixels, index)
            for pixels, frames in pictures
            # Named by its pixels, so that an existing object is the same picture.
            if not self._there(_path(pixels, 0))
            # The first frame last: if it exists, the picture is complete.
            for index, frame in reversed([*enumerate(frames)])
            if self._store.put(_path(pixels, index), frame)
        ]
        # A local store does not flush by itself. First the files, then their directories.
        if self._root is not None and put:
            for path in put:
                flush(self._root / path)
            for folder in {(self._root / path).parent for path in put} | {self._root}:
                flush(folder)

    def frames_now(self, pixels_sha256: str) -> list[bytes]:
        """Reads a picture's frames in the calling thread, as :meth:`frames`."""
        frames: list[bytes] = []
        self._find()
        # The digest in an altered record may be any text, which must not become a path.
        while _NAME.fullmatch(pixels_sha256):
            try:
                frames.append(bytes(self._store.get(_path(pixels_sha256, len(frames))).bytes()))
            except FileNotFoundError:
                break
        return frames

    def forget_now(self, pixels_sha256: str) -> None:
        """Removes a picture, if it exists, in the calling thread."""
        self._find()
        count = 0
        while self._there(_path(pixels_sha256, count)):
            count += 1
        # The first frame last: until then the picture exists, so that it can be removed again after a crash here.
        for index in reversed(range(count)):
            with suppress(FileNotFoundError):  # another process removes it too
                self._store.delete(_path(pixels_sha256, index))
        if self._root is not None and count:
            flush((self._root / _path(pixels_sha256, 0)).parent)

    def _there(self, path: str) -> bool:
        try:
            self._store.head(path)
        except FileNotFoundError:
            return False
        return True

    def _find(self) -> None:
        # A directory that was moved away is not created again: pictures in a new one would be lost when it is restored.
        if self._root is not None and not self._root.is_dir():
            raise _unavailable()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (BaseError, OSError):
            raise _unavailable() from None  # a store's messages may name paths and hosts


def _path(pixels_sha256: str, index: int) -> str:
    return f"{pixels_sha256[:2]}/{pixels_sha256}.{index}.png"


def flush(path: Path) -> None:
    """Flushes a file, or a directory's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unavailable() -> Unavailable:
    return Unavailable(
        "The docket's pictures can't be written or read now: their place is gone, full, or does not answer.",
        reason="DOCKET_UNAVAILABLE",
    )


def picture_of(meme: MemeIdentity, frames: Sequence[bytes]) -> Picture:
    """Rebuilds a trial's decoded picture from the frames that the docket stored."""
    sizes = [struct.unpack(">II", png[16:24]) for png in frames]  # width and height in the PNG header
    return Picture(
        format=PictureFormat(meme.format),
        bytes_sha256=meme.bytes_sha256,
        pixels_sha256=meme.pixels_sha256,
        width=meme.width,
        height=meme.height,
        frame_count=meme.frame_count,
        frames=tuple(
            Frame(png, width, height, index)
            for png, (width, height), index in zip(frames, sizes, meme.frames_used, strict=True)
        ),
        frames_unlike=meme.frames_unlike,
        incomplete=meme.incomplete,
        shown_otherwise=meme.shown_otherwise,
    )


def frames_in_table(connection: Connection, pixels_sha256: str) -> Sequence[bytes]:
    """Returns the frames of a picture in the table, in order; none if it is missing."""
    return [bytes(png) for png in connection.execute(_FRAMES, {"pixels": pixels_sha256}).scalars()]


def _write_pictures(connection: Connection, pictures: Sequence[Picture]) -> Sequence[None]:
    rows = [
        {"pixels_sha256": picture.pixels_sha256, "place": index, "png": frame.png}
        # Sorted, so that two commits that store the same pictures lock rows in the same order.
        for picture in sorted(pictures, key=lambda picture: picture.pixels_sha256)
        for index, frame in enumerate(picture.frames)
    ]
    connection.execute(insert_into(connection, t.pictures).on_conflict_do_nothing(), rows)
    return [None] * len(pictures)


WRITE_PICTURE = Batch(Rank.PICTURE, _write_pictures)
