"""Faults under load: afterwards each accepted request has exactly one verdict or a recorded failure.

Everything is counted, at the callers and in the docket. Full size with MEMECOURT_FULL=1.
"""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from court.events import TrialFailed, TrialOpened, VerdictGiven
from court.record import TrialState
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub
from serving.judging import orphans
from tests.support import docket_faults
from tests.support.dockets import open_trials, parse_place
from tests.support.fakes import FakeReader
from tests.support.playing import until, wait_until
from tests.support.scenes import a_scene, remaining_responses
from tests.support.service_calls import Refusal
from tests.support.sizes import FULL
from tests.support.trial import a_court

REQUESTS, FAULTS = (600, 20) if FULL else (40, 2)
RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}


class SlowReader(FakeReader):
    """Reads slowly, so that faults hit trials in every state; the first picture waits until ``go_on`` is set."""

    def __init__(self, result):
        super().__init__(result)
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def read(self, picture):
        await asyncio.sleep(0.02)
        if not self.asked.is_set():
            self.asked.set()
            await self.go_on.wait()
        return await super().read(picture)


def numbered_request(number, **fields):
    return judge_request(b"picture %d" % number, request_id=f"r{number}", **fields)


class Callers:
    """Callers that retry until they have a verdict, and record verdicts and errors."""

    def __init__(self):
        self.verdicts = {}
        self.errors = Counter()
        self._at_once = asyncio.Semaphore(80)

    async def ask(self, stub, request):
        """Retries as long as the error allows it."""
        async with self._at_once:
            while True:
                try:
                    verdict = await stub.Judge(request, timeout=60)
                except grpc.aio.AioRpcError as error:
                    assert error.code() in RETRYABLE, (error.code(), error.details())
                    self.errors[Refusal(error).info.reason] += 1
                    await asyncio.sleep(0.05)
                    continue
                self.verdicts.setdefault(request.request_id, set()).add(verdict.verdict_id)
                return verdict


async def count_failures(docket, verdicts):
    """Checks the docket against the callers' verdicts, and returns the number of failed trials."""
    assert not await open_trials(docket)
    lines = await docket.index.list(limit=10**6)
    by_request = {}
    for line in lines:
        record = await docket.trials.record(line.trial_id)
        assert record.state in (TrialState.DECIDED, TrialState.FAILED)
        assert len(record.all(VerdictGiven)) == (record.state is TrialState.DECIDED)
        assert [event.seq for event in record.events] == [*range(len(record.events))]
        by_request.setdefault(line.request_id, []).append(record)
    for request_id, ids in verdicts.items():
        (verdict_id,) = ids  # repeated answers name the same verdict
        (decided,) = [record for record in by_request[request_id] if record.state is TrialState.DECIDED]
        assert decided.trial_id == verdict_id
    return sum(len(record.all(TrialFailed)) for records in by_request.values() for record in records)


