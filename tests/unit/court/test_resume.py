"""Tests of resuming: a trial that was cut off continues from its record, and no recorded call is repeated."""

import asyncio
from collections import Counter

import pytest

from court.errors import CantResume, Unavailable
from court.events import Procedure, Side, SideRested, Summarised, SummarisedAhead, TrialResumed
from court.policy import DEFAULT_POLICY
from court.record import TrialAborted, TrialRecord, TrialState
from court.settings import TrialSettings
from tests.support.cast import Cast, ahead_of_time, full_court, questions_in, task_of, try_meme
from tests.support.fakes import FakeReader, RecordingSink, a_meme, a_picture

SETTINGS = TrialSettings(overlap=False)


def complete_trial(procedure=Procedure.FULL, meme=None):
    return try_meme(Cast(rounds=3), settings=SETTINGS, procedure=procedure, meme=meme)


def resume(record, cast=None, **options):
    notes = RecordingSink()
    court = full_court(cast or Cast(rounds=3), settings=options.pop("settings", SETTINGS), **options)
    return asyncio.run(court.resume(record, a_picture(), notes)), notes


EVENTS = complete_trial().events


@pytest.mark.parametrize("place", range(2, len(EVENTS)))
def test_trial_cut_off_anywhere_reaches_the_same_verdict_and_repeats_no_call(place):
    cast = Cast(rounds=3)
    record, notes = resume(TrialRecord.of(EVENTS[:place]), cast)
    assert record.state is TrialState.DECIDED
    assert record.verdict == TrialRecord.of(EVENTS).verdict
    assert record.events[:place] == EVENTS[:place]
    assert isinstance(record.events[place], TrialResumed)
    assert record.events[place:] == tuple(notes.events)
    # Every answered call is in the record; only the others are made now.
    answered = sum(getattr(event, "call", None) is not None for event in EVENTS[:place])
    needed = sum(getattr(event, "call", None) is not None for event in EVENTS)
    assert cast.calls() == needed - answered + 2  # plus the two for the score


def cut_after(record, *, predicate):
    """The record up to and including the last event for which the predicate holds."""
    place = max(number for number, event in enumerate(record.events) if predicate(event))
    return TrialRecord.of(record.events[: place + 1])


@pytest.mark.parametrize("side", list(Side))
def test_only_the_unfinished_side_continues_after_the_other_rested(side):
    other = next(candidate for candidate in Side if candidate is not side)
    # This side's summaries never change, so it rests after the minimum of two rounds.
    lines = {f"{side.lower()}_summarise": lambda request: {"summary": "all", "justification": "said"}}
    first = Cast(rounds=5, **lines)
    complete = try_meme(first, settings=SETTINGS)
    cut = cut_after(complete, predicate=lambda event: isinstance(event, SideRested) and event.side is side)
    rested = cut.last(SideRested)
    assert rested.side is side and rested.rounds == 2
    assert [event.side for event in cut.all(SideRested)] == [side]
    assert 0 < sum(event.side is other for event in cut.all(Summarised)) < 5

    cast = Cast(rounds=5, **lines)
    record, _ = resume(cut, cast)
    assert record.verdict == complete.verdict
    assert not cast.requests(side.lower()), "the side that rested gets no call"
    assert [event.rounds for event in record.all(SideRested)] == [2, 5]
    assert Counter(map(position_of, record.events)) - Counter([("TrialResumed", None, None)]) == Counter(
        map(position_of, complete.events)
    )
    judged = [[r for r in each.requests("judge") if task_of(r) == "judge"] for each in (cast, first)]
    assert judged[0] == judged[1], "the Judge sees the same"


def position_of(event):
    return event.kind, getattr(event, "side", None), getattr(event, "round", None)


def test_early_summary_is_stored_and_not_requested_again():
    overlapping = TrialSettings()
    complete = try_meme(ahead_of_time(), settings=overlapping)
    early = [event for event in complete.all(SummarisedAhead) if event.side is Side.ACCUSER]
    assert [event.round for event in early][:2] == [2, 3]
    stored = {event.round: event for event in complete.all(Summarised) if event.side is Side.ACCUSER}
    assert list(stored) == [1, 2, 3]
    for event in early[:2]:  # the event repeated in its turn is the same, by the same call
        assert stored[event.round].seq > event.seq
        assert (stored[event.round].call, stored[event.round].summary) == (event.call, event.summary)
    # Cut off when two are written and the first is not: only the first is requested.
    cut = TrialRecord.of(complete.events[: early[1].seq + 1])
    assert not [event for event in cut.all(Summarised) if event.side is Side.ACCUSER]
    cast = Cast(rounds=3)
    record, _ = resume(cut, cast, settings=overlapping)
    assert record.verdict == complete.verdict
    summary_requests = [r for r in cast.requests("accuser") if task_of(r) == "summarise"]
    rounds = [questions_in(request) for request in summary_requests]
    assert 1 in rounds and not {2, 3} & set(rounds)
    assert [e.round for e in record.all(Summarised) if e.side is Side.ACCUSER] == [1, 2, 3]


