"""The console blocks of the documentation: the tutorial from top to bottom, and the commands of all other pages.

Placeholders for something of the reader's own (an id, a folder) are filled in. Commands that are not run are listed,
each with the reason, in :data:`tests.support.doc_blocks.NOT_RUN`.
"""

import json
import re
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from eval.synthetic.scenes import draw_meme
from tests.integration.conftest import Server
from tests.support.doc_blocks import ROOT, TESTED_WHOLE, Shell, blocks, commands, pages
from tests.support.pictures import encode

TUTORIAL = ROOT / "docs" / "tutorial.md"
SMALL = "--train 24 --val 4 --test 8"
"""Sizes of the data sets that the pages draw, so that their commands run quickly."""


def trial_in(listing):
    return re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", listing)[0]


class Tutorial:
    """A reader of the tutorial: a shell in a folder, and the output of each command so far."""

    def __init__(self, folder, home):
        self.docket = folder / "docket.sqlite"
        self.home = home
        self.shell = Shell(folder, home, MEMECOURT_DOCKET=str(self.docket))
        self.outputs: dict[str, str] = {}


@pytest.fixture(scope="module")
def reader(home, tmp_path_factory):
    return Tutorial(tmp_path_factory.mktemp("tutorial"), home)


STEPS = [one.line for one in commands(TUTORIAL)]
SERVE = next(line for line in STEPS if line.startswith("memecourt serve"))


# In order; one test per command, so that each has its own time limit.
@pytest.mark.parametrize("line", [line for line in STEPS if line != SERVE and not line.startswith("pip install")])
def test_tutorial_commands_run_from_top_to_bottom(reader, line):
    listing = reader.outputs.get("memecourt records list", "")
    output = reader.outputs[line] = reader.shell.run(re.sub(r"\bID\b", trial_in(listing) if listing else "", line))
    if line == "memecourt demo":
        assert output.count("records show") == 3
    elif line.startswith("memecourt judge --text"):
        assert "No picture was sent" in output and "exit code 12" in output
    elif line.startswith("memecourt precedents build"):
        assert "go to a person where at most 10 %" in output


def test_tutorial_review_script_runs(reader):
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
    assert re.search(r"^(NOT_)?HARMFUL overruled: ada decides (allow|block)$", printed.getvalue(), re.MULTILINE)
    assert "the same meme again: allow as" in printed.getvalue()


@pytest.fixture(scope="module")
def library(home, tmp_path_factory):
    """A folder with the library, labelled memes and files that the pages' examples name."""
    folder = tmp_path_factory.mktemp("docs")
    shell = Shell(folder, home, MEMECOURT_DOCKET=str(folder / "docket.sqlite"))
    shell.run(f"memecourt-eval synthetic DATA {SMALL}")
    shell.run("memecourt precedents build LIBRARY DATA/train.jsonl --pictures DATA/images")
    (folder / "FILE").write_bytes(encode(draw_meme("cat", "a quiet sunday"), "PNG"))
    return shell


def test_library_of_the_examples_is_built(library):
    assert (library.folder / "LIBRARY").is_dir()  # a test of its own, as building it takes as long as some pages


@pytest.fixture(scope="module")
def prepared(library):
    """A shell in the same folder, now with a docket, and the id of a trial that found harm."""
    # Tried with the starter library, which knows this group: later commands need a harmful verdict.
    library.run('memecourt judge --text "People from Blueland are filth, kick every one of them out" --exit-zero')
    for command, name in (("key", "docket.vkey"), ("checkpoint", "checkpoints.txt")):
        (library.folder / name).write_text(library.run(f"memecourt docket {command}"))
    harmful = trial_in(library.run("memecourt records list"))
    trial = json.loads(library.run(f"memecourt records export {harmful} --as json -o -"))
    receipt = {"verdict_id": harmful, "receipt": trial["receipt"]}
    (library.folder / "response.json").write_text(json.dumps(receipt))
    (library.folder / "responses.jsonl").write_text(json.dumps(receipt) + "\n")
    return library, harmful


def test_docket_of_the_examples_is_created(prepared):
    assert prepared[1]


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if page.relative_to(ROOT).as_posix() not in TESTED_WHOLE],
    ids=lambda page: page.stem,
)
def test_commands_of_a_page_run(prepared, page, tmp_path):
    shell, trial = prepared
    runnable = [command for command in commands(page) if not command.why_not]
    if not runnable:
        pytest.skip("no command of this page can be run: see NOT_RUN")
    folder = tmp_path / "as prepared"
    shutil.copytree(shell.folder, folder)  # a page may change or erase files that the next one needs
    page_shell = Shell(
        folder, Path(shell.environment["MEMECOURT_HOME"]), MEMECOURT_DOCKET=str(folder / "docket.sqlite")
    )
    precedent = json.loads((folder / "DATA" / "train.jsonl").read_text().splitlines()[0])["id"]
    for command in runnable:
        line = re.sub(r"--train \d+ --val \d+ --test \d+", SMALL, command.line)
        for placeholder, value in (
            ("0b8e…", trial),
            ("relabel LIBRARY ID", f"relabel LIBRARY {precedent}"),
            ("LIBRARY ID", "LIBRARY added"),
            ("LIBRARY CHANGE", "LIBRARY 3"),
            ("LIBRARY [ID]", "LIBRARY"),
            ("--text …", "--text words"),
            ("--why …", "--why seen"),
            ("/mnt/backups", "backups"),
            ("new/docket.sqlite", "restored/docket.sqlite"),
        ):
            line = line.replace(placeholder, value)
        line = re.sub(r"\bID\b", trial, re.sub(r"(\s*\[[^\[\]]*(?:\[[^\]]*\][^\[\]]*)?\])+", "", line))
        line = re.sub(r"\bDIR\b", "DATA", line)
        if line.startswith("memecourt-eval synthetic DATA") or line.startswith("memecourt precedents build LIBRARY"):
            shutil.rmtree(folder / line.split()[2 if "synthetic" in line else 3], ignore_errors=True)
        # A check may exit with 1: drawn memes share texts on purpose, which it reports.
        page_shell.run(line, allowed_codes=(0, 1) if re.search(r"(datasets|precedents) check", line) else (0,))
