"""``memecourt-eval classify`` on a model of known ability behind a real socket, with the built-in encoder."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.runs.results import read_results
from eval.synthetic.make import CARD, Layout, make, read_key
from eval.synthetic.task_oracle import Ability, TaskInput, answer_signs, answer_target
from eval.synthetic.world import SIGNS

pytestmark = pytest.mark.integration


@pytest.fixture
def url():
    command = [sys.executable, "-m", "eval.standin.server", "--play", "synthetic", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}/v1"
        finally:
            server.terminate()


def test_classified_tasks_match_the_oracle(tmp_path, url, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MEMECOURT_PICTURE_WORKERS", "1")
    data = make(tmp_path / "data", Layout.FHM, train=24, val=4, test=8, seed=2).root
    key = {meme.id: meme for meme in read_key(data)}
    options = ("--dataset", data / CARD, "--data", data, "--llm-url", url, "--model", "stand-in", "--odds")
    for task, shots in (("target", 0), ("signs", 2)):
        arguments = [*options, "--task", task, "--shots", shots, "--out", tmp_path / task, "--json"]
        result = CliRunner().invoke(cli, ["classify", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        (run,) = json.loads(result.stdout)["groups"][0]["runs"]
        assert run["card"]["n"] == run["card"]["scored"] == 8
        for judged in read_results(tmp_path / task).judged:
            meme, answer = key[judged.meme.id], judged.prediction.said[task]
            if task == "target":
                wanted = (answer_target(TaskInput(meme.text, meme.badge), Ability()),)
                assert max(answer.scores, key=answer.scores.get) == wanted[0]
            else:
                wanted = answer_signs(TaskInput(meme.text, meme.badge, follow=True), Ability())
                assert {sign for sign in SIGNS if answer.scores[sign] > 0.5} == set(wanted)
            assert answer.labels == wanted
            assert judged.prediction.cost.tokens_in > 0
