"""The service compared with a bare echo and with its own memory earlier, and the cost of a call of a model.

**Answers.** The overhead of the service over gRPC when the verdict is ready. 64 clients, each over its own connection,
request verdicts on memes that the server knows, and then answers of the same size from a bare ``grpc.aio`` echo, in
turns: the client process is the same for both, so the cost of the clients is on both sides.

**Growth.** Memory, open files and threads of a server after 100,000 requests over those after 10,000.
Most are known memes under new ids, one in fifty is a new meme: caches are full by the first reading, so later
requests should fit into the existing memory. The server's own process is measured; its child processes hold no requests
between two calls.

**Calls of a model.** See :func:`eval.perf.trials.call_cpu`.

**Overload**, a benchmark of its own: the share of its best rate that a server keeps under four times the load it can
handle, and its answers to the remaining requests (RE-4). The best rate is measured with half as many callers again as
concurrent trials. Then requests come at four times that rate, from the real client, which retries when and as often
as it is allowed to. Every trial costs the model server the same; an answer within its timeout is goodput. Attempts
are counted where the client makes them.
"""

import asyncio
import io
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import psutil

from eval.perf.bench import Result, in_turns, medians
from eval.perf.clients import JUDGE, Job, LoadOutcome, ask, echo, evenly
from eval.perf.trials import Speed, call_cpu
from eval.standin.process import Process, model_server, served
from eval.standin.replies import meme_text
from eval.synthetic.scenes import SCENES, draw_meme
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

_NEW = 50
"""One in so many requests is about a meme that is new."""


def service(
    *,
    memes: int = 64,
    clients: int = 64,
    seconds: float = 8.0,
    turns: int = 3,
    early: int = 10_000,
    late: int = 100_000,
    calls: int = 300,
    trials: int = 16,
) -> Result:
    """Runs the benchmark. Raises RuntimeError: A server did not start, or a request was not answered."""
    answers = _answers(memes=memes, clients=clients, seconds=seconds, turns=turns)
    return answers | _growth(early, late, memes) | call_cpu(calls=calls, trials=trials)


def _answers(*, memes: int, clients: int, seconds: float, turns: int) -> Result:
    """Compares the rate and latency of answers with those of an echo.

    Raises RuntimeError: The server did not start, or a request was not answered.
    """
    with (
        served_known(memes) as (server, requests, answer_bytes),
        # Answers have the same size as the service's.
        echo(answer_bytes) as (address, _),
    ):
        job = Job(server.address, requests, clients=clients, seconds=seconds)
        rates = medians(
            _in_turns(job, address, turns),
            of_echo=lambda ours, echo: ours.rate / echo.rate,
            requests_s=lambda ours, _: ours.rate,
        )
        # At half of the server's best rate: at full rate, latency would only be queueing time.
        latencies = medians(
            _in_turns(replace(job, rate=rates["requests_s"] / 2), address, turns),
            added_p99_over_echo=lambda ours, echo: (ours.p99_ms - echo.p99_ms) / echo.p99_ms,
            p99_ms=lambda ours, _: ours.p99_ms,
        )
    return Result({**rates, **latencies}, goals={"of_echo": ">= 0.5", "added_p99_over_echo": "<= 3"})


def _in_turns(job: Job, echo_address: str, turns: int) -> list[tuple[LoadOutcome, ...]]:
    jobs = [job, replace(job, address=echo_address)]
    # Without a separate warm-up turn: each job warms up by itself.
    return in_turns([partial(_run_job, job) for job in jobs], range(turns), warm_up=False)


def _run_job(job: Job, _turn: int) -> LoadOutcome:
    return ask(job).require_all_answered()


def _growth(early: int, late: int, memes: int) -> Result:
    with served_known(memes) as (server, requests, _):
        first = _after(server, requests, early)
        last = _after(server, requests, late - early)
    growth = {f"{name}_late_over_early": last[name] / first[name] for name in first}
    return Result({**growth, "memory_late_mib": last["memory"]}, goals=dict.fromkeys(growth, "<= 1.1"))


def _after(server: Process, requests: list[str], count: int) -> dict[str, float]:
    """Returns the server's resources after ``count`` more requests, once the callers have left."""
    new = count // _NEW
    # Without warm-up, and with a generous time limit: the number of requests has to be exact.
    for number, text in ((count - new, ""), (new, "A new text with number")):
        # Skipped when 0: a `most` of 0 would mean no limit.
        if number:
            job = Job(server.address, requests, seconds=36_000.0, warm_s=0.0, most=number, named=True, text=text)
            ask(job).require_all_answered()
    return _settled(psutil.Process(server.pid))


@contextmanager
def served_known(memes: int) -> Iterator[tuple[Process, list[str], int]]:
    """Runs a server that has already tried some memes; yields it, their request files, and an answer's size."""
    with TemporaryDirectory(prefix="memecourt-known-") as folder:
        requests = _known_memes(Path(folder), memes)
        with served(Path(folder) / "home") as server:
            yield server, requests, _first_answers(server, requests)


def _known_memes(place: Path, count: int) -> list[str]:
    """Writes files with one request each, whose text is given."""
    paths = [place / f"request-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        request = wire.JudgeRequest(image=picture(number), text=f"Meme number {number} of those that are known")
        path.write_bytes(request.SerializeToString())
    return [str(path) for path in paths]


def _first_answers(server: Process, requests: list[str]) -> int:
    """Has all memes tried, so that they are known; returns the size of the last answer when its verdict is reused."""
    with grpc.insecure_channel(server.address) as channel:
        judge: Any = channel.unary_unary(JUDGE, None, None)
        for name in (*requests, requests[-1]):
            answer = judge(Path(name).read_bytes(), timeout=120)
    # Otherwise the load would measure trials, and not the path of a reused verdict.
    if not wire.JudgeResponse.FromString(answer).HasField("reused_from"):
        raise RuntimeError("a meme that was tried before has been tried again")
    return len(answer)


def picture(number: int, *, size: tuple[int, int] = (640, 480)) -> bytes:
    """Returns a unique generated meme as JPEG; some 30 to 60 KB at the default size."""
    file = io.BytesIO()
    drawn = draw_meme(sorted(SCENES)[number % len(SCENES)], f"Number {number}\nis like no other", seed=number)
    drawn.resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()


def _settled(process: psutil.Process, *, most_s: float = 10.0) -> dict[str, float]:
    """Returns MiB, open files and threads of a process, without its children, once it idles or after ``most_s``."""
    end = time.monotonic() + most_s
    # Not zero: even an idle server runs its heartbeat and timers.
    while time.monotonic() < end and process.cpu_percent(interval=1.0) >= 10:
        pass
    memory = process.memory_info().rss / 2**20
    return {"memory": memory, "handles": process.num_fds(), "threads": process.num_threads()}


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
            async for _ in evenly(rate, seconds):
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
