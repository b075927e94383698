"""Resumption of orphaned trials, whose servers have died."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from court.errors import CourtError, Unavailable
from court.record import TrialRecord, TrialState
from serving.docket.store.requests import Lease
from serving.judging.leases import LeaseTable, Orphaned, RunningElsewhere
from serving.judging.running import TrialsInFlight
from serving.judging.single_flight import WorkCancelled

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
            As :meth:`court.trial.Court.resume`.
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
