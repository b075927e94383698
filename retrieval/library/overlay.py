"""Overlay: the journal's changes to a generation: added memes, hidden rows, changed labels.

Overlays are immutable; a :class:`DeltaBuilder` makes the next one. They share only the array that holds the vectors of
added memes: it grows behind the rows that any overlay uses, so that adding one meme copies nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from retrieval.embed.encoder import UNIT_TOLERANCE, EncoderIdentity
from retrieval.library.changes import Change, Effect
from retrieval.library.journal import JournalEntry
from retrieval.library.manifest import JOURNAL, LabelledMeme
from retrieval.library.storage import damaged
from retrieval.library.verify import Base

_FIRST = 64
"""Rows that there is room for at first."""


class _RowBuffer:
    """Rows shared by overlays; only the overlay that holds the last row may append."""

    def __init__(self, dim: int, rows: NDArray[np.float32] | None = None) -> None:
        self.lock = threading.Lock()
        self.count = 0 if rows is None else len(rows)
        # Twice the capacity, so that rows added one by one are seldom copied.
        self.rows = np.zeros((max(_FIRST, 2 * self.count), dim), dtype=np.float32)
        if rows is not None:
            self.rows[: self.count] = rows


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of a generation up to some point of its journal.

    Attributes:
        memes: The added memes, with the offsets of their thumbnails in the journal.
        flags: uint8 of shape (base + added,); None if they are the base's own.
        places: Row of each added meme by id, without hidden ones.
        hidden: Rows that searches don't find.
        bytes_added: Size in bytes of the added thumbnails, less that of hidden ones.
    """

    rows: NDArray[np.float32]
    memes: tuple[LabelledMeme, ...] = ()
    flags: NDArray[np.uint8] | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    hidden: frozenset[int] = frozenset()
    edited: Mapping[int, LabelledMeme] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    by_meme: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    bytes_added: int = 0
    room: _RowBuffer | None = None

    @classmethod
    def none(cls, dim: int) -> Delta:
        """Returns the delta of an unchanged generation."""
        return cls(rows=np.zeros((0, dim), dtype=np.float32))


