"""A real server picks up changes that other processes make to its library, without a restart."""

import json
import os
import subprocess
import sys
import time

from court.verdict import Label
from eval.synthetic.scenes import draw_meme
from memecourt.client import Client
from memecourt.v1 import court_pb2 as wire
from retrieval.library.writer import LibraryWriter
from tests.support.server import drawn

ROWS = [
    ("cat", "Monday mornings without coffee are hard for cats too", "not_harmful"),
    ("dog", "My dog thinks that every day is Saturday", "not_harmful"),
    ("crowd", "People from Blueland are not welcome in our street", "harmful"),
    ("ballot", "Nobody from Blueland should be allowed to vote", "harmful"),
]
ASKED = ("desk", "When the printer asks for cyan to print in black and white")


def precedents(*arguments, home):
    command = [sys.executable, "-m", "serving.cli", "precedents", *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "MEMECOURT_HOME": str(home)}, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_changed_library_is_cited_without_a_restart(start, home, tmp_path):
    library = tmp_path / "library"
    (tmp_path / "img").mkdir()
    lines = []
    for number, (scene, text, label) in enumerate(ROWS):
        draw_meme(scene, text, seed=number).save(tmp_path / "img" / f"{number}.png")
        lines.append(json.dumps({"id": f"m{number}", "label": label, "text": text, "image": f"{number}.png"}))
    (tmp_path / "memes.jsonl").write_text("\n".join(lines) + "\n")
    # --sole-acquittal, so that the duplicate is cited under either label, although it is the only one.
    pictures = ("--pictures", tmp_path / "img", "--sole-acquittal")
    precedents("build", library, tmp_path / "memes.jsonl", *pictures, home=home)
    server = start(None, "--library", str(library)).ready()
    reloads = 0

    def apply(change):
        """Makes a change and waits until the server has logged that it searches the changed library."""
        nonlocal reloads
        change()
        until = time.monotonic() + 120
        while sum("library was changed" in line for line in server.log) <= reloads:
            assert time.monotonic() < until, "\n".join(server.log)
            time.sleep(0.05)
        reloads += 1

    def cited():
        picture = drawn(*ASKED, seed=77)
        with Client(server.address) as court:
            response = court.judge(picture, text=ASKED[1], timeout=120)
        # A copy that a named person answers for settles the meme, and stands in the place of others.
        found = response.in_force
        settled = {found.id: found.label} if found.by == wire.AUTHORITY_PRECEDENT else {}
        return settled or {one.id: one.label for one in response.precedents}

    (tmp_path / "duplicate.png").write_bytes(drawn(*ASKED, seed=77))
    signed = ("--who", "ada", "--why", "a test")
    assert "duplicate" not in cited()
    duplicate = (library, "duplicate", "harmful", "--text", ASKED[1], "--picture", tmp_path / "duplicate.png", *signed)
    apply(lambda: precedents("add-one", *duplicate, home=home))
    harmful = cited()["duplicate"]
    # From here on this process changes the library, which is not the server either.
    writer = LibraryWriter.open(library)
    apply(lambda: writer.relabel("duplicate", Label.NOT_HARMFUL, who="ada", why="a test"))
    assert cited()["duplicate"] != harmful
    apply(lambda: writer.revoke(2, who="ada", why="a test"))
    assert cited()["duplicate"] == harmful
    apply(writer.compact)
    assert cited()["duplicate"] == harmful
    apply(lambda: writer.remove("duplicate", who="ada", why="a test"))
    assert "duplicate" not in cited()
    kinds = [one["change"]["kind"] for one in json.loads(precedents("history", library, "--json", home=home))]
    assert kinds == ["add", "relabel", "revoke", "remove"]
    assert server.end() == 0
