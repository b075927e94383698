"""Tests of sessions: folders with their manifests, and the loop that works on their items."""

import asyncio
import json
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel, Field

from court.errors import BadRequest, Unavailable
from eval.arena.folder import ArenaFolder
from eval.probe.folder import ProbeFolder
from eval.runs.results import RunFolder
from eval.session import directory, engine
from eval.session.directory import LOCK, SessionFolder, SessionManifest
from eval.session.engine import Later, Patience, Results, Tried, Watch, patiently, run_items
from eval.studies.arms import StudyFolder
from eval.witness.run import WitnessFolder
from tests.support.virtual_time import run as run_virtually

FOLDERS = [ArenaFolder, ProbeFolder, RunFolder, StudyFolder, WitnessFolder]


class CountManifest(SessionManifest):
    count: int
    limits: dict[str, int] = Field(default_factory=dict)
    place: str = ""


class CountFolder(SessionFolder[CountManifest]):
    what = "count"
    manifest_type = CountManifest
    changes = frozenset({"place"})


class Squared(BaseModel):
    number: int
    square: int


def manifest(**values):
    return CountManifest(created=datetime(2026, 1, 2, tzinfo=UTC), software="test", **{"count": 3, **values})


# -- Folders -----------------------------------------------------------------------------------------------------------


def test_folder_is_used_by_one_process_at_a_time(tmp_path):
    folder = CountFolder(tmp_path / "deep" / "count")
    with folder.locked():
        with pytest.raises(BadRequest, match="Another process is at the count") as caught, folder.locked():
            pass
        assert caught.value.reason == "RUN_IN_USE"
    with folder.locked():
        assert (folder.root / LOCK).exists()


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder_with_other_files_is_refused(tmp_path, kind):
    folder = kind(tmp_path)
    (tmp_path / LOCK).touch()
    (tmp_path / "calls.sqlite").touch()
    folder.require_own()
    (tmp_path / "letters.txt").touch()
    with pytest.raises(BadRequest, match=f"is not empty and holds no {folder.what}") as caught, folder.locked():
        pass
    assert caught.value.reason == "OUT_NOT_EMPTY"


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder_begun_by_earlier_code_is_refused_with_one_line(tmp_path, kind):
    folder = kind(tmp_path)
    with pytest.raises(BadRequest, match=f"holds no {folder.what}") as missing:
        folder.manifest()
    assert missing.value.reason == folder.missing
    (tmp_path / folder.manifest_file).write_text(json.dumps({"format": 1, "software": "0.0"}))
    with pytest.raises(BadRequest, match=f"manifest of format 2 \\({folder.what}\\)") as caught:
        folder.manifest()
    assert caught.value.reason == folder.unreadable and "\n" not in caught.value.message


def test_manifest_of_another_format_is_refused_even_if_its_fields_fit(tmp_path):
    folder = CountFolder(tmp_path)
    folder.write_manifest(manifest(format=1))
    with pytest.raises(BadRequest, match="it is of format 1"):
        folder.manifest()
    (tmp_path / folder.manifest_file).unlink()
    (tmp_path / folder.manifest_file).mkdir()
    with pytest.raises(BadRequest, match="can't be read"):
        folder.manifest()


def test_resumed_session_keeps_its_first_manifest_and_counts_interruptions(tmp_path):
    folder = CountFolder(tmp_path)
    first = folder.start(manifest(command="first", place="here"))
    assert not folder.finished
    second = folder.start(manifest(command="second", place="there"))
    assert (second.command, second.place, second.interruptions) == (first.command, first.place, 1)
    done = folder.finish(second)
    assert folder.finished and folder.start(manifest()).interruptions == 1
    assert folder.finish(done).finished == done.finished


def test_resumed_session_with_other_inputs_is_refused_by_name_and_value(tmp_path):
    folder = CountFolder(tmp_path)
    folder.start(manifest(limits={"a": 1, "b": 2}))
    with pytest.raises(BadRequest) as caught:
        folder.start(manifest(count=4, limits={"a": 1, "b": 3}))
    assert "count (was 3, is 4); limits b (was 2, is 3)." in caught.value.message
    assert caught.value.reason == directory.RUN_DIFFERS
    assert folder.manifest().interruptions == 0


# -- The loop ----------------------------------------------------------------------------------------------------------


