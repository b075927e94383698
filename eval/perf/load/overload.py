"""Trials at and beyond the service's capacity: full ones against a fake model server, and summary ones.

``overload``: the share of its best rate that a server keeps under four times the load it can handle, and its answers to
the remaining requests (RE-4). The best rate is measured with half as many callers again as concurrent trials. Then
requests come at four times that rate, from the real client, which retries when and as often as it is allowed to. Every
trial costs the model server the same; an answer within its timeout is goodput. Attempts are counted where the client
makes them. ``overload-summary`` is the same for trials that call no model and read the text from pictures.

``soak``: a long time at saturation, against a model server that fails occasionally, at fixed rates. Twice as many
callers as concurrent trials send their next request as soon as they are answered, each time about a new meme with a new
picture: after two aborted trials a picture would not be tried again, and refusals are not saturation. The server's
memory, handles and threads are sampled while it runs; afterwards its docket is compared with what the callers received:
every request answered with a verdict has one, every other accepted request has one recorded end, and none has two.
``MEMECOURT_PERF_SOAK_S`` sets the duration, in seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.perf.bench import Result
from eval.perf.load.known import picture
from eval.perf.reading.drawn import draw
from eval.perf.trials.trials import Speed
from eval.standin.process import Process, Resources, model_server, served
from eval.standin.replies import meme_text
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

_REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
SECONDS_VARIABLE = "MEMECOURT_PERF_SOAK_S"
FAULTS = ("503@0.01", "429:1@0.01", "slow:0.5@0.02", "reset@0.005", "cut@0.005", "garbage@0.005", "wrong_schema@0.005")
INJECTED = ("MODEL_", "REPLY_", "OUTPUT_", "DEADLINE")
"""Prefixes of the reasons with which such faults can end a trial."""
_SAMPLE_S = 2.0


@contextmanager
def _served_full(speed: Speed, trials: int, *options: object, faults: Sequence[str] = ()) -> Iterator[Process]:
    """Runs a server with that many concurrent full trials; its model server works on twice as many calls."""
    fails = [word for fault in faults for word in ("--fault", fault)]
    with (
        TemporaryDirectory(prefix="memecourt-full-") as directory,
        # Two slots for each trial, whose two sides are examined concurrently.
        model_server("--play", *speed.flags, "--capacity", str(2 * trials), *fails) as models,
        served(
            Path(directory) / "home",
            *("--llm-url", f"{models}/v1", "--model", "stand-in", "--procedure", "full"),
            *("--concurrent-trials", trials, *options),
        ) as server,
    ):
        yield server


@dataclass(slots=True)
class _Callers:
    """Callers of a server, and the answers they received.

    Attributes:
        timeout_s: Seconds that a caller waits for a verdict.
        began: Start of the load, in seconds of the monotonic clock; set by each load.
        answered: Time of each verdict, in seconds since the start.
        errors: Requests that ended in an error, by status.
        refused: Requests that were refused for lack of capacity.
        with_delay: Number of refusals with a retry delay.
    """

    address: str
    timeout_s: float
    began: float = field(default_factory=time.monotonic)
    answered: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    calls: int = 0
    refused: int = 0
    with_delay: int = 0
    request: Callable[[int], wire.JudgeRequest] = field(
        default_factory=lambda: partial(_about, [picture(number) for number in range(8)])
    )

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
        request = self.request(self.calls)
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
    """Runs the benchmark.

    Args:
        waiting: Callers that may wait.
        times: Factor of the offered rate over the best.
        timeout_s: Seconds that a caller waits.
    """
    with _served_full(Speed(call_s=0.05, output_token_s=0.001), trials, "--waiting-trials", waiting) as server:
        return _overloaded(lambda: _Callers(server.address, timeout_s), trials, seconds, times)


def overload_summary(
    *, trials: int = 8, waiting: int = 16, seconds: float = 60.0, times: float = 4.0, timeout_s: float = 30.0
) -> Result:
    """Runs the benchmark: like :func:`overload`, with summary trials that read the text from generated memes."""
    files = [draw(group, number).file for group in ("outlined", "two_blocks", "jpeg") for number in range(12)]

    def about(number: int) -> wire.JudgeRequest:
        return judge_request(files[number % len(files)])

    with (
        TemporaryDirectory(prefix="memecourt-summary-") as directory,
        served(
            Path(directory) / "home",
            # The same 36 memes come repeatedly: with reuse, hardly any of them would need a trial.
            *("--reuse", "off", "--concurrent-trials", trials, "--waiting-trials", waiting),
        ) as server,
    ):
        return _overloaded(lambda: _Callers(server.address, timeout_s, request=about), trials, seconds, times)


def _overloaded(load: Callable[[], _Callers], trials: int, seconds: float, times: float) -> Result:
    """Measures the best rate of a server with that many concurrent trials, and its rate at a multiple of that load."""
    # A few more callers than trial slots, so that one is always waiting when a trial ends.
    callers = trials + trials // 2
    asyncio.run(load().again_and_again(3.0, callers))  # warms up
    best, over = load(), load()
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


@dataclass(slots=True)
class _Answers:
    """Answers to the callers of the soak, by request."""

    verdicts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def soak(*, seconds: float = 1200.0, trials: int = 16) -> Result:
    """Runs the benchmark.

    Args:
        seconds: Duration, unless ``MEMECOURT_PERF_SOAK_S`` sets another.

    Raises:
        RuntimeError: The server did not start, or exited by itself.
    """
    seconds = float(os.environ.get(SECONDS_VARIABLE) or seconds)
    with _served_full(Speed(call_s=0.02, output_token_s=0.0005), trials, faults=FAULTS) as server:
        answers, server_samples = asyncio.run(_soaked(server, seconds, callers=2 * trials))
        # Within the block, because the docket is removed together with the server.
        rows = _ends(server.docket)
    return Result(
        figures=_figures(answers, server_samples, rows, seconds),
        goals={
            "memory_over_early": "<= 1.1",
            "handles_over_early": "<= 1.1",
            "threads_over_early": "<= 1.1",
            "errors_not_injected": "== 0",
            "verdicts_missing": "== 0",
            "ends_missing": "== 0",
            "ends_twice": "== 0",
        },
    )


def _figures(
    answers: _Answers, server_samples: Sequence[Resources], rows: Mapping[str, tuple[int, int, str]], seconds: float
) -> dict[str, float]:
    # During the first fifth, caches and threads grow to their final size.
    early = server_samples[len(server_samples) // 5 : 2 * len(server_samples) // 5]
    late = server_samples[-len(early) :]

    def grown(what: str) -> float:
        before, after = (statistics.mean(float(getattr(sample, what)) for sample in looked) for looked in (early, late))
        return after / before

    other = Counter(reason for reason in answers.errors.values() if not reason.startswith(INJECTED))
    if other:
        print(f"errors that were not injected: {dict(other)}")
    return {
        "memory_over_early": grown("memory"),
        "handles_over_early": grown("handles"),
        "threads_over_early": grown("threads"),
        "errors_not_injected": sum(other.values()),
        "verdicts_missing": sum(
            name not in rows or rows[name][0] != 1 or rows[name][2] != "DECIDED" for name in answers.verdicts
        ),
        # A request that was refused before its trial was opened has no recorded end.
        "ends_missing": sum(
            state not in ("DECIDED", "FAILED") and not (state == "" and name in answers.errors)
            for name, (_, _, state) in rows.items()
        ),
        "ends_twice": sum(verdicts > 1 for verdicts, _, _ in rows.values()),
        "verdicts": len(answers.verdicts),
        "errors": len(answers.errors),
        "in_docket": len(rows),
        "trials_a_minute": 60 * len(answers.verdicts) / seconds,
        "memory_mib": late[-1].memory,
        "handles": late[-1].handles,
        "threads": late[-1].threads,
    }


async def _soaked(server: Process, seconds: float, *, callers: int) -> tuple[_Answers, list[Resources]]:
    answers, server_samples, numbers = _Answers(), list[Resources](), itertools.count()
    end = time.monotonic() + seconds

    async def caller(client: AsyncClient) -> None:
        while time.monotonic() < end:
            name, number = uuid.uuid4().hex, next(numbers)
            # Two to four rounds, so that trials do not end in lockstep.
            request = judge_request(picture(number), text=meme_text(name, 2 + number % 3), request_id=name)
            try:
                answers.verdicts[name] = (await client.ask(request, timeout=120)).verdict_id
            except JudgeError as error:
                answers.errors[name] = error.reason or error.code.name

    async def sample_usage() -> None:
        while time.monotonic() < end:
            server_samples.append(server.resources())
            # Twenty samples at least, however short the soak.
            await asyncio.sleep(min(_SAMPLE_S, seconds / 20))

    # No retries: an error that a second attempt fixes would not be counted.
    async with AsyncClient(server.address, retries=Retries(attempts=1)) as client:
        await asyncio.gather(sample_usage(), *(caller(client) for _ in range(callers)))
    return answers, server_samples


def _ends(docket: Path) -> dict[str, tuple[int, int, str]]:
    """Returns verdicts, failures and state of the trial claimed for each accepted request; empty state if no trial."""
    # Read-only: the server still has the docket open, and this check must not change it.
    with closing(sqlite3.connect(f"file:{docket}?mode=ro", uri=True)) as file:
        rows = file.execute(
            "SELECT r.request_id, "
            "(SELECT COUNT(*) FROM entries e WHERE e.trial_id = r.trial_id AND e.kind = 'VerdictGiven'), "
            "(SELECT COUNT(*) FROM entries e WHERE e.trial_id = r.trial_id AND e.kind = 'TrialFailed'), "
            "COALESCE((SELECT t.state FROM trials t WHERE t.trial_id = r.trial_id), '') FROM requests r "
            "WHERE r.namespace NOT LIKE '\\0%'"  # leases of memes, which belong to no request
        )
        return {name: (verdicts, failures, state) for name, verdicts, failures, state in rows}
