"""Runs an encoder in a child process, so that it does not compete for the parent's GIL.

Both the process and its inputs are trusted (pictures are re-encoded by the sandboxed reader), so it has no resource
limits and its answers are not checked. It exits with its parent, however the parent ends.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from court.backends.sandbox.process import ending, worker_deaths
from court.errors import CourtError, Unavailable
from retrieval.embed.encoder import Encoder, EncoderIdentity, KnownMinSimilarity, TextEmbeddings

_AT_ONCE = 8
"""Concurrent calls: twice the number of texts that the built-in encoder embeds at once. Others wait in the pipe."""
_NICE = 10
"""A trial waits for its precedents anyway: whatever answers others, or holds the interpreter of the parent, goes first.
Not more than that: a tenth of a processor is left to it by whatever else keeps that busy."""

CALL_CPU_S = 10.0
"""CPU time that the thread of a call may take for each text or picture in it, in seconds. It takes hundredths of one,
with a large CLIP some: what takes this long will hardly ever end, and keeps others from theirs."""
CALL_S = 120.0
"""The same by the clock, the wait in the pipe included: for what hangs, and takes no CPU time or lets nobody look."""
_POLL_S = 0.5
"""Interval of checking the CPU time of running calls, in seconds."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
"""Initial and maximum backoff after a failed start; doubles with each further failure."""

_ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""For glibc: what weights were turned in while they were loaded, 30 MB, is the system's again."""
_CODE = f"from {__name__} import main; main()"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RemoteError:
    """A failed start, shared by all waiting callers. There is no new attempt before ``until``."""

    message: str
    reason: str
    pause_s: float
    until: float


class EncoderProcess:
    """An :class:`~retrieval.embed.encoder.Encoder` that runs in a child process.

    If the process dies, it is restarted and calls in progress are retried once; a call during which it dies again
    raises Unavailable. After a failed restart, all calls raise Unavailable for a while. A call that takes too long
    kills the process, is not retried, and raises Unavailable (``ENCODER_STUCK``).
    """

    def __init__(
        self,
        load: Callable[[], Encoder],
        clock: Callable[[], float] = time.monotonic,
        *,
        call_cpu_s: float = CALL_CPU_S,
        call_s: float = CALL_S,
    ) -> None:
        """Starts the process and waits until the encoder is loaded, which takes seconds.

        Args:
            call_cpu_s: CPU time limit of a call for each text or picture in it, in seconds.

        Raises:
            Unavailable: The process ended before the encoder was loaded.
            Exception: Any error that ``load`` raised.
        """
        self._start = partial(_Child, load, call_cpu_s)
        self._clock = clock
        self._call_s = call_s
        self._failure: _RemoteError | None = None
        # One start at a time: all callers waiting for the dead process share the next one.
        self._starting = threading.Lock()
        self._closed = False
        self._child = self._start()

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder."""
        return self._child.identity

    @property
    def floors(self) -> KnownMinSimilarity:
        """Minimum similarities of the encoder."""
        return self._child.floors

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """Embeds texts in the process. Raises Unavailable if it dies twice on them or can't be restarted."""
        found: TextEmbeddings = self._ask("embed_texts", list(texts), items=len(texts))
        return found

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """Embeds pictures in the process. Raises Unavailable if it dies twice on them or can't be restarted."""
        items = [list(frames) for frames in pictures]
        found: NDArray[np.float32] = self._ask("embed_pictures", items, items=len(items))
        return found

    def embed_meme(self, text: str, frames: Sequence[bytes]) -> tuple[TextEmbeddings, NDArray[np.float32] | None]:
        """Embeds a meme in the process. Raises Unavailable if it dies twice on it or can't be restarted."""
        found: tuple[TextEmbeddings, NDArray[np.float32] | None] = self._ask("embed_meme", text, list(frames))
        return found

    def check(self) -> None:
        """Tries to restart the process if the last restart failed; else does nothing.

        Raises:
            Unavailable: The process can't be started now.
        """
        if self._failure is not None:
            self._after(self._child)

    def close(self) -> None:
        """Stops the process; waiting callers get Unavailable."""
        with self._starting:
            self._closed = True
            self._child.end()

    def _ask(self, method: str, *arguments: object, items: int = 1) -> Any:
        within_s = self._call_s * max(1, items)
        child = self._child
        try:
            return child.ask(method, arguments, within_s)
        except _Ended:
            restarted = self._after(child)
        try:
            return restarted.ask(method, arguments, within_s)
        # Two processes died during this call, which may be the cause, so it is not retried again.
        except _Ended as error:
            raise error.unavailable() from None

    def _after(self, ended: _Child) -> _Child:
        """Returns the process that replaces an ended one, starting it if necessary."""
        with self._starting:
            # Otherwise another caller of the same process has already started the next one.
            if self._child is ended and not self._closed:
                if self._failure is None:
                    # Counted once per death, not per failed restart.
                    worker_deaths["encoder"] += 1
                # Callers share a failed restart; otherwise each in turn would wait for another attempt.
                if self._failure is None or self._clock() >= self._failure.until:
                    self._failure = self._restart(ended)
                if self._failure is not None:
                    left = max(0.0, self._failure.until - self._clock())
                    raise Unavailable(self._failure.message, reason=self._failure.reason, retry_after=left)
            return self._child

    def _restart(self, ended: _Child) -> _RemoteError | None:
        _log.warning("the encoder's process ended (%s); it is started again", ended.how)
        try:
            restarted = self._start()
            # Vectors of different encoders must never be compared.
            if restarted.identity != ended.identity:
                restarted.end()
                raise Unavailable(
                    f"The encoder had to be started again, and is {restarted.identity} now instead of "
                    f"{ended.identity}. Restart the court.",
                    reason="ENCODER_CHANGED",
                )
        except Exception as error:
            # Exponential backoff, as missing weights don't come back by retrying every second.
            pause_s = min(2 * self._failure.pause_s, _LONGEST_PAUSE_S) if self._failure else _FIRST_PAUSE_S
            known = error if isinstance(error, CourtError) else _Ended(type(error).__name__).unavailable()
            _log.warning("the encoder can't be started again (%s); next in %g s at the soonest", known.reason, pause_s)
            return _RemoteError(known.message, known.reason, pause_s, self._clock() + pause_s)
        self._child = restarted
        return None


