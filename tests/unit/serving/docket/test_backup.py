"""Backups of a docket: made under load, interrupted, restored; and read-only copies."""

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.errors import Unavailable
from court.events import TrialOpened
from serving.cli.main import cli
from serving.docket.open import Docket
from tests.support.dockets import events_of, opened_docket, with_docket
from tests.support.playing import wait_until
from tests.support.sizes import FULL
from tests.support.tampering import drawn, scene_of

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
"""Prefix that runs a command as root without the capabilities that bypass file permissions."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a docket of twelve trials, one of them erased, and its public key."""
    folder = tmp_path_factory.mktemp("made")
    place = folder / "docket.sqlite"

    async def fill():
        docket = Docket.open(place)
        try:
            filled = await scene_of(docket, random.Random(11), trials=12, place=place)
            (folder / "key").write_text(f"{filled.key}\n")
        finally:
            await docket.close()

    asyncio.run(fill())
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of that folder, which commands use by default."""
    place = Path(shutil.copytree(made, tmp_path / "docket"))
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MEMECOURT_DOCKET", str(place / "docket.sqlite"))
    return place


def call(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def trials(place):
    done = call("records", "list", "--limit", "100000", "--json", "--docket", place)
    assert done.exit_code == 0, done.output
    return {one["trial_id"]: one for one in map(json.loads, done.stdout.splitlines())}


def verified(place, key):
    return call("docket", "verify", "--key", key, "--docket", place).exit_code == 0


def test_backup_restores_the_whole_docket(folder, tmp_path):
    backup, place = tmp_path / "backup", tmp_path / "elsewhere" / "docket.sqlite"
    done = call("docket", "backup", backup)
    assert done.exit_code == 0 and "clean" in done.stdout, done.output
    assert not list(backup.rglob("*.key")), "the private key is not backed up"
    shutil.rmtree(folder)
    restored = call("docket", "restore", backup, "--docket", place)
    assert restored.exit_code == 0 and "put it back before anything is judged" in restored.stderr
    # The key is stored elsewhere, as docs/docket.md says.
    shutil.copyfile(folder.parent / "backup" / "docket.vkey", tmp_path / "vkey")
    assert verified(place, tmp_path / "vkey") and len(trials(place)) == 12
    frames = sorted(path.name for path in Path(f"{place}-pictures").rglob("*.png"))
    assert frames == sorted(path.name for path in backup.rglob("*.png")) and frames


def test_backup_and_restore_overwrite_nothing(folder, tmp_path):
    backup = tmp_path / "backup"
    assert call("docket", "backup", backup).exit_code == 0
    for command in (("docket", "backup", backup), ("docket", "restore", backup)):
        done = call(*command)
        assert done.exit_code == 1 and "is there already" in done.stderr
    assert len(trials(folder / "docket.sqlite")) == 12


@pytest.mark.parametrize("fault", ["unfinished", "altered", "cut short", "picture gone", "no folder"])
def test_damaged_or_missing_backups_are_refused(folder, tmp_path, fault):
    backup, place = tmp_path / "backup", tmp_path / "elsewhere" / "docket.sqlite"
    assert call("docket", "backup", backup).exit_code == 0
    database = backup / "docket.sqlite"
    match fault:
        case "unfinished":
            (backup / "backup.json").unlink()
        case "altered":
            content = bytearray(database.read_bytes())
            content[-100] ^= 1
            database.write_bytes(content)
        case "cut short":
            database.write_bytes(database.read_bytes()[:-4096])
        case "picture gone":
            next(backup.rglob("*.png")).unlink()
        case _:
            shutil.rmtree(backup)
    done = call("docket", "restore", backup, "--docket", place)
    assert done.exit_code in (1, 2) and "Traceback" not in done.output
    if fault != "picture gone":
        assert not place.exists()


def test_full_disk_is_not_reported_as_a_damaged_docket(folder, tmp_path, monkeypatch):
    connect = sqlite3.connect

    def small(database, *positional, **options):
        connection: sqlite3.Connection = connect(database, *positional, **options)  # type: ignore[call-overload]
        if ".unfinished" in str(database) and "mode=ro" not in str(database):
            # Makes SQLite itself report a full disk.
            connection.execute("PRAGMA max_page_count = 2")
        return connection

    monkeypatch.setattr("serving.docket.store.sqlite.sqlite3.connect", small)
    refused = call("docket", "backup", tmp_path / "backup")
    assert (
        refused.exit_code == 1 and f"{tmp_path / 'backup'} can't be written: No space left on device" in refused.output
    )
    assert "damaged" not in refused.output and not (tmp_path / "backup").exists()


def test_docket_that_fails_verification_is_not_backed_up(folder, tmp_path):
    next((folder / "docket.sqlite-pictures").rglob("*.png")).unlink()
    done = call("docket", "backup", tmp_path / "backup")
    assert done.exit_code == 1 and "not clean" in done.stderr and not (tmp_path / "backup").exists()


def test_backup_of_a_postgresql_docket_points_to_pg_dump(tmp_path, monkeypatch):
    from retrieval.library.postgres.address import Address
    from serving.docket.backup import back_up

    backing_up = back_up(None, Address("postgresql://u@h/d"), tmp_path / "b", settings="", software="", tell=print)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="pg_dump"):
        asyncio.run(backing_up)


@contextmanager
def written_to(place):
    """Adds trials to a docket in the background; yields their ids, each added once its verdict is stored."""
    stored: list[str] = []
    ended = threading.Event()

    async def write(docket):
        while not ended.is_set():
            trial_id = f"load-{len(stored)}"
            opened, *others = events_of(trial_id)
            assert isinstance(opened, TrialOpened)
            picture = drawn(len(stored) % 256)
            await docket.writer.keep_picture(picture)
            meme = opened.meme.model_copy(update={"pixels_sha256": picture.pixels_sha256})
            await docket.writer.append(opened.model_copy(update={"meme": meme}), *others)
            stored.append(trial_id)

    thread = threading.Thread(target=lambda: with_docket(place, write))
    thread.start()
    try:
        yield stored
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_backup_under_load_has_all_trials_stored_before_it_began(folder, tmp_path):
    with written_to(folder / "docket.sqlite") as stored:
        for number in range(3):
            wait_until(lambda least=40 * (number + 1): len(stored) >= least, 240)
            before = set(stored)
            assert call("docket", "backup", tmp_path / f"backup-{number}").exit_code == 0
            place = tmp_path / f"restored-{number}" / "docket.sqlite"
            assert call("docket", "restore", tmp_path / f"backup-{number}", "--docket", place).exit_code == 0
            assert before <= trials(place).keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_kill_leaves_no_partial_backup_or_docket(folder, tmp_path, command):
    backup, place = tmp_path / "backup", tmp_path / "restored" / "docket.sqlite"
    if command == "restore":
        assert call("docket", "backup", backup).exit_code == 0
    arguments = ["backup", backup] if command == "backup" else ["restore", backup, "--docket", place]
    target = backup if command == "backup" else place
    began = time.monotonic()
    run(*arguments)
    took = time.monotonic() - began
    with written_to(folder / "docket.sqlite"):
        for number in range(0, 8, 1 if FULL else 2):
            remove(target)
            killed_at = took * (0.3 + 0.1 * number)
            process = subprocess.Popen([*PROGRAM, "docket", *map(str, arguments)], stderr=subprocess.DEVNULL)
            try:
                process.wait(timeout=killed_at)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if command == "backup" and target.exists():
                restored = tmp_path / f"again-{number}" / "docket.sqlite"
                assert call("docket", "restore", backup, "--docket", restored).exit_code == 0
            elif target.exists():
                assert verified(place, backup / "docket.vkey")
    remove(target)
    run(*arguments)
    assert verified(folder / "docket.sqlite", folder / "key")


PROGRAM = [sys.executable, "-m", "serving.cli"]


def run(*arguments):
    subprocess.run([*PROGRAM, "docket", *map(str, arguments)], check=True, capture_output=True)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
        shutil.rmtree(f"{path}-pictures", ignore_errors=True)


# Read-only copies.


def read_only(*arguments):
    command = [*(UNPRIVILEGED if os.geteuid() == 0 else []), *PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.fixture
def copy(folder):
    """An auditor's read-only copy of the docket."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root can write anywhere, and there is no setpriv to drop that capability")
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o644)


