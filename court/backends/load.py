"""How many calls of the court are with the model server, and whether it has room for one that may be superfluous."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Load:
    """Counts calls in flight, of all roles and trials that share a server; safe within one event loop.

    It holds nothing back: a call that is needed is made at once, and where too many are made, it is whole trials that
    have to wait. What it decides is whether a side may ask ahead: below ``concurrency`` calls the server would stand
    partly idle, so that a superfluous call costs nobody anything; from there on it would take a needed one's place.
    """

    def __init__(self, concurrency: int) -> None:
        """Nothing is in flight yet.

        Args:
            concurrency: Calls that the server works on at once without any of them waiting (vLLM: ``--max-num-seqs``
                or what its cache holds). Where several processes share a server: this one's part of it.
        """
        if concurrency < 1:
            raise ValueError("a server works on at least one call")
        self._concurrency = concurrency
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Calls that were sent and are not answered, given up or failed."""
        return self._in_flight

    def room(self) -> bool:
        """Whether one more call would be worked on at once. For :attr:`court.trial.Court.room`."""
        return self._in_flight < self._concurrency

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call, for as long as the context lasts."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
