"""Reaper: records failures of trials that could not be stored, and releases orphaned leases.

A trial that ends without a verdict records this itself, but the docket may be unavailable at that moment. And a caller
may leave while its request is being leased or before its trial starts, so that other servers wait for this one. The
reaper fixes both as soon as the docket can be written: no trial stays open without a server that runs it, and no
request waits for a server that has given it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from court.errors import CourtError, Unavailable
from court.events import TrialFailed
from court.record import TrialState
from serving.docket.ports import TrialWriter
from serving.docket.store.requests import Lease
from serving.judging.feed import EventFeed
from serving.judging.leases import LeaseTable, request_of
from serving.judging.running import TrialsInFlight, UnstoredEnd

AGAIN_S = 1.0
"""Seconds between two attempts while the docket is unavailable."""

_log = logging.getLogger("memecourt.service")


class Reaper:
    """Cleans up unstored ends one by one."""

    def __init__(
        self,
        writer: TrialWriter,
        leases: LeaseTable,
        in_flight: TrialsInFlight,
        now: Callable[[], datetime],
        feed: EventFeed,
    ) -> None:
        self._writer = writer
        self._leases = leases
        self._in_flight = in_flight
        self._unstored = in_flight.unstored
        self._now = now
        self._feed = feed

    async def run(self) -> None:
        """Cleans up until cancelled."""
        while True:
            await self._unstored.wait()
            try:
                await self.reap()
            except CourtError as error:
                _log.warning("%d trials wait to be closed: reason=%s", len(self._unstored), error.reason)
                await asyncio.sleep(AGAIN_S)

    async def reap(self) -> None:
        """Cleans up all entries. Raises if the docket is unavailable; the remaining entries then stay queued."""
        while (found := self._unstored.first()) is not None:
            await self._reap(*found)
            self._unstored.settle(*found)

    async def _reap(self, trial_id: str, end: UnstoredEnd) -> None:
        # The lock prevents calls of this server from resuming the trial between these checks and its end.
        async with self._leases.taking(trial_id):
            if self._in_flight.of(trial_id) is not None:
                return  # it was resumed
            record = await self._leases.record(trial_id)
            if record is not None and record.state is not TrialState.OPEN:
                return
            # Never opened, or deferred: leave the trial as it is, and release the leases so that the next call can
            # start it.
            if record is None or end.cause is None:
                for lease in end.leases:
                    await self._leases.leave(lease)
                return
            name = request_of(record)
            ruling = await self._leases.find(name)
            # Only the owner of the lease may write an end. Taking it over makes sure, since that fails if it changed
            # hands.
            if ruling is None or ruling.trial_id != trial_id or not await self._taken(ruling):
                return  # another server runs it
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
                # The record has another event at this position: the trial has ended already, or continues on another
                # server.
                if error.reason != "EVENT_EXISTS":
                    raise
                return
        await self._feed.publish(failed)
        _log.info("trial=%s closed late reason=%s", trial_id, failed.reason)

    async def _taken(self, ruling: Lease) -> bool:
        return self._leases.own(ruling) and await self._leases.take_over(ruling) is not None