def state(folder):
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.slow
def test_read_only_copy_can_be_listed_shown_verified_and_backed_up(copy, tmp_path):
    before = state(copy)
    listed = read_only("records", "list")
    heading, *trials = listed.stdout.splitlines()
    assert listed.returncode == 0 and heading.startswith("trial") and len(trials) == 12, listed.stderr
    trial, _, time_of_day, *_ = trials[-1].split()
    assert time_of_day.endswith("Z"), "a time has its zone"
    shown = read_only("records", "show", trial)
    assert shown.returncode == 0, shown.stderr
    checked = read_only("docket", "verify", "--key", copy / "key")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert read_only("docket", "backup", tmp_path / "backup").returncode == 0
    assert state(copy) == before


def test_writing_to_a_read_only_copy_is_refused(copy, tmp_path):
    trial = read_only("records", "list").stdout.splitlines()[-1].split()[0]
    erased = read_only("docket", "erase", trial, "--who", "Ruth", "--why", "asked", "--yes")
    assert erased.returncode == 1 and "may only be read" in erased.stderr
    meme = tmp_path / "meme.png"
    meme.write_bytes(b"\x89PNG")
    judged = read_only("judge", meme, "--text", "words")
    assert judged.returncode == 1 and "Traceback" not in judged.stderr


def test_unreadable_write_ahead_log_is_an_error(copy):
    # As after a crash: the last commits are in the write-ahead log next to the docket.
    for path in (copy, copy / "docket.sqlite"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (copy / "docket.sqlite-wal").write_bytes(b"x" * 100)
    for path in (copy / "docket.sqlite-wal", copy / "docket.sqlite", copy):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = read_only("records", "list")
    assert done.returncode == 1 and "docket.sqlite-wal" in done.stderr
    copy.chmod(0o755)
    (copy / "docket.sqlite-wal").unlink()


async def test_docket_opened_read_only_refuses_events(folder):
    async with opened_docket(folder / "docket.sqlite", create=False, read_only=True) as docket:
        with pytest.raises(Unavailable, match="may only be read"):
            await docket.writer.append(events_of("new")[0])


def test_read_only_empty_home_gives_a_one_line_error(copy, tmp_path):
    home = tmp_path / "empty"
    home.mkdir()
    home.chmod(0o555)
    for command in (["records", "list"], ["docket", "verify", "--key", copy / "key"]):
        done = read_only(*command, "--docket", home / "docket.sqlite")
        assert done.returncode in (1, 2) and len(done.stderr.strip().splitlines()) == 1, done.stderr
