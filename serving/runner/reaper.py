"""What a server could not bring to its end: trials whose failure could not be kept, requests that nobody sees to.

A trial that ends without a verdict writes that down itself; but the docket may be away just then. And a caller may
leave while its request is claimed, or before its trial is begun, which says to other servers that this one is at it.
Both are put right as soon as the docket can be written: no trial stands open that nobody holds, and no request waits
for a server that has forgotten it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from court.errors import CourtError, Unavailable
from court.events import TrialFailed
from court.ports import EventListener
from court.record import TrialAborted, TrialState
from serving.docket.ports import Lease, LeaseStore, TrialWriter
from serving.runner.claims import LeaseTable, request_of

AGAIN_S = 1.0
"""Between two attempts while the docket is away, in seconds."""

_MOST_NEVER_BEGUN = 10_000
"""Loose ends that are kept while the docket is away, before those of trials that were never begun are let go: where it
can't be written, every request that comes leaves one, and hardly any has a claim that stands."""

_log = logging.getLogger("memecourt.service")


@dataclass(frozen=True, slots=True)
class UnstoredEnd:
    """What may have to be put right.

    Attributes:
        claims: That this server made for the trial, or wanted to, of requests and of the meme.
        cause: Why it ended; None where it was never begun.
    """

    claims: Collection[Lease]
    cause: CourtError | None


class Reaper:
    """Sees to them one after the other."""

    def __init__(
        self,
        writer: TrialWriter,
        leases: LeaseStore,
        claims: LeaseTable,
        held: Callable[[str], object | None],
        now: Callable[[], datetime],
        watch: EventListener,
    ) -> None:
        """There are none yet.

        Args:
            writer: Stores ends.
            leases: Of all servers.
            claims: Of this server.
            held: Whether a trial is held here, by its id.
            now: The time, UTC.
            watch: Is told of each trial's end that is kept here.
        """
        self._writer = writer
        self._leases = leases
        self._claims = claims
        self._held = held
        self._now = now
        self._watch = watch
        self._ends: dict[str, UnstoredEnd] = {}
        self._some = asyncio.Event()

    def leave(self, trial_id: str, end: UnstoredEnd) -> None:
        """Something may be left of a trial that is not held here any more."""
        if end.cause is None and len(self._ends) >= _MOST_NEVER_BEGUN:
            return
        before = self._ends.get(trial_id)
        if before is not None:
            end = UnstoredEnd({*before.claims, *end.claims}, end.cause or before.cause)
        self._ends[trial_id] = end
        self._some.set()

    async def run(self) -> None:
        """Sees to what is left until it is cancelled."""
        while True:
            await self._some.wait()
            try:
                await self.tie()
            except CourtError as error:
                _log.warning("%d trials wait to be closed: reason=%s", len(self._ends), error.reason)
                await asyncio.sleep(AGAIN_S)

    async def tie(self) -> None:
        """Sees to all that is left. Raises where the docket can't be read or written; what is left then stays."""
        while self._ends:
            trial_id, end = next(iter(self._ends.items()))
            await self._tie(trial_id, end)
            if self._ends.get(trial_id) is end:
                del self._ends[trial_id]
        self._some.clear()

    async def _tie(self, trial_id: str, end: UnstoredEnd) -> None:
        async with self._claims.taking(trial_id):
            if self._held(trial_id) is not None:
                return  # it was taken up again
            record = await self._claims.record(trial_id)
            if record is not None and record.state is not TrialState.OPEN:
                return
            if record is None or end.cause is None:
                for claim in end.claims:
                    await self._claims.leave(claim)
                return
            name = request_of(record)
            ruling = await self._leases.claim_of(name)
            if ruling is None or ruling.trial_id != trial_id or not await self._taken(ruling):
                return  # another server holds it
            failed = TrialFailed(
                trial_id=trial_id,
                seq=len(record.events),
                at=self._now(),
                step="keeping",
                reason=end.cause.reason,
                message=end.cause.message,
                retryable=isinstance(end.cause, Unavailable),
                broke_off=end.cause.broke_off if isinstance(end.cause, Unavailable) else 0,
            )
            try:
                await self._writer.append(failed)
            except CourtError as error:
                if error.reason != "EVENT_EXISTS":
                    raise
                return
        await self._watch(failed)
        _log.info("trial=%s closed late reason=%s", trial_id, failed.reason)

    async def _taken(self, ruling: Lease) -> bool:
        return self._claims.own(ruling) and await self._claims.take_over(ruling) is not None


def cause_of(task: asyncio.Task[object]) -> CourtError | None:
    """Why a trial ended without telling it to the docket; None where it did tell, or where there is nothing to tell."""
    if task.cancelled():
        return Unavailable("The trial was broken off, and that could not be kept at once.", reason="CANCELLED")
    error = task.exception()
    if error is None:
        return None
    if isinstance(error, TrialAborted):
        return None if error.record.state is TrialState.FAILED else error.cause
    if isinstance(error, CourtError):
        return error
    return CourtError("The court made a mistake and could not finish the trial.", reason="INTERNAL")
