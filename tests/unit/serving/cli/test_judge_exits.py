"""Exit codes and first lines of ``memecourt judge``."""

import json
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from memecourt.v1 import court_pb2 as wire
from serving.cli import judge as command
from serving.cli.main import cli

HARMFUL, HARMLESS, UNDECIDED = wire.LABEL_HARMFUL, wire.LABEL_NOT_HARMFUL, wire.LABEL_UNDECIDED
ANSWERS = {
    "allow": wire.JudgeResponse(label=HARMLESS, decision="allow"),
    "block": wire.JudgeResponse(label=HARMFUL, decision="block"),
    "review": wire.JudgeResponse(label=HARMFUL, decision="review"),
    "undecided": wire.JudgeResponse(label=UNDECIDED, decision="review"),
    "acquitted": wire.JudgeResponse(label=UNDECIDED, decision="allow"),
    "later": wire.JudgeResponse(label=HARMLESS, decision="quarantine"),
    "strange": wire.JudgeResponse(label=99, decision="review"),
    "error": command.JudgeFailure("No.", "NO"),
}


@pytest.fixture
def judge(monkeypatch, tmp_path):
    """Runs the command on files that are answered by their content."""

    @asynccontextmanager
    async def scripted(*_):
        async def ask(request):
            return ANSWERS[request.image.decode()]

        yield ask

    def run(*names, options=()):
        for name in names:
            (tmp_path / name).write_text(name)
        paths = [str(tmp_path / name) for name in names]
        return CliRunner().invoke(cli, ["judge", "--server", "court:1", *options, *paths])

    monkeypatch.setattr(command, "_there", scripted)
    return run


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["allow"], 0),
        (["block"], 10),
        (["undecided"], 11),
        (["review"], 12),
        (["error"], 1),
        (["acquitted"], 0),
        (["later"], 12),
        (["strange"], 11),
        (["allow", "undecided"], 11),
        (["undecided", "allow", "review"], 12),
        (["review", "block", "undecided"], 10),
        (["block", "error", "allow"], 1),
    ],
)
def test_exit_code_is_the_gravest_decision(judge, names, code):
    assert judge(*names).exit_code == code
    assert judge(*names, options=["--exit-zero"]).exit_code == (1 if code == 1 else 0)
    assert judge(*names, options=["--json"]).exit_code == code


@pytest.mark.parametrize("name", ["allow", "block", "review"])
def test_first_line_is_the_decision_and_json_has_it(judge, name):
    assert judge(name).stdout.split()[0] == name.upper()
    assert json.loads(judge(name, options=["--json"]).stdout)["verdict"]["decision"] == name
