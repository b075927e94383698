"""Admission that tests open and close: each call may bring the gate that it has to pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Gate = Callable[[], AbstractAsyncContextManager[object]]

_gate: ContextVar[Gate | None] = ContextVar("gate", default=None)
_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


class Gates:
    """Stands in for :class:`serving.runner.admission.Admission`: lets in at once whoever brings no gate."""

    running = waiting = 0

    def check(self, namespace: str, **_: object) -> None:
        """Raise what the call's own check raises."""
        if (check := _check.get()) is not None:
            check()

    @asynccontextmanager
    async def acquire(self, namespace: str, **_: object) -> AsyncIterator[None]:
        """Pass the call's own gate."""
        gate = _gate.get()
        if gate is None:
            yield
            return
        async with gate():
            yield


async def through(gate: Gate, call: Awaitable[T]) -> T:
    """What a call comes to that has to pass this gate, also in tasks that it starts."""
    token = _gate.set(gate)
    try:
        return await call
    finally:
        _gate.reset(token)


async def checked(check: Callable[[], None], call: Awaitable[T]) -> T:
    """What a call comes to whose admission is refused where this raises."""
    token = _check.set(check)
    try:
        return await call
    finally:
        _check.reset(token)


class CountedPictures:
    """Hands on every change of the memory that decoded pictures take."""

    def __init__(self, tell: Callable[[int], object]) -> None:
        self.change_pictures = tell
