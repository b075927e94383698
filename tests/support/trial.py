"""Helpers of tests of trial."""

import asyncio

from court.events import Procedure, TextLine, TextRead, TextSource
from court.policy import DEFAULT_POLICY
from court.settings import TrialSettings
from court.summary import vote_if_close, weigh
from court.trial import Court, TrialCase
from tests.support.fakes import FakeFinder, FakeReader, H, RecordingSink, a_meme, findings, ticking_clock

SUMMARY = [
    "TrialOpened", "TextRead", "PrecedentsCited", "Summarised", "SideRested", "Summarised", "SideRested",
    "VerdictGiven",
]  # fmt: skip


def a_court(found=None, reader=None, **settings):
    clock = ticking_clock()
    result = findings([H] * 5) if found is None else found
    return Court(
        finder=FakeFinder(result),
        text_reader=reader or FakeReader(),
        software="test",
        now=lambda: next(clock),
        settings=TrialSettings(**settings),
    )


def hear(court, meme=None, watch=None, procedure=Procedure.SUMMARY):
    return asyncio.run(court.run(TrialCase("t", meme or a_meme(), procedure), watch or RecordingSink()))


SETTINGS = TrialSettings()
BOX = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


def text_read(source=TextSource.CALLER, confidences=()):
    return TextRead(
        trial_id="t",
        seq=1,
        at="2026-01-01T00:00:00Z",
        text="x",
        source=source,
        lines=[TextLine(text="x" * 10, confidence=c, box=BOX, frame=0) for c in confidences],
    )


def judged(found, settings=SETTINGS, text=None):
    return weigh(found, vote_if_close(found), text or text_read(), settings, policy=DEFAULT_POLICY)
