"""The docket in a SQL database: a SQLite file, or PostgreSQL. One thread writes (:mod:`serving.docket.writer`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from court.errors import CourtError, Unavailable
from court.events import AnyEvent, ReviewOutcome, TrialFailed, VerdictReviewed
from court.meme import Picture
from court.record import TrialRecord
from court.verdict import Label
from retrieval.postgres.address import Address
from serving.docket import reads, writes
from serving.docket.database import Database
from serving.docket.postgres import PostgresDatabase
from serving.docket.sqlite import SqliteDatabase
from serving.docket.store import Claim, DocketLine, RequestName, TrialFilter
from serving.docket.writer import Batch, GroupWriter

A = TypeVar("A")
T = TypeVar("T")

_ALL = TrialFilter()


class SqlDocket:
    """A :class:`~serving.docket.store.Docket` in a SQL database; several processes may use the same."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closed = False
        self._writer = GroupWriter(database.writing, database.translated)
        # In PostgreSQL looks wait for those of other servers, one of which may hang: records are not to wait for that.
        shared = isinstance(database, PostgresDatabase)
        self._looks_writer = GroupWriter(database.writing, database.translated) if shared else self._writer

    @classmethod
    def open(cls, place: Path | Address, *, create: bool = True, patience: float = 10.0) -> Self:
        """Opens a docket; one of an earlier format is upgraded first. Blocks: it asks a disk or a server.

        Args:
            place: The SQLite file, or the address of a PostgreSQL database.
            create: Whether to make it if it is not there.
            patience: Seconds to wait for another process that is writing.

        Raises:
            DocketError: It is not there and not to be made, is no docket, is damaged, or of a later format.
            Unavailable: The database can't be reached.
            NotLoaded: The database's driver is not installed.
        """
        if isinstance(place, Address):
            return cls(PostgresDatabase.open(place, create=create, patience=patience))
        return cls(SqliteDatabase.open(place, create=create, patience=patience))

    async def append(self, event: AnyEvent) -> None:
        """See :meth:`serving.docket.store.Docket.append`."""
        await self._write(writes.APPEND, event)

    async def keep_picture(self, picture: Picture) -> None:
        """See :meth:`serving.docket.store.Docket.keep_picture`."""
        await self._write(writes.PICTURE, picture)

    async def record(self, trial_id: str) -> TrialRecord:
        """See :meth:`serving.docket.store.Docket.record`."""
        events = await self.events(trial_id)
        try:
            return TrialRecord.of(events)
        except ValueError as error:
            raise reads.no_record(trial_id) from error

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        """See :meth:`serving.docket.store.Docket.events`."""
        return await self._read(lambda connection: reads.events(connection, trial_id, from_seq))

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """See :meth:`serving.docket.store.Docket.frames`."""
        return await self._read(lambda connection: reads.frames(connection, pixels_sha256))

    async def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        which: TrialFilter = _ALL,
        oldest_first: bool = False,
    ) -> Sequence[DocketLine]:
        """See :meth:`serving.docket.store.Docket.list`."""
        return await self._read(lambda connection: reads.lines(connection, limit, after, which, oldest_first))

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """See :meth:`serving.docket.store.Docket.requests`."""
        return await self._read(reads.requests)

    async def failures(self, pixels_sha256: str) -> Sequence[TrialFailed]:
        """See :meth:`serving.docket.store.Docket.failures`."""
        return await self._read(lambda connection: reads.failures(connection, pixels_sha256))

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        """See :meth:`serving.docket.store.Docket.labels`."""
        return await self._read(lambda connection: reads.labels(connection, trial_ids))

    async def open_trials(self) -> Sequence[str]:
        """See :meth:`serving.docket.store.Docket.open_trials`."""
        return await self._read(reads.open_trials)

    async def claim(self, name: RequestName, *, payload: str, trial_id: str, owner: str) -> Claim:
        """See :meth:`serving.docket.store.Docket.claim`."""
        return await self._write(writes.CLAIM, Claim(name, payload, trial_id, owner))

    async def take_over(self, claim: Claim, *, owner: str, trial_id: str | None = None) -> Claim | None:
        """See :meth:`serving.docket.store.Docket.take_over`."""
        return await self._write(writes.TAKE_OVER, writes.taken_over(claim, owner, trial_id))

    async def claim_of(self, name: RequestName) -> Claim | None:
        """See :meth:`serving.docket.store.Docket.claim_of`."""
        return await self._read(lambda connection: reads.claim_of(connection, name))

    async def open_claims(self) -> Sequence[Claim]:
        """See :meth:`serving.docket.store.Docket.open_claims`."""
        return await self._read(reads.open_claims)

    async def beat(self, owner: str) -> None:
        """See :meth:`serving.docket.store.Docket.beat`."""
        await self._write(writes.BEAT, owner)

    async def rest(self, owner: str) -> None:
        """See :meth:`serving.docket.store.Docket.rest`."""
        await self._write(writes.REST, owner)

    async def beats(self) -> Mapping[str, int]:
        """See :meth:`serving.docket.store.Docket.beats`."""
        return await self._read(reads.beats)

    async def know(self, key: str, trial_id: str) -> None:
        """See :meth:`serving.docket.store.Docket.know`."""
        await self._write(writes.KNOW, (key, trial_id))

    async def known(self, key: str) -> str | None:
        """See :meth:`serving.docket.store.Docket.known`."""
        return await self._read(lambda connection: reads.known(connection, key))

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
        """See :meth:`serving.docket.store.Docket.review`."""
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
        return await self._write(writes.REVIEW, draft)

    async def keep_look(self, trial_id: str, look: bytes) -> None:
        """See :meth:`serving.docket.store.Docket.keep_look`."""
        self._check_open()
        await self._looks_writer.hand_in_to(writes.LOOK, (trial_id, look))

    async def looks(self, since: int, *, most: int = 10_000) -> Sequence[tuple[int, str, bytes]]:
        """See :meth:`serving.docket.store.Docket.looks`."""
        return await self._read(lambda connection: reads.looks(connection, since, most))

    async def close(self) -> None:
        """See :meth:`serving.docket.store.Docket.close`."""
        if not self._closed:
            self._closed = True
            await self._writer.close()
            if self._looks_writer is not self._writer:
                await self._looks_writer.close()
            self._database.close()

    async def _write(self, batch: Batch[A, T], ask: A) -> T:
        self._check_open()
        return await self._writer.hand_in_to(batch, ask)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The docket is closed.", reason="DOCKET_CLOSED")

    async def _read(self, read: Callable[[Connection], T]) -> T:
        self._check_open()
        return await asyncio.to_thread(self._read_now, read)

    def _read_now(self, read: Callable[[Connection], T]) -> T:
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


def open_docket(place: Path | Address, create: bool = True) -> SqlDocket:
    """Opens the docket that a setting names; as :meth:`SqlDocket.open`."""
    return SqlDocket.open(place, create=create)
