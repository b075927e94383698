"""Runs on a Ray cluster of two nodes, whose workers are killed: they say what a run without a cluster says, once.

The cluster is of processes of ours on this machine, with a token of its own. Ray is not loaded into this process.
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

from eval.perf.ray_batch import compare_jobs
from eval.perf.ray_nodes import ray_nodes
from eval.runs.folder import DOCKET, RunFolder
from eval.synthetic.make import Layout, make
from serving.models.vllm import free_port

pytestmark = pytest.mark.integration
pytest.importorskip("pyarrow")

MEMES = 24
FULL_MEMES = 8
ENDS_S = 240  # what takes longer hangs


class Started:
    """A process of ours, and what it says: line by line, while it runs."""

    def __init__(self, words, env):
        self.lines = []
        self.process = subprocess.Popen(
            list(map(str, words)),
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
    def said(self):
        return "".join(self.lines)

    def says(self, words):
        """Waits until it has said so."""
        end = time.monotonic() + ENDS_S
        while words not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.02)

    def ends(self):
        """Its exit code."""
        try:
            code = self.process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)
            pytest.fail(f"it hangs: {self.said}")
        self.reader.join(60)
        return code

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
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


def run(place, env, *words):
    return Started((sys.executable, "-m", "eval", "run", *words), {**env, "MEMECOURT_HOME": str(place / "home")})


def given(place, data, out):
    return "--dataset", "synthetic-harmeme", "--data", place / data, "--out", place / out, "--concurrency", "4"


def predictions(out):
    path = out / "predictions.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_one(cluster, process, out, memes):
    """Kills a worker by SIGKILL as soon as some memes, and not all, have been judged; beside another, if there is time.

    Nobody promises that both workers begin at once: on a busy machine one judges before the other is there.
    """
    end = time.monotonic() + ENDS_S
    while not (done := predictions(out)) or (len(cluster.workers()) < 2 and done < memes // 3):
        assert process.process.poll() is None and time.monotonic() < end, process.said
        time.sleep(0.01)
    os.kill(cluster.workers()[-1], signal.SIGKILL)  # the newest: one of a run before may be ending yet
    return predictions(out)


def said(out):
    """Predictions by meme, without ids, seconds, and calls that turned out superfluous."""
    all_of_them = RunFolder(out).predictions()
    assert len(all_of_them) == len({p.meme for p in all_of_them})
    return {p.meme: (p.model_copy(update={"trial": "", "cost": None}), p.cost.chain) for p in all_of_them}


def check_docket(out, memes):
    """One trial a meme, with its verdict and picture, each the one that the prediction names."""
    trials = {p.trial for p in RunFolder(out).predictions()}
    with contextlib.closing(sqlite3.connect(out / DOCKET)) as file:
        kinds = Counter(kind for (kind,) in file.execute("SELECT kind FROM entries WHERE seq >= 0"))
        assert {trial for (trial,) in file.execute("SELECT trial_id FROM entries WHERE seq >= 0")} == trials
        (gaps,) = file.execute(
            "SELECT count(*) FROM (SELECT 1 FROM entries WHERE seq >= 0 "
            "GROUP BY trial_id HAVING max(seq) - min(seq) + 1 <> count(*))"
        ).fetchone()
    kept = len({path.name.partition(".")[0] for path in (out / f"{DOCKET}-pictures").rglob("*.png")})
    assert len(trials) == kinds["TrialOpened"] == kinds["VerdictGiven"] == kept == memes
    assert gaps == 0


def nothing_is_left_of_texts_and_pictures(cluster):
    assert not list(cluster.tmp.glob("memecourt-ray-*"))


def test_a_run_on_a_cluster_of_which_a_worker_is_killed_says_what_a_run_here_says(cluster, place):
    here = run(place, os.environ, *given(place, "data", "here"))
    assert here.ends() == 0, here.said
    here.stop()
    there = run(place, cluster.env, *given(place, "data", "there"), "--ray", cluster.address)
    judged = kill_one(cluster, there, place / "there", MEMES)
    assert there.ends() == 0, there.said
    there.stop()
    assert judged < MEMES
    assert said(place / "there") == said(place / "here")
    check_docket(place / "there", MEMES)
    assert RunFolder(place / "there").manifest().finished
    assert cluster.env["RAY_AUTH_TOKEN"] not in RunFolder(place / "there").manifest().model_dump_json()
    nothing_is_left_of_texts_and_pictures(cluster)


def test_a_full_run_ends_with_its_model_server_and_goes_on_without_asking_anything_twice(cluster, place):
    port, key = free_port("127.0.0.1"), secrets.token_hex(8)
    stand_in = (
        sys.executable,
        "-m",
        "eval.perf.model_server.server",
        "--play",
        "synthetic",
        "--port",
        port,
        "--api-key",
        key,
    )
    url = ("--llm-url", f"http://127.0.0.1:{port}/v1", "--model", "stand-in")
    env = {**cluster.env, "MEMECOURT_LLM__API_KEY": key}
    server = Started((*stand_in, "--call-s", "0.2"), os.environ)
    try:
        server.says("port")
        out = place / "full-there"
        there = run(
            place, env, *given(place, "few", "full-there"), "--procedure", "full", *url, "--ray", cluster.address
        )
        there.says("0 of them judged before")  # the court is open here, and not yet on the nodes
        server.stop()
        assert there.ends() == 1, there.said
        there.stop()
        assert "Error: A worker of the Ray cluster can't judge: " in there.said
        assert key not in there.said
        assert not RunFolder(out).manifest().finished

        server = Started((*stand_in, "--call-s", "0.2"), os.environ)
        server.says("port")
        there = run(place, env, "--resume", out, "--concurrency", "4", *url, "--ray", cluster.address)
        judged = kill_one(cluster, there, out, FULL_MEMES)
        assert there.ends() == 0, there.said
        there.stop()
        assert judged < FULL_MEMES
        here = run(place, env, *given(place, "few", "full-here"), "--procedure", "full", *url)
        assert here.ends() == 0, here.said
        here.stop()
    finally:
        server.stop()
    assert said(out) == said(place / "full-here")
    check_docket(out, FULL_MEMES)
    # A trial that was held again has its first calls from the store.
    assert sum(p.cost.stored for p in RunFolder(out).predictions()) > 0
    assert key not in (out / "manifest.json").read_text()
    nothing_is_left_of_texts_and_pictures(cluster)


def test_the_benchmark_counts_what_a_kill_loses(cluster, tmp_path):
    result = compare_jobs(cluster, tmp_path, MEMES)
    assert result.holds, result.figures
    assert result.figures["ray_over_here"] > 0
    nothing_is_left_of_texts_and_pictures(cluster)
