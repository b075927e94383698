"""Request handling: decides which requests need a trial, and which are answered by an existing one.

Before its trial starts, a request is leased in the docket under its namespace and id, with its fingerprint. A repeated
request, at any server, finds the lease and gets the same trial: from its record, by waiting for it, or by resuming it
if it was interrupted. A lease names its server and a number that is new each time; a server that takes over a trial
replaces the lease by compare-and-set.

A request for a known meme (:mod:`serving.judging.known`) is leased to the meme's trial. An unknown meme is
leased itself, before any request for it: requests for it during its trial, at any server, wait for that trial
(:mod:`serving.judging.leases`).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Self, assert_never

from court.digests import digest_of_file
from court.errors import BadPicture, CantResume, CourtError, NotLoaded, Overrun, Unavailable
from court.evidence import text_reader_off
from court.meme import Meme, check_present, check_text, text_digest
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import STOPPED
from serving.docket.errors import RequestConflict, TrialUnknown
from serving.docket.store.requests import Lease, RequestName
from serving.errors import Busy, closing
from serving.judging.admission import Admission
from serving.judging.decode import DecodingPool
from serving.judging.executor import TrialExecutor
from serving.judging.heartbeat import Heartbeat
from serving.judging.known import VerdictCache, reusable, whole
from serving.judging.leases import (
    MEMES,
    Answered,
    LeaseTable,
    Moved,
    Orphaned,
    RunningElsewhere,
    owner_of_meme,
)
from serving.judging.quarantine import Quarantine
from serving.judging.reaper import Reaper
from serving.judging.request import (
    ANY_VERSIONS,
    AdmissionSlot,
    Answer,
    Call,
    PictureMemory,
    TrialRequest,
    UncountedPictures,
)
from serving.judging.running import RunningTrial, TrialsInFlight, UnstoredEnd
from serving.judging.single_flight import WorkCancelled
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry

_POLL_S = (0.1, 1.0)
"""First and longest interval in seconds between two polls of a trial on another server."""

_CALLER_SPECIFIC = frozenset({"DEADLINE", "PIN_NOT_LOADED", "POLICY_NOT_LOADED"})
"""Reasons of a trial's failure that only concern the caller who started it."""

_log = logging.getLogger("memecourt.service")


