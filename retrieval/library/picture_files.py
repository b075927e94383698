"""Reads picture files from a directory, a tar file or an object store.

All of them are addressed by a path: through a tar file (:mod:`retrieval.library.shards`), or beginning with the scheme
of an object store, ``s3:/bucket/folder/m1.jpg``, which `obstore` reads. Only a card can set such a scheme: names in
rows are appended to the folder that the card names and can't leave it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from court.digests import sha256_of
from court.errors import BadRequest, Unavailable
from court.meme import LIMITS
from retrieval.library.shards import SCHEMES, find_member, read_member, shard_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")


def has_picture(path: Path) -> bool:
    """True if a picture exists at this path. Raises Unavailable if the object store does not answer."""
    if not is_remote(path) and shard_of(path) is None:
        return path.is_file()
    try:
        picture_size(path)
    except OSError:
        return False
    return True


def picture_size(path: Path) -> int:
    """Size of a picture in bytes. Raises OSError, or Unavailable if the object store does not answer."""
    if is_remote(path):
        return _object_size(path)
    return path.stat().st_size if shard_of(path) is None else find_member(path).size


def read_picture(path: Path) -> bytes:
    """Reads a picture.

    Raises:
        OSError: The picture is missing or can't be read.
        Unavailable: The object store does not answer.
    """
    if is_remote(path):
        # The size is checked first, as an object may be larger than memory.
        if _object_size(path) > LIMITS.max_bytes:
            raise OSError("the picture is larger than can be read")
        store, name = _object(path)
        return _answer(path, lambda: bytes(store.get(name).bytes()))
    return path.read_bytes() if shard_of(path) is None else read_member(path)


def picture_sha256(path: Path) -> str:
    """SHA-256 of a picture in hex. Raises OSError or Unavailable as :func:`read_picture`."""
    # A plain file is hashed in chunks, as it may be of any size; the others are bounded.
    if not is_remote(path) and shard_of(path) is None:
        return sha256_of(path)
    return hashlib.sha256(read_picture(path)).hexdigest()


def is_remote(path: Path) -> bool:
    """True for a path into an object store."""
    return bool(path.parts) and path.parts[0] in SCHEMES


def absolute(path: Path) -> Path:
    """The path made absolute for use in other processes; a path into an object store is unchanged."""
    return path if is_remote(path) else path.resolve()


def _object_size(path: Path) -> int:
    store, name = _object(path)
    return _answer(path, lambda: int(store.head(name)["size"]))


def _object(path: Path) -> tuple[ObjectStore, str]:
    """The object store of a path, and the name of the object in it."""
    scheme, *parts = path.parts
    # A file address has no bucket.
    root = "file:///" if scheme == "file:" else f"{scheme}//{parts.pop(0) if parts else ''}"
    return _opened(root), "/".join(parts)


@lru_cache(maxsize=16)
def _opened(root: str) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        return from_url(root)
    except (BaseError, OSError, ValueError):
        # The cause is not chained, as its address may contain a key.
        raise BadRequest(
            f"The pictures can't be had from {root}: its keys, region or name are wrong. They are read from the "
            "environment (AWS_…, GOOGLE_…, AZURE_…).",
            reason="PICTURES_UNAVAILABLE",
        ) from None


def _answer(path: Path, call: Callable[[], T]) -> T:
    """Calls an object store. Raises FileNotFoundError, or Unavailable if the store does not answer or refuses."""
    from obstore.exceptions import BaseError

    try:
        return call()
    # The only error that concerns the picture itself.
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        # A store that fails must not make a picture look missing.
        root = "//".join(path.parts[:2])
        raise Unavailable(
            f"The object store of the pictures ({root}) does not answer, or refuses ({type(error).__name__}).",
            reason="PICTURES_UNAVAILABLE",
        ) from None