@pytest.mark.promise("RE-8", "600 requests, 20 faults of each of 7 kinds: 0 lost, 0 twice")
@pytest.mark.slow
@pytest.mark.parametrize("fault", [*docket_faults.SQLITE, *docket_faults.POSTGRES], ids=lambda fault: fault.__name__)
async def test_docket_faults_under_load_cost_no_request_its_verdict(tmp_path, monkeypatch, request, fault):
    """Sends each request twice, over two connections, in random order, while the docket fails again and again.

    Some requests are sent only once a fault is in place, so that they meet it on any machine.
    """
    monkeypatch.setattr(orphans, "AGAIN_S", 0.05)
    random_ = random.Random(7)
    place = str(tmp_path / "docket.sqlite")
    if fault in docket_faults.POSTGRES:
        place = request.getfixturevalue("docket_database")

    def fail(seconds, in_place, was_met):
        with fault(place):
            in_place()
            time.sleep(seconds)
            wait_until(was_met, 60)

    options = {"reuse": "namespace", "concurrent_trials": 8, "waiting_trials": 40}
    reader = SlowReader("as read")
    async with a_scene(tmp_path, reader=reader, place=parse_place(place), patience=0.2, **options) as it:
        channel = it.another_channel()
        another = CourtStub(channel)
        callers = Callers()
        requests = [numbered_request(number) for number in range(REQUESTS)] * 2
        random_.shuffle(requests)

        async def ask(number, request):
            await asyncio.sleep(number * 0.004)
            return await callers.ask((it.stub, another)[number % 2], request)

        asking = []

        def send(count):
            batch = [requests.pop() for _ in range(min(count, len(requests)))]
            asking.extend(asyncio.create_task(ask(number, request)) for number, request in enumerate(batch))

        def was_met():
            # Broken connections are replaced before any caller notices.
            return fault is docket_faults.broken_connections or callers.errors["DOCKET_UNAVAILABLE"]

        loop, each = asyncio.get_running_loop(), len(requests) // (FAULTS + 1)
        send(each)
        for _ in range(FAULTS):
            await asyncio.sleep(random_.uniform(0.05, 0.15))
            # Longer than the docket's patience: writes meanwhile are refused.
            seconds = random_.uniform(0.5, 1.0)
            await asyncio.to_thread(fail, seconds, lambda: loop.call_soon_threadsafe(send, each), was_met)
        send(len(requests))
        await asyncio.gather(*asking)
        await channel.close()
        assert len(callers.verdicts) == REQUESTS
        async with asyncio.timeout(120):
            while await open_trials(it.docket):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        failed = await count_failures(it.docket, callers.verdicts)
    assert set(callers.errors) <= {"DOCKET_UNAVAILABLE", "BUSY"}, callers.errors
    print(
        f"{fault.__name__}: {REQUESTS} requests, twice each; errors {dict(callers.errors)}; {failed} recorded failures"
    )


def jumping_clock(jumps):
    """Yields times of a clock that is set forward and back by hours while it runs."""
    start = datetime.now(UTC)
    ticks = 0
    while True:
        ticks += 1
        yield start + timedelta(milliseconds=ticks) + next(jumps)


async def test_clock_jumps_change_only_recorded_times(tmp_path):
    """Deadlines, scheduling and liveness use the monotonic clock; only the record uses wall-clock time."""
    random_ = random.Random(11)
    hours = iter(lambda: timedelta(hours=random_.choice([0, 0, -9, 14, -1000])), None)
    clock = jumping_clock(hours)

    court = replace(a_court(reader=SlowReader("as read")), now=lambda: next(clock))
    async with a_scene(tmp_path, court=court, reuse="namespace", concurrent_trials=4, waiting_trials=1000) as it:
        callers = Callers()
        await asyncio.gather(*(callers.ask(it.stub, numbered_request(number)) for number in [*range(REQUESTS)] * 2))
        assert not callers.errors and len(callers.verdicts) == REQUESTS
        assert await count_failures(it.docket, callers.verdicts) == 0
        lines = await it.docket.index.list(limit=10**6)
        paged, after = [], None
        while page := await it.docket.index.list(limit=7, after=after):
            paged += page
            after = page[-1].opened_at, page[-1].trial_id
        # Trials are listed once each, ordered by the recorded times.
        assert [line.trial_id for line in paged] == [line.trial_id for line in lines]
        assert {line.trial_id for line in lines} == {one for ids in callers.verdicts.values() for one in ids}
        records = [await it.docket.trials.record(line.trial_id) for line in lines]
        assert sum(b.at < a.at for r in records for a, b in zip(r.events, r.events[1:], strict=False)) > REQUESTS, (
            "the clock goes back in most trials"
        )


