"""Models that share one GPU and take turns: each is called while its server runs, one server at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from eval.models.vllm_session import ServedModel, VllmSessions
from serving.models.vllm import VllmSettings, free_port

_QUIET_S = 2.0
"""Seconds without a call after which a server is ended for the next one: who has an answer may ask it again at once,
and another start takes minutes."""


class VllmTurns:
    """Servers of several models, one running at a time. Calls to the other models wait until their model's turn.

    A model's turn lasts until it has had no call for a while; then the model with the most waiting calls is next. All
    are served at one address, with one key.

    Args:
        quiet_s: Seconds without a call that end a turn.
    """

    def __init__(
        self, tell: Callable[[str], None], *, pictures: int, flags: Sequence[str] = (), quiet_s: float = _QUIET_S
    ) -> None:
        # One address and key for all, so that clients opened in one turn remain valid in later ones.
        any_model = VllmSettings(model="any")
        self._sessions = VllmSessions(
            tell, pictures=pictures, flags=flags, port=free_port(any_model.host), api_key=any_model.api_key
        )
        self._quiet_s = quiet_s
        self._waiting: dict[str, list[asyncio.Future[ServedModel]]] = {}
        self._served: tuple[str, ServedModel] | None = None
        self._in_flight = 0
        self._changed = asyncio.Event()
        self._turns: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[ServedModel]:
        """Waits for a model's turn, which lasts at least as long as the context.

        Raises:
            As :func:`~eval.models.vllm_session.vllm_session`, whichever of the servers failed.
        """
        served = await self._wait_for(model)
        try:
            yield served
        finally:
            self._leave()

    async def _wait_for(self, model: str) -> ServedModel:
        assert self._turns is not None, "not entered"
        if self._turns.done():
            # Raises the error that ended the loop: this call's turn would never come.
            self._turns.result()
        if self._served is not None and self._served[0] == model:
            # No await between check and count, so that the turn cannot end in between.
            self._in_flight += 1
            self._changed.set()
            return self._served[1]
        waiter: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(model, []).append(waiter)
        self._changed.set()
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # its turn came at the same moment
                self._leave()
            raise

    def _leave(self) -> None:
        self._in_flight -= 1
        self._changed.set()

    async def _take_turns(self) -> None:
        async with self._sessions as sessions:
            while True:
                # Cleared before the check, so that a later change ends the wait.
                self._changed.clear()
                model = self._most_waited_for()
                if model is None:
                    await self._changed.wait()
                    continue
                # No call may join a server that is being stopped.
                self._served = None
                self._served = model, await sessions.serve(model)
                for waiter in self._waiting.pop(model, ()):
                    if not waiter.done():
                        # Counted here and not when it wakes up: until then the turn could seem to be over.
                        self._in_flight += 1
                        waiter.set_result(self._served[1])
                await self._until_the_turn_is_over()

    def _most_waited_for(self) -> str | None:
        # Waiters that gave up do not count.
        waiting = {model: sum(not waiter.done() for waiter in waiters) for model, waiters in self._waiting.items()}
        self._waiting = {model: self._waiting[model] for model, count in waiting.items() if count}
        return max(self._waiting, key=waiting.__getitem__, default=None)

    async def _until_the_turn_is_over(self) -> None:
        while True:
            self._changed.clear()
            # With no other model waiting the server stays, however long it is idle: a start takes minutes.
            if self._in_flight or self._most_waited_for() is None:
                await self._changed.wait()
                continue
            try:
                async with asyncio.timeout(self._quiet_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _failed(self, turns: asyncio.Task[None]) -> None:
        """Reports the failure to all who wait for a turn."""
        error = None if turns.cancelled() else turns.exception()
        for waiter in (waiter for waiters in self._waiting.values() for waiter in waiters if not waiter.done()):
            if error is None:
                waiter.cancel()
            else:
                waiter.set_exception(error)

    async def __aenter__(self) -> Self:
        self._turns = asyncio.ensure_future(self._take_turns())
        self._turns.add_done_callback(self._failed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._turns is not None
        self._turns.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((self._turns,))
