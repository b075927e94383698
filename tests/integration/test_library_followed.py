"""A real server whose library is changed by other processes: what is new is cited a moment later, without a restart."""

import json
import os
import subprocess
import sys
import time

import pytest

from court.verdict import Label
from memecourt.client import Client
from retrieval.library.writer import LibraryWriter
from retrieval.starter.draw import draw_meme
from tests.integration.test_server import drawn

pytestmark = pytest.mark.integration

ROWS = [
    ("cat", "Monday mornings without coffee are hard for cats too", "not_harmful"),
    ("dog", "My dog thinks that every day is Saturday", "not_harmful"),
    ("crowd", "People from Blueland are not welcome in our street", "harmful"),
    ("ballot", "Nobody from Blueland should be allowed to vote", "harmful"),
]
ASKED = ("desk", "When the printer asks for cyan to print in black and white")


def precedents(*arguments, home):
    command = [sys.executable, "-m", "serving.cli", "precedents", *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "MEMECOURT_HOME": str(home)}, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_is_changed_on_the_disk_is_cited_without_a_restart(start, home, tmp_path):
    library = tmp_path / "library"
    (tmp_path / "img").mkdir()
    lines = []
    for number, (scene, text, label) in enumerate(ROWS):
        draw_meme(scene, text, seed=number).save(tmp_path / "img" / f"{number}.png")
        lines.append(json.dumps({"id": f"m{number}", "label": label, "text": text, "image": f"{number}.png"}))
    (tmp_path / "memes.jsonl").write_text("\n".join(lines) + "\n")
    # So that the twin is cited under either label, though it stands alone.
    pictures = ("--pictures", tmp_path / "img", "--sole-acquittal")
    precedents("build", library, tmp_path / "memes.jsonl", *pictures, home=home)
    server = start(None, "--library", str(library)).ready()
    told = 0

    def changed(change):
        """Makes a change and waits until the server has said that it searches what is new."""
        nonlocal told
        change()
        until = time.monotonic() + 120
        while sum("library was changed" in line for line in server.log) <= told:
            assert time.monotonic() < until, "\n".join(server.log)
            time.sleep(0.05)
        told += 1

    def cited():
        picture = drawn(*ASKED, seed=77)
        with Client(server.address) as court:
            response = court.judge(picture, text=ASKED[1], timeout=120)
        return {one.id: one.label for one in response.precedents}

    (tmp_path / "twin.png").write_bytes(drawn(*ASKED, seed=77))
    signed = ("--who", "ada", "--why", "a test")
    assert "twin" not in cited()
    twin = (library, "twin", "harmful", "--text", ASKED[1], "--picture", tmp_path / "twin.png", *signed)
    changed(lambda: precedents("add-one", *twin, home=home))
    harmful = cited()["twin"]
    # From here on by this process, which is another than the server too.
    writer = LibraryWriter.open(library)
    changed(lambda: writer.relabel("twin", Label.NOT_HARMFUL, who="ada", why="a test"))
    assert cited()["twin"] != harmful
    changed(lambda: writer.revoke(2, who="ada", why="a test"))
    assert cited()["twin"] == harmful
    changed(writer.compact)
    assert cited()["twin"] == harmful
    changed(lambda: writer.remove("twin", who="ada", why="a test"))
    assert "twin" not in cited()
    kinds = [one["change"]["kind"] for one in json.loads(precedents("history", library, "--json", home=home))]
    assert kinds == ["add", "relabel", "revoke", "remove"]
    assert server.end() == 0
