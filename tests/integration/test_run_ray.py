"""Runs on a Ray cluster of two nodes whose workers are killed predict the same as runs without a cluster.

The cluster consists of processes on this machine, with a token of its own. This process does not import Ray.
"""

import contextlib
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from eval.runs.results import DOCKET, RunFolder
from eval.synthetic.make import Layout, make
from serving.models.vllm import free_port
from tests.support.ray_nodes import ray_nodes
from tests.support.sizes import FULL

pytest.importorskip("pyarrow")

MEMES = 10_000 if FULL else 40
FULL_MEMES = 8
ENDS_S = 3600 if FULL else 240  # a process that takes longer counts as hung


class Process:
    """A subprocess and its output, line by line while it runs."""

    def __init__(self, command, env):
        self.lines = []
        self.process = subprocess.Popen(
            list(map(str, command)),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self):
        return "".join(self.lines)

    def wait_for(self, text):
        """Waits until the output contains some text."""
        end = time.monotonic() + ENDS_S
        while text not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def wait_for_exit(self):
        """Waits for the end of the process and returns the exit code."""
        try:
            code = self.process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)
            pytest.fail(f"the process hangs: {self.output}")
        self.reader.join(60)
        return code

    def stop(self, signal_number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster():
    with ray_nodes(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("ray")
    make(place / "data", Layout.HARMEME, train=24, val=4, test=MEMES)
    make(place / "few", Layout.HARMEME, train=24, val=4, test=FULL_MEMES)
    return place


def run(place, env, *arguments):
    return Process((sys.executable, "-m", "eval", "run", *arguments), {**env, "MEMECOURT_HOME": str(place / "home")})


def run_options(place, data, out):
    return "--dataset", "synthetic-harmeme", "--data", place / data, "--out", place / out, "--concurrency", "4"


def prediction_count(out):
    path = out / "predictions.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_a_worker(cluster, process, out, memes):
    """Kills a worker with SIGKILL once some but not all memes are judged; waits for both workers if time allows.

    The workers need not start together: on a busy machine one judges before the other is up.
    """
    end = time.monotonic() + ENDS_S
    while not (done := prediction_count(out)) or (len(cluster.workers()) < 2 and done < memes // 3):
        assert process.process.poll() is None and time.monotonic() < end, process.output
        time.sleep(0.01)
    os.kill(cluster.workers()[-1], signal.SIGKILL)  # the newest: one of the previous run may still be ending
    return prediction_count(out)


def comparable_predictions(out):
    """Returns predictions by meme, without ids, seconds, and superfluous calls."""
    found = RunFolder(out).predictions()
    assert len(found) == len({p.meme for p in found})
    return {p.meme: p.model_copy(update={"trial": "", "cost": None}) for p in found}


def check_docket(out, memes):
    """Checks that each meme has one trial with verdict and picture, the one that its prediction names."""
    trials = {p.trial for p in RunFolder(out).predictions()}
    with contextlib.closing(sqlite3.connect(out / DOCKET)) as file:
        kinds = Counter(kind for (kind,) in file.execute("SELECT kind FROM entries WHERE seq >= 0"))
        assert {trial for (trial,) in file.execute("SELECT trial_id FROM entries WHERE seq >= 0")} == trials
        (gaps,) = file.execute(
            "SELECT count(*) FROM (SELECT 1 FROM entries WHERE seq >= 0 "
            "GROUP BY trial_id HAVING max(seq) - min(seq) + 1 <> count(*))"
        ).fetchone()
    picture_count = len({path.name.partition(".")[0] for path in (out / f"{DOCKET}-pictures").rglob("*.png")})
    assert len(trials) == kinds["TrialOpened"] == kinds["VerdictGiven"] == picture_count == memes
    assert gaps == 0


def check_workers_left_no_files(cluster):
    assert not list(cluster.tmp.glob("memecourt-ray-*"))


def test_full_ray_run_fails_without_its_model_server_and_can_be_resumed(cluster, place):
    port, key = free_port("127.0.0.1"), secrets.token_hex(8)
    played = ("--play", "synthetic", "--port", port, "--api-key", key)
    model_server = (sys.executable, "-m", "eval.standin.server", *played)
    url = ("--llm-url", f"http://127.0.0.1:{port}/v1", "--model", "stand-in")
    env = {**cluster.env, "MEMECOURT_LLM__API_KEY": key}
    server = Process((*model_server, "--call-s", "0.2"), os.environ)
    try:
        server.wait_for("port")
        out = place / "full-there"
        words = (*run_options(place, "few", "full-there"), "--procedure", "full", *url, "--ray", cluster.address)
        ray_run = run(place, env, *words)
        ray_run.wait_for("0 of them judged before")  # the court is open in the driver, and not yet on the nodes
        server.stop()
        assert ray_run.wait_for_exit() == 1, ray_run.output
        ray_run.stop()
        assert "Error: A worker of the Ray cluster can't judge: " in ray_run.output
        assert key not in ray_run.output
        assert not RunFolder(out).manifest().finished

        server = Process((*model_server, "--call-s", "0.2"), os.environ)
        server.wait_for("port")
        ray_run = run(place, env, *words)
        judged = kill_a_worker(cluster, ray_run, out, FULL_MEMES)
        assert ray_run.wait_for_exit() == 0, ray_run.output
        ray_run.stop()
        assert judged < FULL_MEMES
        local_run = run(place, env, *run_options(place, "few", "full-here"), "--procedure", "full", *url)
        assert local_run.wait_for_exit() == 0, local_run.output
        local_run.stop()
    finally:
        server.stop()
    assert comparable_predictions(out) == comparable_predictions(place / "full-here")
    check_docket(out, FULL_MEMES)
    # A repeated trial takes its first calls from the store.
    assert sum(p.cost.stored for p in RunFolder(out).predictions()) > 0
    assert key not in (out / "manifest.json").read_text()
    check_workers_left_no_files(cluster)


def test_run_predicts_the_same_as_a_local_run_though_a_node_dies(cluster, place):
    """The head lives on the machine of the run; the other node is killed with its worker while both judge.

    The last test of the cluster, which is a node short from here on.
    """
    local_run = run(place, os.environ, *run_options(place, "data", "here"))
    assert local_run.wait_for_exit() == 0, local_run.output
    local_run.stop()
    out = place / "there"
    ray_run = run(place, cluster.env, *run_options(place, "data", "there"), "--ray", cluster.address)
    end = time.monotonic() + ENDS_S
    while len(cluster.workers()) < 2 or not prediction_count(out):
        assert ray_run.process.poll() is None and time.monotonic() < end, ray_run.output
        time.sleep(0.01)
    cluster.kill(cluster.nodes[1])
    judged = prediction_count(out)
    assert ray_run.wait_for_exit() == 0, ray_run.output
    ray_run.stop()
    assert 0 < judged < MEMES
    assert comparable_predictions(out) == comparable_predictions(place / "here")
    check_docket(out, MEMES)
    assert RunFolder(out).manifest().finished
    assert cluster.env["RAY_AUTH_TOKEN"] not in RunFolder(out).manifest().model_dump_json()
    check_workers_left_no_files(cluster)
