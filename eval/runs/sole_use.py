"""Sole use of the folder of something that is begun once and gone on with."""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from court.errors import BadRequest

LOCK = ".lock"
RUN_DIFFERS = "RUN_DIFFERS"
"""Reason of an error: what is there now is not what was begun."""


@contextmanager
def sole_use(out: Path, what: str) -> Iterator[None]:
    """Keeps other processes off a folder, and makes it where it is not there.

    Args:
        out: The folder.
        what: Name of what is in it, such as ``arena``, for the error.

    Raises:
        BadRequest: Another process has the folder now.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("a") as lock:
        try:
            # The kernel lets go of it when the process ends, however it ends: a crash leaves a file, but no stale lock.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadRequest(
                f"Another process is at the {what} in {out} now. Wait until it is done.", reason="RUN_IN_USE"
            ) from None
        yield


def refuse_others(out: Path, what: str, ours: Collection[str] = (LOCK,)) -> None:
    """Refuses a folder in which something else stands.

    Args:
        out: The folder, in which nothing was begun so far; it need not be there.
        what: Name of what is to be begun, such as ``arena``, for the error.
        ours: Names of files that may stand there before.

    Raises:
        BadRequest: Another file is there.
    """
    if out.exists() and any(path.name not in ours for path in out.iterdir()):
        raise BadRequest(
            f"{out} is not empty and holds no {what}. Name a folder that is not there yet.", reason="OUT_NOT_EMPTY"
        )


def differing(begun: BaseModel, now: BaseModel, free: Collection[str]) -> list[str]:
    """Names of the fields of two manifests that differ, in order.

    Args:
        begun: Manifest of what was begun.
        now: Manifest of what is to go on.
        free: Fields that may differ. They are listed, and not those that may not: a field that is added counts unless
            somebody says otherwise.
    """
    # By values and not as JSON: what is only written in another way is the same.
    return [
        name for name in type(begun).model_fields if name not in free and getattr(begun, name) != getattr(now, name)
    ]


def refuse_different(what: str, differ: Collection[str]) -> None:
    """Refuses to go on with something that was begun otherwise.

    Args:
        what: Name of what is gone on with, such as ``arena``, for the error.
        differ: Names of what differs; nothing is refused where there are none.

    Raises:
        BadRequest: Something differs.
    """
    if differ:
        raise BadRequest(
            f"The {what} was begun with something else than is there now: {'; '.join(differ)}. Half of it would be one "
            "thing and half another. Set it up as it was, or begin another in another folder.",
            reason=RUN_DIFFERS,
        )
