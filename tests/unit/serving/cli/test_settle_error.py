"""Tests of ``--settle-error``: a build reports the accepted error of a cascade, and ``info`` shows it."""

import json
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from serving.cli import precedents
from serving.cli.main import cli
from tests.support.build import ENCODER, harmeme, lines


@pytest.fixture
def invoke(monkeypatch):
    @asynccontextmanager
    async def tools(load):
        yield ENCODER, None

    monkeypatch.setattr(precedents, "_tools", tools)
    return lambda *arguments: CliRunner().invoke(cli, ["precedents", *map(str, arguments)])


@pytest.fixture
def memes(tmp_path):
    return lines(
        tmp_path / "memes.jsonl",
        *(
            harmeme(f"m{i}", "very harmful" if i % 2 else "not harmful", f"word{i} {'bad' if i % 2 else 'good'}")
            for i in range(120)
        ),
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--settle-error", "0.01"), 0.01, "nothing at an error of 1.0%"),
        (("--settle-error", "0.2"), 0.2, "(at most 20.0% wrong)"),
    ],
)
def test_accepted_settle_error_is_stored_and_shown(invoke, memes, tmp_path, options, error, message):
    built = invoke("build", tmp_path / "library", memes, *options)
    assert built.exit_code == 0
    shown = invoke("info", "--library", tmp_path / "library")
    assert shown.exit_code == 0 and message in shown.stdout
    manifest = json.loads(invoke("info", "--library", tmp_path / "library", "--json").stdout)
    assert manifest["tuning"]["settle_error"] == error


@pytest.mark.parametrize("error", ["0", "0.5", "-0.1", "5"])
def test_settle_error_must_be_a_share_below_one_half(invoke, memes, tmp_path, error):
    assert invoke("build", tmp_path / "library", memes, "--settle-error", error).exit_code == 2
    assert not (tmp_path / "library").exists()
