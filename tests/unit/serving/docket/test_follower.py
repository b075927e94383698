"""Catching up with the log: who shares a read of the docket with whom."""

import asyncio

import pytest

from serving.docket.store.log_queries import LogFollower


class Source:
    """A docket whose reads wait until they are let through, and say which one they are."""

    def __init__(self, **options):
        self.reads = 0
        self.open = asyncio.Event()
        self.error = None
        self.follower = LogFollower(self.read, **options)

    async def read(self):
        self.reads += 1
        number = self.reads
        await self.open.wait()
        if self.error:
            raise self.error
        return number


async def test_concurrent_callers_share_a_read_and_later_ones_share_the_next():
    source = Source()
    early = [asyncio.create_task(source.follower.get()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the first read has begun
    late = [asyncio.create_task(source.follower.get()) for _ in range(3)]
    await asyncio.sleep(0)
    source.open.set()
    assert (await asyncio.gather(*early), await asyncio.gather(*late), await source.follower.get()) == (
        [1] * 3,
        [2] * 3,
        3,
    )


async def test_read_is_good_enough_while_fresh_and_until_it_is_forgotten():
    source = Source(fresh_s=60)
    source.open.set()
    found = [await source.follower.get(), await source.follower.get()]
    source.follower.forget()
    assert [*found, await source.follower.get()] == [1, 1, 2]


async def test_error_reaches_its_callers_and_the_next_call_reads_again():
    source = Source(fresh_s=60)
    source.open.set()
    source.error = ValueError("away")
    for _ in range(2):
        with pytest.raises(ValueError, match="away"):
            await source.follower.get()
    source.error = None
    assert await source.follower.get() == 3


async def test_impatient_and_cancelled_callers_leave_the_read_to_the_others():
    source = Source()
    waiting = asyncio.create_task(source.follower.get())
    cancelled = asyncio.create_task(source.follower.get())
    complete = await source.follower.catch_up(0.01)
    cancelled.cancel()
    source.open.set()
    assert (complete, await waiting, await source.follower.catch_up(60)) == (False, 1, True)
