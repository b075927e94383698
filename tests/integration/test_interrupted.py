"""Commands that a signal ends exit with 130 or 143, print one line and no traceback, and leave no trial open."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serving.docket.open import Docket
from tests.support.dockets import open_trials
from tests.support.pictures import captioned, encode
from tests.support.playing import wait_until

PICTURES = 40
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
ROWS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Enough pictures and texts that judging them takes a while."""
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "pictures").mkdir()
    for number in range(PICTURES):
        (folder / "pictures" / f"{number:02}.png").write_bytes(encode(captioned(f"A QUIET DAY {number}"), "PNG"))
    rows = [
        {
            "id": f"m{n}",
            "image": "",
            "labels": ["not harmful" if n % 2 else "very harmful"],
            "text": f"note {n} of many",
        }
        for n in range(ROWS)
    ]
    (folder / "memes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def start(home, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        env={**os.environ, "MEMECOURT_HOME": str(home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def handles_signal(process, signal_number):
    """True once a process has a handler for a signal; until then SIGTERM ends it silently."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (signal_number - 1) & 1)


def interrupt(process, signal_number, *, after=None):
    """Sends a signal, after some text on a stream if ``after`` names one; returns the exit code and all output."""
    output = ""
    if after is not None:
        stream = process.stderr if after[0] == "error" else process.stdout
        for line in stream:
            output += line
            if after[1] in line:
                break
    process.send_signal(signal_number)
    out, err = process.communicate(timeout=120)
    return process.returncode, output + out + err


@pytest.mark.parametrize(("signal_number", "code"), SIGNALS)
@pytest.mark.parametrize("after", [("error", "Loading"), ("output", '"verdict"')], ids=["loading", "judging"])
def test_interrupted_judge_ends_its_trials_and_reports_progress(home, folder, tmp_path, signal_number, code, after):
    docket_path = tmp_path / "docket.sqlite"
    pictures = sorted((folder / "pictures").iterdir())
    process = start(home, "serving.cli", "judge", *pictures, "--json", "--docket", docket_path)
    exit_code, output = interrupt(process, signal_number, after=after)
    assert exit_code == code and f"of {PICTURES} pictures were judged" in output, output
    assert "Traceback" not in output and "never retrieved" not in output

    async def trials_left_open():
        docket = Docket.open(docket_path, create=False)
        try:
            return await open_trials(docket)
        finally:
            await docket.close()

    assert asyncio.run(trials_left_open()) == []


@pytest.mark.parametrize(("signal_number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "arguments",
    [("serving.cli", "precedents", "build", "{new}", "{memes}"), ("eval", "synthetic", "{new}", "--train", "4000")],
    ids=["build", "synthetic"],
)
def test_interrupted_command_exits_without_a_traceback(home, folder, tmp_path, signal_number, code, arguments):
    paths = {"new": tmp_path / "new", "memes": folder / "memes.jsonl"}
    process = start(home, *(argument.format(**paths) for argument in arguments))
    # On a busy machine it takes seconds until the command has started.
    wait_until(lambda: handles_signal(process, signal.SIGTERM))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    exit_code, output = interrupt(process, signal_number)
    assert exit_code == code and "Interrupted." in output and "Traceback" not in output, output
