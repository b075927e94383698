"""Helpers of tests of trial."""

import asyncio

from court.events import Procedure
from court.trial import Court, TrialCase
from tests.support.fakes import FakeFinder, FakeReader, H, RecordingSink, a_meme, findings, ticking_clock

SUMMARY = [
    "TrialOpened",
    "TextRead",
    "PrecedentsCited",
    "Summarised",
    "SideRested",
    "Summarised",
    "SideRested",
    "VerdictGiven",
]


def a_court(found=None, reader=None):
    clock = ticking_clock()
    result = findings([H] * 5) if found is None else found
    return Court(
        finder=FakeFinder(result),
        text_reader=reader or FakeReader(),
        software="test",
        now=lambda: next(clock),
    )


def hear(court, meme=None, watch=None, procedure=Procedure.SUMMARY):
    return asyncio.run(court.run(TrialCase("t", meme or a_meme(), procedure), watch or RecordingSink()))
