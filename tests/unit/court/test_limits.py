"""A trial ends without a caller's deadline too: each dependency has a time limit, and exceeding it is reported."""

import asyncio

import pytest

from court.errors import Overrun
from court.events import Procedure, TrialFailed
from court.record import TrialAborted
from court.settings import TrialSettings
from court.trial import TrialCase
from tests.support.cast import Cast, PictureFinder, full_court
from tests.support.fakes import FakeReader, H, RecordingSink, a_meme, findings
from tests.support.virtual_time import run, use_virtual_deadlines

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
    """Makes deadlines follow the loop's time."""
    use_virtual_deadlines(monkeypatch)


def failure_of(procedure, *, reader=None, finder=None, within_s=None, text=None):
    """Returns the reason for which a trial failed, and the seconds after which it did."""

    async def scene():
        court = full_court(Cast(rounds=2), reader=reader, settings=LIMITED)
        if finder is not None:
            object.__setattr__(court, "finder", finder(findings([H] * 5)))
        loop = asyncio.get_running_loop()
        began, notes = loop.time(), RecordingSink()
        with pytest.raises(TrialAborted) as caught:
            await court.run(TrialCase("t", a_meme(text), procedure, within_s=within_s), notes)
        return caught.value, loop.time() - began, notes

    error, seconds, notes = run(scene())
    failed = notes.events[-1]
    assert isinstance(error.cause, Overrun) and isinstance(failed, TrialFailed)
    assert failed.retryable and failed.reason == error.reason
    return error.reason, seconds


@pytest.mark.parametrize("procedure", list(Procedure))
def test_hanging_text_reader_fails_the_trial_after_its_time_limit(procedure):
    assert failure_of(procedure, reader=HangingReader()) == ("TEXT_TOO_SLOW", READ_S)


@pytest.mark.parametrize("procedure", list(Procedure))
def test_hanging_search_fails_the_trial_after_its_time_limit(procedure):
    assert failure_of(procedure, finder=HangingFinder, text="x") == ("SEARCH_TOO_SLOW", FIND_S)


def test_hanging_pictures_of_precedents_fail_the_trial_after_the_time_limit():
    assert failure_of(Procedure.FULL, finder=HangingPictures, text="x") == ("SEARCH_TOO_SLOW", FIND_S)


@pytest.mark.parametrize("procedure", [Procedure.SUMMARY, Procedure.CASCADE])
def test_earlier_deadline_of_the_caller_takes_precedence(procedure):
    assert failure_of(procedure, reader=HangingReader(), within_s=3.0) == ("DEADLINE", 3.0)
    assert failure_of(procedure, finder=HangingFinder, text="x", within_s=3.0) == ("DEADLINE", 3.0)


def test_time_limits_are_recorded():
    opened = asyncio.run(
        full_court(Cast(rounds=2), settings=LIMITED).run(TrialCase("t", a_meme("x")), RecordingSink())
    ).opened
    assert (opened.settings["find_s"], opened.settings["read_s"]) == (FIND_S, READ_S)
