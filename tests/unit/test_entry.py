"""Every command line ends in a message and an exit code, whatever goes wrong (BO-7 in part)."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


def python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", f"import click\nfrom serving.cli.program import run_command\n{program}"],
        env={**os.environ, **environment}, cwd=ROOT, capture_output=True, timeout=200, check=False,
    )  # fmt: skip


RAISES = "@click.command()\ndef it():\n    raise {error}\nrun_command(it)"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("NotADirectoryError(20, 'Not a directory', '/a/b')", "Error: /a/b: Not a directory."),
        ("OSError('odd')", "Error: the system refused."),
        ("KeyError('secret words of a meme')", "made a mistake (KeyError)"),
        ("MemoryError()", "no more memory or threads. Raise what limits it"),
        ('RuntimeError("can\'t start new thread")', "no more memory or threads. Raise what limits it"),
        ("RuntimeError('secret words of a meme')", "made a mistake (RuntimeError)"),
    ],
)
def test_errors_are_reported_without_a_traceback(error, expected):
    done = python(RAISES.format(error=error))
    assert done.returncode == 1 and expected in done.stderr.decode()
    assert b"Traceback" not in done.stderr and b"secret" not in done.stderr


def test_internal_errors_show_a_traceback_on_request():
    done = python(RAISES.format(error="KeyError('x')"), MEMECOURT_TRACEBACK="1")
    assert done.returncode == 1 and b"Traceback" in done.stderr


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("program", ["serving.cli.main", "eval.cli"])
def test_signal_during_import_ends_a_command_like_a_later_one(tmp_path, program, number, code):
    (tmp_path / "slow_to_import.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{number})")
    code_of_program = (
        f"from {program} import COMMANDS, main\nCOMMANDS['it'] = ('slow_to_import', 'Be slow.')\n"
        "import sys\nsys.argv[1:] = ['it']\nmain()"
    )
    done = python(code_of_program, PYTHONPATH=os.pathsep.join([str(ROOT), str(tmp_path)]))
    assert done.returncode == code and done.stderr.strip() == b"Interrupted."


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_terminal_with_a_small_character_set_gets_escapes(encoding):
    program = "@click.command()\ndef it():\n    click.echo('“\\u4e2d\\u6587”')\nrun_command(it)"
    done = python(program, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and b"\\u4e2d\\u6587" in done.stdout


@pytest.mark.parametrize("command", [["compare", "{file}", "{file}"], ["run", "--resume", "{file}"]])
def test_file_in_place_of_a_run_folder_is_named_in_the_error(tmp_path, command):
    file = tmp_path / "file"
    file.touch()
    done = subprocess.run(
        [sys.executable, "-m", "eval", *(word.format(file=file) for word in command)],
        capture_output=True, text=True, timeout=200, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and str(file) in done.stderr and "Traceback" not in done.stderr


def test_missing_pictures_are_reported_before_anything_is_loaded(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "serving.cli", "judge", str(tmp_path / "none.png"), str(tmp_path)],
        env={**os.environ, "MEMECOURT_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "none.png: error" in done.stderr and "Loading" not in done.stderr
    assert not (tmp_path / "home").exists()
