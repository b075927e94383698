import asyncio

import pytest
from pydantic import ValidationError

from court.events import EVENT_KINDS, ReviewOutcome, TrialFailed, VerdictReviewed, parse_event
from court.record import TrialRecord, TrialState
from court.trial import TrialCase
from court.verdict import Label
from tests.support.fakes import RecordingSink, a_meme
from tests.support.trial import a_court

RESTED = (
    '{"kind":"SideRested","trial_id":"t","seq":0,"at":"2026-01-01T00:00:00Z","side":"ACCUSER","rounds":2,'
    '"reason":"CONVERGED"}'
)


def test_event_union_is_closed():
    """Names in the golden file event_kinds."""
    assert all(kind.model_fields["kind"].default == kind.__name__ for kind in EVENT_KINDS)


def test_event_round_trips_through_its_stored_form():
    event = parse_event(RESTED)
    assert parse_event(event.model_dump_json()) == event


@pytest.mark.parametrize(
    "stored",
    [
        RESTED.replace("SideRested", "SideSlept"),
        RESTED.replace('"rounds":2,', ""),
        RESTED.replace('"rounds":2', '"rounds":-1'),
        RESTED.replace('"rounds":2', '"rounds":2,"mood":"good"'),
        RESTED.replace("00Z", "00"),  # a time without its zone
        RESTED.replace("ACCUSER", "BAILIFF"),
        "[]",
        "",
    ],
)
def test_malformed_events_are_refused(stored):
    with pytest.raises(ValidationError):
        parse_event(stored)


@pytest.fixture(scope="module")
def events():
    return asyncio.run(a_court().run(TrialCase("t", a_meme()), RecordingSink())).events


def changed(event, **values):
    return event.model_copy(update=values)


def test_incomplete_record_is_open(events):
    assert TrialRecord.of(events[:-1]).state is TrialState.OPEN
    assert TrialRecord.of(events[:1]).verdict is None


def test_gaps_foreign_events_and_disorder_are_refused(events):
    wrong = [
        (),
        events[1:],
        (*events[:2], *events[3:]),
        (*events[:3], events[2], *events[3:]),
        (events[0], events[2], events[1], *events[3:]),
        (events[0], changed(events[1], trial_id="other"), *events[2:]),
        (events[0], changed(events[0], seq=1)),
    ]
    for sequence in wrong:
        with pytest.raises(ValueError):
            TrialRecord.of(sequence)


def test_only_reviews_may_follow_the_end_of_a_trial(events):
    last = events[-1]
    failed = TrialFailed(trial_id="t", seq=len(events), at=last.at, step="x", reason="R", message="m", retryable=False)
    with pytest.raises(ValueError, match="after the end"):
        TrialRecord.of((*events, failed))
    review = VerdictReviewed(
        trial_id="t",
        seq=len(events),
        at=last.at,
        outcome=ReviewOutcome.OVERRULED,
        label=Label.NOT_HARMFUL,
        reason="it is a joke about Mondays",
        reviewer="r-1",
    )
    record = TrialRecord.of((*events, review))
    assert record.state is TrialState.DECIDED
    assert record.verdict.label is Label.HARMFUL  # a review does not change the verdict of the trial
