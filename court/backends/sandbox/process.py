"""One sandboxed child process, from the parent's side: minimal environment, one job at a time, untrusted replies.

:class:`Guard` has its resource limits, and :class:`Death` the ways in which it can die during a job.
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

# A crashing decoder causes none of these signals, so they were sent from outside.
_EXTERNAL_SIGNALS = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
# Long enough for a machine or event loop that stalls for seconds: a process killed for lack of memory must not be
# mistaken for one that kept running, or its picture would be blamed.
_ENDS_S = 5.0
"""Seconds that a process may take to exit after closing its pipe."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Resource limits of a worker process.

    Attributes:
        wall_s: Wall-clock time of one job, in seconds, without the wait for a worker.
        max_reply_bytes: Total size of the payloads of one reply, in bytes.
        start_s: Wall-clock time until a new process is ready, in seconds.
        jobs_per_process: Number of jobs after which a process is replaced, to limit leaks.
        settings: Further settings of the module; not secret, as they are passed on the command line.
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
    """By an external signal, as from the kernel when memory is short; not necessarily caused by the job."""
    BABBLED = "BABBLED"
    """It sent an invalid reply and was killed."""


class WorkerDied(Exception):
    """A worker died during a job. The next job gets a new one."""

    def __init__(self, death: Death, detail: str) -> None:
        super().__init__(f"{death}: {detail}")
        self.death = death


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a worker to one job.

    Attributes:
        body: JSON object, otherwise unchecked.
        payloads: Payloads, unchecked except for their size.
        peak_bytes: Peak resident memory since the process started, in bytes.
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
    # Only a type name: messages of exceptions can contain meme content, and this is logged.
    failed: str | None = Field(default=None, pattern=r"^\w{1,64}$")
    body: dict[str, Any]


Answer: TypeAlias = tuple[Reply, str | None]
"""A reply, and the name of the exception if the job failed."""


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
        """Starts a process. Raises OSError."""
        bounds = {"memory_bytes": guard.memory_bytes, "cpu_s": guard.cpu_s, "open_files": guard.open_files}
        setup = json.dumps({**bounds, **guard.settings})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Isolated mode: neither environment nor working directory affects imports. No bytecode is written.
            *("-I", "-B", "-m", module, setup),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Messages of decoders contain meme content, and an unread pipe would fill up and block them.
            stderr=asyncio.subprocess.DEVNULL,
            # Replaces the parent's environment, which may contain keys.
            env=guard.environment,
            cwd="/",
            # A new session, so that Ctrl-C only reaches the parent, which stops its children in an orderly way.
            start_new_session=True,
        )
        return cls(process, guard, name)

    @property
    def fit(self) -> bool:
        """True if the worker may be given another job."""
        return self._process.returncode is None and self._jobs < self._guard.jobs_per_process

    async def greet(self) -> None:
        """Waits until the process is ready. Raises WorkerDied or Overrun."""
        await self._within(self._guard.start_s, self._receive("ready"))

    async def exchange(self, body: Mapping[str, Any], payloads: Sequence[bytes]) -> Answer:
        """Runs one job. Raises WorkerDied or Overrun."""
        self._jobs += 1
        # Unguessable, so that a compromised worker can't prepare a reply for the next job.
        job = secrets.token_hex(16)
        return await self._within(self._guard.wall_s, self._ask(job, body, payloads))

    def kill(self) -> None:
        """Kills the process and its children, as a new session makes it the leader of its own process group."""
        # Once it was reaped, its PID may have been reused.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def reap(self) -> None:
        """Waits for the process to end, after :meth:`kill`."""
        self._stdin.close()
        # Unread output is still in the pipe. asyncio pauses reading a full pipe, then never sees its end, and a process
        # only counts as ended once its pipes do. The lock lets a job that waits for a reply see the end of the pipe
        # first, as two readers are not allowed.
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
        # Sizes are untrusted: they are checked before anything is read or allocated.
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
        """Returns the cause of death of a process whose pipe has closed."""
        try:
            async with asyncio.timeout(_ENDS_S):
                # An exiting process closes its pipes first; its exit code follows a moment later.
                code = await self._process.wait()
        except TimeoutError:
            return WorkerDied(Death.BABBLED, "it closed its pipe and ran on")
        # Both limits of child._allow_cpu: the timer, and the resource limit in case code in the child stopped the
        # timer.
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            return WorkerDied(Death.CPU_SPENT, f"more than {self._guard.cpu_s:g} s of CPU time")
        return WorkerDied(Death.KILLED if code in _EXTERNAL_SIGNALS else Death.CRASHED, ending(code))


def ending(code: int) -> str:
    """Describes the return code of a process: exit status or signal, which may have no name."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"signal {-code}"