def squares(folder):
    return Results(folder, "squares.jsonl", Squared, lambda one: one.number)


async def squared(number):
    await asyncio.sleep(10 - number)
    return Squared(number=number, square=number**2)


@pytest.mark.virtual_time
async def test_items_run_concurrently_and_results_come_in_order(tmp_path):
    folder, progress, stored = CountFolder(tmp_path), [], []
    results = squares(folder)
    found = await run_items(
        range(5),
        squared,
        concurrency=3,
        store=lambda number, result: (stored.append(number), results.add(result)),
        progress=lambda *how: progress.append(how),
        before=2,
    )
    assert [one.square for one in found] == [0, 1, 4, 9, 16]
    assert stored != sorted(stored) and progress == [(done, 7) for done in range(2, 8)]
    assert [one.number for one in folder.read("squares.jsonl", Squared)] == stored
    results.put_in_order(range(5))
    assert [one.number for one in folder.read("squares.jsonl", Squared)] == [0, 1, 2, 3, 4]


def test_results_resume_without_a_line_that_a_crash_cut_off(tmp_path):
    folder = CountFolder(tmp_path)
    for number in (3, 1, 2):
        squares(folder).add(Squared(number=number, square=number**2))
    with (tmp_path / "squares.jsonl").open("a") as file:
        file.write('{"number": 4, "squ')
    results = squares(folder)
    results.resume({1, 3})
    results.add(Squared(number=2, square=4))
    assert [one.number for one in folder.read("squares.jsonl", Squared)] == [3, 1, 2]


def test_first_failure_ends_all_items_and_results_so_far_are_stored(tmp_path):
    stored = []

    async def step(number):
        await asyncio.sleep(number)
        if number == 2:
            raise BadRequest("broken")
        return number

    with pytest.raises(BadRequest, match="broken"):
        run_virtually(run_items(range(9), step, concurrency=9, store=lambda item, _: stored.append(item)))
    assert stored == [0, 1]


def test_items_left_for_later_make_the_session_unfinished():
    async def step(number):
        if number % 2:
            raise Later("MODEL_BUSY", "The server is busy.")
        return number

    watch = Watch(1, "memes")
    with pytest.raises(Unavailable, match=r"2 of 5 memes have no answer yet.*MODEL_BUSY 2.*server is busy") as caught:
        asyncio.run(run_items(range(5), step, concurrency=1, watch=watch))
    assert caught.value.reason == engine.UNFINISHED


@pytest.mark.parametrize("waited,failures", [(False, 9), (True, 1)])
def test_session_stops_when_its_servers_are_gone(waited, failures):
    tried = []

    async def step(number):
        tried.append(number)
        raise Later("MODEL_GONE", waited=waited)

    with pytest.raises(Unavailable, match=f"last {failures} items in a row failed") as caught:
        asyncio.run(run_items(range(50), step, concurrency=1, watch=Watch(1)))
    assert caught.value.reason == engine.SERVER_GONE and len(tried) == failures


def test_results_by_timeout_stop_the_session_unless_answers_come_between():
    async def step(reason):
        return reason

    def run(reasons):
        return asyncio.run(run_items(reasons, step, concurrency=1, watch=Watch(1), failure=lambda reason: reason))

    assert len(run((["OVERRUN"] * 8 + [""]) * 3)) == 27
    with pytest.raises(Unavailable, match="last 9 items in a row failed, the last with OVERRUN"):
        run(["OVERRUN"] * 20)


def test_patience_continues_an_attempt_from_its_state_until_it_runs_out():
    states = []

    async def attempt(state):
        states.append(state)
        return Tried("busy", passing=True, reason="MODEL_BUSY", state=len(states))

    with pytest.raises(Later) as caught:
        run_virtually(patiently(attempt, Patience(60.0)))
    assert caught.value.waited and states == [None, 1, 2, 3, 4, 5]
    with pytest.raises(Later) as caught:
        asyncio.run(patiently(attempt, None))
    assert not caught.value.waited


def test_second_timeout_of_an_item_is_its_result():
    async def attempt(_):
        return Tried("late", passing=True, reason="OVERRUN")

    assert run_virtually(patiently(attempt, Patience(600.0))) == "late"
    assert asyncio.run(patiently(attempt, None)) == "late"
