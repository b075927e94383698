"""A trial that was cut off goes on from its record: nobody is asked again for what was said."""

import asyncio

import pytest

from court.errors import CantResume, TrialAborted, Unavailable
from court.events import Procedure, TrialResumed
from court.policy import DEFAULT_POLICY
from court.record import TrialRecord, TrialState
from court.settings import TrialSettings
from court.trial import Case
from tests.cast import Cast, full_court, task_of, try_meme
from tests.fakes import FakeReader, Notes, a_meme, a_picture

SETTINGS = TrialSettings(overlap=False)


def whole(procedure=Procedure.FULL, meme=None):
    return try_meme(Cast(rounds=3), settings=SETTINGS, procedure=procedure, meme=meme)


def resume(record, cast=None, **options):
    notes = Notes()
    court = full_court(cast or Cast(rounds=3), settings=options.pop("settings", SETTINGS), **options)
    return asyncio.run(court.resume(record, a_picture(), notes)), notes


EVENTS = whole().events


@pytest.mark.parametrize("place", range(2, len(EVENTS)))
def test_cut_off_anywhere_it_comes_to_the_same_verdict_and_repeats_no_call(place):
    cast = Cast(rounds=3)
    record, notes = resume(TrialRecord.of(EVENTS[:place]), cast)
    assert record.state is TrialState.DECIDED
    assert record.verdict == TrialRecord.of(EVENTS).verdict
    assert record.events[:place] == EVENTS[:place]
    assert isinstance(record.events[place], TrialResumed)
    assert record.events[place:] == tuple(notes.events)
    # Every answered call stands in the record; what is asked now is what was not.
    answered = sum(getattr(event, "call", None) is not None for event in EVENTS[:place])
    needed = sum(getattr(event, "call", None) is not None for event in EVENTS)
    assert cast.calls() == needed - answered + 2  # and the two for the score


def test_a_record_that_was_cut_twice_is_resumed_twice():
    once, _ = resume(TrialRecord.of(EVENTS[:5]))
    again, _ = resume(TrialRecord.of(once.events[:9]))
    assert again.verdict == TrialRecord.of(EVENTS).verdict
    assert len(again.all(TrialResumed)) == 2


def test_a_trial_that_failed_because_the_server_was_gone_goes_on_when_it_is_back():
    gone = Cast(rounds=3, judge=lambda request: Unavailable("gone", reason="MODEL_GONE"))
    with pytest.raises(TrialAborted) as caught:
        try_meme(gone, settings=SETTINGS)
    failed = caught.value.record
    assert failed.state is TrialState.FAILED
    cast = Cast(rounds=3)
    record, _ = resume(failed, cast)
    assert record.state is TrialState.DECIDED
    assert {task_of(asked.request) for role in cast.models for asked in cast.models[role].asked} == {"judge", "odds"}
    assert TrialRecord.of(record.events).state is TrialState.DECIDED


def test_text_that_was_read_is_not_read_again_and_text_that_was_given_is_kept():
    read = whole(meme=a_meme(None))
    reader = FakeReader("other text")
    record, _ = resume(TrialRecord.of(read.events[:6]), reader=reader)
    assert record.text.text == "read off the picture" and reader.calls == 0
    given = whole()
    assert resume(TrialRecord.of(given.events[:6]))[0].text.text == "the meme's own words"


def test_what_was_given_and_not_kept_is_not_made_up():
    first = [event for event in whole().events if event.kind == "TrialOpened"]
    with pytest.raises(CantResume, match="text"):
        resume(TrialRecord.of(first))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"settings": TrialSettings(overlap=False, rounds_max=4)}, "settings"),
        ({"policy": DEFAULT_POLICY.model_copy(update={"version": "2"})}, "policy"),
    ],
)
def test_a_trial_is_not_finished_with_other_versions_than_it_was_begun_with(changes, named):
    with pytest.raises(CantResume, match=named):
        resume(TrialRecord.of(EVENTS[:6]), **changes)


def test_other_models_and_another_picture_are_refused():
    other = Cast()
    for model in other.models.values():
        model._name = "another"
    with pytest.raises(CantResume, match="models"):
        resume(TrialRecord.of(EVENTS[:6]), other)
    court = full_court(Cast(), settings=SETTINGS)
    with pytest.raises(CantResume, match="picture"):
        asyncio.run(court.resume(TrialRecord.of(EVENTS[:6]), a_picture("0" * 64), Notes()))


def test_a_decided_trial_is_over():
    with pytest.raises(CantResume, match="verdict already"):
        resume(TrialRecord.of(EVENTS))


def test_a_trial_that_failed_for_good_is_over():
    with pytest.raises(TrialAborted) as caught:
        try_meme(Cast(describe=lambda request: ""), settings=SETTINGS)
    with pytest.raises(CantResume, match="for good"):
        resume(caught.value.record)


@pytest.mark.parametrize("procedure", [Procedure.SUMMARY, Procedure.CASCADE])
def test_the_other_procedures_are_resumed_too(procedure):
    court = full_court(Cast(rounds=2), settings=SETTINGS)
    record = asyncio.run(court.hear(Case("t", a_meme("the meme's own words"), procedure), Notes()))
    for place in range(2, len(record.events)):
        resumed, _ = resume(TrialRecord.of(record.events[:place]), Cast(rounds=2))
        assert resumed.verdict == record.verdict
