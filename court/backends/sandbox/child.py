"""The child's side of a guarded worker: bind yourself, then answer one job after the other until the parent is gone.

The limits are set by the child itself, before it has seen a byte of a stranger. It must not import more than it needs:
every module in it is memory, start-up time and surface.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from court.backends.sandbox import framing

_NICE = 5
"""What strangers sent is worked on with what others leave of the processors: answers that need none of it go first."""

Handler = Callable[[Mapping[str, Any], list[bytes]], tuple[dict[str, Any], list[bytes]]]
"""One job: what is asked and its payloads; the answer and its payloads."""


def serve(handle: Handler) -> None:
    """Answers jobs from standard input on standard output, as bound by the JSON in the first argument."""
    bounds: dict[str, Any] = json.loads(sys.argv[1])
    # The protocol moves to descriptors of its own: a library that prints must not write into it, nor read from it.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    _bind(bounds["memory_bytes"], bounds["open_files"])
    # After the limits are set: before this message the parent sends nothing of a stranger's.
    replies.writelines(framing.pack({"job": "ready", "cpu_s": _cpu_s(), "peak_bytes": _peak_bytes(), "body": {}}, []))
    replies.flush()
    while (request := framing.read(requests)) is not None:
        header, payloads = request
        started = _cpu_s()
        _allow_cpu(bounds["cpu_s"])
        failed: str | None = None
        body: dict[str, Any] = {}
        answer: list[bytes] = []
        try:
            body, answer = handle(header["body"], payloads)
        except Exception as error:  # its name only: messages of decoders carry addresses and content
            failed = type(error).__name__
        # The limit is of the job alone: waiting for the next one must not end the process.
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply = {"job": header["job"], "failed": failed, "body": body}
        cost = {"cpu_s": _cpu_s() - started, "peak_bytes": _peak_bytes()}
        try:
            replies.writelines(framing.pack({**reply, **cost}, answer))
            replies.flush()
        except BrokenPipeError:
            os._exit(0)  # the parent is gone, and with it everyone who could want the answer
        # Between jobs nothing of a stranger's picture is kept, so that the peak of one is not the ground of the next.
        del request, payloads, answer


def _bind(memory_bytes: int | None, open_files: int) -> None:
    """Limits that hold for the whole life of the process. What the platform does not know or allow is left out."""
    # A core file would hold a stranger's picture; with a file size of 0 no other file can be written either.
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, open_files)]
    if memory_bytes is not None:
        limits.append((resource.RLIMIT_AS, memory_bytes))
    for limit, value in limits:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    # An ignored signal stays ignored over exec: the CPU timer would then end nothing.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # SIGTERM to a whole group, as systemd sends it, is the parent's to answer: it finishes what runs, and needs us for
    # that. It ends us by SIGKILL; where it is gone itself, the end of our input does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _allow_cpu(seconds: float) -> None:
    """Lets the process live for that much more CPU time; then the kernel ends it.

    The profiling timer counts in fractions of a second, but decoder code that was subverted could stop it; the
    resource limit counts in whole seconds, and is there for that case.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    # Only the soft limit is set: a hard one can't be raised again for the next job.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    # Rounded up and a second more, so that the finer timer comes first wherever it still runs.
    soft = math.ceil(_cpu_s() + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak_bytes() -> int:
    """Most memory that was ever resident.

    ``ru_maxrss`` counts what the parent had at the fork, so that it is used only where there is nothing better.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:  # noqa: PTH123 - no pathlib in here
        for line in status:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
