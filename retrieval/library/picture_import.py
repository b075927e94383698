"""Imports the pictures of labelled memes: finds them, decodes them in the sandbox, and embeds them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.errors import BadPicture, Unavailable
from court.meme import LIMITS, Picture
from court.ports import PictureReader
from retrieval.embed.encoder import Encoder
from retrieval.library.embedding_cache import EmbeddedPicture, EmbeddingCache
from retrieval.library.manifest import StoredPicture
from retrieval.library.picture_finder import ADDRESS, plain_name
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
        OSError: The disk is full or can't be written to.
    """
    # Shared by all batches, several of which run at once.
    gate = asyncio.Semaphore(_AT_ONCE)
    indices = [index for index, item in enumerate(wanted) if item.row.image and item.folder]
    imported: dict[int, ImportedPicture] = {}
    problems: dict[int, Problem] = {}

    async def fetch(item: Wanted) -> Picture | EmbeddedPicture | str:
        async with gate:
            try:
                data = await asyncio.to_thread(_bytes_of, item)
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


def _bytes_of(item: Wanted) -> bytes:
    return _file(item.row.image, item.folder or Path())


def _file(name: str, folder: Path) -> bytes:
    """Reads a picture below the folder; data sets name pictures with or without leading directories."""
    try:
        # Resolved, as is each path below, so that neither ``..`` nor a link can lead out.
        inside = folder.resolve()
        parts = [part for part in name.replace("\\", "/").split("/") if part]
        # Tries the name as given, then without each leading part (drive, directories of another machine), down to the
        # file name alone.
        for first in range(len(parts)):
            path = _any_spelling(folder, parts[first:]).resolve()
            # The name is untrusted and must not lead out of the folder.
            if not path.is_relative_to(inside):
                continue
            if not path.is_file():
                continue
            # Checked before any of it is read into memory.
            if path.stat().st_size > LIMITS.max_bytes:
                raise _NoPicture("its picture is larger than can be read")
            return path.read_bytes()
    except (OSError, ValueError):
        # ValueError comes from names that no path can have, such as one with a NUL.
        raise _NoPicture("its picture can't be opened") from None
    raise _NoPicture(ADDRESS if "://" in name else "its picture is missing")


def _any_spelling(folder: Path, parts: Sequence[str]) -> Path:
    """The path below the folder, or the one that differs from it only in case or Unicode normalisation."""
    path = folder.joinpath(*parts)
    if path.exists():
        return path
    path = folder
    for part in parts:
        found = [] if part in (".", "..") else _names(path, _modified(path)).get(plain_name(part), [])
        # An ambiguous match counts as none.
        path /= found[0] if len(found) == 1 and not (path / part).exists() else part
    return path


def _modified(folder: Path) -> int:
    """Time in ns at which an entry of the folder was last added or removed; -1 if it is no folder."""
    return folder.stat().st_mtime_ns if folder.is_dir() else -1


@lru_cache(maxsize=8)
def _names(folder: Path, modified: int) -> Mapping[str, Sequence[str]]:
    """Names in a folder by plain spelling; cached, as a table may look up any number of names in it."""
    found: dict[str, list[str]] = {}
    for entry in folder.iterdir() if modified >= 0 else ():
        found.setdefault(plain_name(entry.name), []).append(entry.name)
    return found
