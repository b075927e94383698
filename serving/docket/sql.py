"""The docket in a SQL database: SQLite, in WAL mode, flushed to the disk at every commit.

One thread writes. Whatever has been handed in while it was committing goes into its next commit, so that many trials at
once share the cost of a flush instead of queueing for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects.sqlite import insert as insert_or
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, SQLAlchemyError

from court.errors import CourtError, Unavailable
from court.events import AnyEvent, TrialFailed, TrialOpened, VerdictGiven, parse_event
from court.meme import Picture
from court.record import TrialRecord, TrialState
from serving.docket.store import DocketError, DocketLine, TrialUnknown

FORMAT = 1
"""Of the tables below; a docket of a later format is refused."""

_GROUP = 256  # events in one commit at most: bounds how long the first of them waits

_metadata = MetaData()

_events = Table(
    "events",
    _metadata,
    Column("trial_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False, index=True),
    Column("at", String, nullable=False),  # ISO 8601, UTC: sorts as it reads
    Column("body", Text, nullable=False),
)

_pictures = Table(
    "pictures",
    _metadata,
    Column("pixels_sha256", String, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("png", LargeBinary, nullable=False),
)

_Write = Callable[[Connection], None]


class SqlDocket:
    """A :class:`~serving.docket.store.Docket` in a SQLite file; several processes may use the same."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writes: queue.SimpleQueue[tuple[_Write, Future[None]] | None] = queue.SimpleQueue()
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="docket-writer", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, path: Path, *, create: bool = True, patience: float = 10.0) -> Self:
        """Opens a docket.

        Args:
            path: The SQLite file.
            create: Whether to make it if it is not there.
            patience: Seconds to wait for another process that is writing.

        Raises:
            DocketError: It is not there and not to be made, is no docket, is damaged, or of a later format.
        """
        if not path.exists():
            if not create:
                raise DocketError(
                    f"There is no docket at {path}. A trial makes one; --docket or MEMECOURT_DOCKET names another.",
                    reason="DOCKET_MISSING",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": patience})
        event.listen(engine, "connect", _set_up)
        try:
            _check_or_create(engine, path)
        except SQLAlchemyError as error:
            engine.dispose()
            raise DocketError(
                f"The file {path} can't be opened as a docket: it is damaged, locked, or something else. "
                "Restore it from a copy, or name another with --docket or MEMECOURT_DOCKET.",
            ) from error
        except DocketError:
            engine.dispose()
            raise
        return cls(engine)

    async def append(self, event: AnyEvent) -> None:
        """See :meth:`serving.docket.store.Docket.append`."""
        row = {
            "trial_id": event.trial_id,
            "seq": event.seq,
            "kind": event.kind,
            "at": _stamp(event.at),
            "body": event.model_dump_json(),
        }
        await self._hand_in(lambda connection: _execute(connection, insert(_events), row))

    async def keep_picture(self, picture: Picture) -> None:
        """See :meth:`serving.docket.store.Docket.keep_picture`."""
        rows = [
            {"pixels_sha256": picture.pixels_sha256, "place": place, "png": frame.png}
            for place, frame in enumerate(picture.frames)
        ]
        statement = insert_or(_pictures).on_conflict_do_nothing()
        await self._hand_in(lambda connection: _execute(connection, statement, rows))

    async def record(self, trial_id: str) -> TrialRecord:
        """See :meth:`serving.docket.store.Docket.record`."""
        query = select(_events.c.body).where(_events.c.trial_id == trial_id).order_by(_events.c.seq)
        bodies = [body for (body,) in await self._read(query)]
        if not bodies:
            raise TrialUnknown(
                f"There is no trial {trial_id} in this docket. `memecourt records list` shows those that are.",
            )
        try:
            return TrialRecord.of(parse_event(body) for body in bodies)
        except (ValidationError, ValueError) as error:
            raise DocketError(
                f"What the docket holds of trial {trial_id} is no record: it was altered, or written by another "
                "version of MemeCourt.",
            ) from error

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """See :meth:`serving.docket.store.Docket.frames`."""
        query = select(_pictures.c.png).where(_pictures.c.pixels_sha256 == pixels_sha256).order_by(_pictures.c.place)
        return [png for (png,) in await self._read(query)]

    async def list(self, *, limit: int, before: datetime | None = None) -> Sequence[DocketLine]:
        """See :meth:`serving.docket.store.Docket.list`."""
        opened = select(_events.c.body).where(_events.c.kind == "TrialOpened")
        if before is not None:
            opened = opened.where(_events.c.at < _stamp(before))
        opened = opened.order_by(_events.c.at.desc(), _events.c.trial_id).limit(limit)
        first = [parse_event(body) for (body,) in await self._read(opened)]
        ids = [opening.trial_id for opening in first]
        ended = select(_events.c.body).where(
            _events.c.trial_id.in_(ids), _events.c.kind.in_(("VerdictGiven", "TrialFailed"))
        )
        last = {end.trial_id: end for end in (parse_event(body) for (body,) in await self._read(ended))}
        return [_line(opening, last.get(opening.trial_id)) for opening in first]

    async def open_trials(self) -> Sequence[str]:
        """See :meth:`serving.docket.store.Docket.open_trials`."""
        # The last event of each trial says whether it has ended; reviews only follow a verdict.
        last = select(_events.c.trial_id, func.max(_events.c.seq).label("seq")).group_by(_events.c.trial_id).subquery()
        ended = ("VerdictGiven", "TrialFailed", "VerdictReviewed")
        query = (
            select(_events.c.trial_id)
            .join(last, (last.c.trial_id == _events.c.trial_id) & (last.c.seq == _events.c.seq))
            .where(_events.c.kind.not_in(ended))
            .order_by(_events.c.at)
        )
        return [trial_id for (trial_id,) in await self._read(query)]

    async def close(self) -> None:
        """See :meth:`serving.docket.store.Docket.close`."""
        if not self._closed:
            self._closed = True
            self._writes.put(None)
            await asyncio.to_thread(self._writer.join)
            self._engine.dispose()

    async def _hand_in(self, write: _Write) -> None:
        if self._closed:
            raise Unavailable("The docket is closed.", reason="DOCKET_CLOSED")
        done: Future[None] = Future()
        self._writes.put((write, done))
        await asyncio.wrap_future(done)

    async def _read(self, query: Any) -> Sequence[Any]:
        def run() -> Sequence[Any]:
            with self._engine.connect() as connection:
                return connection.execute(query).all()

        try:
            return await asyncio.to_thread(run)
        except DatabaseError as error:
            raise _translated(error) from error

    def _write(self) -> None:
        """The writer thread: one commit for all that has come since the last."""
        while (first := self._writes.get()) is not None:
            group = [first]
            closing = False
            while len(group) < _GROUP and not self._writes.empty():
                item = self._writes.get()
                if item is None:
                    closing = True
                    break
                group.append(item)
            self._commit(group)
            if closing:
                return

    def _commit(self, group: Sequence[tuple[_Write, Future[None]]]) -> None:
        # A caller that gave up has cancelled its future; one that has not can't any more from here on.
        group = [(write, done) for write, done in group if done.set_running_or_notify_cancel()]
        try:
            with _transaction(self._engine) as connection:
                for write, _ in group:
                    write(connection)
        except Exception as error:
            if len(group) == 1:
                group[0][1].set_exception(_translated(error))
                return
            # One of them is at fault, and only that one is to hear of it.
            for write, done in group:
                try:
                    with _transaction(self._engine) as connection:
                        write(connection)
                except Exception as own:
                    done.set_exception(_translated(own))
                else:
                    done.set_result(None)
            return
        for _, done in group:
            done.set_result(None)


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    with engine.begin() as connection:
        # IMMEDIATE: a second process waits at the door, instead of failing when it comes to write.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def _execute(connection: Connection, statement: Any, rows: Any) -> None:
    connection.execute(statement, rows)


def _set_up(connection: Any, _: Any) -> None:
    """Every connection: readers don't wait for the writer, and a commit is on the disk when it returns."""
    connection.isolation_level = None  # transactions begin where _transaction says so, not where the driver guesses
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _check_or_create(engine: Engine, path: Path) -> None:
    with _transaction(engine) as connection:
        found = connection.execute(text("PRAGMA user_version")).scalar_one()
        tables = connection.execute(text("SELECT count(*) FROM sqlite_master WHERE type = 'table'")).scalar_one()
        if found > FORMAT:
            raise DocketError(
                f"The docket {path} has format {found}; this version of MemeCourt reads up to {FORMAT}. Upgrade it.",
            )
        if found == 0:
            if tables:
                raise DocketError(f"The file {path} is a SQLite database, but no docket. Name another.")
            _metadata.create_all(connection)
            connection.execute(text(f"PRAGMA user_version = {FORMAT}"))


def _translated(error: Exception) -> CourtError:
    if isinstance(error, IntegrityError):
        return DocketError("The docket already holds an event of that number for this trial.", reason="EVENT_EXISTS")
    if isinstance(error, OperationalError):
        return Unavailable(
            "The docket can't be written or read now: it is locked, its disk is full, or its file is gone.",
            reason="DOCKET_UNAVAILABLE",
        )
    return DocketError("The docket could not keep or find what it was asked to.")


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _line(opening: AnyEvent, end: AnyEvent | None) -> DocketLine:
    assert isinstance(opening, TrialOpened)
    verdict = end.verdict if isinstance(end, VerdictGiven) else None
    failed = isinstance(end, TrialFailed)
    return DocketLine(
        trial_id=opening.trial_id,
        opened_at=opening.at,
        procedure=opening.procedure,
        namespace=opening.meme.namespace,
        content_id=opening.meme.content_id,
        state=TrialState.FAILED if failed else TrialState.DECIDED if verdict else TrialState.OPEN,
        label=verdict.label if verdict else None,
        needs_human_review=verdict.needs_human_review if verdict else False,
    )
