"""The tables of a docket, the same in SQLite and in PostgreSQL."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

FORMAT = 2
"""Of the tables below; a docket of an earlier format is upgraded when it is opened, one of a later is refused."""

metadata = MetaData()

# Compared byte by byte in both, whatever language a database is set up for.
_WORD = String().with_variant(String(collation="C"), "postgresql")


class _Name(TypeDecorator[str]):
    """What strangers call things: any text. PostgreSQL takes no NUL: it is written as a backslash and a zero."""

    impl = _WORD
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or ("\\" not in value and "\0" not in value):
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        if value is None or "\\" not in value:
            return value
        return re.sub(r"\\(.)", lambda found: "\0" if found[1] == "0" else "\\", value)


events = Table(
    "events",
    metadata,
    Column("trial_id", _WORD, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),  # ISO 8601, UTC: sorts as it reads
    Column("body", Text, nullable=False),
)

pictures = Table(
    "pictures",
    metadata,
    Column("pixels_sha256", _WORD, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("png", LargeBinary, nullable=False),
)

trials = Table(
    "trials",
    metadata,
    # What its events come to. Written in the same transaction as they are, and never instead of them.
    Column("trial_id", _WORD, primary_key=True),
    Column("opened_at", _WORD, nullable=False),
    Column("procedure", String, nullable=False),
    Column("namespace", _Name, nullable=False),
    Column("content_id", _Name, nullable=False),
    Column("request_id", _Name, nullable=False),
    Column("pixels_sha256", _WORD, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("label", _WORD, nullable=False),  # empty where there is no verdict
    Column("needs_review", Boolean, nullable=False),
    Column("outcome", _WORD, nullable=False),  # of the last review; empty where there was none
    Column("review", Text),  # that event
    Column("failure_reason", String, nullable=False),
)

# Each filter that may pick few out of many has an index in the order of listings.
_order = (trials.c.opened_at, trials.c.trial_id)
Index("trials_by_time", *_order)
Index("trials_by_namespace", trials.c.namespace, *_order)
Index("trials_by_state", trials.c.state, *_order)
Index("trials_by_label", trials.c.label, *_order)
Index("trials_by_outcome", trials.c.outcome, *_order)
Index("trials_by_picture", trials.c.pixels_sha256, trials.c.state)
Index("trials_by_need", trials.c.needs_review, trials.c.outcome, *_order)

requests = Table(
    "requests",
    metadata,
    Column("namespace", _Name, primary_key=True),
    Column("request_id", _Name, primary_key=True),
    Column("payload", String, nullable=False),
    Column("trial_id", _WORD, nullable=False),
    Column("owner", _WORD, nullable=False),
)

servers = Table(
    "servers",
    metadata,
    Column("owner", _WORD, primary_key=True),
    Column("beats", BigInteger, nullable=False),
)

known = Table(
    "known",
    metadata,
    Column("key", _WORD, primary_key=True),
    Column("trial_id", _WORD, nullable=False, index=True),
)

looks = Table(
    "looks",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("trial_id", _WORD, nullable=False, unique=True),
    Column("look", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)


def stamp(at: datetime) -> str:
    """A time as it is kept."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")
