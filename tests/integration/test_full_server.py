"""Full trials over a real socket: the real server and the real model client, with a fake model server.

The model server is a subprocess that can be killed. tests/live sends the same requests to a real vLLM.
"""

import concurrent.futures
import os
import subprocess
import sys

import grpc
import pytest

from court.events import TrialResumed
from court.record import TrialState
from memecourt.client import JudgeError
from tests.support.server import FULL, HARMFUL, ModelServer, ask, drawn, memecourt, records


@pytest.fixture
def models():
    server = ModelServer("--call-s", "0.15")
    yield server
    if server.process.poll() is None:
        server.kill()


def test_trial_cut_off_by_a_dead_model_server_fails_and_can_be_resumed(start, models, home):
    options = ("--llm-url", models.url, "--model", "stand-in")
    server = start(None, *options).ready()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(ask, server.address, procedure=FULL)
        server.wait_for(lambda line: "event=AnswerGiven" in line)
        models.kill()
        with pytest.raises(JudgeError) as caught:
            pending.result()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert caught.value.reason == "MODEL_GONE" and caught.value.retry_after is not None
    trial_id = caught.value.metadata["trial_id"]
    (failed,) = records(server.docket, trial_id)
    assert failed.state is TrialState.FAILED and failed.verdict is None
    server.end()

    models.start()
    resumed = memecourt("records", "resume", trial_id, "--docket", server.docket, *options, home=home)
    assert resumed.returncode == 0, resumed.stderr
    (record,) = records(server.docket, trial_id)
    assert record.state is TrialState.DECIDED
    assert record.events[: len(failed.events)] == failed.events
    assert len(record.all(TrialResumed)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--procedure", "full"), "needs chat models"), (("--model", "stand-in"), "a model but no server")],
)
def test_incomplete_model_options_end_with_a_clear_error(options, message, home, tmp_path):
    outcome = memecourt("serve", "--address", "127.0.0.1:0", "--docket", tmp_path / "d.sqlite", *options, home=home)
    assert outcome.returncode == 1
    assert message in outcome.stderr and "Error: " in outcome.stderr and "Traceback" not in outcome.stderr


def test_watched_trial_prints_its_events_in_the_terminal(models, home, tmp_path):
    picture = tmp_path / "meme.png"
    picture.write_bytes(drawn(*HARMFUL))
    options = ("--procedure", "full", "--watch", "--llm-url", models.url, "--model", "stand-in")
    outcome = subprocess.run(
        [sys.executable, "-m", "serving.cli", "judge", "--text", "x", str(picture), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "MEMECOURT_HOME": str(home), "MEMECOURT_DOCKET": str(tmp_path / "d.sqlite")},
        timeout=200,
    )
    assert outcome.returncode == 12
    for kind in ("Described", "QuestionAsked", "AnswerGiven", "Summarised", "SideRested", "VerdictGiven"):
        assert kind in outcome.stderr
    assert "HARMFUL" in outcome.stdout
