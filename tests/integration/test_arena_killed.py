"""An arena whose process is killed at random moments yields the same result as an undisturbed one."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from eval.arena.folder import ArenaFolder
from eval.session.directory import json_line
from tests.support.arena_killed import DELAY_S, arena_in
from tests.support.paths import ROOT
from tests.support.sizes import FULL

KILLS = 10 if FULL else 2
IN_FLIGHT = 3 * 8  # most calls in flight: models times concurrent calls to each

CHILD = """
import asyncio, os, sys
from pathlib import Path
from eval.models.call_cache import SqliteCallCache
from tests.support.arena_killed import DELAY_S, arena_in

root = Path(sys.argv[1])
requests = os.open(root / "requests", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
arena = arena_in(root, lambda: os.write(requests, b"."))

async def go():
    arena.store = SqliteCallCache.open(root / "calls.sqlite")
    arena.folder.write_manifest(arena.manifest())
    print("started", flush=True)
    await arena.go(delay_s=DELAY_S)
    await arena.store.close()

asyncio.run(go())
"""

pytestmark = pytest.mark.integration


def start_child(root):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "started\n"
    return child


def query(path, sql):
    with sqlite3.connect(path) as connection:
        (value,) = connection.execute(sql).fetchone()
    connection.close()
    return value


def test_killed_arena_resumes_without_repeating_calls(tmp_path):
    root, undisturbed = tmp_path / "killed", tmp_path / "whole"
    root.mkdir()
    undisturbed.mkdir()
    rng = random.Random(7)
    kills = 0
    for _ in range(KILLS):
        with start_child(root) as child:
            time.sleep(rng.uniform(0.1, 0.5))
            child.send_signal(signal.SIGKILL)
        kills += child.returncode == -signal.SIGKILL
    with start_child(root) as child:
        pass
    assert child.returncode == 0 and kills > 0
    store = root / "calls.sqlite"
    stored = query(store, "SELECT count(*) FROM calls")
    assert stored <= len((root / "requests").read_bytes()) <= stored + kills * IN_FLIGHT

    reference = arena_in(undisturbed)
    # Each store marks its fences with a key of its own, and a scripted judge's choice depends on the words it is shown.
    reference.store.fence_key = query(store, "SELECT fence_key FROM secret")
    reference.folder.write_manifest(reference.manifest())
    asyncio.run(reference.go(delay_s=DELAY_S))
    assert len(reference.store.kept) == stored
    assert sorted(map(json_line, ArenaFolder(root).events())) == sorted(map(json_line, reference.folder.events()))
