"""Trials without an end: those whose servers died are resumed, and ends that could not be stored are stored later.

A trial that ends without a verdict records this itself, but the docket may be unavailable at that moment. And a caller
may leave while its request is being leased or before its trial starts, so that other servers wait for this one. The
reaper fixes both as soon as the docket can be written: no trial stays open without a server that runs it, and no
request waits for a server that has given it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from court.errors import CourtError, Unavailable
from court.events import TrialFailed
from court.record import TrialRecord, TrialState
from serving.docket.ports import TrialWriter
from serving.docket.store.requests import Lease
from serving.judging.executor import EventFeed
from serving.judging.leases import LeaseTable, Orphaned, RunningElsewhere, request_of
from serving.judging.request import WorkCancelled
from serving.judging.running import TrialsInFlight, UnstoredEnd

AGAIN_S = 1.0
"""Seconds between two attempts while the docket is unavailable."""

_log = logging.getLogger("memecourt.service")


class Orphans:
    """The trials that are open when a server starts, and have no live server."""

    def __init__(self, leases: LeaseTable, in_flight: TrialsInFlight, pause_s: float) -> None:
        """Prepares the resumption.

        Args:
            pause_s: Seconds between two scans, within which a server may show that it is alive.
        """
        self._leases = leases
        self._in_flight = in_flight
        self._pause_s = pause_s
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Resumes no more trials; the current one continues."""
        self._closing.set()

    async def resume(self) -> None:
        """Resumes the open trials of dead servers, one after the other.

        Returns when each trial that is open at the start has ended or belongs to a live server; after :meth:`close`,
        when the current one has ended. Trials that can't be resumed because the docket or another dependency is
        unavailable are retried. A trial that was leased but never opened can only be started by a repeated request.
        """
        waiting = await self._open_trials()
        while waiting:
            away = ""
            for trial_id, lease in [*waiting.items()]:
                if self._closing.is_set():
                    return
                try:
                    if await self._resume(lease):
                        del waiting[trial_id]
                except Unavailable as error:  # it did not start; a trial that started and failed raises TrialAborted
                    away = error.reason
                except CourtError as error:
                    del waiting[trial_id]
                    _log.warning("trial=%s not resumed reason=%s", trial_id, error.reason)
            if away:
                _log.warning("%d trials wait to be resumed: reason=%s", len(waiting), away)
            if waiting:
                await self._pause()

    async def _open_trials(self) -> dict[str, Lease]:
        """Returns the leases of all open trials, by trial id; none once closed."""
        while not self._closing.is_set():
            try:
                return {lease.trial_id: lease for lease in await self._leases.of_open_trials()}
            except Unavailable as error:
                _log.warning("what is to be resumed can't be told yet: reason=%s", error.reason)
            await self._pause()
        return {}

    async def _pause(self) -> None:
        """Waits between two scans for interrupted trials; returns at once when closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._closing.wait()

    async def _resume(self, lease: Lease) -> bool:
        """Resumes an open trial whose server has died.

        Returns:
            True if nothing is left to do; False if it is not known yet whether its server is alive.

        Raises:
            Unavailable: The trial could not be started now, and stays open as before.
        """
        standing = await self._leases.standing(lease)  # it may have been attempted before, and deferred
        if standing.trial_id != lease.trial_id or self._in_flight.of(lease.trial_id):
            return True
        match await self._leases.state(standing):
            case RunningElsewhere(alive):
                return alive
            case Orphaned(ruling, TrialRecord(state=TrialState.OPEN)):
                flight = await self._in_flight.take_over(ruling, ruling, lease.trial_id, resumed=True)
            case _:
                return True
        if flight is None:
            return False  # it changed hands: check its new server next time
        self._in_flight.resume(flight)
        with flight:
            try:
                record = await flight.result()
            except WorkCancelled:
                return True
        _log.info("trial=%s resumed state=%s", record.trial_id, record.state)
        return True


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
