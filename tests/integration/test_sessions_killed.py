"""Sessions of every kind that are killed at random moments repeat no stored call and end with the same result.

Runs have a suite of their own: test_run_killed.
"""

import asyncio
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from eval.models.call_cache import SqliteCallCache
from tests.support.killed_sessions import AFTER_AN_ARENA, CONCURRENCY, SESSIONS, arena_in
from tests.support.paths import ROOT
from tests.support.sizes import FULL

KILLS = dict.fromkeys(SESSIONS, 5 if FULL else 1) | ({} if FULL else {"probe": 2})
"""Kills of each kind of session; all resume by the same engine, so that one kind shows a kill after a resumption."""
IN_FLIGHT = 8 * CONCURRENCY
"""Most calls in flight: a few steps of an item are made at once."""

CHILD = """
import asyncio, os, sys
from pathlib import Path
from tests.support.killed_sessions import SESSIONS

root = Path(sys.argv[2])
requests = os.open(root / "requests", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
asyncio.run(SESSIONS[sys.argv[1]](root, lambda: os.write(requests, b".")))
"""


@pytest.fixture(scope="module")
def finished_arena(tmp_path_factory):
    return arena_in(tmp_path_factory.mktemp("arena")).root


def start_child(kind, root):
    return subprocess.Popen([sys.executable, "-c", CHILD, kind, str(root)], cwd=ROOT)


def query(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        (value,) = connection.execute(sql).fetchone()
    return value


def requests_of(root):
    file = root / "requests"
    return file.stat().st_size if file.exists() else 0


def results_of(root):
    """Returns the lines of results, without what differs between two sessions: times and the order of events."""
    lines = {}
    for file in sorted((root / "out").glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            for call in [row.get("call"), *row.get("calls", [])] if isinstance(row.get("calls", []), list) else []:
                if call:
                    call["latency_s"] = 0
        ordered = [json.dumps(row, sort_keys=True) for row in rows]
        lines[file.name] = sorted(ordered) if file.name == "events.jsonl" else ordered
    return lines


@pytest.mark.parametrize("kind", SESSIONS)
def test_killed_session_repeats_no_stored_call_and_ends_the_same(kind, tmp_path, finished_arena):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for root in (killed, whole):
        root.mkdir()
        if kind in AFTER_AN_ARENA:
            shutil.copytree(finished_arena, root / "out")
    calls = [0]

    def count():
        calls[0] += 1

    # Fence marks are part of a call and derive from the store's own key: both sessions need the same one.
    asyncio.run(SESSIONS[kind](whole, count))
    total = query(whole / "calls.sqlite", "SELECT count(*) FROM calls")
    planned = KILLS[kind]
    assert calls[0] == total > planned * 4
    copy_key(whole / "calls.sqlite", killed / "calls.sqlite")

    rng, kills = random.Random(kind), 0
    for number in range(planned):
        made = requests_of(killed)
        share = total // (planned + 1)
        with start_child(kind, killed) as child:
            wanted = min(made + rng.randrange(max(1, share // 2), share + 1), total - 1)
            while child.poll() is None and requests_of(killed) < wanted:
                time.sleep(0.005)
            child.send_signal(signal.SIGKILL)
        kills += child.returncode == -signal.SIGKILL
        assert number > 0 or kills == 1
    with start_child(kind, killed) as child:
        pass
    assert child.returncode == 0 and kills > 0
    stored = query(killed / "calls.sqlite", "SELECT count(*) FROM calls")
    assert stored == total
    assert stored <= requests_of(killed) <= stored + kills * IN_FLIGHT
    assert results_of(killed) == results_of(whole)
    calls[0] = 0
    asyncio.run(SESSIONS[kind](killed, count))
    assert calls[0] == 0, "a finished session makes no call"


def copy_key(source, target):
    """Gives a new store of calls the key of another."""
    asyncio.run(SqliteCallCache(target).close())
    key = query(source, "SELECT fence_key FROM secret")
    with closing(sqlite3.connect(target)) as connection, connection:
        connection.execute("UPDATE secret SET fence_key = ?", (key,))
