"""Changes a library one meme at a time, while it is searched.

A change is validated against the current library, appended to the journal of its generation, and committed by updating
``CURRENT``; only then is it acknowledged. Concurrent changes are written together (group commit), as syncing takes the
time and not writing. Several processes may change one library: each takes the lock while it writes, and first reads the
changes of the others.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from court.errors import CourtError
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library import journal, storage
from retrieval.library.change_rules import CurrentLibrary
from retrieval.library.changes import CantChange, Change, Recorded
from retrieval.library.journal import JournalEntry
from retrieval.library.library import Library
from retrieval.library.manifest import JOURNAL, LabelledMeme
from retrieval.library.overlay import DeltaBuilder
from retrieval.library.ports import Plan, Writer

MOST = 100_000
"""Maximum changes in the journal of a generation, all of which are read when the library is opened."""
_WAIT_S = 10.0
"""Seconds to wait for another writer, which usually holds the lock for hundredths of a second."""
_GATHER_S = 0.005
"""Seconds to wait for further changes to group: a sync takes longer, and the same time for one as for many."""


@dataclass
class _Draft(CurrentLibrary):
    """A library with the changes that are about to be appended."""

    library: Library
    delta: DeltaBuilder

    def live(self, id_: str) -> tuple[int, LabelledMeme] | None:
        row = self.delta.row_of(id_)
        return None if row is None else (row, self.delta.overlaid_meme(row) or self.library.read([row])[0])

    def changes_of(self, meme: str) -> list[Change]:
        return [*self.library.base.table.changes(meme), *self.delta.changes_of(meme)]

    def change(self, number: int) -> tuple[Change, bytes | None, bytes | None] | None:
        since = self.delta.change(number)
        # Data removed since the generation was written is still in its row.
        return (since, None, None) if since is not None else self.library.base.table.change(number)


class LibraryWriter(Writer):
    """Changes a library. Thread-safe; each caller waits until its change is on disk."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._waiting: list[tuple[Plan, Future[Change]]] = []
        lock = threading.Lock()
        # Two conditions on one lock, so that waiting for a write to end and waiting for more changes wake separately.
        self._changed = threading.Condition(lock)
        self._arrived = threading.Condition(lock)
        # One at first, so that the first change doesn't wait for others to join it.
        self._expected = 1
        self._writing = False

    @classmethod
    def open(cls, root: Path) -> LibraryWriter:
        """Opens the library in this directory for writing. Raises BadLibrary."""
        return cls(Library.open(root, None))

    @property
    def library(self) -> Library:
        """Library after the last change made by this writer."""
        return self._library

    @property
    def encoder(self) -> EncoderIdentity:
        """Identity of the encoder that made the library."""
        return self._library.manifest.encoder

    def meme(self, id_: str) -> LabelledMeme | None:
        """The current meme of this id; None if there is none. Raises BadLibrary."""
        library = self._caught_up()
        row = library.row_of(id_)
        return None if row is None else library.read([row])[0]

    def history(self, meme: str | None = None) -> list[Recorded]:
        """Returns the history of the current library, as :meth:`Library.history`. Raises BadLibrary."""
        return self._caught_up().history(meme)

    def compact(self, *, forget: bool = False) -> Library:
        """Writes a new generation without hidden rows and with an empty journal.

        Raises:
            BadLibrary: The library is damaged.
            BadRequest: No precedent is left.
            Unavailable: Another writer holds the lock for too long.
            OSError: The disk is full or can't be written to; the old generation stays current.
        """
        # Readers continue meanwhile, but no change can be made until it is done.
        with self._changed:
            # The lock on disk keeps other processes out; this waits for threads of this process, without a timeout.
            self._changed.wait_for(lambda: not self._writing)
            self._writing = True
        try:
            with storage.writing(self._library.root, _WAIT_S):
                self._library = self._caught_up().rewritten(forget=forget)
                return self._library
        finally:
            self._done_writing()

    def forget(self) -> None:
        """Permanently deletes removed memes, as :meth:`compact`."""
        self.compact(forget=True)

    def _made(self, plan: Plan) -> Change:
        outcome: Future[Change] = Future()
        with self._changed:
            self._waiting.append((plan, outcome))
            self._arrived.notify()
            # The first caller to find no active writer writes for all waiting callers; the others find theirs done.
            self._changed.wait_for(lambda: outcome.done() or not self._writing)
            if outcome.done():
                return outcome.result()
            self._writing = True
            # Callers whose changes were just written may send more; without waiting for them there would be two groups,
            # each waiting while the other writes.
            self._arrived.wait_for(lambda: len(self._waiting) >= self._expected, _GATHER_S)
            waiting, self._waiting = self._waiting, []
        try:
            self._write(waiting)
        finally:
            self._done_writing(len(waiting))
        return outcome.result()

    def _done_writing(self, written: int = 0) -> None:
        with self._changed:
            self._writing = False
            # Expected size of the next group: the callers just answered, who may return, and those already waiting.
            self._expected = written + len(self._waiting)
            self._changed.notify_all()

    def _write(self, waiting: list[tuple[Plan, Future[Change]]]) -> None:
        made: list[tuple[Change, Future[Change]]] = []
        try:
            with storage.writing(self._library.root, _WAIT_S):
                self._library = self._caught_up()
                self._append(waiting, made)
        except BaseException as error:
            # On any error, even Ctrl-C: the callers wait without a timeout, and nobody else will answer them.
            for _, outcome in waiting:
                if not outcome.done():
                    outcome.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            # Acknowledged only now that CURRENT names them, so that acknowledged changes survive any crash.
            for change, outcome in made:
                outcome.set_result(change)

    def _append(self, waiting: list[tuple[Plan, Future[Change]]], made: list[tuple[Change, Future[Change]]]) -> None:
        library = self._library
        draft, pointer, frames = library.draft(), library.pointer, bytearray()
        head = pointer.head
        # Numbers continue across generations: compacting doesn't change the number of a change.
        number = library.manifest.changes + len(library.overlay.changes)
        # Each is planned on top of those before it: of two changes of one meme, the second sees the first.
        for plan, outcome in waiting:
            try:
                if number - library.manifest.changes >= MOST:
                    raise CantChange(
                        f"{MOST:,} changes were made since the library was last written whole. "
                        "Run `memecourt precedents compact`, then make it again.",
                        reason="LIBRARY_NEEDS_COMPACTING",
                    )
                now = _Draft(
                    encoder=self.encoder,
                    size=draft.size,
                    next_number=number + 1,
                    next_row=draft.next_row,
                    written=library.manifest.changes,
                    library=library,
                    delta=draft,
                )
                planned = plan(now)
                frame = journal.frame_of(planned.change, planned.vector, planned.picture)
                # Offsets of pictures are counted as if the journal followed the generation's file (JoinedPictures).
                start = library.pictures_end + pointer.journal_size + len(frames)
                stored = journal.picture_of_frame(frame, start, planned.picture)
                # Applied by the rules for reading, so that nothing is written that could not be read back.
                draft.apply(JournalEntry(planned.change, planned.vector, stored))
            except (CourtError, ValueError) as error:
                # Only this change fails; the others are written.
                outcome.set_exception(error)
                continue
            head = journal.next_head(head, frame)
            frames += frame
            number += 1
            made.append((planned.change, outcome))
        if not made:
            return
        # In this order: after a crash between the two, CURRENT does not cover the new bytes, and the next writer
        # truncates them.
        journal.append(library.directory / JOURNAL, pointer.journal_size, bytes(frames))
        pointer = replace(pointer, journal_size=pointer.journal_size + len(frames), head=head)
        storage.announce(library.root, pointer)
        # Only after CURRENT: if a write fails, this writer still has the library that is on disk.
        self._library = library.with_draft(draft, pointer)

    def _caught_up(self) -> Library:
        return self._library.newer() or self._library
