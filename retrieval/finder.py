"""The court's precedent finder over a library on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from court.errors import BadLibrary, Unavailable
from court.meme import Frame
from court.precedents import Findings, Floors, LibraryIdentity, Precedent, Relation, Search, TallyEntry
from retrieval.embedding import Encoder
from retrieval.fast_stage import EXACT_UP_TO, Progress, open_or_build
from retrieval.filters import Filter
from retrieval.index import FusedIndex, Hits
from retrieval.kept import frame_of
from retrieval.library import Library, harmful_rows
from retrieval.manifest import VECTORS, LabelledMeme
from retrieval.segments import SegmentedIndex
from retrieval.text import text_key

T = TypeVar("T")

_THREADS = 2
"""Searches at once. More only wait for each other: the model takes one text at a time, a scan fills the memory bus."""

NEAR = Floors(text=0.80, picture=0.70)
"""Similarities from which on, in both halves, two memes are nearly the same, as in a benchmark's check."""
_FEW_TWINS, _MOST_TWINS = 64, 4096
"""Rows looked at for near-duplicates, at first and at most."""
_FAST = "fast.faiss"
"""Beside the files of a generation: a cache that is made anew where it does not fit."""
_FILTERS = 32
"""Choices of rows kept for the next search with the same filter; each is a byte a row."""
_MANY = 1000
"""Ids from which on all are gone through."""
_GIVEN, _GIVEN_S = 10_000, 900.0
"""Precedents whose library is remembered, and for how many seconds: a trial asks for pictures soon after."""


class _Snapshot:
    """A library made ready to be searched; never changed, so that a search that has one sees one library to its end."""

    def __init__(self, library: Library, before: _Snapshot | None = None) -> None:
        """``before`` is what was searched until now: of the same generation, its index is taken over."""
        self.library = library
        text_dim = library.manifest.encoder.text_dim
        same = before is not None and before.library.base is library.base
        # Until it is warm, it scans all rows.
        self.base: FusedIndex = before.base if before and same else FusedIndex(library.base.rows, text_dim)
        added = FusedIndex(library.overlay.rows, text_dim)
        self.index = SegmentedIndex([self.base, added], library.overlay.hidden)
        self.harmful = harmful_rows(library)
        self._chosen: dict[Filter, NDArray[np.bool_]] = {}

    def warm(self, progress: Progress | None) -> None:
        """Of many rows, reads or makes what names candidates among them. Raises RuntimeError if FAISS fails."""
        if self.base.fast is None and len(self.base) > EXACT_UP_TO:
            path = self.library.directory / _FAST
            digest = self.library.manifest.files[VECTORS].sha256
            self.base.fast = open_or_build(path, self.base.rows, self.base.text_dim, digest, progress)

    def choose(self, where: Filter | None) -> NDArray[np.bool_] | None:
        """Which rows may be found, shape (rows,); None for all. Raises BadLibrary."""
        if where is None or where == Filter():
            return None
        chosen = self._chosen.get(where)
        if chosen is None:
            chosen = self.library.choose(where)
            if len(self._chosen) < _FILTERS:
                self._chosen[where] = chosen
        return chosen

    def picture(self, id_: str) -> Frame | None:
        """Of the meme with this id; None where there is none. Raises BadLibrary or OSError."""
        row = self.library.row_of(id_)
        kept = None if row is None else self.library.picture_of(self.library.read([row])[0])
        return None if kept is None else frame_of(kept)