class DeltaBuilder:
    """Collects the changes that make the next overlay. Not thread-safe."""

    def __init__(self, base: Base, flags: NDArray[np.uint8], overlay: Delta, encoder: EncoderIdentity) -> None:
        self._base = base
        self._flags = flags
        self._overlay = overlay
        self._encoder = encoder
        # Copies, because the old overlay is being searched meanwhile.
        self._memes = list(overlay.memes)
        self._vectors: list[NDArray[np.float32]] = []
        self._places = dict(overlay.places)
        self._hidden = set(overlay.hidden)
        self._edited = dict(overlay.edited)
        self._changes = list(overlay.changes)
        self._by_meme = dict(overlay.by_meme)
        self._bytes = overlay.bytes_added
        self._touched: set[int] = set()

    @property
    def next_row(self) -> int:
        """Row of the next added meme."""
        return self._base.size + len(self._memes)

    @property
    def size(self) -> int:
        """Number of visible memes."""
        return self.next_row - len(self._hidden)

    def row_of(self, id_: str) -> int | None:
        """Returns the row of a visible meme; None if there is none. Raises BadLibrary."""
        if id_ in self._places:
            return self._places[id_]
        row = self._base.row_of(id_)
        return None if row is None or row in self._hidden else row

    def overlaid_meme(self, row: int) -> LabelledMeme | None:
        """The meme in this row if it was added or edited; else None."""
        return self._memes[row - self._base.size] if row >= self._base.size else self._edited.get(row)

    def changes_of(self, meme: str) -> tuple[Change, ...]:
        """Changes of a meme of this generation's journal, in order."""
        return self._by_meme.get(meme, ())

    def change(self, number: int) -> Change | None:
        """The change of this number in this generation's journal; None if there is none."""
        # Found by its distance from the first, which is why apply refuses gaps.
        place = number - self._changes[0].number if self._changes else -1
        return self._changes[place] if 0 <= place < len(self._changes) else None

    def apply(self, entry: JournalEntry) -> None:
        """Applies one more change. Raises BadLibrary if it contradicts the current state."""
        # A journal with valid digests can still be written by hand, so nothing in it is trusted.
        change, row = entry.change, entry.change.row
        meme = change.after
        if self._changes and change.number != self._changes[-1].number + 1:
            raise _unfit()
        if change.effect is Effect.APPEND:
            if meme is None or entry.vector is None or row != self.next_row or self.row_of(meme.id) is not None:
                raise _unfit()
            if not fits(entry.vector, meme, self._encoder):
                raise _unfit()
            self._memes.append(meme.model_copy(update={"kept": entry.kept}))
            self._vectors.append(entry.vector)
            self._places[meme.id] = row
            self._bytes += entry.kept.size if entry.kept else 0
        elif row >= self.next_row:
            raise _unfit()
        elif change.effect is Effect.HIDE:
            if self.row_of(change.meme) != row or change.before is None:
                raise _unfit()
            self._hidden.add(row)
            # A meme of the base has no entry here: the base's table finds it, and hiding leaves it out.
            self._places.pop(change.meme, None)
            self._bytes -= change.before.kept.size if change.before.kept else 0
        elif change.effect is Effect.SHOW:
            # Its id may have been taken while it was hidden, and two visible rows must never share an id.
            if row not in self._hidden or meme is None or self.row_of(meme.id) is not None:
                raise _unfit()
            self._hidden.remove(row)
            self._bytes += meme.kept.size if meme.kept else 0
            if row >= self._base.size:
                self._places[meme.id] = row
        else:
            if meme is None or self.row_of(change.meme) != row or meme.id != change.meme:
                raise _unfit()
            self._touched.add(row)
            if row >= self._base.size:
                self._memes[row - self._base.size] = meme
            else:
                self._edited[row] = meme
        self._changes.append(change)
        # A new tuple rather than an extended list, as the previous overlay has the old one.
        self._by_meme[change.meme] = (*self.changes_of(change.meme), change)

    def done(self) -> Delta:
        """Returns the next overlay; the builder must not be used again."""
        before = self._overlay
        room, rows = self._grown()
        flags = before.flags
        # Hiding and showing don't change flags, so the array stays shared.
        if self._vectors or self._touched:
            old = self._flags if before.flags is None else before.flags
            new = [meme.flags for meme in self._memes[len(before.memes) :]]
            flags = np.concatenate([old, np.array(new, dtype=np.uint8)])
            for row in self._touched:
                meme = self.overlaid_meme(row)
                assert meme is not None
                flags[row] = meme.flags
            # Searches in other threads read this array without a lock.
            flags.flags.writeable = False
        # The builder's own copies are handed over without copying, which is why it must not be used again.
        return replace(
            before,
            rows=rows,
            memes=tuple(self._memes),
            flags=flags,
            places=self._places,
            hidden=frozenset(self._hidden),
            edited=self._edited,
            changes=tuple(self._changes),
            by_meme=self._by_meme,
            bytes_added=self._bytes,
            room=room,
        )

    def _grown(self) -> tuple[_RowBuffer | None, NDArray[np.float32]]:
        before = self._overlay
        if not self._vectors:
            return before.room, before.rows
        there, more = len(before.rows), len(self._vectors)
        room = before.room or _RowBuffer(self._encoder.dim)
        with room.lock:
            # Without the last rows, or without capacity behind them, copy and grow the copy.
            if room.count == there and there + more <= len(room.rows):
                room.rows[there : there + more] = self._vectors
                room.count += more
                return room, room.rows[: room.count]
        room = _RowBuffer(self._encoder.dim, np.concatenate([before.rows, self._vectors]))
        return room, room.rows[: room.count]


def fits(vector: NDArray[np.float32], meme: LabelledMeme, encoder: EncoderIdentity) -> bool:
    """True if a vector, shape (text_dim + picture_dim,), fits this meme: halves of length 1, or 0 for none."""
    # The shape first: a vector that is too short could still be split into plausible halves.
    if vector.shape != (encoder.dim,):
        return False
    # In float64 no square of a float32 overflows.
    wide = vector.astype(np.float64)
    halves = ((wide[: encoder.text_dim], meme.has_text), (wide[encoder.text_dim :], meme.has_picture))
    # A length that is not finite compares as false and is rejected too.
    return all(abs(float(np.linalg.norm(half)) - has) <= UNIT_TOLERANCE for half, has in halves)


def _unfit() -> Exception:
    return damaged(f"a change in {JOURNAL} does not fit what is there")
