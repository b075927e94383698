"""The trials running on this server, each shared by all callers that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from court.errors import CantResume, CourtError, Unavailable
from court.events import AnyEvent, PrecedentsCited, TextRead, TrialFailed, TrialResumed
from court.meme import Meme, Picture
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import STOPPED
from serving.docket.store.requests import Lease
from serving.judging.decode import DecodingPool
from serving.judging.executor import TrialExecutor
from serving.judging.known import VerdictCache
from serving.judging.quarantine import Quarantine
from serving.judging.request import AdmissionSlot, Call
from serving.judging.single_flight import LRUCache, SingleFlight
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
        claims: Claims on requests and on the meme that this server made for the trial, or wanted to.
        cause: Reason for its end; None if it never started.
    """

    claims: Collection[Lease]
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
            end = UnstoredEnd({*before.claims, *end.claims}, end.cause or before.cause)
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
        begun_by: Call whose deadline applies to the trial; None if there is none.
        claims: Claims on requests and on the meme that this server made for it, or wanted to.
        file: SHA-256 of its picture file; empty until known.
    """

    def __init__(self, trial_id: str, unneeded: Callable[[], object]) -> None:
        """Creates a trial that has not started."""
        super().__init__(unneeded)
        self.trial_id = trial_id
        self.begun_by: Call | None = None
        self.claims: set[Lease] = set()
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
        known: VerdictCache,
        quarantine: Quarantine,
        telemetry: Telemetry,
        decoders: DecodingPool,
    ) -> None:
        """Starts without trials.

        Args:
            executor: Executor that runs and stores trials.
            known: Cache that learns of decoded files and of verdicts.
            quarantine: Quarantine of memes and files that must not be tried again.
            telemetry: Records resumed trials.
            decoders: Pool that decodes the pictures of calls.
        """
        self._executor = executor
        self._known = known
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

    def begin(self, flight: RunningTrial, call: Call) -> None:
        """Starts the trial of a call. Nothing may be awaited before the next caller has joined."""
        flight.begun_by = call
        self._begin(flight, self._try(call, flight))

    def take_up(self, flight: RunningTrial, call: Call | None = None) -> None:
        """Resumes a trial from its record, with or without a call; otherwise as :meth:`begin`."""
        flight.begun_by = call
        self._begin(flight, self._resume(flight, call))

    async def note(self, event: AnyEvent) -> None:
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

    def _begin(self, flight: RunningTrial, work: Coroutine[Any, Any, TrialRecord]) -> None:
        flight.begin(work)
        if self._stopped and flight.task is not None:
            flight.task.cancel(STOPPED)

    async def decoded(self, call: Call, place: AdmissionSlot | None = None) -> Picture | None:
        """Returns the decoded picture of a call; None if its text was sent without one.

        Args:
            place: Slot under which the picture is decoded and held: that of the call, or of the trial that it started.
                Not needed if another call is decoding the same file.
        """
        place = place or call.place
        if place.picture is not None or call.ask.text_alone:
            return place.picture
        if not self._decoders.at(call.file):
            await place.take()
        decoded = await self._decoders.read(call.ask.image, call.file, call.ask.namespace)
        call.picture_seconds += decoded.seconds
        self._known.remember_pixels(call.file, decoded.picture.pixels_sha256)
        place.keep(decoded.picture)
        return decoded.picture

    async def _try(self, call: Call, flight: RunningTrial) -> TrialRecord:
        """Runs the trial of a call."""
        place = call.place.handed_on()  # the trial may outlive the call
        flight.file = call.file
        try:
            await place.take()
            digest = Meme(await self.decoded(call, place), call.ask.text).digest
            async with self._quarantine.trial(place, digest, call.ask.procedure):
                # Decoded again if necessary: a suspect gave up its slot in quarantine.trial, and its picture with it.
                picture = await self.decoded(call, place)
                try:
                    # Under the leased name, even if it is generated: other servers find the lease through the record.
                    ask = replace(call.ask, request_id=call.name.request_id)
                    result = await self._executor.run(
                        ask,
                        within_s=call.left,
                        trial_id=flight.trial_id,
                        picture=picture,
                        batch=place.patient,
                    )
                except TrialAborted as error:
                    self._quarantine.failed(call.file, error.reason)
                    raise
        finally:
            await place.leave()
        # After the slot is released: this needs none, and the next trial should not wait for it.
        await self._learn(result.record)
        return result.record

    async def _resume(self, flight: RunningTrial, call: Call | None = None) -> TrialRecord:
        """Resumes a trial, with or without a call."""
        place = call.place.handed_on() if call else AdmissionSlot()
        try:
            await place.take()
            record = await self._executor.docket.trials.record(flight.trial_id)
            flight.events += record.events
            meme = record.opened.meme
            flight.file = bytes.fromhex(meme.bytes_sha256)
            async with self._quarantine.trial(place, meme.digest, record.opened.procedure):
                try:
                    record = await self._executor.resume(
                        flight.trial_id,
                        within_s=call.left if call else None,
                        ask=call.ask if call else None,
                        batch=call is None or place.patient,
                    )
                except CantResume as error:
                    await self._give_up(record, error)
                    raise
                except TrialAborted as error:
                    self._quarantine.failed(flight.file, error.reason)
                    raise
        finally:
            await place.leave()
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
            # It may be resumed by resume_cut_off() of any server, which must find it open, or by a call.
            self.unstored.leave(flight.trial_id, UnstoredEnd(flight.claims, None))
        # EVENT_EXISTS: another server has continued this record, and only that one may write its end.
        elif (cause := cause_of(task)) is not None and cause.reason != "EVENT_EXISTS":
            self.unstored.leave(flight.trial_id, UnstoredEnd(flight.claims, cause))

    async def _learn(self, record: TrialRecord) -> None:
        """Caches the verdict, so that later requests for the same meme need no trial."""
        try:
            await self._known.learn(record)
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