class _Given:
    """Which precedents were found of late in which lineage: in another library an id may mean another meme."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], float] = {}
        self._former: dict[str, _Snapshot] = {}

    def note(self, lineage: str, ids: Collection[str]) -> None:
        """These were found in it."""
        now = time.monotonic()
        with self._lock:
            for id_ in ids:
                self._found.pop((lineage, id_), None)
                self._found[lineage, id_] = now
            self._forget(now)

    def replaced(self, former: _Snapshot, lineage: str) -> None:
        """From now on another library is searched, of this lineage."""
        with self._lock:
            self._former[former.library.manifest.lineage] = former
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
            if len(self._found) <= _GIVEN and now - self._found[oldest] < _GIVEN_S:
                break
            del self._found[oldest]
        needed = {lineage for lineage, _ in self._found}
        for lineage in self._former.keys() - needed:
            del self._former[lineage]


@dataclass(frozen=True, slots=True)
class _Query:
    """What is looked for, embedded.

    Attributes:
        text: float32 of shape (text_dim,), or None where there is none to compare.
        picture: float32 of shape (picture_dim,), or None where there is none to compare.
        text_key: To tell the same text.
        pixels_sha256: To tell the same picture.
        text_cut: Whether the text is longer than the encoder reads.
    """

    text: NDArray[np.float32] | None
    picture: NDArray[np.float32] | None
    text_key: str
    pixels_sha256: str
    text_cut: bool


class LibraryFinder:
    """Finds precedents in a library that may be swapped for another while it is searched."""

    def __init__(self, library: Library, encoder: Encoder) -> None:
        """Raises BadLibrary if the library was made with another encoder."""
        self._encoder = encoder
        self._given = _Given()
        self._snapshot = self._ready(library, None)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="precedents")

    @property
    def library(self) -> LibraryIdentity:
        """What is searched."""
        return self._snapshot.library.identity

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all precedents that can be found now."""
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
            BadLibrary: It was made with another encoder.
        """
        snapshot = self._ready(library, self._snapshot)
        snapshot.warm(None)
        self._snapshot = snapshot

    def warm(self, progress: Progress | None = None) -> None:
        """Makes searches of a large library quick: before that they scan all rows, and find the same.

        Args:
            progress: Told how many rows are encoded, if what names candidates among them has to be made.

        Raises:
            RuntimeError: FAISS failed.
        """
        self._snapshot.warm(progress)

    def close(self) -> None:
        """Lets go of the threads, once what they search is found."""
        self._threads.shutdown()

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
            text: Of the meme; empty where it has none.
            frames: Representative frames of its picture; none where it has no picture.
            pixels_sha256: Digest of its normalised pixels.
            exhibits: How many to show.
            tally: How many to count at least.
            alpha: Weight of the text, in [0, 1]; None for the library's own.
            exclude: Ids of precedents to leave out.
            where: Which precedents may be found; None for all.
            leave_out_duplicates: Whether to leave out the meme itself and what is nearly it: the same picture, the same
                text, or both halves as near as :data:`NEAR` says.

        Raises:
            BadLibrary: The library's table of memes can't be read.
            ValueError: Alpha is outside [0, 1], or a number below 0.
            Unavailable: The search could not be made now.
        """
        if alpha is not None and not 0 <= alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1], not {alpha}")
        if exhibits < 0 or tally < 0:
            raise ValueError("exhibits and tally can't be negative")
        snapshot = self._snapshot

        def work() -> Findings:
            query = self._embed(text, frames, pixels_sha256)
            asked = _Asked(exhibits, tally, alpha, exclude, where, leave_out_duplicates)
            findings = _search(snapshot, query, asked)
            self._given.note(snapshot.library.manifest.lineage, [exhibit.id for exhibit in findings.exhibits])
            return findings

        return await self._in_thread(work, "searched")

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
            found = [one.picture(id_) for one in self._given.where(id_, snapshot)]
            return found[0] if all(one == found[0] for one in found) else None

        return await self._in_thread(lambda: [picture(id_) for id_ in ids], "read")

    async def _in_thread(self, work: Callable[[], T], done: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            raise Unavailable(
                f"The precedent library could not be {done}. Try again; if it happens again, restart the court.",
                reason="SEARCH_FAILED",
            ) from error

    def _embed(self, text: str, frames: Sequence[Frame], pixels_sha256: str) -> _Query:
        texts = self._encoder.embed_texts([text])
        pictures = self._encoder.embed_pictures([[frame.png for frame in frames]]) if frames else None
        return _Query(
            text=texts.vectors[0] if texts.vectors[0].any() else None,
            picture=pictures[0] if pictures is not None and pictures[0].any() else None,
            text_key=text_key(text),
            pixels_sha256=pixels_sha256,
            text_cut=texts.cut[0],
        )

    def _ready(self, library: Library, before: _Snapshot | None) -> _Snapshot:
        if library.manifest.encoder != self._encoder.identity:
            raise BadLibrary(
                f"The precedent library was made with the encoder {library.manifest.encoder}, but "
                f"{self._encoder.identity} is loaded.",
                reason="LIBRARY_FOREIGN",
            )
        if before is not None and before.library.manifest.lineage != library.manifest.lineage:
            self._given.replaced(before, library.manifest.lineage)
        return _Snapshot(library, before)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked for, as :meth:`LibraryFinder.find` takes it."""

    exhibits: int
    tally: int
    alpha: float | None
    exclude: Collection[str]
    where: Filter | None
    leave_out_duplicates: bool


def _search(snapshot: _Snapshot, query: _Query, wanted: _Asked) -> Findings:
    library = snapshot.library
    tuning = library.manifest.tuning
    exhibits = wanted.exhibits
    asked = tuning.alpha if wanted.alpha is None else wanted.alpha
    tally = max(wanted.tally, tuning.vote.k)
    used, notes = _weights(library, query, asked)
    excluded = _rows_of(library, wanted.exclude)
    if excluded:
        notes.append(f"{len(excluded)} precedents were left out on purpose.")
    chosen = snapshot.choose(wanted.where)
    if chosen is not None:
        count = np.count_nonzero(chosen) - sum(bool(chosen[row]) for row in library.overlay.hidden)
        notes.append(f"Only {count:,} of {library.counts.memes:,} precedents were searched, as was asked for.")
    if wanted.leave_out_duplicates:
        twins = _duplicates(snapshot, query, chosen) - set(excluded)
        excluded += sorted(twins)
        if twins:
            notes.append(f"{len(twins)} precedents were left out as the same meme or nearly the same.")

    found: tuple[Precedent, ...] = ()
    counted: tuple[TallyEntry, ...] = ()
    nearest: dict[bool, Precedent | None] = {True: None, False: None}
    if used is not None:
        hits = snapshot.index.search(
            query.text, query.picture, alpha=used, k=max(exhibits, tally, 1), exclude=excluded, among=chosen
        )
        memes = library.read(hits.rows.tolist())
        found = _precedents(memes, query, hits, exhibits)
        counted = tuple(_entry(meme, hits, place) for place, meme in enumerate(memes[:tally]))
        for harmful in nearest:
            # Mostly among what was found; else the whole ranking of that label is searched for its first.
            among = np.flatnonzero(snapshot.harmful[hits.rows] == harmful)[:1]
            best = Hits(hits.rows[among], hits.scores[among], hits.text[among], hits.picture[among])
            if not among.size:
                best = snapshot.index.search(
                    query.text,
                    query.picture,
                    alpha=used,
                    k=1,
                    exclude=excluded,
                    among=_and(snapshot.harmful == harmful, chosen),
                )
            nearest[harmful] = next(iter(_precedents(library.read(best.rows.tolist()), query, best, 1)), None)
        notes += _gaps(memes[:exhibits], used)
    return Findings(
        library=library.identity,
        search=Search(
            alpha_asked=asked,
            alpha=asked if used is None else used,
            has_text=query.text is not None,
            has_picture=query.picture is not None,
            exhibits=exhibits,
            tally=tally,
            excluded=len(excluded),
        ),
        floors=tuning.floors,
        exhibits=found,
        nearest_harmful=nearest[True],
        nearest_benign=nearest[False],
        tally=counted,
        vote_settings=tuning.vote,
        settles=tuning.settles,
        text_cut=query.text_cut,
        notes=tuple(notes),
    )


def _weights(library: Library, query: _Query, asked: float) -> tuple[float | None, list[str]]:
    """The weight of the text that can be used, None where nothing can be compared; and what to say of it."""
    counts = library.counts
    notes = []
    if query.text is None:
        notes.append("The meme has no text: it is not compared by text.")
    elif not counts.with_text:
        notes.append("No precedent in the library has a text: the text is not compared.")
    if query.picture is None:
        notes.append("The meme has no picture to compare: it is not compared by picture.")
    elif not counts.with_picture:
        notes.append("No precedent in the library has a picture: the picture is not compared.")
    by_text = query.text is not None and counts.with_text > 0
    by_picture = query.picture is not None and counts.with_picture > 0
    if by_text and by_picture:
        return asked, notes
    if by_text:
        return 1.0, notes
    if by_picture:
        return 0.0, notes
    notes.append("Nothing is left to compare: no precedent is cited.")
    return None, notes


def _rows_of(library: Library, ids: Collection[str]) -> list[int]:
    if len(ids) <= _MANY:
        return [row for id_ in ids if (row := library.row_of(id_)) is not None]
    # Gone through once, rather than asked for one by one.
    wanted = set(ids)
    live = range(library.flags.size) if library.live is None else library.live.tolist()
    return [row for row, id_ in zip(live, library.ids(), strict=True) if id_ in wanted]


def _and(rows: NDArray[np.bool_], others: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return rows if others is None else rows & others


def _duplicates(snapshot: _Snapshot, query: _Query, chosen: NDArray[np.bool_] | None) -> set[int]:
    """Rows of the meme itself and of what is nearly it, among the :data:`_MOST_TWINS` nearest by either half."""
    found: set[int] = set()
    for alpha, half, floor in ((1.0, query.text, NEAR.text), (0.0, query.picture, NEAR.picture)):
        if half is None:
            continue
        k = _FEW_TWINS
        while True:
            hits = snapshot.index.search(query.text, query.picture, alpha=alpha, k=k, among=chosen)
            if hits.rows.size < k or hits.scores[-1] < floor or k >= _MOST_TWINS:
                break
            k *= 4
        near = np.flatnonzero(hits.scores >= floor)
        memes = snapshot.library.read(hits.rows[near].tolist())
        for place, meme in zip(near.tolist(), memes, strict=True):
            both = hits.text[place] >= NEAR.text and hits.picture[place] >= NEAR.picture
            textless = not query.text_key and not meme.has_text and hits.picture[place] >= NEAR.picture
            if both or textless or _relation(meme, query) is not Relation.SIMILAR:
                found.add(int(hits.rows[place]))
    return found


def _gaps(shown: Sequence[LabelledMeme], alpha: float) -> list[str]:
    """Notes on exhibits that lack a half which the others are compared by."""
    without_text = sum(not meme.has_text for meme in shown) if alpha > 0 else 0
    without_picture = sum(not meme.has_picture for meme in shown) if alpha < 1 else 0
    return [
        f"Of the {len(shown)} precedents shown, {count} without a {half}: their {half} similarity counts as 0."
        for count, half in ((without_text, "text"), (without_picture, "picture"))
        if count
    ]


def _precedents(memes: Sequence[LabelledMeme], query: _Query, hits: Hits, most: int) -> tuple[Precedent, ...]:
    return tuple(_precedent(meme, query, hits, place) for place, meme in enumerate(memes[:most]))


def _relation(meme: LabelledMeme, query: _Query) -> Relation:
    same_picture = bool(query.pixels_sha256) and meme.pixels_sha256 == query.pixels_sha256
    same_text = text_key(meme.text) == query.text_key
    if same_picture:
        return Relation.SAME_MEME if same_text else Relation.SAME_PICTURE
    return Relation.SAME_TEXT if same_text and query.text_key else Relation.SIMILAR


def _precedent(meme: LabelledMeme, query: _Query, hits: Hits, place: int) -> Precedent:
    compared_text = meme.has_text and query.text is not None
    compared_picture = meme.has_picture and query.picture is not None
    return Precedent(
        id=meme.id,
        label=meme.label,
        text=meme.text,
        similarity=float(hits.scores[place]),
        text_similarity=float(hits.text[place]) if compared_text else None,
        picture_similarity=float(hits.picture[place]) if compared_picture else None,
        relation=_relation(meme, query),
        categories=meme.categories,
        source=meme.source,
    )


def _entry(meme: LabelledMeme, hits: Hits, place: int) -> TallyEntry:
    return TallyEntry(id=meme.id, label=meme.label, similarity=float(hits.scores[place]))
