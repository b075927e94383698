"""Tests of reception: repeated and concurrent requests share trials; on a real docket, with fakes for all slow
parts.
"""

import asyncio
import hashlib
import sqlite3
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from court.errors import BadPicture, NotLoaded, Overrun, Unavailable
from court.events import Procedure, ReviewOutcome, TrialFailed, TrialOpened, TrialResumed
from court.meme import Picture
from court.record import TrialAborted, TrialRecord, TrialState
from court.verdict import Label
from serving.docket.errors import RequestConflict
from serving.docket.store.requests import RequestName
from serving.errors import Busy
from serving.judging.executor import TrialExecutor
from serving.judging.known import FRESH_S
from serving.judging.leases import MEMES
from serving.judging.request import Caller, RequiredPolicy, RequiredVersions, SingleFlight
from serving.settings import Settings
from serving.telemetry import Telemetry
from serving.telemetry.metrics import Metrics
from tests.support.dockets import Intercepted, open_trials
from tests.support.fakes import LIBRARY, H, RecordingSink, findings, ticking_clock
from tests.support.gates import call_through, call_with_check
from tests.support.leftovers import soon, without_garbage_collector
from tests.support.playing import until
from tests.support.reception import ASK, PNG, Finder, Turns, each_docket, other, trials_in, wait_until_idle
from tests.support.reception import town as town
from tests.support.sizes import FULL

SOME = 50 if FULL else 3


# RE-3: a hundred identical concurrent requests share one trial.


@pytest.mark.promise("RE-3", "100 at once, 50 rounds: one trial each")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_id", "reuse", "times"), [("one", "namespace", SOME), ("one", "off", SOME), ("", "namespace", SOME)]
)
async def test_a_hundred_identical_concurrent_requests_share_one_trial(town, request_id, reuse, times):
    town.settings = Settings(home=town.home, reuse=reuse)
    async with town.server() as runner:
        docket = runner.executor.docket
        for number in range(times):
            name = f"{request_id}{number}" if request_id else ""
            ask = replace(ASK, image=b"%d|file" % number, request_id=name)
            answers = await asyncio.gather(*(runner.answer(ask) for _ in range(100)))
            assert len({answer.record.trial_id for answer in answers}) == 1
            assert len(await trials_in(docket)) == number + 1
            assert len({answer.name for answer in answers}) == (1 if request_id else 100)
            assert sum(not answer.reused for answer in answers) == (100 if request_id else 1)
        assert len(town.finder.asked) == times


async def test_same_meme_under_another_request_id_joins_the_running_trial(town):
    async with town.server() as runner:
        town.finder.gate = asyncio.Event()
        first = asyncio.ensure_future(runner.answer(ASK))
        await town.finder.searching.wait()
        second = asyncio.ensure_future(runner.answer(other(image=b"pixels|another file")))
        await until(lambda: town.waiting == 2)
        assert not first.done() and not second.done()
        town.finder.gate.set()
        first, second = await asyncio.gather(first, second)
    assert first.record is second.record
    assert (first.reused, second.reused, second.near) == (False, True, False)
    assert second.name == RequestName("us", "r2")


# Repeated requests.


@each_docket
async def test_repeated_request_gets_the_same_verdict_even_after_a_restart(town):
    async with town.server() as runner:
        first = await runner.answer(ASK)
        repeated = await runner.answer(ASK)
    async with town.server(name="restarted") as runner:
        after = await runner.answer(ASK)
        assert await runner.trial_of(RequestName("us", "r1")) == first.record.trial_id
        assert await runner.trial_of(RequestName("us", "none")) is None
    assert first.record == repeated.record == after.record
    assert not (first.reused or repeated.reused or after.reused)
    assert len(town.finder.asked) == 1


async def test_repeated_request_gets_its_verdict_without_reuse_and_after_an_upgrade(town):
    town.settings = Settings(home=town.home, reuse="off")
    async with town.server() as runner:
        first = await runner.answer(ASK)
    town.software = "another"
    async with town.server() as runner:
        repeated = await runner.answer(ASK)
    assert first.record == repeated.record and len(town.finder.asked) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"image": b"other pixels|file"},
        {"image": b"pixels|other file"},
        {"text": None},
        {"text": ""},
        {"text": "other text"},
        {"language": "en"},
        {"content_id": "other"},
        {"policy": RequiredPolicy(id="other")},
        {"try_anew": True},
        {"pins": RequiredVersions(encoder=LIBRARY.encoder)},
    ],
    ids=lambda change: "-".join(change),
)
async def test_different_request_under_a_used_id_is_refused(town, change):
    async with town.server() as runner:
        await runner.answer(ASK)
        with pytest.raises(RequestConflict) as caught:
            await runner.answer(replace(ASK, **change))
        assert caught.value.field == "request_id"
        assert len(await trials_in(runner.executor.docket)) == 1


@each_docket
async def test_conflicting_concurrent_requests_under_one_id_open_only_one_trial(town):
    async with town.server() as runner:
        asks = [ASK, replace(ASK, text="other text")] * 10
        results = await asyncio.gather(*(runner.answer(ask) for ask in asks), return_exceptions=True)
        refused = [result for result in results if isinstance(result, RequestConflict)]
        assert len(refused) == 10
        assert len(await trials_in(runner.executor.docket)) == 1


async def test_same_id_in_another_namespace_is_another_request(town):
    async with town.server() as runner:
        first, second = [await runner.answer(replace(ASK, namespace=namespace)) for namespace in ("us", "them")]
    assert first.record.trial_id != second.record.trial_id


# Several servers.


@each_docket
@pytest.mark.parametrize("ask", [ASK, other(image=b"pixels|another file")])
async def test_meme_on_trial_at_another_server_is_awaited(town, ask):
    async with town.server(name="a") as a, town.server(name="b") as b:
        town.finder.gate = asyncio.Event()
        first = asyncio.ensure_future(a.answer(ASK))
        await town.finder.searching.wait()
        second = asyncio.ensure_future(b.answer(ask))
        await asyncio.sleep(0.6)  # longer than it takes to declare a server dead
        assert not second.done()
        town.finder.gate.set()
        first, second = await first, await second
    assert first.record == second.record and len(town.finder.asked) == 1
    assert ask is ASK or (first.reused, second.reused) == (False, True)


def own_ids(count, first=0, **changes):
    return [other(request_id=f"own {first + number}", **changes) for number in range(count)]


@each_docket
async def test_concurrent_requests_for_a_new_meme_at_several_servers_share_one_trial(town):
    """Servers that share a docket act as one, whatever the request ids are."""
    async with town.server(name="a") as a, town.server(name="b") as b, town.server(name="c") as c:
        for number in range(SOME):
            meme = {"image": b"%d|file" % number}
            asks = own_ids(30, 30 * number, **meme)
            servers = [a, b, c] * 10
            answers = await asyncio.gather(*(s.answer(ask) for s, ask in zip(servers, asks, strict=True)))
            assert len({answer.record.trial_id for answer in answers}) == 1
            assert sum(not answer.reused for answer in answers) == 1
            assert len(await trials_in(a.executor.docket)) == len(town.finder.asked) == number + 1


@each_docket
@pytest.mark.parametrize("events", [0, 4])
async def test_new_meme_of_a_dead_server_is_tried_once_by_the_other_servers(town, events):
    docket = town.docket()
    claim = await a_cut_off_trial(town, docket, events=events)
    async with town.server(name="b", docket=docket) as b, town.server(name="c", docket=docket) as c:
        asks = own_ids(10)
        answers = await asyncio.gather(*(s.answer(ask) for s, ask in zip([b, c] * 5, asks, strict=True)))
        trials = await trials_in(docket)
    assert {answer.record.trial_id for answer in answers} == {claim.trial_id} == set(trials)
    assert all(answer.record.state is TrialState.DECIDED for answer in answers)


