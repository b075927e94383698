"""The tables of a docket: laid when it is made, brought to this format when it is of an earlier one."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, insert

from serving.docket.log.merkle import Frontier
from serving.docket.store import review_tables, triggers
from serving.docket.store import tables as t

_log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).with_name("migrations")

CHUNK = 500
"""Rows that an upgrade holds in memory at once."""


def create(connection: Connection, schema: str | None = None) -> None:
    """Lays the tables of a new docket; all in the transaction of whoever calls."""
    t.metadata.create_all(connection)
    review_tables.metadata.create_all(connection)
    connection.execute(insert(t.log), log_row(Frontier()))
    triggers.lay(connection, schema)


def log_row(frontier: Frontier) -> dict[str, object]:
    """The row of a log that has never been signed."""
    return {
        "id": 1,
        "size": frontier.size,
        "frontier": frontier.to_bytes(),
        "key": "",
        "checkpoint": "",
        "signed": -1,  # not 0: even the empty log counts as not signed
        "erased": 0,
    }


def upgrade(connection: Connection, found: int, schema: str | None = None, *, to: int = t.FORMAT) -> None:
    """Brings a docket of an earlier format to this one: all in the transaction of whoever calls, or nothing of it.

    Args:
        connection: To it.
        found: Its format.
        schema: In which its tables are; None where databases have none.
        to: The format to bring it to.

    Raises:
        DocketError: The database contains something else than a docket.
    """
    # Imported only where there is something to do: it takes as long as everything else of a start.
    from alembic import command
    from alembic.config import Config

    _log.info("Upgrading the docket from format %d to format %d.", found, to)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    # The format that a docket says it has goes before what Alembic last wrote down, which new dockets don't have.
    command.stamp(config, str(found), purge=True)
    command.upgrade(config, str(to))
    triggers.lay(connection, schema)
