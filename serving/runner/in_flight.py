"""The trials that this server holds: each once for all callers who wait."""

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
from serving.docket.ports import Lease
from serving.runner.decoding import DecodingPool
from serving.runner.executor import TrialExecutor
from serving.runner.quarantine import Quarantine
from serving.runner.request import AdmissionSlot, Call
from serving.runner.single_flight import LRUCache, SingleFlight
from serving.runner.verdict_cache import VerdictCache
from serving.telemetry import Telemetry

_MOST_UNRESUMABLE = 4096

_MOST_NEVER_BEGUN = 10_000
"""Loose ends that are kept while the docket is away, before those of trials that were never begun are let go: where it
can't be written, every request that comes leaves one, and hardly any has a claim that stands."""

_log = logging.getLogger("memecourt.service")


@dataclass(frozen=True, slots=True)
class UnstoredEnd:
    """End of a trial that may not be stored.

    Attributes:
        claims: Claims on requests and on the meme that this server made for the trial, or wanted to.
        cause: Why it ended; None where it was never begun.
    """

    claims: Collection[Lease]
    cause: CourtError | None


class UnstoredEnds:
    """Queue for the reaper, by trial id."""

    def __init__(self) -> None:
        self._ends: dict[str, UnstoredEnd] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ends)

    def leave(self, trial_id: str, end: UnstoredEnd) -> None:
        """Note that something may be left of a trial that is not held here any more."""
        if end.cause is None and len(self._ends) >= _MOST_NEVER_BEGUN:
            return
        before = self._ends.get(trial_id)
        # A cause outlives an end without one: only with a cause does the reaper close an open record.
        if before is not None:
            end = UnstoredEnd({*before.claims, *end.claims}, end.cause or before.cause)
        self._ends[trial_id] = end
        self._some.set()

    async def wait(self) -> None:
        """Wait until there is one."""
        await self._some.wait()

    def first(self) -> tuple[str, UnstoredEnd] | None:
        """The one that has been left for longest; None where there is none."""
        found = next(iter(self._ends.items()), None)
        if found is None:
            self._some.clear()
        return found

    def settle(self, trial_id: str, end: UnstoredEnd) -> None:
        """Forget one, unless more was left of the same trial meanwhile."""
        if self._ends.get(trial_id) is end:
            del self._ends[trial_id]


