"""Admission control: fair queueing by namespace, a bounded queue, and accurate retry delays for refused callers."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from court.errors import Unavailable
from serving.errors import Busy
from serving.judging.admission import Admission


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Court:
    """Callers of an admission whose trials end on command."""

    def __init__(self, most, waiting=100):
        self.clock = Clock()
        self.admission = Admission(most, waiting, self.clock)
        self.begun = []
        self.calls = {}
        self.ends = {}

    async def call(self, name, namespace="", **options):
        """Starts a call; once this returns, its trial runs or it is queued."""
        self.ends[name] = asyncio.Event()

        async def trial():
            async with self.admission.acquire(namespace, **options):
                self.begun.append(name)
                await self.ends[name].wait()

        self.calls[name] = asyncio.create_task(trial())
        await settled()

    async def end(self, name, *, after=0.0):
        self.clock.now += after
        self.ends[name].set()
        await settled()

    async def leave(self, name):
        self.calls[name].cancel()
        await settled()

    async def end_all(self):
        """Ends trials one after the other until none is running; returns names in the order in which they began."""
        while running := [name for name in self.begun if not self.calls[name].done()]:
            await self.end(running[0])
        return self.begun

    def refusal(self, name):
        assert self.calls[name].done()
        return self.calls[name].exception()


async def settled():
    for _ in range(6):
        await asyncio.sleep(0)


@asynccontextmanager
async def a_court(most, waiting=100):
    court = Court(most, waiting)
    try:
        yield court
    finally:
        for call in court.calls.values():
            call.cancel()
        await asyncio.gather(*court.calls.values(), return_exceptions=True)
        assert court.admission.running == court.admission.waiting == 0  # no slot was lost


async def test_late_namespace_is_served_next_when_there_is_one_slot():
    async with a_court(most=1) as court:
        for number in range(50):
            await court.call(f"flood-{number}", "flood")
        await court.call("late", "another")
        await court.end("flood-0")
        assert court.begun == ["flood-0", "late"]


@pytest.mark.parametrize("most", [1, 4])
async def test_namespaces_share_slots_evenly_however_many_calls_each_makes(most):
    async with a_court(most) as court:
        for namespace, count in (("a", 40), ("b", 20), ("c", 10)):
            for number in range(count):
                await court.call(f"{namespace}{number}", namespace)
        begun = await court.end_all()
    assert len(begun) == 70
    shared = Counter(name[0] for name in begun[most : most + 30])  # while all three namespaces have callers waiting
    assert all(9 <= count <= 11 for count in shared.values()), shared
    for namespace in "abc":
        own = [int(name[1:]) for name in begun if name[0] == namespace]
        assert own == sorted(own)  # first in, first out within a namespace


async def test_idle_namespace_saves_up_no_turns():
    async with a_court(most=1) as court:
        for number in range(20):
            await court.call(f"a{number}", "a")
        for number in range(10):
            await court.end(f"a{number}")
        for number in range(10):
            await court.call(f"b{number}", "b")
        begun = (await court.end_all())[11:19]
    assert Counter(name[0] for name in begun) == {"a": 4, "b": 4}


async def test_check_predicts_refusals_without_side_effects():
    async with a_court(most=3, waiting=6) as court:
        predicted, admitted = [], []
        for number in range(200):
            court.clock.now += 0.1
            namespace, within_s = "aab"[number % 3], (None, 1.0, 100.0)[number // 7 % 3]
            options = {"within_s": within_s, "patient": number % 11 == 0}
            waiting = court.admission.waiting
            try:
                court.admission.check(namespace, **options)
                predicted.append(True)
            except Busy:
                predicted.append(False)
            assert court.admission.waiting == waiting
            await court.call(str(number), namespace, **options)
            call = court.calls[str(number)]
            admitted.append(not (call.done() and isinstance(call.exception(), Busy)))
            if number % 5 == 0 and (running := [name for name in court.begun if not court.calls[name].done()]):
                await court.end(running[0])
        court.admission.close()
        with pytest.raises(Unavailable):
            court.admission.check("a")
    assert predicted == admitted and set(predicted) == {True, False}


async def test_leaving_the_queue_frees_the_place_at_once():
    async with a_court(most=1, waiting=2) as court:
        await court.call("first")
        for name in ("second", "third"):
            await court.call(name)
        await court.call("refused")
        refusal = court.refusal("refused")
        await court.leave("second")
        await court.call("fourth")  # there is room again
        assert court.admission.waiting == 2
        await court.end("first")
        begun = court.begun
    assert isinstance(refusal, Busy)
    assert begun == ["first", "third"]


async def test_cancelling_while_a_slot_is_handed_over_loses_no_slot():
    async with a_court(most=1) as court:
        await court.call("first")
        await court.call("second")
        await court.call("third")
        court.ends["first"].set()
        for _ in range(6):  # until the slot is handed on but not yet taken
            if court.admission.waiting == 1:
                break
            await asyncio.sleep(0)
        assert court.begun == ["first"]
        await court.leave("second")
        assert court.begun == ["first", "third"]


async def test_full_queue_makes_room_for_a_namespace_below_its_share():
    async with a_court(most=1, waiting=5) as court:
        for number in range(6):
            await court.call(f"flood-{number}", "flood")
        await court.call("late", "another")
        last, one_more = court.calls["flood-5"], "flood-6"
        await court.call(one_more, "flood")
        pushed_out, refused, begun = last.exception(), court.refusal(one_more), await court.end_all()
    assert isinstance(pushed_out, Busy) and isinstance(refused, Busy)
    assert begun[:2] == ["flood-0", "late"]
    assert len(begun) == 6


async def test_patient_callers_ignore_the_queue_limit_and_are_not_evicted():
    async with a_court(most=1, waiting=1) as court:
        await court.call("running")
        for number in range(5):
            await court.call(f"patient-{number}", "a", patient=True)
        await court.call("impatient", "a")
        await court.call("refused", "b")
        assert isinstance(court.refusal("refused"), Busy)
        await court.leave("patient-2")
        assert await court.end_all() == [
        "running", "patient-0", "patient-1", "patient-3", "patient-4", "impatient",
    ]  # fmt: skip


async def test_retry_delay_follows_from_measured_trial_durations():
    # Four slots and two seconds a trial free two slots a second; ten waiting callers and the caller itself need eleven.
    async with a_court(most=4, waiting=10) as court:
        for number in range(4):
            await court.call(f"t{number}")
        for number in range(4):
            await court.end(f"t{number}", after=2.0 if number == 0 else 0.0)  # each took two seconds
        for number in range(14):
            await court.call(f"n{number}")  # four run, ten wait
        delays = []
        for number in range(3):
            await court.call(f"refused-{number}")
            delays.append(court.refusal(f"refused-{number}").retry_after)
        assert delays == pytest.approx([5.5, 6.0, 6.5])


async def test_callers_returning_after_the_retry_delay_are_admitted():
    """Four times as many callers as the court has room for: each refused caller has to come back only once."""
    async with a_court(most=5, waiting=20) as court:
        tries = Counter()
        return_times = {f"caller-{number}": 1000.0 for number in range(100)}
        ends = []
        done = 0
        while done < 100:
            now = min([*return_times.values(), *(at for at, _ in ends)])
            court.clock.now = now
            for at, name in sorted(ends):
                if at <= now:
                    ends.remove((at, name))
                    await court.end(name)
                    done += 1
            for name in [name for name, at in return_times.items() if at <= now]:
                del return_times[name]
                tries[name] += 1
                await court.call(name)
                if court.calls[name].done():
                    return_times[name] = now + court.refusal(name).retry_after
            known = {name for _, name in ends}
            ends += [(now + 1.0, n) for n in court.begun if not court.calls[n].done() and n not in known]
        ended = court.clock.now
    assert max(tries.values()) <= 2
    assert sum(tries.values()) == 100 + 75
    assert ended - 1000.0 <= 100 / 5 * 1.1  # and no slot was idle meanwhile


async def test_running_trial_counts_towards_the_delay_before_it_ends():
    async with a_court(most=1, waiting=0) as court:
        await court.call("quick")
        await court.end("quick", after=0.1)
        await court.call("slow")
        court.clock.now += 30
        await court.call("refused")
        assert court.refusal("refused").retry_after == pytest.approx(30, rel=0.01)


async def test_caller_that_cannot_be_served_in_time_is_refused_at_once():
    async with a_court(most=1) as court:
        await court.call("measured")
        await court.end("measured", after=3.0)
        await court.call("running")
        await court.call("waits", within_s=5.5)
        await court.call("too late", within_s=5.5)
        await court.call("patient", within_s=5.5, patient=True)
        waits, too_late, patient = court.calls["waits"].done(), court.refusal("too late"), court.calls["patient"].done()
    assert not waits and not patient
    assert isinstance(too_late, Busy) and too_late.retry_after > 0


async def test_closing_refuses_waiting_callers_and_lets_running_trials_finish():
    async with a_court(most=1) as court:
        for name in ("running", "waiting", "patient"):
            await court.call(name, patient=name == "patient")
        court.admission.close()
        await settled()
        await court.call("new")
        refusals = [court.refusal(name) for name in ("waiting", "patient", "new")]
        emptied = asyncio.create_task(court.admission.empty())
        await settled()
        assert not emptied.done() and not court.calls["running"].done()
        await court.end("running")
        await asyncio.wait_for(emptied, 5)
    for refusal in refusals:
        assert isinstance(refusal, Unavailable) and not isinstance(refusal, Busy)
        assert refusal.reason == "CLOSING" and refusal.retry_after > 0


async def test_error_in_a_trial_frees_its_slot():
    async with a_court(most=1) as court:

        @asynccontextmanager
        async def failing():
            async with court.admission.acquire("a"):
                yield

        with pytest.raises(ZeroDivisionError):
            async with failing():
                raise ZeroDivisionError
        await court.call("next")
        assert court.begun == ["next"]
