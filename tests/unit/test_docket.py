import asyncio
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from court.errors import Unavailable
from court.meme import Frame
from court.record import TrialState
from court.trial import Case
from court.verdict import Label
from serving.docket.sql import SqlDocket
from serving.docket.store import DocketError, TrialUnknown
from tests.fakes import Notes, a_meme, a_picture
from tests.unit.test_trial import a_court


def events_of(trial_id="t", at=None):
    events = asyncio.run(a_court().hear(Case(trial_id, a_meme()), Notes())).events
    return [event.model_copy(update={"at": at}) for event in events] if at else list(events)


def with_docket(path, work, **options):
    async def scene():
        docket = SqlDocket.open(path, **options)
        try:
            return await work(docket)
        finally:
            await docket.close()

    return asyncio.run(scene())


async def append_all(docket, events):
    for event in events:
        await docket.append(event)


def test_a_record_comes_back_as_it_was(tmp_path):
    events = events_of()
    path = tmp_path / "deep" / "docket.sqlite"
    with_docket(path, lambda docket: append_all(docket, events))
    record = with_docket(path, lambda docket: docket.record("t"), create=False)
    assert list(record.events) == events


def test_many_writers_at_once_lose_nothing_and_only_the_faulty_one_hears_of_it(tmp_path):
    events = events_of()

    async def crowd(docket):
        trials = [[e.model_copy(update={"trial_id": f"t{i}"}) for e in events] for i in range(40)]
        twice = docket.append(trials[0][0])
        results = await asyncio.gather(*(append_all(docket, trial) for trial in trials), twice, return_exceptions=True)
        return results, [await docket.record(f"t{i}") for i in range(40) if results[i] is None]

    results, records = with_docket(tmp_path / "d.sqlite", crowd)
    refused = [r for r in results if r is not None]
    assert len(refused) == 1 and isinstance(refused[0], DocketError) and refused[0].reason == "EVENT_EXISTS"
    # Either the stray one came second, or it came first and trial 0 was refused.
    assert len(records) == 40 - (results[0] is not None)
    assert all(record.state is TrialState.DECIDED for record in records)


def test_an_event_can_not_be_written_over(tmp_path):
    events = events_of()

    async def again(docket):
        await docket.append(events[0])
        with pytest.raises(DocketError, match="already holds"):
            await docket.append(events[0])
        return await docket.record("t")

    assert list(with_docket(tmp_path / "d.sqlite", again).events) == events[:1]


def test_a_listing_shows_where_each_trial_stands(tmp_path):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    whole, part = events_of("whole", start), events_of("part", start + timedelta(hours=1))[:3]

    async def scene(docket):
        await append_all(docket, whole + part)
        return await docket.list(limit=9), await docket.list(limit=1), await docket.list(limit=9, before=part[0].at)

    everything, latest, earlier = with_docket(tmp_path / "d.sqlite", scene)
    assert [line.trial_id for line in everything] == ["part", "whole"]
    assert (everything[0].state, everything[0].label) == (TrialState.OPEN, None)
    assert (everything[1].state, everything[1].label) == (TrialState.DECIDED, Label.HARMFUL)
    assert [line.trial_id for line in latest] == ["part"]
    assert [line.trial_id for line in earlier] == ["whole"]


def test_pictures_are_kept_once(tmp_path):
    picture = a_picture()

    async def scene(docket):
        await docket.keep_picture(picture)
        await docket.keep_picture(picture)
        return await docket.frames(picture.pixels_sha256), await docket.frames("0" * 64)

    assert with_docket(tmp_path / "d.sqlite", scene) == ([b"png"], [])
    assert isinstance(picture.frames[0], Frame)


def test_an_unknown_trial_is_said_to_be_unknown(tmp_path):
    with pytest.raises(TrialUnknown, match="no trial nobody"):
        with_docket(tmp_path / "d.sqlite", lambda docket: docket.record("nobody"))


def test_a_missing_docket_is_only_made_when_asked(tmp_path):
    with pytest.raises(DocketError, match="There is no docket"):
        SqlDocket.open(tmp_path / "none.sqlite", create=False)
    assert not (tmp_path / "none.sqlite").exists()


def test_what_is_no_docket_is_refused_and_left_as_it_is(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look at " * 100)
    with pytest.raises(DocketError, match="can't be opened"):
        SqlDocket.open(text)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    with pytest.raises(DocketError, match="no docket"):
        SqlDocket.open(other)


def test_a_later_format_is_refused(tmp_path):
    path = tmp_path / "d.sqlite"
    events = events_of()
    with_docket(path, lambda docket: append_all(docket, events))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DocketError, match="Upgrade"):
        SqlDocket.open(path)


def test_an_altered_record_is_not_shown_as_if_it_were_whole(tmp_path):
    path = tmp_path / "d.sqlite"
    events = events_of()
    with_docket(path, lambda docket: append_all(docket, events))
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE seq = 3")
    connection.commit()
    connection.close()
    with pytest.raises(DocketError, match="is no record"):
        with_docket(path, lambda docket: docket.record("t"))


def test_a_docket_that_is_locked_or_closed_says_so(tmp_path):
    path = tmp_path / "d.sqlite"

    async def scene(docket):
        connection = sqlite3.connect(path)
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            await docket.append(events[0])
        connection.close()
        await docket.append(events[0])
        await docket.close()
        with pytest.raises(Unavailable, match="closed"):
            await docket.append(events[1])

    events = events_of()
    with_docket(path, scene, patience=0.2)


WRITER = """
import asyncio, sys
from pathlib import Path
from court.events import parse_event
from serving.docket.sql import SqlDocket

async def main():
    docket = SqlDocket.open(Path(sys.argv[1]))
    event = parse_event(sys.argv[2])
    for number in range(100_000):
        await docket.append(event.model_copy(update={"trial_id": f"t{number}"}))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [1, 7, 40])
def test_what_was_acknowledged_survives_sigkill(tmp_path, after):
    path = tmp_path / "d.sqlite"
    opened = events_of()[0].model_dump_json()
    command = [sys.executable, "-c", WRITER, str(path), opened]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(after):
            last = int(writer.stdout.readline())
        writer.kill()
        # Whatever it still managed to say before it died was acknowledged too.
        last = max([last, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
    lines = with_docket(path, lambda docket: docket.list(limit=1_000_000), create=False)
    kept = {line.trial_id for line in lines}
    assert {f"t{number}" for number in range(last + 1)} <= kept
