"""Exclusive access to the folder of a run, arena or similar that is started once and can be resumed."""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from court.errors import BadRequest

LOCK = ".lock"
RUN_DIFFERS = "RUN_DIFFERS"
"""Reason of an error: the current inputs differ from those at the start."""


@contextmanager
def sole_use(out: Path, what: str) -> Iterator[None]:
    """Locks a folder against other processes, creating it if missing.

    Args:
        what: Name of its content, such as ``arena``, for the error.

    Raises:
        BadRequest: Another process holds the lock.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("a") as lock:
        try:
            # The kernel releases the lock however the process ends: a crash leaves a file, but no stale lock.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadRequest(
                f"Another process is at the {what} in {out} now. Wait until it is done.", reason="RUN_IN_USE"
            ) from None
        yield


def refuse_others(out: Path, what: str, ours: Collection[str] = (LOCK,)) -> None:
    """Refuses a folder that contains other files.

    Args:
        out: The folder, in which nothing was started yet; it need not exist.
        what: Name of what is to be started, such as ``arena``, for the error.
        ours: Names of files that may already exist.

    Raises:
        BadRequest: The folder contains another file.
    """
    if out.exists() and any(path.name not in ours for path in out.iterdir()):
        raise BadRequest(
            f"{out} is not empty and holds no {what}. Name a folder that is not there yet.", reason="OUT_NOT_EMPTY"
        )


def differing(begun: BaseModel, now: BaseModel, free: Collection[str]) -> list[str]:
    """Names of the fields that differ between two manifests, in order.

    Args:
        free: Fields that may differ. Listing these instead of those that may not means that a new field is compared by
            default.
    """
    # Compared by value instead of as JSON: differences in notation do not count.
    return [
        name for name in type(begun).model_fields if name not in free and getattr(begun, name) != getattr(now, name)
    ]


def refuse_different(what: str, differ: Collection[str]) -> None:
    """Refuses to resume with different inputs.

    Args:
        what: Name of what is resumed, such as ``arena``, for the error.
        differ: Names of the differences; nothing is refused if empty.

    Raises:
        BadRequest: There are differences.
    """
    if differ:
        raise BadRequest(
            f"The {what} was begun with something else than is there now: {'; '.join(differ)}. Half of it would be one "
            "thing and half another. Set it up as it was, or begin another in another folder.",
            reason=RUN_DIFFERS,
        )
