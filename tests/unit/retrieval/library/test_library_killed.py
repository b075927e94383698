"""Killed writers: the library is as before a step or as after it, and stays writable."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from court.errors import BadLibrary, BadRequest
from court.verdict import Label
from retrieval.library.library import Library
from retrieval.library.thumbnails import ThumbnailWriter
from retrieval.library.writer import LibraryWriter
from tests.support.library import ENCODER, TUNING, content, ids_of, pictures_of
from tests.support.sizes import FULL

KILLS = 200 if FULL else 60
WHO = {"who": "ada", "why": "a test"}

Say = Callable[[object], None]


def steps(root, seed, say):
    """Changes a library at random forever; reports each step before it, and that it was done."""
    chance, number = random.Random(seed), 0
    writer: LibraryWriter | None = None
    while True:
        number += 1
        try:
            library = Library.open(root, None)
        except BadLibrary as error:
            assert error.reason == "LIBRARY_MISSING", error
            library = None
        if library is None or chance.random() < 0.1:
            ids = [f"{seed}-{number}-{place}" for place in range(3)]
            say(["replace", ids])
            thumbnails = ThumbnailWriter(root)
            memes, rows = content(*ids, kept={ids[1]: thumbnails.append(f"picture of {ids[1]}".encode())})
            made = {"name": "n", "encoder": ENCODER.identity, "rows": rows, "tuning": TUNING}
            Library.create(root, memes=memes, pictures=thumbnails, replace=True, **made)
            say("done")
            continue
        if writer is None or writer.library.manifest.lineage != library.manifest.lineage or chance.random() < 0.3:
            writer = LibraryWriter(library)
        id_, new = chance.choice(ids_of(library)), f"{seed}-{number}"
        act = chance.choice(["add", "add", "remove", "relabel", "revoke", "compact", "forget", "files"])
        try:
            if act == "add":
                (meme,), rows = content(new)
                say([act, new])
                writer.add(meme, rows[0], f"picture of {new}".encode(), **WHO)
            elif act == "remove":
                say([act, id_])
                writer.remove(id_, **WHO)
            elif act == "relabel":
                say([act, id_])
                writer.relabel(id_, Label.HARMFUL, **WHO)
            elif act == "revoke":
                last = [one for one in writer.history() if one.revoked_by is None and one.change.revokes is None]
                say([act, last[-1].change.number if last else 1])
                writer.revoke(last[-1].change.number if last else 1, **WHO)
            elif act == "files":
                say([act, [new, f"{new}-b"]])
                Library.open(root, None).add(*content(new, f"{new}-b"))
            else:
                say([act, None])
                writer.compact(forget=act == "forget")
            say("done")
        except BadRequest:
            say("refused")


def state(root):
    """Returns a library's full contents after checking every byte of it, or None if there is none."""
    try:
        library = Library.open(root, ENCODER.identity)
    except BadLibrary as error:
        if error.reason == "LIBRARY_MISSING":
            return None
        raise
    library.check_pictures()
    pictures = pictures_of(library)
    assert all(data == f"picture of {id_}".encode() for id_, data in pictures.items())
    assert np.array_equal(library.rows, content(*ids_of(library))[1])
    return {
        "memes": [[meme.id, meme.label, meme.id in pictures] for meme in library.memes],
        "changes": [one.change.number for one in library.history()],
    }


def kill_writers(root, rounds):
    """Forks writers and kills them; runs in a process of its own, so that a fork copies no threads."""
    chance = random.Random(11)
    finished = refused = halfway = 0
    for seed in range(rounds):
        before = state(root)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                steps(root, seed, _reporting_to(write))
            finally:
                os._exit(1)
        os.close(write)
        time.sleep(chance.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read, "rb") as pipe:
            messages = [json.loads(line) for line in pipe]
        assert os.WIFSIGNALED(status), f"the writer ended by itself in round {seed}: {messages[-2:]}"
        after = state(root)
        done = messages.count("done")
        finished, refused = finished + done, refused + messages.count("refused")
        halfway += bool(messages) and messages[-1] not in ("done", "refused")
        assert messages or after == before
        if messages and messages[-1] in ("done", "refused"):
            assert done or after == before
        if done and isinstance(after, dict):
            check_last_step(messages, after)
        # The lock is free, and the next write cleans up after the killed one.
        if after is not None:
            LibraryWriter.open(root).add(*_one(f"after-{seed}"), f"picture of after-{seed}".encode(), **WHO)
            if seed % 10 == 0:
                LibraryWriter.open(root).compact()
                names = sorted(path.name for path in (root / "generations").iterdir())
                assert not any(name.startswith(".") for name in names) and len(names) <= 2
    print(json.dumps({"finished": finished, "refused": refused, "halfway": halfway}))


def _reporting_to(to):
    def say(what):
        os.write(to, json.dumps(what).encode() + b"\n")

    return say


def _one(id_):
    (meme,), rows = content(id_)
    return meme, rows[0]


def check_last_step(messages, after):
    """Checks that the last acknowledged step is in effect, unless the step after it undid it."""
    act, what = [step for step, reply in zip(messages[::2], messages[1::2], strict=False) if reply == "done"][-1]
    undone = messages[-1][0] if isinstance(messages[-1], list) else ""
    labels = {id_: label for id_, label, _ in after["memes"]}
    if undone in ("replace", "revoke", "remove", "relabel"):
        return
    if act == "add":
        assert what in labels
    elif act == "files" or act == "replace":
        assert set(what) <= labels.keys()
    elif act == "remove":
        assert what not in labels
    elif act == "relabel":
        assert labels[what] == Label.HARMFUL


@pytest.mark.slow
def test_kills_leave_an_intact_library_each_time(tmp_path):
    command = [sys.executable, "-m", __name__, str(tmp_path / "library"), str(KILLS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-4000:]
    counts = json.loads(ended.stdout)
    # The test proves something only if many steps finished, and many were interrupted halfway.
    assert counts["finished"] > KILLS / 4 and counts["halfway"] > KILLS / 4, counts


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        kill_writers(Path(sys.argv[1]), int(sys.argv[2]))