class _Ended(Exception):
    """A process ended before it answered; the message says how."""

    def unavailable(self) -> Unavailable:
        return Unavailable(
            f"The encoder's process ended ({self}) before it had answered. Try again.", reason="ENCODER_ENDED"
        )


def _stuck() -> Unavailable:
    return Unavailable("The encoder came to no end with what it was given, and was ended.", reason="ENCODER_STUCK")


class _Child:
    """One encoder process, and the callers waiting for its answers."""

    def __init__(self, load: Callable[[], Encoder], call_cpu_s: float) -> None:
        here, there = socket.socketpair()
        # Closed here once the child has it, as an open end here would hide the child's death.
        with there:
            self._process = subprocess.Popen(
                # Same module search path as the parent, without the working directory.
                [sys.executable, "-P", "-c", _CODE, str(there.fileno())],
                env={**os.environ, **_ALLOCATION, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )
        # Detached: the connection closes the descriptor, and the socket must not do so a second time.
        self._connection = Connection(here.detach())
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._closed = False
        try:
            self._connection.send((load, call_cpu_s))
            loaded = self._connection.recv()
        # Also on Ctrl-C, which would otherwise leave behind a process that is loading weights.
        except BaseException as error:
            self._hang_up()
            if isinstance(error, EOFError | OSError):
                raise _Ended(self.how).unavailable() from error
            raise
        # Errors of ``load`` are re-raised unchanged, so that the caller sees what is wrong with the weights.
        if isinstance(loaded, Exception):
            self._hang_up()
            raise loaded
        self.identity: EncoderIdentity
        self.floors: KnownMinSimilarity
        self.identity, self.floors = loaded
        threading.Thread(target=self._listen, name="encoder", daemon=True).start()

    @property
    def how(self) -> str:
        return ending(self._process.wait())

    def ask(self, method: str, arguments: tuple[object, ...], within_s: float) -> Any:
        """Calls a method of the encoder in the process, which is killed on timeout.

        Raises:
            Unavailable: The call timed out.
            _Ended: The process ended before it answered.
        """
        answer: Future[Any] = Future()
        # _listen closes under this lock: a later call would wait for an answer that nobody receives.
        with self._sending:
            if self._closed:
                raise _Ended(self.how)
            number = next(self._numbers)
            # Registered before sending, as the answer may arrive before send() returns.
            self._waiting[number] = answer
            try:
                self._connection.send((number, method, arguments))
            except OSError as error:
                self._waiting.pop(number, None)
                self.end()
                # The pipe may hold a partial message, after which nothing can be read, so the process is useless.
                raise _Ended(self.how) from error
        try:
            return answer.result(within_s)
        except TimeoutError:
            if answer.done():  # an error of the encoder's own, or the very last moment
                return answer.result()
            self.end()
            # A thread can't be killed, only the process. Concurrent calls are retried; this one is not, as it would get
            # the next process killed too.
            raise _stuck() from None

    def end(self) -> None:
        """Kills the process, which has no state that could be lost."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    number, failed, got = self._connection.recv()
                    answer = self._waiting.pop(number)
                    if failed:
                        answer.set_exception(got)
                    else:
                        answer.set_result(got)
        finally:
            # In any case: no caller may be left waiting for an answer that nobody receives.
            with self._sending:
                self._closed = True
                self._hang_up()
            # No new call can be added meanwhile: it would find the connection closed under the lock above.
            for answer in self._waiting.values():
                answer.set_exception(_Ended(self.how))

    def _hang_up(self) -> None:
        self.end()
        self._connection.close()


def _serve(connection: Connection) -> None:
    """Child side: loads the encoder, then serves calls; raises EOFError or OSError when the parent has exited."""
    # Ctrl-C, and SIGTERM to the whole group, are handled by the parent, which needs us to finish running calls.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    load, call_cpu_s = connection.recv()
    answering = _Answering(connection, call_cpu_s)
    # Calls queue in this pool, so that the parent can always send. Loading runs in it too, so that the exit of the
    # parent is noticed meanwhile.
    threads = ThreadPoolExecutor(_AT_ONCE)
    threads.submit(answering.begin, load)
    threading.Thread(target=answering.watch, daemon=True).start()
    while True:
        threads.submit(answering.answer, *connection.recv())


def _go_behind() -> None:
    """Lowers the priority of all present and future threads. Called after loading, which everything waits for."""
    threads = Path("/proc/self/task")
    if not threads.is_dir():
        os.nice(_NICE)  # for the whole process, on systems other than Linux
        return
    for number in [int(thread.name) for thread in threads.iterdir()]:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, number, os.getpriority(os.PRIO_PROCESS, number) + _NICE)


class _Answering:
    """Answers the parent's calls, which begin only after it was told that the encoder is loaded."""

    def __init__(self, connection: Connection, call_cpu_s: float) -> None:
        self._connection = connection
        self._call_cpu_s = call_cpu_s
        self._sending = threading.Lock()
        self._encoder: Encoder
        # For each running call: the CPU clock of its thread, and the reading at which it times out.
        self._until: dict[int, tuple[int, float]] = {}

    def begin(self, load: Callable[[], Encoder]) -> None:
        try:
            self._encoder = load()
            _go_behind()
        except Exception as error:
            self._send(_sendable(error))
        else:
            self._send((self._encoder.identity, self._encoder.floors))

    def answer(self, number: int, method: str, arguments: tuple[object, ...]) -> None:
        if hasattr(time, "pthread_getcpuclockid"):  # macOS has none
            items = 1 if method == "embed_meme" else len(arguments[0])  # type: ignore[arg-type]
            # The pool keeps its threads until the process ends, so no clock outlives its thread.
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._until[number] = clock, time.clock_gettime(clock) + self._call_cpu_s * max(1, items)
        try:
            failed, got = False, getattr(self._encoder, method)(*arguments)
        except Exception as error:
            failed, got = True, _sendable(error)
        self._until.pop(number, None)
        self._send((number, failed, got))

    def watch(self) -> None:
        """Kills the process if a call exceeds its CPU time, as a single thread can't be killed."""
        while True:
            time.sleep(_POLL_S)
            # A copy, as calls begin and end meanwhile.
            for number, (clock, until) in list(self._until.items()):
                if time.clock_gettime(clock) > until:
                    # Answered first, as a caller who only sees the process die retries the call.
                    self._send((number, True, _stuck()))
                    os._exit(1)

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except Exception:
            os._exit(1)  # tells waiting callers that no answer will come


def _sendable(error: Exception) -> Exception:
    if isinstance(error, CourtError):
        return error
    for kind in (ValueError, OSError, MemoryError, RuntimeError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"the encoder failed by {type(error).__qualname__}")


def main() -> None:
    """Runs the encoder process, whose argument is the file descriptor of its socket."""
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        os._exit(0)  # the parent process has exited
