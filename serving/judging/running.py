"""The trials running on this server, each shared by all callers that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from court.errors import CantResume, CourtError, Unavailable
from court.events import AnyEvent, PrecedentsCited, TextRead, TrialFailed, TrialResumed
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import STOPPED
from serving.docket.store.requests import Lease
from serving.judging.decode import DecodingPool, Quarantine
from serving.judging.executor import TrialExecutor
from serving.judging.known import VerdictCache
from serving.judging.leases import LeaseTable
from serving.judging.request import AdmissionSlot, Caller, LRUCache, SingleFlight, TrialRequest
from serving.telemetry import Telemetry

_MOST_UNRESUMABLE = 4096

_MOST_NEVER_BEGUN = 10_000
"""Maximum number of unstored ends before those of trials that never started are dropped: while the docket can't be
written, every request leaves one, and hardly any of them holds a lease."""

_log = logging.getLogger("memecourt.service")


@dataclass(frozen=True, slots=True)
class UnstoredEnd:
    """The end of a trial that may not have been stored.

    Attributes:
        cause: Reason for its end; None if it never started.
    """

    leases: Collection[Lease]
    cause: CourtError | None


class UnstoredEnds:
    """Queue of ends for the reaper, by trial id."""

    def __init__(self) -> None:
        self._ends: dict[str, UnstoredEnd] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ends)

    def leave(self, trial_id: str, end: UnstoredEnd) -> None:
        """Queues the end of a trial that is not running here any more."""
        if end.cause is None and len(self._ends) >= _MOST_NEVER_BEGUN:
            return
        before = self._ends.get(trial_id)
        # Keep an earlier cause: the reaper closes an open record only if there is one.
        if before is not None:
            end = UnstoredEnd({*before.leases, *end.leases}, end.cause or before.cause)
        self._ends[trial_id] = end
        self._some.set()

    async def wait(self) -> None:
        """Waits until the queue is not empty."""
        await self._some.wait()

    def first(self) -> tuple[str, UnstoredEnd] | None:
        """Returns the oldest entry; None if there is none."""
        found = next(iter(self._ends.items()), None)
        if found is None:
            self._some.clear()
        return found

    def settle(self, trial_id: str, end: UnstoredEnd) -> None:
        """Removes an entry, unless it was updated meanwhile."""
        if self._ends.get(trial_id) is end:
            del self._ends[trial_id]


class RunningTrial(SingleFlight[TrialRecord]):
    """A trial on this server that callers wait for.

    Attributes:
        leases: Leases on requests and on the meme that this server acquired for it, or wanted to.
        file: SHA-256 of its picture file; empty until known.
    """

    def __init__(self, trial_id: str, unneeded: Callable[[], object]) -> None:
        super().__init__(unneeded)
        self.trial_id = trial_id
        self.begun_by: Caller | None = None
        self.leases: set[Lease] = set()
        self.file = b""
        self.events: list[AnyEvent] = []

    @property
    def record(self) -> TrialRecord | None:
        """Record of the events stored so far, without reading the docket; None if there are none."""
        return TrialRecord.of(self.events) if self.events else None


class TrialsInFlight:
    """Trials by id, and those that lead for a meme by its future cache key."""

    def __init__(
        self,
        executor: TrialExecutor,
        leases: LeaseTable,
        verdicts: VerdictCache,
        quarantine: Quarantine,
        telemetry: Telemetry,
        decoders: DecodingPool,
    ) -> None:
        self._executor = executor
        self._leases = leases
        self._verdicts = verdicts
        self._quarantine = quarantine
        self._telemetry = telemetry
        self.unstored = UnstoredEnds()
        self._decoders = decoders
        self._flights: dict[str, RunningTrial] = {}
        self._leading: dict[str, RunningTrial] = {}
        self._unresumable: LRUCache[str, bool] = LRUCache(_MOST_UNRESUMABLE)
        self._stopped = False

    def of(self, trial_id: str) -> RunningTrial | None:
        """Returns a trial that is running here, or about to start."""
        return self._flights.get(trial_id)

    def leading(self, key: str) -> RunningTrial | None:
        """Returns the trial that leads for the meme of a key."""
        return self._leading.get(key)

    def enlist(self, trial_id: str, key: str = "") -> RunningTrial:
        """Registers a trial that callers can join. It is removed when it ends, or when no caller is left to start it.

        Args:
            key: Future cache key of its meme; empty if it answers only its own request.
        """

        def strike() -> None:
            # Not the variable below: the closure would form a cycle that keeps the trial alive until garbage
            # collection.
            flight = self._flights.pop(trial_id)
            # Only its own entry: another trial may lead for the same meme by now.
            if key and self._leading.get(key) is flight:
                del self._leading[key]
            self._strike_off(flight)

        flight = self._flights[trial_id] = RunningTrial(trial_id, strike)
        if key:
            self._leading[key] = flight
        return flight

    def begin(self, flight: RunningTrial, request: TrialRequest, caller: Caller) -> None:
        """Starts the trial of a request. Nothing may be awaited before the next caller has joined."""
        self._begin(flight, caller, self._run(flight, request, caller))

    def resume(self, flight: RunningTrial, request: TrialRequest | None = None, caller: Caller | None = None) -> None:
        """Resumes a trial from its record, for a caller or without one; otherwise as :meth:`begin`."""
        self._begin(flight, caller, self._resume(flight, request, caller))

    async def take_over(self, lease: Lease, ruling: Lease, trial_id: str, *, resumed: bool) -> RunningTrial | None:
        """Takes over the leases of an orphaned trial.

        Args:
            ruling: Lease of the request or meme that the trial was or is to be opened for.

        Returns:
            The trial, to be started before anything is awaited; None if a call or a server was quicker.
        """
        owner = self._leases.owner()
        wanted = {replace(each, trial_id=trial_id, owner=owner) for each in (ruling, lease)}
        async with self._leases.taking(lease.trial_id):
            # Checked under the lock: another call may have started the trial meanwhile.
            if self.of(lease.trial_id):
                return None
            with self.unless_left(*wanted):
                if await self._leases.take_over(ruling, trial_id, owner) is None:
                    return None
                # A resumed trial keeps its id, which this request's lease already names.
                if ruling != lease and not resumed:
                    await self._leases.take_over(lease, trial_id, owner)
            flight = self.enlist(trial_id)
            flight.leases |= wanted
        return flight

    @contextmanager
    def unless_left(self, *wanted: Lease) -> Iterator[None]:
        """Hands leases to the reaper if acquiring them fails or the caller leaves, since they may be in force."""
        try:
            yield
        # Includes CancelledError, raised when a caller leaves.
        except BaseException:
            self.unstored.leave(wanted[0].trial_id, UnstoredEnd(wanted, None))
            raise

    async def on_event(self, event: AnyEvent) -> None:
        """Tracks a stored event of a trial on this server; an :class:`~court.ports.EventListener`."""
        flight = self._flights.get(event.trial_id)
        if flight is None:
            return
        if isinstance(event, TrialResumed):
            # Only now is it certain that the trial continues: telemetry, which is notified next, must know its history.
            self._telemetry.resuming(TrialRecord.of(flight.events))
        elif isinstance(event, TextRead) and event.reader:
            self._quarantine.text_read(flight.file)  # at once, since the reader has survived this file
        elif isinstance(event, PrecedentsCited):
            self._quarantine.compared(flight.file)
        flight.events.append(event)

    def resumable(self, record: TrialRecord) -> bool:
        """True if a trial without a verdict may be resumed, as far as is known without trying."""
        if self._unresumable.get(record.trial_id):
            return False
        failed = record.last(TrialFailed)
        # CANCELLED means that all callers have left, which is no fault of the trial.
        return record.state is TrialState.OPEN or failed is None or failed.retryable or failed.reason == "CANCELLED"

    async def stop(self) -> None:
        """Cancels all trials, including those about to start; each still records its end."""
        # Set before the list is built: a trial that starts later is cancelled in _begin, so that none is missed.
        self._stopped = True
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for task in tasks:
            task.cancel(STOPPED)
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, flight: RunningTrial, caller: Caller | None, work: Coroutine[Any, Any, TrialRecord]) -> None:
        flight.begun_by = caller
        flight.begin(work)
        if self._stopped and flight.task is not None:
            flight.task.cancel(STOPPED)

    async def _run(self, flight: RunningTrial, request: TrialRequest, caller: Caller) -> TrialRecord:
        """Runs the trial of a request."""
        slot = caller.slot.handed_on()  # the trial may outlive the caller
        flight.file = request.file
        try:
            await slot.take()
            digest = await self._decoders.digest_of(request, caller, slot)
            async with self._quarantine.trial(slot, digest, request.procedure):
                # Decoded here if only the digest was known, or if a suspect gave up its slot, and its picture with it.
                picture = await self._decoders.decode(request, caller, slot)
                try:
                    result = await self._executor.run(
                        request, within_s=caller.left, trial_id=flight.trial_id, picture=picture, batch=slot.patient
                    )
                except TrialAborted as error:
                    self._quarantine.failed(request.file, error.reason)
                    raise
        finally:
            await slot.leave()
        # After the slot is released: this needs none, and the next trial should not wait for it.
        await self._learn(result.record)
        return result.record

    async def _resume(self, flight: RunningTrial, request: TrialRequest | None, caller: Caller | None) -> TrialRecord:
        """Resumes a trial, for a caller or without one."""
        slot = caller.slot.handed_on() if caller else AdmissionSlot()
        try:
            await slot.take()
            record = await self._executor.docket.trials.record(flight.trial_id)
            flight.events += record.events
            meme = record.opened.meme
            flight.file = bytes.fromhex(meme.bytes_sha256)
            async with self._quarantine.trial(slot, meme.digest, record.opened.procedure):
                try:
                    record = await self._executor.resume(
                        flight.trial_id,
                        within_s=caller.left if caller else None,
                        request=request,
                        batch=caller is None or slot.patient,
                    )
                except CantResume as error:
                    await self._give_up(record, error)
                    raise
                except TrialAborted as error:
                    self._quarantine.failed(flight.file, error.reason)
                    raise
        finally:
            await slot.leave()
        await self._learn(record)
        return record

    async def _give_up(self, record: TrialRecord, error: CantResume) -> None:
        """Records that a trial can't be resumed, so that it does not stay open for ever."""
        # Before writing to the docket: even if that fails, this server does not retry it over and over.
        self._unresumable.keep(record.trial_id, True)
        if record.state is not TrialState.OPEN:
            return
        failed = TrialFailed(
            trial_id=record.trial_id,
            seq=len(record.events),
            at=self._executor.court.now(),
            step="resuming",
            reason=error.reason,
            message=error.message,
            retryable=error.reason == "VERSIONS_DIFFER",  # a server with those versions may still resume it
        )
        await self._executor.docket.writer.append(failed)
        self._telemetry.resuming(record)
        await self._executor.feed.publish(failed)

    def _strike_off(self, flight: RunningTrial) -> None:
        """Hands to the reaper what may need cleaning up after a trial has ended or was abandoned."""
        task = flight.task
        if task is None or (flight.begun_by is None and _put_off(task)):
            # It may be resumed by any server's Orphans, which must find it open, or by a call.
            self.unstored.leave(flight.trial_id, UnstoredEnd(flight.leases, None))
        # EVENT_EXISTS: another server has continued this record, and only that one may write its end.
        elif (cause := cause_of(task)) is not None and cause.reason != "EVENT_EXISTS":
            self.unstored.leave(flight.trial_id, UnstoredEnd(flight.leases, cause))

    async def _learn(self, record: TrialRecord) -> None:
        """Caches the verdict, so that later requests for the same meme need no trial."""
        try:
            await self._verdicts.learn(record)
        except CourtError as error:
            # The verdict is stored, so return it even if it can't be found by its meme.
            _log.warning("trial=%s can't be given again: reason=%s", record.trial_id, error.reason)


def _put_off(trial: asyncio.Task[TrialRecord]) -> bool:
    """True if a trial did not start because a dependency was unavailable; a started one fails with TrialAborted."""
    return not trial.cancelled() and isinstance(trial.exception(), Unavailable)


def cause_of(task: asyncio.Task[object]) -> CourtError | None:
    """Returns why a trial ended without recording it; None if it did, or if there is nothing to record."""
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
