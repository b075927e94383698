"""Template filters: untrusted text made safe; moments, durations and counts for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from court.display import split_hidden, word
from serving.views.charts import gauge


def show_hidden(text: object) -> Markup:
    """Escapes untrusted text, and shows each invisible character as its code point, marked as ours."""
    parts = []
    for piece, hidden in split_hidden(str(text)):
        if hidden:
            parts.append(Markup('<span class="unseen" title="a character that can’t be seen">{}</span>').format(piece))
        else:
            parts.append(escape(piece))
    return Markup("").join(parts)


def when(at: datetime) -> Markup:
    """A moment, for people and machines."""
    utc = at.astimezone(UTC)
    # The day without a leading zero, for which strftime has no portable form.
    return Markup('<time datetime="{}">{} UTC</time>').format(
        utc.isoformat(timespec="milliseconds"), f"{utc.day} {utc:%b %Y %H:%M}"
    )


def clock(at: datetime) -> Markup:
    """Formats the time of day only, for use where the day is shown elsewhere."""
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{:%H:%M:%S}</time>').format(utc.isoformat(timespec="milliseconds"), utc)


def ago(at: datetime) -> Markup:
    """An age at a glance, with the moment behind it: ``4 min``, ``3 h``, ``2 d``, and after a week the day."""
    utc = at.astimezone(UTC)
    minutes = int((datetime.now(UTC) - utc).total_seconds() // 60)
    if minutes < 1:  # also where another machine's clock is ahead
        words = "now"
    elif minutes < 60:
        words = f"{minutes} min"
    elif minutes < 24 * 60:
        words = f"{minutes // 60} h"
    elif minutes < 7 * 24 * 60:
        words = f"{minutes // (24 * 60)} d"
    else:
        words = f"{utc.day} {utc:%b %Y}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds"), f"{utc.day} {utc:%b %Y %H:%M} UTC", words
    )


def kind(name: str) -> str:
    """The kind of an event as words: ``NearDuplicatesFound`` is ``near duplicates found``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def seconds(value: float) -> str:
    """A duration: ``840 ms``, ``3.1 s``, ``2 min 5 s``."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value // 60:.0f} min {value % 60:.0f} s"


def number(value: int) -> str:
    """A count, its thousands apart by narrow spaces."""
    return f"{value:,}".replace(",", "\u202f")


FILTERS = {
    "seen": show_hidden,
    "when": when,
    "clock": clock,
    "ago": ago,
    "gauge": gauge,
    "kind": kind,
    "word": word,
    "seconds": seconds,
    "number": number,
}
"""All of them, by the names that templates know."""


@cache
def environment(package: str) -> Environment:
    """The templates of a package, and those of a trial's parts; everything that is put into one is escaped."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        # For every template, whatever its name: all of them show what strangers wrote (PR-2).
        autoescape=True,
        # A misspelt name is an error, and not an empty place on a page that people decide by.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= FILTERS
    return made
