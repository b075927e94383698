"""Docket and library behind a real pgbouncer in transaction mode, which gives each transaction any session."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from sqlalchemy import text

from court.errors import Unavailable
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.connections import Connections
from serving.docket.store.postgres import PostgresDatabase
from tests.support.dockets import append_all, events_of, opened_docket
from tests.support.nginx import free_port, listens
from tests.support.playing import wait_until
from tests.support.postgres import AS_STRANGER


@contextmanager
def pgbouncer(url):
    """Runs a pooler in front of a server that listens on a socket; yields the URL by which it is reached."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (Debian: pgbouncer)")
    parts = urlsplit(url)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "users").write_text(f'"{parts.username}" ""\n')
        configuration = Path(folder) / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = host={parse_qs(parts.query)['host'][0]}\n[pgbouncer]\npool_mode = transaction\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {folder}/users\ndefault_pool_size = 10\n"
            # The newest session is used last, so that transactions of one client meet several.
            "server_round_robin = 1\n"
        )
        # It refuses to run as root; files of root may be closed to others, as the umask says.
        for path in Path(folder).iterdir():
            path.chmod(0o644)
        user = AS_STRANGER if os.geteuid() == 0 else ()
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen([*user, program, "-q", configuration], stderr=file)
        try:
            wait_until(lambda: process.poll() is not None or listens(port))
            assert process.poll() is None, f"pgbouncer does not start: {log.read_text()}"
            yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable&gssencmode=disable"
        finally:
            process.terminate()
            process.wait()


THREADS = 8
END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


def shown(connection, query=str):
    """Returns the settings of the session that a transaction has got, which it keeps for a moment."""
    connection.execute(query("SELECT pg_sleep(.02)"))
    names = ("statement_timeout", "transaction_read_only", "transaction_isolation")
    return tuple(connection.execute(query(f"SHOW {name}")).fetchone()[0] for name in names)


def in_many_sessions(use):
    """Runs transactions at once, which takes several sessions, three times; returns their results."""
    with ThreadPoolExecutor(THREADS) as threads:
        return {found for _ in range(3) for found in threads.map(lambda _: use(), range(THREADS))}


def test_each_transaction_of_the_docket_has_its_own_limits(docket_database):
    def use():
        with database.reading() as connection:
            reading = shown(connection, text)
        with database.writing() as connection:
            return reading, shown(connection, text)

    with pgbouncer(docket_database) as url:
        database = PostgresDatabase.open(Address(url), create=True, patience=10.0)
        try:
            found = in_many_sessions(use)
        finally:
            database.close()
        assert found == {(("30s", "on", "repeatable read"), ("30s", "off", "read committed"))}
        # Other clients of the pooler get the same sessions.
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
            assert {shown(other) for _ in range(THREADS)} == {("0", "off", "read committed")}


def test_each_transaction_of_the_library_has_its_own_limits(database, postgres_server):
    with pgbouncer(postgres_server.url("court")) as url:
        connections = Connections(Address(url))
        try:
            searches = in_many_sessions(lambda: connections.reading(shown))
            change = connections.writing(shown, wait_s=5)
        finally:
            connections.close()
        assert searches == {("30s", "on", "repeatable read")} and change == ("0", "off", "read committed")
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
            assert {shown(other) for _ in range(THREADS)} == {("0", "off", "read committed")}


async def test_a_database_that_is_read_only_by_default_takes_no_write_after_a_read(docket_database):
    events = events_of()

    async def count(docket):
        """Returns the number of stored events, once the pooler has noticed that its sessions were ended."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return len((await docket.trials.record("t")).events)
                except Unavailable:
                    await asyncio.sleep(0.01)

    with pgbouncer(docket_database) as url:
        async with opened_docket(Address(url)) as docket:
            await append_all(docket, events[:2])
            with psycopg.connect(docket_database, autocommit=True) as other:
                other.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
                try:
                    other.execute(END_SESSIONS)
                    assert await count(docket) == 2
                    with pytest.raises(Unavailable, match="name the primary"):
                        await docket.writer.append(events[2])
                    assert await count(docket) == 2
                finally:
                    other.execute("SET default_transaction_read_only = off")
                    other.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
                    other.execute(END_SESSIONS)
            await count(docket)
            await append_all(docket, events[2:])
            assert await count(docket) == len(events)
