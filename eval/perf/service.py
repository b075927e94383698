"""The service compared with a bare echo and with its own memory earlier, and the cost of a call of a model.

**Answers.** The overhead of the service over gRPC when the verdict is ready. 64 clients, each over its own connection,
request verdicts on memes that the server knows, and then answers of the same size from a bare ``grpc.aio`` echo, in
turns: the clients are this process in both, so their cost is on both sides.

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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import psutil

from eval.perf.bench import Result, in_turns, medians
from eval.perf.clients import LoadOutcome, closed_loop, echo, load, open_loop, with_field
from eval.perf.trials import Speed, call_cpu
from eval.standin.process import Process, model_server, served
from eval.standin.replies import meme_text
from eval.synthetic.scenes import SCENES, draw_meme
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub

_NEW = 50
"""One in so many requests is about a meme that is new."""
_REQUEST_ID, _TEXT = (wire.JudgeRequest.DESCRIPTOR.fields_by_name[name].number for name in ("request_id", "text"))


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
    """Runs the benchmark. Fails if a server does not start, or a request is not answered."""
    answers = _answers(memes=memes, clients=clients, seconds=seconds, turns=turns)
    with served_known(memes) as (server, requests, _):
        first = _after(server, requests, early)
        last = _after(server, requests, late - early)
    growth = {f"{name}_late_over_early": last[name] / first[name] for name in first}
    grown = Result(growth, goals=dict.fromkeys(growth, "<= 1.1"))
    return answers | grown | call_cpu(calls=calls, trials=trials)


def _answers(*, memes: int, clients: int, seconds: float, turns: int) -> Result:
    """Compares the rate and latency of answers with those of an echo."""
    # Answers of the echo have the same size as the service's.
    with served_known(memes) as (server, requests, answer_bytes), echo(answer_bytes) as echo_address:

        def loaded(address: str, rate: float, _turn: int) -> LoadOutcome:
            def request(number: int) -> bytes:
                return requests[number % memes]

            return asyncio.run(load(address, request, clients=clients, seconds=seconds, rate=rate))

        def turn_about(rate: float) -> list[tuple[LoadOutcome, ...]]:
            ways = [partial(loaded, address, rate) for address in (server.address, echo_address)]
            # Without a separate warm-up turn: each load warms up by itself.
            return in_turns(ways, range(turns), warm_up=False)

        rates = medians(turn_about(0), of_echo=lambda ours, echo: ours.rate / echo.rate, ours=lambda ours, _: ours.rate)
        # At half of the server's best rate: at full rate, latency would only be queueing time.
        latencies = medians(
            turn_about(rates.pop("ours") / 2),
            added_p99_over_echo=lambda ours, echo: (ours.p99_ms - echo.p99_ms) / echo.p99_ms,
        )
    return Result(rates | latencies, goals={"of_echo": ">= 0.5", "added_p99_over_echo": "<= 3"})


def _after(server: Process, requests: Sequence[bytes], count: int) -> dict[str, float]:
    """Returns the server's resources after ``count`` more requests, once the callers have left."""
    # An id that was sent before would get its stored verdict from the docket.
    run = uuid.uuid4().hex[:16]

    def request(number: int) -> bytes:
        # Protobuf fields may come in any order, so these can be appended to the others.
        message = requests[number % len(requests)] + with_field(_REQUEST_ID, f"{run}-{number}".encode())
        return message if number % _NEW else message + with_field(_TEXT, f"A new text: {run}-{number}".encode())

    # Without warm-up, and with a generous time limit: the number of requests has to be exact.
    asyncio.run(load(server.address, request, seconds=36_000.0, warm_s=0.0, most=count))
    return _settled(psutil.Process(server.pid))


@contextmanager
def served_known(memes: int) -> Iterator[tuple[Process, list[bytes], int]]:
    """Runs a server that has already tried some memes; yields it, their requests, and an answer's size."""
    requests = [
        wire.JudgeRequest(image=picture(number), text=f"Meme number {number} of those that are known")
        for number in range(memes)
    ]
    with TemporaryDirectory(prefix="memecourt-known-") as folder, served(Path(folder)) as server:
        with grpc.insecure_channel(server.address) as channel:
            for request in (*requests, requests[-1]):
                answer = CourtStub(channel).Judge(request, timeout=120)
        # Otherwise the load would measure trials, and not the path of a reused verdict.
        if not answer.HasField("reused_from"):
            raise RuntimeError("a meme that was tried before has been tried again")
        yield server, [request.SerializeToString() for request in requests], answer.ByteSize()


