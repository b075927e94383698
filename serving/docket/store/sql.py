"""The docket in a SQL database: a SQLite file, or PostgreSQL. One thread writes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from platformdirs import user_data_path
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from court.errors import CourtError, Unavailable
from court.events import AnyEvent, ReviewOutcome, VerdictReviewed
from court.meme import Picture
from court.record import TrialRecord
from court.verdict import Label
from retrieval.library.postgres.address import Address
from serving.docket.log.entries import Entry, Erased, PictureShown
from serving.docket.ports import DocketLine, Failure, Lease, Receipt, RequestName, TrialFilter
from serving.docket.store import erasure as erasing
from serving.docket.store import log_queries as proofs
from serving.docket.store import reads, writes
from serving.docket.store.database import Database
from serving.docket.store.group_commit import Batch, GroupCommit
from serving.docket.store.keys import KeyFile
from serving.docket.store.log_append import Signer, signing
from serving.docket.store.pictures import ObjectPictures
from serving.docket.store.postgres import PostgresDatabase
from serving.docket.store.sqlite import SqliteDatabase

if TYPE_CHECKING:
    pass

A = TypeVar("A")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_ALL = TrialFilter()
_READERS_S = 10.0
"""Seconds to wait for readers: those that still see what was erased, and those that read when the docket is closed."""
_PICTURES = 100
"""Pictures that are moved at once."""


class SqlDocket:
    """A :class:`~serving.docket.ports.Docket` in a SQL database; several processes may use the same."""

    def __init__(self, database: Database, signer: Signer, pictures: ObjectPictures | None = None) -> None:
        """Records in a database.

        Args:
            database: Where they lie.
            signer: Gives the key that checkpoints are signed with.
            pictures: Where the pictures lie; None where they lie in the database too.
        """
        self._database = database
        self._signer = signer
        self._pictures = pictures
        self._closed = False
        self._reads = 0
        self._reads_changed = threading.Condition()
        self._removing = threading.Lock()

        def signed(connection: Connection) -> AbstractContextManager[None]:
            return signing(connection, signer)

        self._writer = GroupCommit(database.writing, database.translated, signed)
        # In PostgreSQL what is logged waits for other servers, and so do looks, any of which may hang: what is neither
        # is not to wait for that, and records are not to wait for looks.
        shared = isinstance(database, PostgresDatabase)
        self._agreeing = GroupCommit(database.writing, database.translated) if shared else self._writer
        self._looks_writer = GroupCommit(database.writing, database.translated) if shared else self._writer
        # What is looked up for every trial takes less in a file than to wake a thread for it, so one does it for all
        # that wait. A server is asked by many at once: each waits for the way there and back.
        self._looking_up = None if shared else GroupCommit(database.reading, database.translated, name="docket-reader")

    @classmethod
    def open(
        cls,
        place: Path | Address,
        *,
        create: bool = True,
        patience: float = 10.0,
        key: Path | None = None,
        pictures: Path | str | None = None,
    ) -> Self:
        """Opens a docket; one of an earlier format is upgraded first. Blocks: it asks a disk or a server.

        Args:
            place: The SQLite file, or the address of a PostgreSQL database.
            create: Whether to make it if it is not there.
            patience: Seconds to wait for another process that is writing.
            key: The file of the private key that checkpoints are signed with, made when the first is; ``docket.key``
                beside a file ``docket.sqlite``, or in the user's folder of MemeCourt for a database, if not given.
            pictures: Where pictures lie: a directory, or an address such as ``s3://BUCKET/FOLDER``. If not given,
                beside a file in the directory ``docket.sqlite-pictures``, and in a database in a table.

        Raises:
            BadRequest: Pictures can't lie there.
            DocketError: It is not there and not to be made, is no docket, is damaged, or of a later format.
            Unavailable: The database, or where pictures lie, can't be reached.
            NotLoaded: The database's driver is not installed.
        """
        database: Database
        if isinstance(place, Address):
            database = PostgresDatabase.open(place, create=create, patience=patience)
            key = key or user_data_path("memecourt") / "docket.key"
        else:
            database = SqliteDatabase.open(place, create=create, patience=patience)
            key = key or place.with_suffix(".key")
            pictures = pictures or place.with_name(f"{place.name}-pictures")
        try:
            objects = None if pictures is None else ObjectPictures.open(pictures)
            if objects is not None:
                _move_pictures(database, objects)
                _remove_leaving(database, objects)
        except Exception as error:
            database.close()
            if isinstance(error, CourtError):
                raise
            raise database.translated(error) from None
        return cls(database, KeyFile(key), objects)

    @property
    def database(self) -> Database:
        """Where it lies; the desk keeps its own tables there."""
        return self._database

    @property
    def signer(self) -> Signer:
        """Gives the key that checkpoints are signed with; whoever hands bundles out signs them with the same."""
        return self._signer

    async def append(self, *events: AnyEvent) -> None:
        """See :meth:`serving.docket.ports.Docket.append`."""
        await self.write(writes.APPEND, events)

    async def keep_picture(self, picture: Picture) -> None:
        """See :meth:`serving.docket.ports.Docket.keep_picture`."""
        if self._pictures is None:
            await self._agree(writes.PICTURE, picture)
            return
        self._check_open()
        await self._pictures.keep(picture.pixels_sha256, [frame.png for frame in picture.frames])

    async def record(self, trial_id: str) -> TrialRecord:
        """See :meth:`serving.docket.ports.Docket.record`."""
        events = await self.events(trial_id)
        try:
            return TrialRecord.of(events)
        except ValueError as error:
            raise reads.no_record(trial_id) from error

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        """See :meth:`serving.docket.ports.Docket.events`."""
        return await self.read(lambda connection: reads.events(connection, trial_id, from_seq))

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """See :meth:`serving.docket.ports.Docket.frames`."""
        if self._pictures is None:
            return await self.read(lambda connection: reads.frames(connection, pixels_sha256))
        self._check_open()
        return await self._pictures.frames(pixels_sha256)

    async def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        which: TrialFilter = _ALL,
        oldest_first: bool = False,
    ) -> Sequence[DocketLine]:
        """See :meth:`serving.docket.ports.Docket.list`."""
        return await self.read(lambda connection: reads.lines(connection, limit, after, which, oldest_first))

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """See :meth:`serving.docket.ports.Docket.requests`."""
        return await self.read(reads.requests)

    async def failures(self, pixels_sha256: str) -> Sequence[Failure]:
        """See :meth:`serving.docket.ports.Docket.failures`."""
        return await self.read(lambda connection: reads.failures(connection, pixels_sha256))

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        """See :meth:`serving.docket.ports.Docket.labels`."""
        return await self._look_up(lambda connection: reads.labels(connection, trial_ids))

    async def open_trials(self) -> Sequence[str]:
        """See :meth:`serving.docket.ports.Docket.open_trials`."""
        return await self.read(reads.open_trials)

    async def claim(self, name: RequestName, *, payload: str, trial_id: str, owner: str) -> Lease:
        """See :meth:`serving.docket.ports.Docket.claim`."""
        return await self._agree(writes.CLAIM, Lease(name, payload, trial_id, owner))

    async def take_over(self, claim: Lease, *, owner: str, trial_id: str | None = None) -> Lease | None:
        """See :meth:`serving.docket.ports.Docket.take_over`."""
        return await self._agree(writes.TAKE_OVER, writes.taken_over(claim, owner, trial_id))

    async def claim_of(self, name: RequestName) -> Lease | None:
        """See :meth:`serving.docket.ports.Docket.claim_of`."""
        return await self._look_up(lambda connection: reads.claim_of(connection, name))

    async def open_claims(self) -> Sequence[Lease]:
        """See :meth:`serving.docket.ports.Docket.open_claims`."""
        return await self.read(reads.open_claims)

    async def beat(self, owner: str) -> None:
        """See :meth:`serving.docket.ports.Docket.beat`."""
        await self._agree(writes.BEAT, owner)

    async def rest(self, owner: str, count: int | None = None) -> None:
        """See :meth:`serving.docket.ports.Docket.rest`."""
        await self._agree(writes.REST, (owner, count))

    async def beats(self) -> Mapping[str, int]:
        """See :meth:`serving.docket.ports.Docket.beats`."""
        return await self.read(reads.beats)

    async def know(self, key: str, trial_id: str) -> None:
        """See :meth:`serving.docket.ports.Docket.know`."""
        await self._agree(writes.KNOW, (key, trial_id))

    async def known(self, key: str) -> str | None:
        """See :meth:`serving.docket.ports.Docket.known`."""
        return await self._look_up(lambda connection: reads.known(connection, key))

    async def known_among(self, keys: Sequence[str]) -> Mapping[str, str]:
        """See :meth:`serving.docket.ports.Docket.known_among`."""
        return await self._look_up(lambda connection: reads.known_among(connection, keys))

    async def review(
        self,
        trial_id: str,
        *,
        outcome: ReviewOutcome,
        label: Label,
        reason: str,
        clause: str,
        reviewer: str,
        at: datetime,
    ) -> VerdictReviewed:
        """See :meth:`serving.docket.ports.Docket.review`."""
        draft = VerdictReviewed(
            trial_id=trial_id,
            seq=0,
            at=at,
            outcome=outcome,
            label=label,
            reason=reason,
            clause=clause,
            reviewer=reviewer,
        )
        kept = await self.write(writes.REVIEW, draft)
        assert isinstance(kept, VerdictReviewed)
        return kept

    async def keep_look(self, trial_id: str, look: bytes) -> None:
        """See :meth:`serving.docket.ports.Docket.keep_look`."""
        self._check_open()
        await self._looks_writer.hand_in_to(writes.LOOK, (trial_id, look))

    async def looks(self, since: int, *, most: int = 10_000) -> Sequence[tuple[int, str, bytes]]:
        """See :meth:`serving.docket.ports.Docket.looks`."""
        return await self._look_up(lambda connection: reads.looks(connection, since, most))

    async def entries(self, first: int, most: int, kinds: Collection[str] | None = None) -> Sequence[Entry]:
        """See :meth:`serving.docket.ports.Docket.entries`."""
        return await self.read(lambda connection: proofs.entries(connection, first, most, kinds))

    async def entries_of(self, trial_id: str) -> Sequence[Entry]:
        """See :meth:`serving.docket.ports.Docket.entries_of`."""
        return await self.read(lambda connection: proofs.entries_of(connection, trial_id))

    async def size(self) -> int:
        """See :meth:`serving.docket.ports.Docket.size`."""
        return await self.read(proofs.size)

    async def added(self, first: int) -> tuple[int, Collection[tuple[str, str]]]:
        """See :meth:`serving.docket.ports.Docket.added`."""
        return await self.read(lambda connection: proofs.added(connection, first))

    async def checkpoint(self) -> str:
        """See :meth:`serving.docket.ports.Docket.checkpoint`."""
        while (found := await self.read(proofs.checkpoint)) is None:
            await self.sign()
        return found

    async def sign(self) -> None:
        """Signs the log as it is now, and keeps the checkpoint; shows that it can be signed.

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
            Unavailable: It could not be kept now.
        """
        await self.write(writes.SEAL, None)

    async def vkey(self) -> str:
        """See :meth:`serving.docket.ports.Docket.vkey`."""
        while not (found := await self.read(proofs.key)):
            await self.sign()
        return found

    async def receipt(self, trial_id: str) -> Receipt:
        """See :meth:`serving.docket.ports.Docket.receipt`."""
        while (found := await self._look_up(lambda connection: proofs.receipt(connection, trial_id))) is None:
            await self.sign()
        return found

    async def node(self, level: int, index: int) -> bytes:
        """See :meth:`serving.docket.ports.Docket.node`."""
        return await self.read(lambda connection: proofs.nodes(connection)(level, index))

    async def note_access(
        self, trial_id: str, *, who: str, what: str, at: datetime, kind: Literal["PictureShown"] = "PictureShown"
    ) -> None:
        """See :meth:`serving.docket.ports.Docket.note_access`."""
        await self.write(writes.NOTE, PictureShown(kind=kind, trial_id=trial_id, who=who, what=what, at=at))

    async def erase(self, trial_id: str, *, who: str, why: str, at: datetime, precedents: Sequence[str] = ()) -> Erased:
        """See :meth:`serving.docket.ports.Docket.erase`."""
        outside = self._pictures is not None
        return await self._erase(erasing.Erasure(trial_id, who, why, at, tuple(precedents), outside))

    async def erase_precedent(self, precedent_id: str, *, who: str, why: str, at: datetime) -> Erased:
        """See :meth:`serving.docket.ports.Docket.erase_precedent`."""
        return await self._erase(erasing.Erasure("", who, why, at, (precedent_id,)))

    async def _erase(self, ask: erasing.Erasure) -> Erased:
        erased = await self.write(erasing.ERASE, ask)
        removed = await asyncio.to_thread(self._remove_leaving)
        if not await asyncio.to_thread(self._database.scrub, _READERS_S):
            raise Unavailable(
                "It is erased, but a file of the docket still holds it, because somebody has been reading for long. "
                "Ask once more, or close what reads the docket.",
                reason="ERASURE_UNFINISHED",
            )
        if not removed:
            raise Unavailable(
                "It is erased, but its picture could not be removed from where pictures lie. Ask once more when that "
                "place is there again; the next start removes it too.",
                reason="ERASURE_UNFINISHED",
            )
        return erased

    def _remove_leaving(self) -> bool:
        with self._removing:  # what one removes, another would read by halves
            return self._pictures is None or _remove_leaving(self._database, self._pictures)

    async def close(self) -> None:
        """See :meth:`serving.docket.ports.Docket.close`."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._let_reads_end)
            if self._looking_up is not None:
                await self._looking_up.close()
            await self._writer.close()
            if self._looks_writer is not self._writer:
                await self._looks_writer.close()
                await self._agreeing.close()
            if self._pictures is not None:
                await asyncio.to_thread(self._pictures.close)
            self._database.close()

    async def write(self, batch: Batch[A, T], ask: A) -> T:
        """Has something written in the next commit, in which what it adds to the log is signed."""
        self._check_open()
        return await self._writer.hand_in_to(batch, ask)

    async def _agree(self, batch: Batch[A, T], ask: A) -> T:
        """Has something written that is no part of the log."""
        self._check_open()
        return await self._agreeing.hand_in_to(batch, ask)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The docket is closed.", reason="DOCKET_CLOSED")

    async def read(self, read: Callable[[Connection], T]) -> T:
        """What a read finds, all of it at one moment."""
        self._check_open()
        return await asyncio.to_thread(self._read_now, read)

    async def _look_up(self, read: Callable[[Connection], T]) -> T:
        """As :meth:`read`, for what is found at once."""
        if self._looking_up is None:
            return await self.read(read)
        self._check_open()
        return await self._looking_up.hand_in(read)

    @contextmanager
    def _counted_read(self) -> Iterator[None]:
        """A read that whoever closes the docket waits for: its connection could not be closed under it."""
        with self._reads_changed:
            self._check_open()
            self._reads += 1
        try:
            yield
        finally:
            with self._reads_changed:
                self._reads -= 1
                self._reads_changed.notify_all()

    def _let_reads_end(self) -> None:
        with self._reads_changed:
            self._reads_changed.wait_for(lambda: not self._reads, _READERS_S)

    def _read_now(self, read: Callable[[Connection], T]) -> T:
        with self._counted_read():
            return self._tried_read(read)

    def _tried_read(self, read: Callable[[Connection], T]) -> T:
        for last in (False, True):
            try:
                with self._database.reading() as connection:
                    return read(connection)
            except CourtError:
                raise
            except Exception as error:
                # A kept connection may have been broken for long: then once more with a new one.
                if last or not (isinstance(error, DBAPIError) and error.connection_invalidated):
                    # Without its cause: what a database says may name hosts and users.
                    raise self._database.translated(error) from None
        raise AssertionError("unreachable")


