"""Child side of a sandboxed worker: sets its own limits, then serves jobs until the parent process exits.

The child sets the limits itself before it sees any untrusted byte. It must import only what it needs: every module adds
memory, start-up time and attack surface.
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
"""Niceness of workers, so that requests that need no worker are served first."""

Handler = Callable[[Mapping[str, Any], list[bytes]], tuple[dict[str, Any], list[bytes]]]
"""Handles one job: takes request body and payloads, returns reply body and payloads."""


def serve(handle: Handler) -> None:
    """Serves jobs from standard input to standard output, with the limits from the JSON in the first argument."""
    bounds: dict[str, Any] = json.loads(sys.argv[1])
    # The protocol moves to its own file descriptors, so that libraries that print or read can't interfere.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.close(null_device)
    os.dup2(2, 1)
    _bind(bounds["memory_bytes"], bounds["open_files"])
    # Sent after the limits are set; the parent sends no untrusted data before it.
    replies.writelines(framing.pack({"job": "ready", "cpu_s": _cpu_s(), "peak_bytes": _peak_bytes(), "body": {}}, []))
    replies.flush()
    while (request := framing.read(requests)) is not None:
        header, payloads = request
        started = _cpu_s()
        _allow_cpu(bounds["cpu_s"])
        failed: str | None = None
        body: dict[str, Any] = {}
        payloads_out: list[bytes] = []
        try:
            body, payloads_out = handle(header["body"], payloads)
        except Exception as error:  # only its name: messages of decoders contain addresses and content
            failed = type(error).__name__
        # The limit applies to the job only: waiting for the next one must not kill the process.
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply = {"job": header["job"], "failed": failed, "body": body}
        cost = {"cpu_s": _cpu_s() - started, "peak_bytes": _peak_bytes()}
        try:
            replies.writelines(framing.pack({**reply, **cost}, payloads_out))
            replies.flush()
        except BrokenPipeError:
            os._exit(0)  # the parent process has exited
        # Frees the data between jobs, so that it does not count towards the next job's peak memory.
        del request, payloads, payloads_out


def _bind(memory_bytes: int | None, open_files: int) -> None:
    """Sets limits for the lifetime of the process. Limits that the platform does not support are skipped."""
    # A core file would contain an untrusted picture; with a file size limit of 0 no other file can be written either.
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, open_files)]
    if memory_bytes is not None:
        limits.append((resource.RLIMIT_AS, memory_bytes))
    for limit, value in limits:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    # Ignored signals stay ignored across exec, and the CPU timer would then have no effect.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # SIGTERM to the whole group, as from systemd, is handled by the parent, which needs workers to finish running jobs.
    # It kills them by SIGKILL; if it dies itself, they exit at the end of their input.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _allow_cpu(seconds: float) -> None:
    """Allows the process that much more CPU time, after which the kernel kills it."""
    # The profiling timer has sub-second resolution, but compromised decoder code could stop it; the resource limit has
    # a resolution of whole seconds and covers that case.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    # Only the soft limit is set, as a hard limit can't be raised again for the next job.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    # Rounded up plus a second, so that the finer timer fires first if it still runs.
    soft = math.ceil(_cpu_s() + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak_bytes() -> int:
    """Peak resident memory."""
    # ``ru_maxrss`` includes the parent's memory at the fork, so it is only a fallback.
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:  # noqa: PTH123 - no pathlib in here
        for line in status:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
