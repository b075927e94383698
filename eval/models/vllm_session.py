"""A vLLM for the duration of some work: started before, watched meanwhile, and stopped after, however the work ends.

::

    async with vllm_session("qwen3-vl-8b", tell) as served:
        settings = settings.model_copy(update={"llm": served.in_all_roles(settings.llm)})
        ...

For work that uses several models one after the other, :class:`VllmSessions` runs one of them at a time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pydantic import SecretStr

from serving.cli.common import printable
from serving.models.presets import vllm_settings
from serving.models.vllm import VllmFailed, VllmServer, VllmSettings, free_port
from serving.settings import ModelSettings

_QUIET_S = 2.0
"""Seconds without a call after which a server is ended for the next one: who has an answer may ask it again at once,
and another start takes minutes."""


class VllmTurns:
    """Servers of several models, one running at a time. Calls to the other models wait until their model's turn.

    A model's turn lasts until it has had no call for a while; then the model with the most waiting calls is next. All
    are served at one address, with one key.
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
        self._waiting: Counter[str] = Counter()
        self._served: tuple[str, ServedModel] | None = None
        self._in_flight = 0
        self._changed = asyncio.Event()
        self._turns: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator["ServedModel"]:
        """Waits for a model's turn, which lasts at least as long as the context.

        Raises:
            As :func:`~eval.models.vllm_session.vllm_session`, whichever of the servers failed.
        """
        turns = self._turns
        assert turns is not None, "not entered"
        self._waiting[model] += 1
        self._wake()
        try:
            await self._until(lambda: turns.done() or (self._served is not None and self._served[0] == model))
        finally:
            self._waiting[model] -= 1
            self._wake()  # this call may have been cancelled in its turn, for whose end others wait
        if turns.done():
            turns.result()  # raises what ended the loop: this call's turn would never come
        assert self._served is not None
        # No await since the check, so that the turn cannot have ended in between.
        self._in_flight += 1
        try:
            yield self._served[1]
        finally:
            self._in_flight -= 1
            self._wake()

    def _wake(self) -> None:
        """Has all who wait check again. Without a lock, which a call that is being cancelled could not wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _next(self) -> str | None:
        return max(+self._waiting, key=self._waiting.__getitem__, default=None)

    async def _take_turns(self) -> None:
        async with self._sessions as sessions:
            while True:
                await self._until(lambda: self._next() is not None)
                model = self._next()
                assert model is not None
                # No call may join a server that is being stopped.
                self._served = None
                self._served = model, await sessions.serve(model)
                self._wake()
                await self._until_the_turn_is_over(model)

    async def _until_the_turn_is_over(self, model: str) -> None:
        # With no other model waiting the server stays, however long it is idle: a start takes minutes.
        def over() -> bool:
            return not self._in_flight and not self._waiting[model] and self._next() is not None

        while True:
            await self._until(over)
            try:
                async with asyncio.timeout(self._quiet_s):
                    await self._changed.wait()
            except TimeoutError:
                # A call may have come while this one was being woken.
                if over():
                    return

    def _ended(self, turns: asyncio.Task[None]) -> None:
        if not turns.cancelled():
            turns.exception()  # asyncio would report one that nobody has asked for
        self._wake()

    async def __aenter__(self) -> Self:
        self._turns = asyncio.ensure_future(self._take_turns())
        self._turns.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._turns is not None
        self._turns.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((self._turns,))


SERVER = "vllm"
"""Name of these servers in the call cache, because their addresses change with every start."""


@dataclass(frozen=True, slots=True)
class VllmChoice:
    """A vLLM to be started for the models of a run."""

    model: str
    """Name of a preset, ``auto``, a model's name on the hub, or a folder."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model served by a vLLM that we started."""

    url: str
    name: str
    api_key: SecretStr

    def in_all_roles(self, llm: ModelSettings) -> ModelSettings:
        """Returns settings in which it plays every role; roles keep their call settings, but no server or model of
        their own."""  # noqa: D205, D209
        nobody = {"url": None, "model": None, "api_key": None}
        roles = {role: own.model_copy(update=nobody) for role, own in llm.roles.items()}
        served = {"url": (self.url,), "model": self.name, "api_key": self.api_key}
        return llm.model_copy(update={**served, "roles": roles})


@asynccontextmanager
async def vllm_session(
    model: str,
    tell: Callable[[str], None],
    *,
    pictures: int | None = None,
    flags: Sequence[str] = (),
    port: int = 0,
    api_key: SecretStr | None = None,
) -> AsyncIterator[ServedModel]:
    """Starts a vLLM, waits until it answers, and stops it with the context.

    If it exits by itself, the work in the context is cancelled and VllmFailed is raised instead.

    Raises:
        BadRequest: A setting of the server is invalid.
        NotLoaded: There is no vLLM, or no GPU for ``auto``.
        VllmFailed: The server did not start, or exited.
    """
    values = {"images": pictures, "port": port, "api_key": api_key}
    # Arguments that are None are left to the defaults of the settings.
    values = {name: value for name, value in values.items() if value is not None}
    settings = vllm_settings(model, tell=tell, flags=tuple(flags), **values)
    tell(f"Starting vLLM with {settings.model}; this can take minutes, longer where the model must be fetched …")
    try:
        async with VllmServer(settings) as server, _watched(server):
            tell(f"vLLM answers as {server.model}.")
            yield ServedModel(server.base_url, server.model, settings.api_key)
            tell(f"Stopping vLLM with {server.model}.")
    except VllmFailed as error:
        for line in error.log:
            # Output of another program: its control characters must not reach a terminal.
            tell(f"vllm| {printable(line)}")
        raise


@asynccontextmanager
async def _watched(server: VllmServer) -> AsyncIterator[None]:
    """Cancels the work in the context when the server exits by itself, and raises VllmFailed."""

    async def watch() -> None:
        code = await server.ended()
        raise VllmFailed(
            f"vLLM ended with code {code} though nobody told it to; what it said last stands above.",
            reason="VLLM_ENDED",
            log=server.log(),
        )

    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
    except BaseExceptionGroup as errors:
        # The server's end comes before an error of the work, which may be its consequence.
        raise errors.exceptions[0] from None


class VllmSessions(AsyncExitStack):
    """Servers of several models, one running at a time because a GPU holds one. Enter and exit it in the same task."""

    def __init__(self, tell: Callable[[str], None], **options: Any) -> None:
        super().__init__()
        self._tell, self._options = tell, options
        self._running: tuple[str, ServedModel] | None = None

    async def serve(self, model: str) -> ServedModel:
        """Returns the model once served; stops a server of another model first. Raises as :func:`vllm_session`."""
        if self._running is not None and self._running[0] == model:
            return self._running[1]
        # Before the next one starts, because the GPU holds only one. A closed stack is empty and can be reused.
        self._running = None
        await self.aclose()
        served = await self.enter_async_context(vllm_session(model, self._tell, **self._options))
        self._running = model, served
        return served
