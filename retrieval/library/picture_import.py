"""Imports the pictures of labelled memes: finds them, decodes them in the sandbox, and embeds them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.errors import BadPicture, Unavailable
from court.meme import LIMITS, Picture
from court.ports import PictureReader
from retrieval.embed.encoder import Encoder
from retrieval.library.embedding_cache import EmbeddedPicture, EmbeddingCache
from retrieval.library.manifest import StoredPicture
from retrieval.library.picture_finder import ADDRESS, DatasetPictures
from retrieval.library.sources import Problem, Row
from retrieval.library.thumbnails import ThumbnailWriter, shrink

_BATCH = 32
"""Pictures embedded at once."""
_AHEAD = 2
"""Batches that are decoded or embedded while another is: keeps the model busy, and bounds the memory."""
_AT_ONCE = 4
"""Pictures decoded at once."""
_TRIES = 3
"""How often a picture is tried that could not be read for want of time or of a process."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row and the directory of its picture.

    Attributes:
        folder: Directory that the image name is relative to; None to import no picture.
    """

    row: Row
    folder: Path | None


@dataclass(frozen=True, slots=True)
class ImportedPicture:
    """Embedded picture.

    Attributes:
        pixels_sha256: SHA-256 of the normalised pixels, in hex.
        vector: float32 of shape (picture_dim,).
    """

    bytes_sha256: str
    pixels_sha256: str
    vector: NDArray[np.float32]
    kept: StoredPicture


class _NoPicture(Exception):
    """The picture can't be imported; the message is the reason."""


async def embed_pictures_of(
    wanted: Sequence[Wanted],
    reader: PictureReader,
    encoder: Encoder,
    spool: ThumbnailWriter,
    progress: Callable[[int, int], None],
    remembered: EmbeddingCache | None = None,
) -> tuple[dict[int, ImportedPicture], dict[int, Problem]]:
    """Imports pictures; returns them, and the problems of those that failed, both by index in ``wanted``.

    Pictures in the cache ``remembered`` are not decoded and embedded again; new ones are added to it.

    Raises:
        BadRequest: The name of a picture fits several files that differ.
        OSError: The disk is full or can't be written to.
    """
    # Shared by all batches, several of which run at once.
    gate = asyncio.Semaphore(_AT_ONCE)
    indices = [index for index, item in enumerate(wanted) if item.row.image and item.folder]
    finders = await asyncio.to_thread(_finders, wanted)
    imported: dict[int, ImportedPicture] = {}
    problems: dict[int, Problem] = {}

    async def fetch(item: Wanted) -> Picture | EmbeddedPicture | str:
        async with gate:
            try:
                folder = item.folder or Path()
                data = await asyncio.to_thread(_bytes_of, item.row.image, folder, finders[folder])
                if remembered is not None:
                    known = await asyncio.to_thread(remembered.picture, hashlib.sha256(data).hexdigest())
                    if known is not None:
                        return known
                return await _read(reader, data)
            except _NoPicture as why:
                return str(why)

    async def embed_batch(batch: Sequence[int]) -> dict[int, EmbeddedPicture]:
        pictures: dict[int, Picture] = {}
        found: dict[int, EmbeddedPicture] = {}
        for index, result in zip(batch, await asyncio.gather(*(fetch(wanted[p]) for p in batch)), strict=True):
            if isinstance(result, Picture):
                pictures[index] = result
            elif isinstance(result, EmbeddedPicture):
                found[index] = result
            else:
                row = wanted[index].row
                problems[index] = Problem(row.source, row.line, row.id, result, kept=bool(row.text.strip()))
        if pictures:
            new = await asyncio.to_thread(_embed, list(pictures.values()), encoder, remembered)
            found |= zip(pictures, new, strict=True)
        return {index: found[index] for index in batch if index in found}

    batches = [indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH)]
    begun: deque[asyncio.Task[dict[int, EmbeddedPicture]]] = deque()
    try:
        for number in range(len(batches)):
            # Starts the batches that are up to _AHEAD ahead and not started yet.
            for later in batches[number + len(begun) : number + 1 + _AHEAD]:
                begun.append(asyncio.create_task(embed_batch(later)))
            found = await begun.popleft()
            # In order, so that the same memes give the same file of thumbnails.
            imported |= await asyncio.to_thread(_keep, found, spool)
            progress(min((number + 1) * _BATCH, len(indices)), len(indices))
    finally:
        for task in begun:
            task.cancel()
        # Cancelled tasks are awaited too, as they may still be using the reader.
        await asyncio.gather(*begun, return_exceptions=True)
    return imported, problems


def _embed(pictures: Sequence[Picture], encoder: Encoder, remembered: EmbeddingCache | None) -> list[EmbeddedPicture]:
    vectors = encoder.embed_pictures([[frame.png for frame in picture.frames] for picture in pictures])
    found = [
        EmbeddedPicture(picture.bytes_sha256, picture.pixels_sha256, vector, shrink(picture.frames[0]))
        for picture, vector in zip(pictures, vectors, strict=True)
    ]
    if remembered is not None:
        remembered.keep_pictures(found)
    return found


def _keep(found: Mapping[int, EmbeddedPicture], spool: ThumbnailWriter) -> dict[int, ImportedPicture]:
    return {
        index: ImportedPicture(one.bytes_sha256, one.pixels_sha256, one.vector, spool.append(one.jpeg))
        for index, one in found.items()
    }


async def _read(reader: PictureReader, data: bytes) -> Picture:
    for left in reversed(range(_TRIES)):
        try:
            return await reader.read(data)
        except BadPicture as error:
            raise _NoPicture(f"its picture can't be used ({error.reason})") from error
        # A problem of the machine and not of the file, so a retry may succeed.
        except Unavailable as error:
            if not left:
                raise _NoPicture(f"its picture could not be read in time ({error.reason})") from error
    raise AssertionError("unreachable")


def _finders(wanted: Sequence[Wanted]) -> dict[Path, DatasetPictures]:
    """Finders of the pictures by the folder that their names are relative to."""
    named: dict[Path, list[str]] = {}
    for item in wanted:
        if item.folder is not None and item.row.image:
            named.setdefault(item.folder, []).append(item.row.image)
    found = {folder: DatasetPictures(folder, folder, ("",)) for folder in named}
    for folder, names in named.items():
        found[folder].find_folder((name, {}) for name in names)
    return found


def _bytes_of(name: str, folder: Path, finder: DatasetPictures) -> bytes:
    """Reads a picture below the folder; data sets name pictures with or without leading directories."""
    if "\0" in name:  # no path can have it
        raise _NoPicture("its picture can't be opened")
    try:
        path = finder.find_tail(name)
        # Neither a name nor a link may lead out of the folder.
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            # Checked before any of it is read into memory.
            if path.stat().st_size > LIMITS.max_bytes:
                raise _NoPicture("its picture is larger than can be read")
            return path.read_bytes()
    except OSError:
        raise _NoPicture("its picture can't be opened") from None
    raise _NoPicture(ADDRESS if "://" in name else "its picture is missing")
