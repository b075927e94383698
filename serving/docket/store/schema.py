"""Creation of a docket's tables, and their migration from earlier formats."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, insert, text

from serving.docket.log.merkle import Frontier
from serving.docket.store import review_tables
from serving.docket.store import tables as t

_FIXED_COLUMNS = ("number", "trial_id", "seq", "kind", "at", "commitment")
_REFUSED = "what was logged stays as it is"

_SAME = " AND ".join(f"NEW.{name} = OLD.{name}" for name in _FIXED_COLUMNS)
# Of an update, what is allowed: an entry loses salt and body, both; a tile is continued; the log grows, and goes over
# to another key only with an entry that says so.
_ALLOWED = {
    "entries": f"{_SAME} AND NEW.salt IS NULL AND NEW.body IS NULL",
    "tiles": "NEW.level = OLD.level AND NEW.place = OLD.place "
    "AND substr(NEW.hashes, 1, length(OLD.hashes)) = OLD.hashes",
    "checkpoints": None,
    "log": "NEW.id = OLD.id AND NEW.size >= OLD.size AND NEW.erased >= OLD.erased "
    "AND (OLD.key = '' OR NEW.key = OLD.key OR NEW.size > OLD.size)",
}

TABLES = tuple(_ALLOWED)
"""Tables with triggers."""


def lay_triggers(connection: Connection, schema: str | None = None) -> None:
    """Creates the missing triggers.

    A migration that recreates a table (Alembic's batch mode, in SQLite) loses that table's triggers, so they
    are created again after every migration.
    """
    (_in_sqlite if connection.dialect.name == "sqlite" else _in_postgres)(connection, schema)


def _in_sqlite(connection: Connection, _: str | None) -> None:
    for table, allowed in _ALLOWED.items():
        refuse = f"SELECT RAISE(ABORT, '{_REFUSED}')"
        for name, of, when in (
            ("delete", "DELETE", ""),
            ("update", "UPDATE", f"WHEN NOT ({allowed})" if allowed else ""),
        ):
            connection.exec_driver_sql(
                f"CREATE TRIGGER IF NOT EXISTS {table}_{name} BEFORE {of} ON {table} {when} BEGIN {refuse}; END"
            )


def _in_postgres(connection: Connection, schema: str | None) -> None:
    there = f"{schema}." if schema else ""
    connection.execute(
        text(
            f"CREATE OR REPLACE FUNCTION {there}refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_REFUSED}' USING ERRCODE = 'restrict_violation'; END $$"
        )
    )
    for table, allowed in _ALLOWED.items():
        when = f"WHEN (NOT ({allowed}))" if allowed else ""
        for name, of, each in (
            ("delete", "DELETE", "FOR EACH ROW"),
            ("update", "UPDATE", f"FOR EACH ROW {when}"),
            # TRUNCATE fires no row triggers.
            ("truncate", "TRUNCATE", "FOR EACH STATEMENT"),
        ):
            # PostgreSQL's CREATE TRIGGER has no IF NOT EXISTS.
            found = text("SELECT 1 FROM pg_trigger WHERE tgname = :name AND tgrelid = to_regclass(:table)")
            if connection.execute(found, {"name": f"{table}_{name}", "table": f"{there}{table}"}).first() is None:
                connection.execute(
                    text(
                        f"CREATE TRIGGER {table}_{name} BEFORE {of} ON {there}{table} {each} "
                        f"EXECUTE FUNCTION {there}refuse()"
                    )
                )


_log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).with_name("migrations")


def create(connection: Connection, schema: str | None = None) -> None:
    """Creates the tables of a new docket, in the caller's transaction."""
    t.metadata.create_all(connection)
    review_tables.metadata.create_all(connection)
    connection.execute(insert(t.log), log_row(Frontier()))
    lay_triggers(connection, schema)


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
    lay_triggers(connection, schema)
