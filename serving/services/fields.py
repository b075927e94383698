"""Fields of requests that several calls have, checked in form: each error names the field and says what is taken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from court.errors import BadRequest
from court.precedents import PrecedentLabel
from court.verdict import Label
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import current

MOST_WHO = 200
MOST_WHY = 2000
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_MOST_LANGUAGE = 35
_LABELS: dict[int, PrecedentLabel] = {wire.LABEL_HARMFUL: Label.HARMFUL, wire.LABEL_NOT_HARMFUL: Label.NOT_HARMFUL}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def within(value: str, most: int, field: str) -> str:
    """A text of at most ``most`` characters.

    Raises:
        BadRequest: It is longer, or holds NUL, which not every place that keeps it can keep.
    """
    if len(value) > most:
        raise BadRequest(
            f"{field} has {len(value):,} characters; at most {most:,} are taken.", reason="FIELD_TOO_LONG", field=field
        )
    if "\0" in value:
        raise BadRequest(f"{field} holds the character NUL. Leave it out.", reason="FIELD_HOLDS_NUL", field=field)
    return value


def required(value: str, most: int, field: str) -> str:
    """A text that says something, of at most ``most`` characters. Raises BadRequest."""
    if not value.strip():
        raise BadRequest(f"{field} is required.", reason="FIELD_MISSING", field=field)
    return within(value, most, field)


def few(values: Sequence[str], most: int, longest: int, field: str) -> tuple[str, ...]:
    """At most ``most`` texts of at most ``longest`` characters each. Raises BadRequest."""
    if len(values) > most:
        raise BadRequest(
            f"{field} has {len(values):,} entries; at most {most:,} are taken.", reason="FIELD_TOO_LONG", field=field
        )
    return tuple(within(value, longest, field) for value in values)


def number(asked: int, default: int, most: int, field: str) -> int:
    """How many are asked for: 1 to ``most``, and 0 for ``default``. Raises BadRequest."""
    if not 0 <= asked <= most:
        raise BadRequest(
            f"{field} is {asked}; 1 to {most:,} are given, and {default} for 0.", reason="OUT_OF_RANGE", field=field
        )
    return asked or default


def language(tag: str, field: str = "language") -> str:
    """A BCP 47 tag, or nothing. Raises BadRequest."""
    if tag and (len(tag) > _MOST_LANGUAGE or not _LANGUAGE.fullmatch(tag)):
        raise BadRequest(
            f'{field} is no BCP 47 tag. Send one such as "en" or "pt-BR", or leave it out.',
            reason="BAD_LANGUAGE",
            field=field,
        )
    return tag


def found_to_be(label: int, field: str = "label") -> PrecedentLabel:
    """Harmful or not: what a person has decided is one of the two. Raises BadRequest."""
    known = _LABELS.get(label)
    if known is None:
        raise BadRequest(
            f"{field} says what the meme is found to be: LABEL_HARMFUL or LABEL_NOT_HARMFUL.",
            reason="UNKNOWN_LABEL",
            field=field,
        )
    return known


def time_of(given: Timestamp, field: str) -> datetime:
    """The first microsecond that is not before this time, or the last there is: what is kept has no finer ones.

    Raises:
        BadRequest: It lies outside the years 1 to 9999, or its nanoseconds outside a second.
    """
    try:
        if not 0 <= given.nanos < 10**9:
            raise ValueError
        second, micros = _EPOCH + timedelta(seconds=given.seconds), -(-given.nanos // 1000)
        return min(second, _LAST - timedelta(microseconds=micros)) + timedelta(microseconds=micros)
    except (ValueError, OverflowError):
        raise BadRequest(f"{field} is no time between the years 1 and 9999.", reason="BAD_TIME", field=field) from None


def signed(given: str, field: str) -> str:
    """Who stands behind this call: the caller's own name, or what is given where the server knows no callers.

    Raises:
        BadRequest: It is missing where it is required, too long, or not the caller's own name.
    """
    own = current().name
    if own:
        if given not in ("", own):
            raise BadRequest(
                f"{field} is another name than the token's. Leave it out: the token says who you are.",
                reason="NOT_THE_CALLER",
                field=field,
            )
        return own
    return required(given, MOST_WHO, field)
