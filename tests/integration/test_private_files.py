"""What the service stores is for its owner alone, whatever the umask (BO-5)."""

import asyncio
import os
import stat
import subprocess
import sys

import pytest

from serving.access.private_files import tighten
from serving.docket.open import Docket
from tests.integration.test_server import HARMLESS, drawn


def modes(folder):
    """Every file and folder in it that others may do anything with, and how."""
    there = [folder, *folder.rglob("*")]
    return {path: oct(mode) for path in there if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077}


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_verdict_leaves_nothing_that_others_can_read(tmp_path, umask):
    home, meme, out = tmp_path / "home", tmp_path / "meme.png", tmp_path / "out.json"
    meme.write_bytes(drawn(*HARMLESS))

    def memecourt(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli", *map(str, arguments)],
            env={**os.environ, "MEMECOURT_HOME": str(home)},
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 10, 11), done.stderr
        return done.stdout

    memecourt("judge", meme, "--text", HARMLESS[1], "--json")
    assert (home / "docket.key").exists() and (home / "docket.sqlite-pictures").is_dir()
    assert modes(home) == {}
    (trial,) = (line.split()[0] for line in memecourt("records", "list").splitlines())
    memecourt("docket", "bundle", trial, "--out", out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~umask, "what is handed on is as the caller wants it"


def test_a_docket_that_others_could_read_is_made_private(tmp_path, caplog):
    place = tmp_path / "docket.sqlite"
    place.touch(mode=0o644)
    place.chmod(0o644)
    pictures = tmp_path / "docket.sqlite-pictures"
    pictures.mkdir()
    pictures.chmod(0o755)
    docket = Docket.open(place)
    try:
        assert stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(pictures.stat().st_mode) == 0o700
        assert "made private" in caplog.text
    finally:
        asyncio.run(docket.close())
    caplog.clear()
    tighten([place, pictures, tmp_path / "missing"])
    assert not caplog.text
