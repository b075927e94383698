"""The PostgreSQL database of a docket, which servers on several machines can share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from typing_extensions import override

from court.errors import CourtError, NotLoaded
from retrieval.library.postgres.address import Address
from serving.docket.errors import DocketError
from serving.docket.store import schema
from serving.docket.store import tables as t
from serving.docket.store.tables import Database, exists, failed, later_format, unavailable
from serving.docket.store.transactions import RolledBack

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.engine import ExceptionContext

SCHEMA = "memecourt_docket"

_format = Table("format", MetaData(), Column("number", Integer, nullable=False))

_READ_S = 30
"""Statement timeout in seconds."""
_IDLE_S = 15
"""Seconds after which the server ends an idle transaction, since its client hangs."""

_AGAIN_S = 0.2
"""Seconds between two attempts to find out the outcome of a commit."""

_PASSING = {"40001", "40P01"}
"""Error codes of conflicts between transactions (serialization, deadlock), which can be retried."""

_READ_ONLY = "25006"
"""Error code of a server that is a standby."""

_WHY = {
    "55P03": "somebody else keeps it locked for too long",
    "57014": "its database takes too long",
    "53100": "its disk is full",
    _READ_ONLY: "its database takes no changes; name the primary",
    "42P01": "its tables are gone",
    "3F000": "its tables are gone",
}

# Identifies one incarnation of the database. After a crash or a failover, unacknowledged transactions may be lost and
# their numbers reused. A crash recovery writes a new checkpoint before it accepts connections, and a promoted standby
# starts a new timeline. A regular checkpoint changes the value too, which only means that a commit's outcome is
# sometimes unknown.
_LIFE = (
    "(SELECT checkpoint_lsn::text FROM pg_control_checkpoint()) "
    "|| ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"
)

# Set in every write transaction, since a connection pooler may give us any session. Acknowledged commits are durable,
# whatever the database's own settings.
_BEGIN = text(
    f"SELECT pg_current_xact_id()::text, {_LIFE}, "
    "set_config('lock_timeout', :patience, true), "
    "set_config('statement_timeout', :limit, true), "
    "set_config('idle_in_transaction_session_timeout', :idle, true), "
    "set_config('synchronous_commit', "
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, "
    "true)"
)

# Likewise for a read, whose statements see one snapshot. With options of the connection, a later write would begin as
# READ WRITE, whatever default_transaction_read_only says.
_BEGIN_READING = (
    f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL statement_timeout = '{_READ_S}s'"
)
_STATUS = text(f"SELECT pg_xact_status(CAST(:number AS xid8)), {_LIFE}")


class PostgresDatabase(Database):
    """A docket's database, in its own schema."""

    read_only = False
    on_server = True

    def __init__(self, address: Address, patience: float) -> None:
        """Connects lazily. Raises NotLoaded if the driver is not installed."""
        _require_driver()
        self._address = address
        self._patience = patience
        self._engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connected,
            pool_size=4,
            max_overflow=12,
            pool_timeout=patience,
            # Parameters are untrusted content, which must not appear in errors.
            hide_parameters=True,
            use_native_hstore=False,  # unused, and detecting it costs a query
            execution_options={"schema_translate_map": {None: SCHEMA}},
        )
        event.listen(self._engine, "handle_error", _reconnect_after_standby)

    @classmethod
    def open(cls, address: Address, *, create: bool, patience: float) -> Self:
        """Opens a docket; as :meth:`serving.docket.open.Docket.open`."""
        database = cls(address, patience)
        try:
            with database.writing() as connection:
                _check_or_create(connection, create=create)
        except RolledBack as error:
            database.close()
            assert isinstance(error.__cause__, Exception)
            raise database.translated(error.__cause__) from None
        except SQLAlchemyError as error:
            database.close()
            # Without its cause, since libpq's message names host and user.
            raise database.translated(error) from None
        except CourtError:
            database.close()
            raise
        return database

    @override
    @contextmanager
    def writing(self) -> Iterator[Connection]:
        committing, number, life = False, "", ""
        try:
            with self._engine.connect() as connection:
                # Before the work: needed to look up the outcome if the connection breaks during the commit.
                number, life = self._begun(connection)
                yield connection
                committing = True
                connection.commit()
        except DBAPIError as error:
            if committing and error.connection_invalidated:
                # Only the server knows whether it received the commit.
                stored = self._was_stored(number, life)
                if stored:
                    return
                if stored is None:
                    # Unknown: RolledBack would cause a retry, which might store it twice.
                    raise
                raise RolledBack from error
            # Before the commit: after a lost connection, a deadlock or a conflict the server rolls back the whole
            # transaction.
            if error.connection_invalidated or _state(error) in _PASSING:
                raise RolledBack from error
            raise

    @override
    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(_BEGIN_READING)
            yield connection

    @override
    def translated(self, error: Exception) -> CourtError:
        if isinstance(error, CourtError):
            return error
        if not isinstance(error, DBAPIError):
            # From the pool: all connections are in use.
            return unavailable("too many ask it at once") if isinstance(error, SQLAlchemyError) else failed()
        state = _state(error)
        if state == "23505":  # unique_violation
            return exists()
        if state == "42501":  # insufficient_privilege
            return DocketError(
                "The database does not let this user read or change the docket. Ask its owner for the right to.",
                reason="DOCKET_FORBIDDEN",
            )
        if state in _WHY:
            return unavailable(_WHY[state])
        # A refused login or an unreachable server has no code: libpq only reports a failure.
        away = error.connection_invalidated or state is None or state[:2] in ("08", "28", "53", "57", "58")
        return unavailable("its database can't be reached, or broke off") if away else failed()

    @override
    def scrub(self, patience: float) -> bool:
        # In PostgreSQL this is up to the server's administrator.
        return True

    @override
    def close(self) -> None:
        self._engine.dispose()

    def _connected(self) -> psycopg.Connection[Any]:
        import psycopg

        # No prepared statements: a pooler may switch sessions between two statements.
        return psycopg.connect(**self._address.parameters(), prepare_threshold=None)

    def _begun(self, connection: Connection) -> tuple[str, str]:
        """Begins a write transaction; returns its number and the database's incarnation."""
        limits = {"patience": f"{int(self._patience * 1000)}ms", "limit": f"{_READ_S}s", "idle": f"{_IDLE_S}s"}
        number, life, *_ = connection.execute(_BEGIN, limits).one()
        return number, life

    def _was_stored(self, number: str, life: str) -> bool | None:
        """Finds out whether a transaction was stored after its connection broke during the commit.

        None if that can't be known in time.
        """
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            try:
                with self._engine.connect() as connection:
                    status, now = connection.execute(_STATUS, {"number": number}).one()
                if now != life:
                    return None  # the number may have been reused by now
            except DBAPIError as error:
                if _state(error) is not None and not error.connection_invalidated:
                    return None  # a different server, which does not know it
                # Still unreachable: the next attempt may succeed.
                status = "in progress"
            if status != "in progress":
                # None if the transaction is so old that the server has dropped its status.
                return {"committed": True, "aborted": False}.get(status)
            time.sleep(_AGAIN_S)
        return None


