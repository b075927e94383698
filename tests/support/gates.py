"""Fake admission control: each call may bring a gate of its own, which the test opens and closes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Gate = Callable[[], AbstractAsyncContextManager[object]]

_gate: ContextVar[Gate | None] = ContextVar("gate", default=None)
_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


class FakeAdmission:
    """A fake of :class:`serving.judging.admission.Admission` that admits calls without a gate at once."""

    running = waiting = 0

    def check(self, namespace: str, **_: object) -> None:
        """Runs the call's own check, which may raise."""
        if (check := _check.get()) is not None:
            check()

    @asynccontextmanager
    async def acquire(self, namespace: str, **_: object) -> AsyncIterator[None]:
        """Waits at the call's own gate."""
        gate = _gate.get()
        if gate is None:
            yield
            return
        async with gate():
            yield


async def call_through(gate: Gate, call: Awaitable[T]) -> T:
    """Awaits a call that has to pass a gate, also in tasks that it starts; returns its result."""
    token = _gate.set(gate)
    try:
        return await call
    finally:
        _gate.reset(token)


async def call_with_check(check: Callable[[], None], call: Awaitable[T]) -> T:
    """Awaits a call whose admission is refused if ``check`` raises; returns its result."""
    token = _check.set(check)
    try:
        return await call
    finally:
        _check.reset(token)
