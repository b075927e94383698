"""How near a trial comes to the shortest time that its calls allow.

The floor is ``D + R (q + a) + s + J`` with the time that the server, by its own settings and its own count of tokens,
worked on each of these calls; what the wall clock shows beyond it is ours: building prompts, the client, the wire,
reading replies, keeping events, and whatever waits that need not wait. Searching precedents and reading their pictures
take a while here, as they do, and must not show.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from eval.perf.bench import Result
from eval.perf.trials.trials import KnownFinder, Speed, bar, case, server, times, unwatched

SPEED = Speed(call_s=0.05, prompt_token_s=0.00002, output_token_s=0.006)
_ROUNDS = 4
_TRIALS = 7


def measure() -> Result:
    """Runs the benchmark."""
    with server("--play", *SPEED.flags) as address:
        ratios, floors, walls = asyncio.run(_trials(address))
    return Result(
        name="trial-floor",
        figures={
            "wall_over_floor": round(statistics.median(ratios), 4),
            "best": round(min(ratios), 4),
            "worst": round(max(ratios), 4),
            "floor_s": round(statistics.median(floors), 3),
            "wall_s": round(statistics.median(walls), 3),
            "rounds": _ROUNDS,
        },
        goals={"wall_over_floor": "<= 1.05"},
    )


async def _trials(address: str) -> tuple[list[float], list[float], list[float]]:
    walls, floors = [], []
    async with bar(address, finder=KnownFinder(find_s=0.1, pictures_s=0.05)) as it:
        await it.court.hear(case("warming up", 2), unwatched)
        for number in range(_TRIALS):
            asked = case(f"number {number}", _ROUNDS)
            began = time.perf_counter()
            record = await it.court.hear(asked, unwatched)
            walls.append(time.perf_counter() - began)
            needed = times(record, SPEED)
            assert {side.rounds for side in needed.sides} == {_ROUNDS}, "the stand-in did not keep to its part"
            floors.append(needed.floor)
    return [wall / floor for wall, floor in zip(walls, floors, strict=True)], floors, walls
