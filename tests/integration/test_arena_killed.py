"""An arena whose process is killed, at any moment, comes to the same as one that is left alone."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eval.arena.folder import ArenaFolder
from eval.datasets.stored_files import json_line
from tests.support.arena_world import Arena, Voice
from tests.support.sizes import FULL

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10 if FULL else 2
TARGETS = {"ash": 1.0, "beech": 0.0, "cedar": -1.0}
DELAY_S = 0.02
AT_ONCE = 3 * 8  # calls under way: models, and what a chair asks at once

CHILD = """
import asyncio, os, sys
from pathlib import Path
from eval.models.call_cache import SqliteCallCache
from tests.integration.test_arena_killed import DELAY_S, arena_in

root = Path(sys.argv[1])
asked = os.open(root / "asked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
arena = arena_in(root, lambda: os.write(asked, b"."))

async def go():
    arena.store = SqliteCallCache.open(root / "calls.sqlite")
    arena.folder.write_manifest(arena.manifest())
    print("begun", flush=True)
    await arena.go(delay_s=DELAY_S)
    await arena.store.close()

asyncio.run(go())
"""

pytestmark = pytest.mark.integration


def arena_in(root, told=lambda: None):
    def says(request, usual):
        told()
        return usual

    voices = {name: Voice(name, TARGETS, says=says) for name in TARGETS}
    return Arena(root, memes=4, strengths=TARGETS, judges=["ash", "beech"], voices=voices)


def started(root):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    return child


def asked_of(path, what):
    with sqlite3.connect(path) as connection:
        (found,) = connection.execute(what).fetchone()
    connection.close()
    return found


def test_what_is_killed_goes_on_and_asks_for_nothing_twice(tmp_path):
    root, whole = tmp_path / "killed", tmp_path / "whole"
    root.mkdir()
    whole.mkdir()
    rng = random.Random(7)
    cut_short = 0
    for _ in range(KILLS):
        with started(root) as child:
            time.sleep(rng.uniform(0.1, 0.5))
            child.send_signal(signal.SIGKILL)
        cut_short += child.returncode == -signal.SIGKILL
    with started(root) as child:
        pass
    assert child.returncode == 0 and cut_short > 0
    store = root / "calls.sqlite"
    kept = asked_of(store, "SELECT count(*) FROM calls")
    assert kept <= len((root / "asked").read_bytes()) <= kept + cut_short * AT_ONCE

    alone = arena_in(whole)
    # Fences carry marks that are a store's own, and scripted judges draw by the words that they are shown.
    alone.store.fence_key = asked_of(store, "SELECT fence_key FROM secret")
    alone.folder.write_manifest(alone.manifest())
    asyncio.run(alone.go(delay_s=DELAY_S))
    assert len(alone.store.kept) == kept
    assert sorted(map(json_line, ArenaFolder(root).events())) == sorted(map(json_line, alone.folder.events()))