class TrialRunner:
    """Answers requests, running a trial only if one is needed. Safe for concurrent use within one event loop.

    Attributes:
        decoders: Pool that decodes pictures, for its trials and for others.
    """

    def __init__(
        self,
        executor: TrialExecutor,
        settings: Settings,
        telemetry: Telemetry = SILENT,
        *,
        heartbeat: Heartbeat | None = None,
        admission: Admission | None = None,
        memory: PictureMemory | None = None,
    ) -> None:
        """Prepares the runner; it answers requests once entered as a context manager.

        Args:
            executor: Executor that runs and stores trials.
            settings: Settings: which verdicts are reused, and whether texts are tried without a picture.
            telemetry: Records reused verdicts.
            heartbeat: Heartbeats: the name of this server, and which others are alive.
            admission: Admission control; None for one as in the settings.
            memory: Accounts for the bytes of decoded pictures; None if they are not limited.
        """
        self._executor = executor
        self._trials = executor.docket.trials
        self._leases = executor.docket.leases
        self._near = executor.near if settings.reuse_near else None
        self._reuse = settings.reuse != "off"
        self._text_alone = settings.text_alone
        self._telemetry = telemetry
        self._heartbeat = heartbeat or Heartbeat(executor.docket.heartbeats, uuid.uuid4().hex)
        self._claims = LeaseTable(executor.docket.leases, executor.docket.trials, self._heartbeat)
        self._known = VerdictCache(executor.docket.verdict_keys, executor.docket.trials, executor.court_of, settings)
        self._quarantine = Quarantine(executor.docket.index)
        self.decoders = DecodingPool(
            executor.pictures, self._quarantine, settings.picture_workers, telemetry=telemetry, memory=memory
        )
        self._in_flight = TrialsInFlight(
            executor=executor,
            known=self._known,
            quarantine=self._quarantine,
            telemetry=telemetry,
            decoders=self.decoders,
        )
        self.admission = admission or Admission(settings.concurrent_trials, settings.waiting_trials)
        self._memory = memory or UncountedPictures()
        # In this order: telemetry, which counts outcomes, must know the earlier state of a resumed trial.
        executor.feed.subscribe(self._in_flight.note)
        executor.feed.subscribe(telemetry.watch)
        self._reaper = Reaper(
            writer=executor.docket.writer,
            leases=executor.docket.leases,
            claims=self._claims,
            in_flight=self._in_flight,
            now=executor.court.now,
            feed=executor.feed,
        )
        self._beside: list[asyncio.Task[None]] = []
        self._open = False
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Starts the heartbeat and answers requests from now on.

        Raises:
            Unavailable: The docket is not there now.
        """
        # Before the first lease: leases of a server without a heartbeat soon look like those of a dead one.
        await self._heartbeat.beat()
        self._beside = [asyncio.create_task(work) for work in (self._heartbeat.run(), self._reaper.run())]
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancels running trials; each still records its end, and its callers are notified."""
        self.close()
        # Trials end while the heartbeat continues: otherwise another server could resume one whose end is being stored.
        await self._in_flight.stop()
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)
            self._beside = []
            with suppress(CourtError):  # the docket is unavailable: others will notice the missing heartbeat
                # Store the last ends before removing the heartbeat, after which other servers take over at once.
                await self._reaper.reap()
                await self._heartbeat.retire()

    def close(self) -> None:
        """Accepts no more requests and resumes no more trials; running ones continue."""
        self._open = False
        self._closing.set()

    async def answer(
        self,
        ask: TrialRequest,
        *,
        within_s: float | None = None,
        patient: bool = False,
    ) -> Answer:
        """Returns the verdict on a request.

        A cancelled call only stops waiting; a trial continues as long as at least one call waits for it.

        Args:
            within_s: Seconds until the caller's deadline; None where there is none.
            patient: True if the caller waits however long the queue is, as a stream does.

        Raises:
            BadInput: The picture or the text can't be tried, is in quarantine or missing; nothing is recorded.
            NotLoaded: The procedure or a pinned version is not available; nothing is recorded.
            RequestConflict: Another request was asked under this name.
            Busy: The limits of running trials and waiting callers are reached; nothing is stored for it.
            Unavailable: A dependency is not available now. A repeated request resumes what has been stored.
            TrialAborted: The trial started and failed; its record is stored.
        """
        began = time.perf_counter()
        if not self._open:
            raise closing()
        if ask.text is not None:
            check_text(ask.text)
        check_present(ask.text, picture=not ask.text_alone)
        if ask.text_alone and not self._text_alone:
            raise BadPicture(
                "No picture was sent, and this court does not judge a text alone. Send the picture's file with it.",
                reason="PICTURE_EMPTY",
            )
        name = RequestName(ask.namespace, ask.request_id or str(uuid.uuid4()))
        try:
            async with asyncio.timeout(within_s) as clock:
                file = b"" if ask.text_alone else await digest_of_file(ask.image)
                self._quarantine.require(file, text_given=ask.text is not None)
                slot = AdmissionSlot(self.admission, ask.namespace, within_s, patient, memory=self._memory)
                call = Call(ask=ask, name=name, file=file, place=slot, began=began, clock=clock, deadline=clock.when())
                # Before taking a slot: a verdict in memory does not wait behind trials.
                answer = await self._at_hand(call) if self._reuse and not ask.try_anew else None
                if answer is None:
                    try:
                        answer = await self._answer(call)
                    finally:
                        await call.place.leave()
                if answer.reused:
                    self._telemetry.reused(near=answer.near)
                return answer
        except TimeoutError:
            # A TimeoutError raised inside is not the caller's deadline.
            if not clock.expired():
                raise
            raise Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0) from None

    async def trial_of(self, name: RequestName) -> str | None:
        """Returns the id of a request's trial, which may not have been opened yet; None if there is no such request."""
        claim = await self._leases.claim_of(name)
        return None if claim is None else claim.trial_id

    def forget(self, trial_id: str) -> None:
        """Stops reusing an overruled verdict on this server."""
        self._known.forget(trial_id)

    async def resume_cut_off(self) -> None:
        """Resumes the open trials of dead servers, one after the other.

        Returns when each trial that is open at the start has ended or belongs to a live server; after :meth:`close`,
        when the current one has ended. Trials that can't be resumed because the docket or another dependency is
        unavailable are retried. A trial that was leased but never opened can only be started by a repeated request.
        """
        waiting = await self._cut_off()
        while waiting:
            away = ""
            for trial_id, claim in [*waiting.items()]:
                if self._closing.is_set():
                    return
                try:
                    if await self._resume_orphan(claim):
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

    async def _cut_off(self) -> dict[str, Lease]:
        """Returns the leases of all open trials, by trial id; none once closed."""
        while not self._closing.is_set():
            try:
                return {claim.trial_id: claim for claim in await self._leases.open_claims()}
            except Unavailable as error:
                _log.warning("what is to be resumed can't be told yet: reason=%s", error.reason)
            await self._pause()
        return {}

    async def _pause(self) -> None:
        """Waits between two scans for interrupted trials; returns at once when closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._heartbeat.beat_s):
                await self._closing.wait()

    # Processing of a request.

    def _require(self, ask: TrialRequest) -> None:
        """Raises NotLoaded if the request alone shows that it can't be tried now.

        Not called for requests that already have a verdict, which is returned whatever is loaded now.
        """
        court = self._executor.court_of(ask.namespace)
        court.require(ask.procedure, text_given=ask.text is not None)
        if ask.pins != ANY_VERSIONS or ask.policy is not None:
            ask.require(self._known.versions(ask), court.policy)

    async def _at_hand(self, call: Call) -> Answer | None:
        """Returns the answer if it is in memory: nothing is decoded, and at most one lease is written."""
        digest = self._digest_at_hand(call)
        if digest is None:
            return None
        record = await self._known.at_hand(self._known.key(call.ask, digest))
        if record is None or not _fits(call.ask, record) or await self._claim_for(call, record.trial_id) is not None:
            return None
        return self._answered(call, record)

    async def _claim_for(self, call: Call, trial_id: str) -> Lease | None:
        """Leases a request to the trial of a known meme; returns the lease to follow if there is another one already.

        A request without an id from the caller is not leased, since it can't be repeated.
        """
        if not call.ask.request_id:
            return None
        claim = await self._claims.claim(self._claims.wanted(call.name, call.payload, trial_id))
        return claim if claim.trial_id != trial_id else None

    async def _answer(self, call: Call) -> Answer:
        """Returns the answer if a trial may be needed."""
        claim = await self._leases.claim_of(call.name) if call.ask.request_id else None
        if claim is None:
            return await self._first(call)
        if claim.payload != call.payload:
            raise RequestConflict(
                "Another request was asked under this request_id in this namespace. Give each request an id of its own."
            )
        answer = await self._follow(call, claim)
        if answer.reused:
            if not whole(answer.record):  # cut short for a reason that does not concern this request
                digest = await self._digest(call)
                if key := self._key(call, digest):
                    answer = await self._due(call, claim, answer, digest=digest, key=key)
            call.ask.require_of(answer.record)
        return answer

    def _key(self, call: Call, digest: str) -> str:
        """Returns the cache key of a request with the current versions; empty if it gets its own trial.

        Raises:
            NotLoaded: The court does not have the versions that the request pins.
        """
        self._require(call.ask)
        return self._known.key(call.ask, digest) if self._reuse and not call.ask.try_anew else ""

    async def _first(self, call: Call) -> Answer:
        """Answers a new request."""
        self._require(call.ask)
        digest = await self._digest(call)
        await self._quarantine.require_meme(digest, call.ask.procedure)
        # Only after the picture is decoded: the loaded versions may change during that.
        key = self._key(call, digest)
        if key and (earlier := await self._known.find(key) or await self._nearly(call)):
            call.ask.require_of(earlier)
            # Another server got the same request first: both answer with the leased trial.
            if (claim := await self._claim_for(call, earlier.trial_id)) is not None:
                return await self._follow(call, claim)
            near = not self._known.answers(earlier, key) and await self._differs_in_pixels(call, earlier)
            return self._answered(call, earlier, near=near)
        claim, answer = await self._join(call, key)
        return await self._due(call, claim, answer, digest=digest, key=key)

    async def _due(self, call: Call, claim: Lease, answer: Answer, *, digest: str, key: str) -> Answer:
        """Returns the final answer to a call, given that of a trial that may have been run for another call.

        That trial may have been cut short by another caller's deadline, or run with other versions than were loaded
        when this request arrived: this call then needs another trial.
        """
        while answer.reused and not self._known.answers(answer.record, key):
            key = self._key(call, digest)
            lead, _ = await self._lead(key)
            with self._unless_left(lead):
                # If this fails, the same request is being answered elsewhere, and this call follows that.
                own = await self._claims.take_over(claim, lead.trial_id, owner_of_meme(key))
                claim = own or await self._claims.standing(claim)
                answer = await self._follow(call, claim)
        return answer

    def _digest_at_hand(self, call: Call) -> str | None:
        """Returns the digest of a call's meme if no picture must be decoded for it; else None."""
        return text_digest(call.ask.text or "") if call.ask.text_alone else self._known.pixels_of(call.file)

    async def _digest(self, call: Call) -> str:
        """Returns the digest of a call's meme; decodes the picture unless that was done recently."""
        return self._digest_at_hand(call) or Meme(await self._in_flight.decoded(call), call.ask.text).digest

    async def _join(self, call: Call, key: str) -> tuple[Lease, Answer]:
        """Returns lease and answer of a meme's trial, at any server, or of one that this call starts."""
        flight, lead = self._in_flight.leading(key), None
        while flight is not None and flight.ending:
            await flight.over()
            flight = self._in_flight.leading(key)
        if flight is None:
            await self._require_turn(call, key)
        if flight is None and key:
            lead, made = await self._lead(key)
            # Concurrent calls on this server got the same answer from lead(), and one may have been quicker.
            flight = self._in_flight.enlist(lead.trial_id, key) if made else self._in_flight.of(lead.trial_id)
        elif flight is None:
            flight = self._in_flight.enlist(str(uuid.uuid4()))
        if flight is None:
            assert lead is not None, "there is a key"
            wanted = self._claims.wanted(call.name, call.payload, lead.trial_id, owner_of_meme(key))
            claim = await self._claims.claim(wanted)
            return claim, await self._follow(call, claim)
        with flight:
            wanted = self._claims.wanted(call.name, call.payload, flight.trial_id)
            # Registered before it is written: if the caller leaves meanwhile, the lease may be in force, and the reaper
            # has to release it.
            flight.claims |= {wanted} if lead is None else {wanted, lead}
            claim = await self._claims.claim(wanted)
            return claim, await self._follow(call, claim)

    async def _require_turn(self, call: Call, key: str) -> None:
        """Raises Busy if a trial would get no slot, before anything is written for it.

        On an overloaded server this is the common case, so it must be cheap.
        """
        try:
            call.place.require()
        except Busy:
            if not key or await self._leases.claim_of(RequestName(MEMES, key)) is None:
                raise  # otherwise another server may be running it, and this call waits for that

    async def _lead(self, key: str) -> tuple[Lease, bool]:
        """Returns the lease of a meme, and True if this call has just acquired it and must start the trial."""
        wanted = self._claims.wanted_lead(key)
        with self._unless_left(wanted):
            lead = await self._claims.lead(wanted, lambda record: self._known.answers(record, key))
        return lead, lead == wanted

    async def _follow(self, call: Call, claim: Lease) -> Answer:
        """Answers a leased request by its trial, whatever state it is in."""
        pause, longest = _POLL_S
        while True:
            # First: the docket may not know yet of a trial that is running here.
            match self._in_flight.of(claim.trial_id) or await self._claims.state(claim):
                case RunningTrial(task=None) as mine:
                    # Nothing is awaited before this call joins: a trial without callers would never be cancelled.
                    self._in_flight.begin(mine, call)
                    if (record := await self._result(call, mine)) is not None:
                        return self._answered(call, record)
                case RunningTrial(ending=True) as ending:
                    await ending.over()
                case RunningTrial() as running:
                    if (record := await self._result(call, running)) is not None:
                        return self._answered(call, record)
                case RunningElsewhere():
                    await call.place.leave()
                    await asyncio.sleep(pause)
                    # Trials elsewhere may take long: back off, so that many waiting calls don't load the docket.
                    pause = min(2 * pause, longest)
                case Answered(record):
                    return self._answered(call, record, near=await self._differs_in_pixels(call, record))
                case Moved(trial_id):
                    await self._claims.follow(claim, trial_id)
                case Orphaned() as orphan:
                    claim = await self._adopt(call, claim, orphan)
                    continue
                case unknown:
                    assert_never(unknown)
            claim = await self._claims.standing(claim)

    async def _result(self, call: Call, flight: RunningTrial) -> TrialRecord | None:
        """Waits for a trial on this server; None if its end does not concern this call, which has to look again."""
        with flight:
            if flight.begun_by is call:
                call.ends_with_trial()
            else:
                await call.place.leave()
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
                if not self._goes_on(call, flight, error):
                    raise
                return None

    def _goes_on(self, call: Call, flight: RunningTrial, error: CourtError) -> bool:
        """True if a call should look for an answer again after the trial that it waited for has failed."""
        if error.reason == "EVENT_EXISTS" or isinstance(error, CantResume):
            # Neither is about the meme itself: look up the current state of its trial.
            return True  # another server has resumed it, or it must be tried again
        # The deadline or the pinned versions were another caller's.
        return error.reason in _CALLER_SPECIFIC and flight.begun_by is not call

    def _answered(self, call: Call, record: TrialRecord, *, near: bool = False) -> Answer:
        opened = record.opened
        reused = (opened.meme.namespace, opened.request_id) != (call.name.namespace, call.name.request_id)
        return Answer(
            record=record,
            picture_seconds=call.picture_seconds,
            total_seconds=time.perf_counter() - call.began,
            name=call.name,
            reused=reused,
            near=near,
        )

    # Pictures.

    async def _nearly(self, call: Call) -> TrialRecord | None:
        """Returns the trial of a near-duplicate whose verdict can be reused, or None."""
        if self._near is None or call.ask.text_alone:
            return None
        await call.place.take()
        picture, text = await self._in_flight.decoded(call), call.ask.text
        assert picture is not None, "not a text alone"
        if text is None:
            try:
                if (reader := self._executor.court.text_reader) is None:
                    raise text_reader_off()
                text = (await reader.read(picture)).text
            except CourtError as error:
                self._quarantine.failed(call.file, error.reason)
                raise
            self._quarantine.text_read(call.file)
        found: dict[str, TrialRecord] = {}

        async def usable(trial_id: str) -> bool:
            try:
                record = found[trial_id] = await self._trials.record(trial_id)
            except TrialUnknown:
                return False  # it was just erased
            return reusable(record) and self._known.same_versions(record, call.ask)

        read = call.ask.text is None
        try:
            trial_id = await self._near.same(picture, text, read, call.ask.namespace, usable=usable)
        except CourtError as error:
            self._quarantine.failed(call.file, error.reason)
            raise
        return None if trial_id is None else found[trial_id]

    async def _differs_in_pixels(self, call: Call, record: TrialRecord) -> bool:
        """True if the trial's picture differs from the caller's."""
        meme = record.opened.meme
        # The same file has the same pixels, so that nothing needs decoding.
        if meme.bytes_sha256 == call.file.hex():
            return False
        return await self._digest(call) != meme.digest

    # Leases and trials.

    async def _adopt(self, call: Call, claim: Lease, orphan: Orphaned) -> Lease:
        """Resumes an orphaned trial on this server, or starts one in its place; returns the lease to follow."""
        record = orphan.record
        if record is not None:
            # Also before resuming: RE-6 counts across restarts, and resuming would show the meme to a model again.
            await self._quarantine.require_meme(record.opened.meme.digest, record.opened.procedure)
        resumed = record is not None and self._in_flight.resumable(record)
        if not resumed:
            self._require(call.ask)
        # First the slot, then the lease: a server too busy to start the trial must not keep others from doing so.
        await call.place.take()
        trial_id = claim.trial_id if record is None or resumed else str(uuid.uuid4())
        flight = await self._take_over(claim, orphan.ruling, trial_id, resumed=resumed)
        if flight is None:
            return await self._claims.standing(claim)
        # The call joins it next, with nothing awaited in between.
        if resumed:
            self._in_flight.take_up(flight, call)
        else:
            self._in_flight.begin(flight, call)
        return replace(claim, trial_id=trial_id)

    async def _take_over(self, claim: Lease, ruling: Lease, trial_id: str, *, resumed: bool) -> RunningTrial | None:
        """Takes over the leases of an orphaned trial.

        Args:
            claim: Lease of the request that follows the trial.
            ruling: Lease of the request or meme that the trial was or is to be opened for.
            trial_id: Id of the trial that this server runs instead.

        Returns:
            The trial, to be started before anything is awaited; None if a call or a server was quicker.
        """
        owner = self._claims.owner()
        wanted = {replace(each, trial_id=trial_id, owner=owner) for each in (ruling, claim)}
        async with self._claims.taking(claim.trial_id):
            # Checked under the lock: another call may have started the trial meanwhile.
            if self._in_flight.of(claim.trial_id):
                return None
            with self._unless_left(*wanted):
                if await self._claims.take_over(ruling, trial_id, owner) is None:
                    return None
                # A resumed trial keeps its id, which this request's lease already names.
                if ruling != claim and not resumed:
                    await self._claims.take_over(claim, trial_id, owner)
            flight = self._in_flight.enlist(trial_id)
            flight.claims |= wanted
        return flight

    async def _resume_orphan(self, claim: Lease) -> bool:
        """Resumes an open trial whose server has died.

        Returns:
            True if nothing is left to do; False if it is not known yet whether its server is alive.

        Raises:
            Unavailable: The trial could not be started now, and stays open as before.
            As :meth:`court.trial.Court.resume`.
        """
        standing = await self._claims.standing(claim)  # it may have been attempted before, and deferred
        if standing.trial_id != claim.trial_id or self._in_flight.of(claim.trial_id):
            return True
        match await self._claims.state(standing):
            case RunningElsewhere(alive):
                return alive
            case Orphaned(ruling, TrialRecord(state=TrialState.OPEN)):
                flight = await self._take_over(ruling, ruling, claim.trial_id, resumed=True)
            case _:
                return True
        if flight is None:
            return False  # it changed hands: check its new server next time
        self._in_flight.take_up(flight)
        with flight:
            try:
                record = await flight.result()
            except WorkCancelled:
                return True
        _log.info("trial=%s resumed state=%s", record.trial_id, record.state)
        return True

    @contextmanager
    def _unless_left(self, *wanted: Lease) -> Iterator[None]:
        """Hands leases to the reaper if acquiring them fails or the caller leaves, since they may be in force."""
        try:
            yield
        # Includes CancelledError, raised when a caller leaves.
        except BaseException:
            self._in_flight.unstored.leave(wanted[0].trial_id, UnstoredEnd(wanted, None))
            raise


def _fits(ask: TrialRequest, record: TrialRecord) -> bool:
    """True if a trial was run with everything that the request pins."""
    # Most requests pin nothing, so they need no comparison.
    if ask.pins == ANY_VERSIONS and ask.policy is None:
        return True
    try:
        ask.require_of(record)
    except NotLoaded:
        return False
    return True