async def test_duplicated_and_reordered_requests_are_tried_once_and_all_answered(tmp_path):
    """Sends several copies over streams and single calls, in random order; a conflicting request is refused."""
    random_ = random.Random(13)
    copies = 4

    options = {"reuse": "namespace", "concurrent_trials": 8, "waiting_trials": 10_000}
    async with a_scene(tmp_path, reader=SlowReader("as read"), **options) as it:
        others = [it.another_channel() for _ in range(3)]
        stubs = [it.stub, *map(CourtStub, others)]
        callers = Callers()
        single = [numbered_request(number) for number in range(REQUESTS)] * 2
        conflicting = [numbered_request(number, text="another text") for number in range(0, REQUESTS, 10)]
        random_.shuffle(single)
        streams = []
        for stub in stubs[: copies - 2]:
            items = [wire.JudgeStreamRequest(request=numbered_request(number)) for number in range(REQUESTS)]
            random_.shuffle(items)
            streams.append(remaining_responses(stub.JudgeStream(iter(items), timeout=120)))
        asking = [callers.ask(stubs[number % 4], request) for number, request in enumerate(single)]
        *streamed, _ = await asyncio.gather(*streams, asyncio.gather(*asking))
        for request in conflicting:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await it.stub.Judge(request, timeout=60)
            assert Refusal(caught.value).info.reason == "REQUEST_ID_TAKEN"
        for responses in streamed:
            assert Counter(response.request_id for response in responses) == Counter([*callers.verdicts])
            for response in responses:
                callers.verdicts[response.request_id].add(response.verdict.verdict_id)
        for channel in others:
            await channel.close()
        assert not callers.errors and len(callers.verdicts) == REQUESTS
        assert await count_failures(it.docket, callers.verdicts) == 0
        assert len(await it.docket.index.list(limit=10**6)) == REQUESTS


async def test_vanished_clients_leave_verdicts_or_failures_and_can_return(tmp_path):
    """Some break their connection, some only their call, at random moments; then all of them ask again."""
    random_ = random.Random(17)

    options = {"reuse": "namespace", "concurrent_trials": 8, "waiting_trials": 10_000}
    reader = SlowReader("as read")
    async with a_scene(tmp_path, reader=reader, **options) as it:
        reader.go_on.clear()
        channels = [it.another_channel() for _ in range(max(4, REQUESTS // 20))]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        calls = []
        for number in range(REQUESTS):
            calls.append(CourtStub(channels[number % len(channels)]).Judge(numbered_request(number), timeout=60))
            if number % 5 == 0:
                await asyncio.sleep(random_.uniform(0, 0.02))
            if number % 3 == 0:
                random_.choice(calls).cancel()
        await until(reader.asked.is_set)  # the first is in mid-trial until its caller is gone
        for channel in channels:
            await asyncio.sleep(random_.uniform(0, 0.05))
            await channel.close()
        for call in calls:
            with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await call
        await until(lambda: not it.reception.admission.running + it.reception.admission.waiting)
        reader.go_on.set()
        gone = sum([await call.code() is not grpc.StatusCode.OK for call in calls])
        await it.service.empty(60)
        async with asyncio.timeout(120):
            while await open_trials(it.docket):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        begun = [await it.docket.trials.record(line.trial_id) for line in await it.docket.index.list(limit=10**6)]
        callers = Callers()
        await asyncio.gather(*(callers.ask(it.stub, numbered_request(number)) for number in range(REQUESTS)))
        assert len(callers.verdicts) == REQUESTS
        failed = await count_failures(it.docket, callers.verdicts)
        after = await it.docket.index.list(limit=10**6)
    ended = Counter(record.state for record in begun)
    assert gone and ended[TrialState.FAILED], "no client vanished in mid-trial"
    assert failed == ended[TrialState.FAILED]
    # Interrupted trials were resumed: none was run twice.
    assert len(after) == REQUESTS and {record.trial_id for record in begun} <= {line.trial_id for line in after}
    assert all(len(record.all(TrialOpened)) == 1 for record in begun)
