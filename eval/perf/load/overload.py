"""Four times what a server can do: how much of its best it still does, and what it says to the rest (RE-4).

The best is what as many callers get as there may be trials at once. Then requests come four times as often, by the real
client, which asks again when and as often as it may. Every trial costs the model server the same; what is answered in
its time is goodput. Attempts are counted where the client makes them.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.perf.bench import Result
from eval.perf.load.process import picture, served
from eval.perf.model_server.replies import meme_text
from eval.perf.trials.trials import Speed
from eval.perf.trials.trials import server as stand_in
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

SPEED = Speed(call_s=0.05, output_token_s=0.001)
_REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        trials: At once.
        waiting: Callers that may wait.
        seconds: At each load.
        times: The best, as often.
        timeout_s: Of a caller.
    """

    trials: int = 8
    waiting: int = 16
    seconds: float = 60.0
    times: float = 4.0
    timeout_s: float = 30.0


@dataclass(slots=True)
class _Told:
    answered: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    calls: int = 0
    refused: int = 0
    with_delay: int = 0

    def attempt(self) -> Sequence[tuple[str, str]]:
        self.attempts += 1
        return ()


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark."""
    size = size or Scale()
    with (
        TemporaryDirectory(prefix="memecourt-overload-") as directory,
        stand_in("--play", *SPEED.flags, "--capacity", str(2 * size.trials)) as models,
    ):
        options = ("--llm-url", f"{models}/v1", "--model", "stand-in", "--procedure", "full")
        limits = ("--concurrent-trials", size.trials, "--waiting-trials", size.waiting)
        with served(Path(directory) / "home", *options, *limits) as server:
            figures = asyncio.run(_measured(server.address, size))
    figures["loadavg"] = round(os.getloadavg()[0], 2)
    return Result(
        name="overload",
        figures=figures,
        goals={"goodput_over_peak": ">= 0.9", "refusals_with_delay": "== 1", "attempts_a_call": "<= 1.1"},
    )


async def _measured(address: str, size: Scale) -> dict[str, float]:
    await _closed(address, size, 3.0)  # warms up
    best = await _closed(address, size, size.seconds)
    peak = len(best.answered) / size.seconds
    over = await _open(address, size, size.times * peak)
    # The first seconds fill the queue, and are as good as ever: what counts is the time after that.
    begin = size.seconds / 4
    goodput = sum(begin <= at < size.seconds for at in over.answered) / (size.seconds - begin)
    # The client's spare is for those who ask seldom: it is there once, however long the load lasts.
    attempts = max(0.0, over.attempts - Retries().spare)
    return {
        "goodput_over_peak": round(goodput / peak, 3),
        "refusals_with_delay": round(over.with_delay / over.refused, 4) if over.refused else 0.0,
        "attempts_a_call": round(attempts / over.calls, 3),
        "peak_s": round(peak, 2),
        "goodput_s": round(goodput, 2),
        "calls": over.calls,
        "answered": len(over.answered),
        "refused": over.refused,
        "other_errors": sum(over.errors.values()) - over.refused,
    }


async def _one(client: AsyncClient, told: _Told, drawn: Sequence[bytes], size: Scale, began: float) -> None:
    name = uuid.uuid4().hex
    request: wire.JudgeRequest = judge_request(drawn[told.calls % len(drawn)], text=meme_text(name, 2))
    told.calls += 1
    try:
        await client.ask(request, timeout=size.timeout_s)
        told.answered.append(time.monotonic() - began)
    except JudgeError as error:
        told.errors[error.code.name] += 1
        if error.code.name in _REFUSED:
            told.refused += 1
            told.with_delay += error.retry_after is not None


async def _closed(address: str, size: Scale, seconds: float) -> _Told:
    told, drawn, began = _Told(), [picture(n) for n in range(8)], time.monotonic()

    async def caller(client: AsyncClient) -> None:
        while time.monotonic() - began < seconds:
            await _one(client, told, drawn, size, began)

    async with AsyncClient(address) as client:
        # A few more than there are turns: one is always waiting when another ends.
        await asyncio.gather(*(caller(client) for _ in range(size.trials + size.trials // 2)))
    told.answered = [at for at in told.answered if at <= seconds]
    return told


async def _open(address: str, size: Scale, rate: float) -> _Told:
    told, drawn, began = _Told(), [picture(n) for n in range(8)], time.monotonic()
    async with AsyncClient(address, metadata=told.attempt) as client, asyncio.TaskGroup() as group:
        for number in range(round(rate * size.seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(_one(client, told, drawn, size, began))
    return told