class RunningTrial(SingleFlight[TrialRecord]):
    """A trial of this server that callers wait for.

    Attributes:
        trial_id: Id of the trial.
        begun_by: The call whose deadline it keeps to; None where nobody's.
        claims: Claims on requests and on the meme that this server made for it, or wanted to.
        file: SHA-256 of its picture file; empty until it is known.
        events: Stored events of the trial.
    """

    def __init__(self, trial_id: str, unneeded: Callable[[], object]) -> None:
        """A trial that has not been begun."""
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
    """Trials by their ids, and those that are held for a meme by the key that it will be known by."""

    def __init__(
        self,
        house: TrialExecutor,
        known: VerdictCache,
        quarantine: Quarantine,
        telemetry: Telemetry,
        decoders: DecodingPool,
    ) -> None:
        """Holds none yet.

        Args:
            house: Executor that runs and stores trials.
            known: Learns of files that were decoded, and of verdicts.
            quarantine: Says what is not tried again.
            telemetry: Is told of trials that were taken up.
            decoders: Decode the pictures of calls.
        """
        self._house = house
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
        """A trial that is held here, or about to be."""
        return self._flights.get(trial_id)

    def leading(self, key: str) -> RunningTrial | None:
        """The trial of the meme of that key."""
        return self._leading.get(key)

    def enlist(self, trial_id: str, key: str = "") -> RunningTrial:
        """A trial that callers can enter. It is struck off when it is over, or when nobody is left to begin it.

        Args:
            trial_id: Id of the trial.
            key: Key under which its meme will be known; empty if it answers its own request alone.
        """

        def strike() -> None:
            # Not the one below: it would hold itself, and all that its trial said, until the collector comes round.
            flight = self._flights.pop(trial_id)
            # Only its own entry: by now another trial may lead the same meme.
            if key and self._leading.get(key) is flight:
                del self._leading[key]
            self._strike_off(flight)

        flight = self._flights[trial_id] = RunningTrial(trial_id, strike)
        if key:
            self._leading[key] = flight
        return flight

    def begin(self, flight: RunningTrial, call: Call) -> None:
        """Begins the trial of a call. From here to the next caller's entering, nothing may be awaited."""
        flight.begun_by = call
        self._begin(flight, self._try(call, flight))

    def take_up(self, flight: RunningTrial, call: Call | None = None) -> None:
        """Takes a trial up from its record, for a call or for nobody; as :meth:`begin`."""
        flight.begun_by = call
        self._begin(flight, self._resume(flight, call))

    async def note(self, event: AnyEvent) -> None:
        """Notes an event that was stored of a trial of this server; an :class:`~court.ports.EventListener`."""
        flight = self._flights.get(event.trial_id)
        if flight is None:
            return
        if isinstance(event, TrialResumed):
            # Only now is it sure that the trial goes on: telemetry, which is told next, must know what was before.
            self._telemetry.resuming(TrialRecord.of(flight.events))
        elif isinstance(event, TextRead) and event.reader:
            self._quarantine.text_read(flight.file)  # at once: the reader has survived this file
        elif isinstance(event, PrecedentsCited):
            self._quarantine.compared(flight.file)
        flight.events.append(event)

    def resumable(self, record: TrialRecord) -> bool:
        """True if a trial without a verdict may be resumed, as far as can be told without trying."""
        if self._unresumable.get(record.trial_id):
            return False
        failed = record.last(TrialFailed)
        # CANCELLED means that the callers have left, which says nothing against the trial.
        return record.state is TrialState.OPEN or failed is None or failed.retryable or failed.reason == "CANCELLED"

    async def stop(self) -> None:
        """Ends all trials, those too that are about to be begun; each still writes down its end."""
        # Before the list is made: a trial that is begun after it is cancelled in _begin, so that none slips through.
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
        """The picture of a call; None where its text was sent alone.

        Args:
            call: Call whose picture is decoded.
            place: Slot under which it is decoded and held: that of the call, or of the trial that it began. No slot is
                needed if another call has the same file decoded.
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
        """Holds the trial of a call."""
        place = call.place.handed_on()  # the trial may outlive the call
        flight.file = call.file
        try:
            await place.take()
            digest = Meme(await self.decoded(call, place), call.ask.text).digest
            async with self._quarantine.trial(place, digest, call.ask.procedure):
                # Again: a suspect gives its slot back in quarantine.trial, and its decoded picture with it.
                picture = await self.decoded(call, place)
                try:
                    # Under the name that was claimed, also where it is a generated one: servers find the claim by the
                    # record.
                    ask = replace(call.ask, request_id=call.name.request_id)
                    hearing = await self._house.hear(
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
        # After the slot is left: this needs no turn, and the next trial does not wait for it.
        await self._learn(hearing.record)
        return hearing.record

    async def _resume(self, flight: RunningTrial, call: Call | None = None) -> TrialRecord:
        """Takes a trial up, for a call or for nobody."""
        place = call.place.handed_on() if call else AdmissionSlot()
        try:
            await place.take()
            record = await self._house.docket.trials.record(flight.trial_id)
            flight.events += record.events
            meme = record.opened.meme
            flight.file = bytes.fromhex(meme.bytes_sha256)
            async with self._quarantine.trial(place, meme.digest, record.opened.procedure):
                try:
                    record = await self._house.resume(
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
        """Writes down that a trial can't be taken up, so that it does not stand open for ever."""
        # Before the docket is written: where that fails, this server still does not try it over and over.
        self._unresumable.keep(record.trial_id, True)
        if record.state is not TrialState.OPEN:
            return
        failed = TrialFailed(
            trial_id=record.trial_id,
            seq=len(record.events),
            at=self._house.court.now(),
            step="resuming",
            reason=error.reason,
            message=error.message,
            retryable=error.reason == "VERSIONS_DIFFER",  # a server that has those may still take it up
        )
        await self._house.docket.writer.append(failed)
        self._telemetry.resuming(record)
        await self._house.feed.publish(failed)

    def _strike_off(self, flight: RunningTrial) -> None:
        """Leaves to the reaper what may have to be put right of a trial that is over, or that nobody begins."""
        task = flight.task
        if task is None or (flight.begun_by is None and _put_off(task)):
            # Whoever comes next may take it up: resume_cut_off() of any server, which must find it open, or a call.
            self.unstored.leave(flight.trial_id, UnstoredEnd(flight.claims, None))
        # EVENT_EXISTS: another server has gone on with this record, and its end is not this server's to write.
        elif (cause := cause_of(task)) is not None and cause.reason != "EVENT_EXISTS":
            self.unstored.leave(flight.trial_id, UnstoredEnd(flight.claims, cause))

    async def _learn(self, record: TrialRecord) -> None:
        """The next who asks about the same meme need no trial."""
        try:
            await self._known.learn(record)
        except CourtError as error:
            # The verdict is kept: it is not held back because it can't be found by its meme.
            _log.warning("trial=%s can't be given again: reason=%s", record.trial_id, error.reason)


def _put_off(trial: asyncio.Task[TrialRecord]) -> bool:
    """True if a trial was not begun because something was away; one that was begun fails with TrialAborted."""
    return not trial.cancelled() and isinstance(trial.exception(), Unavailable)


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
