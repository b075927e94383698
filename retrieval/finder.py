"""The court's precedent finder over a library on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from court.errors import BadLibrary, Unavailable
from court.meme import Frame
from court.precedents import Findings, LibraryIdentity, Precedent, Relation, Search, TallyEntry
from retrieval.embedding import Encoder
from retrieval.index import FusedIndex, Hits
from retrieval.kept import frame_of
from retrieval.library import Library
from retrieval.text import text_key

T = TypeVar("T")

_THREADS = 2
"""Searches at once. More only wait for each other: the model takes one text at a time, a scan fills the memory bus."""


class _Snapshot:
    """A library made ready to be searched; never changed, so that a search that has one sees one library to its end."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.index = FusedIndex(library.rows, library.manifest.encoder.text_dim)
        self.harmful = np.array([meme.harmful for meme in library.memes])
        self.rows_by_id = {meme.id: row for row, meme in enumerate(library.memes)}

    def picture(self, id_: str) -> Frame | None:
        """Of the meme with this id; None where there is none. Raises BadLibrary or OSError."""
        row = self.rows_by_id.get(id_)
        kept = None if row is None else self.library.picture(row)
        return None if kept is None else frame_of(kept)


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
        self._snapshot = self._ready(library)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="precedents")

    @property
    def library(self) -> LibraryIdentity:
        """What is searched."""
        return self._snapshot.library.identity

    def swap(self, library: Library) -> None:
        """Searches this library from now on; a search that has begun ends in the former.

        Raises:
            BadLibrary: It was made with another encoder.
        """
        self._snapshot = self._ready(library)

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

        Raises:
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
            return _search(snapshot, query, exhibits, tally, alpha, exclude)

        return await self._in_thread(work, "searched")

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Pictures of precedents: see :class:`court.ports.PrecedentFinder`.

        They are looked for in the library as it is now; an id that is no longer in it has none.

        Raises:
            BadLibrary: A picture is not what it was when written: it is not shown, nor passed over in silence.
            Unavailable: They could not be read now.
        """
        snapshot = self._snapshot
        return await self._in_thread(lambda: [snapshot.picture(id_) for id_ in ids], "read")

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

    def _ready(self, library: Library) -> _Snapshot:
        if library.manifest.encoder != self._encoder.identity:
            raise BadLibrary(
                f"The precedent library was made with the encoder {library.manifest.encoder}, but "
                f"{self._encoder.identity} is loaded.",
                reason="LIBRARY_FOREIGN",
            )
        return _Snapshot(library)


def _search(
    snapshot: _Snapshot, query: _Query, exhibits: int, tally: int, alpha: float | None, exclude: Collection[str]
) -> Findings:
    library = snapshot.library
    tuning = library.manifest.tuning
    asked = tuning.alpha if alpha is None else alpha
    tally = max(tally, tuning.vote.k)
    used, notes = _weights(library, query, asked)
    excluded = [snapshot.rows_by_id[id_] for id_ in exclude if id_ in snapshot.rows_by_id]
    if excluded:
        notes.append(f"{len(excluded)} precedents were left out on purpose.")

    found: tuple[Precedent, ...] = ()
    counted: tuple[TallyEntry, ...] = ()
    nearest: dict[bool, Precedent | None] = {True: None, False: None}
    if used is not None:
        hits = snapshot.index.search(query.text, query.picture, alpha=used, k=max(exhibits, tally, 1), exclude=excluded)
        found = _precedents(library, query, hits, exhibits)
        counted = tuple(_entry(library, hits, place) for place in range(min(tally, hits.rows.size)))
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
                    among=snapshot.harmful == harmful,
                )
            nearest[harmful] = next(iter(_precedents(library, query, best, 1)), None)
        notes += _gaps(library, hits.rows[:exhibits], used)
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
    counts = library.manifest.counts
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


def _gaps(library: Library, rows: NDArray[np.int64], alpha: float) -> list[str]:
    """Notes on exhibits, the memes in these rows, that lack a half which the others are compared by."""
    shown = [library.memes[int(row)] for row in rows]
    without_text = sum(not meme.has_text for meme in shown) if alpha > 0 else 0
    without_picture = sum(not meme.has_picture for meme in shown) if alpha < 1 else 0
    return [
        f"Of the {len(shown)} precedents shown, {count} without a {half}: their {half} similarity counts as 0."
        for count, half in ((without_text, "text"), (without_picture, "picture"))
        if count
    ]


def _precedents(library: Library, query: _Query, hits: Hits, most: int) -> tuple[Precedent, ...]:
    return tuple(_precedent(library, query, hits, place) for place in range(min(most, hits.rows.size)))


def _precedent(library: Library, query: _Query, hits: Hits, place: int) -> Precedent:
    meme = library.memes[int(hits.rows[place])]
    compared_text = meme.has_text and query.text is not None
    compared_picture = meme.has_picture and query.picture is not None
    same_picture = bool(query.pixels_sha256) and meme.pixels_sha256 == query.pixels_sha256
    same_text = text_key(meme.text) == query.text_key
    if same_picture:
        relation = Relation.SAME_MEME if same_text else Relation.SAME_PICTURE
    else:
        relation = Relation.SAME_TEXT if same_text and query.text_key else Relation.SIMILAR
    return Precedent(
        id=meme.id,
        label=meme.label,
        text=meme.text,
        similarity=float(hits.scores[place]),
        text_similarity=float(hits.text[place]) if compared_text else None,
        picture_similarity=float(hits.picture[place]) if compared_picture else None,
        relation=relation,
        categories=meme.categories,
        source=meme.source,
    )


def _entry(library: Library, hits: Hits, place: int) -> TallyEntry:
    meme = library.memes[int(hits.rows[place])]
    return TallyEntry(id=meme.id, label=meme.label, similarity=float(hits.scores[place]))
