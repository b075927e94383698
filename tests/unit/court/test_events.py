import pytest
from pydantic import ValidationError

from court.events import EVENT_KINDS, parse_event

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