def picture(number: int, *, size: tuple[int, int] = (640, 480)) -> bytes:
    """Returns a unique generated meme as JPEG; some 30 to 60 KB at the default size."""
    file = io.BytesIO()
    drawn = draw_meme(sorted(SCENES)[number % len(SCENES)], f"Number {number}\nis like no other", seed=number)
    drawn.resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()


def _settled(process: psutil.Process, *, most_s: float = 10.0) -> dict[str, float]:
    """Returns bytes, open files and threads of a process, without its children, once it idles or after ``most_s``."""
    end = time.monotonic() + most_s
    # Not zero: even an idle server runs its heartbeat and timers.
    while time.monotonic() < end and process.cpu_percent(interval=1.0) >= 10:
        pass
    return {"memory": process.memory_info().rss, "handles": process.num_fds(), "threads": process.num_threads()}


_REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


def overload(
    *, trials: int = 8, waiting: int = 16, seconds: float = 60.0, times: float = 4.0, timeout_s: float = 30.0
) -> Result:
    """Runs the benchmark."""
    speed = Speed(call_s=0.05, output_token_s=0.001)
    with (
        TemporaryDirectory(prefix="memecourt-full-") as home,
        # Two slots for each trial, whose two sides are examined concurrently.
        model_server("--play", *speed.flags, "--capacity", str(2 * trials)) as models,
        served(
            Path(home),
            *("--llm-url", f"{models}/v1", "--model", "stand-in", "--procedure", "full"),
            *("--concurrent-trials", trials, "--waiting-trials", waiting),
        ) as server,
    ):
        return _overloaded(server.address, timeout_s, trials, seconds, times=times)


class _Callers:
    """Callers of a server in one load, and the answers they received."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._pictures = [picture(number) for number in range(8)]
        self._began = time.monotonic()
        self._answered: list[float] = []
        self.attempts = self.calls = self.refused = self.with_delay = 0

    async def run(self, address: str, loop: Callable[[Callable[..., Any]], Coroutine[Any, Any, None]]) -> None:
        """Asks in a loop."""
        self._began = time.monotonic()
        async with AsyncClient(address, metadata=self._attempt) as client:
            await loop(lambda *_: self._one(client))

    def rate(self, begin: float, end: float) -> float:
        """Returns the verdicts a second in a part of the load, in seconds from its start."""
        return sum(begin <= at < end for at in self._answered) / (end - begin)

    def _attempt(self) -> Sequence[tuple[str, str]]:
        # The client calls this before each attempt, retries included.
        self.attempts += 1
        return ()

    async def _one(self, client: AsyncClient) -> None:
        shown = self._pictures[self.calls % len(self._pictures)]
        self.calls += 1
        try:
            # Each text is another one, so that no verdict is reused.
            await client.ask(judge_request(shown, text=meme_text(uuid.uuid4().hex, 2)), timeout=self._timeout_s)
            self._answered.append(time.monotonic() - self._began)
        except JudgeError as error:
            if error.code.name in _REFUSED:
                self.refused += 1
                # RE-4: each refusal says when to retry.
                self.with_delay += error.retry_after is not None


def _overloaded(address: str, timeout_s: float, trials: int, seconds: float, times: float) -> Result:
    """Measures the best rate of a server with that many concurrent trials, and its rate at a multiple of that load."""
    warm, best, over = (_Callers(timeout_s) for _ in range(3))
    # A few more callers than trial slots, so that one is always waiting when a trial ends.
    busy = partial(closed_loop, callers=trials + trials // 2)
    asyncio.run(warm.run(address, partial(busy, seconds=3.0)))
    asyncio.run(best.run(address, partial(busy, seconds=seconds)))
    # Without later answers: after this time no new trials start.
    peak = best.rate(0, seconds)
    asyncio.run(over.run(address, partial(open_loop, rate=times * peak, seconds=seconds)))
    # The client's spare retries are for occasional callers: they are granted once, however long the load lasts.
    attempts = max(0.0, over.attempts - Retries().spare)
    return Result(
        figures={
            # The first seconds fill the queue and are as good as ever: only the time after that counts.
            "goodput_over_peak": over.rate(seconds / 4, seconds) / peak,
            # Without a refusal there was no overload: 0 misses the goal, so that this is noticed.
            "refusals_with_delay": over.with_delay / over.refused if over.refused else 0.0,
            "attempts_a_call": attempts / over.calls,
        },
        goals={"goodput_over_peak": ">= 0.9", "refusals_with_delay": "== 1", "attempts_a_call": "<= 1.1"},
    )
