"""Files that the service stores are accessible to their owner only, whatever the umask (BO-5)."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

from serving.access.private_files import tighten
from serving.docket.open import Docket
from tests.support.server import HARMLESS, drawn


def open_modes(folder):
    """Returns the modes of files and folders to which others have any access, by path."""
    paths = [folder, *folder.rglob("*")]
    return {path: oct(mode) for path in paths if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077}


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_judging_leaves_no_file_that_others_can_access(starter, tmp_path, umask):
    home, meme, out = tmp_path / "home", tmp_path / "meme.png", tmp_path / "out.json"
    meme.write_bytes(drawn(*HARMLESS))
    if umask:  # under 000, the loosest, home and library are made by the command too
        home.mkdir(mode=0o700)
        shutil.copytree(starter, home / "libraries")

    def memecourt(*arguments):
        result = subprocess.run(
            [sys.executable, "-m", "serving.cli", *map(str, arguments)],
            env={**os.environ, "MEMECOURT_HOME": str(home)},
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode in (0, 10, 11, 12), result.stderr
        return result.stdout

    memecourt("judge", meme, "--text", HARMLESS[1], "--json")
    assert (home / "docket.key").exists() and (home / "docket.sqlite-pictures").is_dir()
    assert open_modes(home) == {}
    (trial,) = (json.loads(line)["trial_id"] for line in memecourt("records", "list", "--json").splitlines())
    memecourt("docket", "bundle", trial, "--out", out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~umask, (
        "an exported file has the mode that the caller's umask gives"
    )


def test_readable_docket_is_made_private_when_opened(tmp_path, caplog):
    path = tmp_path / "docket.sqlite"
    path.touch(mode=0o644)
    path.chmod(0o644)
    pictures = tmp_path / "docket.sqlite-pictures"
    pictures.mkdir()
    pictures.chmod(0o755)
    docket = Docket.open(path)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(pictures.stat().st_mode) == 0o700
        assert "made private" in caplog.text
    finally:
        asyncio.run(docket.close())
    caplog.clear()
    tighten([path, pictures, tmp_path / "missing"])
    assert not caplog.text