@each_docket
@pytest.mark.parametrize("ask", [ASK, other()], ids=["the same request", "the same meme"])
@pytest.mark.parametrize("departure", ["left", "refused"])
async def test_trial_abandoned_before_it_began_blocks_no_other_server(town, ask, departure):
    """Its caller leaves, or is refused, after the request was claimed and before the trial begins."""

    @asynccontextmanager
    async def no_turn():
        waiting.set()
        if departure == "refused":
            raise Unavailable("no room", reason="BUSY")
        await asyncio.Event().wait()
        yield

    waiting = asyncio.Event()
    async with town.server(name="a", dead_s=60) as a, town.server(name="b", dead_s=60) as b:
        # From here on no turn is needed to decode.
        await a.answer(other(request_id="r0", text="of the same picture"))
        caller = asyncio.ensure_future(call_through(no_turn, a.answer(ASK)))
        await waiting.wait()
        caller.cancel()
        await asyncio.wait([caller])
        answer = await asyncio.wait_for(b.answer(ask), 60)
    assert answer.record.state is TrialState.DECIDED and not answer.reused


class _SlowClaims(Intercepted):
    """A docket that completes a write of a claim only after the caller that caused it has left.

    Later writes wait for that one, as in the real docket.
    """

    def __init__(self, docket, slow):
        super().__init__(docket)
        self._slow = slow
        self._written = None
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def claim(self, name, **arguments):
        return await self._write(
            "meme" if name.namespace == MEMES else "request", self._docket.leases.claim(name, **arguments)
        )

    async def take_over(self, claim, **arguments):
        return await self._write("taken over", self._docket.leases.take_over(claim, **arguments))

    async def _write(self, kind, pending_write):
        if self._written is not None:
            await asyncio.wait([self._written])
            return await pending_write
        if kind != self._slow:
            return await pending_write

        async def write_later():
            await self.left.wait()
            await pending_write

        self._written = asyncio.ensure_future(write_later())
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("ask", [ASK, other()], ids=["the same request", "the same meme"])
@pytest.mark.parametrize(
    ("slow", "events"), [("meme", None), ("request", None), ("taken over", 0), ("taken over", 4)], ids=str
)
async def test_caller_leaving_during_a_claim_write_blocks_no_other_server(town, ask, slow, events):
    docket = town.docket()
    if events is not None:
        await a_cut_off_trial(town, docket, events=events)
    late = _SlowClaims(docket, slow)
    async with town.server(name="a", docket=late) as a, town.server(name="b", docket=docket) as b:
        caller = asyncio.ensure_future(a.answer(ASK))
        await late.asked.wait()
        caller.cancel()
        await asyncio.wait([caller])
        late.left.set()
        answer = await asyncio.wait_for(b.answer(ask), 60)
    assert answer.record.state is TrialState.DECIDED


@each_docket
async def test_failed_trial_is_followed_by_one_new_trial_and_an_overruled_one_by_its_finding_across_servers(town):
    async with town.server(name="a") as a, town.server(name="b") as b:
        town.finder.result, good = ValueError("a fault"), town.finder.result
        with pytest.raises(TrialAborted) as caught:
            await a.answer(ASK)
        town.finder.result = good
        answers = await asyncio.gather(*(s.answer(ask) for s, ask in zip([a, b] * 5, own_ids(10), strict=True)))
        once_more = await b.answer(ASK)
        await overrule(a.executor.docket, answers[0].record.trial_id)
        a.refresh()
        b.refresh()
        after = await asyncio.gather(*(s.answer(ask) for s, ask in zip([a, b] * 5, own_ids(10, 10), strict=True)))
        failed, trials = caught.value.record, await trials_in(a.executor.docket)
    (second,) = {answer.record.trial_id for answer in answers}
    own = once_more.record.trial_id  # its first trial failed for good
    assert {(answer.record.trial_id, answer.in_force.by) for answer in after} == {(second, "PERSON")}
    assert {failed.trial_id, second, own} == set(trials) and failed.trial_id != second


async def a_cut_off_trial(town, docket, ask=ASK, events=4):
    """A trial of a server that died: claimed and begun, with no end recorded."""
    async with town.server(name="dead", docket=_DyingServer(docket, events)) as runner:
        with pytest.raises(_PowerFailure):
            await runner.answer(ask)
        claim = await docket.leases.claim_of(RequestName(ask.namespace, ask.request_id))
    record = await docket.trials.record(claim.trial_id) if events else None
    assert record is None or record.state is TrialState.OPEN
    return claim


class _PowerFailure(BaseException):
    """A power failure."""


class _DyingServer(Intercepted):
    """A docket whose server dies after this number of stored events and does nothing from then on."""

    def __init__(self, docket, events):
        super().__init__(docket)
        self._left = events
        self._dead = False

    def instead(self, method):
        return self._unavailable if self._dead else super().instead(method)

    async def _unavailable(self, *_, **__):
        raise Unavailable("The power went.", reason="DOCKET_UNAVAILABLE")

    async def append(self, *events):
        for event in events:  # one by one, as earlier versions stored them: a record may end anywhere
            if not self._left:
                self._dead = True
                raise _PowerFailure
            self._left -= 1
            await self._docket.writer.append(event)


class _Counting(Intercepted):
    """A docket that counts attempts to open or resume a trial, including those that lost to another server."""

    def __init__(self, docket):
        super().__init__(docket)
        self.attempts = 0

    async def append(self, *events):
        self.attempts += isinstance(events[0], TrialOpened | TrialResumed)
        await self._docket.writer.append(*events)


@each_docket
@pytest.mark.parametrize("events", [0, 2, 4, 7])
async def test_trial_of_a_dead_server_is_taken_over_exactly_once(town, events):
    docket = town.docket()
    claim = await a_cut_off_trial(town, docket, events=events)
    counting = _Counting(docket)
    started_at = asyncio.get_running_loop().time()  # the first of the two watches heartbeats from its start
    async with town.server(name="b", docket=counting) as b, town.server(name="c", docket=counting) as c:
        answers = await asyncio.gather(*(server.answer(ASK) for server in (b, c) for _ in range(5)))
        waited = asyncio.get_running_loop().time() - started_at
    record = await docket.trials.record(claim.trial_id)
    trials = await trials_in(docket)
    attempts = counting.attempts
    assert attempts == 1
    assert {answer.record.trial_id for answer in answers} == {claim.trial_id} == set(trials)
    assert record.state is TrialState.DECIDED
    assert len(record.all(TrialResumed)) == (1 if events else 0)
    assert waited >= 0.4, "taken over before its server was declared dead"


@each_docket
async def test_two_servers_running_the_same_trial_produce_one_record(town):
    """A server that only seemed dead continues a trial that another took over: each event is stored once."""
    async with town.server(name="a", beat_s=60) as a:
        gate = town.finder.gate = asyncio.Event()
        first = asyncio.ensure_future(a.answer(ASK))
        await town.finder.searching.wait()
        async with town.server(name="b", finder=Finder()) as b:
            second = await b.answer(ASK)
            gate.set()
            first = await first
    assert first.record == second.record
    assert len(second.record.all(TrialResumed)) == 1


@each_docket
async def test_servers_resume_trials_of_dead_servers_on_their_own(town):
    docket = town.docket()
    claims = [await a_cut_off_trial(town, docket, replace(ASK, request_id=f"r{n}", try_anew=True)) for n in range(3)]
    notes = RecordingSink()
    async with town.server(name="b", docket=docket) as b, town.server(name="c", docket=docket) as c:
        for server in (b, c):
            server.executor.feed.subscribe(notes)
        await asyncio.gather(b.orphans.resume(), c.orphans.resume())
    records = [await docket.trials.record(claim.trial_id) for claim in claims]
    assert all(record.state is TrialState.DECIDED and len(record.all(TrialResumed)) == 1 for record in records)
    assert notes.kinds.count("VerdictGiven") == 3


async def test_resumed_trials_are_batch_work_unless_an_impatient_caller_waits(town, monkeypatch):
    batch_flags, resume = [], TrialExecutor.resume

    async def recording_resume(*arguments, batch=False, **options):
        batch_flags.append(batch)
        return await resume(*arguments, batch=batch, **options)

    monkeypatch.setattr(TrialExecutor, "resume", recording_resume)

    docket = town.docket()
    asks = [replace(ASK, request_id=f"r{n}", try_anew=True) for n in range(3)]
    for ask in asks:
        await a_cut_off_trial(town, docket, ask)
    async with town.server(name="b", docket=docket) as b:
        await b.answer(asks[0])
        await b.answer(asks[1], patient=True)
        await b.orphans.resume()
    assert batch_flags == [False, True, True]


