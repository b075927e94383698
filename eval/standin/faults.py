"""Faults that a fake model server can inject, by rate or call by call.

A fault is written ``KIND[:SECONDS][@RATE]``, for example ``503``, ``429:2`` (with ``Retry-After: 2``), ``slow:1.5@0.1``
(one call in ten is answered 1.5 s later), ``reset@0.02``. ``ok`` means no fault.
"""

import random
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Kind(StrEnum):
    """Kind of fault."""

    OK = "ok"
    STATUS = "status"
    """An HTTP status, written as its number; the seconds are its ``Retry-After``."""
    RESET = "reset"
    """The connection is closed before an answer begins."""
    HANG = "hang"
    """No answer, ever."""
    SLOW = "slow"
    """The answer begins that many seconds late."""
    DRIP = "drip"
    """The answer comes byte by byte, that many seconds apart."""
    CUT = "cut"
    """The connection is closed in the middle of the answer."""
    GARBAGE = "garbage"
    """Something that is not JSON, with status 200."""
    WRONG_SHAPE = "wrong_shape"
    """JSON that is not a chat completion."""
    NO_CHOICES = "no_choices"
    """A chat completion without a choice."""
    DUPLICATE = "duplicate"
    """Two choices instead of the one requested."""
    WRONG_SCHEMA = "wrong_schema"
    """A reply that is valid JSON but does not obey the schema."""
    TRUNCATED = "truncated"
    """Half of the reply, with finish reason ``length``."""
    EMPTY = "empty"
    """An empty reply."""
    REFUSAL = "refusal"
    """The model declines."""
    FILTER = "filter"
    """A content filter blocks the reply."""
    ABORT = "abort"
    """A finish reason that the API does not name, as vLLM has when it shuts down."""


_WRITTEN = re.compile(r"(?P<kind>[1-9]\d\d|[a-z_]+)(:(?P<seconds>[\d.]+))?(@(?P<rate>[\d.]+))?")
_SECONDS = {Kind.SLOW: 1.0, Kind.DRIP: 0.05}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault."""

    kind: Kind
    status: int = 0
    """HTTP status, if ``kind`` is STATUS."""
    seconds: float = 0.0
    rate: float = 1.0
    """Share of the calls that it affects, in [0, 1]."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a fault. Raises ValueError if the text is not a valid fault."""
        found = _WRITTEN.fullmatch(text.strip())
        # The word `status` is a value of Kind too, but gives no status code.
        if found is None or found["kind"] == Kind.STATUS or float(found["rate"] or 0) > 1:
            raise ValueError(
                "a fault is written KIND[:SECONDS][@RATE], with a rate within [0, 1]; a status is a number"
            )
        status = int(found["kind"]) if found["kind"].isdigit() else 0
        kind = Kind.STATUS if status else Kind(found["kind"])
        return cls(kind, status, float(found["seconds"] or _SECONDS.get(kind, 0.0)), float(found["rate"] or 1))


OK = InjectedFault(Kind.OK)


class Faults:
    """Decides the fault of each call: scripted ones first, then by rate."""

    def __init__(self, rates: Iterable[str] = (), script: Sequence[str] = (), seed: int = 0) -> None:
        """Parses the faults; the same seed gives the same sequence."""
        self._rates = [InjectedFault.parse(text) for text in rates]
        # A sum of decimal rates may exceed 1 by rounding.
        if sum(fault.rate for fault in self._rates) > 1 + 1e-9:
            raise ValueError("the rates add up to more than 1")
        self._script = deque(InjectedFault.parse(text) for text in script)
        self._random = random.Random(f"faults {seed}")

    def script(self, faults: Iterable[str]) -> None:
        """Assigns these faults to the next calls, in order, after any that were scripted before."""
        # As a list: an invalid fault raises before any of them is added.
        self._script.extend([InjectedFault.parse(text) for text in faults])

    def next(self) -> InjectedFault:
        """Returns the fault of the current call."""
        if self._script:
            return self._script.popleft()
        # One draw for all rates, so that a call has at most one fault and the rates sum to the share of faulty calls.
        drawn = self._random.random()
        for fault in self._rates:
            drawn -= fault.rate
            if drawn < 0:
                return fault
        return OK
