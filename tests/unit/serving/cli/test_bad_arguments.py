"""Every command and option with every kind of bad argument: a message and an exit code, and no model loaded (BO-7).

Commands are found by walking the command tree; add those of a new one to ``tests/fixtures/valid_arguments.txt``.
"""

import asyncio
import os
import shlex
import shutil

import click
import pytest
from click.testing import CliRunner

from court.errors import NotLoaded
from eval.cli import cli as eval_cli
from eval.reports.tasks import gather
from retrieval.facts.documents import FactDocument
from retrieval.facts.writer import write_corpus
from serving.cli.main import cli
from tests.support.consoles import create_docket
from tests.support.dockets import events_of
from tests.support.paths import TESTS
from tests.support.report_runs import write_report_run

LIBRARY = TESTS / "fixtures" / "pytorch_library"
LOADED = "a model was loaded, or a server started"


def commands(command, path):
    """Yields every executable command with its full name."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path), command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command, **command.context_settings)
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        yield from commands(subcommand, (*path, name))


ALL = dict([*commands(cli, ("memecourt",)), *commands(eval_cli, ("memecourt-eval",))])


def read_valid_arguments():
    """Valid arguments of each command; ``{…}`` stands for a path of the fixture ``places``."""
    found = {}
    for line in (TESTS / "fixtures" / "valid_arguments.txt").read_text().splitlines():
        words = shlex.split(line)
        size = max(n for n in range(len(words) + 1) if not n or " ".join(words[:n]) in ALL)
        found[" ".join(words[:size])] = tuple(words[size:])
    return found


VALID = read_valid_arguments()

PATHS = ("missing", "folder", "file", "empty", "binary", "utf16", "json list", "text", "long", "with spaces")
WORDS = ("", "x" * 20_000, "a\nb", "\udcff", "💥 ؀", "-", "{}")
NUMBERS = ("x", "", "nan", "inf", "-1", "0", "9" * 400, "1e-400")
UNTYPED_PATHS = frozenset({"place", "library", "docket"})
"""Parameters that name a path but are not of click's type Path, because they may also name a database."""
CREATED_PATHS = frozenset(
    {
        "out",
        "new",
        "html",
        "markdown",
        "inspect",
        "parquet",
        "database",
        "calls",
        "folder",
        "docket",
        "output",
        "run_out",
        "path",
    }
)
"""Parameters whose path may be missing, because the command creates it."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Valid paths for commands, and one path of each bad kind."""
    root = tmp_path_factory.mktemp("places")
    found = {"library": shutil.copytree(LIBRARY, root / "library"), "folder": root / "folder", "home": root / "home"}
    found["home"].mkdir()
    create_docket(found["home"] / "docket.sqlite", [events_of("a")])
    found["run"] = write_report_run(root / "run")
    for name in ("folder", "data"):
        (root / name).mkdir()
    found |= {"data": root / "data", "new": root / "new"}
    contents: dict[str, bytes] = {
        "picture": b"\x89PNG\r\n\x1a\n",
        "tokens": b"",
        "memes": b'{"id": "a", "image": "", "labels": ["not harmful"], "text": "words"}\n',
        "models": b'[models.m]\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\n',
        "key": b"",
        "policy": b'id = "p"\nversion = "1"\npreamble = "x"\ntargets = ["y"]\n'
        b'[[clauses]]\nnumber = "1"\ncategory = "c"\ntext = "t"\nviolates = ["a", "b"]\nallows = ["d"]\n',
        "file": b"some words\n",
        "question": b'id = "mood"\ntext = "which mood?"\noptions = ["glad", "sad"]\n',
        "empty": b"",
        "binary": bytes(range(256)) * 8,
        "utf16": "id,label\na,1\n".encode("utf-16"),
        "json list": b"[1, 2]",
        "text": b"\xff\xfe\xfaneither UTF-8 nor anything else",
        "with spaces": b"name = ",
    }
    for name, content in contents.items():
        (root / name).write_bytes(content)
        found[name] = root / name
    write_corpus(root / "corpus", [FactDocument(id="a", text="some words")], name="test")
    return {**found, "corpus": root / "corpus", "long": root / ("n" * 5000)}


