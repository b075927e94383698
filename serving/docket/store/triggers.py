"""Database triggers that refuse to change or remove log entries, except salts and bodies that are erased.

They stop mistakes and faulty software. Anyone who may alter tables can drop them; the protection against that is
the Merkle tree and its signed checkpoints.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

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


def lay(connection: Connection, schema: str | None = None) -> None:
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
