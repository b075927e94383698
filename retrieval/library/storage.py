"""A directory with atomically replaced content.

::

    CURRENT                   current generation, SHA-256 of its manifest, and committed length of its journal
    generations/000007/       previous generation, kept for readers that still use it
    generations/000008/       current generation; immutable once published, except that its journal grows at the end
    .lock                     held by the writer
    .building/                embeddings of an interrupted build

Readers take no lock: they read ``CURRENT`` and then bytes that never change. A small change is appended to the journal
of the generation and committed once ``CURRENT`` names the journal's new length; bytes beyond that length were never
acknowledged, and the next writer truncates them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from court.digests import sha256_of
from court.errors import BadLibrary, Unavailable

CURRENT = "CURRENT"
GENERATIONS = "generations"
BUILDING = ".building"
_LOCK = ".lock"
_POINTER = re.compile(rb"(\d{6}) sha256:([0-9a-f]{64})(?: (\d{1,15}) sha256:([0-9a-f]{64}))?\n")
OWN_NAMES = frozenset({CURRENT, f"{CURRENT}.new", GENERATIONS, BUILDING, _LOCK})
"""Names that may exist in the directory of a library."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Content of ``CURRENT``.

    Attributes:
        manifest_sha256: SHA-256 of its manifest, in hex. The manifest vouches for the other files, and only this digest
            for the manifest.
        head: SHA-256, in hex, over these bytes and the manifest's digest (:mod:`retrieval.library.journal`), which
            identifies the state of the library. Equal to the manifest's digest if nothing was changed since.
    """

    generation: str
    manifest_sha256: str
    journal_size: int = 0
    head: str = ""

    def __post_init__(self) -> None:
        # Bypasses frozen, which a default derived from another field requires.
        if not self.head:
            object.__setattr__(self, "head", self.manifest_sha256)

    def __str__(self) -> str:
        line = f"{self.generation} sha256:{self.manifest_sha256}"
        return f"{line} {self.journal_size} sha256:{self.head}" if self.journal_size else line


def damaged(what: str) -> BadLibrary:
    """Returns the error for a library that was altered."""
    return BadLibrary(
        f"The precedent library is damaged: {what}. Nothing is searched in it. "
        "Restore it from a backup, or build it again from its sources.",
        reason="LIBRARY_DAMAGED",
    )


def missing() -> BadLibrary:
    """Returns the error for a missing library."""
    return BadLibrary(
        "There is no precedent library at the given place. "
        "Build one with `memecourt precedents build`, or name the directory of one that exists.",
        reason="LIBRARY_MISSING",
    )


def read_pointer(root: Path) -> Pointer:
    """Reads ``CURRENT``. Raises BadLibrary if it is missing or malformed."""
    try:
        raw = (root / CURRENT).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise missing() from None
    except OSError as error:
        raise damaged(f"{CURRENT} can't be read") from error
    # A fixed format: the name becomes a path, and six digits can't lead anywhere else.
    match = _POINTER.fullmatch(raw)
    if match is None:
        raise damaged(f"{CURRENT} does not name a generation")
    pointer = Pointer(match[1].decode(), match[2].decode(), int(match[3] or 0), (match[4] or match[2]).decode())
    # Must round-trip: leading zeros or an empty journal are never written.
    if raw != f"{pointer}\n".encode():
        raise damaged(f"{CURRENT} does not name a generation")
    return pointer


@contextlib.contextmanager
def writing(root: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Holds the writer lock, which the system releases if the process dies.

    Raises:
        Unavailable: Another process is writing.
    """
    until = time.monotonic() + wait_s
    # Opened anew each time, so that the lock excludes threads as well as processes. The file is never removed, or two
    # writers could each lock a different file of that name.
    with (root / _LOCK).open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Unavailable(
                        "Somebody else is writing to this precedent library. Wait until they are done.",
                        reason="LIBRARY_LOCKED",
                        retry_after=5.0,
                    ) from None
                # flock has no timeout.
                time.sleep(0.01)
        yield


def publish(root: Path, fill: Callable[[Path], None], manifest_name: str) -> Pointer:
    """Writes a generation and makes it the current one; the lock must be held.

    A crash at any point leaves the old or the new generation current; other leftovers are removed by the next write.

    Raises:
        OSError: The disk is full or can't be written to. The previous generation stays current.
    """
    generations = root / GENERATIONS
    generations.mkdir(exist_ok=True)
    # Leftovers of killed writers: nobody else can be writing here while the lock is held.
    for leftover in generations.glob(".new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    there = _numbered(generations)
    # Above every existing number, not just CURRENT's: a crash may have left a generation that was never published.
    name = f"{(int(there[-1].name) if there else 0) + 1:06d}"
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=generations))
    try:
        fill(temporary)
        manifest_sha256 = sha256_of(temporary / manifest_name)
        # Synced in this order: files, then the generation, then CURRENT, so that after a power cut none refers to
        # something missing.
        _sync_directory(temporary)
        temporary.chmod(0o700)
        temporary.rename(generations / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_directory(generations)
    pointer = Pointer(name, manifest_sha256)
    announce(root, pointer)
    return pointer


def announce(root: Path, pointer: Pointer) -> None:
    """Updates ``CURRENT`` atomically; the lock must be held. Raises OSError."""
    announced = root / f"{CURRENT}.new"
    write_synced(announced, [f"{pointer}\n".encode()])
    # Atomic: a reader, which takes no lock, sees the old line or the new one and never a part.
    announced.replace(root / CURRENT)
    _sync_directory(root)


def mark_of(root: Path) -> tuple[int, int, int]:
    """Returns a mark of ``CURRENT`` that changes with every write, at the cost of one stat call. Raises OSError."""
    # Each write replaces the file; as inode numbers are reused, time and size count too.
    found = (root / CURRENT).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_synced(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Writes and syncs a file; returns its SHA-256 in hex and its size in bytes. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk) if isinstance(chunk, bytes) else chunk.nbytes
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


def synced(path: Path) -> tuple[str, int]:
    """Syncs a file written by others; returns its SHA-256 in hex and its size in bytes. Raises OSError."""
    with path.open("rb") as file:
        # fsync flushes the file's data whoever wrote it, so a read-only descriptor is enough.
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def prune(root: Path, keep: str, before: str | None) -> None:
    """Removes all generations but the current and the previous one; failed removals are left for next time."""
    for generation in _numbered(root / GENERATIONS):
        # The previous one stays for readers that have read CURRENT but not yet opened its files.
        if generation.name not in (keep, before):
            shutil.rmtree(generation, ignore_errors=True)


def _numbered(generations: Path) -> list[Path]:
    # Other entries, such as leftovers of a killed writer, are not generations and have no number.
    return sorted(path for path in generations.iterdir() if re.fullmatch(r"\d{6}", path.name))


def _sync_directory(path: Path) -> None:
    # A rename is only durable once its directory is synced too.
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
