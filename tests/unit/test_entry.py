"""Every command line ends in a message and an exit code, whatever goes wrong (BO-7 in part)."""

import codecs
import os
import signal
import subprocess
import sys
from importlib.resources import files

import pytest

from court.policy import DEFAULT_POLICY, Policy
from court.prompts.sets import open_set, packaged, source
from eval.arena.settings import read_criteria
from eval.models.open import read_models
from retrieval.facts.reading import read_trust
from serving.access import tokens
from serving.settings import Settings
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


@pytest.mark.parametrize(
    ("program", "command", "extra"), [("serving.cli.main", "records", "server"), ("eval.cli", "run", "eval")]
)
def test_missing_package_is_named_with_the_extra_that_brings_it(program, command, extra):
    # The court's own packages are there for both; those of the measurements are not.
    absent = "pydantic" if extra == "server" else "rich"
    begun = f"import sys\nsys.modules[{absent!r}] = None\nsys.argv[1:] = [{command!r}]\n"
    done = python(f"{begun}from {program} import main\nmain()")
    advice = f"needs {absent}, which is not installed. Install it with: pip install 'memecourt[{extra}]'"
    assert done.returncode == 1 and advice in done.stderr.decode()


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


@pytest.mark.parametrize("command", [["compare", "{file}", "{file}"], ["report", "{file}"]])
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


@pytest.fixture
def write_marked(tmp_path):
    """Writes a file that begins with a byte order mark, and returns its path."""

    def write(text, name="file.toml"):
        path = tmp_path / name
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        return path

    return write


def test_settings_are_read(write_marked, monkeypatch):
    monkeypatch.setenv("MEMECOURT_CONFIG", str(write_marked("concurrent_trials = 7\n")))
    assert Settings().concurrent_trials == 7


def test_tokens_are_read_and_added_to(write_marked):
    path = write_marked("# callers\n")
    token = tokens.add(path, "pipeline", ["judge"], namespaces=None)
    assert [entry.sha256 for entry in tokens.read(path)] == [tokens.hash_of(token)]


def test_a_policy_is_read(write_marked):
    text = (files("court") / "policies" / "default.toml").read_text("utf-8")
    assert Policy.load(write_marked(text)) == DEFAULT_POLICY


def test_prompts_are_read_with_the_same_digest(write_marked, tmp_path):
    for name in ("proposer", "advocate", "judge"):
        write_marked(source("1", name), f"{name}.toml")
    assert open_set(str(tmp_path)).digest == packaged().digest


def test_trust_is_read(write_marked):
    assert read_trust(write_marked('[trust]\n"example.org" = 80\n')) == {"example.org": 80}


def test_criteria_are_read(write_marked, tmp_path):
    write_marked('[[criteria]]\nkey = "wit"\nwords = "Is it witty?"\n', "criteria.toml")
    assert read_criteria("criteria.toml", tmp_path)[0].key == "wit"


def test_models_are_read(write_marked):
    models = read_models(write_marked('[models.small]\nurl = "http://127.0.0.1:8000/v1"\nmodel = "small"\n'))
    assert list(models.models) == ["small"]
