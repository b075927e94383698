"""Entries of the transparency log: canonical JSON of any value, headers, commitments, bodies."""

import math
import random
import struct
from collections import OrderedDict
from dataclasses import replace
from enum import Enum
from http import HTTPStatus
from typing import Any

import pytest
import rfc8785

from court.events import TrialOpened, VerdictGiven
from serving.docket.log.entries import (
    Entry,
    Erased,
    body_of,
    canonical,
    check,
    erased_of,
    event_of,
    from_canonical,
    parse,
    to_canonical,
)
from serving.docket.log.errors import BadEntry
from serving.docket.store.bodies import seal_bodies, unpacked
from tests.support.dockets import NOON, events_of
from tests.support.sizes import FULL

WORDS = [
    "a",
    "$",
    "$text",
    "$text:",
    "$int",
    "\\",
    "\\ud800",
    "\ud800",
    "\udfff",
    "é",
    "\U0001f600",
    "\ue000",
    '"',
    "\n",
]
WORDS += ["\x7f", "\u2028", "\x01", "\u202e", "5"]
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 1.0, 1e16, 9999999999999998.0, 1e21, 1e-6, 1e-7, 0.0001, 0.00009999]


def test_canonical_json_matches_the_reference_library_and_round_trips():
    chance = random.Random(8785)
    for _ in range(100_000 if FULL else 3_000):
        value = random_value(chance)
        written = canonical(value)
        assert written.encode() == rfc8785.dumps(to_canonical(value))
        assert same(parse(written), value)


def test_deeply_nested_values_are_serialised():
    for depth in (250, 256, 300):
        value: list[Any] = []
        for _ in range(depth):
            value = [value]
        assert canonical(value) == "[" * (depth + 1) + "]" * (depth + 1)


def test_values_that_json_lacks_are_marked():
    assert to_canonical(math.nan) == {"$float": "nan"} and to_canonical(2**53) == {"$int": "9007199254740992"}
    assert to_canonical("a\\b\ud800") == {"$text": "a\\\\b\\ud800"} and to_canonical(2**53 - 1) == 2**53 - 1
    assert to_canonical({"$int": "5"}) == {"$$int": "5"}  # a marker that a model wrote itself is escaped
    many = {f"{'$' * (number % 2)}{number}": number for number in range(200)}
    assert canonical(many) == rfc8785.dumps(to_canonical(many)).decode() and from_canonical(to_canonical(many)) == many
    # Subclasses are written as the type that they derive from.
    word = Enum("word", {"ONE": "one"}, type=str)
    derived = [word.ONE, HTTPStatus.OK, OrderedDict(b=1, a=2.0), type("Size", (float,), {})(0.5)]
    assert canonical(derived) == '["one",200,{"a":2,"b":1},0.5]'
    for bad in ({"$int": 5}, {"$new": 1}, {"$float": "five"}):
        with pytest.raises(ValueError, match=r"mark|could not convert"):
            from_canonical(bad)
    for no_json in ({1: 2}, b"bytes", object()):
        with pytest.raises(TypeError):
            to_canonical(no_json)


def test_events_round_trip_through_their_body():
    for event in events_of():
        assert event_of(body_of(event)) == event
    opened = events_of()[0]
    assert isinstance(opened, TrialOpened)
    odd: dict[str, Any] = {"huge": 2**70, "nan": [math.nan], "$int": "no mark", "lone": "\ud800", "neg": -1e300}
    back = event_of(body_of(opened.model_copy(update={"settings": odd})))
    assert isinstance(back, TrialOpened) and same(back.settings, odd)


def test_header_reveals_nothing_of_the_body():
    (verdict_event,) = (event for event in events_of() if isinstance(event, VerdictGiven))
    body = body_of(verdict_event)
    (seal,) = seal_bodies([body.encode()])
    at = "2026-01-02T12:00:00.000000+00:00"
    entry = Entry(7, verdict_event.kind, "t", verdict_event.seq, at, seal.commitment, unpacked(seal.stored), seal.salt)
    header = entry.header().decode()
    assert header == (
        f'{{"at":"2026-01-02T12:00:00.000000+00:00","commitment":"{entry.commitment.hex()}","kind":"VerdictGiven",'
        f'"number":7,"seq":{verdict_event.seq},"trial":"t","v":1}}'
    )
    check(entry)
    check(replace(entry, body=None, salt=None))
    # The same body sealed twice: headers don't show that they are equal.
    assert seal_bodies([body.encode()])[0].commitment != entry.commitment
    for altered in (
        replace(entry, body=body[:-1] + " }"),
        replace(entry, body=None),
        replace(entry, salt=None),
        replace(entry, salt=bytes(32)),
        replace(entry, commitment=bytes(32)),
    ):
        with pytest.raises(BadEntry, match=r"entry 7|Entry 7"):
            check(altered)


def test_erasures_round_trip_and_malformed_ones_are_refused():
    erased = Erased(trial_id="t", at=NOON, who="ada", why="asked to", numbers=(3, 4))
    assert erased_of(body_of(erased)) == erased
    for bad in ("", "[]", body_of(erased).replace("numbers", "others")):
        with pytest.raises(BadEntry):
            erased_of(bad)


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 10), (3, 500_000), (32, 20_000), (37, 2_000)])
def test_bodies_sealed_in_a_batch_match_bodies_sealed_alone(count, size):
    """Threads share large batches: each body must get its own seal back."""
    bodies = [canonical([number, "é" * size]).encode() for number in range(count)]
    seals = seal_bodies(bodies)
    assert len(seals) == count == len({seal.salt for seal in seals})
    for body, seal in zip(bodies, seals, strict=True):
        assert unpacked(seal.stored).encode() == body
        check(Entry(1, "k", "t", 0, "", seal.commitment, body.decode(), seal.salt))


def random_value(chance, depth=0):
    """Returns a value of any kind that a model's reply may contain, including those that are hard to serialise."""
    kind = chance.randrange(10 if depth < 4 else 7)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        most = chance.choice([10, 2**53, 2**80])
        return chance.choice([chance.randrange(-most, most), 2**53, 2**53 - 1, 1 - 2**53, -(2**53)])
    if kind == 2:
        (any_float,) = struct.unpack("d", struct.pack("Q", chance.getrandbits(64)))
        return chance.choice([chance.random() * 10.0 ** chance.randrange(-12, 25), any_float, chance.choice(FLOATS)])
    if kind < 7:
        return random_text(chance)
    if kind == 7:
        return [random_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {random_text(chance): random_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def random_text(chance):
    return "".join(chance.choices(WORDS, k=chance.randrange(5)))


def same(one, other):
    """True if both are equal, counting NaN as equal to NaN and 1.0 to 1."""
    if isinstance(one, float) or isinstance(other, float):
        return bool(one == other or (one != one and other != other))
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other) and type(one) is type(other)
