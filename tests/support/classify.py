"""Helpers of tests of classify."""

import json

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.synthetic.make import CARD, Layout, make
from tests.support.arms import play_all_roles
from tests.support.oracles import oracle


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("tasks") / "data", Layout.HARMEME, train=60, val=8, test=24, seed=1).root


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def model(monkeypatch, home):
    """A scripted model for all roles in every court."""
    played = oracle()
    play_all_roles(monkeypatch, played)
    monkeypatch.setenv("MEMECOURT_HOME", str(home))
    monkeypatch.setenv("MEMECOURT_PICTURE_WORKERS", "1")
    return played


MODEL_OPTIONS = ("--llm-url", "http://nowhere/v1", "--model", "oracle")


def classify(data, out, *words, code=0):
    ran = CliRunner().invoke(
        cli, ["classify", "--dataset", str(data / CARD), "--data", str(data), "--out", str(out), *words]
    )
    assert ran.exit_code == code, ran.output
    return ran


def figures(ran):
    (table,) = json.loads(ran.stdout)["tables"]
    return {row["run"]: row["card"] for row in table["rows"]}


def words(request):
    return "\n".join(part for part in request.parts if isinstance(part, str))
