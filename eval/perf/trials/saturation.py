"""How much of a busy server's capacity becomes verdicts: 64 trials at once before a server that works on 16 calls.

A trial needs so many seconds of the server's work: that of its description, of the rounds that count, of the ruling and
of the score. Capacity times wall time is what the server could have worked. What is missing from 1 went to calls that
turned out to be superfluous, to a server that waited for us, and to the end, when trials run out and it is no longer
full. ``always_ahead`` is the same with sides that ask ahead whether there is room or not.
"""

from __future__ import annotations

import asyncio
import time

from eval.perf.bench import Result
from eval.perf.trials.trials import Speed, bar, case, server, times, unwatched

SPEED = Speed(call_s=0.04, prompt_token_s=0.00002, output_token_s=0.004)
CAPACITY = 16
_TRIALS = 64
_ROUNDS = (2, 3, 4, 5, 6)


def measure() -> Result:
    """Runs the benchmark."""
    with server("--play", *SPEED.flags, "--capacity", str(CAPACITY)) as address:
        needed, wall = asyncio.run(_all_at_once(address, "with room", CAPACITY))
    with server("--play", *SPEED.flags, "--capacity", str(CAPACITY)) as address:
        blindly, wall_blindly = asyncio.run(_all_at_once(address, "always", 10**9))
    return Result(
        name="saturation",
        figures={
            "of_capacity": round(share(needed, wall), 4),
            "always_ahead": round(share(blindly, wall_blindly), 4),
            "trials_a_minute": round(60 * _TRIALS / wall, 1),
            "capacity_a_minute": round(60 * _TRIALS * CAPACITY / needed, 1),
            "wall_s": round(wall, 2),
        },
        goals={"of_capacity": ">= 0.95"},
    )


def share(needed: float, wall: float, capacity: int = CAPACITY) -> float:
    """Of what the server could have worked, what trials needed."""
    return needed / (capacity * wall)


async def _all_at_once(address: str, name: str, concurrency: int) -> tuple[float, float]:
    """Seconds of the server's work that the trials needed, and seconds that went by.

    Args:
        address: Of the server.
        name: Of the memes.
        concurrency: Calls that the court takes the server to work on at once.
    """
    async with bar(address, concurrency=concurrency) as it:
        await it.court.hear(case(f"warming up {name}", 2), unwatched)
        cases = [case(f"{name} {number}", _ROUNDS[number % len(_ROUNDS)]) for number in range(_TRIALS)]
        began = time.perf_counter()
        records = await asyncio.gather(*(it.court.hear(each, unwatched) for each in cases))
        wall = time.perf_counter() - began
    return sum(times(record, SPEED).needed for record in records), wall
