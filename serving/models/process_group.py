"""A process with all that it starts: its log is read, its end is noticed, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_LINE = 4096
"""Characters of one line that are kept; a longer one is kept as several."""


class ProcessGroup:
    """Starts a process in a session of its own, so that Ctrl-C in a terminal reaches us alone and we end it in order.

    Its standard input is a pipe that is never written to: by its end the process can tell that we are gone.
    """

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], *, secret: str, tell: Callable[[str], None]
    ) -> None:
        self._secret = secret
        self._report = tell
        # Bounded: a process that runs for weeks says more than memory should hold.
        self._lines: deque[str] = deque(maxlen=1000)
        self._reaped = False
        self._signalling = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[int] = self._loop.create_future()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            # A log in another encoding must not end the reading: a full pipe would stop the process.
            errors="replace",
            # Also makes it the leader of a group of its own, which can be ended as a whole.
            start_new_session=True,
            env=environment,
        )
        self._listener = threading.Thread(target=self._listen, name="process-log", daemon=True)
        self._listener.start()
        threading.Thread(target=self._watch, name="process-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """Id of the process that was started, which leads the group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if any process of the group may be alive."""
        return not self._gone.done()

    def log(self, lines: int) -> tuple[str, ...]:
        """The last that it said."""
        return tuple(self._lines)[-lines:]

    async def ended(self) -> int:
        """Waits until it has ended, of itself or by ``stop``, and the rest of the group too; tells its exit code."""
        # Shielded: a caller that stops waiting must not cancel the future for the others.
        return await asyncio.shield(self._gone)

    async def stop(self, grace: float) -> None:
        """Tells it to end, and after the grace ends all of it. What has ended already is left alone."""
        # Only the leader is told: it finishes what it holds, and then tells the others in order.
        self._signal(signal.SIGTERM, os.kill)
        try:
            async with asyncio.timeout(grace):
                await self.ended()
        except TimeoutError:
            self._signal(signal.SIGKILL, os.kill)  # the others follow, see _watch
            await self.ended()
        except asyncio.CancelledError:
            self._signal(signal.SIGKILL, os.killpg)  # we may be gone before _watch has done its part
            raise

    def _listen(self) -> None:
        """Reads all that is said, to the end: a pipe that is full would stop them."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_LINE):
            line = line.rstrip("\n").replace(self._secret, "[key]")
            self._lines.append(line)
            with suppress(Exception):  # whatever becomes of a line elsewhere, the pipe is read on
                self._report(line)

    def _watch(self) -> None:
        """Waits for the process's end, however it comes; then ends what it left, and says so."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        # Only looks: until it is reaped, its number can't become that of a group that is none of ours.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_all_but_trackers(process.pid)
        self._listener.join(timeout=2)  # all of them hold the pipe: at its end they are gone
        # The trackers have had their time: whatever is left of the group goes now.
        self._signal(signal.SIGKILL, os.killpg)
        with self._signalling:
            code = process.wait()
            self._reaped = True
        _wait_for_group(process.pid)
        with suppress(OSError):
            process.stdin.close()
        self._listener.join(timeout=5)
        if not self._listener.is_alive():
            process.stdout.close()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            # Futures belong to the loop's thread, and this is another.
            self._loop.call_soon_threadsafe(self._set_gone, code)

    def _set_gone(self, code: int) -> None:
        if not self._gone.done():
            self._gone.set_result(code)

    def _signal(self, number: signal.Signals, send: Callable[[int, int], None]) -> None:
        # Under the lock of the reaping: afterwards the number may be that of a process that is none of ours.
        with self._signalling, suppress(ProcessLookupError):
            if not self._reaped:
                send(self.pid, number)


def _kill_all_but_trackers(group: int) -> None:
    """Ends a group whose leader is dead, except for Python's resource trackers.

    They end by themselves once the others have, and then remove the shared memory that those left: some hundred
    megabytes that would otherwise stay until the machine is started anew.
    """
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end between the listing and these calls.
        with suppress(OSError):
            number = int(process.name)
            if number == group or os.getpgid(number) != group:
                continue
            if b"resource_tracker" not in (process / "cmdline").read_bytes():
                os.kill(number, signal.SIGKILL)


def _wait_for_group(group: int) -> None:
    """Until the last of a killed group is gone, not only dying: a new start needs its memory and its port."""
    end = time.monotonic() + 2
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            # Signal 0 only asks whether the group is still there.
            os.killpg(group, 0)
            time.sleep(0.02)
