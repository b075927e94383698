"""``make demo-full`` with the address of a running server: three debates in the terminal, and the console's address."""

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import urllib.request

import pytest

from eval.standin.process import model_server
from scripts import demo_full, vllm_cpu
from serving.models.presets import PRESETS


def demo(home, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMECOURT_")}
    environment |= {"MEMECOURT_HOME": str(home)}
    command = [sys.executable, "-m", "scripts.demo_full", *arguments]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_demo_full_shows_three_debates_and_names_the_console(tmp_path):
    with model_server("--play", "rounds", "--model", "stand-in") as url:
        done = demo(tmp_path, f"{url}/v1")
    assert done.returncode == 0, done.stderr
    for kind in ("Described", "QuestionAsked", "AnswerGiven", "Summarised", "PrecedentsCited", "VerdictGiven"):
        assert len(re.findall(rf"\b{kind}\b", done.stderr)) >= 3, (kind, done.stderr)
    assert re.findall(r"a drawn (\w+)$", done.stdout, re.MULTILINE) == ["crowd", "cat", "landscape"]
    assert re.search(r"step by step: http://127\.0\.0\.1:\d+", done.stdout)
    assert len(re.findall(r'\bprompts\s+"2"', done.stderr)) == 3  # the set for small models


def test_demo_in_a_terminal_ends_with_a_console_that_stays_until_it_is_interrupted(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMECOURT_")}
    command = [sys.executable, "-m", "serving.cli", "demo"]
    terminal, process_side = pty.openpty()
    process = subprocess.Popen(
        command,
        env=environment | {"MEMECOURT_HOME": str(tmp_path), "COLUMNS": "200"},
        stdin=process_side, stdout=process_side, stderr=process_side, start_new_session=True, close_fds=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(process_side)
    output = ""
    while not (found := re.search(r"(http://127\.0\.0\.1:\d+/try) \(Ctrl-C ends it\)", output)):
        output += os.read(terminal, 4096).decode()
    with urllib.request.urlopen(found[1], timeout=60) as answer:
        assert b"Go on" in answer.read()  # nobody is asked who they are on this machine
    os.write(terminal, b"\x03")
    assert process.wait(60) == 0
    os.close(terminal)


def test_demo_full_names_an_address_without_a_server(tmp_path):
    done = demo(tmp_path, "http://127.0.0.1:9/v1")
    assert done.returncode == 1 and "No list of models at http://127.0.0.1:9/v1" in done.stderr


@pytest.mark.parametrize(("gpu", "words"), [(True, "for GPUs"), (False, "for CPUs")])
def test_demo_full_says_beforehand_what_it_fetches(gpu, words, tmp_path, capsys):
    demo_full.tell_beforehand(demo_full.DEFAULT, gpu=gpu)
    output = capsys.readouterr().out
    assert words in output and vllm_cpu.VERSION in output and next(iter(PRESETS)) in output and "hub, once" in output
    demo_full.tell_beforehand(str(tmp_path), gpu=gpu)
    assert "is a folder here" in capsys.readouterr().out
