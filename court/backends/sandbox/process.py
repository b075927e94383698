"""Sandboxed child processes, from the parent's side: minimal environment, one job at a time, untrusted replies.

Untrusted bytes are only processed in a child without secrets or environment, with limits on memory, CPU time, file size
and wall-clock time. :class:`GuardedWorkers` is a small pool of such children; :class:`Guard` has the limits of one, and
:class:`Death` the ways in which it can die during a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.backends.sandbox import framing
from court.errors import Overrun, Unavailable

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
    """Reply of a worker to one job, unchecked except for the payloads' size."""

    body: dict[str, Any]
    payloads: list[bytes]
    cpu_s: float
    peak_bytes: int


class Untrusted(BaseModel):
    """A value from a worker, whose types must be exactly as stated."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Header(Untrusted):
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


logger = logging.getLogger(__name__)

worker_deaths: Counter[str] = Counter()
"""Number of this process's workers that died during a job or were killed on a timeout, by pool name; for metrics."""


class JobFailed(Exception):
    """A worker reported that a job failed; the worker is still alive."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class GuardedWorkers:
    """A pool of at most ``workers`` sandboxed processes that run a module, started on demand."""

    def __init__(
        self, module: str, guard: Guard, *, name: str, workers: int = 1, watch: Callable[[Reply], None] | None = None
    ) -> None:
        self._module = module
        self._guard = guard
        self._name = name
        self._watch = watch
        self._closed = False
        self._alive: set[WorkerProcess] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._starting = 0
        # LIFO: the process used last is warm, and processes that are not needed are never started.
        self._idle: asyncio.LifoQueue[WorkerProcess | None] = asyncio.LifoQueue()
        for _ in range(workers):
            self._idle.put_nowait(None)

    async def run(self, body: Mapping[str, Any], payloads: Sequence[bytes] = ()) -> Reply:
        """Runs one job.

        Raises:
            WorkerDied: The worker died during the job.
            JobFailed: The worker reported a failure.
            Overrun: The job took longer than ``wall_s``.
            Unavailable: The pool is closed, or no process could be started.
        """
        # The slot taken here is always returned below, so that failures do not shrink the pool.
        worker = await self._idle.get()
        usable: WorkerProcess | None = None
        try:
            process = await self._ready(worker)
            try:
                reply, failed = await process.exchange(body, payloads)
            except BaseException:
                # Including cancellation: a late reply of this process must never be taken for that of the next job.
                self._end(process)
                raise
            # Only a process whose reply was read completely is returned. Otherwise the slot is empty, and the next job
            # starts a new process.
            usable = process
        except WorkerDied as death:
            if self._closed:
                # aclose() kills workers during their jobs, which is neither a crash to count nor the picture's fault.
                raise self._unavailable("is being closed") from death
            worker_deaths[self._name] += 1
            logger.warning("a worker of the %s died: %s", self._name, death)
            raise
        except Overrun:
            worker_deaths[self._name] += 1
            raise
        finally:
            self._idle.put_nowait(usable)
        # After the process was returned, so that the next job does not wait for the callback.
        if self._watch is not None:
            self._watch(reply)
        if failed is not None:
            raise JobFailed(failed)
        return reply

    async def warm(self) -> None:
        """Starts a process if there is none. Raises Overrun or Unavailable if it does not become ready."""
        worker = await self._idle.get()
        try:
            worker = await self._ready(worker)
        finally:
            self._idle.put_nowait(worker)

    async def aclose(self) -> None:
        """Kills all processes; running and waiting jobs raise Unavailable."""
        # Set first, so that no waiting job starts another process meanwhile.
        self._closed = True
        for process in list(self._alive):
            self._end(process)
        # A process that is just being started is killed by its job once it is there.
        while self._reaping or self._starting:
            if self._reaping:
                await asyncio.wait(self._reaping)
            else:
                await asyncio.sleep(0.01)

    async def _ready(self, worker: WorkerProcess | None) -> WorkerProcess:
        # It may have died while idle, or reached its maximum number of jobs.
        if worker is not None and (self._closed or not worker.fit):
            self._end(worker)
            worker = None
        if self._closed:
            raise self._unavailable("is closed")
        if worker is not None:
            return worker
        self._starting += 1
        try:
            process = await WorkerProcess.start(self._module, self._guard, self._name)
        except OSError as error:
            raise self._unavailable("could not be started") from error
        finally:
            self._starting -= 1
        self._alive.add(process)
        # The pool was closed meanwhile, before this process was registered.
        if self._closed:
            self._end(process)
            raise self._unavailable("is being closed")
        try:
            await process.greet()
        except BaseException as error:
            self._end(process)
            if isinstance(error, WorkerDied):
                raise self._unavailable("could not be started") from error
            raise
        return process

    def _end(self, process: WorkerProcess) -> None:
        """Kills a process without waiting, as the calling task may be cancelled."""
        process.kill()
        # A job and aclose() may both kill the same process; it is reaped once.
        if process in self._alive:
            self._alive.discard(process)
            task = asyncio.get_running_loop().create_task(process.reap())
            # The event loop only holds weak references to tasks, so an unreferenced task could be garbage-collected.
            self._reaping.add(task)
            task.add_done_callback(self._reaping.discard)

    def _unavailable(self, what: str) -> Unavailable:
        return Unavailable(f"The {self._name} {what}. Try again later.", reason="WORKER_UNAVAILABLE")
