"""Tests of the memory budget for incoming requests: which calls get memory and for how long, on a virtual clock."""

import asyncio
import itertools

import pytest

from court.errors import BadRequest, Unavailable
from serving.errors import Busy
from serving.rpc.flow_control import MESSAGE_BYTES, ReceiveBudget
from tests.support.virtual_time import run

pytestmark = pytest.mark.virtual_time

MIB = 1024 * 1024
BUDGET = 16 * (MESSAGE_BYTES + MIB)
NEW_AT_ONCE = 4  # a quarter of the budget is for new connections, which have sent nothing yet


class Call:
    """A call that sends its request after ``after_s`` seconds, or never."""

    def __init__(self, peer, after_s=None):
        self.of = peer
        self.after_s = after_s

    def peer(self):
        return self.of

    async def read(self):
        await (asyncio.Event().wait() if self.after_s is None else asyncio.sleep(self.after_s))
        return b"a request"


async def start_reading(memory, calls):
    """Starts these calls and returns once each of them is waiting for memory or being read."""
    tasks = [asyncio.create_task(memory.receive(call)) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def make_known(memory, peers):
    """Makes these connections known: each sends one request."""
    for read in await asyncio.gather(*(memory.receive(Call(peer, 0.01)) for peer in peers)):
        read[1].release()


async def cancel(tasks):
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def answered_after(honest_at, silent):
    """Seconds that one honest call waits when it arrives as the ``honest_at``-th among silent ones."""

    async def scene():
        memory = ReceiveBudget(BUDGET, 60.0)
        loop = asyncio.get_running_loop()
        before = await start_reading(memory, silent[:honest_at])
        began = loop.time()
        honest = asyncio.create_task(memory.receive(Call("honest", 0.01)))
        await asyncio.sleep(0)
        later_calls = await start_reading(memory, silent[honest_at:])
        data, lot = await honest
        assert data == b"a request"
        lot.release()
        took = loop.time() - began
        await cancel(before + later_calls)
        assert memory.bytes_in_use == 0
        return took

    return run(scene())


@pytest.mark.parametrize("honest_at", [NEW_AT_ONCE, 600, 1200])
def test_honest_call_waits_for_other_connections_not_for_their_many_calls(honest_at):
    silent = [Call(f"silent {number % 10}") for number in range(1200)]
    # Ten connections, four at a time, one second each; counted by calls it would be 300 s.
    assert answered_after(honest_at, silent) < 4


async def test_connection_that_had_its_turn_waits_for_the_others():
    memory = ReceiveBudget(BUDGET, 60.0)
    first = await start_reading(memory, [Call("busy") for _ in range(NEW_AT_ONCE + 20)])
    others = [asyncio.create_task(memory.receive(Call(f"other {number}", 0.1))) for number in range(6)]
    done, _ = await asyncio.wait(others, timeout=5)
    assert len(done) == 6
    for task in done:
        task.result()[1].release()
    assert sum(task.done() for task in first) <= NEW_AT_ONCE + 2, "only calls in the way were ended"
    await cancel(first)
    assert memory.bytes_in_use == 0


@pytest.mark.parametrize("honest", ["known", "new"])
async def test_silent_known_connections_leave_room_for_others(honest):
    memory = ReceiveBudget(BUDGET, 60.0)
    loop = asyncio.get_running_loop()
    bad = ["bad 1", "bad 2", "bad 3"]
    await make_known(memory, [*bad, "known"])
    silent = await start_reading(memory, [Call(bad[number % 3]) for number in range(250)])
    took = []
    for number in range(100):
        began = loop.time()
        _, lot = await memory.receive(Call(honest if honest == "known" else f"new {number}", 0.01))
        lot.release()
        took.append(loop.time() - began)
        if number % 10 == 0:  # to stay known, a connection must send something now and then
            await make_known(memory, bad)
        await asyncio.sleep(0.1)
    await cancel(silent)
    assert memory.bytes_in_use == 0
    assert max(took) == pytest.approx(0.01)


async def test_connection_that_becomes_known_frees_the_share_of_new_ones():
    memory = ReceiveBudget(BUDGET, 60.0)
    bad = ["bad 1", "bad 2", "bad 3"]
    took = []
    for number in range(20):
        silent = await start_reading(memory, [Call(peer) for peer in bad for _ in range(20)])
        await make_known(memory, bad)  # they fill the share of new ones, and send over another call
        began = asyncio.get_running_loop().time()
        _, lot = await memory.receive(Call(f"new {number}", 0.01))
        lot.release()
        took.append(asyncio.get_running_loop().time() - began)
        memory._known.clear()
        await cancel(silent)
    assert memory.bytes_in_use == 0
    assert max(took) < 1.1


async def test_all_calls_of_a_newly_known_connection_are_read_with_its_first():
    memory = ReceiveBudget(BUDGET, 60.0)
    began = asyncio.get_running_loop().time()
    silent = await start_reading(memory, [Call(f"silent {number % 10}") for number in range(400)])
    honest = [asyncio.create_task(memory.receive(Call("honest", 0.01))) for _ in range(20)]
    for _, lot in await asyncio.gather(*honest):
        lot.release()
    took = asyncio.get_running_loop().time() - began
    await cancel(silent)
    assert memory.bytes_in_use == 0
    assert took < 4  # not 20 turns


async def test_silent_calls_that_arrived_together_are_ended_one_by_one():
    """Every ended call lets others in: ending all at once would let such groups occupy the memory in turn."""

    memory = ReceiveBudget(BUDGET, 60.0)
    ended = []

    async def silent(peer):
        try:
            await memory.receive(Call(peer))
        except Busy:
            ended.append(asyncio.get_running_loop().time())

    peers = [f"known {number}" for number in range(16)]
    await make_known(memory, peers)
    began = asyncio.get_running_loop().time()
    tasks = [asyncio.create_task(silent(peer)) for _ in range(3) for peer in peers]
    await asyncio.sleep(7)
    await cancel(tasks)
    assert memory.bytes_in_use == 0
    ends = [when - began for when in ended]
    assert len(ends) >= 16 and ends[0] == pytest.approx(5) and ends[15] < 6.1
    assert min(later - earlier for earlier, later in itertools.pairwise(ends)) > 0.05


async def test_one_connection_gets_half_of_the_memory_and_several_get_all_of_it():
    memory = ReceiveBudget(BUDGET, 60.0)
    peers = [f"known {number}" for number in range(16)]
    await make_known(memory, peers)
    reads = await start_reading(memory, [Call(peers[0]) for _ in range(40)])
    alone = len(memory._reading)
    more = await start_reading(memory, [Call(peer) for peer in peers])
    together = len(memory._reading)
    await cancel(reads + more)
    assert memory.bytes_in_use == 0
    assert (alone, together) == (8, 16)


async def test_cancelled_waiters_hold_no_memory_and_closing_fails_the_others():
    memory = ReceiveBudget(BUDGET, 60.0)
    tasks = await start_reading(memory, [Call(f"{number % 3}") for number in range(30)])
    await cancel(tasks[10:20])
    memory.close()
    errors = await asyncio.gather(*tasks[:10], *tasks[20:], return_exceptions=True)
    assert all(isinstance(error, Unavailable) for error in errors)
    assert memory.bytes_in_use == 0
    with pytest.raises(Unavailable):
        await memory.receive(Call("late"))


async def test_closing_one_service_leaves_the_others_running():
    memory = ReceiveBudget(BUDGET, 60.0)
    court, docket = (
        [asyncio.create_task(memory.receive(Call(f"{number % 3}", 0.01), of=service)) for number in range(15)]
        for service in ("court", "docket")
    )
    await asyncio.sleep(0)
    memory.close("court")
    assert all(isinstance(error, Unavailable) for error in await asyncio.gather(*court, return_exceptions=True))
    for receiving in asyncio.as_completed(docket):
        data, lot = await receiving
        assert data == b"a request"
        lot.release()
    assert memory.bytes_in_use == 0
    with pytest.raises(Unavailable):
        await memory.receive(Call("late"), of="court")


async def test_no_call_waits_longer_than_the_limit_of_the_server():
    memory = ReceiveBudget(BUDGET, 60.0)
    tasks = await start_reading(memory, [Call("one") for _ in range(500)])
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in errors} <= {Busy, BadRequest}
    assert asyncio.get_running_loop().time() <= 121
    assert memory.bytes_in_use == 0


