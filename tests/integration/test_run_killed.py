"""Runs as subprocesses that are killed repeatedly: nothing is lost, nothing is done twice.

The fake model server, on a real socket, puts a digest of the request into each reply, so that the replies in the store
of calls can be compared with the requests made.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter

import pytest

from eval.runs.results import DOCKET, RunFolder
from eval.session.directory import CALLS
from eval.standin.replies import scripted_reply
from eval.standin.server import FakeModelServer
from eval.standin.settings import FEATURES, Settings
from eval.synthetic.make import Layout, make
from serving.docket.store.bodies import unpacked
from tests.support.sizes import FULL
from tests.support.stand_ins import listening

MEMES = 6
CONCURRENCY = 3
TAG = re.compile(r"asked[0-9a-f]{16}")
TAGGED = ("question", "answer", "description", "justification", "rationale")


def tag_of(body):
    return "asked" + hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


class Server:
    """A fake model server in a thread, for as long as the context lasts."""

    def __init__(self, call_s):
        self.tags = []  # tags of requests, in the order in which their answers began
        # Without picture ids: with them, the same request looks different once the server has the picture.
        settings = Settings(call_s=call_s, features=FEATURES - {"picture_ids"})
        self.server = FakeModelServer(settings, keep=True, answer=self.answer)

    def answer(self, body):
        reply_text = scripted_reply(body)
        if reply_text is None:
            return None
        tag = tag_of(body)
        self.tags.append(tag)
        reply = json.loads(reply_text)
        name = next(name for name in TAGGED if name in reply)
        end = "?" if reply[name].endswith("?") else "."
        return json.dumps({**reply, name: f"{reply[name].rstrip('?.')} {tag}{end}"})

    def odds(self):
        """Counts the calls for odds of the Judge by their body."""
        bodies = [json.dumps(b, sort_keys=True) for b in self.server.requests if b.get("logprobs")]
        return Counter(body for body in bodies if "Say hello" not in body)

    def __call__(self):
        return listening(self.server)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a data set whose memes are tried in two to four rounds, and with the home of all runs."""
    folder = tmp_path_factory.mktemp("killed")
    make(folder / "data", Layout.HARMEME, train=16, val=4, test=MEMES)
    test = folder / "data" / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] += f" in {2 + number % 3} rounds"
    test.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "eval", "run", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "MEMECOURT_HOME": str(folder / "home")},
    )


def wait_for_exit(process):
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def start_run(folder, out, *more):
    options = ("--dataset", "synthetic-harmeme", "--data", folder / "data", "--out", out)
    return start(folder, *options, "--concurrency", CONCURRENCY, *more)


def full(url):
    return "--llm-url", url, "--model", "stand-in"


def stored_tags(out):
    """Returns the tags of the replies in the store of calls."""
    if not (out / CALLS).exists():
        return set()
    with contextlib.closing(sqlite3.connect(out / CALLS)) as file:
        bodies = [body for (body,) in file.execute("SELECT body FROM calls")]
    return {tag for body in bodies for tag in TAG.findall(body)}


def trials_and_verdicts(out):
    """Counts the trials and the verdicts in the docket by meme.

    Leaves out trials killed before their text was stored: these can't be resumed, so the meme gets a new trial, while
    the first one stays on record as opened.
    """
    with contextlib.closing(sqlite3.connect(out / DOCKET)) as file:
        trials = file.execute(
            "SELECT trial_id, body FROM entries WHERE kind = 'TrialOpened' AND trial_id IN "
            "(SELECT trial_id FROM entries WHERE kind = 'TextRead')"
        ).fetchall()
        verdict_counts = Counter(t for (t,) in file.execute("SELECT trial_id FROM entries WHERE kind = 'VerdictGiven'"))
    meme_of = {trial: json.loads(unpacked(body))["meme"]["content_id"] for trial, body in trials}
    return Counter(meme_of.values()), Counter(meme_of[trial] for trial in verdict_counts.elements())


def comparable_predictions(out):
    """Returns predictions by meme, without what differs between runs: ids, seconds, and superfluous calls."""
    predictions = RunFolder(out).predictions()
    assert len(predictions) == len({p.meme for p in predictions}) == MEMES
    without = {"trial": "", "cost": None}
    return {p.meme: p.model_copy(update=without) for p in predictions}


