"""The documentation's console blocks as they stand: the tutorial from top to bottom, and commands of all other pages.

Where a command has a place for something of the reader's own (an id, a folder), that is put there. Which are not run,
and why, is one list: :data:`tests.support.doc_blocks.NOT_RUN`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from retrieval.starter.draw import draw_meme
from tests.integration.conftest import Server
from tests.support.doc_blocks import ROOT, WHOLE, blocks, commands, pages
from tests.support.pictures import encode

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TUTORIAL = ROOT / "docs" / "tutorial.md"
SMALLER = (
    ("--train 900 --val 40 --test 300", "--train 120 --val 4 --test 12"),
    ("--train 200 --val 40", "--train 24 --val 4"),
)
"""Data sets are drawn smaller than a page's figures are of."""


class Shell:
    """A user's shell in a folder: commands are run by bash with this environment's programs first on the path."""

    def __init__(self, folder: Path, home: Path, **more: str) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "MEMECOURT_HOME": str(home), "PATH": path, **more}

    def run(self, line: str, *, fine: Collection[int] = (0,)) -> str:
        """What a command prints; "yes" to whatever it asks. Fails where it exits with anything but these codes."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            input="y\n",
            capture_output=True,
            text=True,
        )
        assert done.returncode in fine, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


def trial_in(listing: str) -> str:
    return re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", listing)[0]


class Tutorial:
    """A reader of the tutorial: the folder that they are in, and what the commands so far said."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.docket = folder / "docket.sqlite"
        self.home = home
        self.shell = Shell(folder, home, MEMECOURT_DOCKET=str(self.docket))
        self.said: dict[str, str] = {}


@pytest.fixture(scope="module")
def reader(home, tmp_path_factory):
    return Tutorial(tmp_path_factory.mktemp("tutorial"), home)


STEPS = [one.line for one in commands(TUTORIAL)]
SERVE = next(line for line in STEPS if line.startswith("memecourt serve"))


# In their order, each with a time limit of its own.
@pytest.mark.parametrize("line", [line for line in STEPS if line != SERVE and not line.startswith("pip install")])
def test_the_commands_of_the_tutorial_from_top_to_bottom(reader, line):
    listing = reader.said.get("memecourt records list", "")
    told = reader.said[line] = reader.shell.run(re.sub(r"\bID\b", trial_in(listing) if listing else "", line))
    if line == "memecourt demo":
        assert told.count("records show") == 3
    elif line.startswith("memecourt judge --text"):
        assert "No picture was sent" in told and "exit code 10" in told
    elif line.startswith("memecourt precedents build"):
        assert "go to a person where at most 10 %" in told


def test_the_review_of_the_tutorial(reader):
    options = re.sub(r"(127\.0\.0\.1):\d+", r"\1:0", SERVE).split()[2:]
    options[options.index("my-library")] = str(reader.shell.folder / "my-library")
    server = Server(reader.home, reader.docket, *options)
    try:
        server.ready()
        (script,) = blocks(TUTORIAL, "python")
        printed = StringIO()
        with redirect_stdout(printed):
            exec(script.replace("127.0.0.1:50051", server.address), {})
    finally:
        assert server.end() == 0
    assert re.search(r"^LABEL_\w+ overruled: ada$", printed.getvalue(), re.MULTILINE)
    assert "given again: False" in printed.getvalue()


@pytest.fixture(scope="module")
def library(home, tmp_path_factory):
    """A folder with a library, labelled memes and files of a reader's own, as the pages' examples name them."""
    folder = tmp_path_factory.mktemp("docs")
    shell = Shell(folder, home, MEMECOURT_DOCKET=str(folder / "docket.sqlite"))
    shell.run("memecourt-eval synthetic DATA --train 24 --val 4 --test 8")
    shell.run("memecourt precedents build LIBRARY DATA/train.jsonl --pictures DATA/images")
    (folder / "FILE").write_bytes(encode(draw_meme("cat", "a quiet sunday"), "PNG"))
    (folder / "own.json").write_text(json.dumps({"source_type": "SOURCE_VOLUNTARY"}))
    return shell


def test_the_library_of_the_examples_can_be_made(library):
    assert (library.folder / "LIBRARY").is_dir()  # by itself: making it takes as long as some pages


@pytest.fixture(scope="module")
def prepared(library):
    """The same with a docket: its shell, and the id of a trial that found harm."""
    # By the starter library, which knows the group: there has to be something to give reasons for.
    library.run('memecourt judge --text "People from Blueland are filth, kick every one of them out" || [ $? = 10 ]')
    for command, name in (("key", "docket.vkey"), ("checkpoint", "checkpoints.txt")):
        (library.folder / name).write_text(library.run(f"memecourt docket {command}"))
    harmful = trial_in(library.run("memecourt records list"))
    trial = json.loads(library.run(f"memecourt records export {harmful} --as json -o -"))
    receipt = {"verdict_id": harmful, "receipt": trial["receipt"]}
    (library.folder / "response.json").write_text(json.dumps(receipt))
    (library.folder / "responses.jsonl").write_text(json.dumps(receipt) + "\n")
    return library, harmful


def test_the_docket_of_the_examples_can_be_made(prepared):
    assert prepared[1]


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.relative_to(ROOT).as_posix() not in WHOLE], ids=lambda page: page.stem
)
def test_the_commands_of_a_page(prepared, page, tmp_path):
    shell, trial = prepared
    wanted = [command for command in commands(page) if not command.why_not]
    if not wanted:
        pytest.skip("what stands here is listed with the reason why it is not run")
    folder = tmp_path / "as prepared"
    shutil.copytree(shell.folder, folder)  # a page may change, or erase, what the next one needs
    here = Shell(folder, Path(shell.environment["MEMECOURT_HOME"]), MEMECOURT_DOCKET=str(folder / "docket.sqlite"))
    known = json.loads((folder / "DATA" / "train.jsonl").read_text().splitlines()[0])["id"]
    for command in wanted:
        line = command.line
        for written, put in (
            *SMALLER,
            ("0b8e…", trial),
            ("relabel LIBRARY ID", f"relabel LIBRARY {known}"),
            ("LIBRARY ID", "LIBRARY added"),
            ("LIBRARY CHANGE", "LIBRARY 3"),
            ("LIBRARY [ID]", "LIBRARY"),
            ("--text …", "--text words"),
            ("--why …", "--why seen"),
            ("/mnt/backups", "backups"),
            ("new/docket.sqlite", "restored/docket.sqlite"),
        ):
            line = line.replace(written, put)
        line = re.sub(r"\bID\b", trial, re.sub(r"(\s*\[[^\[\]]*(?:\[[^\]]*\][^\[\]]*)?\])+", "", line))
        line = re.sub(r"\bDIR\b", "DATA", line)
        if line.startswith("memecourt-eval synthetic DATA") or line.startswith("memecourt precedents build LIBRARY"):
            shutil.rmtree(folder / line.split()[2 if "synthetic" in line else 3], ignore_errors=True)
        # That something is amiss in them is told by the code as well: drawn memes share texts on purpose.
        here.run(line, fine=(0, 1) if re.search(r"(datasets|precedents) check", line) else (0,))
