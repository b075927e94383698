"""README's examples as they stand: its commands one after the other in a user's folder, its Python on 200 pictures.

What stands there for the reader's own (a port, an id) is put in its place; what installs, serves or shows a page is
left to `make demo` and the tests of the console.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from retrieval.starter.draw import SCENES
from tests.support.drawn_memes import Caption, drawn
from tests.support.pictures import captioned, encode

pytestmark = [pytest.mark.integration, pytest.mark.slow]

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
MEMES = 200
LEFT_OUT = ("make", "pip install", "memecourt setup", "memecourt serve", "memecourt console")
VERDICTS = {0, 10, 11}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    return [line.partition(" # ")[0].strip() for line in lines if not line.startswith(LEFT_OUT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What README's examples name: pictures, and labelled memes to build a library of."""
    place = tmp_path_factory.mktemp("readme")
    (place / "meme.png").write_bytes(encode(captioned("A QUIET SUNDAY"), "PNG"))
    (place / "memes").mkdir()
    (place / "img").mkdir()
    rows = []
    for number in range(MEMES):
        scene, harmful = SCENES[number % len(SCENES)], number % 2
        words = Caption("people", "from Blueland", "spoil everything" if harmful else "sing well", f"number {number}")
        shown = drawn(f"{scene}:{number % 3}", words)
        (place / "memes" / f"{number:03}.jpg").write_bytes(encode(shown, "JPEG"))
        if number < 40:
            (place / "img" / f"{number:03}.png").write_bytes(encode(shown, "PNG"))
            rows.append({"id": f"{number:03}", "image": f"{number:03}.png", "text": words.words()})
            rows[-1] |= {"labels": ["very harmful" if harmful else "not harmful"]}
    (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "more.csv").write_text('id,label,text\nm1,1,"never trust a doctor, drink bleach"\nm2,0,a cup of tea\n')
    return place


def test_the_python_examples_judge_every_picture(server, folder, monkeypatch):
    one, many = blocks("python")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    exec(one.replace("127.0.0.1:50051", server.ready().address), names)
    assert names["response"].verdict_id
    printed = StringIO()
    with redirect_stdout(printed):
        exec(many.replace("127.0.0.1:50051", server.address), names)
    outcomes = dict(line.split(" ", 1) for line in printed.getvalue().splitlines())
    assert set(outcomes) == {path.name for path in Path("memes").iterdir()} and len(outcomes) == MEMES
    assert set(outcomes.values()) <= {"LABEL_HARMFUL", "LABEL_NOT_HARMFUL", "LABEL_UNDECIDED"}, outcomes


def test_the_commands_do_what_they_say(server, home, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MEMECOURT_HOME", str(home))
    monkeypatch.setenv("MEMECOURT_DOCKET", str(folder / "docket.sqlite"))
    monkeypatch.setenv("BROWSER", "true")
    programs = {"memecourt": "serving.cli", "memecourt-eval": "eval.cli"}
    trial, ran = "", []
    for line in commands():
        line = line.replace("127.0.0.1:50051", server.ready().address)
        program, *arguments = shlex.split(line)
        arguments = [trial if argument == "ID" else argument for argument in arguments]
        if program != "memecourt" and program != "memecourt-eval":
            continue
        if arguments[:2] == ["docket", "verify"]:
            prepare_proof(folder)
        arguments = [name for argument in arguments for name in matching(argument)]
        done = subprocess.run(
            [sys.executable, "-m", programs[program], *arguments], capture_output=True, text=True, timeout=500
        )
        assert done.returncode in (VERDICTS if arguments[0] == "judge" else {0}), f"{line}\n{done.stdout}{done.stderr}"
        if arguments[:2] == ["records", "list"]:
            trial = re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", done.stdout)[0]
        ran.append(line)
    assert len(ran) >= 14, "they are found"


def matching(argument: str) -> list[str]:
    """What a shell would make of an argument."""
    return sorted(map(str, Path().glob(argument))) if "*" in argument else [argument]


def prepare_proof(folder: Path) -> None:
    """What the auditor in the example has: the public key, and checkpoints that were kept elsewhere."""
    for command, name in ((["docket", "key"], "docket.vkey"), (["docket", "checkpoint"], "anchored.txt")):
        done = subprocess.run([sys.executable, "-m", "serving.cli", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (folder / name).write_text(done.stdout)
