"""Parent side of sandboxed workers: a small pool of child processes that can be killed.

Untrusted bytes are only processed in a child without secrets or environment, with limits on memory, CPU time, file size
and wall-clock time. Its replies are treated as untrusted, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from court.backends.sandbox.process import Guard, Reply, WorkerDied, WorkerProcess
from court.errors import Overrun, Unavailable

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
        self,
        module: str,
        guard: Guard,
        *,
        name: str,
        workers: int = 1,
        watch: Callable[[Reply], None] | None = None,
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