async def test_decoded_pictures_take_at_most_half_of_the_request_memory():
    memory = ReceiveBudget(BUDGET, 60.0)
    memory.change_pictures(10 * BUDGET)
    await make_known(memory, [f"known {number}" for number in range(16)])
    reads = await start_reading(memory, [Call(f"known {number}") for number in range(16)])
    assert len(memory._reading) == 8
    memory.change_pictures(-10 * BUDGET)
    await asyncio.sleep(0)
    assert len(memory._reading) == 16 and memory.pictures == 0
    await cancel(reads)


async def test_request_is_read_with_the_smallest_budget_despite_many_pictures():
    memory = ReceiveBudget(64 * MIB, 60.0)
    memory.change_pictures(1000 * MIB)
    (read,) = await start_reading(memory, [Call("honest", 0.01)])
    await asyncio.wait([read])
    assert read.result() is not None


async def test_request_that_announces_its_length_reserves_only_that_much():
    class Announced(Call):
        announced_bytes = 3 * MIB

    memory = ReceiveBudget(BUDGET, 60.0)
    silent = await start_reading(memory, [Announced(f"http:{number}") for number in range(NEW_AT_ONCE)])
    assert NEW_AT_ONCE * 3 * MIB <= memory.bytes_in_use < NEW_AT_ONCE * 4 * MIB
    await cancel(silent)
    assert memory.bytes_in_use == 0
