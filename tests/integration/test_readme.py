"""README's examples: its commands in order in a user's folder, and its Python on 40 pictures.

Placeholders (a port, an id) are filled in. Commands that install, serve or open a page are left to `make demo` and the
tests of the console.
"""

import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from eval.synthetic.scenes import SCENES
from tests.support.drawn_memes import Caption, captioned_meme
from tests.support.paths import ROOT
from tests.support.pictures import captioned, encode

README = (ROOT / "README.md").read_text("utf-8")
MEMES = 40
NOT_RUN = ("make", "pip install", "memecourt setup", "memecourt serve", "memecourt console")
VERDICT_CODES = {0, 10, 11, 12}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    return [line.partition(" # ")[0].strip() for line in lines if not line.startswith(NOT_RUN)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that README's examples name: pictures, and labelled memes to build a library from."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "meme.png").write_bytes(encode(captioned("A QUIET SUNDAY"), "PNG"))
    (folder / "memes").mkdir()
    (folder / "img").mkdir()
    rows = []
    for number in range(MEMES):
        scene, harmful = SCENES[number % len(SCENES)], number % 2
        caption = Caption("people", "from Blueland", "spoil everything" if harmful else "sing well", f"number {number}")
        picture = captioned_meme(f"{scene}:{number % 3}", caption)
        (folder / "memes" / f"{number:03}.jpg").write_bytes(encode(picture, "JPEG"))
        (folder / "img" / f"{number:03}.png").write_bytes(encode(picture, "PNG"))
        rows.append({"id": f"{number:03}", "image": f"{number:03}.png", "text": caption.words()})
        rows[-1] |= {"labels": ["very harmful" if harmful else "not harmful"]}
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "more.csv").write_text('id,label,text\nm1,1,"never trust a doctor, drink bleach"\nm2,0,a cup of tea\n')
    return folder


def test_python_examples_judge_every_picture(server, folder, monkeypatch):
    single, batch = blocks("python")
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {}
    exec(single.replace("127.0.0.1:50051", server.ready().address), namespace)
    assert namespace["result"].message.verdict_id
    printed = StringIO()
    with redirect_stdout(printed):
        exec(batch.replace("127.0.0.1:50051", server.address), namespace)
    outcomes = dict(line.split(" ", 1) for line in printed.getvalue().splitlines())
    assert set(outcomes) == {path.name for path in Path("memes").iterdir()} and len(outcomes) == MEMES
    assert set(outcomes.values()) <= {"allow", "block", "review"}, outcomes


def test_commands_of_the_readme_succeed(server, home, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MEMECOURT_HOME", str(home))
    monkeypatch.setenv("MEMECOURT_DOCKET", str(folder / "docket.sqlite"))
    monkeypatch.setenv("BROWSER", "true")
    programs = {"memecourt": "serving.cli", "memecourt-eval": "eval"}
    trial, executed = "", []
    for line in commands():
        line = line.replace("127.0.0.1:50051", server.ready().address)
        line = line.replace("synthetic DATA", "synthetic DATA --train 24 --val 4 --test 8")
        program, *arguments = shlex.split(line)
        arguments = [trial if argument == "ID" else argument for argument in arguments]
        if program != "memecourt" and program != "memecourt-eval":
            continue
        if arguments[:2] == ["docket", "verify"]:
            prepare_proof(folder)
        arguments = [name for argument in arguments for name in expand(argument)]
        result = subprocess.run(
            [sys.executable, "-m", programs[program], *arguments], capture_output=True, text=True, timeout=500
        )
        assert result.returncode in (VERDICT_CODES if arguments[0] == "judge" else {0}), (
            f"{line}\n{result.stdout}{result.stderr}"
        )
        if arguments[:2] == ["records", "list"]:
            trial = re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", result.stdout)[0]
        executed.append(line)
    assert len(executed) >= 14, "README has fewer commands than expected"


def expand(argument):
    """Expands an argument as a shell would."""
    return sorted(map(str, Path().glob(argument))) if "*" in argument else [argument]


def prepare_proof(folder):
    """Writes the files of the example's auditor: the public key, and checkpoints stored elsewhere."""
    for command, name in ((["docket", "key"], "docket.vkey"), (["docket", "checkpoint"], "anchored.txt")):
        result = subprocess.run([sys.executable, "-m", "serving.cli", *command], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        (folder / name).write_text(result.stdout)
