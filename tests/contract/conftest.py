"""A real PostgreSQL server with pgvector, and empty databases in it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from eval.perf.postgres import PostgresServer, programs
from retrieval.postgres.address import Address


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    if programs() is None and not os.environ.get("CI"):
        pytest.skip("there is no PostgreSQL here")
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def bare_database(postgres_server: PostgresServer) -> Address:
    """Without pgvector."""
    return Address(postgres_server.url())


@pytest.fixture
def database(postgres_server: PostgresServer) -> Address:
    """With pgvector, and without a library."""
    import psycopg

    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'court'").fetchone():
            connection.execute("CREATE DATABASE court")
    empty = Address(postgres_server.url("court"))
    with psycopg.connect(**empty.parameters(), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '5s'")
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA IF EXISTS memecourt CASCADE")
    return empty
