"""Runs as processes of their own that are killed again and again: nothing is lost, nothing is done twice.

The model server is the stand-in behind a real socket; it plays its part and puts into each reply the digest of the
request that it answers, so that what the store of calls holds can be held against what was asked.
"""

import asyncio
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
import threading
import time
from collections import Counter

import pytest

from eval.perf.model_server.replies import scripted_reply
from eval.perf.model_server.server import FakeModelServer, serving
from eval.perf.model_server.settings import FEATURES, Settings
from eval.runs.folder import CALLS, DOCKET, RunFolder
from eval.synthetic.make import Layout, make
from serving.docket.store.bodies import unpacked
from tests.support.sizes import FULL

pytestmark = pytest.mark.integration

MEMES = 6
CONCURRENCY = 3
TAG = re.compile(r"asked[0-9a-f]{16}")
TAGGED = ("question", "answer", "description", "justification", "rationale")


def tag_of(body):
    return "asked" + hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


class Server:
    """A stand-in in a thread of its own, for as long as the context lasts."""

    def __init__(self, call_s):
        self.asked = []  # tags, in the order in which calls were begun to be answered
        # Without ids of pictures: with them, the same request looks different once the server has the picture.
        settings = Settings(call_s=call_s, features=FEATURES - {"picture_ids"})
        self.server = FakeModelServer(settings, keep=True, answer=self.answer)

    def answer(self, body):
        said = scripted_reply(body)
        if said is None:
            return None
        tag = tag_of(body)
        self.asked.append(tag)
        reply = json.loads(said)
        name = next(name for name in TAGGED if name in reply)
        end = "?" if reply[name].endswith("?") else "."
        return json.dumps({**reply, name: f"{reply[name].rstrip('?.')} {tag}{end}"})

    def odds(self):
        """Bodies of calls for odds of the Judge."""
        bodies = [json.dumps(b, sort_keys=True) for b in self.server.requests if b.get("logprobs")]
        return Counter(body for body in bodies if "Say hello" not in body)

    @contextlib.contextmanager
    def __call__(self):
        listening, port, done = threading.Event(), [], []

        async def serve():
            end = asyncio.Event()
            done.append((asyncio.get_running_loop(), end))
            async with serving(self.server) as number:
                port.append(number)
                listening.set()
                await end.wait()

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        assert listening.wait(120)
        try:
            yield f"http://127.0.0.1:{port[0]}/v1"
        finally:
            loop, end = done[0]
            loop.call_soon_threadsafe(end.set)
            thread.join()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set whose memes are tried in two to four rounds, and a home that runs share."""
    place = tmp_path_factory.mktemp("killed")
    make(place / "data", Layout.HARMEME, train=16, val=4, test=MEMES)
    test = place / "data" / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] += f" in {2 + number % 3} rounds"
    test.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def start(place, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "eval", "run", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "MEMECOURT_HOME": str(place / "home")},
    )


def to_the_end(process):
    said, _ = process.communicate(timeout=240)
    return process.returncode, said


def anew(place, out, *words):
    given = ("--dataset", "synthetic-harmeme", "--data", place / "data", "--out", out)
    return start(place, *given, "--concurrency", CONCURRENCY, *words)


def again(place, out, *words):
    return start(place, "--resume", out, "--concurrency", CONCURRENCY, *words)


def full(url):
    return "--llm-url", url, "--model", "stand-in"


def kept(out):
    """Tags of the replies that the store of calls holds."""
    if not (out / CALLS).exists():
        return set()
    with contextlib.closing(sqlite3.connect(out / CALLS)) as file:
        bodies = [body for (body,) in file.execute("SELECT body FROM calls")]
    return {tag for body in bodies for tag in TAG.findall(body)}


def verdicts(out):
    """How many trials and verdicts the docket holds per meme.

    A trial that was killed before its text was kept has nothing to go on from: the meme is tried anew, and that the
    first one was opened stays on record. Such a trial is none here.
    """
    with contextlib.closing(sqlite3.connect(out / DOCKET)) as file:
        trials = file.execute(
            "SELECT trial_id, body FROM entries WHERE kind = 'TrialOpened' AND trial_id IN "
            "(SELECT trial_id FROM entries WHERE kind = 'TextRead')"
        ).fetchall()
        given = Counter(t for (t,) in file.execute("SELECT trial_id FROM entries WHERE kind = 'VerdictGiven'"))
    of = {trial: json.loads(unpacked(body))["meme"]["content_id"] for trial, body in trials}
    return Counter(of.values()), Counter(of[trial] for trial in given.elements())


def what_was_said(out):
    """Predictions by meme, without what depends on the hour: ids, seconds, and calls that turned out superfluous."""
    said = RunFolder(out).predictions()
    assert len(said) == len({p.meme for p in said}) == MEMES
    hours = {"trial": "", "cost": None}
    return {p.meme: (p.model_copy(update=hours), p.cost.chain) for p in said}


def check_whole(out):
    trials, given = verdicts(out)
    assert set(trials.values()) == {1} and set(given.values()) == {1} and len(given) == MEMES
    assert RunFolder(out).manifest().finished


@pytest.fixture(scope="module")
def undisturbed(place):
    """What a full run says that nobody kills."""
    with Server(call_s=0.0)() as url:
        code, said = to_the_end(anew(place, place / "undisturbed", "--procedure", "full", *full(url)))
    assert code == 0, said
    check_whole(place / "undisturbed")
    return what_was_said(place / "undisturbed")


def test_a_run_that_nobody_ends_says_something_of_every_meme(undisturbed):
    # First of all, so that the time this takes is not that of the tests below.
    assert len(undisturbed) == MEMES
    chains = {chain for _, chain in undisturbed.values()}
    assert chains == {1 + 2 * rounds + 1 + 2 for rounds in (2, 3, 4)}  # D, R (q + a), s, and two calls for odds


def when_begun(process, server, number):
    """Waits until the server has been asked so often, or the run is over."""
    end = time.monotonic() + 200
    while len(server.asked) < number and process.poll() is None:
        assert time.monotonic() < end, "the run does not get on"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "how,times",
    [(signal.SIGKILL, 3 if FULL else 1), (signal.SIGINT, 2 if FULL else 1)],
    ids=["killed", "interrupted"],
)
def test_a_run_that_is_ended_again_and_again_asks_nothing_twice_and_says_the_same(place, undisturbed, how, times):
    out = place / f"ended-{how.name}"
    server, chance = Server(call_s=0.06), random.Random(how.name)
    in_flight = 0
    with server() as url:
        process = anew(place, out, "--procedure", "full", *full(url))
        for _ in range(times):
            begun, before = len(server.asked), kept(out)
            when_begun(process, server, begun + chance.randrange(8, 24))
            process.send_signal(how)
            code, said = to_the_end(process)
            assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130), f"not ended: {code}, {said}"
            if how is signal.SIGINT:
                assert f"memecourt-eval run --resume {out}" in said
            # Nothing that was kept before this process began has been asked by it.
            assert not before & set(server.asked[begun:])
            in_flight += len(set(server.asked[begun:]) - kept(out))
            process = again(place, out, *full(url))
        begun, before = len(server.asked), kept(out)
        code, said = to_the_end(process)
        assert code == 0, said
        assert before and not before & set(server.asked[begun:])
    # Only what was on its way when a process ended was asked more than once.
    assert len(server.asked) - len(set(server.asked)) <= in_flight
    odds = server.odds()
    assert sum(odds.values()) - len(odds) <= times * CONCURRENCY
    check_whole(out)
    assert RunFolder(out).manifest().interruptions == times
    assert what_was_said(out) == undisturbed


def test_a_summary_run_that_is_killed_goes_on_and_says_the_same(place):
    code, said = to_the_end(anew(place, place / "summary"))
    assert code == 0, said
    out, seen = place / "summary-killed", 0
    process = anew(place, out)
    for number in (1, 3):
        # Once more of the memes are judged than when it was killed last, or at the latest when it is done.
        while process.poll() is None and seen < number:
            with contextlib.suppress(FileNotFoundError):
                seen = (out / "predictions.jsonl").read_bytes().count(b"\n")
            time.sleep(0.002)
        process.kill()
        to_the_end(process)
        process = again(place, out)
    code, said = to_the_end(process)
    assert code == 0, said
    check_whole(out)
    assert what_was_said(out) == what_was_said(place / "summary")


def test_a_run_that_is_killed_before_it_has_begun_is_begun_anew(place):
    out = place / "early"
    process = anew(place, out)
    while process.poll() is None and not (out / ".starting").exists():
        time.sleep(0.002)
    process.kill()
    to_the_end(process)
    assert not (out / "manifest.json").exists()
    code, said = to_the_end(anew(place, out))
    assert code == 0, said
    check_whole(out)
