"""The path of a request: validate, decode, look up what is known, lease, join or start a trial, answer.

Before its trial starts, a request is leased in the docket under its namespace and id, with its fingerprint. A repeated
request, at any server, finds the lease and gets the same trial: from its record, by waiting for it, or by resuming it
if it was interrupted. A lease names its server and a number that is new each time; a server that takes over a trial
replaces the lease by compare-and-set.

A request for a known meme (:mod:`serving.judging.known`) is leased to the meme's trial. An unknown meme is leased
itself, before any request for it: requests for it during its trial, at any server, wait for that trial
(:mod:`serving.judging.leases`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, assert_never

from court.errors import BadPicture, CantResume, CourtError, Overrun, Unavailable
from court.in_force import InForce
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import STOPPED
from serving.access.callers import SANDBOX
from serving.docket.errors import RequestConflict, TrialUnknown
from serving.docket.ports import TrialReader
from serving.docket.store.requests import Lease, RequestName
from serving.errors import Busy, closing
from serving.judging.admission import Admission
from serving.judging.decode import DecodingPool, Quarantine
from serving.judging.executor import TrialExecutor
from serving.judging.heartbeat import Heartbeat
from serving.judging.known import Findings, Known, VerdictCache, whole
from serving.judging.leases import (
    MEMES,
    Answered,
    LeaseTable,
    Moved,
    Orphaned,
    RunningElsewhere,
    owner_of_meme,
    request_of,
)
from serving.judging.orphans import Orphans, Reaper
from serving.judging.request import AdmissionSlot, Answer, Caller, PictureMemory, TrialRequest, WorkCancelled, uncounted
from serving.judging.running import RunningTrial, TrialsInFlight
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry

_POLL_S = (0.1, 1.0)
"""First and longest interval in seconds between two polls of a trial on another server."""

TRY_S = 300.0
"""Seconds that a try has."""
_CALLER_SPECIFIC = frozenset({"DEADLINE", "PIN_NOT_LOADED", "POLICY_NOT_LOADED"})
"""Reasons of a trial's failure that only concern the caller who started it."""


async def opened_trial(
    answering: asyncio.Future[Any], trial_of: Callable[[], Awaitable[str | None]], trials: TrialReader
) -> str | None:
    """Returns the id of a request's trial once it is opened; None if the request is answered before.

    A trial that ends within a second has ended by then.
    """
    while not answering.done():
        await asyncio.wait([answering], timeout=_POLL_S[0])
        with suppress(TrialUnknown):  # leased, and not opened yet
            trial_id = await trial_of()
            if trial_id is not None and await trials.record(trial_id):
                await asyncio.wait([answering], timeout=_POLL_S[1])
                return trial_id
    return None


