"""The court's precedent finder over a library on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from court.errors import BadLibrary, Unavailable
from court.meme import Frame
from court.precedents import Findings, LibraryIdentity
from retrieval.embed.encoder import Encoder
from retrieval.index.candidates import EXACT_UP_TO, load_or_build
from retrieval.index.exact import FusedIndex, Hits
from retrieval.index.segments import SegmentedIndex
from retrieval.library.filters import EVERYTHING, Filter
from retrieval.library.library import Library, harmful_rows
from retrieval.library.manifest import VECTORS, Counts, LabelledMeme, Tuning
from retrieval.library.thumbnails import frame_of
from retrieval.precedents.search import LibraryInfo, Query, SearchRequest, search_library

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much."""

_THREADS = 8
"""Searches at once: as many texts as the built-in encoder takes together. More only wait for each other, and for the
interpreter."""

_FAST = "fast.faiss"
"""Beside the files of a generation: a cache that is made anew where it does not fit."""
_FILTERS = 32
"""Choices of rows kept for the next search with the same filter; each is a byte a row."""
_MANY = 1000
"""Ids from which on all are gone through."""
_MOST_ISSUED, _ISSUED_S = 10_000, 900.0
"""Precedents whose library is remembered, and for how many seconds: a trial asks for pictures soon after."""


