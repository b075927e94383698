"""The docket as a SQLite file. What holds for every docket is tested in tests/contract/test_dockets.py."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, event

from court.errors import BadRequest, Unavailable
from court.record import TrialRecord
from court.verdict import Label
from retrieval.library.postgres.address import Address
from serving.cli.records import records
from serving.docket.open import Docket
from serving.docket.ports import DocketError, TrialFilter
from serving.docket.store.group_commit import sqlite_engine
from serving.docket.store.sqlite import SqliteDatabase
from serving.docket.store.tables import FORMAT
from serving.settings import Settings
from tests.support.dockets import (
    NOON,
    append_all,
    events_of,
    open_trials,
    random_records,
    reviewing,
    shown,
    with_docket,
)


def test_a_missing_docket_is_only_made_when_asked(tmp_path):
    with pytest.raises(DocketError, match="There is no docket"):
        Docket.open(tmp_path / "none.sqlite", create=False)
    assert not (tmp_path / "none.sqlite").exists()
    path = tmp_path / "deep" / "docket.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    assert with_docket(path, lambda docket: docket.index.list(limit=9), create=False)


def test_what_is_no_docket_is_refused_and_left_as_it_is(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look at " * 100)
    with pytest.raises(DocketError, match="can't be opened"):
        Docket.open(text)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    with pytest.raises(DocketError, match="no docket"):
        Docket.open(other)


def test_a_docket_that_another_process_locks_is_not_called_damaged(tmp_path):
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(
            DocketError, match=r"can't be opened now: another process is writing .* may be whole"
        ) as found:
            SqliteDatabase.open(path, create=False, patience=0.05)
    finally:
        connection.close()
    assert found.value.reason == "DOCKET_UNAVAILABLE"
    assert with_docket(path, lambda docket: docket.index.list(limit=9), create=False)


def test_nor_is_one_whose_disk_is_full(tmp_path):
    # No file of the process can grow: SQLite makes one beside the docket as it opens it.
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom serving.docket.store.sqlite import open_sqlite\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "open_sqlite(Path(sys.argv[1]), create=False, patience=0.1)"
    )
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1 and "as when a disk is full or failing. Its records may be whole" in done.stderr
    assert "damaged" not in done.stderr.splitlines()[-1]
    assert with_docket(path, lambda docket: docket.index.list(limit=9), create=False)


def test_a_later_format_is_refused(tmp_path):
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DocketError, match="Upgrade"):
        Docket.open(path)


def test_an_altered_record_is_not_shown_as_if_it_were_whole(tmp_path):
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_delete")
    connection.execute("DELETE FROM entries WHERE seq = 3")
    connection.commit()
    connection.close()
    with pytest.raises(DocketError, match="is no record"):
        with_docket(path, lambda docket: docket.trials.record("t"))


def test_a_closed_docket_says_so(tmp_path):
    async def scene(docket):
        await docket.writer.append(events_of()[0])
        await docket.close()
        for ask in (
            docket.writer.append(events_of()[1]),
            docket.fingerprints.put_fingerprint("t", b""),
            docket.trials.record("t"),
        ):
            with pytest.raises(Unavailable, match="closed"):
                await ask

    with_docket(tmp_path / "d.sqlite", scene)


def test_labels_of_any_number_of_trials_are_asked_for_in_few_statements(tmp_path):
    """Drivers keep the statements that they have seen: of one for each number, memory grew with what was asked."""
    asked = set()

    @event.listens_for(Engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        asked.add(statement)

    async def scene(docket):
        await append_all(docket, events_of())
        asked.clear()
        return [await docket.index.labels(["t", *(f"no{i}" for i in range(others))]) for others in range(130)]

    try:
        assert with_docket(tmp_path / "d.sqlite", scene) == [{"t": Label.HARMFUL}] * 130
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert 1 <= len({statement for statement in asked if "label" in statement}) <= 9


def test_connections_that_are_not_needed_stay_unused(tmp_path):
    """Each keeps pages and statements of its own: taken in turn, all of them would come to keep the same."""
    engine = sqlite_engine(tmp_path / "d.sqlite", 1.0)
    with ExitStack() as together:
        for _ in range(4):
            together.enter_context(engine.connect())
    used = set()
    for _ in range(8):
        with engine.connect() as connection:
            used.add(id(connection.connection.dbapi_connection))
    assert len(used) == 1 and engine.pool.checkedin() == 4
    engine.dispose()


FORMAT_1 = """
CREATE TABLE events (
    trial_id VARCHAR NOT NULL, seq INTEGER NOT NULL, kind VARCHAR NOT NULL, at VARCHAR NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (trial_id, seq)
);
CREATE INDEX ix_events_kind ON events (kind);
CREATE TABLE pictures (
    pixels_sha256 VARCHAR NOT NULL, place INTEGER NOT NULL, png BLOB NOT NULL, PRIMARY KEY (pixels_sha256, place)
);
PRAGMA user_version = 1;
"""


def format_1(path, trials):
    """A docket as the first version of MemeCourt kept it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(FORMAT_1)
    connection.execute("INSERT INTO pictures VALUES ('p', 0, x'0102')")
    for one in (one for events in trials for one in events):
        row = one.trial_id, one.seq, one.kind, one.at.isoformat(), one.model_dump_json()
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()