@pytest.mark.parametrize("within_the_grace", [True, False])
async def test_stopping_server_ends_its_resumed_trials_cleanly(town, within_the_grace):
    docket = town.docket()
    asks = [replace(ASK, request_id=f"r{n}", try_anew=True) for n in range(2)]
    claims = [await a_cut_off_trial(town, docket, ask, events=2) for ask in asks]
    town.finder.gate, town.finder.searching = asyncio.Event(), asyncio.Event()
    async with town.server(name="b", docket=docket) as b:
        resuming = asyncio.create_task(b.orphans.resume())
        await town.finder.searching.wait()
        b.close()
        if within_the_grace:
            town.finder.gate.set()
            await asyncio.wait_for(resuming, 60)
    await asyncio.wait_for(resuming, 60)
    records = [await docket.trials.record(claim.trial_id) for claim in claims]
    town.finder.gate.set()
    async with town.server(name="c", docket=docket) as c:
        answers = [await c.answer(ask) for ask in asks]
    (taken,) = [record for record in records if record.all(TrialResumed)]  # no other trial was resumed
    if within_the_grace:
        assert taken.state is TrialState.DECIDED
    else:
        assert taken.last(TrialFailed).reason == "SERVER_STOPPED" and taken.last(TrialFailed).retryable
    assert [answer.record.trial_id for answer in answers] == [record.trial_id for record in records]
    assert all(answer.record.state is TrialState.DECIDED for answer in answers)


async def test_trials_of_a_live_server_are_left_to_it(town):
    async with town.server(name="a") as a, town.server(name="b") as b:
        town.finder.gate = asyncio.Event()
        first = asyncio.ensure_future(a.answer(ASK))
        await town.finder.searching.wait()
        await asyncio.wait_for(b.orphans.resume(), 60)
        assert not first.done()
        town.finder.gate.set()
        assert not (await first).record.all(TrialResumed)


class _Flaky(Intercepted):
    """A docket with one method that is unavailable for the first calls; counts these calls."""

    def __init__(self, docket, method, times=10**9):
        super().__init__(docket)
        self._what, self._times = method, times
        self.asked = 0
        self.missed = asyncio.Event()

    def instead(self, method):
        return self._away if method == self._what and self.asked < self._times else None

    async def _away(self, *_, **__):
        self.asked += 1
        self.missed.set()
        raise Unavailable("Away for a moment.", reason="DOCKET_UNAVAILABLE")


@pytest.mark.parametrize("method", ["open_claims", "record", "take_over", "frames", "append"])
async def test_cut_off_trials_are_resumed_once_an_outage_of_the_docket_is_over(town, method):
    docket = town.docket()
    claims = [await a_cut_off_trial(town, docket, replace(ASK, request_id=f"r{n}", try_anew=True)) for n in range(2)]
    away = _Flaky(docket, method, times=3)
    async with town.server(name="b", docket=away) as b:
        await asyncio.wait_for(b.orphans.resume(), 60)
    records = [await docket.trials.record(claim.trial_id) for claim in claims]
    failures = away.asked
    assert failures == 3
    assert all(record.state is TrialState.DECIDED and len(record.all(TrialResumed)) == 1 for record in records)
    assert not any(record.all(TrialFailed) for record in records)


async def test_trial_that_one_server_cannot_resume_is_resumed_by_another_on_request(town):
    docket = town.docket()
    claim = await a_cut_off_trial(town, docket)
    away = _Flaky(docket, "frames")
    async with town.server(name="b", docket=away) as b, town.server(name="c", docket=docket) as c:
        resuming = asyncio.create_task(b.orphans.resume())
        await away.missed.wait()
        answer = await asyncio.wait_for(c.answer(ASK), 60)
        await asyncio.wait_for(resuming, 60)
    assert answer.record.trial_id == claim.trial_id and answer.record.state is TrialState.DECIDED
    assert len(answer.record.all(TrialResumed)) == 1 and not answer.record.all(TrialFailed)


@pytest.mark.parametrize("method", ["open_claims", "record"])
@pytest.mark.parametrize("end", ["close", "cancel"])
async def test_server_waiting_for_the_docket_to_resume_trials_stops_at_once(town, method, end):
    docket = town.docket()
    claim = await a_cut_off_trial(town, docket)
    away = _Flaky(docket, method)
    async with town.server(name="b", docket=away, beat_s=3600) as b:
        resuming = asyncio.create_task(b.orphans.resume())
        await away.missed.wait()
        waits = not (await asyncio.wait([resuming], timeout=0.1))[0]
        if end == "close":
            b.close()
        else:
            resuming.cancel()
        ended = (await asyncio.wait([resuming], timeout=60))[0]
    record = await docket.trials.record(claim.trial_id)
    ended, cancelled = bool(ended), resuming.cancelled()
    assert waits and ended and cancelled is (end == "cancel")
    assert record.state is TrialState.OPEN


async def test_resumed_trial_that_fails_is_not_resumed_again_on_its_own(town):
    docket = town.docket()
    claim = await a_cut_off_trial(town, docket, events=2)
    finder = Finder(Unavailable("The finder is away.", reason="ENCODER_UNAVAILABLE"))
    async with town.server(name="b", docket=docket, finder=finder) as b:
        await asyncio.wait_for(b.orphans.resume(), 60)
    record = await docket.trials.record(claim.trial_id)
    assert record.last(TrialFailed).reason == "ENCODER_UNAVAILABLE" and record.last(TrialFailed).retryable
    assert len(finder.asked) == len(record.all(TrialResumed)) == 1


@each_docket
async def test_trial_that_cannot_be_resumed_fails_and_its_request_gets_another(town):
    docket = town.docket()
    claim = await a_cut_off_trial(town, docket, events=1)  # the caller's text was not stored
    async with town.server(name="b", docket=docket) as b:
        await b.orphans.resume()
        abandoned = await docket.trials.record(claim.trial_id)
        answer = await b.answer(ASK)
    assert abandoned.state is TrialState.FAILED and abandoned.last(TrialFailed).reason == "CANT_RESUME"
    assert answer.record.trial_id != abandoned.trial_id and not answer.reused


# Failures.


@each_docket
async def test_trial_with_a_transient_failure_is_resumed_by_the_next_request(town):
    async with town.server() as runner:
        town.finder.result, good = Unavailable("away", reason="LIBRARY_AWAY"), town.finder.result
        with pytest.raises(TrialAborted) as caught:
            await runner.answer(ASK)
        town.finder.result = good
        answers = await asyncio.gather(*(runner.answer(ASK) for _ in range(5)))
        failed = caught.value.record
    assert {answer.record.trial_id for answer in answers} == {failed.trial_id}
    assert len(answers[0].record.all(TrialResumed)) == 1


async def test_trial_with_a_permanent_failure_is_replaced_by_the_next_request(town):
    async with town.server() as runner:
        town.finder.result, good = ValueError("a fault"), town.finder.result
        with pytest.raises(TrialAborted) as caught:
            await runner.answer(ASK)
        town.finder.result = good
        answers = await asyncio.gather(*(runner.answer(ASK) for _ in range(5)))
        assert await runner.trial_of(RequestName("us", "r1")) == answers[0].record.trial_id
        failed, trials = caught.value.record, await trials_in(runner.executor.docket)
    (replacement,) = {answer.record.trial_id for answer in answers}
    assert sorted(trials) == sorted([failed.trial_id, replacement]) and replacement != failed.trial_id


async def test_all_callers_of_a_failing_trial_get_its_error(town):
    async with town.server() as runner:
        town.finder.result = Unavailable("away", reason="LIBRARY_AWAY")
        asks = [ASK, ASK, other(), other(request_id="")]
        results = await asyncio.gather(*(runner.answer(ask) for ask in asks), return_exceptions=True)
        trials = await trials_in(runner.executor.docket)
    assert [result.reason for result in results] == ["LIBRARY_AWAY"] * 4 and len(trials) == 1


