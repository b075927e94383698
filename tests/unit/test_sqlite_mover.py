"""What was committed to a docket's file is moved over into it beside the trials, and not by one of their commits."""

import asyncio
import sqlite3
import threading
from contextlib import closing, suppress

from serving.docket.open import Docket
from tests.support.dockets import append_all, events_of

PATIENCE_S = 60


def entries_in(path, copy):
    """Entries in the file alone, without the log that lies beside it."""
    copy.write_bytes(path.read_bytes())
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return connection.execute("SELECT count(*) FROM entries").fetchone()[0] if tables else 0
    return 0  # copied while it was being written to


async def until(path, copy, count):
    for _ in range(PATIENCE_S * 20):
        if (found := entries_in(path, copy)) >= count:
            break
        await asyncio.sleep(0.05)
    return found


def movers():
    return [thread for thread in threading.enumerate() if thread.name == "docket-mover"]


def test_what_was_committed_is_moved_over_while_the_docket_is_open(tmp_path):
    path, events = tmp_path / "docket.sqlite", events_of()

    async def scene():
        docket = Docket.open(path)
        await append_all(docket, events)
        moved = await until(path, tmp_path / "copy", len(events))
        running = len(movers())
        await docket.close()
        return moved, running

    before = len(movers())
    moved, running = asyncio.run(scene())
    assert moved >= len(events)
    assert running == before + 1 and len(movers()) == before


def test_a_reader_of_what_was_before_keeps_it_where_it_is_until_it_goes(tmp_path):
    path, (first, *rest) = tmp_path / "docket.sqlite", events_of()

    async def scene():
        docket = Docket.open(path)
        await docket.writer.append(first)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entries").fetchone()
            await append_all(docket, rest)  # waits for no reader
            await asyncio.sleep(1)
            held = entries_in(path, tmp_path / "copy")
        moved = await until(path, tmp_path / "copy", 1 + len(rest))
        await docket.close()
        return held, moved

    held, moved = asyncio.run(scene())
    assert held <= 1 and moved >= 1 + len(rest)
