"""Creation of a docket's tables, and their migration from earlier formats."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, insert

from serving.docket.log.merkle import Frontier
from serving.docket.store import review_tables, triggers
from serving.docket.store import tables as t

_log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).with_name("migrations")


def create(connection: Connection, schema: str | None = None) -> None:
    """Creates the tables of a new docket, in the caller's transaction."""
    t.metadata.create_all(connection)
    review_tables.metadata.create_all(connection)
    connection.execute(insert(t.log), log_row(Frontier()))
    triggers.lay(connection, schema)


def log_row(frontier: Frontier) -> dict[str, object]:
    """Builds the row of a log that has never been signed."""
    return {
        "id": 1,
        "size": frontier.size,
        "frontier": frontier.to_bytes(),
        "key": "",
        "checkpoint": "",
        "signed": -1,  # not 0, so that even the empty log counts as unsigned
        "erased": 0,
    }


def upgrade(connection: Connection, found: int, schema: str | None = None, *, to: int = t.FORMAT) -> None:
    """Migrates a docket of an earlier format, atomically in the caller's transaction.

    Args:
        schema: Schema of its tables; None if the database has none.

    Raises:
        DocketError: The database contains something other than a docket.
    """
    # Imported only when needed: it takes as long as the rest of a start.
    from alembic import command
    from alembic.config import Config

    _log.info("Migrating the docket from format %d to format %d.", found, to)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    # The docket's own format overrides Alembic's version table, which new dockets don't have.
    command.stamp(config, str(found), purge=True)
    command.upgrade(config, str(to))
    triggers.lay(connection, schema)
