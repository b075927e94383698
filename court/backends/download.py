"""Downloading one file of known content, such as the weights of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from court.errors import Unavailable

_TIMEOUT = httpx2.Timeout(30.0)


@contextmanager
def download_client() -> Iterator[httpx2.Client]:
    """A client for files, closed at the end.

    Not the service's client of :mod:`court.backends.http`: files are larger than any answer, the places that keep them
    redirect, and there may be a proxy. What keeps it safe is that every file is checked.
    """
    headers = {"Accept-Encoding": "identity"}
    with httpx2.Client(timeout=_TIMEOUT, follow_redirects=True, headers=headers) as client:
        yield client


def download(client: httpx2.Client, url: str, path: Path, *, sha256: str, max_bytes: int, reason: str) -> None:
    """Downloads a file; where this raises, what lies at ``path`` is to be deleted.

    Args:
        client: From :func:`download_client`.
        url: Address of the file.
        path: Place that it is written to.
        sha256: SHA-256 of the file, in hexadecimal.
        max_bytes: Size above which it is not read on.
        reason: Reason of the error where the file is another.

    Raises:
        Unavailable: The file is not the one that is known.
        httpx2.HTTPError, httpx2.InvalidURL: The file could not be had.
        OSError: The file could not be written.
    """
    digest, size = hashlib.sha256(), 0
    with client.stream("GET", url) as answer, path.open("wb") as file:
        answer.raise_for_status()
        # As it is on the wire: the digest is of the file, and nothing is unpacked before it is checked.
        for piece in answer.iter_raw():
            size += len(piece)
            # Before it is written: whoever answers can't fill the disk.
            if size > max_bytes:
                break
            digest.update(piece)
            file.write(piece)
    if size > max_bytes or digest.hexdigest() != sha256:
        raise Unavailable(
            f"What was fetched as {url.rpartition('/')[2]} is not the file that is known: its SHA-256 is another. "
            "Nothing was stored. Try again, or fetch it without whatever is in between.",
            reason=reason,
        )
