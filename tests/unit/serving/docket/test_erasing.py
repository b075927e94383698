"""PR-1: after a trial is erased, no file of the docket contains a byte of its meme. Behaviour: test_docket_log.py."""

import asyncio
import random
import sqlite3

import pytest

from court.errors import Unavailable
from court.events import VerdictGiven
from serving.docket.errors import TrialErased
from serving.docket.open import Docket
from serving.docket.review.projection import USUAL
from tests.support.dockets import NOON, append_all, events_of, opened_docket
from tests.support.erasing import Marked, occurrences
from tests.support.sizes import FULL

MEMES = 100 if FULL else 12


@pytest.mark.promise("PR-1", "50 of 100 memes erased: 0 bytes of theirs left")
async def test_erased_memes_leave_no_trace_in_any_file(tmp_path):
    chance = random.Random(11)
    memes = [Marked(number, chance) for number in range(MEMES)]
    doomed = chance.sample(memes, MEMES // 2)
    remaining = [meme for meme in memes if meme not in doomed]
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        for meme in memes:  # interleaved with other trials, so that database pages hold parts of several
            await meme.keep(docket)
            await asyncio.gather(*(append_all(docket, events_of(f"{meme.trial_id} {n}")) for n in range(4)))
        for meme in memes:
            await meme.quoted(docket, f"quotes {meme.trial_id}")
        while not await docket.review_queue(USUAL).catch_up():
            pass
        before = [occurrences(tmp_path, meme.traces()) for meme in doomed]
        for meme in doomed:
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=[meme.precedent])
        while_open = [occurrences(tmp_path, meme.traces()) for meme in doomed]
        records = [await docket.trials.record(meme.trial_id) for meme in remaining]
        frames = [await docket.trials.frames(meme.pixels) for meme in remaining]
    for traces in before:
        hexed = {trace: files for trace, files in traces.items() if len(trace) < 65 and trace.isalnum()}
        assert all(hexed.values()), {trace: "was not there to be found" for trace, files in hexed.items() if not files}
    afterwards = [occurrences(tmp_path, meme.traces()) for meme in doomed]
    for traces in (*while_open, *afterwards):
        assert not any(traces.values()), {trace: files for trace, files in traces.items() if files}
    assert all(
        meme.reply in record.last(VerdictGiven).call.replies[0].text
        for record, meme in zip(records, remaining, strict=True)
    )
    assert [record.text.text for record in records] == [f"{meme.text}{meme.padding}{meme.text}" for meme in remaining]
    assert frames == [[meme.png] for meme in remaining]


async def test_erasure_is_reported_unfinished_while_a_reader_holds_the_database_open(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.docket.store.erasure._READERS_S", 0.2)
    meme = Marked(1, random.Random(12))
    async with opened_docket(tmp_path / "d.sqlite", patience=0.2) as docket:
        await meme.keep(docket)
        reader = sqlite3.connect(tmp_path / "d.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        with pytest.raises(Unavailable) as unfinished:
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON)
        assert unfinished.value.reason == "ERASURE_UNFINISHED"
        assert any(occurrences(tmp_path, meme.traces()).values())
        reader.close()
        await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON)
        assert not any(occurrences(tmp_path, meme.traces()).values())
        assert len([entry for entry in await docket.log.entries(0, 99) if entry.kind == "Erased"]) == 1


async def test_picture_survives_for_a_trial_opened_while_its_last_other_trial_is_erased(tmp_path):
    first, second = Marked(1, random.Random(1)), Marked(1, random.Random(1))
    second.trial_id = "t2"
    async with opened_docket(tmp_path / "docket.sqlite") as docket:
        await docket.writer.keep_picture(first.picture())
        await append_all(docket, first.events())
        forget, loop = docket.pictures.forget_now, asyncio.get_running_loop()

        def meanwhile(pixels):
            wait = asyncio.run_coroutine_threadsafe
            wait(docket.writer.keep_picture(second.picture()), loop).result()  # finds the picture still stored
            forget(pixels)
            wait(append_all(docket, second.events()), loop).result()

        docket.pictures.forget_now = meanwhile
        await docket.eraser.erase("t1", who="ada", why="asked to", at=NOON)
        assert await docket.trials.frames(second.pixels) == [second.png]


@pytest.mark.parametrize("again", ["when retried", "at the next erasure", "at the next start"])
async def test_picture_that_cannot_be_removed_now_is_removed_later(tmp_path, again):
    meme, other = Marked(1, random.Random(13)), Marked(2, random.Random(14))
    pictures, away = tmp_path / "d.sqlite-pictures", tmp_path / "away"
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        await meme.keep(docket)
        await other.keep(docket)
        pictures.rename(away)
        with pytest.raises(Unavailable) as unfinished:
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=["p"])
        assert unfinished.value.reason == "ERASURE_UNFINISHED"
        with pytest.raises(TrialErased):
            await docket.trials.record(meme.trial_id)
        await docket.log.sign()  # a docket whose pictures are unavailable still works
        away.rename(pictures)
        assert await docket.trials.frames(meme.pixels)
        if again == "when retried":
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=["p"])
        if again == "at the next erasure":
            await docket.eraser.erase(other.trial_id, who="Ruth", why="asked for", at=NOON)
    if again == "at the next start":
        pictures.rename(away)
        pictures.touch()  # a file in place of the picture folder
        with pytest.raises(Unavailable):
            Docket.open(tmp_path / "d.sqlite")
        pictures.unlink()
        away.rename(pictures)
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        assert await docket.trials.frames(meme.pixels) == []
        assert len([entry for entry in await docket.log.entries(0, 99) if entry.kind == "Erased"]) == 1 + (
            again == "at the next erasure"
        )
    assert not any(occurrences(tmp_path, meme.traces()).values())


async def test_picture_due_for_removal_stays_for_a_trial_opened_since(tmp_path):
    first, second = Marked(1, random.Random(1)), Marked(1, random.Random(1))
    second.trial_id = "t2"
    pictures, away = tmp_path / "d.sqlite-pictures", tmp_path / "away"
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        await first.keep(docket)
        pictures.rename(away)
        with pytest.raises(Unavailable):
            await docket.eraser.erase("t1", who="ada", why="asked to", at=NOON)
        away.rename(pictures)
        await append_all(docket, second.events())
        await docket.writer.keep_picture(second.picture())
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        frames = await docket.trials.frames(second.pixels)
        await docket.eraser.erase("t2", who="ada", why="asked to", at=NOON)
        assert (frames, await docket.trials.frames(second.pixels)) == ([second.png], [])