def _reconnect_after_standby(context: ExceptionContext) -> None:
    """Drops all connections if one leads to a standby: the address may resolve to another machine by now."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _state(error: DBAPIError) -> str | None:
    """Returns the SQLSTATE code of an error; None if it did not come from a server."""
    state = getattr(error.orig, "sqlstate", None)
    return None if state is None else str(state)


def _check_or_create(connection: Connection, *, create: bool) -> None:
    # One server at a time: only the first creates the tables.
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('memecourt.docket'))"))
    there = connection.execute(text(f"SELECT to_regclass('{SCHEMA}.format')")).scalar_one()
    if there is None:
        if not create:
            raise DocketError(
                "There is no docket in this database. A server that is given its address makes one; so does a trial.",
                reason="DOCKET_MISSING",
            )
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        _format.metadata.create_all(connection)
        schema.create(connection, SCHEMA)
        connection.execute(insert(_format).values(number=t.FORMAT))
        return
    found = connection.execute(select(_format.c.number)).scalar_one()
    if found > t.FORMAT:
        raise later_format(found, t.FORMAT)
    if found < t.FORMAT:
        # Alembic's own statements name no schema. Upgrading a large docket exceeds the usual timeout.
        connection.execute(text(f"SET LOCAL search_path = {SCHEMA}"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        schema.upgrade(connection, found, SCHEMA)
        connection.execute(update(_format).values(number=t.FORMAT))


def _require_driver() -> None:
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise NotLoaded(
            "A docket in a database needs its driver, which is not installed. "
            "Install it with: pip install 'memecourt[postgres]'",
            reason="POSTGRES_NOT_INSTALLED",
        ) from error
    del psycopg
