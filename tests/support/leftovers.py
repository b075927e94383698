"""Finds objects left over by finished work that reference counting alone does not free."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def without_garbage_collector(*kinds: type) -> Iterator[Callable[[], list[str]]]:
    """Disables the garbage collector; yields a function that names the types of new objects of ``kinds`` still alive.

    Objects of earlier tests are left out, such as exceptions in parameters, which keep their tracebacks.
    """

    def tracked_objects() -> list[object]:
        # By type(), as some libraries' objects warn when their __class__ is read.
        return [one for one in gc.get_objects() if type(one) in kinds]

    gc.collect()
    gc.disable()
    try:
        others = tracked_objects()
        yield lambda: [type(one).__name__ for one in tracked_objects() if not any(one is other for other in others)]
    finally:
        gc.enable()


def collect_earlier_garbage(caplog: pytest.LogCaptureFixture) -> None:
    """Collects garbage of earlier tests now, so that what asyncio logs about it does not appear during this test."""
    gc.collect()
    caplog.clear()


async def soon(left: Callable[[], list[str]]) -> list[str]:
    """Waits until nothing is left, up to a minute, as some work ends after its caller; returns what remains."""
    for _ in range(1200):
        if not (found := left()):
            break
        await asyncio.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
