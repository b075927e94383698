"""Helpers of tests of docket migrations."""

import sqlite3

import pytest
from sqlalchemy import create_engine, text

from retrieval.library.postgres.address import Address
from serving.docket.store import tables as t
from serving.docket.store.postgres import SCHEMA

FORMAT_2 = """
CREATE TABLE events (
    trial_id VARCHAR{c} NOT NULL, seq INTEGER NOT NULL, kind VARCHAR NOT NULL, at VARCHAR NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (trial_id, seq));
CREATE TABLE pictures (
    pixels_sha256 VARCHAR{c} NOT NULL, place INTEGER NOT NULL, png {blob} NOT NULL,
    PRIMARY KEY (pixels_sha256, place));
CREATE TABLE trials (
    trial_id VARCHAR{c} NOT NULL, opened_at VARCHAR{c} NOT NULL, procedure VARCHAR NOT NULL,
    namespace VARCHAR{c} NOT NULL, content_id VARCHAR{c} NOT NULL, request_id VARCHAR{c} NOT NULL,
    pixels_sha256 VARCHAR{c} NOT NULL, state VARCHAR{c} NOT NULL, label VARCHAR{c} NOT NULL,
    needs_review BOOLEAN NOT NULL, outcome VARCHAR{c} NOT NULL, review TEXT, failure_reason VARCHAR NOT NULL,
    PRIMARY KEY (trial_id));
CREATE INDEX trials_by_time ON trials (opened_at, trial_id);
CREATE INDEX trials_by_namespace ON trials (namespace, opened_at, trial_id);
CREATE INDEX trials_by_state ON trials (state, opened_at, trial_id);
CREATE INDEX trials_by_label ON trials (label, opened_at, trial_id);
CREATE INDEX trials_by_outcome ON trials (outcome, opened_at, trial_id);
CREATE INDEX trials_by_picture ON trials (pixels_sha256, state);
CREATE INDEX trials_by_need ON trials (needs_review, outcome, opened_at, trial_id);
CREATE TABLE requests (
    namespace VARCHAR{c} NOT NULL, request_id VARCHAR{c} NOT NULL, payload VARCHAR NOT NULL,
    trial_id VARCHAR{c} NOT NULL, owner VARCHAR{c} NOT NULL, PRIMARY KEY (namespace, request_id));
CREATE TABLE servers (owner VARCHAR{c} NOT NULL, beats BIGINT NOT NULL, PRIMARY KEY (owner));
CREATE TABLE known (key VARCHAR{c} NOT NULL, trial_id VARCHAR{c} NOT NULL, PRIMARY KEY (key));
CREATE INDEX ix_known_trial_id ON known (trial_id);
CREATE TABLE looks (
    number {number}, trial_id VARCHAR{c} NOT NULL, look {blob} NOT NULL, {also}UNIQUE (trial_id));
"""


"""The schema as format 2 created it."""


IN_SQLITE = FORMAT_2.format(c="", blob="BLOB", number="INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", also="")
IN_POSTGRES = FORMAT_2.format(
    c=' COLLATE "C"', blob="BYTEA", number="BIGSERIAL NOT NULL", also="PRIMARY KEY (number), "
)


def sqlite_of_format_2(path):
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA journal_mode=WAL; {IN_SQLITE} PRAGMA user_version = 2;")
    connection.close()
    return create_engine(f"sqlite:///{path}")


def postgres_of_format_2(url):
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}; {IN_POSTGRES}")
        connection.execute("CREATE TABLE format (number INTEGER NOT NULL); INSERT INTO format VALUES (2)")
    return engine_of(url)


def engine_of(url):
    import psycopg

    return create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, options=f"-c search_path={SCHEMA}")
    )


@pytest.fixture
def old_docket(docket_place):
    """An empty docket of format 2: yields an engine to fill it."""
    named = Address.named_by(docket_place)
    engine = (postgres_of_format_2 if named else sqlite_of_format_2)(docket_place)
    yield engine
    engine.dispose()


def fill(engine, trials):
    from serving.docket.store.trials import trial_change, trial_row

    name = t.Name()
    with engine.begin() as connection:
        for events in trials:
            row = trial_row(events[0])
            for event in events:
                row |= trial_change(event)
                values = {"t": event.trial_id, "s": event.seq, "k": event.kind, "at": t.stamp(event.at)}
                connection.execute(
                    text("INSERT INTO events VALUES (:t, :s, :k, :at, :body)"),
                    {**values, "body": event.model_dump_json()},
                )
            for column in ("namespace", "content_id", "request_id"):
                row[column] = name.process_bind_param(row[column], engine.dialect)
            columns = ", ".join(row)
            connection.execute(text(f"INSERT INTO trials ({columns}) VALUES (:{', :'.join(row)})"), row)
        connection.execute(text("INSERT INTO known VALUES ('k', 'a')"))
        connection.execute(text("INSERT INTO looks (trial_id, look) VALUES ('a', :look)"), {"look": b"look"})
        for pixels in ("p", "q"):
            for place in (0, 1):
                row = {"pixels": pixels, "place": place, "png": f"{pixels}{place}".encode()}
                connection.execute(text("INSERT INTO pictures VALUES (:pixels, :place, :png)"), row)
