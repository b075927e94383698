"""Tests of the background thread that moves commits from the write-ahead log into the docket's file, so that no commit
of a trial has to.
"""

import asyncio
import sqlite3
import threading
from contextlib import closing, suppress

from serving.docket.open import Docket
from tests.support.dockets import append_all, events_of

PATIENCE_S = 60


def entries_in(path, copy):
    """Entries in the file alone, without the write-ahead log beside it."""
    copy.write_bytes(path.read_bytes())
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return connection.execute("SELECT count(*) FROM entries").fetchone()[0] if tables else 0
    return 0  # copied in the middle of a write


async def moved_entries(path, copy, count):
    for _ in range(PATIENCE_S * 20):
        if (found := entries_in(path, copy)) >= count:
            break
        await asyncio.sleep(0.05)
    return found


def movers():
    return [thread for thread in threading.enumerate() if thread.name == "docket-mover"]


def test_commits_are_moved_into_the_file_while_the_docket_is_open(tmp_path):
    path, events = tmp_path / "docket.sqlite", events_of()

    async def scene():
        docket = Docket.open(path)
        await append_all(docket, events)
        moved = await moved_entries(path, tmp_path / "copy", len(events))
        running = len(movers())
        await docket.close()
        return moved, running

    before = len(movers())
    moved, running = asyncio.run(scene())
    assert moved >= len(events)
    assert running == before + 1 and len(movers()) == before


def test_open_reader_delays_the_move_until_it_ends(tmp_path):
    path, (first, *others) = tmp_path / "docket.sqlite", events_of()

    async def scene():
        docket = Docket.open(path)
        await docket.writer.append(first)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entries").fetchone()
            await append_all(docket, others)  # waits for no reader
            await asyncio.sleep(1)
            moved_before = entries_in(path, tmp_path / "copy")
        moved = await moved_entries(path, tmp_path / "copy", 1 + len(others))
        await docket.close()
        return moved_before, moved

    moved_before, moved = asyncio.run(scene())
    assert moved_before <= 1 and moved >= 1 + len(others)
