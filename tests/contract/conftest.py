"""Fixtures with empty databases of a real PostgreSQL server with pgvector."""

import multiprocessing
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from retrieval.library.postgres.address import Address
from tests.support.postgres import PostgresServer


@pytest.fixture
def bare_database(postgres_server: PostgresServer) -> Address:
    """Address of a database without pgvector."""
    return Address(postgres_server.url())


@pytest.fixture
def database(postgres_server: PostgresServer) -> Address:
    """Address of a database with pgvector and without a library."""
    import psycopg

    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'court'").fetchone():
            connection.execute("CREATE DATABASE court")
    empty = Address(postgres_server.url("court"))
    with psycopg.connect(**empty.parameters(), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '60s'")
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA IF EXISTS memecourt CASCADE")
    return empty


@pytest.fixture(params=["sqlite", "postgres"])
def docket_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Place for a new docket, as text that can be passed to other processes."""
    if request.param == "sqlite":
        return str(tmp_path / "docket.sqlite")
    return str(request.getfixturevalue("docket_database"))


@pytest.fixture
def opening(docket_place: str) -> Any:
    """A function that opens the docket at ``docket_place``, as an asynchronous context."""
    from tests.support.dockets import opened_docket, parse_place

    return partial(opened_docket, parse_place(docket_place))


@pytest.fixture
def using(opening: Any) -> Any:
    """A function that runs work on the docket at ``docket_place``."""
    from tests.support.playing import run_within

    return lambda work, **options: run_within(opening(**options), work)


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """A context of processes that start quickly, forked from one that has only imported the docket."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.dockets"])
    return context
