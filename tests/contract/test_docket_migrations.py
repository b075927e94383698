"""The schema of a docket: its tables, migrations to come, and the protection by database triggers."""

import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DatabaseError

from retrieval.library.postgres.address import Address
from serving.docket.errors import DocketError
from serving.docket.store import review_tables, schema
from serving.docket.store import tables as t
from serving.docket.store.log_append import KeyFile
from serving.docket.store.postgres import SCHEMA
from tests.support.dockets import append_all, events_of, with_docket
from tests.support.logs import checked_log


def engine_of(url):
    import psycopg

    return create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, options=f"-c search_path={SCHEMA}")
    )


@pytest.fixture
def engine(docket_place):
    """An engine on the database of a docket, before there is one."""
    if Address.named_by(docket_place):
        found = engine_of(docket_place)
        with found.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    else:
        found = create_engine(f"sqlite:///{docket_place}")
    yield found
    found.dispose()


def test_new_docket_has_all_tables_and_their_triggers(engine):
    sqlite = engine.dialect.name == "sqlite"
    with engine.begin() as connection:
        schema.create(connection, None if sqlite else SCHEMA)
        for metadata in (t.metadata, review_tables.metadata):
            assert set(metadata.tables) <= set(inspect(connection).get_table_names())
        both = [t.metadata, review_tables.metadata]
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), both) == []
        names = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        if not sqlite:
            names = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
        installed = {name for (name,) in connection.execute(text(names))}
    assert {name.partition("_")[0] for name in installed} == set(schema.TABLES)


REFUSED = (
    "DELETE FROM entries WHERE number = 1",
    "UPDATE entries SET at = 'later' WHERE number = 1",
    "UPDATE entries SET body = NULL WHERE number = 1",
    "UPDATE entries SET salt = NULL, body = NULL, kind = 'Erased' WHERE number = 1",
    "UPDATE entries SET body = salt WHERE number = 1",
    "DELETE FROM tiles",
    "UPDATE tiles SET hashes = substr(hashes, 2)",
    "DELETE FROM checkpoints",
    "UPDATE checkpoints SET note = ''",
    "DELETE FROM log",
    "UPDATE log SET size = size - 1",
    "UPDATE log SET key = 'another'",
)
ALLOWED = ("UPDATE entries SET salt = NULL, body = NULL WHERE number = 1", "UPDATE log SET size = size + 1")


def check_all_refused(engine, also=()):
    """Asserts that the database itself refuses each statement."""
    for statement in (*REFUSED, *also):
        with pytest.raises(DatabaseError, match="what was logged stays as it is"), engine.begin() as connection:
            connection.execute(text(statement))


def test_the_database_refuses_to_alter_logged_entries(using, docket_place):
    using(lambda docket: append_all(docket, events_of("a")))
    postgres = Address.named_by(docket_place)
    engine = engine_of(docket_place) if postgres else create_engine(f"sqlite:///{docket_place}")
    check_all_refused(engine, [f"TRUNCATE {table}" for table in schema.TABLES] if postgres else ())
    using(checked_log)
    with engine.begin() as connection:
        for statement in ALLOWED:
            assert connection.execute(text(statement)).rowcount == 1
    engine.dispose()


def test_triggers_survive_a_migration_that_recreates_tables(tmp_path, monkeypatch):
    """Alembic's batch mode copies a table and drops the old one together with its triggers."""
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of("a")))
    steps = tmp_path / "migrations"
    shutil.copytree(Path(schema.__file__).with_name("migrations"), steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "versions" / "next.py").write_text(
        f"from alembic import op\nrevision, down_revision = '{t.FORMAT + 1}', '{t.FORMAT}'\n"
        "def upgrade():\n"
        "    for table in ('entries', 'tiles', 'checkpoints', 'log'):\n"
        "        with op.batch_alter_table(table, recreate='always'):\n"
        "            pass\n"
    )
    engine = create_engine(f"sqlite:///{path}")
    requests = []
    monkeypatch.setattr(schema, "lay_triggers", lambda connection, _: requests.append(connection))
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    with engine.connect() as connection:
        schema.upgrade(connection, t.FORMAT, to=t.FORMAT + 1)
        found = connection.execute(text("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'")).scalar_one()
        connection.rollback()
    assert requests and found == 0, "they were lost, and are requested again"
    monkeypatch.undo()
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    with engine.begin() as connection:
        schema.upgrade(connection, t.FORMAT, to=t.FORMAT + 1)
    check_all_refused(engine)
    engine.dispose()


def test_a_key_is_generated_once_and_is_private(tmp_path):
    path = tmp_path / "docket.key"
    with ThreadPoolExecutor(8) as threads:
        made = {str(key.verifier) for key in threads.map(lambda _: KeyFile(path)(""), range(16))}
    assert len(made) == 1, "concurrent generation yields a single key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [path]
    (known,) = made
    assert KeyFile(path)(known).secret() == path.read_text().strip()
    for spoiled in (None, "", "no key at all", path.read_text()[:-9]):
        other = tmp_path / "other.key"
        other.unlink(missing_ok=True)
        if spoiled is not None:
            other.write_text(spoiled)
        with pytest.raises(DocketError) as refused:
            KeyFile(other)(known)
        assert refused.value.reason == "DOCKET_KEY" and str(tmp_path) not in refused.value.message
