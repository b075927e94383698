"""Changing a library one meme at a time, while it is searched.

A change is checked against the library as it is, written behind the others into the journal of its generation, and
holds once ``CURRENT`` says so; only then is it acknowledged. Changes that are asked for at the same time are written
together, since it is the disk's acknowledgement that takes the time and not the writing. Several processes may change
one library: each takes the lock for as long as it writes, and first reads what the others have written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from court.errors import BadRequest, CourtError
from court.precedents import PrecedentLabel
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library import journal, storage
from retrieval.library.changes import (
    CantChange,
    Change,
    Effect,
    Kind,
    NoSuchPrecedent,
    PrecedentExists,
    Recorded,
    last_effective,
    with_revocations,
)
from retrieval.library.journal import Entry
from retrieval.library.library import Library
from retrieval.library.manifest import JOURNAL, LabelledMeme
from retrieval.library.overlay import DeltaBuilder, fits

MOST = 100_000
"""Changes that the journal of a generation may hold: all of them are read when the library is opened."""
_WAIT_S = 10.0
"""Seconds to wait for another writer, who mostly holds the lock for hundredths of one."""
_GATHER_S = 0.005
"""Seconds to wait for those who made changes just before: the disk takes longer, and as long for one as for many."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A change that fits, ready to be written.

    Attributes:
        change: The change.
        vector: float32 of shape (text_dim + picture_dim,) where a meme goes in.
        picture: A JPEG where it keeps one.
    """

    change: Change
    vector: NDArray[np.float32] | None = None
    picture: bytes | None = None


_Plan = Callable[[Library, DeltaBuilder, int], _Planned]
"""Given the library, what became of it since, and the change's number; raises BadRequest if it does not fit."""


