"""Download of a file with a known digest, such as a model's weights."""

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
    """Yields an HTTP client for downloads and closes it."""
    # Not the service's client of :mod:`court.backends.http`: files are large, hosts redirect, and there may be a proxy.
    # It is safe because every file is verified.
    headers = {"Accept-Encoding": "identity"}
    with httpx2.Client(timeout=_TIMEOUT, follow_redirects=True, headers=headers) as client:
        yield client


def download(client: httpx2.Client, url: str, path: Path, *, sha256: str, max_bytes: int, reason: str) -> None:
    """Downloads a file and verifies it; if this raises, the caller must delete ``path``.

    Raises:
        Unavailable: The file does not have the expected digest. httpx2.HTTPError, httpx2.InvalidURL: The download
            failed.
        OSError: The file could not be written.
    """
    digest, size = hashlib.sha256(), 0
    with client.stream("GET", url) as answer, path.open("wb") as file:
        answer.raise_for_status()
        # Raw bytes: the digest is of the file, and nothing is decompressed before it is verified.
        for piece in answer.iter_raw():
            size += len(piece)
            # Checked before writing, so that the server can't fill the disk.
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
