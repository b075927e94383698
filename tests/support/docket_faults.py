"""Faults of a docket's file or database, each for as long as its context lasts."""

import resource
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def locked_file(path):
    with closing(sqlite3.connect(path, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def file_size_limit(size):
    """Limits the file size of this process; to the database it looks like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full_disk(path):
    return file_size_limit(Path(f"{path}-wal").stat().st_size)


@contextmanager
def missing_file(path):
    Path(path).rename(f"{path}.away")
    try:
        yield
    finally:
        Path(f"{path}.away").rename(path)


def _tables(connection):
    found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'memecourt_docket'").fetchall()
    return [f"memecourt_docket.{name}" for (name,) in found]


@contextmanager
def locked_database(url):
    import psycopg

    with psycopg.connect(url) as other:
        other.execute("SET lock_timeout = '20s'")
        other.execute(f"LOCK TABLE {', '.join(_tables(other))} IN EXCLUSIVE MODE")
        yield
        other.rollback()


@contextmanager
def full_database_disk(url):
    import psycopg

    full = "BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END"
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SET search_path = memecourt_docket")
        other.execute(f"CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ {full} $$")
        tables = _tables(other)
        for table in tables:
            other.execute(f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} EXECUTE FUNCTION full_disk()")
        yield
        for table in tables:
            other.execute(f"DROP TRIGGER full_disk ON {table}")


_BREAK = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND application_name = 'memecourt'"
)


@contextmanager
def unreachable_database(url):
    """Breaks all connections and removes the server's socket. Starts no process, which gRPC does not tolerate here."""
    import psycopg

    address = Path(f"{url.partition('host=')[2]}/.s.PGSQL.5432")
    with psycopg.connect(url, autocommit=True) as other:
        address.rename(f"{address}.away")
        try:
            other.execute(_BREAK)
            yield
        finally:
            Path(f"{address}.away").rename(address)


@contextmanager
def broken_connections(url):
    import psycopg

    with psycopg.connect(url, autocommit=True) as other:
        other.execute(_BREAK)
    yield


SQLITE = [locked_file, full_disk, missing_file]
POSTGRES = [locked_database, full_database_disk, unreachable_database, broken_connections]
