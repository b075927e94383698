"""Without a caller's deadline, too, a trial ends: what it leans on has its time, and then it is said."""

import asyncio

import pytest

from court.errors import Overrun
from court.events import Procedure, TrialFailed
from court.record import TrialAborted
from court.settings import TrialSettings
from court.trial import TrialCase
from tests.support.cast import Cast, PictureFinder, full_court
from tests.support.fakes import FakeReader, H, Notes, a_meme, findings
from tests.support.virtual_time import run, set_deadlines_by_it

FIND_S, READ_S = 7.0, 11.0
LIMITED = TrialSettings(find_s=FIND_S, read_s=READ_S)


class HangingReader(FakeReader):
    async def read(self, picture):
        await asyncio.sleep(10**9)


class HangingFinder(PictureFinder):
    async def find(self, **query):
        await asyncio.sleep(10**9)


class HangingPictures(PictureFinder):
    async def pictures(self, ids):
        await asyncio.sleep(10**9)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The budget goes by the loop's time."""
    set_deadlines_by_it(monkeypatch)


def ends(procedure, *, reader=None, finder=None, within_s=None, text=None):
    """How a trial of a meme ends, and after how many seconds."""

    async def scene():
        court = full_court(Cast(rounds=2), reader=reader, settings=LIMITED)
        if finder is not None:
            object.__setattr__(court, "finder", finder(findings([H] * 5)))
        loop = asyncio.get_running_loop()
        began, notes = loop.time(), Notes()
        with pytest.raises(TrialAborted) as caught:
            await court.hear(TrialCase("t", a_meme(text), procedure, within_s=within_s), notes)
        return caught.value, loop.time() - began, notes

    error, seconds, notes = run(scene())
    failed = notes.events[-1]
    assert isinstance(error.cause, Overrun) and isinstance(failed, TrialFailed)
    assert failed.retryable and failed.reason == error.reason
    return error.reason, seconds


@pytest.mark.parametrize("procedure", list(Procedure))
def test_a_text_reader_that_never_comes_back(procedure):
    assert ends(procedure, reader=HangingReader()) == ("TEXT_TOO_SLOW", READ_S)


@pytest.mark.parametrize("procedure", list(Procedure))
def test_a_search_that_never_comes_back(procedure):
    assert ends(procedure, finder=HangingFinder, text="x") == ("SEARCH_TOO_SLOW", FIND_S)


def test_pictures_of_precedents_that_never_come():
    assert ends(Procedure.FULL, finder=HangingPictures, text="x") == ("SEARCH_TOO_SLOW", FIND_S)


@pytest.mark.parametrize("procedure", [Procedure.SUMMARY, Procedure.CASCADE])
def test_a_deadline_that_is_nearer_ends_it_before(procedure):
    assert ends(procedure, reader=HangingReader(), within_s=3.0) == ("DEADLINE", 3.0)
    assert ends(procedure, finder=HangingFinder, text="x", within_s=3.0) == ("DEADLINE", 3.0)


def test_the_limits_stand_in_the_record():
    opened = asyncio.run(full_court(Cast(rounds=2), settings=LIMITED).hear(TrialCase("t", a_meme("x")), Notes())).opened
    assert (opened.settings["find_s"], opened.settings["read_s"]) == (FIND_S, READ_S)
