"""Connections to the database: kept, opened anew after the server was away, and their errors in the court's words."""

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
"""Connections that are kept open while nobody uses them."""
_SEARCH_S = 30
"""Seconds after which the server gives a search up."""
_SILENT_MS = 15_000
"""Milliseconds after which a server that does not acknowledge what it is sent counts as gone."""


class Connections:
    """Runs work on the database, each time in a transaction of its own. Safe to use from several threads."""

    def __init__(self, address: Address) -> None:
        """Connects only when there is work. Raises NotLoaded if the driver is not installed."""
        _require_driver()
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def reading(self, work: Callable[[Connection], T]) -> T:
        """Runs work that sees the database as it was at one moment and changes nothing.

        A connection that proves to be broken is replaced and the work is done again, once.

        Raises:
            BadLibrary: The database holds no library, or no pgvector.
            Unavailable: The server is away or does not answer in time.
        """
        import psycopg
        from psycopg import IsolationLevel

        for last in (False, True):
            connection, pooled = self._take()
            try:
                connection.isolation_level = IsolationLevel.REPEATABLE_READ
                connection.read_only = True
                with connection.transaction():
                    found = work(connection)
            except psycopg.Error as error:
                lost = connection.closed
                self._give(connection)
                # A kept connection may have been broken for long. And a table may have gone since the library was read
                # that named it, where libraries are replaced in quick succession.
                again = (lost and pooled) or isinstance(error, psycopg.errors.UndefinedTable)
                if last or not again:
                    raise translated(error) from error
                # Where one is broken the others mostly are as well (the server was restarted), and each would cost a
                # search its second try.
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
        """Runs work that changes the library, alone: who else wants to waits, and all of it holds or nothing.

        Args:
            work: Is done once; never again, since nobody knows what became of it when a connection breaks.
            wait_s: Seconds to wait for another writer.

        Raises:
            BadLibrary: The database holds no library, or no pgvector.
            Unavailable: The server is away, or somebody else is writing for too long.
        """
        import psycopg
        from psycopg import IsolationLevel

        # Never a kept one, of which it is not known whether it still stands.
        connection = self._open(limit_s=0)
        try:
            # Not one snapshot for all: taken before the lock is granted, it would miss what the writer before commits.
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{int(wait_s * 1000)}ms'")
                # What another has written before us is seen by all statements after this one.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('memecourt.precedents'))")
                # Only the wait for other writers is bounded by it.
                connection.execute("SET LOCAL lock_timeout = 0")
                return work(connection)
        except psycopg.Error as error:
            raise translated(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Lets go of all connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
        self._forget()

    def _take(self) -> tuple[Connection, bool]:
        """A connection, and whether it was kept from before."""
        with self._lock:
            if self._closed:
                raise Unavailable("The precedent library was closed.", reason="LIBRARY_CLOSED")
            # The one that was used last: of all it is the least likely to have been closed for its silence.
            if self._idle:
                return self._idle.pop(), True
        return self._open(limit_s=_SEARCH_S), False

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

    def _open(self, *, limit_s: int) -> Connection:
        """A new one; ``limit_s`` seconds are what a statement may take, 0 for no limit."""
        import psycopg
        from pgvector.psycopg import register_vector

        # A server whose machine is gone is noticed within half a minute, also where we only wait for its answer.
        options = {
            "application_name": "memecourt",
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
            "tcp_user_timeout": str(_SILENT_MS),
            # Last: what the operator writes into the address overrides what stands above.
            **self._address.parameters(),
        }
        try:
            # No prepared statements: between us and the server there may be a pooler that shares its connections out.
            connection = psycopg.connect(**options, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            # Without its cause: libpq's sentence names host and user.
            raise translated(error) from None
        try:
            # A cast to the type would raise where it is missing; this gives NULL.
            there = connection.execute("SELECT 1 FROM pg_type WHERE oid = to_regtype('vector')").fetchone()
            if there is None:
                raise BadLibrary(
                    "The database has no pgvector. Install it on the server if it is not there, and let the owner of "
                    "the database run in it: CREATE EXTENSION vector",
                    reason="EXTENSION_MISSING",
                )
            register_vector(connection)
            connection.execute(f"SET statement_timeout = '{limit_s}s'")
        except psycopg.Error as error:
            connection.close()
            raise translated(error) from None
        except BaseException:
            connection.close()
            raise
        return connection


def translated(error: psycopg.Error) -> CourtError:
    """Converts a database error to the court's, without addresses, names of users or SQL."""
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
    # Of a login that is refused while connecting libpq tells no code, only that it did not come about.
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
