"""The court's precedent finder over a library on disk, and the one over none."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from court.errors import BadLibrary, CourtError, NotLoaded, Unavailable
from court.meme import Frame
from court.precedents import Findings, LibraryIdentity, VerifiedCopy
from retrieval.embed.encoder import Encoder
from retrieval.index.candidates import EXACT_UP_TO, CandidateIndex
from retrieval.index.exact import FusedIndex, Hits, SegmentedIndex
from retrieval.library import storage
from retrieval.library.filters import EVERYTHING, Filter
from retrieval.library.library import Library, harmful_rows
from retrieval.library.manifest import VECTORS, Counts, LabelledMeme, Tuning, copy_key
from retrieval.library.thumbnails import frame_of
from retrieval.precedents.search import LibraryInfo, Query, SearchRequest, search_library

L = TypeVar("L")
T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Progress callback: step, amount done and total."""

_THREADS = 8
"""Concurrent searches: the batch size of the built-in encoder. More would only wait for each other and for the GIL."""

_FAST = "fast.faiss"
_FILTERS = 32
"""Row masks cached for searches with the same filter, at one byte per row each."""
_MANY = 1000
"""Number of ids from which all memes are iterated instead of looked up one by one."""
_MOST_ISSUED, _ISSUED_S = 10_000, 900.0
"""Number of precedents whose library is remembered, and for how many seconds: trials request pictures soon after."""


