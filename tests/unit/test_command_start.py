"""An interrupt while a command's modules are imported ends it without a traceback."""

import os
import signal
import subprocess
import sys

import pytest

INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(): print('still here')\n"
PRINTS_HANDLER = "import signal\ndef main(): print(signal.getsignal(signal.SIGINT).__name__)\n"


def start_command(folder, content, *, ignored=False):
    (folder / "commands_of_a_test.py").write_text(content)
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if ignored else ""
    return subprocess.run(
        [sys.executable, "-c", f"{ignore}from serving.cli import start; start('commands_of_a_test')"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
        # The tests themselves may ignore the signal, as under nohup.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_interrupted_import_prints_no_traceback(tmp_path):
    done = start_command(tmp_path, INTERRUPTED)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "") and "Traceback" not in done.stderr


def test_interrupt_handler_is_restored_after_import(tmp_path):
    assert start_command(tmp_path, PRINTS_HANDLER).stdout == "default_int_handler\n"


def test_ignored_interrupt_stays_ignored(tmp_path):
    assert start_command(tmp_path, INTERRUPTED, ignored=True).stdout == "still here\n"


@pytest.mark.parametrize("module", ["serving.cli", "eval"])
def test_both_command_lines_start(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "Usage:" in done.stdout
