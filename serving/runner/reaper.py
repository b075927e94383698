"""Reaper: finishes trials whose failure could not be stored, and releases requests without a server.

A trial that ends without a verdict writes that down itself; but the docket may be away just then. And a caller may
leave while its request is claimed, or before its trial is begun, which says to other servers that this one is at it.
Both are put right as soon as the docket can be written: no trial stands open that nobody holds, and no request waits
for a server that has forgotten it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from court.errors import CourtError, Unavailable
from court.events import TrialFailed
from court.record import TrialState
from serving.docket.ports import Lease, LeaseStore, TrialWriter
from serving.runner.claims import LeaseTable, request_of
from serving.runner.feed import EventFeed
from serving.runner.in_flight import TrialsInFlight, UnstoredEnd

AGAIN_S = 1.0
"""Between two attempts while the docket is away, in seconds."""

_log = logging.getLogger("memecourt.service")


class Reaper:
    """Sees to them one after the other."""

    def __init__(
        self,
        writer: TrialWriter,
        leases: LeaseStore,
        claims: LeaseTable,
        in_flight: TrialsInFlight,
        now: Callable[[], datetime],
        feed: EventFeed,
    ) -> None:
        """Prepares the reaper; :meth:`run` starts it.

        Args:
            writer: Stores ends.
            leases: Leases of all servers.
            claims: Claims of this server.
            in_flight: The trials of this server, and the ends that they could not store.
            now: The time, UTC.
            feed: Is told of each trial's end that is stored here.
        """
        self._writer = writer
        self._leases = leases
        self._claims = claims
        self._in_flight = in_flight
        self._unstored = in_flight.unstored
        self._now = now
        self._feed = feed

    async def run(self) -> None:
        """Sees to what is left until it is cancelled."""
        while True:
            await self._unstored.wait()
            try:
                await self.reap()
            except CourtError as error:
                _log.warning("%d trials wait to be closed: reason=%s", len(self._unstored), error.reason)
                await asyncio.sleep(AGAIN_S)

    async def reap(self) -> None:
        """Sees to all that is left. Raises where the docket can't be read or written; what is left then stays."""
        while (found := self._unstored.first()) is not None:
            await self._reap(*found)
            self._unstored.settle(*found)

    async def _reap(self, trial_id: str, end: UnstoredEnd) -> None:
        # Under the lock no call of this server takes the trial up between these checks and its end.
        async with self._claims.taking(trial_id):
            if self._in_flight.of(trial_id) is not None:
                return  # it was taken up again
            record = await self._claims.record(trial_id)
            if record is not None and record.state is not TrialState.OPEN:
                return
            # Never opened, or put off: the trial stays as it is, and giving the claims back lets whoever comes next
            # begin it.
            if record is None or end.cause is None:
                for claim in end.claims:
                    await self._claims.leave(claim)
                return
            name = request_of(record)
            ruling = await self._leases.claim_of(name)
            # An end may be written only by who owns the claim. Taking it over, which fails if it has changed hands,
            # makes sure.
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
                # Another event has this place in the record: the trial has its end already, or goes on at another
                # server.
                if error.reason != "EVENT_EXISTS":
                    raise
                return
        await self._feed.publish(failed)
        _log.info("trial=%s closed late reason=%s", trial_id, failed.reason)

    async def _taken(self, ruling: Lease) -> bool:
        return self._claims.own(ruling) and await self._claims.take_over(ruling) is not None
