"""Helpers of tests of classify."""

import json
from contextlib import AsyncExitStack

import pytest
from click.testing import CliRunner

from court.roles import RoleModel, RoleModels
from eval.cli import cli
from eval.synthetic.make import CARD, Layout, make
from eval.synthetic.oracle import oracle
from tests.support.encoders import WordEncoder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("tasks") / "data", Layout.HARMEME, train=60, val=8, test=24, seed=1).root


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def model(monkeypatch, home):
    """A scripted model for all roles in every court, together with a cheap encoder."""
    played = oracle()

    async def bench(settings, stack: AsyncExitStack, tell: object, **_: object):
        if settings.llm.url is None:
            return None
        role_model = RoleModel(played, temperature=settings.llm.of_role("judge").temperature or 0.0)
        return RoleModels(role_model, role_model, role_model, role_model)

    monkeypatch.setattr("serving.wiring.connect_models", bench)
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
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
    (group,) = json.loads(ran.stdout)["groups"]
    return {run["name"]: run["card"] for run in group["runs"]}


def words(request):
    return "\n".join(part for part in request.parts if isinstance(part, str))
