"""What is left of work that is over, without the collector: of what holds itself it takes note by number alone."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def uncollected(*kinds: type) -> Iterator[Callable[[], list[str]]]:
    """Without the collector. Gives what tells which objects of these kinds have come and are there yet, by their kinds.

    Those of other tests are not told: parameters that are errors keep their tracebacks.
    """

    def kept() -> list[object]:
        # By their types: some objects of libraries warn when they are asked for their class.
        return [one for one in gc.get_objects() if type(one) in kinds]

    gc.collect()
    gc.disable()
    try:
        others = kept()
        yield lambda: [type(one).__name__ for one in kept() if not any(one is other for other in others)]
    finally:
        gc.enable()


def forget_earlier(caplog: pytest.LogCaptureFixture) -> None:
    """Has what earlier tests left collected now, with what asyncio logs of it, and not in the midst of this one."""
    gc.collect()
    caplog.clear()


async def soon(left: Callable[[], list[str]]) -> list[str]:
    """What is left in the end: some work ends after its caller has gone on, on a busy machine a while after."""
    for _ in range(1200):
        if not (found := left()):
            break
        await asyncio.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """True if a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