@pytest.fixture(autouse=True)
def without_heavy_parts(places, tmp_path, monkeypatch):
    """Replaces everything heavy: loading a model or starting a server fails, and servers stop once they listen."""

    def loaded(*_, **__):
        raise NotLoaded(LOADED)

    def refused(*_):
        raise click.ClickException(LOADED)

    async def entered(*_):
        raise NotLoaded(LOADED)

    monkeypatch.setattr("retrieval.open.load_encoder", loaded)
    monkeypatch.setattr("serving.cli.precedents.load_encoder", loaded)
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder.__init__", loaded)
    monkeypatch.setattr("serving.cli.demo._server", refused)
    monkeypatch.setattr("serving.models.vllm.VllmServer.__aenter__", entered)
    monkeypatch.setattr("eval.models.open.require_servers", loaded)
    monkeypatch.setattr("court.backends.sandbox.process.WorkerProcess.start", entered)
    monkeypatch.setattr("serving.cli.setup.fetch_weights", loaded)
    monkeypatch.setitem(gather.__kwdefaults__, "resamples", 20)
    monkeypatch.setattr("serving.cli.setup.fetch_model", loaded)

    def stopped():
        event = asyncio.Event()
        event.set()
        return event

    monkeypatch.setattr("serving.app.stop_signals", stopped)
    monkeypatch.setenv("MEMECOURT_HOME", str(places["home"]))
    monkeypatch.setenv("BROWSER", "true")


def valid_arguments(name, places, new):
    """The valid arguments of a command."""
    return [word.format(**{**places, "new": new}) for word in VALID[name]]


def values_of(parameter):
    """Bad values of a parameter: names of paths, or the values themselves."""
    if isinstance(parameter.type, click.Path) or parameter.name in UNTYPED_PATHS:
        return PATHS
    if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
        return NUMBERS
    return WORDS


CASES = [
    (name, parameter, value)
    for name, command in ALL.items()
    for parameter in command.params
    if not getattr(parameter, "is_flag", False) and not isinstance(parameter.type, click.types.BoolParamType)
    for value in values_of(parameter)
]


def test_every_command_has_valid_arguments():
    assert set(ALL) <= set(VALID), set(ALL) - set(VALID)
    assert len(CASES) > 2000


@pytest.mark.parametrize("command", [("resume",), ("ask", "--question", "{question}")])
def test_unknown_trial_is_reported_before_a_model_is_loaded(command, places):
    words = [word.format(**places) for word in command]
    done = CliRunner().invoke(cli, ["records", *words, "no-such-trial"])
    assert done.exit_code == 1 and "There is no trial no-such-trial" in done.output and LOADED not in done.output


def with_bad(name, parameter, value, places, new):
    """The command's arguments, with the value in place of the parameter's valid one."""
    words = valid_arguments(name, places, new)
    if parameter.param_type_name == "argument":
        arguments = [one for one in ALL[name].params if one.param_type_name == "argument"]
        usual = words[: next((at for at, word in enumerate(words) if word.startswith("--")), len(words))]
        place = arguments.index(parameter)
        if place < len(usual):
            return [*words[:place], value, *words[place + 1 :]]
        return [*usual, value, *words[len(usual) :]]
    flag = parameter.opts[0]
    if flag in words:
        at = words.index(flag)
        return [*words[:at], flag, value, *words[at + 2 :]]
    return [*words, flag, value]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_bad_arguments_are_refused_before_anything_is_loaded(name, places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    faults = []
    root = cli if name.split()[0] == "memecourt" else eval_cli
    for number, (case_name, parameter, value) in enumerate(CASES):
        if case_name != name:
            continue
        path = value in PATHS and values_of(parameter) is PATHS
        # Some commands create missing paths, so each gets its own.
        missing = tmp_path / f"no-{number}" / "such"
        shown = str({**places, "missing": missing}[value]) if path else value
        words = [*name.split()[1:], *with_bad(name, parameter, shown, places, tmp_path / f"new-{number}")]
        done = CliRunner().invoke(root, words)
        os.environ.pop("MEMECOURT_CONFIG", None)  # --config is for this process and those it starts
        if fault := fault_of(done, wrong=path and is_never_valid(name, parameter, value)):
            faults.append(f"{parameter.opts[0]} {value[:20]!r}: exit {done.exit_code}, {done.output[-200:]!r}: {fault}")
    assert not faults, "\n".join(faults)


def fault_of(done, *, wrong):
    """A description of how a command ended wrongly; empty if it did not."""
    if done.exception is not None and not isinstance(done.exception, SystemExit | OSError):
        return repr(done.exception)
    if "Traceback" in done.output:
        return "a traceback"
    return "not refused in time" if wrong and (LOADED in done.output or done.exit_code == 0) else ""


def is_never_valid(name, parameter, value):
    """True if this kind of path can never be valid for this parameter."""
    if (name, parameter.name) == ("memecourt vllm", "python"):
        return False  # checked by the code that starts it, which is replaced here
    if parameter.name == "docket" and name in ("memecourt demo", "memecourt serve"):
        return False  # opened only once the server listens; errors go to its log
    made = parameter.name in CREATED_PATHS or (name, parameter.name) in {
        ("memecourt precedents build", "place"),
        ("memecourt facts build", "place"),
    }
    return value == "long" or (value == "missing" and not made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_valid_arguments_end_without_an_exception(name, places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = cli if name.split()[0] == "memecourt" else eval_cli
    done = CliRunner().invoke(root, [*name.split()[1:], *valid_arguments(name, places, tmp_path / "new")])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