def _move_pictures(database: Database, pictures: ObjectPictures) -> None:
    """Takes pictures out of the database, where earlier formats have them."""
    while True:
        with database.reading() as connection:
            some = reads.some_pictures(connection, _PICTURES)
        if not some:
            return
        _log.info("Moving pictures out of the docket's database.")
        pictures.keep_now([*some.items()])
        with database.writing() as connection:
            writes.drop_pictures(connection, [*some])


def _remove_leaving(database: Database, pictures: ObjectPictures) -> bool:
    """Removes pictures whose last trial was erased; False where that can't be done now, and is left for later."""
    try:
        with database.reading() as connection:
            leaving = erasing.deletion_outbox(connection)
        for pixels in leaving:
            if not _has_trial(database, pixels):
                frames = pictures.frames_now(pixels)
                pictures.forget_now(pixels)
                if frames and _has_trial(database, pixels):
                    pictures.keep_now([(pixels, frames)])  # one was opened meanwhile, and found it there
            with database.writing() as connection:
                erasing.mark_deleted(connection, pixels)
        if leaving:
            database.scrub(0.0)
    except Exception as error:
        # Whatever a database or a store says may name hosts, and whose picture it is.
        _log.warning("A picture of an erased trial can't be removed now (%s).", type(error).__name__)
        return False
    return True


def _has_trial(database: Database, pixels_sha256: str) -> bool:
    with database.reading() as connection:
        return erasing.others(connection, pixels_sha256)
