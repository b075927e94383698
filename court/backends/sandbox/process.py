"""One guarded child process, seen from its parent: started bare, asked one job at a time, and never believed.

What it may use stands in :class:`Guard`; how it ends in the middle of a job, in :class:`Death`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.backends.sandbox import framing
from court.errors import Overrun

# A decoder that crashes raises none of these: somebody else sent them.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
# Long enough for a machine, or an event loop, that stands still for seconds: a process that memory was short for must
# not pass for one that ran on, or its picture would be blamed.
_ENDS_S = 5.0
"""Time that a process which has closed its pipe has to end, in seconds."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Resource limits of a worker process.

    Attributes:
        cpu_s: CPU time of one job, in seconds.
        wall_s: Time of one job on the clock, in seconds, its wait for a worker not counted.
        memory_bytes: Address space of the process; None for no limit.
        open_files: Open files of the process.
        max_reply_bytes: Payloads of one reply together.
        start_s: Time on the clock until a new process is ready, in seconds.
        jobs_per_process: After so many jobs the process is replaced, so that nothing piles up in it.
        environment: Variables of the process; it has no others.
        settings: Further settings of the module; no secret, for they are passed on the command line.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int | None
    open_files: int = 32
    max_reply_bytes: int = 64 * 1024 * 1024
    start_s: float = 60.0
    jobs_per_process: int = 1000
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


class Death(StrEnum):
    """Cause of a worker's death in the middle of a job."""

    CPU_SPENT = "CPU_SPENT"
    CRASHED = "CRASHED"
    KILLED = "KILLED"
    """By a signal that others send, as the kernel does where memory is short: the job need not be to blame."""
    BABBLED = "BABBLED"
    """It said what is no reply, and was killed."""


class WorkerDied(Exception):
    """A worker ended in the middle of a job. The next job gets a new one.

    Attributes:
        death: Cause of death.
    """

    def __init__(self, death: Death, detail: str) -> None:
        super().__init__(f"{death}: {detail}")
        self.death = death


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a worker to one job.

    Attributes:
        body: Unchecked but for being JSON.
        payloads: Unchecked but for their size.
        cpu_s: CPU time of the job, in seconds.
        peak_bytes: The most memory that was resident since the process began.
    """

    body: dict[str, Any]
    payloads: list[bytes]
    cpu_s: float
    peak_bytes: int


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    job: str
    sizes: list[int] = Field(max_length=64)
    cpu_s: float = Field(ge=0, allow_inf_nan=False)
    peak_bytes: int = Field(ge=0)
    # A name alone: the words of an exception can hold content of a meme, and this is logged.
    failed: str | None = Field(default=None, pattern=r"^\w{1,64}$")
    body: dict[str, Any]


Answer: TypeAlias = tuple[Reply, str | None]
"""A reply, and the name of the exception where the job failed."""


class WorkerProcess:
    """One child process."""

    def __init__(self, process: asyncio.subprocess.Process, guard: Guard, name: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._guard = guard
        self._name = name
        self._reading = asyncio.Lock()
        self._jobs = 0

    @classmethod
    async def start(cls, module: str, guard: Guard, name: str) -> WorkerProcess:
        """Raises OSError."""
        bounds = {"memory_bytes": guard.memory_bytes, "cpu_s": guard.cpu_s, "open_files": guard.open_files}
        setup = json.dumps({**bounds, **guard.settings})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Isolated: neither the environment nor the working folder decides what is imported. Nothing is written.
            *("-I", "-B", "-m", module, setup),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # What decoders complain about holds content of memes, and an unread pipe would fill and stop them.
            stderr=asyncio.subprocess.DEVNULL,
            # In place of the parent's environment, which may hold keys.
            env=guard.environment,
            cwd="/",
            # Ctrl-C in a terminal is for the parent, who ends its children in good order.
            start_new_session=True,
        )
        return cls(process, guard, name)

    @property
    def fit(self) -> bool:
        """True if the worker may be given another job."""
        return self._process.returncode is None and self._jobs < self._guard.jobs_per_process

    async def greet(self) -> None:
        """Waits until it is ready. Raises WorkerDied or Overrun."""
        await self._within(self._guard.start_s, self._receive("ready"))

    async def exchange(self, body: Mapping[str, Any], payloads: Sequence[bytes]) -> Answer:
        """One job. Raises WorkerDied or Overrun."""
        self._jobs += 1
        # Unguessable: a subverted worker can't lay out a reply for the job after this one.
        job = secrets.token_hex(16)
        return await self._within(self._guard.wall_s, self._ask(job, body, payloads))

    def kill(self) -> None:
        """At once, with what it has started: a new session makes it the leader of a group of its own."""
        # Once its end was seen, another may have its number.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def reap(self) -> None:
        """Waits for its end, after :meth:`kill`."""
        self._stdin.close()
        # What it said beyond what was read is still in the pipe. asyncio stops reading a pipe that nobody empties, then
        # never sees its end, and a process counts as ended only when its pipes do.
        # Whoever waits for an answer meanwhile sees the pipe's end first: two may not read at once.
        async with self._reading:
            while await self._stdout.read(65536):
                pass
        await self._process.wait()

    async def _within(self, seconds: float, step: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await step
        except TimeoutError as error:
            raise Overrun(f"The {self._name} gave no answer within {seconds:g} s. Try again.") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._died() from error

    async def _ask(self, job: str, body: Mapping[str, Any], payloads: Sequence[bytes]) -> Answer:
        self._stdin.writelines(framing.pack({"job": job, "body": body}, payloads))
        await self._stdin.drain()
        return await self._receive(job)

    async def _receive(self, job: str) -> Answer:
        async with self._reading:
            return await self._read(job)

    async def _read(self, job: str) -> Answer:
        (size,) = framing.PREFIX.unpack(await self._stdout.readexactly(framing.PREFIX.size))
        # Sizes are the child's word: they are checked before anything is read or reserved by them.
        if size > framing.MAX_HEADER:
            raise WorkerDied(Death.BABBLED, f"a header of {size} bytes")
        try:
            header = _Header.model_validate_json(await self._stdout.readexactly(size))
        except ValidationError as error:
            raise WorkerDied(Death.BABBLED, f"a header with {error.error_count()} faults") from None
        if header.job != job:
            raise WorkerDied(Death.BABBLED, "a reply to a job that it was not given")
        if min(header.sizes, default=0) < 0 or sum(header.sizes) > self._guard.max_reply_bytes:
            raise WorkerDied(Death.BABBLED, f"payloads of {sum(header.sizes)} bytes")
        payloads = [await self._stdout.readexactly(size) for size in header.sizes]
        return Reply(header.body, payloads, header.cpu_s, header.peak_bytes), header.failed

    async def _died(self) -> WorkerDied:
        """Names the end of a process whose pipe has closed."""
        try:
            async with asyncio.timeout(_ENDS_S):
                # A process that ends closes its pipes first; its exit code follows a moment later.
                code = await self._process.wait()
        except TimeoutError:
            return WorkerDied(Death.BABBLED, "it closed its pipe and ran on")
        # Both limits of child._allow_cpu: the timer, and the resource limit where code in the child has stopped the
        # timer.
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            return WorkerDied(Death.CPU_SPENT, f"more than {self._guard.cpu_s:g} s of CPU time")
        return WorkerDied(Death.KILLED if code in _FROM_OUTSIDE else Death.CRASHED, ending(code))


def ending(code: int) -> str:
    """Describes the return code of a process: its exit status, or the signal, which need not have a name."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # those for real time are numbered
        return f"signal {-code}"
