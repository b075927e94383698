"""The docket in a SQL database: SQLite, in WAL mode, written to by one thread (:mod:`serving.docket.writer`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects.sqlite import insert as insert_or
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, SQLAlchemyError

from court.errors import CourtError, Unavailable
from court.events import AnyEvent, TrialFailed, TrialOpened, VerdictGiven, parse_event
from court.meme import Picture
from court.record import TrialRecord, TrialState
from serving.docket.store import DocketError, DocketLine, TrialUnknown
from serving.docket.writer import GroupWriter, Write, sqlite_engine, transaction

FORMAT = 1
"""Of the tables below; a docket of a later format is refused."""

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


class SqlDocket:
    """A :class:`~serving.docket.store.Docket` in a SQLite file; several processes may use the same."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closed = False
        self._writer = GroupWriter(engine, _translated)

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
        engine = sqlite_engine(path, patience)
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

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """See :meth:`serving.docket.store.Docket.requests`."""
        request = func.json_extract(_events.c.body, "$.request_id")
        opened = select(request, _events.c.trial_id).where(_events.c.kind == "TrialOpened")
        trials: dict[str, list[str]] = {}
        for request_id, trial_id in await self._read(opened.order_by(_events.c.at, _events.c.trial_id)):
            trials.setdefault(request_id, []).append(trial_id)
        return trials

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
            await self._writer.close()
            self._engine.dispose()

    async def _hand_in(self, write: Write) -> None:
        if self._closed:
            raise Unavailable("The docket is closed.", reason="DOCKET_CLOSED")
        await asyncio.wrap_future(self._writer.hand_in(write))

    async def _read(self, query: Any) -> Sequence[Any]:
        def run() -> Sequence[Any]:
            with self._engine.connect() as connection:
                return connection.execute(query).all()

        try:
            return await asyncio.to_thread(run)
        except DatabaseError as error:
            raise _translated(error) from error


def _execute(connection: Connection, statement: Any, rows: Any) -> None:
    connection.execute(statement, rows)


def _check_or_create(engine: Engine, path: Path) -> None:
    with transaction(engine) as connection:
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
