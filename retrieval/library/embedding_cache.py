"""Cache of a build's embeddings, so that an interrupted build resumes where it stopped.

Keyed by content: a picture by the digest of its file, a text by its own. So only content that changed between two runs
is embedded again, whatever happened to sources or the order of files. The cache is stored beside the library being
built, one file per encoder, and is removed once the library is written.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.embed.encoder import EncoderIdentity, TextEmbeddings
from retrieval.library.storage import BUILDING

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pictures (
    bytes_sha256 TEXT PRIMARY KEY, pixels_sha256 TEXT, vector BLOB, jpeg BLOB, sha256 BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts (key BLOB PRIMARY KEY, vector BLOB, cut INTEGER, sha256 BLOB) WITHOUT ROWID;
"""


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
        columns = "pixels_sha256, vector, jpeg, sha256"
        for pixels, vector, jpeg, sha256 in self._ask(
            f"SELECT {columns} FROM pictures WHERE bytes_sha256 = ?", bytes_sha256
        ):
            # SQLite does not detect flipped bits, and a wrong vector would stay in the library.
            if _digest(bytes_sha256, pixels, vector, jpeg) == sha256:
                return EmbeddedPicture(bytes_sha256, pixels, np.frombuffer(vector, "<f4").astype(np.float32), jpeg)
        return None

    def texts(self, texts: Sequence[str]) -> list[tuple[NDArray[np.float32], bool] | None]:
        """Returns the vector of each text and True if it was truncated; None for texts that are not cached."""
        return [self._text(text) for text in texts]

    def keep_pictures(self, pictures: Sequence[EmbeddedPicture]) -> None:
        """Stores embeddings."""
        rows = []
        for one in pictures:
            vector = one.vector.astype("<f4").tobytes()
            sha256 = _digest(one.bytes_sha256, one.pixels_sha256, vector, one.jpeg)
            rows.append((one.bytes_sha256, one.pixels_sha256, vector, one.jpeg, sha256))
        # OR REPLACE: several memes of a batch may share a file, or two builds may embed it concurrently.
        self._put("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?, ?, ?)", rows)

    def keep_texts(self, texts: Sequence[str], embedded: TextEmbeddings) -> None:
        """Stores embeddings."""
        rows = []
        for text, row, cut in zip(texts, embedded.vectors, embedded.cut, strict=True):
            key, vector = _key(text), row.astype("<f4").tobytes()
            rows.append((key, vector, cut, _digest(key, vector, str(int(cut)))))
        self._put("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", rows)

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

    def _text(self, text: str) -> tuple[NDArray[np.float32], bool] | None:
        key = _key(text)
        for vector, cut, sha256 in self._ask("SELECT vector, cut, sha256 FROM texts WHERE key = ?", key):
            if _digest(key, vector, str(int(cut))) == sha256:
                return np.frombuffer(vector, "<f4").astype(np.float32), bool(cut)
        return None

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

    def _ask(self, statement: str, value: str | bytes) -> list[Any]:
        with self._lock:
            if self._connection is None:
                return []
            try:
                return self._connection.execute(statement, (value,)).fetchall()
            except sqlite3.Error:
                return []

    def _put(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._lock:
            try:
                if self._connection is None:
                    self._directory.mkdir(parents=True, exist_ok=True)
                    self._open()
                if self._connection is not None:
                    self._connection.execute("BEGIN IMMEDIATE")
                    self._connection.executemany(statement, rows)
                    self._connection.execute("COMMIT")
            except (sqlite3.Error, OSError):
                # Otherwise BEGIN would fail from here on, and the rest of the build would not be cached.
                if self._connection is not None and self._connection.in_transaction:
                    self._connection.rollback()


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).digest()


def _digest(*parts: str | bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # Includes the length of each part, so that the boundaries between parts are unambiguous.
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.digest()