@pytest.mark.parametrize("end", ["verdict", "failure", "fault", "refusal", "deadline", "left"])
async def test_request_data_is_freed_as_soon_as_it_is_answered(town, end):
    """Freed at once: pictures are large, and the garbage collector is triggered only by the number of objects in
    cycles.
    """
    async with town.server() as runner:
        if end == "failure":
            town.finder.result = Unavailable("away", reason="LIBRARY_AWAY")
        if end == "fault":
            town.finder.gate = "no gate: a fault of ours"
        if end in ("deadline", "left"):
            town.finder.gate = asyncio.Event()
        asks = [replace(ASK, image=b"%d|file" % number, request_id=str(number)) for number in range(8)]
        if end == "refusal":
            town.pictures.errors = {ask.image: BadPicture("no", reason="PICTURE_UNREADABLE") for ask in asks}

        async def ended(ask):
            try:
                await runner.answer(ask, within_s=1.0 if end == "deadline" else None)
            except BadPicture:
                return "refusal"
            except Overrun:
                return "deadline"
            except TrialAborted as error:
                return {"DEADLINE": "deadline", "INTERNAL": "fault"}.get(error.reason, "failure")
            except asyncio.CancelledError:
                return "left"
            return "verdict"

        async def all_ended():
            callers = [asyncio.ensure_future(ended(ask)) for ask in asks]
            if end == "left":
                await town.finder.searching.wait()
                for caller in callers:
                    caller.cancel()
            return await asyncio.gather(*callers)

        with without_garbage_collector(Caller, TrialRecord, Picture) as leftovers:
            assert await all_ended() == [end] * len(asks)
            town.pictures.errors = {}  # an error's traceback refers to the callers
            assert await soon(leftovers) == []


@pytest.mark.slow
async def test_shared_work_without_callers_is_freed():
    class Tracked:
        pass

    async def work():
        tracked = Tracked()
        async with asyncio.timeout(60) as clock:  # refers to the task, as this frame does
            await asyncio.Event().wait()
        return tracked, clock

    with without_garbage_collector(Tracked) as leftovers:
        shared = SingleFlight()
        with shared:
            shared.begin(work())
            await asyncio.sleep(0.01)
            assert leftovers() == ["Tracked"]
        assert await soon(leftovers) == []


async def test_request_that_cannot_be_tried_is_not_claimed(town):
    async with town.server() as runner:
        town.pictures.errors[ASK.image] = BadPicture("no", reason="PICTURE_UNREADABLE")
        with pytest.raises(BadPicture):
            await runner.answer(ASK)
        assert await runner.trial_of(RequestName("us", "r1")) is None
        assert (await runner.answer(replace(ASK, image=b"pixels|mended"))).record.state is TrialState.DECIDED


def claims(town):
    with sqlite3.connect(town.path) as connection:
        return connection.execute("SELECT count(*) FROM requests").fetchone()[0]


def refuse_as_busy():
    raise Busy("as many wait as may", retry_after=1.0)


async def test_request_refused_by_admission_writes_nothing(town):
    async with town.server() as runner:
        await runner.answer(replace(ASK, text="another text"))  # its picture is known from here on, so it needs no turn
        before = claims(town)
        for request_id in ("r2", ""):
            with pytest.raises(Busy):
                await call_with_check(refuse_as_busy, runner.answer(other(request_id=request_id)))
        assert claims(town) == before
        assert not runner._in_flight.unstored
        assert (await runner.answer(other())).record.state is TrialState.DECIDED


async def test_request_that_needs_no_turn_is_not_refused_for_lack_of_one(town):
    """Known verdicts and trials already running here or elsewhere need no turn."""
    async with town.server(name="a") as a, town.server(name="b") as b:
        await a.answer(replace(ASK, text="another text"))
        await b.answer(replace(ASK, text="another text", request_id="r2"))
        await call_with_check(refuse_as_busy, b.answer(replace(ASK, text="another text", request_id="r3")))
        town.finder.gate, town.finder.searching = asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(a.answer(other(request_id="r4")))
        await town.finder.searching.wait()
        joining = [
            asyncio.ensure_future(call_with_check(refuse_as_busy, at.answer(other(request_id=name))))
            for at, name in ((a, "r5"), (b, "r6"))
        ]
        await asyncio.sleep(0.3)
        assert not any(caller.done() for caller in joining)
        town.finder.gate.set()
        first, at_a, at_b = await asyncio.gather(first, *joining)
    assert first.record == at_a.record == at_b.record and len(town.finder.asked) == 2


class _Interrupted(Intercepted):
    """A docket that can be made unavailable."""

    def __init__(self, docket):
        super().__init__(docket)
        self.away = False
        self.refused = 0

    def instead(self, method):
        return self._unavailable if self.away else None

    async def _unavailable(self, *_, **__):
        self.refused += 1
        raise Unavailable("It is away.", reason="DOCKET_UNAVAILABLE")


@each_docket
@pytest.mark.parametrize("end", ["fails", "is cancelled", "the server stops"])
async def test_unrecorded_end_of_a_trial_is_recorded_once_the_docket_is_back(town, monkeypatch, end):
    monkeypatch.setattr("serving.judging.orphans.AGAIN_S", 0.05)

    docket = town.docket()
    away = _Interrupted(docket)
    async with town.server(name="a", docket=away, dead_s=60) as a:
        (caller,) = await callers_of_running_trial(town, a, 1, None)
        away.away = True
        if end == "is cancelled":
            caller.cancel()
        if end == "fails":
            town.finder.result = Unavailable("away", reason="LIBRARY_AWAY")
            town.finder.gate.set()
        if end != "the server stops":
            await asyncio.wait([caller])
            assert away.refused
            await asyncio.sleep(0.2)  # recording its end is retried
            away.away = False
            async with asyncio.timeout(60):
                while await open_trials(docket):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    (ended,) = await asyncio.gather(caller, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError if end == "is cancelled" else TrialAborted)
    (trial_id,) = await trials_in(docket)
    first_record = await docket.trials.record(trial_id)
    town.finder = Finder()
    async with town.server(name="b", docket=docket) as b:
        answer = await b.answer(ASK)
    assert first_record.state is (TrialState.OPEN if end == "the server stops" else TrialState.FAILED)
    assert [*first_record.all(TrialFailed)] == [] or first_record.last(TrialFailed).retryable
    assert answer.record.trial_id == first_record.trial_id and answer.record.state is TrialState.DECIDED
    assert len(answer.record.all(TrialResumed)) == 1


async def test_backlog_of_unstored_claims_is_bounded_while_the_docket_is_read_only(town, monkeypatch):
    monkeypatch.setattr("serving.judging.running._MOST_NEVER_BEGUN", 5)
    monkeypatch.setattr("serving.judging.orphans.AGAIN_S", 0.05)

    class ReadOnly(Intercepted):
        """A docket that can be read but not written."""

        def __init__(self, docket):
            super().__init__(docket)
            self.enabled = False

        async def claim(self, *arguments, **options):
            return await self._written(self._docket.leases.claim(*arguments, **options))

        async def take_over(self, *arguments, **options):
            return await self._written(self._docket.leases.take_over(*arguments, **options))

        async def _written(self, write):
            if self.enabled:
                write.close()
                raise Unavailable("It is full.", reason="DOCKET_UNAVAILABLE")
            return await write

    docket = town.docket()
    read_only = ReadOnly(docket)
    async with town.server(name="a", docket=read_only) as a:
        read_only.enabled = True
        for number in range(20):
            with pytest.raises(Unavailable):
                await a.answer(other(request_id=f"{number}", image=b"%d|file" % number))
        assert len(a._in_flight.unstored) == 5
        read_only.enabled = False
        async with asyncio.timeout(60):
            while len(a._in_flight.unstored):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        answer = await a.answer(ASK)
    assert answer.record.state is TrialState.DECIDED


