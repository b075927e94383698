"""Commands that a signal ends: 130 or 143, one line that says so, no traceback, and no trial that stays open."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serving.docket.open import Docket
from tests.support.dockets import open_trials
from tests.support.pictures import captioned, encode
from tests.support.playing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PICTURES = 40
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
ROWS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures and texts, enough of them to take a while."""
    place = tmp_path_factory.mktemp("interrupted")
    (place / "pictures").mkdir()
    for number in range(PICTURES):
        (place / "pictures" / f"{number:02}.png").write_bytes(encode(captioned(f"A QUIET DAY {number}"), "PNG"))
    rows = [
        {
            "id": f"m{n}",
            "image": "",
            "labels": ["not harmful" if n % 2 else "very harmful"],
            "text": f"note {n} of many",
        }
        for n in range(ROWS)
    ]
    (place / "memes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def start(home, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        env={**os.environ, "MEMECOURT_HOME": str(home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def catches(process, number):
    """True once a process has taken a signal over: until then SIGTERM ends it without a word, whatever it is."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


def ended(process, number, *, after=None):
    """Sends the signal once the process has said something on standard output or error; its code and what it said."""
    said = ""
    if after is not None:
        stream = process.stderr if after[0] == "error" else process.stdout
        for line in stream:
            said += line
            if after[1] in line:
                break
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return process.returncode, said + out + err


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("after", [("error", "Loading"), ("output", '"verdict"')], ids=["loading", "judging"])
def test_judge_ends_its_trials_and_says_how_far_it_was(home, folder, tmp_path, number, code, after):
    place = tmp_path / "docket.sqlite"
    pictures = sorted((folder / "pictures").iterdir())
    process = start(home, "serving.cli", "judge", *pictures, "--json", "--docket", place)
    got, said = ended(process, number, after=after)
    assert got == code and f"of {PICTURES} pictures were judged" in said, said
    assert "Traceback" not in said and "never retrieved" not in said

    async def left():
        docket = Docket.open(place, create=False)
        try:
            return await open_trials(docket)
        finally:
            await docket.close()

    assert asyncio.run(left()) == []


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "words",
    [
        ("serving.cli", "precedents", "build", "{new}", "{memes}"),
        ("eval", "synthetic", "{new}", "--train", "4000"),
    ],
    ids=["build", "synthetic"],
)
def test_other_commands_end_alike(home, folder, tmp_path, number, code, words):
    named = {"new": tmp_path / "new", "memes": folder / "memes.jsonl"}
    process = start(home, *(word.format(**named) for word in words))
    # On a busy machine the command itself is not there for seconds.
    wait_until(lambda: catches(process, signal.SIGTERM))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    got, said = ended(process, number)
    assert got == code and "Interrupted." in said and "Traceback" not in said, said


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_consume_ends_while_it_waits_for_a_queue_that_does_not_answer(home, number, code):
    with socket.create_server(("127.0.0.1", 0)) as queue:
        process = start(home, "serving.cli", "consume", f"redis://127.0.0.1:{queue.getsockname()[1]}/0")
        queue.settimeout(120)
        connection, _ = queue.accept()
        with connection:
            got, said = ended(process, number)
    assert got == code and "Interrupted." in said and "Traceback" not in said, said
