"""Tests of the Ray code that needs no cluster: connection errors and results received from workers."""

import importlib.util
import pickle
import socket
import tarfile
from dataclasses import replace
from io import BytesIO

import pytest

from court.errors import BadRequest, NotLoaded, Unavailable
from court.meme import Frame, Picture, PictureFormat
from court.record import TrialRecord
from eval.datasets.items import Outcome, Prediction
from eval.models.call_cache import CallsError
from eval.runs import ray_cluster
from eval.runs.ray_cluster import JudgeTask, OneTrial, TaskResult, connected, packed, received
from serving.docket.open import Docket
from tests.support.cast import Cast, try_meme
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


async def test_second_answer_for_a_meme_is_ignored(tmp_path, record):
    prediction = Prediction(meme="a", outcome=Outcome.HARMFUL, trial=record.trial_id)

    async def answers():
        for _ in range(2):
            yield TaskResult("a", prediction, events=record.events)
        # A failed second attempt at an answered meme does not end the run either.
        yield TaskResult("a", fault=Unavailable("It died.", reason="X"))

    docket, waiting = Docket.open(tmp_path / "docket.sqlite"), {"a": meme("a", True)}
    try:
        trials = [found.trial async for _, found, _ in received(answers(), waiting, docket.writer)]
        stored, lines = await docket.trials.record(record.trial_id), await docket.index.list(limit=9)
    finally:
        await docket.close()
    assert trials == [record.trial_id] == [line.trial_id for line in lines]
    assert stored == record and not waiting


async def test_worker_fault_ends_the_run_with_its_message_and_reason(tmp_path):
    async def answers():
        yield TaskResult("a", fault=Unavailable("The library is damaged.", reason="LIBRARY_DAMAGED"))

    docket = Docket.open(tmp_path / "docket.sqlite")
    try:
        with pytest.raises(Unavailable, match="The library is damaged") as error:
            await anext(received(answers(), {"a": meme("a", True)}, docket.writer))
    finally:
        await docket.close()
    assert error.value.reason == "LIBRARY_DAMAGED"


def test_tasks_and_results_survive_the_way_to_a_worker(record):
    for sent in (
        JudgeTask(meme("a", True), record, (bytes(range(256)), b"")),
        TaskResult("a", events=record.events, fault=CallsError("The store is full.")),
    ):
        received_there = pickle.loads(pickle.dumps(sent))  # noqa: S301 - bytes of our own
        fault = getattr(received_there, "fault", None)
        assert fault is None or (fault.message, fault.reason) == (sent.fault.message, sent.fault.reason)
        assert replace(received_there, **({"fault": sent.fault} if fault else {})) == sent


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
        docket = OneTrial(JudgeTask(meme("a", True), known and TrialRecord.of(record.events[:known])))
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