class _Snapshot:
    """A library made ready to be searched; never changed, so that a search that has one sees one library to its end."""

    def __init__(self, library: Library, before: _Snapshot | None = None) -> None:
        """``before`` is what was searched until now: of the same generation, its index is taken over."""
        self.library = library
        text_dim = library.manifest.encoder.text_dim
        # An object that is shared as long as the generation is the same (Library.newer).
        same = before is not None and before.library.base is library.base
        # Until it is warm, it scans all rows.
        self.base: FusedIndex = before.base if before and same else FusedIndex(library.base.rows, text_dim)
        self.warmed: bool = before.warmed if before and same else False
        added = FusedIndex(library.overlay.rows, text_dim)
        self.index = SegmentedIndex([self.base, added], library.overlay.hidden)
        self.harmful = harmful_rows(library)
        self.tuning: Tuning = library.manifest.tuning
        # Both go through all flags of a library that was changed: not for the first search to wait for.
        self.counts: Counts = library.counts
        self.identity: LibraryIdentity = library.identity
        self._chosen: dict[Filter, NDArray[np.bool_]] = {}

    def warm(self, progress: Progress | None) -> None:
        """Reads the rows and, of many, reads or makes what names candidates among them; once for each generation.

        Raises:
            RuntimeError: FAISS failed.
        """
        if self.warmed:
            return
        tell: Progress = progress or (lambda step, done, total: None)
        if self.base.fast is None and len(self.base) > EXACT_UP_TO:
            path = self.library.directory / _FAST
            digest = self.library.manifest.files[VECTORS].sha256
            made = partial(tell, "rows made quick to search")
            # One assignment, while others search the same index: with and without it they find the same.
            self.base.fast = load_or_build(
                path, self.base.rows, text_dim=self.base.text_dim, vectors_digest=digest, progress=made
            )
        self.base.warm(partial(tell, "bytes of vectors read"))
        self.warmed = True

    def choose(self, where: Filter | None) -> NDArray[np.bool_] | None:
        """Which rows may be found, shape (rows,); None for all. Raises BadLibrary."""
        if where is None or where == EVERYTHING:
            return None
        # Without a lock: at worst, two searches make the same choice.
        chosen = self._chosen.get(where)
        if chosen is None:
            chosen = self.library.choose(where)
            # Callers choose the filters, so that there may be any number of them.
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
        # A choice may hold hidden rows, which are never found.
        return int(np.count_nonzero(chosen)) - sum(bool(chosen[row]) for row in self.library.overlay.hidden)

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """The memes in these rows, in this order. Raises BadLibrary."""
        return self.library.read(rows)

    def halves(self, rows: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns both halves of rows, as :meth:`retrieval.library.ports.LibraryView.halves`."""
        found, text_dim = self.index.vectors(rows), self.base.text_dim
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

    def picture(self, id_: str) -> Frame | None:
        """Returns the picture of a meme; None if there is none. Raises BadLibrary or OSError."""
        row = self.library.row_of(id_)
        stored = None if row is None else self.library.picture_of(self.library.read([row])[0])
        return None if stored is None else frame_of(stored)


class _IssuedIds:
    """Which precedents were found of late in which lineage: in another library an id may mean another meme."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], float] = {}
        self._former: dict[str, _Snapshot] = {}

    def note(self, lineage: str, ids: Collection[str]) -> None:
        """Notes the ids found in a library."""
        now = time.monotonic()
        with self._lock:
            for id_ in ids:
                # Out and in again: the order of this mapping is that of last use, by which the oldest are forgotten.
                self._found.pop((lineage, id_), None)
                self._found[lineage, id_] = now
            self._forget(now)

    def replaced(self, former: _Snapshot, lineage: str) -> None:
        """From now on another library is searched, of this lineage."""
        with self._lock:
            self._former[former.library.manifest.lineage] = former
            # A library that comes back is the current one again.
            self._former.pop(lineage, None)
            self._forget(time.monotonic())

    def where(self, id_: str, current: _Snapshot) -> list[_Snapshot]:
        """In what it was found of late; the current library where in none."""
        with self._lock:
            libraries = {**self._former, current.library.manifest.lineage: current}
            found = [one for lineage, one in libraries.items() if (lineage, id_) in self._found]
        return found or [current]

    def _forget(self, now: float) -> None:
        while self._found:
            # The oldest come first.
            oldest = next(iter(self._found))
            if len(self._found) <= _MOST_ISSUED and now - self._found[oldest] < _ISSUED_S:
                break
            del self._found[oldest]
        needed = {lineage for lineage, _ in self._found}
        for lineage in self._former.keys() - needed:
            del self._former[lineage]


class ThreadedFinder(ABC):
    """Base of finders whose searches run in threads of their own; see :class:`court.ports.PrecedentFinder`.

    Attributes:
        encoder: Encoder by which memes are compared.
    """

    def __init__(self, encoder: Encoder, threads: int, name: str) -> None:
        """Starts no thread yet; ``name`` is what they will be called."""
        self.encoder = encoder
        # Not the event loop's own pool: searches would wait behind whatever else runs there, and the other way round.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def close(self) -> None:
        """Lets go of the threads, once what they search is found."""
        self._threads.shutdown()

    @abstractmethod
    def _search(self, query: Callable[[], Query], wanted: SearchRequest) -> Callable[[], Findings]:
        """Returns a search of the library of this moment, to be made in a thread; the query is embedded there."""

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

        Args:
            text: Text of the meme; empty if it has none.
            frames: Representative frames of its picture; none where it has no picture.
            pixels_sha256: Digest of its normalised pixels.
            exhibits: Number of precedents to show.
            tally: Least number of precedents to count.
            alpha: Weight of the text, in [0, 1]; None for the library's own.
            exclude: Ids of precedents to leave out.
            where: Which precedents may be found; None for all.
            leave_out_duplicates: True to leave out the meme itself and its near-duplicates: the same picture, the same
                text, or both halves as near as :data:`retrieval.precedents.search.NEAR` says.

        Raises:
            BadLibrary: The library is damaged; or, where others may replace it, is not there any more or was made with
                another encoder.
            ValueError: Alpha is outside [0, 1], or a number below 0.
            Unavailable: The search could not be made now.
        """
        wanted = SearchRequest(
            exhibits=exhibits,
            tally=tally,
            alpha=alpha,
            exclude=exclude,
            where=where,
            leave_out_duplicates=leave_out_duplicates,
        )
        # Embedded in the thread as well: an encoder may take longer than the search.
        query = partial(Query.embedded, self.encoder, text=text, frames=frames, pixels_sha256=pixels_sha256)
        return await self._in_thread(self._search(query, wanted), "searched")

    async def _in_thread(self, work: Callable[[], T], done: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            # What they say may hold addresses of memory or paths: it stays in the cause, and no caller sees it.
            raise Unavailable(
                f"The precedent library could not be {done}. Try again; if it happens again, restart the court.",
                reason="SEARCH_FAILED",
            ) from error


class LibraryFinder(ThreadedFinder):
    """Finds precedents in a library that may be swapped for another while it is searched."""

    def __init__(self, library: Library, encoder: Encoder) -> None:
        """Raises BadLibrary if the library was made with another encoder."""
        super().__init__(encoder, _THREADS, "precedents")
        self._issued = _IssuedIds()
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
        """The library that is searched now."""
        return self._snapshot.library

    def swap(self, library: Library) -> None:
        """Searches this library from now on; a search that has begun ends in the former.

        It is made warm before, which for a large library of other rows takes a while: not to be called where that is
        waited for.

        Raises:
            BadLibrary: The library was made with another encoder.
        """
        snapshot = self._ready(library, self._snapshot)
        # Before it is searched: the former answers as quickly as ever meanwhile.
        snapshot.warm(None)
        self._snapshot = snapshot

    def warm(self, progress: Progress | None = None) -> None:
        """Makes the first search as quick as the next: before that they find the same, but later.

        The vectors are read from the disk, and of a large library what names candidates among its rows; where that is
        not there yet, or is damaged, it is made.

        Args:
            progress: Told how many rows that is made of, if it has to be; then how many bytes of vectors are read.

        Raises:
            RuntimeError: FAISS failed.
        """
        self._snapshot.warm(progress)

    @override
    def _search(self, query: Callable[[], Query], wanted: SearchRequest) -> Callable[[], Findings]:
        # Taken once: should the library be swapped while this waits for a thread, all of it is still searched in one.
        snapshot = self._snapshot

        def work() -> Findings:
            findings = search_library(snapshot, query(), wanted)
            self._issued.note(snapshot.library.manifest.lineage, [exhibit.id for exhibit in findings.exhibits])
            return findings

        return work

    async def account(self) -> LibraryInfo:
        """Describes the library that is searched now."""
        return LibraryInfo.of(self._snapshot)

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Pictures of precedents: see :class:`court.ports.PrecedentFinder`.

        They are looked for in the library that they were found in: within one, an id is never given to a second meme,
        and where a library was replaced by another, what was found in the former of late is still shown from it. An id
        that was found in both, with different pictures, has none, since nobody can say which is meant.

        Raises:
            BadLibrary: A picture is not what it was when written: it is not shown, nor passed over in silence.
            Unavailable: They could not be read now.
        """
        snapshot = self._snapshot

        def picture(id_: str) -> Frame | None:
            found = [one.picture(id_) for one in self._issued.where(id_, snapshot)]
            return found[0] if all(one == found[0] for one in found) else None

        return await self._in_thread(lambda: [picture(id_) for id_ in ids], "read")

    def _ready(self, library: Library, before: _Snapshot | None) -> _Snapshot:
        if library.manifest.encoder != self.encoder.identity:
            raise BadLibrary(
                f"The precedent library was made with the encoder {library.manifest.encoder}, but "
                f"{self.encoder.identity} is loaded.",
                reason="LIBRARY_FOREIGN",
            )
        if before is not None and before.library.manifest.lineage != library.manifest.lineage:
            self._issued.replaced(before, library.manifest.lineage)
        return _Snapshot(library, before)


def _rows_of(library: Library, ids: Collection[str]) -> list[int]:
    if len(ids) <= _MANY:
        return [row for id_ in ids if (row := library.row_of(id_)) is not None]
    # Gone through once, rather than asked for one by one.
    wanted = set(ids)
    live = range(library.flags.size) if library.live is None else library.live.tolist()
    return [row for row, id_ in zip(live, library.ids(), strict=True) if id_ in wanted]


def _and(rows: NDArray[np.bool_], others: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return rows if others is None else rows & others
