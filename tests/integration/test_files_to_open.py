"""The number of files of eval that a command runs through: those a reader opens to follow it on its main path."""

from click.testing import CliRunner

from eval.cli import cli
from eval.standin.server import FakeModelServer
from eval.standin.settings import Settings
from eval.synthetic.make import Layout, make
from tests.support.stand_ins import listening
from tests.support.walks import Walk

MOST_FILES = {"run": 24, "report": 10}
"""Most files of eval in which a command runs a function."""


def walked(*arguments):
    with Walk().followed() as walk:
        result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return walk.files("eval")


def test_run_and_report_are_followed_through_few_files(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MEMECOURT_PICTURE_WORKERS", "1")
    make(tmp_path / "data", layout=Layout.HARMEME, train=24, val=4, test=6, seed=1)
    data = ("--dataset", "synthetic-harmeme", "--data", tmp_path / "data", "--out", tmp_path / "run")
    with listening(FakeModelServer(Settings(play="synthetic"))) as url:
        files = {"run": walked("run", *data, "--llm-url", url, "--model", "stand-in")}
    files["report"] = walked("report", tmp_path / "run")
    for command, opened in files.items():
        assert len(opened) > 5, opened  # fewer mean that the profiler missed the command
        assert len(opened) <= MOST_FILES[command], "\n".join(opened)
