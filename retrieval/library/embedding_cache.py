"""Cache of a build's embeddings, so that an interrupted build resumes where it stopped.

Keyed by content: a picture by the digest of its file, a text by its own. So only content that changed between two runs
is embedded again, whatever happened to sources or the order of files. The cache is stored beside the library being
built, one file per encoder, and is removed once the library is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.embed.encoder import EncoderIdentity, TextEmbeddings
from retrieval.library.storage import BUILDING

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, vector BLOB, note TEXT, jpeg BLOB, sha256 BLOB) WITHOUT ROWID;
"""
"""The note of a picture is the digest of its pixels, that of a text says if it was truncated."""


@dataclass(frozen=True, slots=True)
class EmbeddedPicture:
    """Cached embedding of a picture."""

    bytes_sha256: str
    pixels_sha256: str
    vector: NDArray[np.float32]
    jpeg: bytes


class EmbeddingCache:
    """Cache of embeddings by one encoder; thread-safe. Anything that can't be read or written is embedded again."""

    def __init__(self, root: Path, encoder: EncoderIdentity) -> None:
        """Uses the directory of the library; creates no file before there is something to store."""
        self._directory = root / BUILDING
        self._path = self._directory / f"{encoder.digest.removeprefix('sha256:')[:16]}.sqlite"
        self._encoder = encoder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        if self._path.exists():
            self._open()

    def picture(self, bytes_sha256: str) -> EmbeddedPicture | None:
        """Returns the cached embedding of the picture in a file with this digest; None if there is none."""
        found = self._find(_key_of_picture(bytes_sha256))
        return None if found is None else EmbeddedPicture(bytes_sha256, found[1], found[0], found[2])

    def texts(self, texts: Sequence[str]) -> list[tuple[NDArray[np.float32], bool] | None]:
        """Returns the vector of each text and True if it was truncated; None for texts that are not cached."""
        entries = (self._find(_key_of_text(text)) for text in texts)
        return [None if found is None else (found[0], bool(found[1])) for found in entries]

    def keep_pictures(self, pictures: Sequence[EmbeddedPicture]) -> None:
        """Stores embeddings."""
        self._put((_key_of_picture(one.bytes_sha256), one.vector, one.pixels_sha256, one.jpeg) for one in pictures)

    def keep_texts(self, texts: Sequence[str], embedded: TextEmbeddings) -> None:
        """Stores embeddings."""
        entries = zip(texts, embedded.vectors, embedded.cut, strict=True)
        self._put((_key_of_text(text), vector, "cut" if cut else "", b"") for text, vector, cut in entries)

    def close(self) -> None:
        """Closes the file, which stays for the next build."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def discard(self) -> None:
        """Removes the cache, once the library is written."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _open(self) -> None:
        try:
            connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=10)
            # Without a sync for each batch: embeddings lost to a power cut are computed again.
            connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_SCHEMA}")
        except sqlite3.Error:
            # The cache is best effort: an unusable file is deleted, and the next write begins a new one.
            self._path.unlink(missing_ok=True)
            return
        self._connection = connection

    def _find(self, key: str) -> tuple[NDArray[np.float32], str, bytes] | None:
        rows: list[tuple[bytes, str, bytes, bytes]] = []
        with self._lock, contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                query = "SELECT vector, note, jpeg, sha256 FROM entries WHERE key = ?"
                rows = self._connection.execute(query, (key,)).fetchall()
        for vector, note, jpeg, sha256 in rows:
            # SQLite does not detect flipped bits, and a wrong vector would stay in the library.
            if _digest(key, vector, note, jpeg) == sha256:
                return np.frombuffer(vector, "<f4").astype(np.float32), note, jpeg
        return None

    def _put(self, entries: Iterable[tuple[str, NDArray[np.float32], str, bytes]]) -> None:
        rows = []
        for key, values, note, jpeg in entries:
            vector = values.astype("<f4").tobytes()
            rows.append((key, vector, note, jpeg, _digest(key, vector, note, jpeg)))
        with self._lock:
            try:
                if self._connection is None:
                    self._directory.mkdir(parents=True, exist_ok=True)
                    self._open()
                if self._connection is not None:
                    self._connection.execute("BEGIN IMMEDIATE")
                    # OR REPLACE: memes of a batch may share a file, or two builds may embed it concurrently.
                    self._connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", rows)
                    self._connection.execute("COMMIT")
            except (sqlite3.Error, OSError):
                # Otherwise BEGIN would fail from here on, and the rest of the build would not be cached.
                if self._connection is not None and self._connection.in_transaction:
                    self._connection.rollback()


def _key_of_picture(bytes_sha256: str) -> str:
    return f"picture {bytes_sha256}"


def _key_of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _digest(*parts: str | bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # Includes the length of each part, so that the boundaries between parts are unambiguous.
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.digest()
