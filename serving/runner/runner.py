"""Ask twice, pay once: which requests need a trial, and which have their verdict already.

A request is claimed in the docket before its trial is begun, under its namespace and id, with a digest of what it asks.
Whoever asks the same again, at whichever server, finds the claim and gets the same trial: from its record, by waiting
for it, or by taking it up where it was cut off. A claim names the server that sees to it and a number that is new each
time; who takes a trial up puts another in its place, and only if nobody else has.

A meme that is known (:mod:`serving.runner.verdict_cache`) is claimed for the trial that it is known by. An unknown one
is claimed itself, before any request for it: requests for it that come while its trial is held, at whichever server,
wait for that trial (:mod:`serving.runner.claims`).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Self

from court.digests import digest_of_file
from court.errors import BadPicture, CantResume, CourtError, NotLoaded, Overrun, Unavailable
from court.evidence import text_reader_off
from court.meme import Meme, check_present, check_text, text_digest
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import STOPPED
from serving.docket.ports import Lease, RequestConflict, RequestName, TrialUnknown
from serving.errors import Busy
from serving.runner.admission import Admission
from serving.runner.claims import MEMES, LeaseTable, owner_of_meme, server_of
from serving.runner.decoding import DecodingPool
from serving.runner.executor import TrialExecutor
from serving.runner.heartbeat import Heartbeat
from serving.runner.in_flight import RunningTrial, TrialsInFlight, UnstoredEnd
from serving.runner.quarantine import Quarantine
from serving.runner.quotas import quotas_of
from serving.runner.reaper import Reaper
from serving.runner.request import (
    ANY_VERSIONS,
    AdmissionSlot,
    Answer,
    CachedAnswer,
    Call,
    PictureMemory,
    TrialRequest,
    UncountedPictures,
)
from serving.runner.single_flight import WorkCancelled
from serving.runner.verdict_cache import VerdictCache, reusable, whole
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry

_POLL_S = (0.1, 1.0)
"""Between two looks at a trial that another server holds: the first, and the longest, in seconds."""

_ITS_OWN = frozenset({"DEADLINE", "PIN_NOT_LOADED", "POLICY_NOT_LOADED"})
"""Reasons of a trial's end that are the business of the caller alone who began it."""

_log = logging.getLogger("memecourt.service")


