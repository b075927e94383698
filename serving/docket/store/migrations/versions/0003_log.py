"""Format 3: events become entries of one log, which is a Merkle tree with signed checkpoints."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import sqlalchemy as sa
from alembic import op
from pydantic import ValidationError

from court.events import AnyEvent, parse_event
from serving.docket.log.merkle import Frontier
from serving.docket.ports import DocketError
from serving.docket.store import schema
from serving.docket.store.log_append import LogAppender
from serving.docket.store.tables import NUMBER, WORD, Name
from serving.docket.store.trials import log_events

revision = "3"
down_revision = "2"

# As they were kept, as far as that is known: by time, and those of a trial in their order whatever its clock said.
_IN_ORDER = sa.text(
    "SELECT trial_id, body FROM events ORDER BY max(at) OVER (PARTITION BY trial_id ORDER BY seq), trial_id, seq"
)


def upgrade() -> None:
    """Lays the log and moves all events into it; the next commit signs it."""
    op.add_column("trials", sa.Column("erased", sa.Boolean, nullable=False, server_default=sa.false()))
    op.drop_index("trials_by_picture", "trials")
    op.create_index("trials_by_picture", "trials", ["pixels_sha256", "state", "opened_at", "trial_id"])
    _lay()
    connection = op.get_bind()
    log = sa.table("log", *(sa.column(name) for name in schema.log_row(Frontier())))
    connection.execute(sa.insert(log), schema.log_row(Frontier()))
    growing = LogAppender(connection)
    events = _events(connection)
    while some := list(islice(events, schema.CHUNK)):
        log_events(connection, growing, some)
        # In each round: all nodes of a large docket would not fit into memory.
        growing.write_tiles()
    growing.end(None)
    op.drop_table("events")


def _lay() -> None:
    op.create_table(
        "entries",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.Column("commitment", sa.LargeBinary, nullable=False),
        sa.Column("salt", sa.LargeBinary),
        sa.Column("body", sa.LargeBinary),
    )
    event, other = sa.text("seq >= 0"), sa.text("seq < 0")
    which: dict[str, Any] = {"unique": True, "sqlite_where": event, "postgresql_where": event}
    op.create_index("entries_of_trial", "entries", ["trial_id", "seq"], **which)
    op.create_index(
        "entries_about_trial", "entries", ["trial_id", "number"], sqlite_where=other, postgresql_where=other
    )
    op.create_index("entries_of_kind", "entries", ["kind", "number"])
    op.create_table(
        "log",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("frontier", sa.LargeBinary, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("signed", sa.BigInteger, nullable=False),
        sa.Column("erased", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tiles",
        sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("place", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("hashes", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("size", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_table(
        "parts",
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("of", Name, nullable=False, index=True),
    )


def _events(connection: sa.Connection) -> Iterator[AnyEvent]:
    with connection.execute(_IN_ORDER, execution_options={"yield_per": schema.CHUNK}) as rows:
        for trial_id, body in rows:
            try:
                yield parse_event(body)
            except ValidationError as error:
                raise DocketError(
                    f"The docket can't be upgraded: what it holds of trial {trial_id} is no record. It was altered, "
                    "or written by another version of MemeCourt. Restore the docket from a copy.",
                ) from error
