"""Pushes the docket's checkpoints to a place that the service can't rewrite, while it serves.

Verdicts do not wait for it: what has not arrived yet is the unanchored tail, and what can't be delivered now is
delivered later, as the newest checkpoint then. Earlier ones need not arrive: each speaks for all that was before it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx2
from typing_extensions import override

from court.backends.http import http_client
from court.errors import BadRequest, CourtError, Unavailable
from serving.docket.ports import TransparencyLog

EVERY_S = 1.0
"""Seconds from one look for a newer checkpoint to the next."""
_LONGEST_S = 60.0
"""Seconds between two attempts at a place that does not take them, at most."""
_PATIENCE_S = 10.0
_LAST_S = 2.0

_log = logging.getLogger("memecourt.anchor")


class CheckpointWitness(Protocol):
    """Takes checkpoints and keeps them."""

    async def push(self, note: str) -> None:
        """Hands one over; it is kept when this returns. Raises Unavailable where it could not be."""
        ...

    async def aclose(self) -> None:
        """Lets go."""
        ...


class FileWitness(CheckpointWitness):
    """A file that checkpoints are added to: on another machine's share, or one that can only be appended to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    async def push(self, note: str) -> None:
        try:
            await asyncio.to_thread(self._append, note)
        except OSError as error:
            raise _refused(error.strerror or "it can't be written") from None

    @override
    async def aclose(self) -> None:
        pass  # nothing is open

    def _append(self, note: str) -> None:
        with self._path.open("ab+") as file:
            # One that was cut off in the middle is set apart, and spoils none of the others.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                note = note if file.read(1) == b"\n" else f"\n\n{note}"
            file.write(f"{note}\n".encode())
            file.flush()
            os.fsync(file.fileno())


class HttpWitness(CheckpointWitness):
    """An address that checkpoints are sent to, each in the body of a POST; any 2xx says that it is kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = http_client(connections=1)

    @override
    async def push(self, note: str) -> None:
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await self._client.post(self._url, content=note.encode(), headers=headers)
        except (httpx2.HTTPError, TimeoutError):
            raise _refused("it does not answer") from None
        if not answer.is_success:
            raise _refused(f"it answers with status {answer.status_code}")

    @override
    async def aclose(self) -> None:
        await self._client.aclose()


def open_witness(named: str) -> CheckpointWitness:
    """The place that a setting names: a file, or an http or https address.

    Raises:
        BadRequest: The place can't be a witness.
    """
    if "://" not in named:
        return FileWitness(Path(named))
    parts = urlsplit(named)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise BadRequest(
            "The place for checkpoints is a file, or http://HOST/PATH or https, without a key in it.", field="anchor"
        )
    return HttpWitness(named)


async def keep_anchored(
    log: TransparencyLog,
    place: CheckpointWitness,
    *,
    every_s: float = EVERY_S,
    on_anchored: Callable[[int], None] = lambda _: None,
) -> None:
    """Pushes every checkpoint that is newer than the last one pushed, until it is cancelled; the newest at the end.

    Args:
        log: The log.
        place: Keeper of checkpoints.
        every_s: Seconds between two looks for a newer one.
        on_anchored: Is told how many entries the one covers that is kept there.
    """
    pushed, wait = "", every_s
    try:
        while True:
            try:
                pushed = await _push(log, place, pushed)
                on_anchored(int(pushed.split("\n")[1]))  # the second line of a checkpoint is the size of its tree
                if wait > every_s:
                    _log.info("checkpoints are taken again")
                wait = every_s
            except CourtError as error:
                # Once for a whole outage, and not at every attempt.
                if wait == every_s:
                    _log.warning("checkpoints can't be kept outside now: %s", error.message)
                wait = min(2 * wait, _LONGEST_S)
            await asyncio.sleep(wait)
    finally:
        # Bounded: a place that does not answer must not hold up the end of the server.
        with suppress(CourtError, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await _push(log, place, pushed)
        await place.aclose()


async def _push(log: TransparencyLog, place: CheckpointWitness, pushed: str) -> str:
    note = await log.checkpoint()
    if note != pushed:
        await place.push(note)
    return note


def _refused(why: str) -> Unavailable:
    return Unavailable(f"The place for checkpoints does not take them: {why}.", reason="ANCHOR_UNAVAILABLE")