async def test_trial_with_a_late_recorded_end_is_counted_as_ended(town, monkeypatch):
    monkeypatch.setattr("serving.judging.orphans.AGAIN_S", 0.05)

    metrics = Metrics(town.settings)
    telemetry = Telemetry(metrics)
    counted, ended = metrics.registry.get_sample_value, {"procedure": "SUMMARY", "outcome": "FAILED", "label": ""}
    docket = town.docket()
    away = _Interrupted(docket)
    async with town.server(name="a", docket=away, telemetry=telemetry) as a:
        town.finder.gate = asyncio.Event()
        caller = asyncio.ensure_future(a.answer(ASK))
        await town.finder.searching.wait()
        away.away = True
        caller.cancel()
        await asyncio.wait([caller])
        away.away = False
        async with asyncio.timeout(60):
            while await open_trials(docket) or not counted("memecourt_trials_total", ended):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert counted("memecourt_trials_opened_total", {"procedure": "SUMMARY"}) == 1
    assert counted("memecourt_trials_total", ended) == 1
    assert not telemetry._trials


async def test_telemetry_forgets_a_trial_that_could_not_be_resumed(town):
    metrics = Metrics(town.settings)
    telemetry = Telemetry(metrics)
    docket = town.docket()
    await a_cut_off_trial(town, docket)
    changed_library(town)
    async with town.server(name="b", docket=docket, telemetry=telemetry) as b:
        await b.answer(ASK)
    counted = metrics.registry.get_sample_value
    failed = {"procedure": "SUMMARY", "step": "resuming", "reason": "VERSIONS_DIFFER"}
    assert counted("memecourt_trial_failures_total", failed) == 1
    assert not telemetry._trials


@each_docket
async def test_trial_taken_over_by_another_server_is_not_ended_by_its_former_one(town, monkeypatch):
    monkeypatch.setattr("serving.judging.orphans.AGAIN_S", 0.05)

    docket = town.docket()
    away = _Interrupted(docket)
    async with town.server(name="a", docket=away, beat_s=60) as a:
        (caller,) = await callers_of_running_trial(town, a, 1, None)
        away.away = True
        caller.cancel()
        await asyncio.wait([caller])
        finder = Finder()
        finder.gate = asyncio.Event()
        async with town.server(name="b", docket=docket, finder=finder) as b:
            other = asyncio.ensure_future(b.answer(ASK))
            await finder.searching.wait()
            away.away = False
            async with asyncio.timeout(60):
                while len(a._in_flight.unstored):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            finder.gate.set()
            answer = await other
    assert answer.record.state is TrialState.DECIDED and not answer.record.all(TrialFailed)


# Heartbeats of servers.


@each_docket
async def test_stopping_server_removes_its_heartbeat_and_counts_as_dead_at_once(town):
    docket = town.docket()
    async with town.server(name="b", docket=docket, dead_s=30) as b:
        async with town.server(name="a", docket=docket):
            await b._heartbeat.refresh()
            assert {*await docket.heartbeats.heartbeats()} == {"a", "b"} and not b._heartbeat.dead("a")
        assert {*await docket.heartbeats.heartbeats()} == {"b"}
        await b._heartbeat.refresh()
        assert b._heartbeat.dead("a")
    remaining = await docket.heartbeats.heartbeats()
    assert remaining == {}


@each_docket
async def test_heartbeats_of_dead_servers_are_removed_later_but_not_those_of_live_ones(town):
    docket = town.docket()
    await docket.heartbeats.beat("dead")
    options = {"docket": docket, "dead_s": 0.2, "forget_s": 0.5}
    began = asyncio.get_running_loop().time()  # the first of the two watches heartbeats from its start
    async with town.server(name="a", **options) as a, town.server(name="b", **options):
        async with asyncio.timeout(60):
            while "dead" in await docket.heartbeats.heartbeats():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began > 0.4
        # Its local state is dropped as well, and no other server is removed.
        await until(lambda: {*a._heartbeat._counts} == {*a._heartbeat._still} == {"a", "b"})
        assert {*await docket.heartbeats.heartbeats()} == {"a", "b"}
        await docket.heartbeats.beat("dead")  # the server was only suspended
        await a._heartbeat.refresh()
        assert not a._heartbeat.dead("dead")


# Known memes.


REUSED = {
    "the same file": {},
    "the same pixels in another file": {"image": b"pixels|re-encoded"},
    "another content id": {"content_id": "other"},
    "pinned to what is loaded": {"pins": RequiredVersions(encoder=LIBRARY.encoder)},
}
NOT_REUSED = {
    "other pixels": {"image": b"other|file"},
    "other text": {"text": "other text"},
    "no text given": {"text": None},
    "text given as none": {"text": ""},
    "another language": {"language": "en"},
    "another namespace": {"namespace": "them"},
    "to be tried anew": {"try_anew": True},
}


@pytest.mark.parametrize("change", [*REUSED, *NOT_REUSED])
@pytest.mark.parametrize("restarted", [False, True])
def test_verdict_is_reused_only_for_the_same_meme(town, change, restarted):
    ask = other(**{**REUSED, **NOT_REUSED}[change])

    async def scene():
        async with town.server() as runner:
            first = await runner.answer(ASK)
            if not restarted:
                return first, await runner.answer(ask), await runner.answer(ask)
        async with town.server() as runner:
            return first, await runner.answer(ask), await runner.answer(ask)

    first, second, third = asyncio.run(scene())
    assert second.reused is third.reused is (change in REUSED)
    assert (second.record == first.record) is (change in REUSED)
    assert third.record == second.record and not second.near
    assert second.name == RequestName(ask.namespace, "r2")
    assert len(town.finder.asked) == (1 if change in REUSED else 2)


def changed_software(town):
    town.software = "another"


def changed_library(town):
    town.finder = Finder(library=LIBRARY.model_copy(update={"digest": "sha256:1"}))


def changed_encoder(town):
    town.finder = Finder(library=LIBRARY.model_copy(update={"encoder": "another"}))


def changed_reader(town):
    town.reader.identity = "another reader"


def switched_off(town):
    town.settings = Settings(home=town.home, reuse="off")


@pytest.mark.parametrize("change", [changed_software, changed_library, changed_encoder, changed_reader, switched_off])
async def test_changed_component_or_disabled_reuse_leads_to_a_new_trial(town, change):
    async with town.server() as runner:
        first = await runner.answer(ASK)
    change(town)
    async with town.server() as runner:
        second = await runner.answer(other())
    assert not second.reused and second.record.trial_id != first.record.trial_id


async def test_changed_policy_settings_or_models_lead_to_a_new_trial(town):
    from court.policy import DEFAULT_POLICY
    from court.settings import TrialSettings
    from tests.support.cast import Cast

    policy = DEFAULT_POLICY.model_copy(update={"version": "another"})
    assert policy.digest != DEFAULT_POLICY.digest
    cast, renamed = Cast(rounds=2), Cast(rounds=2)
    for role, model in renamed.models.items():
        model._name = f"another {role}"
    courts = [
        {"role_models": cast.role_models},
        {"role_models": cast.role_models, "policy": policy},
        {"role_models": cast.role_models, "settings": TrialSettings(epsilon=0.5)},
        {"role_models": renamed.role_models},
    ]

    answers = []
    for _ in range(2):
        for number, court in enumerate(courts):
            async with town.server(**court) as runner:
                ask = replace(ASK, request_id=f"{number}-{len(answers)}", procedure=Procedure.FULL)
                answers.append(await runner.answer(ask))
    assert [answer.reused for answer in answers] == [False] * 4 + [True] * 4
    assert len({answer.record.trial_id for answer in answers}) == 4


def test_tampered_verdict_cache_gives_no_meme_the_verdict_of_another(town):
    """The table of known memes is a cache outside the log: each of its entries is checked against the record."""
    asks = [ASK, replace(ASK, image=b"other|file", request_id="r2")]

    async def answers():
        async with town.server() as runner:
            return [await runner.answer(replace(ask, request_id="")) for ask in asks]

    first = asyncio.run(answers())
    with sqlite3.connect(town.path) as connection:
        one, two = (answer.record.trial_id for answer in first)
        swapped = "CASE trial_id WHEN ? THEN ? WHEN ? THEN ? ELSE trial_id END"
        assert connection.execute(f"UPDATE known SET trial_id = {swapped}", (one, two, two, one)).rowcount == 2
    connection.close()
    for before, after in zip(first, asyncio.run(answers()), strict=True):
        assert after.record.opened.meme.pixels_sha256 == before.record.opened.meme.pixels_sha256