@pytest.mark.parametrize("place", range(3, 20))
def test_trial_cut_off_with_rounds_ahead_repeats_no_call(place):
    overlapping = TrialSettings()
    complete = try_meme(ahead_of_time(), settings=overlapping)
    assert len(complete.events) >= 20
    cut = TrialRecord.of(complete.events[:place])
    cast = Cast(rounds=3)
    record, _ = resume(cut, cast, settings=overlapping)
    assert record.verdict == complete.verdict
    known = {
        (event.call.prompt_id.rpartition("/")[2], event.call.role, getattr(event, "round", 0))
        for event in cut.events
        if getattr(event, "call", None)
    }
    for role in ("accuser", "defender"):
        for request in cast.requests(role):
            task = task_of(request)
            number = questions_in(request) + (task == "ask")
            assert (task, role.upper(), number) not in known


def test_record_cut_twice_is_resumed_twice():
    once, _ = resume(TrialRecord.of(EVENTS[:5]))
    twice, _ = resume(TrialRecord.of(once.events[:9]))
    assert twice.verdict == TrialRecord.of(EVENTS).verdict
    assert len(twice.all(TrialResumed)) == 2


def test_trial_that_failed_with_its_server_resumes_when_it_is_back():
    failing_cast = Cast(rounds=3, judge=lambda request: Unavailable("gone", reason="MODEL_GONE"))
    with pytest.raises(TrialAborted) as caught:
        try_meme(failing_cast, settings=SETTINGS)
    failed = caught.value.record
    assert failed.state is TrialState.FAILED
    cast = Cast(rounds=3)
    record, _ = resume(failed, cast)
    assert record.state is TrialState.DECIDED
    assert {task_of(call.request) for role in cast.models for call in cast.models[role].asked} == {"judge", "odds"}
    assert TrialRecord.of(record.events).state is TrialState.DECIDED


def test_recorded_text_is_reused_on_resume():
    with_read_text = complete_trial(meme=a_meme(None))
    reader = FakeReader("other text")
    record, _ = resume(TrialRecord.of(with_read_text.events[:6]), reader=reader)
    assert record.text.text == "read off the picture" and reader.calls == 0
    with_own_text = complete_trial()
    assert resume(TrialRecord.of(with_own_text.events[:6]))[0].text.text == "the meme's own words"


def test_resume_without_the_recorded_text_is_refused():
    first = [event for event in complete_trial().events if event.kind == "TrialOpened"]
    with pytest.raises(CantResume, match="text"):
        resume(TrialRecord.of(first))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": TrialSettings(overlap=False, rounds_max=4)}, "settings"),
        ({"policy": DEFAULT_POLICY.model_copy(update={"version": "2"})}, "policy"),
    ],
)
def test_resume_with_other_settings_or_policy_is_refused(changes, message):
    with pytest.raises(CantResume, match=message):
        resume(TrialRecord.of(EVENTS[:6]), **changes)


def test_resume_with_other_models_or_another_picture_is_refused():
    other = Cast()
    for model in other.models.values():
        model._name = "another"
    with pytest.raises(CantResume, match="models"):
        resume(TrialRecord.of(EVENTS[:6]), other)
    court = full_court(Cast(), settings=SETTINGS)
    with pytest.raises(CantResume, match="picture"):
        asyncio.run(court.resume(TrialRecord.of(EVENTS[:6]), a_picture("0" * 64), RecordingSink()))


def test_decided_trial_is_not_resumed():
    with pytest.raises(CantResume, match="verdict already"):
        resume(TrialRecord.of(EVENTS))


def test_permanently_failed_trial_is_not_resumed():
    with pytest.raises(TrialAborted) as caught:
        try_meme(Cast(answer=lambda request: ""), settings=SETTINGS)
    with pytest.raises(CantResume, match="for good"):
        resume(caught.value.record)