def check_complete(out):
    trials, verdict_counts = trials_and_verdicts(out)
    assert set(trials.values()) == {1} and set(verdict_counts.values()) == {1} and len(verdict_counts) == MEMES
    assert RunFolder(out).manifest().finished


@pytest.fixture(scope="module")
def undisturbed(place):
    """Predictions of a full run that is not killed."""
    with Server(call_s=0.0)() as url:
        code, output = wait_for_exit(start_run(place, place / "undisturbed", "--procedure", "full", *full(url)))
    assert code == 0, output
    check_complete(place / "undisturbed")
    return comparable_predictions(place / "undisturbed")


def test_undisturbed_run_has_a_prediction_for_every_meme(undisturbed):
    # The first test, so that the undisturbed run does not count toward the time limits of those below.
    assert len(undisturbed) == MEMES


def wait_for_requests(process, server, number):
    """Waits until the server has got that many requests, or the run is over."""
    end = time.monotonic() + 200
    while len(server.tags) < number and process.poll() is None:
        assert time.monotonic() < end, "the run makes no progress"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "signal_sent,kills",
    [(signal.SIGKILL, 3 if FULL else 1), (signal.SIGINT, 2 if FULL else 1)],
    ids=["killed", "interrupted"],
)
def test_run_ended_repeatedly_makes_no_call_twice_and_predicts_the_same(place, undisturbed, signal_sent, kills):
    out = place / f"ended-{signal_sent.name}"
    server, rng = Server(call_s=0.06), random.Random(signal_sent.name)
    in_flight = 0
    with server() as url:
        process = start_run(place, out, "--procedure", "full", *full(url))
        for _ in range(kills):
            requests_before, stored_before = len(server.tags), stored_tags(out)
            wait_for_requests(process, server, requests_before + rng.randrange(8, 24))
            process.send_signal(signal_sent)
            code, output = wait_for_exit(process)
            assert code == (-signal.SIGKILL if signal_sent is signal.SIGKILL else 130), f"not ended: {code}, {output}"
            if signal_sent is signal.SIGINT:
                assert "the same command goes on" in output
            # No call stored before this process began is made by it.
            assert not stored_before & set(server.tags[requests_before:])
            in_flight += len(set(server.tags[requests_before:]) - stored_tags(out))
            process = start_run(place, out, "--procedure", "full", *full(url))
        requests_before, stored_before = len(server.tags), stored_tags(out)
        code, output = wait_for_exit(process)
        assert code == 0, output
        assert stored_before and not stored_before & set(server.tags[requests_before:])
    # Only calls in flight when a process ended are made more than once.
    assert len(server.tags) - len(set(server.tags)) <= in_flight
    odds = server.odds()
    assert sum(odds.values()) - len(odds) <= kills * CONCURRENCY
    check_complete(out)
    assert RunFolder(out).manifest().interruptions == kills
    assert comparable_predictions(out) == undisturbed


def test_killed_summary_run_starts_over_or_resumes_and_predicts_the_same(place):
    whole = place / "summary"
    process = start_run(place, whole)
    while process.poll() is None and not (whole / ".starting").exists():
        time.sleep(0.002)
    process.kill()
    wait_for_exit(process)
    assert not (whole / "manifest.json").exists(), "killed during its setup"
    code, output = wait_for_exit(start_run(place, whole))
    assert code == 0, output
    check_complete(whole)
    out, judged = place / "summary-killed", 0
    process = start_run(place, out)
    for number in (1, 3) if FULL else (2,):
        # Kill it once more memes are judged than at the last kill, or when it is done.
        while process.poll() is None and judged < number:
            with contextlib.suppress(FileNotFoundError):
                judged = (out / "predictions.jsonl").read_bytes().count(b"\n")
            time.sleep(0.002)
        process.kill()
        wait_for_exit(process)
        process = start_run(place, out)
    code, output = wait_for_exit(process)
    assert code == 0, output
    check_complete(out)
    assert comparable_predictions(out) == comparable_predictions(whole)
