"""Anchoring: sends the docket's checkpoints to a witness that the service can't rewrite.

Verdicts do not wait for it: entries not yet covered form the unanchored tail. After an outage only the newest
checkpoint is sent, since each covers everything before it.
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
from serving.docket.store.log_queries import TransparencyLog

EVERY_S = 1.0
"""Seconds between two checks for a newer checkpoint."""
_LONGEST_S = 60.0
"""Maximum seconds between two attempts while the witness is unavailable."""
_PATIENCE_S = 10.0
_LAST_S = 2.0

_log = logging.getLogger("memecourt.anchor")


class CheckpointWitness(Protocol):
    """An external store of checkpoints."""

    async def push(self, note: str) -> None:
        """Stores a checkpoint durably. Raises Unavailable if that fails."""

    async def aclose(self) -> None:
        """Closes the connection."""


class FileWitness(CheckpointWitness):
    """Appends checkpoints to a file, on another machine's share or append-only."""

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
            # Separate a truncated last checkpoint, so that it does not spoil the next one.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                note = note if file.read(1) == b"\n" else f"\n\n{note}"
            file.write(f"{note}\n".encode())
            file.flush()
            os.fsync(file.fileno())


class HttpWitness(CheckpointWitness):
    """Sends each checkpoint to an address in the body of a POST; any 2xx confirms that it is stored."""

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
    """Opens the witness in the settings: a file, or an http or https address.

    Raises:
        BadRequest: The setting is not a valid witness.
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
    witness: CheckpointWitness,
    *,
    every_s: float = EVERY_S,
    on_anchored: Callable[[int], None] = lambda _: None,
) -> None:
    """Sends newer checkpoints to a witness until cancelled, and then the newest one."""
    pushed, wait = "", every_s
    try:
        while True:
            try:
                pushed = await _push(log, witness, pushed)
                on_anchored(int(pushed.split("\n")[1]))  # the second line of a checkpoint is the size of its tree
                if wait > every_s:
                    _log.info("checkpoints are taken again")
                wait = every_s
            except CourtError as error:
                # Once per outage rather than at every attempt.
                if wait == every_s:
                    _log.warning("checkpoints can't be kept outside now: %s", error.message)
                wait = min(2 * wait, _LONGEST_S)
            await asyncio.sleep(wait)
    finally:
        # With a timeout: an unresponsive witness must not delay the shutdown.
        with suppress(CourtError, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await _push(log, witness, pushed)
        await witness.aclose()


async def _push(log: TransparencyLog, witness: CheckpointWitness, pushed: str) -> str:
    note = await log.checkpoint()
    if note != pushed:
        await witness.push(note)
    return note


def _refused(why: str) -> Unavailable:
    return Unavailable(f"The place for checkpoints does not take them: {why}.", reason="ANCHOR_UNAVAILABLE")