async def test_reuse_everywhere_crosses_namespaces(town):
    town.settings = Settings(home=town.home, reuse="everywhere")
    async with town.server() as runner:
        first, second = await runner.answer(ASK), await runner.answer(replace(ASK, namespace="them"))
    assert second.reused and second.record == first.record


async def test_known_meme_sent_as_the_same_file_needs_no_decoding_and_no_turn(town):
    @asynccontextmanager
    async def turn():
        turns.append("taken")
        yield

    turns = []
    async with town.server() as runner:
        await call_through(turn, runner.answer(ASK))
        assert turns == ["taken"] and town.pictures.decoded == 1
        for number in range(5):
            repeated = await call_through(turn, runner.answer(other(request_id=f"again {number}")))
            assert repeated.reused and repeated.picture_seconds == 0
        assert turns == ["taken"] and town.pictures.decoded == 1
        claims = [await runner.trial_of(RequestName("us", f"again {number}")) for number in range(5)]
        assert set(claims) == {repeated.record.trial_id}


async def overrule(docket, trial_id, clock=ticking_clock()):  # noqa: B008
    await docket.reviews.review(
        trial_id,
        outcome=ReviewOutcome.OVERRULED,
        label=Label.NOT_HARMFUL,
        reason="it is harmless",
        clause="",
        reviewer="somebody",
        at=next(clock),
    )


@each_docket
async def test_overruled_content_is_answered_by_the_finding_without_another_trial(town):
    async with town.server() as runner:
        first = await runner.answer(ASK)
        assert first.in_force.by == "COURT" and (await runner.answer(other())).reused
        await overrule(runner.executor.docket, first.record.trial_id)
        runner.refresh()
        # Versions, procedure and language of a request don't matter, nor that its request was answered before.
        pins = RequiredVersions(library="sha256:another")
        asks = [other(), ASK, other(request_id="r3"), other(request_id="r4", pins=pins, language="de")]
        asks += [asks[-1], other(request_id="r5", procedure=Procedure.FULL)]
        answers = [await runner.answer(ask) for ask in asks]
        anew = await runner.answer(other(request_id="r6", try_anew=True))
        elsewhere = await runner.answer(other(request_id="r7", namespace="elsewhere"))
    assert {answer.record.trial_id for answer in answers} == {first.record.trial_id}
    assert {(answer.in_force.by, answer.in_force.decision) for answer in [*answers, anew]} == {("PERSON", "allow")}
    assert not anew.reused and anew.record.trial_id != first.record.trial_id and anew.record.verdict.label == "HARMFUL"
    assert elsewhere.in_force.by == "COURT"


async def test_trial_that_ends_after_a_finding_has_its_decision(town):
    async with town.server() as runner:
        first = await runner.answer(ASK)
        town.finder.gate, town.finder.searching = asyncio.Event(), asyncio.Event()
        running = asyncio.ensure_future(runner.answer(other(try_anew=True)))
        await town.finder.searching.wait()
        await overrule(runner.executor.docket, first.record.trial_id)
        runner.refresh()
        town.finder.gate.set()
        answer = await running
    assert not answer.reused and (answer.in_force.by, answer.in_force.decision) == ("PERSON", "allow")


@each_docket
@pytest.mark.parametrize("cached_before", [True, False])
async def test_finding_of_another_server_is_followed_within_two_seconds(town, cached_before):
    async with town.server() as here, town.server(name="there") as there:
        first = await here.answer(ASK)
        if cached_before:
            assert (await there.answer(other())).reused
        await overrule(here.executor.docket, first.record.trial_id)
        here.refresh()
        assert (await here.answer(other(request_id="r2"))).in_force.decision == "allow"

        async def follows():
            return (await there.answer(other(request_id=""))).in_force.by == "PERSON"

        await until(follows)
    # It reads the log again a second after it did, which leaves another one for the read.
    assert FRESH_S <= 1


# Callers that wait and leave, and their deadlines.


async def callers_of_running_trial(town, runner, count, turns, *asks):
    """Callers that all wait for the same running trial."""
    town.finder.gate = asyncio.Event()
    callers = [asyncio.ensure_future(call_through(turns, runner.answer(ask))) for ask in asks or [ASK] * count]
    await town.finder.searching.wait()
    await until(lambda: town.waiting == len(callers))
    return callers


async def test_trial_continues_while_any_caller_waits_for_it(town):
    async with town.server() as runner:
        turns = Turns(2)
        callers = await callers_of_running_trial(town, runner, 3, turns)
        assert not turns.all_free
        for leaver in callers[:2]:  # including the one that began it
            leaver.cancel()
        await asyncio.wait(callers[:2])
        town.finder.gate.set()
        answer = await callers[2]
        await wait_until_idle(runner)
        assert turns.all_free
    assert answer.record.state is TrialState.DECIDED and len(town.finder.asked) == 1


async def test_turn_is_released_when_no_trial_is_needed_or_another_is_awaited(town):
    async with town.server() as runner:
        turns = Turns(2)
        callers = await callers_of_running_trial(town, runner, 1, turns)
        callers.append(asyncio.ensure_future(call_through(turns, runner.answer(other(image=b"pixels|joins")))))
        await turns.second.wait()
        async with asyncio.timeout(60), turns():  # the trial has one turn; the caller waiting for it returned the other
            assert not callers[1].done()
        town.finder.gate.set()
        await asyncio.gather(*callers)
        await call_through(turns, runner.answer(other(request_id="r3", image=b"pixels|is known")))
        assert turns.taken == 4 and town.pictures.decoded == 3
        await wait_until_idle(runner)
        assert turns.all_free


async def test_trial_is_cancelled_with_its_last_caller_and_leaves_nothing_behind(town):
    async with town.server() as runner:
        turns = Turns(2)
        tasks = asyncio.all_tasks()
        callers = await callers_of_running_trial(town, runner, 3, turns)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        await wait_until_idle(runner)
        assert turns.all_free and town.finder.ended == 1
        assert asyncio.all_tasks() == tasks
        (trial_id,) = await trials_in(runner.executor.docket)
        first_record = await runner.executor.docket.trials.record(trial_id)
        town.finder.gate.set()
        answer = await runner.answer(ASK)
    assert first_record.state is TrialState.FAILED and first_record.last(TrialFailed).reason == "CANCELLED"
    assert answer.record.trial_id == first_record.trial_id and len(answer.record.all(TrialResumed)) == 1


async def test_request_arriving_while_an_abandoned_trial_ends_gets_its_verdict(town):
    async with town.server() as runner:
        (caller,) = await callers_of_running_trial(town, runner, 1, None)
        caller.cancel()
        await asyncio.sleep(0)
        town.finder.gate.set()
        answers = await asyncio.gather(runner.answer(ASK), runner.answer(other(request_id="r9")))
        trials = await trials_in(runner.executor.docket)
    assert all(answer.record.state is TrialState.DECIDED for answer in answers)
    assert answers[0].record.trial_id in trials


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.003, 0.01, 0.03])
async def test_callers_leaving_at_any_moment_leave_nothing_behind(town, after_s):
    async with town.server() as runner:
        turns = Turns(2)
        tasks = asyncio.all_tasks()
        asks = [other(request_id=f"v{number % 5}", image=b"%d|file" % (number % 7 % 3)) for number in range(30)]
        callers = [asyncio.ensure_future(call_through(turns, runner.answer(ask))) for ask in asks]
        for number, caller in enumerate(callers):
            if number % 3 == 0:
                await asyncio.sleep(after_s)
            if number % 2:
                caller.cancel()
        results = await asyncio.gather(*callers, return_exceptions=True)
        await wait_until_idle(runner)
        assert turns.all_free
        assert asyncio.all_tasks() == tasks
        still_open = await open_trials(runner.executor.docket)
    assert not still_open
    expected = (asyncio.CancelledError, RequestConflict)
    assert all(isinstance(result, expected) or result.record.state is TrialState.DECIDED for result in results)


