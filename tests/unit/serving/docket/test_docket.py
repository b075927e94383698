"""The docket as a SQLite file. Tests common to all dockets are in tests/contract/test_dockets.py."""

import asyncio
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
from court.verdict import Label
from retrieval.library.postgres.address import Address
from serving.cli.main import cli
from serving.docket.errors import DocketError
from serving.docket.open import Docket
from serving.docket.store.listing import TrialFilter
from serving.docket.store.sqlite import SqliteDatabase
from serving.docket.store.transactions import sqlite_engine
from serving.settings import Settings
from tests.support.dockets import NOON, append_all, events_of, opened_docket, review_trial, with_docket


def test_files_that_are_no_docket_are_refused_and_unchanged(tmp_path):
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


def test_locked_docket_is_not_reported_as_damaged(tmp_path):
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


def test_docket_on_a_full_disk_is_not_reported_as_damaged(tmp_path):
    # The process can't grow files: SQLite creates one next to the docket when it opens it.
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


def test_docket_of_a_later_format_is_refused(tmp_path):
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DocketError, match="Upgrade"):
        Docket.open(path)


def test_record_with_a_missing_event_is_refused(tmp_path):
    path = tmp_path / "d.sqlite"
    with_docket(path, lambda docket: append_all(docket, events_of()))
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_delete")
    connection.execute("DELETE FROM entries WHERE seq = 3")
    connection.commit()
    connection.close()
    with pytest.raises(DocketError, match="is no record"):
        with_docket(path, lambda docket: docket.trials.record("t"))


async def test_closed_docket_refuses_calls(tmp_path):
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        await docket.writer.append(events_of()[0])
        await docket.close()
        for pending in (
            docket.writer.append(events_of()[1]),
            docket.fingerprints.put_fingerprint("t", b""),
            docket.trials.record("t"),
        ):
            with pytest.raises(Unavailable, match="closed"):
                await pending


def test_label_queries_use_few_distinct_statements(tmp_path):
    """Drivers cache statements: with one for each number of trials, memory would grow."""
    statements = set()

    @event.listens_for(Engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        statements.add(statement)

    async def scenario(docket):
        await append_all(docket, events_of())
        statements.clear()
        return [await docket.index.labels(["t", *(f"no{i}" for i in range(others))]) for others in range(130)]

    try:
        assert with_docket(tmp_path / "d.sqlite", scenario) == [{"t": Label.HARMFUL}] * 130
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert 1 <= len({statement for statement in statements if "label" in statement}) <= 9


def test_spare_connections_stay_unused(tmp_path):
    """Connections have their own caches: used in turn, all would cache the same."""
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


@pytest.mark.parametrize(
    "filters",
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
async def test_listing_reads_an_index_without_sorting_or_scanning(tmp_path, filters):
    """Keeps the time of a page independent of the number of trials."""
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        engine = docket.transactions.database._engine
        plans = []

        def explain(connection, cursor, statement, parameters, *_):
            if "FROM trials" in statement:
                steps = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
                plans.append(" ".join(step[3] for step in steps))

        event.listen(engine, "after_cursor_execute", explain)
        await docket.index.list(limit=50, which=filters)
        await docket.index.list(limit=50, which=filters, after=(NOON, "t"), oldest_first=True)
    assert plans
    for plan in plans:
        assert "USING INDEX trials_by_" in plan and "TEMP B-TREE" not in plan, plan
        assert not filters.reviewed or "trials_by_outcome" in plan, plan


def test_docket_setting_is_a_path_or_a_database_address(tmp_path):
    assert Settings(home=tmp_path).docket_place == tmp_path / "docket.sqlite"
    assert Settings(docket="d.sqlite").docket_place == Path("d.sqlite")
    url = "postgresql://court:secret@db/records"
    assert Settings(docket=url).docket_place == Address(url)
    with pytest.raises(BadRequest):
        Settings(docket="postgresql://db")


def test_records_list_shows_requests_and_reviews(tmp_path):
    path = tmp_path / "d.sqlite"

    async def scenario(docket):
        await append_all(docket, events_of())
        await review_trial(docket, "t")

    with_docket(path, scenario)
    ran = CliRunner().invoke(cli, ["records", "list", "--json", "--docket", str(path)])
    assert ran.exit_code == 0
    assert '"outcome": "OVERRULED"' in ran.output and '"failure_reason": ""' in ran.output


def test_database_errors_hide_the_password():
    url = "postgresql://court:secret@127.0.0.1:1/records"
    ran = CliRunner().invoke(cli, ["records", "list", "--docket", url])
    assert ran.exit_code == 1
    assert "can't be reached" in ran.output
    assert not any(word in ran.output for word in ("secret", "127.0.0.1"))


async def test_reads_are_consistent_during_many_writes(tmp_path):
    events = events_of()
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        writing = [append_all(docket, [e.model_copy(update={"trial_id": f"t{i}"}) for e in events]) for i in range(20)]
        tasks = [asyncio.create_task(one) for one in writing]
        reads = 0
        while not all(task.done() for task in tasks):
            for line in await docket.index.list(limit=99):
                record = await docket.trials.record(line.trial_id)
                assert record.state == line.state or record.state == "DECIDED"  # the trial may have advanced since
                reads += 1
        assert reads


def test_concurrent_openers_can_create_the_same_docket(tmp_path):
    """SQLite refuses some openers of a file that is just being created, without waiting."""

    def open_together(path, together):
        together.wait()
        SqliteDatabase.open(path, create=True, patience=120.0).close()

    with ThreadPoolExecutor(6) as pool:
        for number in range(40):
            path, together = tmp_path / f"{number}.sqlite", threading.Barrier(6)
            for opened in [pool.submit(open_together, path, together) for _ in range(6)]:
                opened.result()
