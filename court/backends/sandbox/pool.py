"""The parent's side of guarded workers: a small pool of child processes that may be killed.

Whatever chews on a stranger's bytes does so in a child that holds no secret, has no environment, and is bound in
memory, CPU time, file size and time on the clock. Its replies are read as strictly as a stranger's.
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
"""Worker processes of this process that ended in the middle of a job, or were ended because it took too long, by the
name of their pool. Metrics tell it."""


class JobFailed(Exception):
    """A worker said that it could not do a job; it lives on.

    Attributes:
        kind: The name of its exception.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class GuardedWorkers:
    """A pool of at most ``workers`` processes that run a module under guard, started when first needed."""

    def __init__(
        self,
        module: str,
        guard: Guard,
        *,
        name: str,
        workers: int = 1,
        watch: Callable[[Reply], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            module: Run as ``__main__``; calls :func:`court.backends.sandbox.child.serve`.
            guard: Resource limits of each process.
            name: Name of the pool in messages, such as "picture reader".
            workers: Processes at most; further jobs wait.
            watch: Is shown every reply, for what it cost.
        """
        self._module = module
        self._guard = guard
        self._name = name
        self._watch = watch
        self._closed = False
        self._alive: set[WorkerProcess] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._starting = 0
        # Last in, first out: the process that has just worked is warm, and those that are not needed are never started.
        self._idle: asyncio.LifoQueue[WorkerProcess | None] = asyncio.LifoQueue()
        for _ in range(workers):
            self._idle.put_nowait(None)

    async def run(self, body: Mapping[str, Any], payloads: Sequence[bytes] = ()) -> Reply:
        """One job.

        Raises:
            WorkerDied: In the middle of it.
            JobFailed: The worker says so.
            Overrun: The job took longer than ``wall_s``.
            Unavailable: The pool is closed, or no process could be started.
        """
        # A slot is taken here and always given back below, so that no failure makes the pool smaller.
        worker = await self._idle.get()
        usable: WorkerProcess | None = None
        try:
            process = await self._ready(worker)
            try:
                reply, failed = await process.exchange(body, payloads)
            except BaseException:
                # Cancellation too: what this process still says must never meet the next job.
                self._end(process)
                raise
            # Only a process whose reply was read to its end goes back. After anything else the slot is empty, and the
            # next job starts a new one.
            usable = process
        except WorkerDied as death:
            if self._closed:
                # aclose() kills workers in the middle of their jobs: that is neither a death to count nor the picture's
                # fault.
                raise self._unavailable("is being closed") from death
            worker_deaths[self._name] += 1
            logger.warning("a worker of the %s died: %s", self._name, death)
            raise
        except Overrun:
            worker_deaths[self._name] += 1
            raise
        finally:
            self._idle.put_nowait(usable)
        # After the process has gone back: the next job need not wait for what is only counted.
        if self._watch is not None:
            self._watch(reply)
        if failed is not None:
            raise JobFailed(failed)
        return reply

    async def warm(self) -> None:
        """Starts a process, if there is none. Raises Overrun or Unavailable if it does not become ready."""
        worker = await self._idle.get()
        try:
            worker = await self._ready(worker)
        finally:
            self._idle.put_nowait(worker)

    async def aclose(self) -> None:
        """Ends all processes; running and waiting jobs get Unavailable."""
        # First, so that no waiting job starts another process while these end.
        self._closed = True
        for process in list(self._alive):
            self._end(process)
        # A process that is just being started is ended by its job, as soon as it is there.
        while self._reaping or self._starting:
            if self._reaping:
                await asyncio.wait(self._reaping)
            else:
                await asyncio.sleep(0.01)

    async def _ready(self, worker: WorkerProcess | None) -> WorkerProcess:
        # It may have died while nobody used it, or have done as many jobs as one process may.
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
        # The pool was closed meanwhile: what it ended did not hold this process yet.
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
        """Kills at once, without waiting: it is called where a task may be cancelled."""
        process.kill()
        # A job and aclose() may both end the same process; it is reaped once.
        if process in self._alive:
            self._alive.discard(process)
            task = asyncio.get_running_loop().create_task(process.reap())
            # The event loop refers to tasks weakly: without this set a task could be collected before it has ended.
            self._reaping.add(task)
            task.add_done_callback(self._reaping.discard)

    def _unavailable(self, what: str) -> Unavailable:
        return Unavailable(f"The {self._name} {what}. Try again later.", reason="WORKER_UNAVAILABLE")