def test_a_docket_of_format_1_is_upgraded_where_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.docket.store.schema.CHUNK", 7)
    path, trials = tmp_path / "d.sqlite", random_records(random.Random(1), 60, NOON)
    format_1(path, trials)

    async def look(docket):
        lines = {line.trial_id: line for line in await docket.index.list(limit=999)}
        records = {trial_id: await docket.trials.record(trial_id) for trial_id in lines}
        return lines, records, await docket.trials.frames("p"), await open_trials(docket)

    for _ in range(2):  # once upgraded, and once found to be
        lines, records, frames, still_open = with_docket(path, look, create=False)
        assert len(lines) == 60 and frames == [b"\x01\x02"]
        for events in trials:
            record = TrialRecord.of(events)
            assert records[record.trial_id] == record
            assert {name: getattr(lines[record.trial_id], name) for name in shown(record)} == shown(record)
        assert set(still_open) == {t for t, record in records.items() if record.state == "OPEN"}
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    connection.close()
    with_docket(path, lambda docket: append_all(docket, events_of()))


def test_an_upgrade_that_can_not_be_made_leaves_the_docket_as_it_was(tmp_path):
    path, trials = tmp_path / "d.sqlite", random_records(random.Random(2), 9, NOON)
    format_1(path, trials)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET body = '{}' WHERE trial_id = ? AND seq = 0", (trials[4][0].trial_id,))
    connection.commit()
    with pytest.raises(DocketError, match=f"can't be upgraded.*{trials[4][0].trial_id}"):
        Docket.open(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert {
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    } == {
        "events",
        "ix_events_kind",
        "pictures",
    }
    assert len(connection.execute("SELECT * FROM events").fetchall()) == sum(map(len, trials))
    connection.close()


@pytest.mark.parametrize(
    "which",
    [
        TrialFilter(),
        TrialFilter(namespace="north"),
        TrialFilter(namespaces=frozenset({"north", ""})),
        TrialFilter(labels=frozenset({"HARMFUL", "UNDECIDED"})),
        TrialFilter(states=frozenset({"OPEN", "FAILED"})),
        TrialFilter(needs_review=True, reviewed=False),
        TrialFilter(reviewed=True),
        TrialFilter(reviewed=True, namespace="north", labels=frozenset({"HARMFUL"})),
        TrialFilter(opened_from=NOON, opened_until=NOON),
    ],
)
def test_a_page_is_read_off_an_index_and_nothing_is_sorted_or_gone_through(tmp_path, which):
    """So that its time does not hang on how many trials there are."""

    async def scene(docket):
        engine = docket.transactions.database._engine
        plans = []

        def explained(connection, cursor, statement, parameters, *_):
            if "FROM trials" in statement:
                told = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
                plans.append(" ".join(step[3] for step in told))

        event.listen(engine, "after_cursor_execute", explained)
        await docket.index.list(limit=50, which=which)
        await docket.index.list(limit=50, which=which, after=(NOON, "t"), oldest_first=True)
        return plans

    plans = with_docket(tmp_path / "d.sqlite", scene)
    assert plans
    for plan in plans:
        assert "USING INDEX trials_by_" in plan and "TEMP B-TREE" not in plan, plan
        assert not which.reviewed or "trials_by_outcome" in plan, plan


def test_a_docket_is_named_as_a_file_or_as_a_database(tmp_path):
    assert Settings(home=tmp_path).docket_place == tmp_path / "docket.sqlite"
    assert Settings(docket="d.sqlite").docket_place == Path("d.sqlite")
    url = "postgresql://court:secret@db/records"
    assert Settings(docket=url).docket_place == Address(url)
    with pytest.raises(BadRequest):
        Settings(docket="postgresql://db")


def test_records_tells_of_requests_and_reviews(tmp_path):
    path = tmp_path / "d.sqlite"

    async def scene(docket):
        await append_all(docket, events_of())
        await reviewing(docket, "t")

    with_docket(path, scene)
    said = CliRunner().invoke(records, ["list", "--json", "--docket", str(path)])
    assert said.exit_code == 0
    assert '"outcome": "OVERRULED"' in said.output and '"failure_reason": ""' in said.output


def test_the_password_of_a_docket_is_not_shown():
    url = "postgresql://court:secret@127.0.0.1:1/records"
    said = CliRunner().invoke(records, ["list", "--docket", url])
    assert said.exit_code == 1
    assert "can't be reached" in said.output
    assert not any(word in said.output for word in ("secret", "127.0.0.1"))


def test_reading_while_many_write_waits_for_nobody(tmp_path):
    events = events_of()

    async def scene(docket):
        writing = [append_all(docket, [e.model_copy(update={"trial_id": f"t{i}"}) for e in events]) for i in range(20)]
        tasks = [asyncio.create_task(one) for one in writing]
        seen = 0
        while not all(task.done() for task in tasks):
            for line in await docket.index.list(limit=99):
                record = await docket.trials.record(line.trial_id)
                assert record.state == line.state or record.state == "DECIDED"  # it may have got on since
                seen += 1
        return seen

    assert with_docket(tmp_path / "d.sqlite", scene)


def test_many_may_make_the_same_docket_at_once(tmp_path):
    """SQLite refuses some of those who find a file that is just being made, without any wait."""

    def opens(path, together):
        together.wait()
        SqliteDatabase.open(path, create=True, patience=120.0).close()

    with ThreadPoolExecutor(6) as pool:
        for number in range(40):
            path, together = tmp_path / f"{number}.sqlite", threading.Barrier(6)
            for opened in [pool.submit(opens, path, together) for _ in range(6)]:
                opened.result()