class LibraryWriter:
    """Changes a library. Safe to use from several threads, each of which waits until its change is on the disk."""

    def __init__(self, library: Library) -> None:
        """Changes this library, as it is by then."""
        self._library = library
        self._waiting: list[tuple[_Plan, Future[Change]]] = []
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._arrived = threading.Condition(lock)
        self._expected = 1
        self._writing = False

    @classmethod
    def open(cls, root: Path) -> LibraryWriter:
        """Of the library in this directory. Raises BadLibrary."""
        return cls(Library.open(root, None))

    @property
    def library(self) -> Library:
        """As it was after the last change that was made here."""
        return self._library

    @property
    def encoder(self) -> EncoderIdentity:
        """What the library was made with."""
        return self._library.manifest.encoder

    def add(
        self, meme: LabelledMeme, vector: NDArray[np.float32], picture: bytes | None, *, who: str, why: str
    ) -> Change:
        """Puts a meme in, behind the others.

        Args:
            meme: With an id that was never used in this library: records of trials name precedents by it.
            vector: float32 of shape (text_dim + picture_dim,), as :meth:`retrieval.library.library.Library.create`
                takes them.
            picture: What is kept of its picture, a JPEG; None where nothing.
            who: Who puts it in.
            why: For what reason.

        Raises:
            BadLibrary: The library is damaged.
            PrecedentExists: The id is taken, or was.
            BadRequest: There is no name or reason.
            CantChange: Too much was changed since the library was last written whole.
            Unavailable: Somebody else is writing for too long.
            OSError: The disk will not have it; the library is as it was.
            ValueError: The vector is not one of this meme.
        """
        vector = np.array(vector, dtype=np.float32)

        def plan(library: Library, draft: DeltaBuilder, number: int) -> _Planned:
            if not fits(vector, meme, library.manifest.encoder):
                raise ValueError("the vector of a meme has halves of length 1, or 0 where it has none")
            if draft.row_of(meme.id) is not None:
                raise PrecedentExists(f"There is a precedent with the id {meme.id} already.", field="id")
            if _changes_of(library, draft, meme.id):
                raise PrecedentExists(
                    f"There was a precedent with the id {meme.id}, and records may name it. Take another id, or revoke "
                    "its removal.",
                    field="id",
                )
            now = datetime.now(UTC)
            after = meme.model_copy(update={"kept": None, "added": meme.added or now, "who": meme.who or who})
            change = _change(
                number=number, kind=Kind.ADD, who=who, why=why, at=now, meme=meme.id, effect=Effect.APPEND,
                row=draft.next_row, after=after,
            )  # fmt: skip
            return _Planned(change, vector, picture)

        return self._made(plan)

    def remove(self, id_: str, *, who: str, why: str) -> Change:
        """Takes a meme out; it can come back until the history forgets it.

        Raises:
            NoSuchPrecedent: It is not there.
            CantChange: It is the only one.
            And as :meth:`add`.
        """

        def plan(library: Library, draft: DeltaBuilder, number: int) -> _Planned:
            row = _row_of(draft, id_)
            _refuse_to_empty(draft)
            return _Planned(
                _change(
                    number=number, kind=Kind.REMOVE, who=who, why=why, at=datetime.now(UTC), meme=id_,
                    effect=Effect.HIDE, row=row, before=_meme_in(library, draft, row),
                )
            )  # fmt: skip

        return self._made(plan)

    def relabel(self, id_: str, label: PrecedentLabel, *, who: str, why: str) -> Change:
        """Gives a meme another label, which counts as verified; the source's own word stays.

        Raises:
            NoSuchPrecedent: It is not there.
            CantChange: It has that label, and it is verified.
            And as :meth:`add`.
        """

        def plan(library: Library, draft: DeltaBuilder, number: int) -> _Planned:
            row = _row_of(draft, id_)
            before = _meme_in(library, draft, row)
            if before.label is label and before.verified:
                raise CantChange(f"The precedent {id_} has that label already, and it is verified.", field="label")
            after = before.model_copy(update={"label": label, "verified": True, "who": who})
            return _Planned(
                _change(
                    number=number, kind=Kind.RELABEL, who=who, why=why, at=datetime.now(UTC), meme=id_,
                    effect=Effect.SET, row=row, before=before, after=after,
                )
            )  # fmt: skip

        return self._made(plan)

    def revoke(self, number: int, *, who: str, why: str) -> Change:
        """Undoes a change, by another change.

        Raises:
            BadRequest: There is none of that number; it is revoked already; something was done to the same meme since;
                it is a revocation itself; or what is needed was forgotten.
        """

        def plan(library: Library, draft: DeltaBuilder, next_number: int) -> _Planned:
            change, vector, picture = _to_revoke(library, draft, number)
            effect, row, after = _undone(library, draft, change)
            if effect is Effect.HIDE:
                _refuse_to_empty(draft)
            if effect is Effect.APPEND:
                if change.before is None or vector is None:
                    raise BadRequest(f"What change {number} took out was forgotten on purpose. Add it anew.")
                kept = np.frombuffer(vector, dtype="<f4").astype(np.float32)
            live = draft.row_of(change.meme)
            undoing = _change(
                number=next_number, kind=Kind.REVOKE, who=who, why=why, at=datetime.now(UTC), meme=change.meme,
                revokes=number, effect=effect, row=row,
                before=None if live is None else _meme_in(library, draft, live), after=after,
            )  # fmt: skip
            return _Planned(undoing, kept, picture) if effect is Effect.APPEND else _Planned(undoing)

        return self._made(plan)

    def meme(self, id_: str) -> LabelledMeme | None:
        """The meme of this id as it is now; None where there is none. Raises BadLibrary."""
        library = self._caught_up()
        row = library.row_of(id_)
        return None if row is None else library.read([row])[0]

    def history(self, meme: str | None = None) -> list[Recorded]:
        """As :meth:`retrieval.library.library.Library.history`, of the library as it is now. Raises BadLibrary."""
        return self._caught_up().history(meme)

    def compact(self, *, forget: bool = False) -> Library:
        """Writes a new generation without the rows that are no longer found, its journal empty.

        Readers and other writers go on meanwhile, but nobody can change the library until it is done.

        Args:
            forget: Whether what was removed is lost for good, with the generation that held it; the history then still
                says who removed which id, when and why.

        Raises:
            BadLibrary: The library is damaged.
            BadRequest: No precedent is left.
            Unavailable: Somebody else is writing for too long.
            OSError: The disk will not have it; the old generation holds.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._writing = True
        try:
            with storage.writing(self._library.root, _WAIT_S):
                self._library = self._caught_up().rewritten(forget=forget)
                return self._library
        finally:
            self._done_writing()

    def forget(self) -> None:
        """What was removed is lost for good; as :meth:`compact`."""
        self.compact(forget=True)

    def _made(self, plan: _Plan) -> Change:
        outcome: Future[Change] = Future()
        with self._changed:
            self._waiting.append((plan, outcome))
            self._arrived.notify()
            # Whoever finds nobody writing, writes for all who wait by then; the others find theirs done.
            self._changed.wait_for(lambda: outcome.done() or not self._writing)
            if outcome.done():
                return outcome.result()
            self._writing = True
            # Those whose changes were just written may have more; without waiting for them there would be two groups,
            # each of which waits while the other writes.
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
            self._expected = written + len(self._waiting)
            self._changed.notify_all()

    def _write(self, waiting: list[tuple[_Plan, Future[Change]]]) -> None:
        made: list[tuple[Change, Future[Change]]] = []
        try:
            with storage.writing(self._library.root, _WAIT_S):
                self._library = self._caught_up()
                self._append(waiting, made)
        except BaseException as error:
            for _, outcome in waiting:
                if not outcome.done():
                    outcome.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for change, outcome in made:
                outcome.set_result(change)

    def _append(self, waiting: list[tuple[_Plan, Future[Change]]], made: list[tuple[Change, Future[Change]]]) -> None:
        library = self._library
        draft, pointer, frames = library.draft(), library.pointer, bytearray()
        head = pointer.head
        number = library.manifest.changes + len(library.overlay.changes)
        for plan, outcome in waiting:
            try:
                if number - library.manifest.changes >= MOST:
                    raise CantChange(
                        f"{MOST:,} changes were made since the library was last written whole. "
                        "Run `memecourt precedents compact`, then make it again.",
                        reason="LIBRARY_NEEDS_COMPACTING",
                    )
                planned = plan(library, draft, number + 1)
                frame = journal.frame_of(planned.change, planned.vector, planned.picture)
                start = library.pictures_end + pointer.journal_size + len(frames)
                kept = journal.picture_of_frame(frame, start, planned.picture)
                draft.apply(Entry(planned.change, planned.vector, kept))
            except (CourtError, ValueError) as error:
                # Of this one alone; the others don't suffer for it.
                outcome.set_exception(error)
                continue
            head = journal.next_head(head, frame)
            frames += frame
            number += 1
            made.append((planned.change, outcome))
        if not made:
            return
        journal.append(library.directory / JOURNAL, pointer.journal_size, bytes(frames))
        pointer = replace(pointer, journal_size=pointer.journal_size + len(frames), head=head)
        storage.announce(library.root, pointer)
        self._library = library.with_draft(draft, pointer)

    def _caught_up(self) -> Library:
        return self._library.newer() or self._library


def _change(**values: object) -> Change:
    try:
        return Change.model_validate(values)
    except ValidationError:
        raise BadRequest(
            "A change needs the name of who makes it (1 to 200 characters), a reason (1 to 2,000) and the id of a "
            "precedent."
        ) from None


def _row_of(draft: DeltaBuilder, id_: str) -> int:
    row = draft.row_of(id_)
    if row is None:
        raise NoSuchPrecedent(f"There is no precedent with the id {id_}.", field="id")
    return row


def _refuse_to_empty(draft: DeltaBuilder) -> None:
    if draft.size <= 1:
        raise CantChange("It is the only precedent in the library. Add another first.", reason="LIBRARY_EMPTY")


def _meme_in(library: Library, draft: DeltaBuilder, row: int) -> LabelledMeme:
    return draft.said_of(row) or library.read([row])[0]


def _changes_of(library: Library, draft: DeltaBuilder, meme: str) -> list[Change]:
    return [*library.base.table.changes(meme), *draft.changes_of(meme)]


def _to_revoke(library: Library, draft: DeltaBuilder, number: int) -> tuple[Change, bytes | None, bytes | None]:
    since = draft.change(number)
    found = (since, None, None) if since is not None else library.base.table.change(number)
    if found is None:
        raise BadRequest(f"There is no change {number} in the history.", reason="CHANGE_UNKNOWN")
    change = found[0]
    if change.revokes is not None:
        raise BadRequest(f"Change {number} is a revocation itself. Make the change that you want anew.")
    others = _changes_of(library, draft, change.meme)
    by = next((one.revoked_by for one in with_revocations(others) if one.change.number == number), None)
    if by is not None:
        raise BadRequest(f"Change {number} was revoked already, by change {by}.")
    last = last_effective(others)
    if last is not None and last.number != number:
        raise BadRequest(f"Change {last.number} was made to the same precedent since. Revoke that first.")
    return found


def _undone(library: Library, draft: DeltaBuilder, change: Change) -> tuple[Effect, int, LabelledMeme | None]:
    """What undoes a change: the effect, on which row, and the meme as it is then."""
    if change.kind is Kind.REMOVE:
        if change.number > library.manifest.changes:
            return Effect.SHOW, change.row, change.before
        before = change.before
        return Effect.APPEND, draft.next_row, before and before.model_copy(update={"kept": None})
    row = _row_of(draft, change.meme)
    if change.kind is Kind.ADD:
        return Effect.HIDE, row, None
    if change.before is None:
        raise BadRequest(f"What change {change.number} did was forgotten on purpose.")
    # Where its picture is may have changed with the generation; the label is what goes back.
    now = _meme_in(library, draft, row)
    return Effect.SET, row, change.before.model_copy(update={"kept": now.kept})


__all__ = ["MOST", "LibraryWriter"]