class TrialRunner:
    """Answers requests, running a trial only if one is needed. Safe for concurrent use within one event loop."""

    def __init__(
        self,
        executor: TrialExecutor,
        settings: Settings,
        telemetry: Telemetry = SILENT,
        *,
        heartbeat: Heartbeat | None = None,
        admission: Admission | None = None,
        memory: PictureMemory = uncounted,
    ) -> None:
        """Prepares the runner; it answers requests once entered as a context manager."""
        self._executor = executor
        self._text_alone = settings.text_alone
        self._telemetry = telemetry
        self._heartbeat = heartbeat or Heartbeat(executor.docket.heartbeats, uuid.uuid4().hex)
        self._leases = LeaseTable(executor.docket.leases, executor.docket.trials, self._heartbeat)
        self._quarantine = Quarantine(executor.docket.index)
        self.decoders = DecodingPool(
            executor.pictures, self._quarantine, settings.picture_workers, telemetry=telemetry, memory=memory
        )
        self._findings = Findings(executor.docket.findings)
        self._verdicts = VerdictCache(
            executor.docket.verdict_keys,
            executor.docket.trials,
            executor.court_of,
            settings=settings,
            findings=self._findings,
        )
        self._known = Known(
            self._verdicts,
            executor,
            settings,
            decoders=self.decoders,
            quarantine=self._quarantine,
            findings=self._findings,
        )
        self._in_flight = TrialsInFlight(
            executor=executor,
            leases=self._leases,
            verdicts=self._verdicts,
            quarantine=self._quarantine,
            telemetry=telemetry,
            decoders=self.decoders,
        )
        self.admission = admission or Admission(settings.concurrent_trials, settings.waiting_trials)
        # An eighth of the trials, and as many that wait.
        tries = max(1, settings.concurrent_trials // 8)
        self._tries = Admission(tries, tries)
        self._started: set[asyncio.Task[Answer]] = set()
        self._memory = memory
        # In this order: telemetry, which counts outcomes, must know the earlier state of a resumed trial.
        executor.feed.subscribe(self._in_flight.on_event)
        executor.feed.subscribe(telemetry.watch)
        self._reaper = Reaper(
            writer=executor.docket.writer,
            leases=self._leases,
            in_flight=self._in_flight,
            now=executor.court.now,
            feed=executor.feed,
        )
        self.orphans = Orphans(self._leases, self._in_flight, self._heartbeat.beat_s)
        self._background: list[asyncio.Task[None]] = []
        self._open = False

    async def __aenter__(self) -> Self:
        """Starts the heartbeat and answers requests from now on."""
        # Before the first lease: leases of a server without a heartbeat soon look like those of a dead one.
        await self._heartbeat.beat()
        self._background = [asyncio.create_task(work) for work in (self._heartbeat.run(), self._reaper.run())]
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancels running trials; each still records its end, and its callers are notified."""
        self.close()
        # Trials end while the heartbeat continues: otherwise another server could resume one whose end is being stored.
        await self._in_flight.stop()
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
            self._background = []
            with suppress(CourtError):  # the docket is unavailable: others will notice the missing heartbeat
                # Store the last ends before removing the heartbeat, after which other servers take over at once.
                await self._reaper.reap()
                await self._heartbeat.retire()

    def close(self) -> None:
        """Accepts no more requests and resumes no more trials; running ones continue."""
        self._open = False
        self.orphans.close()

    async def answer(self, request: TrialRequest, *, within_s: float | None = None, patient: bool = False) -> Answer:
        """Returns the verdict on a request.

        A cancelled call only stops waiting; a trial continues as long as at least one caller waits for it.

        Args:
            patient: True if the caller waits however long the queue is, as a stream does.

        Raises:
            BadInput: The picture can't be tried, is in quarantine or missing; nothing is recorded.
            NotLoaded: The procedure or a pinned version is not available; nothing is recorded.
            RequestConflict: Another request was asked under this name.
            Busy: The limits of running trials and waiting callers are reached; nothing is stored for it.
            Unavailable: A dependency is not available now. A repeated request resumes what has been stored.
            TrialAborted: The trial started and failed; its record is stored.
        """
        began = time.perf_counter()
        if not self._open:
            raise closing()
        if request.text_alone and not self._text_alone:
            raise BadPicture(
                "No picture was sent, and this court does not judge a text alone. Send the picture's file with it.",
                reason="PICTURE_EMPTY",
            )
        if request.namespace == SANDBOX:
            # Before a slot that others could use: tries never starve a pipeline.
            async with self._tries.acquire(SANDBOX, within_s=within_s):
                return await self._answer(request, within_s, patient, began)
        return await self._answer(request, within_s, patient, began)

    async def start(self, request: TrialRequest, *, within_s: float = TRY_S) -> str:
        """Has a request answered in the background; returns the id of its trial as :func:`opened_trial`.

        Raises:
            CourtError: The reasons of :meth:`answer`, where there is no trial.
        """
        request = replace(request, request_id=str(uuid.uuid4()))
        answering = asyncio.create_task(self.answer(request, within_s=within_s))
        self._started.add(answering)
        answering.add_done_callback(self._started.discard)
        # Its failure is in the record, which is what its page shows.
        answering.add_done_callback(lambda done: done.cancelled() or done.exception())
        opened = await opened_trial(answering, lambda: self.trial_of(request.name), self._executor.docket.trials)
        if opened is not None:
            return opened
        try:
            return (await answering).record.trial_id
        except TrialAborted as error:
            return error.record.trial_id

    async def _answer(self, request: TrialRequest, within_s: float | None, patient: bool, began: float) -> Answer:
        slot = AdmissionSlot(self.admission, request.namespace, within_s, patient, memory=self._memory)
        try:
            async with asyncio.timeout(within_s) as clock:
                request, caller = await request.identified(), Caller(slot, clock)
                self._quarantine.require(request.file, text_given=request.text is not None)
                try:
                    record = await self._judge(request, caller)
                    reused = request_of(record) != request.name
                    near = reused and await self._differs_in_pixels(request, caller, record)
                    in_force = await self._in_force(request, caller, record, near=near)
                finally:
                    await slot.leave()
        except TimeoutError:
            # A TimeoutError raised inside is not the caller's deadline.
            if not clock.expired():
                raise
            raise Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0) from None
        if reused:
            self._telemetry.reused(near=near)
        return Answer(
            record=record,
            in_force=in_force,
            picture_seconds=caller.picture_seconds,
            total_seconds=time.perf_counter() - began,
            name=request.name,
            reused=reused,
            near=near,
        )

    async def trial_of(self, name: RequestName) -> str | None:
        """Returns the id of a request's trial, which may not have been opened yet; None if there is no such request."""
        lease = await self._leases.find(name)
        return None if lease is None else lease.trial_id

    def refresh(self) -> None:
        """Has the next request notice a review that was stored on this server."""
        self._findings.refresh()

    # The steps of a request.

    async def _judge(self, request: TrialRequest, caller: Caller) -> TrialRecord:
        """Returns the trial that answers a request: a known one, one that is running, or one that it starts."""
        # Before taking a slot: a verdict in memory does not wait behind trials.
        if (record := await self._at_hand(request)) is not None:
            return record
        if request.repeatable and (lease := await self._leases.find(request.name)) is not None:
            return await self._judge_repeated(request, caller, lease)
        digest = await self.decoders.digest_of(request, caller)
        if (record := await self._known.found(request, digest)) is None:
            self._executor.require(request)
            await self._quarantine.require_meme(digest, request.procedure)
            # Only after the picture is decoded: the loaded versions may change during that.
            key = await self._known.key(request, digest)
            record = await self._known.find(request, caller, key) if key else None
            if record is None:
                return await self._join_or_start(request, caller, digest, key)
            request.require_of(record)
        # Another server got the same request first: both answer with the leased trial.
        other = await self._lease_known(request, record.trial_id)
        return record if other is None else await self._follow(request, caller, other)

    async def _judge_repeated(self, request: TrialRequest, caller: Caller, lease: Lease) -> TrialRecord:
        """Returns the trial that a repeated request is leased to."""
        if lease.payload != request.fingerprint:
            raise RequestConflict(
                "Another request was asked under this request_id in this namespace. Give each request an id of its own."
            )
        record = await self._follow(request, caller, lease)
        if request_of(record) == request.name:
            return record
        found = await self._known.finding(request, record.opened.meme.digest)
        # Versions don't matter where a person has decided.
        if found is not None and found.label is not None:
            return record
        if not whole(record):  # cut short for a reason that does not concern this request
            digest = await self.decoders.digest_of(request, caller)
            if key := self._verdicts.key(request, digest):
                record = await self._join_or_start(request, caller, digest, key, lease=lease)
        request.require_of(record)
        return record

    async def _at_hand(self, request: TrialRequest) -> TrialRecord | None:
        """Returns the answer if it is in memory: nothing is decoded, and at most one lease is written."""
        digest = self.decoders.digest_at_hand(request)
        record = None if digest is None else await self._known.at_hand(request, digest)
        if record is None or await self._lease_known(request, record.trial_id) is not None:
            return None
        return record

    async def _in_force(self, request: TrialRequest, caller: Caller, record: TrialRecord, *, near: bool) -> InForce:
        """Returns the finding in force on the request's content, of which a near-duplicate says nothing."""
        digest = await self.decoders.digest_of(request, caller) if near else record.opened.meme.digest
        policy = self._executor.court_of(request.namespace).policy.digest
        found = await self._known.finding(request, digest)
        return record.in_force_under(policy, found, self._executor.docket.rules)

    async def _differs_in_pixels(self, request: TrialRequest, caller: Caller, record: TrialRecord) -> bool:
        """True if the trial's picture differs from the caller's."""
        meme = record.opened.meme
        # The same file has the same pixels, so that nothing needs decoding.
        if meme.bytes_sha256 == request.file.hex():
            return False
        return await self.decoders.digest_of(request, caller) != meme.digest

    # Leases and trials.

    async def _lease_known(self, request: TrialRequest, trial_id: str) -> Lease | None:
        """Leases a request to the trial of a known meme; returns the lease to follow if there is another one already.

        A request without an id from the caller, which can't be repeated, is leased only if its content has one: what a
        review changes for that content is listed by it.
        """
        if not (request.repeatable or request.content_id):
            return None
        lease = await self._leases.acquire(self._wanted(request, trial_id))
        return lease if lease.trial_id != trial_id else None

    def _wanted(self, request: TrialRequest, trial_id: str, owner: str = "") -> Lease:
        return self._leases.wanted(request.name, request.fingerprint, trial_id, owner, content_id=request.content_id)

    async def _join_or_start(
        self, request: TrialRequest, caller: Caller, digest: str, key: str, *, lease: Lease | None = None
    ) -> TrialRecord:
        """Returns the trial of a meme, which is running here or elsewhere, or is started for this caller."""
        while True:
            lease, record = await self._join(request, caller, key, lease)
            # A trial for another caller may have been cut short by that one's deadline, or run with other versions than
            # were loaded when this request arrived: this caller then needs another one.
            if request_of(record) == request.name or self._verdicts.answers(record, key):
                return record
            key = self._verdicts.key(request, digest)

    async def _join(
        self, request: TrialRequest, caller: Caller, key: str, lease: Lease | None
    ) -> tuple[Lease, TrialRecord]:
        """Leases a request to the leading trial of its meme, or to one of its own; returns that lease and its trial."""
        while (flight := self._in_flight.leading(key)) is not None and flight.ending:
            await flight.over()
        lead = None
        if flight is None:
            await self._require_turn(caller, key)
        if flight is None and key:
            wanted = self._leases.wanted(RequestName(MEMES, key), "", str(uuid.uuid4()))
            with self._in_flight.unless_left(wanted):
                lead = await self._leases.lead(wanted, lambda record: self._verdicts.answers(record, key))
            # Another call on this server may have been quicker.
            made = lead == wanted
            flight = self._in_flight.enlist(lead.trial_id, key) if made else self._in_flight.of(lead.trial_id)
        elif flight is None:
            flight = self._in_flight.enlist(str(uuid.uuid4()))
        if flight is None:
            assert lead is not None, "there is a key"
            wanted = self._wanted(request, lead.trial_id, owner_of_meme(key))
            lease = await self._leases.acquire(wanted, lease)
            return lease, await self._follow(request, caller, lease)
        with flight:
            wanted = self._wanted(request, flight.trial_id)
            # Registered before it is written: if the caller leaves meanwhile, the lease may be in force, and the reaper
            # has to release it.
            flight.leases |= {wanted} if lead is None else {wanted, lead}
            lease = await self._leases.acquire(wanted, lease)
            return lease, await self._follow(request, caller, lease)

    async def _require_turn(self, caller: Caller, key: str) -> None:
        """Raises Busy if a trial would get no slot, before anything is written for it.

        On an overloaded server this is the common case, so it must be cheap.
        """
        try:
            caller.slot.require()
        except Busy:
            if not key or await self._leases.find(RequestName(MEMES, key)) is None:
                raise  # otherwise another server may be running it, and this call waits for that

    async def _follow(self, request: TrialRequest, caller: Caller, lease: Lease) -> TrialRecord:
        """Returns the trial of a leased request, whatever state it is in."""
        pause, longest = _POLL_S
        while True:
            # First: the docket may not know yet of a trial that is running here.
            match self._in_flight.of(lease.trial_id) or await self._leases.state(lease):
                case RunningTrial(task=None) as mine:
                    # Nothing is awaited before this caller joins: a trial without callers would never be cancelled.
                    self._in_flight.begin(mine, request, caller)
                    if (record := await self._result(mine, caller)) is not None:
                        return record
                case RunningTrial(ending=True) as ending:
                    await ending.over()
                case RunningTrial() as running:
                    if (record := await self._result(running, caller)) is not None:
                        return record
                case RunningElsewhere():
                    await caller.slot.leave()
                    await asyncio.sleep(pause)
                    # Trials elsewhere may take long: back off, so that many waiting calls don't load the docket.
                    pause = min(2 * pause, longest)
                case Answered(record):
                    return record
                case Moved(trial_id):
                    await self._leases.follow(lease, trial_id)
                case Orphaned() as orphan:
                    lease = await self._adopt(request, caller, lease, orphan)
                    continue
                case unknown:
                    assert_never(unknown)
            lease = await self._leases.standing(lease)

    async def _result(self, flight: RunningTrial, caller: Caller) -> TrialRecord | None:
        """Waits for a trial on this server; None if its end does not concern the caller, who has to look again."""
        with flight:
            if flight.begun_by is caller:
                caller.ends_with_trial()
            else:
                await caller.slot.leave()
            try:
                return await flight.result()
            except WorkCancelled:
                stopped = Unavailable("The server was stopped before there was a verdict.", reason=STOPPED)
                record = flight.record
                if record is None:
                    raise stopped from None
                # It was cancelled after the verdict was stored, and a stored verdict counts.
                if record.state is TrialState.DECIDED:
                    return record
                raise TrialAborted(stopped, record) from None
            except CourtError as error:
                # Another server has resumed it, or it must be tried afresh: look up the current state of its trial.
                if error.reason == "EVENT_EXISTS" or isinstance(error, CantResume):
                    return None
                # The deadline or the pinned versions were another caller's.
                if error.reason in _CALLER_SPECIFIC and flight.begun_by is not caller:
                    return None
                raise

    async def _adopt(self, request: TrialRequest, caller: Caller, lease: Lease, orphan: Orphaned) -> Lease:
        """Resumes an orphaned trial on this server, or starts one in its place; returns the lease to follow."""
        record = orphan.record
        if record is not None:
            # Also before resuming: RE-6 counts across restarts, and resuming would show the meme to a model again.
            await self._quarantine.require_meme(record.opened.meme.digest, record.opened.procedure)
        resumed = record is not None and self._in_flight.resumable(record)
        if not resumed:
            self._executor.require(request)
        # First the slot, then the lease: a server too busy to start the trial must not keep others from doing so.
        await caller.slot.take()
        trial_id = lease.trial_id if record is None or resumed else str(uuid.uuid4())
        flight = await self._in_flight.take_over(lease, orphan.ruling, trial_id, resumed=resumed)
        if flight is None:
            return await self._leases.standing(lease)
        # The caller joins it next, with nothing awaited in between.
        if resumed:
            self._in_flight.resume(flight, request, caller)
        else:
            self._in_flight.begin(flight, request, caller)
        return replace(lease, trial_id=trial_id)
