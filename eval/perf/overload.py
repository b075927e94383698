"""Full trials beyond the service's capacity, against a fake model server.

``overload``: the share of its best rate that a server keeps under four times the load it can handle, and its answers to
the remaining requests (RE-4). The best rate is measured with half as many callers again as concurrent trials. Then
requests come at four times that rate, from the real client, which retries when and as often as it is allowed to. Every
trial costs the model server the same; an answer within its timeout is goodput. Attempts are counted where the client
makes them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.perf.bench import Result
from eval.perf.service import picture
from eval.perf.trials import Speed
from eval.standin.process import Process, model_server, served
from eval.standin.replies import meme_text
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

_REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


@contextmanager
def _served_full(speed: Speed, trials: int, *options: object) -> Iterator[Process]:
    """Runs a server with that many concurrent full trials; its model server works on twice as many calls."""
    with (
        TemporaryDirectory(prefix="memecourt-full-") as directory,
        # Two slots for each trial, whose two sides are examined concurrently.
        model_server("--play", *speed.flags, "--capacity", str(2 * trials)) as models,
        served(
            Path(directory) / "home",
            *("--llm-url", f"{models}/v1", "--model", "stand-in", "--procedure", "full"),
            *("--concurrent-trials", trials, *options),
        ) as server,
    ):
        yield server


@dataclass(slots=True)
class _Callers:
    """Callers of a server, and the answers they received."""

    address: str
    timeout_s: float
    began: float = field(default_factory=time.monotonic)
    """Start of the load, in seconds of the monotonic clock; set by each load."""
    answered: list[float] = field(default_factory=list)
    """Time of each verdict, in seconds since the start."""
    errors: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    calls: int = 0
    refused: int = 0
    with_delay: int = 0
    pictures: Sequence[bytes] = field(default_factory=lambda: [picture(number) for number in range(8)])

    async def again_and_again(self, seconds: float, callers: int) -> None:
        """Runs that many callers in a closed loop."""

        async def caller(client: AsyncClient) -> None:
            while time.monotonic() - self.began < seconds:
                await self._one(client)

        self.began = time.monotonic()
        async with AsyncClient(self.address) as client:
            await asyncio.gather(*(caller(client) for _ in range(callers)))
        # Later answers do not count towards the rate: after this time no new trials start.
        self.answered = [at for at in self.answered if at <= seconds]

    async def at_rate(self, seconds: float, rate: float) -> None:
        """Sends that many requests a second, regardless of the outcome of those before."""
        self.began = time.monotonic()
        async with AsyncClient(self.address, metadata=self._attempt) as client, asyncio.TaskGroup() as group:
            for number in range(round(rate * seconds)):
                # A late request is sent at once, so that the rate is kept.
                await asyncio.sleep(max(0.0, self.began + number / rate - time.monotonic()))
                group.create_task(self._one(client))

    def _attempt(self) -> Sequence[tuple[str, str]]:
        # The client calls this before each attempt, retries included.
        self.attempts += 1
        return ()

    async def _one(self, client: AsyncClient) -> None:
        request = _about(self.pictures, self.calls)
        self.calls += 1
        try:
            await client.ask(request, timeout=self.timeout_s)
            self.answered.append(time.monotonic() - self.began)
        except JudgeError as error:
            self.errors[error.code.name] += 1
            if error.code.name in _REFUSED:
                self.refused += 1
                # RE-4: each refusal says when to retry.
                self.with_delay += error.retry_after is not None


def _about(pictures: Sequence[bytes], number: int) -> wire.JudgeRequest:
    """Builds a request about one of the pictures, with a unique text."""
    return judge_request(pictures[number % len(pictures)], text=meme_text(uuid.uuid4().hex, 2))


def overload(
    *, trials: int = 8, waiting: int = 16, seconds: float = 60.0, times: float = 4.0, timeout_s: float = 30.0
) -> Result:
    """Runs the benchmark."""
    with _served_full(Speed(call_s=0.05, output_token_s=0.001), trials, "--waiting-trials", waiting) as server:
        return _overloaded(server.address, timeout_s, trials, seconds, times=times)


def _overloaded(address: str, timeout_s: float, trials: int, seconds: float, times: float) -> Result:
    """Measures the best rate of a server with that many concurrent trials, and its rate at a multiple of that load."""
    # A few more callers than trial slots, so that one is always waiting when a trial ends.
    callers = trials + trials // 2
    warm, best, over = (_Callers(address, timeout_s) for _ in range(3))
    asyncio.run(warm.again_and_again(3.0, callers))
    asyncio.run(best.again_and_again(seconds, callers))
    peak = len(best.answered) / seconds
    asyncio.run(over.at_rate(seconds, times * peak))
    # The first seconds fill the queue and are as good as ever: only the time after that counts.
    begin = seconds / 4
    goodput = sum(begin <= at < seconds for at in over.answered) / (seconds - begin)
    # The client's spare retries are for occasional callers: they are granted once, however long the load lasts.
    attempts = max(0.0, over.attempts - Retries().spare)
    return Result(
        figures={
            "goodput_over_peak": goodput / peak,
            # Without a refusal there was no overload: 0 misses the goal, so that this is noticed.
            "refusals_with_delay": over.with_delay / over.refused if over.refused else 0.0,
            "attempts_a_call": attempts / over.calls,
            "peak_s": peak,
            "goodput_s": goodput,
            "calls": over.calls,
            "answered": len(over.answered),
            "refused": over.refused,
            "other_errors": sum(over.errors.values()) - over.refused,
        },
        goals={"goodput_over_peak": ">= 0.9", "refusals_with_delay": "== 1", "attempts_a_call": "<= 1.1"},
    )