class IndexedMemes:
    """Search over the vectors of labelled memes, as in a :class:`retrieval.library.ports.LibraryView`."""

    library: Library
    index: SegmentedIndex
    harmful: NDArray[np.bool_]

    def choose(self, where: Filter | None) -> NDArray[np.bool_] | None:
        """Returns the mask of rows that may be found, shape (rows,); None for all. Raises BadLibrary."""
        if where is None or where == EVERYTHING:
            return None
        raise NotImplementedError("these memes are searched without filters")

    def halves(self, rows: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns both halves of rows, as :meth:`retrieval.library.ports.LibraryView.halves`."""
        found, text_dim = self.index.vectors(rows), self.library.manifest.encoder.text_dim
        return found[:, :text_dim], found[:, text_dim:]

    def search(
        self,
        text: NDArray[np.float32] | None,
        picture: NDArray[np.float32] | None,
        *,
        alpha: float,
        k: int,
        exclude: Collection[int] = (),
        where: Filter | None = None,
        harmful: bool | None = None,
    ) -> Hits:
        """Searches as :meth:`retrieval.library.ports.LibraryView.search`. Raises BadLibrary."""
        among = self.choose(where)
        if harmful is not None:
            among = _and(self.harmful == harmful, among)
        return self.index.search(text, picture, alpha=alpha, k=k, exclude=exclude, among=among)


class _Snapshot(IndexedMemes):
    """An immutable library prepared for search, so that each search sees a single library throughout."""

    def __init__(self, library: Library, before: _Snapshot | None = None) -> None:
        self.library = library
        text_dim = library.manifest.encoder.text_dim
        # Library.newer shares this object as long as the generation is the same.
        same = before is not None and before.library.base is library.base
        # Until it is warm, it scans all rows.
        self.base: FusedIndex = before.base if before and same else FusedIndex(library.base.rows, text_dim)
        self.warmed: bool = before.warmed if before and same else False
        added = FusedIndex(library.overlay.rows, text_dim)
        self.index = SegmentedIndex([self.base, added], library.overlay.hidden)
        self.harmful = harmful_rows(library)
        self.tuning: Tuning = library.manifest.tuning
        # Both iterate over all flags of a changed library, which the first search should not have to wait for.
        self.counts: Counts = library.counts
        self.identity: LibraryIdentity = library.identity
        self._chosen: dict[Filter, NDArray[np.bool_]] = {}

    def warm(self, progress: Progress | None) -> None:
        """Reads the rows and loads or builds the candidate index of a large library; once per generation."""
        if self.warmed:
            return
        # Read once: each request looks its copies up there.
        _ = self.library.base.copies
        tell: Progress = progress or (lambda step, done, total: None)
        if self.base.fast is None and len(self.base) > EXACT_UP_TO:
            made = partial(tell, "rows made quick to search")
            # A single assignment, as other threads search the same index; results are the same with and without it.
            digest = self.library.manifest.files[VECTORS].sha256
            path = self.library.directory / _FAST
            self.base.fast = CandidateIndex.load_or_build(
                path, self.base.rows, self.base.text_dim, digest, progress=made
            )
        self.base.warm(partial(tell, "bytes of vectors read"))
        self.warmed = True

    @override
    def choose(self, where: Filter | None) -> NDArray[np.bool_] | None:
        if where is None or where == EVERYTHING:
            return None
        # Without a lock: at worst, two searches compute the same mask.
        chosen = self._chosen.get(where)
        if chosen is None:
            chosen = self.library.choose(where)
            # Bounded, as callers may send any number of filters.
            if len(self._chosen) < _FILTERS:
                self._chosen[where] = chosen
        return chosen

    def rows_of(self, ids: Collection[str]) -> list[int]:
        """Returns the rows of memes by id; unknown ids are skipped. Raises BadLibrary."""
        return _rows_of(self.library, ids)

    def count(self, where: Filter) -> int:
        """Counts the memes that a filter admits. Raises BadLibrary."""
        chosen = self.choose(where)
        if chosen is None:
            return self.counts.memes
        # The mask may include hidden rows, which are never found.
        return int(np.count_nonzero(chosen)) - sum(bool(chosen[row]) for row in self.library.overlay.hidden)

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """The memes in these rows, in this order. Raises BadLibrary."""
        return self.library.read(rows)

    def picture(self, id_: str) -> Frame | None:
        """Returns the picture of a meme; None if there is none. Raises BadLibrary or OSError."""
        row = self.library.row_of(id_)
        stored = None if row is None else self.library.picture_of(self.library.read([row])[0])
        return None if stored is None else frame_of(stored)


class IssuedIds(Generic[L]):
    """Libraries in which precedents were recently found, by lineage: in another one an id may mean another meme."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._libraries: dict[str, L] = {}

    def note(self, lineage: str, library: L, ids: Collection[str]) -> None:
        """Records ids found in a library."""
        now = time.monotonic()
        with self._lock:
            self._libraries[lineage] = library
            for id_ in ids:
                self._found[lineage, id_] = now
                self._found.move_to_end((lineage, id_))
            # The oldest come first.
            while self._found and (
                len(self._found) > _MOST_ISSUED or now - next(iter(self._found.values())) >= _ISSUED_S
            ):
                self._found.popitem(last=False)
            needed = {lineage, *(one for one, _ in self._found)}
            self._libraries = {one: each for one, each in self._libraries.items() if one in needed}

    def where(self, id_: str, lineage: str, current: L) -> list[L]:
        """Returns the libraries in which an id was recently found; the current one if none."""
        with self._lock:
            libraries = {**self._libraries, lineage: current}
            return [each for one, each in libraries.items() if (one, id_) in self._found] or [current]


class ThreadedFinder(ABC):
    """Base of finders whose searches run in their own threads; see :class:`court.ports.PrecedentFinder`."""

    def __init__(self, encoder: Encoder, threads: int, name: str) -> None:
        self.encoder = encoder
        # Not the event loop's default pool, where searches and other work would delay each other.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def close(self) -> None:
        """Stops the threads once their searches have finished."""
        self._threads.shutdown()

    @abstractmethod
    def _search(self, query: Callable[[], Query], wanted: SearchRequest) -> Callable[[], Findings]:
        """Returns a function that embeds the query and searches the current library, to be run in a thread."""

    async def find(
        self,
        *,
        text: str,
        frames: Sequence[Frame],
        pixels_sha256: str,
        exhibits: int,
        tally: int,
        alpha: float | None,
        exclude: Collection[str] = (),
        where: Filter | None = None,
        leave_out_duplicates: bool = False,
    ) -> Findings:
        """The most similar precedents: see :class:`court.ports.PrecedentFinder`.

        Raises:
            BadLibrary: The library is damaged; or a shared library is gone or was built with another encoder.
            ValueError: Alpha is outside [0, 1], or a count is negative.
            Unavailable: The search can't be made now.
        """
        wanted = SearchRequest(
            exhibits=exhibits,
            tally=tally,
            alpha=alpha,
            exclude=exclude,
            where=where,
            leave_out_duplicates=leave_out_duplicates,
        )
        # Embedded in the thread too, as the encoder may take longer than the search.
        query = partial(Query.embedded, self.encoder, text=text, frames=frames, pixels_sha256=pixels_sha256)
        return await self._in_thread(self._search(query, wanted), "searched")

    async def _in_thread(self, work: Callable[[], T], done: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            # Their messages may contain memory addresses or paths, so they stay in the cause, which callers don't see.
            raise Unavailable(
                f"The precedent library could not be {done}. Try again; if it happens again, restart the court.",
                reason="SEARCH_FAILED",
            ) from error


class LibraryFinder(ThreadedFinder):
    """Finds precedents in a library on disk, which can be swapped during searches."""

    def __init__(self, library: Library, encoder: Encoder) -> None:
        """Raises BadLibrary if the library was built with another encoder."""
        super().__init__(encoder, _THREADS, "precedents")
        self._issued = IssuedIds[_Snapshot]()
        self._snapshot = self._ready(library, None)

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the library that is searched."""
        return self._snapshot.identity

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all precedents that can be found now."""
        return tuple(self._snapshot.library.ids())

    @property
    def searched(self) -> Library:
        """Currently searched library."""
        return self._snapshot.library

    def swap(self, library: Library) -> None:
        """Switches to another library; searches in progress finish in the old one.

        Raises:
            BadLibrary: The library was made with another encoder.
        """
        # The new library is warmed first, which takes a while for a large one with other rows, so don't call this on
        # the event loop.
        snapshot = self._ready(library, self._snapshot)
        # Warmed before the switch; meanwhile the old one answers as fast as before.
        snapshot.warm(None)
        self._snapshot = snapshot

    def warm(self, progress: Progress | None = None) -> None:
        """Makes the first search as fast as later ones; results are the same without it.

        Raises:
            RuntimeError: FAISS failed.
        """
        self._snapshot.warm(progress)

    @override
    def _search(self, query: Callable[[], Query], wanted: SearchRequest) -> Callable[[], Findings]:
        # Captured once, so that a swap during the wait for a thread doesn't mix two libraries.
        snapshot = self._snapshot

        def work() -> Findings:
            findings = search_library(snapshot, query(), wanted)
            lineage = snapshot.library.manifest.lineage
            self._issued.note(lineage, snapshot, [exhibit.id for exhibit in findings.exhibits])
            return findings

        return work

    async def copies(self, *, pixels_sha256: str, text: str | None) -> Sequence[VerifiedCopy]:
        """Finds binding copies: see :class:`court.ports.BindingFinder`."""
        key, library = copy_key(pixels_sha256, text), self._snapshot.library
        # Most memes have none, which needs no thread.
        if library.binds_none(key):
            return ()
        memes = await self._in_thread(lambda: library.binding(key), "read")
        return [copy for meme in memes if (copy := meme.copy_of(pixels_sha256, text)) is not None]

    async def account(self) -> LibraryInfo:
        """Describes the library that is searched now."""
        return LibraryInfo.of(self._snapshot)

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Reads pictures of precedents: see :class:`court.ports.PrecedentFinder`.

        Raises:
            BadLibrary: A picture has changed since it was written.
            Unavailable: They can't be read now.
        """
        # Each is read from the library in which it was found: within one lineage an id never refers to a second meme,
        # and precedents recently found in a replaced library are still read from that one. An id found in both with
        # different pictures has none, as it is ambiguous.
        snapshot = self._snapshot

        def picture(id_: str) -> Frame | None:
            lineage = snapshot.library.manifest.lineage
            found = [one.picture(id_) for one in self._issued.where(id_, lineage, snapshot)]
            return found[0] if all(one == found[0] for one in found) else None

        return await self._in_thread(lambda: [picture(id_) for id_ in ids], "read")

    def _ready(self, library: Library, before: _Snapshot | None) -> _Snapshot:
        if library.manifest.encoder != self.encoder.identity:
            raise BadLibrary(
                f"The precedent library was made with the encoder {library.manifest.encoder}, but "
                f"{self.encoder.identity} is loaded.",
                reason="LIBRARY_FOREIGN",
            )
        return _Snapshot(library, before)


def _rows_of(library: Library, ids: Collection[str]) -> list[int]:
    if len(ids) <= _MANY:
        return [row for id_ in ids if (row := library.row_of(id_)) is not None]
    # A single pass instead of individual look-ups.
    wanted = set(ids)
    live = range(library.flags.size) if library.live is None else library.live.tolist()
    return [row for row, id_ in zip(live, library.ids(), strict=True) if id_ in wanted]


def _and(rows: NDArray[np.bool_], others: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return rows if others is None else rows & others


class NoLibrary:
    """Finder without a library: searching it is an error, as it must not be mistaken for finding no precedents."""

    @property
    def library(self) -> LibraryIdentity:
        """Identity of no library."""
        return LibraryIdentity(name="", digest="", size=0, encoder="", with_picture=0)

    async def find(self, **_: Any) -> Findings:
        """Raises NotLoaded."""
        raise NotLoaded("This court was opened without a library of precedents.", reason="NO_LIBRARY")

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Raises NotLoaded."""
        raise NotLoaded("This court was opened without a library of precedents.", reason="NO_LIBRARY")

    def close(self) -> None:
        """Does nothing."""


EVERY_S = 1.0
"""Seconds between two looks at ``CURRENT``; each costs some microseconds."""


async def follow(finder: LibraryFinder, tell: Callable[[str], None], *, every_s: float = EVERY_S) -> None:
    """Swaps in each newer version of the library, until cancelled."""
    # The new version is read and checked in a thread while searches continue in the old one. A version that can't be
    # used (damaged, or made by another encoder) is reported once and skipped; the old one stays in use.
    looked_at: tuple[int, int, int] | None = None
    while True:
        library = finder.searched
        try:
            mark = storage.mark_of(library.root)
            if mark != looked_at:
                # Stored before reading, so that a write during the read is noticed next time.
                looked_at = mark
                newer = await asyncio.to_thread(library.newer)
                if newer is not None:
                    await asyncio.to_thread(finder.swap, newer)
                    tell(f"The precedent library was changed: {newer.counts.memes:,} memes are searched now.")
        except FileNotFoundError:
            # Missing for a moment or for good: the open library can still be searched.
            pass
        # The mark was stored above, so this is reported once for each write and not at every poll.
        except (CourtError, OSError, ValueError) as error:
            what = error.message if isinstance(error, CourtError) else "It can't be read."
            tell(f"The precedent library was changed, but the former is searched on. {what}")
        await asyncio.sleep(every_s)
