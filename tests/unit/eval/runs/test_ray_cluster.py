"""Tests of the Ray code that needs no cluster: connection errors, and memes sent to workers."""

import asyncio
import importlib.util
import pickle
import socket
import tarfile
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import pytest

from court.errors import BadRequest, NotLoaded, Unavailable
from court.meme import Frame, Picture, PictureFormat
from court.record import TrialRecord
from eval.datasets.items import Outcome, Prediction
from eval.models.call_cache import CallsError
from eval.runs import ray_cluster
from eval.runs.ray_cluster import ClusterSolver, JudgeTask, OneTrial, TaskResult, connected, packed
from eval.session.engine import Tried
from eval.solvers.calls import MemeItem
from tests.support.cast import Cast, try_meme
from tests.support.dockets import opened_docket
from tests.support.judged import meme


async def connect(address):
    async with connected(address, concurrency=1):
        pytest.fail("there is no cluster there")


@pytest.fixture
def silent_listener():
    """A port that accepts connections and never sends a byte."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("address", ["auto", "somewhere", "ray://somewhere:10001", "somewhere:", "a b:1"])
async def test_malformed_addresses_are_rejected(address):
    with pytest.raises(BadRequest, match="HOST:PORT"):
        await connect(address)


async def test_connecting_to_a_port_without_a_listener_fails():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match="No Ray cluster can be reached") as error:
            await connect(address)
    assert error.value.reason == "RAY_UNREACHABLE"


async def test_connecting_to_a_silent_listener_times_out(silent_listener, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_ANSWERS_S", 0.3)
    with pytest.raises(Unavailable, match="No Ray cluster can be reached"):
        await connect(silent_listener)


async def test_missing_ray_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotLoaded, match=r"pip install 'memecourt\[ray\]'"):
        await connect("127.0.0.1:6379")


@pytest.fixture(scope="module")
def record():
    """Record of a whole trial."""
    return try_meme(Cast())


class Worker:
    """A worker whose calls give these answers in turn; an exception is raised."""

    def __init__(self, *answers, opens=()):
        self.answers, self.opens, self.asked = list(answers), list(opens), []
        self.judge = SimpleNamespace(remote=self._judged)
        self.open = SimpleNamespace(remote=self._opened)

    async def _judged(self, task):
        self.asked.append(task)
        return self._answer(self.answers)

    async def _opened(self):
        return self._answer(self.opens)

    def _answer(self, answers):
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def killed(monkeypatch):
    """Workers that were killed, in order."""
    ray, killed = pytest.importorskip("ray"), []
    monkeypatch.setattr(ray, "kill", killed.append)
    return killed


def cluster_of(start, docket=None):
    local = SimpleNamespace(stored=SimpleNamespace(executor=SimpleNamespace(docket=docket)))
    return ClusterSolver(local, start, 1, 1)


async def solved(docket, *workers, record=None):
    async def picture():
        return b"picture"

    starts = partial(next, iter(workers))
    return await cluster_of(starts, docket).solve(MemeItem(meme("a", True), picture), record)


async def test_trial_of_a_worker_is_stored_before_its_prediction_is_used(tmp_path, record):
    pytest.importorskip("ray")
    tried = Tried(Prediction(meme="a", outcome=Outcome.HARMFUL, trial=record.trial_id))
    worker = Worker(TaskResult(tried, record.events))
    async with opened_docket(tmp_path / "docket.sqlite") as docket:
        assert await solved(docket, worker) is tried
        assert await docket.trials.record(record.trial_id) == record
    assert worker.asked == [JudgeTask(meme("a", True), b"picture")]


async def test_meme_of_a_dead_worker_is_sent_to_another_until_too_many_died(tmp_path, killed):
    from ray.exceptions import ActorUnavailableError, ObjectLostError, OutOfMemoryError, RayActorError

    tried = Tried(Prediction(meme="a", outcome=Outcome.HARMFUL))
    lost = [
        ActorUnavailableError("lost", None),
        ObjectLostError("", None, ""),
        OutOfMemoryError("full"),
        RayActorError(),
    ]
    dead = [Worker(opens=[OutOfMemoryError("full")]), *(Worker(error) for error in (*lost, RayActorError()))]
    async with opened_docket(tmp_path / "docket.sqlite") as docket:
        assert await solved(docket, *dead[:5], Worker(TaskResult(tried))) is tried
        # Also those that may only seem dead: they would go on beside the one in their place.
        assert killed == dead[:5]
        with pytest.raises(Unavailable, match="trying a died 5 times") as error:
            await solved(docket, *dead, *dead)
    assert error.value.reason == "WORKERS_DIE"


async def test_stopped_worker_that_was_opening_is_not_replaced(killed):
    from ray.exceptions import RayActorError

    ended, started = asyncio.Event(), []

    async def opened():
        await ended.wait()
        raise RayActorError

    def start():
        started.append(SimpleNamespace(open=SimpleNamespace(remote=opened)))
        return started[-1]

    cluster = cluster_of(start)
    await asyncio.sleep(0)
    cluster.stop()
    ended.set()
    await asyncio.sleep(0.01)
    assert killed == started and len(started) == 1


async def test_worker_that_cannot_be_started_ends_the_run():
    pytest.importorskip("ray")
    with pytest.raises(Unavailable, match="could not go on") as error:
        await asyncio.wait_for(solved(None), 10)  # there is none to start
    assert error.value.reason == "RAY_FAILED"


@pytest.mark.parametrize("at", ["judging", "opening"])
async def test_worker_fault_ends_the_run_with_its_message_and_reason(at):
    pytest.importorskip("ray")
    fault = Unavailable("The library is damaged.", reason="LIBRARY_DAMAGED")
    with pytest.raises(Unavailable, match="can't judge: The library is damaged") as error:
        await solved(None, Worker(fault) if at == "judging" else Worker(opens=[fault]))
    assert error.value.reason == "LIBRARY_DAMAGED"


def test_tasks_and_faults_survive_the_way_to_a_worker(record):
    task = JudgeTask(meme("a", True), b"picture", record, (bytes(range(256)), b""))
    fault = CallsError("The store is full.")
    sent = pickle.loads(pickle.dumps((task, fault)))  # noqa: S301 - bytes of our own
    assert sent[0] == task and (sent[1].message, sent[1].reason) == (fault.message, fault.reason)


async def test_docket_of_one_trial_reports_the_added_events_and_frames(record):
    picture = Picture(
        format=PictureFormat.PNG,
        bytes_sha256=record.opened.meme.bytes_sha256,
        pixels_sha256=record.opened.meme.pixels_sha256,
        width=1,
        height=1,
        frame_count=1,
        frames=(Frame(b"png", 1, 1, 0),),
    )

    async def judged(known):
        docket = OneTrial(JudgeTask(meme("a", True), known=known and TrialRecord.of(record.events[:known])))
        if not known:
            await docket.keep_picture(picture)
        for event in record.events[known:]:
            await docket.append(event)
        return docket.added, docket.frames_added, await docket.record(record.trial_id)

    assert await judged(0) == (list(record.events), (b"png",), record)
    assert await judged(3) == (list(record.events[3:]), (), record)


def test_packed_library_is_complete_but_without_lock_files(tmp_path):
    library = tmp_path / "library"
    (library / "parts").mkdir(parents=True)
    (library / "parts" / "rows").write_bytes(b"\1\2")
    (library / "CURRENT").write_text("x")
    (library / ".lock").touch()
    with tarfile.open(fileobj=BytesIO(packed(library))) as tar:
        assert sorted(tar.getnames()) == ["CURRENT", "parts/rows"]
