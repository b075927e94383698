"""Migrations of dockets from earlier formats in place, and the protection by database triggers."""

import random
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DatabaseError

from court.record import TrialRecord
from retrieval.library.postgres.address import Address
from serving.docket.open import stored_format
from serving.docket.ports import DocketError
from serving.docket.store import review_tables as desk_tables
from serving.docket.store import schema, triggers
from serving.docket.store import tables as t
from serving.docket.store.keys import KeyFile
from serving.docket.store.postgres import SCHEMA
from tests.support.docket_log import checked_log
from tests.support.docket_migrations import engine_of, fill
from tests.support.docket_migrations import old_docket as old_docket
from tests.support.dockets import NOON, append_all, events_of, listing_fields, parse_place, random_records, with_docket


def test_a_docket_of_format_2_is_upgraded_in_place(old_docket, using, monkeypatch):
    monkeypatch.setattr("serving.docket.store.schema.CHUNK", 11)
    trials = [*random_records(random.Random(3), 60, NOON), events_of("a")]
    fill(old_docket, trials)

    async def read_all(docket):
        lines = {line.trial_id: line for line in await docket.index.list(limit=999)}
        records = {trial_id: await docket.trials.record(trial_id) for trial_id in lines}
        frames = [await docket.trials.frames(pixels) for pixels in "pq"]
        receipt = await docket.log.receipt("a")
        return (
            lines,
            records,
            frames,
            await docket.verdict_keys.get("k"),
            await docket.fingerprints.fingerprints(0),
            receipt,
            await checked_log(docket),
        )

    contents = [using(read_all, create=False) for _ in range(2)]
    assert contents[0] == contents[1], "the second opening finds it upgraded"
    lines, records, frames, known, fingerprints, _, (entries, *_) = contents[0]
    assert frames == [[b"p0", b"p1"], [b"q0", b"q1"]]
    assert known == "a" and [(trial, fingerprint) for _, trial, fingerprint in fingerprints] == [("a", b"look")]
    assert len(lines) == 61
    for events in trials:
        record = TrialRecord.of(events)
        assert records[record.trial_id] == record
        assert {name: getattr(lines[record.trial_id], name) for name in listing_fields(record)} == listing_fields(
            record
        )
    assert sum(entry.seq >= 0 for entry in entries) == sum(map(len, trials))
    logged = [entry for entry in entries if entry.seq >= 0]
    assert [entry.at for entry in logged] == sorted(entry.at for entry in logged)
    using(lambda docket: append_all(docket, events_of("new")), create=False)
    assert len(using(checked_log)[0]) > len(entries)


def test_an_upgraded_docket_has_the_tables_and_triggers_of_a_new_one(old_docket, docket_place, using):
    """A new one has exactly the tables of :mod:`serving.docket.store.tables`."""

    def current_schema():
        with old_docket.connect() as connection:
            all_of_them = [t.metadata, desk_tables.metadata]
            known = {name for metadata in all_of_them for name in metadata.tables}
            options = {"include_object": lambda o, name, kind, *_: kind != "table" or name in known}
            context = MigrationContext.configure(connection, opts={**options, "compare_type": True})
            differences = compare_metadata(context, all_of_them)
            if connection.dialect.name == "sqlite":
                installed = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            else:
                installed = connection.execute(text("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"))
            return differences, {name for (name,) in installed}

    using(lambda docket: docket.log.size())
    upgraded = current_schema()
    if old_docket.dialect.name == "sqlite":
        old_docket.dispose()
        Path(docket_place).unlink()
    else:
        with old_docket.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {SCHEMA} CASCADE"))
    using(lambda docket: docket.log.size())
    assert upgraded == current_schema()
    assert upgraded[0] == []
    assert {name.partition("_")[0] for name in upgraded[1]} == set(triggers.TABLES)


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
    check_all_refused(engine, [f"TRUNCATE {table}" for table in triggers.TABLES] if postgres else ())
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
    monkeypatch.setattr(schema.triggers, "lay", lambda connection, _: requests.append(connection))
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


def test_an_unreadable_event_stops_the_upgrade_and_changes_nothing(old_docket, using):
    trials = random_records(random.Random(4), 9, NOON)
    fill(old_docket, trials)
    with old_docket.begin() as connection:
        connection.execute(text("UPDATE events SET body = '{}' WHERE trial_id = :t"), {"t": trials[4][0].trial_id})
    with pytest.raises(DocketError, match=f"can't be upgraded.*{trials[4][0].trial_id}"):
        using(lambda docket: docket.log.size())
    with old_docket.connect() as connection:
        tables = set(inspect(connection).get_table_names())
        count = connection.execute(text("SELECT count(*) FROM events")).scalar_one()
    assert "entries" not in tables and count == sum(map(len, trials))


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


def test_the_format_of_a_docket_can_be_read_without_opening_it(docket_place, using):
    place = parse_place(docket_place)
    assert stored_format(place) is None

    async def do_nothing(_):
        return None

    using(do_nothing)
    assert stored_format(place) == t.FORMAT