@pytest.mark.slow
async def test_deadline_ends_the_wait_of_its_own_caller_only(town):
    async with town.server() as runner:
        town.finder.gate = asyncio.Event()
        short = asyncio.ensure_future(runner.answer(ASK, within_s=5))  # begins the trial
        await town.finder.searching.wait()
        shorter = asyncio.ensure_future(runner.answer(other(), within_s=0.1))
        long = asyncio.ensure_future(runner.answer(other(request_id="r3"), within_s=30))
        results = await asyncio.gather(shorter, short, return_exceptions=True)
        assert not long.done()
        town.finder.gate.set()
        shorter, short, long = *results, await long
    assert isinstance(shorter, Overrun) and shorter.reason == "DEADLINE"
    assert isinstance(short, TrialAborted) and short.reason == "DEADLINE"
    assert long.record.trial_id == short.record.trial_id, "the trial was not resumed for the caller with more time"
    assert long.record.state is TrialState.DECIDED


async def test_deadline_applies_while_waiting_for_a_turn_or_another_server(town):
    async with town.server(name="a") as a, town.server(name="b") as b:
        turns = Turns(1)
        async with turns():
            with pytest.raises(Overrun, match="over"):
                await call_through(turns, a.answer(ASK, within_s=0.1))
        assert turns.all_free and not await trials_in(a.executor.docket)
        town.finder.gate = asyncio.Event()
        first = asyncio.ensure_future(a.answer(ASK))
        await town.finder.searching.wait()
        with pytest.raises(Overrun):
            await b.answer(ASK, within_s=0.1)
        town.finder.gate.set()
        await first


@pytest.mark.slow
async def test_verdict_cut_short_for_one_caller_is_not_reused_for_others(town):
    from court.settings import TrialSettings
    from tests.support.cast import Cast

    slow, quick = Cast(rounds=9, delay_s=0.3), Cast(rounds=9)
    ask = replace(ASK, procedure=Procedure.FULL)
    reused = []

    class Counting(Telemetry):
        def reused(self, *, near):
            reused.append(near)

    options = {"role_models": slow.role_models, "settings": TrialSettings(rounds_max=9), "telemetry": Counting()}
    async with town.server(**options) as runner:
        hurried = asyncio.ensure_future(runner.answer(ask, within_s=5))
        await asyncio.sleep(0.3)
        patient = asyncio.ensure_future(runner.answer(replace(ask, request_id="r2")))
        first = await hurried
        for role, role_model in quick.models.items():
            slow.models[role]._delay_s = role_model._delay_s
        patient = await patient
        again = await runner.answer(ask)
        later = await runner.answer(replace(ask, request_id="r3"))
    assert reused == [False], "only the last request reuses another's verdict"
    assert "CUT_SHORT" in [review.reason for review in first.record.verdict.review]
    assert patient.record.trial_id != first.record.trial_id and not patient.reused
    assert "CUT_SHORT" not in [review.reason for review in patient.record.verdict.review]
    assert again.record == first.record
    assert later.reused and later.record.trial_id == patient.record.trial_id