class TrialRunner:
    """Answers requests, holding a trial only where one is needed. Safe to call concurrently, within one event loop.

    Attributes:
        decoders: Pool that decodes pictures, of its trials and others.
    """

    def __init__(
        self,
        house: TrialExecutor,
        settings: Settings,
        telemetry: Telemetry = SILENT,
        *,
        pulse: Heartbeat | None = None,
        admission: Admission | None = None,
        memory: PictureMemory | None = None,
    ) -> None:
        """Answers nothing yet: see :meth:`__aenter__`.

        Args:
            house: Executor that runs and stores trials.
            settings: Settings: whose verdicts are reused, and whether a text is tried alone.
            telemetry: Is told what was given again.
            pulse: Tells which servers live, and what this one is called.
            admission: Admission control; None for one of the size in the settings.
            memory: Accounts for the bytes of decoded pictures; None where nothing bounds them.
        """
        self._house = house
        self._trials = house.docket.trials
        self._leases = house.docket.leases
        self._near = house.near if settings.reuse_near else None
        self._reuse = settings.reuse != "off"
        self._text_alone = settings.text_alone
        self._telemetry = telemetry
        self._pulse = pulse or Heartbeat(house.docket.heartbeats, uuid.uuid4().hex)
        self._claims = LeaseTable(house.docket.leases, house.docket.trials, self._pulse)
        self._known = VerdictCache(house.docket.verdict_keys, house.docket.trials, house.court_of, settings)
        self._quarantine = Quarantine(house.docket.index)
        self.decoders = DecodingPool(
            house.pictures, self._quarantine, settings.picture_workers, telemetry=telemetry, memory=memory
        )
        self._hearings = TrialsInFlight(
            house=house, known=self._known, quarantine=self._quarantine, telemetry=telemetry, decoders=self.decoders
        )
        self._quotas = quotas_of(settings)
        self.admission = admission or Admission(
            settings.concurrent_trials, settings.waiting_trials, quotas=self._quotas
        )
        self._memory = memory or UncountedPictures()
        # In this order: what a trial was before it was taken up must be known to who counts what comes of it.
        house.feed.subscribe(self._hearings.note)
        house.feed.subscribe(telemetry.watch)
        self._loose_ends = Reaper(
            writer=house.docket.writer,
            leases=house.docket.leases,
            claims=self._claims,
            in_flight=self._hearings,
            now=house.court.now,
            feed=house.feed,
        )
        self._beside: list[asyncio.Task[None]] = []
        self._open = False
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        """From now on other servers see that this one lives, and requests are answered.

        Raises:
            Unavailable: The docket is not there now.
        """
        # Before the first claim: the claims of a server that no other has seen count soon pass for those of a dead one.
        await self._pulse.beat()
        for namespace, quota in self._quotas.items():
            # A server that is started again must not begin the day anew.
            quota.count_before(await self._house.docket.index.count_opened(namespace, quota.since()))
        self._beside = [asyncio.create_task(work) for work in (self._pulse.run(), self._loose_ends.run())]
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends what is running; each trial still writes down its end, and who waits for it is told so."""
        self.close()
        # Trials end while the heartbeat goes on: otherwise another server could take one up whose end is being written.
        await self._hearings.stop()
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)
            self._beside = []
            with suppress(CourtError):  # the docket is away: others see for themselves that this server is gone
                # The last ends before the heartbeat goes: once it is gone, other servers take over at once.
                await self._loose_ends.reap()
                await self._pulse.retire()

    def close(self) -> None:
        """From now on no request is taken any more, and no trial that was cut off; those that were go on."""
        self._open = False
        self._closing.set()

    async def answer(
        self,
        ask: TrialRequest,
        *,
        within_s: float | None = None,
        patient: bool = False,
    ) -> Answer:
        """The verdict on a request.

        A call that is cancelled leaves; a trial goes on for as long as one call waits for it, and no longer.

        Args:
            ask: Request to try.
            within_s: Seconds until the caller's deadline; None where there is none.
            patient: True if the caller waits however many wait, as a stream does.

        Raises:
            BadInput: The picture or the text can't be tried, is in quarantine or missing; nothing is recorded.
            NotLoaded: The procedure or a version that it is pinned to is not available; nothing is recorded.
            RequestConflict: Another request was asked under this name.
            Busy: The limits of running trials and waiting callers are reached; nothing is stored for it.
            Unavailable: Something needed is not there now. What has been kept is taken up when it is asked again.
            TrialAborted: The trial began and failed; its record is kept.
        """
        began = time.perf_counter()
        if not self._open:
            raise Unavailable("The court is not in session: it is starting or closing.", reason="NOT_IN_SESSION")
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
                # Before a turn is taken: what is in memory does not wait behind trials.
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
            # A TimeoutError from within is not the caller's deadline.
            if not clock.expired():
                raise
            raise Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0) from None

    async def again(self, cached: CachedAnswer, request_id: str) -> TrialRecord | None:
        """The trial whose verdict answers a request that asks what another has asked, id aside.

        Args:
            cached: From the :class:`Answer` to that one.
            request_id: The caller's own for this request; empty where there is none.

        Returns:
            Its record; None where that is not at hand any more, and the request is to be answered like any other.

        Raises:
            BadPicture: The picture is in quarantine.
            RequestConflict: Another request was asked under this name.
            Unavailable: The docket is not there now, or the court is not in session.
        """
        # The same object means the same versions: this compares them all without a digest.
        if not self._open or self._known.versions_in_use(cached.ask) is not cached.versions:
            return None
        self._quarantine.require(cached.file, text_given=cached.ask.text is not None)
        record = await self._known.at_hand(cached.key)
        # The meme may have been tried anew meanwhile; what was prepared is for the earlier trial.
        if record is None or record.trial_id != cached.trial_id:
            return None
        if request_id:
            if (record.opened.meme.namespace, record.opened.request_id) == (cached.ask.namespace, request_id):
                return None  # the request that the trial was held for
            name = RequestName(cached.ask.namespace, request_id)
            claim = await self._claims.claim(self._claims.wanted(name, cached.payload, cached.trial_id))
            if claim.trial_id != cached.trial_id:
                return None
        self._telemetry.reused(near=False)
        return record

    async def trial_of(self, name: RequestName) -> str | None:
        """Id of the trial that answers a request, which may not have been opened yet; None where nobody asked that."""
        claim = await self._leases.claim_of(name)
        return None if claim is None else claim.trial_id

    def forget(self, trial_id: str) -> None:
        """A verdict was overruled: at this server it is given to nobody again, from now on."""
        self._known.forget(trial_id)

    async def resume_cut_off(self) -> None:
        """Takes up the trials that servers which have died left open, one after the other.

        Returns when each that stands open as it begins has ended or has a server that lives; once this is closed, when
        the one that is held has ended. What can't be begun because the docket, or what else it takes, is away, is tried
        again until it can. A trial that was claimed and never opened is not known well enough to be held before it is
        asked for again.
        """
        waiting = await self._cut_off()
        while waiting:
            away = ""
            for trial_id, claim in [*waiting.items()]:
                if self._closing.is_set():
                    return
                try:
                    if await self._taken_over(claim):
                        del waiting[trial_id]
                except Unavailable as error:  # not begun: one that was, and failed, is TrialAborted
                    away = error.reason
                except CourtError as error:
                    del waiting[trial_id]
                    _log.warning("trial=%s not resumed reason=%s", trial_id, error.reason)
            if away:
                _log.warning("%d trials wait to be resumed: reason=%s", len(waiting), away)
            if waiting:
                await self._pause()

    async def _cut_off(self) -> dict[str, Lease]:
        """The claims of all trials that are open, by their ids; none once this is closed."""
        while not self._closing.is_set():
            try:
                return {claim.trial_id: claim for claim in await self._leases.open_claims()}
            except Unavailable as error:
                _log.warning("what is to be resumed can't be told yet: reason=%s", error.reason)
            await self._pause()
        return {}

    async def _pause(self) -> None:
        """Between two looks at what was cut off; over at once when this is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pulse.beat_s):
                await self._closing.wait()

    # A request on its way.

    def _require(self, ask: TrialRequest) -> None:
        """Raises NotLoaded where it can be seen from the ask alone that it can't be tried now.

        Not asked of what has its verdict already, which is given whatever is loaded by now.
        """
        court = self._house.court_of(ask.namespace)
        court.require(ask.procedure, text_given=ask.text is not None)
        if ask.pins != ANY_VERSIONS or ask.policy is not None:
            ask.require(self._known.versions(ask), court.policy)

    async def _at_hand(self, call: Call) -> Answer | None:
        """The answer where everything needed is in memory: nothing is decoded, and one claim is written at most."""
        digest = self._digest_at_hand(call)
        if digest is None:
            return None
        in_use, key = self._known.versions_in_use(call.ask), self._known.key(call.ask, digest)
        record = await self._known.at_hand(key)
        if record is None or not _fits(call.ask, record) or await self._claim_for(call, record.trial_id) is not None:
            return None
        return self._answered_again(call, record, key, in_use)

    async def _claim_for(self, call: Call, trial_id: str) -> Lease | None:
        """Has the trial of a known meme answer a request; the claim to follow where another does already.

        A request without an id of the caller's is not claimed: it can't be asked again, so nothing is to be kept.
        """
        if not call.ask.request_id:
            return None
        claim = await self._claims.claim(self._claims.wanted(call.name, call.payload, trial_id))
        return claim if claim.trial_id != trial_id else None

    async def _answer(self, call: Call) -> Answer:
        """The answer where a trial may be needed."""
        claim = await self._leases.claim_of(call.name) if call.ask.request_id else None
        if claim is None:
            return await self._first(call)
        if claim.payload != call.payload:
            raise RequestConflict(
                "Another request was asked under this request_id in this namespace. Give each request an id of its own."
            )
        answer = await self._follow(call, claim)
        if answer.reused:
            if not whole(answer.record):  # which this request has not been told
                digest = await self._digest(call)
                if key := self._key(call, digest):
                    answer = await self._due(call, claim, answer, digest=digest, key=key)
            call.ask.require_of(answer.record)
        return answer

    def _key(self, call: Call, digest: str) -> str:
        """The key of what is asked, tried with what is loaded now; empty where it gets a trial of its own.

        Raises:
            NotLoaded: The court does not have the versions that the request pins.
        """
        self._require(call.ask)
        return self._known.key(call.ask, digest) if self._reuse and not call.ask.try_anew else ""

    async def _first(self, call: Call) -> Answer:
        """The answer to a request that nobody asked before."""
        self._require(call.ask)
        digest = await self._digest(call)
        await self._quarantine.require_meme(digest, call.ask.procedure)
        # Only after the picture is decoded: what is loaded may change while this call waits for that.
        key, in_use = self._key(call, digest), self._known.versions_in_use(call.ask)
        if key and (earlier := await self._known.find(key) or await self._nearly(call)):
            call.ask.require_of(earlier)
            # The same request has come to another server first: both give the answer of the trial that is claimed.
            if (claim := await self._claim_for(call, earlier.trial_id)) is not None:
                return await self._follow(call, claim)
            if self._known.answers(earlier, key):
                return self._answered_again(call, earlier, key, in_use)
            return self._answered(call, earlier, near=await self._differs_in_pixels(call, earlier))
        claim, answer = await self._join(call, key)
        return await self._due(call, claim, answer, digest=digest, key=key)

    async def _due(self, call: Call, claim: Lease, answer: Answer, *, digest: str, key: str) -> Answer:
        """The answer that a call is due, given that of a trial which may have been held for another.

        That may have been cut short for a caller who had less time, or held with something else than was loaded when
        this one asked: this one is due a trial that was not.
        """
        while answer.reused and not self._known.answers(answer.record, key):
            key = self._key(call, digest)
            lead, _ = await self._lead(key)
            with self._unless_left(lead):
                # Where this fails, the same request is being answered elsewhere, and this call follows that.
                own = await self._claims.take_over(claim, lead.trial_id, owner_of_meme(key))
                claim = own or await self._claims.standing(claim)
                answer = await self._follow(call, claim)
        return answer

    def _digest_at_hand(self, call: Call) -> str | None:
        """Digest of a call's meme, where no picture has to be decoded for it; else None."""
        return text_digest(call.ask.text or "") if call.ask.text_alone else self._known.pixels_of(call.file)

    async def _digest(self, call: Call) -> str:
        """Digest of a call's meme, whose picture is decoded if it has not been lately."""
        return self._digest_at_hand(call) or Meme(await self._hearings.decoded(call), call.ask.text).digest

    async def _join(self, call: Call, key: str) -> tuple[Lease, Answer]:
        """The answer of the trial that is held for a meme, at whichever server, or of one that this call begins."""
        flight, lead = self._hearings.leading(key), None
        while flight is not None and flight.ending:
            await flight.over()
            flight = self._hearings.leading(key)
        if flight is None:
            await self._require_turn(call, key)
        if flight is None and key:
            lead, made = await self._lead(key)
            # Whoever else asks for it here has got the same answer, and may have been quicker.
            flight = self._hearings.enlist(lead.trial_id, key) if made else self._hearings.of(lead.trial_id)
        elif flight is None:
            flight = self._hearings.enlist(str(uuid.uuid4()))
        if flight is None:
            assert lead is not None, "there is a key"
            wanted = self._claims.wanted(call.name, call.payload, lead.trial_id, owner_of_meme(key))
            claim = await self._claims.claim(wanted)
            return claim, await self._follow(call, claim)
        with flight:
            wanted = self._claims.wanted(call.name, call.payload, flight.trial_id)
            # Before it is written: where the caller leaves meanwhile the claim may stand, and the reaper has to give it
            # back.
            flight.claims |= {wanted} if lead is None else {wanted, lead}
            claim = await self._claims.claim(wanted)
            return claim, await self._follow(call, claim)

    async def _require_turn(self, call: Call, key: str) -> None:
        """Raises Busy where a trial would be refused its turn, before anything is written down for it.

        An overloaded server has that to say most of all, and it is to cost it little.
        """
        try:
            call.place.require()
        except Busy:
            if not key or await self._leases.claim_of(RequestName(MEMES, key)) is None:
                raise  # else another server may be at it, and this call waits for that

    async def _lead(self, key: str) -> tuple[Lease, bool]:
        """The claim of a meme, and whether this call has just made it: then nobody else begins its trial."""
        wanted = self._claims.wanted_lead(key)
        with self._unless_left(wanted):
            lead = await self._claims.lead(wanted, lambda record: self._known.answers(record, key))
        return lead, lead == wanted

    async def _follow(self, call: Call, claim: Lease) -> Answer:
        """The answer to a request that is claimed: its trial is waited for, taken up or begun, as need be."""
        pause, longest = _POLL_S
        while True:
            flight = self._hearings.of(claim.trial_id)
            if flight is None:
                found = await self._stored_outcome(call, claim)
                if isinstance(found, TrialRecord):
                    return self._answered(call, found, near=await self._differs_in_pixels(call, found))
                if found is None:  # another server is at it
                    await call.place.leave()
                    await asyncio.sleep(pause)
                    # Trials at another server may take long: longer pauses keep many waiting calls from loading the
                    # docket.
                    pause = min(2 * pause, longest)
                claim = found or await self._claims.standing(claim)
                continue
            if flight.ending:
                await flight.over()
            else:
                with flight:
                    try:
                        return self._answered(call, await self._run_versions(call, flight))
                    except CourtError as error:
                        if not self._goes_on(call, flight, error):
                            raise
            claim = await self._claims.standing(claim)

    async def _run_versions(self, call: Call, flight: RunningTrial) -> TrialRecord:
        """The record of a trial of this server, which is begun if nobody has."""
        if flight.task is None:
            self._hearings.begin(flight, call)
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
            # The stop came after the verdict was stored, and a stored verdict counts.
            if record.state is TrialState.DECIDED:
                return record
            raise TrialAborted(stopped, record) from None

    def _goes_on(self, call: Call, flight: RunningTrial, error: CourtError) -> bool:
        """True if the call looks again for an answer, after a trial that it waited for has failed."""
        if error.reason == "EVENT_EXISTS" or isinstance(error, CantResume):
            # Neither is about the meme itself: another look finds out where its trial stands now.
            return True  # another server has taken it up, or it must be held anew
        # The deadline was another caller's, or the pins were.
        return error.reason in _ITS_OWN and flight.begun_by is not call

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

    def _answered_again(self, call: Call, record: TrialRecord, key: str, versions: object) -> Answer:
        """The answer from the trial of a known meme, and what it takes to give it to others who ask the same."""
        answer = self._answered(call, record)
        if not answer.reused:
            return answer  # asked twice: what is said to it differs from what is said to others
        ask = replace(call.ask, image=b"")
        return replace(
            answer,
            # Without the file's bytes: the answer may stay in memory for long.
            cached=CachedAnswer(
                ask=ask, file=call.file, payload=call.payload, key=key, versions=versions, trial_id=record.trial_id
            ),
        )

    # Pictures.

    async def _nearly(self, call: Call) -> TrialRecord | None:
        """The trial of a meme that is nearly the one in a call and whose verdict may be given again, or None."""
        if self._near is None or call.ask.text_alone:
            return None
        await call.place.take()
        picture, text = await self._hearings.decoded(call), call.ask.text
        assert picture is not None, "not a text alone"
        if text is None:
            try:
                if (reader := self._house.court.text_reader) is None:
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
                return False  # erased just now
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
        # The same file has the same pixels: nothing needs decoding.
        if meme.bytes_sha256 == call.file.hex():
            return False
        return await self._digest(call) != meme.digest

    # Claims and trials.

    async def _stored_outcome(self, call: Call, claim: Lease) -> TrialRecord | Lease | None:
        """Reads a trial that is not in flight at this server from the docket.

        Returns:
            Its record, if it has a verdict; the claim to follow, if it could be taken up or has changed; None where
            another server is at it.
        """
        record = await self._claims.record(claim.trial_id)
        if record is not None and record.state is TrialState.DECIDED:
            return record
        ruling = await self._claims.ruling(claim, record)
        if ruling.trial_id != claim.trial_id:
            # Whoever it was opened for has gone on to another trial, and so do all who were answered by it.
            return await self._claims.follow(claim, ruling.trial_id)
        if not self._claims.left_alone(ruling, record):
            return None
        if record is not None:
            # Also for a trial that goes on: RE-6 counts over restarts, and resuming it would show the meme to a model
            # again.
            await self._quarantine.require_meme(record.opened.meme.digest, record.opened.procedure)
        anew = record is not None and not self._hearings.resumable(record)
        if record is None or anew:
            self._require(call.ask)
        # The turn comes before the claim: a server that is too busy to begin the trial must not keep others from it.
        await call.place.take()
        trial_id, owner = str(uuid.uuid4()) if anew else claim.trial_id, self._claims.owner()
        wanted = {replace(each, trial_id=trial_id, owner=owner) for each in (ruling, claim)}
        async with self._claims.taking(claim.trial_id):
            # Looked at again under the lock: until then another call may have begun the trial.
            if self._hearings.of(claim.trial_id):
                return claim  # another call of this server was quicker
            with self._unless_left(*wanted):
                if await self._claims.take_over(ruling, trial_id, owner) is None:
                    return await self._claims.standing(claim)
                # A trial that is resumed keeps its id, which the claim of this request names already.
                if ruling != claim and (anew or record is None):
                    await self._claims.take_over(claim, trial_id, owner)
            flight = self._hearings.enlist(trial_id)
            flight.claims |= wanted
            if record is None or anew:
                self._hearings.begin(flight, call)
            else:
                self._hearings.take_up(flight, call)
        # _follow enters the trial next, and nothing suspends between here and there: a task without a caller would be
        # cancelled by nobody.
        return replace(claim, trial_id=trial_id)

    async def _taken_over(self, claim: Lease) -> bool:
        """Takes up an open trial whose server has died.

        Returns:
            Whether nothing is left to do: False where it is not known yet if its server lives.

        Raises:
            Unavailable: The trial could not be begun now, and stays open as before.
            As :meth:`court.trial.Court.resume`.
        """
        record = await self._claims.record(claim.trial_id)
        # It was never begun, has ended, or is in this server's hands.
        if record is None or record.state is not TrialState.OPEN or self._hearings.of(claim.trial_id):
            return True
        ruling = await self._claims.standing(claim)  # it may have been tried before, and put off
        server = server_of(ruling)
        if ruling.trial_id != claim.trial_id:
            return True
        if not self._claims.gone(server):  # nor is it this one, which lives
            return self._claims.lives(server)
        async with self._claims.taking(claim.trial_id):
            if self._hearings.of(claim.trial_id):
                return True
            wanted = replace(ruling, owner=self._claims.owner())
            with self._unless_left(wanted):
                if await self._claims.take_over(ruling, owner=wanted.owner) is None:
                    return False  # it has changed hands; who has it now is to be seen
            flight = self._hearings.enlist(claim.trial_id)
            flight.claims.add(wanted)
            self._hearings.take_up(flight)
        with flight:
            try:
                record = await flight.result()
            except WorkCancelled:
                return True
        _log.info("trial=%s resumed state=%s", record.trial_id, record.state)
        return True

    @contextmanager
    def _unless_left(self, *wanted: Lease) -> Iterator[None]:
        """Claims are made for a trial that is begun next. Where that fails, or the caller leaves, they may stand."""
        try:
            yield
        # Also CancelledError, with which a caller leaves.
        except BaseException:
            self._hearings.unstored.leave(wanted[0].trial_id, UnstoredEnd(wanted, None))
            raise


def _fits(ask: TrialRequest, record: TrialRecord) -> bool:
    """True if a trial was run with everything that the request pins."""
    # Most requests pin nothing, and need no comparison.
    if ask.pins == ANY_VERSIONS and ask.policy is None:
        return True
    try:
        ask.require_of(record)
    except NotLoaded:
        return False
    return True
