"""While a service is open it has something to work with, and it knows how many calls do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from serving.services.calls import not_in_session

T = TypeVar("T")


class Session(Generic[T]):
    """What a service answers with, from when it is opened until it is closed."""

    def __init__(self) -> None:
        """Not open yet: a server listens while it warms up."""
        self._with: T | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, what: T) -> None:
        """From now on calls are answered with this."""
        self._with = what

    def close(self) -> None:
        """From now on calls are turned away; those being answered go on."""
        self._with = None

    @contextmanager
    def call(self) -> Iterator[T]:
        """For as long as a call is answered. Raises Unavailable while there is no session."""
        if self._with is None:
            raise not_in_session()
        self._calls += 1
        self._idle.clear()
        try:
            yield self._with
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def empty(self, seconds: float) -> None:
        """Waits until no call is being answered, at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
