"""The live tier against a stand-in: a server that replies as asked passes, and faults of another are named."""

import asyncio

import pytest

from court.record import TrialAborted
from eval.standin.process import model_server
from tests.support.cast import Cast, is_repair, try_meme
from tests.support.live_trials import LiveTrials, try_drawn_memes


def tried(home, *flags):
    with model_server("--play", "rounds", "--model", "stand-in", *flags) as url:
        return asyncio.run(try_drawn_memes(f"{url}/v1", "stand-in", "", home))


def test_server_that_replies_in_the_form_of_its_schemas_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    trials = tried(tmp_path)
    assert trials.faults == []
    assert [line.partition(":")[0] for line in trials.report.splitlines()] == ["crowd", "cat", "landscape"]


def test_missing_events_and_unusable_replies_are_named():
    sound = try_meme(Cast())
    with pytest.raises(TrialAborted) as aborted:
        try_meme(Cast(judge=lambda request: "no ruling"))
    trials = LiveTrials((sound, sound, aborted.value.record))
    assert trials.faults == ["a trial has no VerdictGiven"] and "no verdict (REPLY_MALFORMED)" in trials.report

    def hesitant(request):
        return {"answer": "It shows a flag."} if is_repair(request) else "Well."

    repaired = try_meme(Cast(answer=hesitant))
    (fault,) = LiveTrials((repaired,) * 3).faults
    assert "calls were unusable: ['it was not valid JSON']" in fault
