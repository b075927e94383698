"""Connection pool for the database, with reconnection and errors translated to the court's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from court.errors import BadLibrary, CourtError, NotLoaded, Unavailable
from retrieval.library.postgres.address import Address

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

T = TypeVar("T")

_MOST_IDLE = 4
_SEARCH_S = 30
"""Statement timeout of a search, in seconds."""


class Connections:
    """Runs work on the database, each time in its own transaction. Thread-safe."""

    def __init__(self, address: Address) -> None:
        """Connects lazily. Raises NotLoaded if the driver is not installed."""
        _require_driver()
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def reading(self, work: Callable[[Connection], T]) -> T:
        """Runs read-only work on a consistent snapshot.

        Raises:
            BadLibrary: The database has no library or no pgvector.
            Unavailable: The server can't be reached or times out.
        """
        # A broken connection is replaced and the work retried, once.
        import psycopg
        from psycopg import IsolationLevel

        for last in (False, True):
            connection, pooled = self._take()
            try:
                connection.isolation_level = IsolationLevel.REPEATABLE_READ
                connection.read_only = True
                with connection.transaction():
                    # In each transaction, since a connection pooler may give each another session.
                    connection.execute(f"SET LOCAL statement_timeout = '{_SEARCH_S}s'")
                    found = work(connection)
            except psycopg.Error as error:
                lost = connection.closed
                self._give(connection)
                # A pooled connection may have been broken for long. And if libraries are replaced in quick succession,
                # a table may have been dropped since the state was read.
                retryable = (lost and pooled) or isinstance(error, psycopg.errors.UndefinedTable)
                if last or not retryable:
                    raise translated(error) from error
                # If one is broken the others usually are too (after a server restart), and each would use up a search's
                # only retry.
                if lost:
                    self._forget()
            except BaseException:
                self._give(connection)
                raise
            else:
                self._give(connection)
                return found
        raise AssertionError("unreachable")

    def writing(self, work: Callable[[Connection], T], *, wait_s: float) -> T:
        """Runs work that changes the library once, exclusively and atomically; other writers wait.

        Raises:
            BadLibrary: The database has no library or no pgvector.
            Unavailable: The server can't be reached, or another writer holds the lock for too long.
        """
        import psycopg
        from psycopg import IsolationLevel

        # Never a pooled connection, which may be broken.
        connection = self._open()
        try:
            # No transaction-wide snapshot: taken before the lock is granted, it would miss the previous writer's
            # commit.
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            with connection.transaction():
                connection.execute("SET LOCAL statement_timeout = 0")
                connection.execute(f"SET LOCAL lock_timeout = '{int(wait_s * 1000)}ms'")
                # All statements after this one see earlier writers' changes.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('memecourt.precedents'))")
                # The timeout only applies to the wait for other writers.
                connection.execute("SET LOCAL lock_timeout = 0")
                return work(connection)
        except psycopg.Error as error:
            raise translated(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Closes all connections; those in use are closed when they are returned."""
        with self._lock:
            self._closed = True
        self._forget()

    def _take(self) -> tuple[Connection, bool]:
        """Returns a connection, and True if it came from the pool."""
        with self._lock:
            if self._closed:
                raise Unavailable("The precedent library was closed.", reason="LIBRARY_CLOSED")
            # The most recently used one, which is least likely to have been closed for inactivity.
            if self._idle:
                return self._idle.pop(), True
        return self._open(), False

    def _give(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and not connection.closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _forget(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _open(self) -> Connection:
        import psycopg
        from pgvector.psycopg import register_vector

        try:
            # No prepared statements, as there may be a connection pooler in between.
            connection = psycopg.connect(**self._address.parameters(), autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            # Without its cause, as libpq's message names host and user.
            raise translated(error) from None
        try:
            # Gives NULL if the type is missing, where a cast would raise.
            there = connection.execute("SELECT 1 FROM pg_type WHERE oid = to_regtype('vector')").fetchone()
            if there is None:
                raise BadLibrary(
                    "The database has no pgvector. Install it on the server if it is not there, and let the owner of "
                    "the database run in it: CREATE EXTENSION vector",
                    reason="EXTENSION_MISSING",
                )
            register_vector(connection)
        except psycopg.Error as error:
            connection.close()
            raise translated(error) from None
        except BaseException:
            connection.close()
            raise
        return connection


def translated(error: psycopg.Error) -> CourtError:
    """Translates a database error to the court's, without addresses, user names or SQL."""
    from psycopg import errors

    if isinstance(error, errors.LockNotAvailable):
        return Unavailable(
            "Somebody else is writing to this precedent library. Wait until they are done.",
            reason="LIBRARY_LOCKED",
            retry_after=5.0,
        )
    if isinstance(error, errors.QueryCanceled):
        return Unavailable(
            f"The database did not find precedents within {_SEARCH_S} seconds. Try again; if it happens again, give "
            "the database more memory, or search a library on disk.",
            reason="LIBRARY_SLOW",
        )
    if isinstance(error, (errors.UndefinedTable, errors.InvalidSchemaName)):
        return missing()
    if isinstance(error, errors.InsufficientPrivilege):
        return BadLibrary(
            "The database does not let this user read or change the precedent library. Ask its owner for the right to.",
            reason="LIBRARY_FORBIDDEN",
        )
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return Unavailable(
            "This database server takes no changes: it is a standby. Name the primary.", reason="LIBRARY_READ_ONLY"
        )
    if isinstance(error, (errors.InvalidPassword, errors.InvalidAuthorizationSpecification)):
        return Unavailable(
            "The database of precedents does not accept the user or the password.", reason="LIBRARY_LOGIN"
        )
    # For a login refused while connecting, libpq gives no error code.
    return Unavailable(
        "The database of precedents can't be reached, or broke off. See whether it runs and lets this user in; then "
        "try again.",
        reason="LIBRARY_AWAY",
    )


def missing() -> BadLibrary:
    """The error for a database without a library."""
    return BadLibrary(
        "There is no precedent library in the database. Put one there with `memecourt precedents push`.",
        reason="LIBRARY_MISSING",
    )


def _require_driver() -> None:
    try:
        import pgvector
        import psycopg
    except ModuleNotFoundError as error:
        raise NotLoaded(
            "Precedents in a database need its driver, which is not installed. "
            "Install it with: pip install 'memecourt[postgres]'",
            reason="POSTGRES_NOT_INSTALLED",
        ) from error
    del pgvector, psycopg