@pytest.mark.slow
async def test_caller_returning_after_a_trial_cut_short_for_another_gets_a_full_one(town):
    from court.settings import TrialSettings
    from tests.support.cast import Cast

    cast = Cast(rounds=9, delay_s=0.3)
    ask = replace(ASK, procedure=Procedure.FULL)
    patient = replace(ask, request_id="r2")
    async with town.server(role_models=cast.role_models, settings=TrialSettings(rounds_max=9)) as runner:
        hurried = asyncio.ensure_future(runner.answer(ask, within_s=5))
        await asyncio.sleep(0.3)
        leaving = asyncio.ensure_future(runner.answer(patient))
        while await runner.trial_of(RequestName("us", "r2")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        leaving.cancel()
        first = await hurried
        for model in cast.models.values():
            model._delay_s = 0
        first, (back, again) = first, [await runner.answer(patient) for _ in range(2)]
    assert "CUT_SHORT" in [review.reason for review in first.record.verdict.review]
    assert "CUT_SHORT" not in [review.reason for review in back.record.verdict.review]
    assert again.record == back.record and back.record.trial_id != first.record.trial_id


@pytest.mark.slow
async def test_other_callers_of_a_trial_cut_short_share_one_new_trial(town):
    from court.settings import TrialSettings
    from tests.support.cast import Cast

    cast = Cast(rounds=9, delay_s=0.3)
    ask = replace(ASK, procedure=Procedure.FULL)

    options = {"role_models": cast.role_models, "settings": TrialSettings(rounds_max=9)}
    async with town.server(name="a", **options) as a, town.server(name="b", **options) as b:
        hurried = asyncio.ensure_future(a.answer(ask, within_s=5))
        await asyncio.sleep(0.3)
        patient = [
            asyncio.ensure_future(s.answer(one))
            for s, one in zip([a, b] * 4, own_ids(8, procedure=Procedure.FULL), strict=True)
        ]
        first = await hurried
        for model in cast.models.values():
            model._delay_s = 0
        patient, trials = await asyncio.gather(*patient), await trials_in(a.executor.docket)
    assert "CUT_SHORT" in [review.reason for review in first.record.verdict.review]
    (second,) = {answer.record.trial_id for answer in patient}
    assert {first.record.trial_id, second} == set(trials) and second != first.record.trial_id


@each_docket
async def test_stopping_server_records_its_trials_for_another_to_resume(town):
    docket = town.docket()
    async with town.server(name="a", docket=docket) as a:
        callers = await callers_of_running_trial(town, a, 2, None)
    results = await asyncio.gather(*callers, return_exceptions=True)
    with pytest.raises(Unavailable, match="closing"):
        await a.answer(ASK)
    town.finder.gate.set()
    async with town.server(name="b", docket=docket, dead_s=60) as b:
        answer = await asyncio.wait_for(b.answer(ASK), 60)  # no need to wait for the heartbeat: the trial was released
    assert [(type(error), error.reason, error.record.trial_id) for error in results] == [
        (TrialAborted, "SERVER_STOPPED", answer.record.trial_id)
    ] * 2
    assert (
        results[0].record.last(TrialFailed).reason == "SERVER_STOPPED" and results[0].record.last(TrialFailed).retryable
    )
    assert isinstance(results[0].cause, Unavailable)
    assert len(answer.record.all(TrialOpened)) == 1 and answer.record.state is TrialState.DECIDED


@each_docket
async def test_unstarted_trial_of_a_stopping_server_is_started_by_another_at_once(town):
    docket, turns = town.docket(), Turns(1)
    async with town.server(name="a", docket=docket) as a:
        await a.answer(other(request_id="r0", try_anew=True))  # from here on no turn is needed to decode
        async with turns():
            caller = asyncio.ensure_future(call_through(turns, a.answer(replace(ASK, try_anew=True))))
            await turns.asked.wait()
            await a.__aexit__()
            with pytest.raises(Unavailable) as caught:
                await caller
    async with town.server(name="b", docket=docket, dead_s=60) as b:
        answer = await asyncio.wait_for(b.answer(replace(ASK, try_anew=True)), 60)
    stopped = caught.value
    assert stopped.reason == "SERVER_STOPPED" and answer.record.state is TrialState.DECIDED


async def test_slow_pictures_do_not_delay_other_namespaces(town):
    """Namespaces take turns decoding, however many pictures of one wait in the queue."""
    town.settings = Settings(home=town.home, picture_workers=2)
    async with town.server() as runner:
        town.pictures.gate = asyncio.Event()
        asks = [other(namespace="flood", request_id=f"f{n}", image=b"%d|slow" % n) for n in range(20)]
        flood = [asyncio.ensure_future(runner.answer(ask)) for ask in asks]
        while town.pictures.decoded < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        late = asyncio.ensure_future(runner.answer(other(namespace="late", image=b"late|file")))
        while hashlib.sha256(b"late|file").digest() not in runner.decoders._decoding:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert town.pictures.decoded == 2, "more pictures decoded at once than there are workers"
        town.pictures.gate.set()
        await asyncio.gather(late, *flood)
        assert town.pictures.started.index(b"late|file") <= 4


async def test_decoded_pictures_exist_only_during_a_turn_and_their_bytes_are_counted(town):
    """Callers that wait for a turn have no decoded picture, even if another caller had the same file decoded."""
    total_bytes, peak_bytes = 0, 0

    def count(by):
        nonlocal total_bytes, peak_bytes
        total_bytes += by
        peak_bytes = max(peak_bytes, total_bytes)

    size = len(PNG + b"0|file")
    async with town.server(memory=count) as runner:
        turns = Turns(2)
        town.finder.gate = asyncio.Event()
        asks = [other(request_id=f"{n} {text}", image=b"%d|file" % n, text=text) for n in range(6) for text in "abc"]
        callers = [asyncio.ensure_future(call_through(turns, runner.answer(ask))) for ask in asks]
        await town.finder.searching.wait()
        while total_bytes < 2 * size:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert total_bytes == 2 * size
        callers[0].cancel()
        town.finder.gate.set()
        await asyncio.wait(callers)
        await wait_until_idle(runner)
        assert turns.all_free
    assert total_bytes == 0 and peak_bytes == 2 * size


# Pins.


@pytest.mark.parametrize("field", ["prompts", "library", "encoder", "settings", "models"])
async def test_pin_accepts_only_the_loaded_version(town, field):
    from tests.support.cast import Cast

    async with town.server(role_models=Cast(rounds=2).role_models) as runner:
        ask = replace(ASK, procedure=Procedure.FULL)
        loaded = (await runner.answer(ask)).record.opened.versions
        if field == "models":
            right, wrong = {"judge": loaded.models["JUDGE"]}, {"judge": "another"}
        else:
            right, wrong = getattr(loaded, field), "another"
        good = await runner.answer(replace(ask, request_id="r2", pins=RequiredVersions(**{field: right})))
        assert good.reused
        before = await trials_in(runner.executor.docket)
        with pytest.raises(NotLoaded) as caught:
            await runner.answer(
                replace(ask, request_id="r3", image=b"new|file", pins=RequiredVersions(**{field: wrong}))
            )
        assert await trials_in(runner.executor.docket) == before
        assert await runner.trial_of(RequestName("us", "r3")) is None
        # Decoded, since versions don't matter where a person has decided; nothing else is done for it.
        assert town.pictures.decoded == 2
        error = caught.value
    assert error.reason == "PIN_NOT_LOADED"
    assert error.field == {"models": "pins.models.judge"}.get(field, f"pins.{field}")


async def test_pin_on_an_unused_model_or_an_unknown_role_is_refused(town):
    async with town.server() as runner:
        for role in ("judge", "bailiff"):
            with pytest.raises(NotLoaded) as caught:
                await runner.answer(replace(ASK, pins=RequiredVersions(models={role: "a model"})))
            assert caught.value.field == f"pins.models.{role}"


OTHER_LIBRARY = LIBRARY.model_copy(update={"digest": "sha256:1"})
PINNED = replace(ASK, pins=RequiredVersions(library=LIBRARY.digest))


@pytest.mark.parametrize("reuse", ["namespace", "off"])
async def test_repeated_pinned_request_gets_its_verdict_after_versions_changed(town, reuse):
    from court.policy import DEFAULT_POLICY

    town.settings = Settings(home=town.home, reuse=reuse)
    policy = DEFAULT_POLICY.model_copy(update={"version": "another"})
    ask = replace(PINNED, policy=RequiredPolicy(digest=DEFAULT_POLICY.digest))
    async with town.server() as runner:
        first = [await runner.answer(replace(ask, request_id=name)) for name in ("r1", "r2")]
    changed_library(town)
    async with town.server(policy=policy) as runner:
        await runner.answer(replace(ASK, request_id="r9"))  # the newly loaded versions have a verdict as well
        repeated = [await runner.answer(replace(ask, request_id=name)) for name in ("r1", "r2")]
        for pinned in (replace(PINNED, request_id="r3"), replace(ask, request_id="r4", pins=RequiredVersions())):
            with pytest.raises(NotLoaded):
                await runner.answer(pinned)
            assert await runner.trial_of(RequestName("us", pinned.request_id)) is None
    assert [answer.record for answer in repeated] == [answer.record for answer in first]
    assert [answer.reused for answer in first] == [False, reuse != "off"]


class _SlowPictures(Intercepted):
    """A docket that stores a picture only once ``go_on`` is set."""

    def __init__(self, docket):
        super().__init__(docket)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def keep_picture(self, picture):
        self.asked.set()
        await self.go_on.wait()
        await self._docket.writer.keep_picture(picture)


@pytest.mark.parametrize("moment", ["while it is decoded", "when its trial is about to begin"])
async def test_pin_is_checked_against_the_versions_that_the_trial_uses(town, moment):
    """The failed pin concerns its own request only: other callers of that trial get a trial of their own."""

    docket = town.docket()
    holding = _SlowPictures(docket)
    async with town.server(docket=holding) as runner:
        if moment == "while it is decoded":
            town.pictures.gate = asyncio.Event()
            holding.go_on.set()
        pinned = asyncio.ensure_future(runner.answer(PINNED))
        if town.pictures.gate is None:
            await holding.asked.wait()
        else:
            while not town.pictures.decoded:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        free = asyncio.ensure_future(runner.answer(other()))
        await asyncio.sleep(0.1)
        town.finder.library = OTHER_LIBRARY
        town.finder.result = findings([H] * 5).model_copy(update={"library": OTHER_LIBRARY})
        holding.go_on.set()
        if town.pictures.gate is not None:
            town.pictures.gate.set()
        with pytest.raises(NotLoaded) as caught:
            await pinned
        answers = await free, await trials_in(docket)
    error, free, trials = caught.value, *answers
    assert (error.reason, error.field) == ("PIN_NOT_LOADED", "pins.library")
    assert [free.record.trial_id] == trials and free.record.opened.versions.library == OTHER_LIBRARY.digest


@pytest.mark.parametrize("resumed", [False, True])
async def test_library_change_during_a_search_fails_the_trial_pinned_to_it(town, resumed):
    async with town.server() as runner:
        town.finder.gate = asyncio.Event()
        pinned = asyncio.ensure_future(runner.answer(PINNED))
        await town.finder.searching.wait()
        if resumed:
            pinned.cancel()
            await asyncio.wait([pinned])
            await wait_until_idle(runner)
            town.finder.searching.clear()
            pinned = asyncio.ensure_future(runner.answer(PINNED))
            await town.finder.searching.wait()
        town.finder.library = OTHER_LIBRARY
        town.finder.result = findings([H] * 5).model_copy(update={"library": OTHER_LIBRARY})
        town.finder.gate.set()
        with pytest.raises(TrialAborted) as caught:
            await pinned
        error = caught.value
    assert (error.reason, error.field) == ("PIN_NOT_LOADED", "pins.library")
    assert isinstance(error.cause, NotLoaded)
    assert error.record.state is TrialState.FAILED and not error.record.last(TrialFailed).retryable


async def test_trial_with_mixed_library_versions_is_not_reused_for_a_pinned_request(town):
    async with town.server() as runner:
        town.finder.result = findings([H] * 5).model_copy(update={"library": OTHER_LIBRARY})
        mixed = await runner.answer(ASK)
        town.finder.result = findings([H] * 5)
        pinned = await runner.answer(other(pins=PINNED.pins))
    assert not pinned.reused and pinned.record.trial_id != mixed.record.trial_id
    assert pinned.record.precedents.findings.library.digest == LIBRARY.digest


@pytest.mark.parametrize("field", ["id", "version", "digest"])
async def test_policy_can_be_pinned_by_id_version_or_digest(town, field):
    from court.policy import DEFAULT_POLICY

    async with town.server() as runner:
        right, wrong = RequiredPolicy(**{field: getattr(DEFAULT_POLICY, field)}), RequiredPolicy(**{field: "another"})
        assert (await runner.answer(replace(ASK, policy=right))).record.state is TrialState.DECIDED
        assert (await runner.answer(other(policy=right))).reused
        with pytest.raises(NotLoaded) as caught:
            await runner.answer(other(request_id="r3", policy=wrong))
        assert await runner.trial_of(RequestName("us", "r3")) is None
        error = caught.value
    assert (error.reason, error.field) == ("POLICY_NOT_LOADED", "policy")
