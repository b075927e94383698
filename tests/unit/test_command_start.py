"""A signal that comes while a command's modules are imported ends it without a traceback."""

import os
import signal
import subprocess
import sys

import pytest

INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(): print('still here')\n"
ASKS = "import signal\ndef main(): print(signal.getsignal(signal.SIGINT).__name__)\n"


def started(folder, content, *, ignored=False):
    (folder / "commands_of_a_test.py").write_text(content)
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if ignored else ""
    return subprocess.run(
        [sys.executable, "-c", f"{ignore}from serving.cli import start; start('commands_of_a_test')"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
        # However the tests themselves were started, as with nohup.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_an_import_that_is_interrupted_is_no_traceback(tmp_path):
    done = started(tmp_path, INTERRUPTED)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "") and "Traceback" not in done.stderr


def test_afterwards_a_command_hears_of_it(tmp_path):
    assert started(tmp_path, ASKS).stdout == "default_int_handler\n"


def test_where_it_is_ignored_it_stays_ignored(tmp_path):
    assert started(tmp_path, INTERRUPTED, ignored=True).stdout == "still here\n"


@pytest.mark.parametrize("module", ["serving.cli", "eval"])
def test_both_command_lines_start_so(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "Usage:" in done.stdout
