"""A load generator: many clients of a gRPC method in a separate process, reporting the rate and latency of the answers.

Requests are bytes prepared in advance, to which each client appends fields of its own: if a protobuf message contains a
field twice, the last value counts. So the same client calls a service and a bare echo, at the same cost.

``python -m eval.perf.clients SIZE`` serves an echo whose answers have SIZE bytes, prints ``{"port": …}`` and runs until
it is stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from eval.standin.process import in_fresh_process, running_module

JUDGE = "/memecourt.v1.Court/Judge"
REQUEST_ID, TEXT = 1, 4
"""Fields of a JudgeRequest."""
# Channels in one process share connections to the same address unless each has a separate pool.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """Job of the clients."""

    address: str
    requests: Sequence[str]
    clients: int = 64
    seconds: float = 5.0
    """Duration of the load in seconds, without warm-up."""
    warm_s: float = 1.0
    """Duration of the warm-up before it, in seconds."""
    most: int = 0
    """Maximum number of requests, without those of the warm-up; 0 for as many as there is time for."""
    rate: float = 0.0
    """Requests per second, evenly spaced, whether or not earlier ones were answered; 0 to have each client send its
    next request as soon as it has its answer."""
    named: bool = False
    """True to send a new id with each request."""
    text: str = ""
    """Words before the number in texts that are all different; empty to leave the text unchanged."""


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Outcome of a job."""

    codes: dict[str, int]
    seconds: float
    """Seconds from the first request to the last answer."""
    p99_ms: float
    answer_bytes: int

    @property
    def answered(self) -> int:
        """Number of requests that were answered without an error."""
        return self.codes.get("OK", 0)

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return self.answered / self.seconds

    def require_all_answered(self) -> LoadOutcome:
        """Returns itself. Raises RuntimeError if a request ended in an error, which would falsify the figures."""
        if set(self.codes) != {"OK"}:
            raise RuntimeError(f"not all requests were answered: {self.codes}")
        return self


def ask(job: Job) -> LoadOutcome:
    """Runs a job in a separate process."""
    return in_fresh_process(_run, job)


def _run(job: Job) -> LoadOutcome:
    return asyncio.run(do(job, [Path(name).read_bytes() for name in job.requests]))


@contextmanager
def echo(size: int) -> Iterator[tuple[str, int]]:
    """Runs a bare grpc.aio server whose answers have ``size`` bytes; yields its address and process id."""
    with running_module("eval.perf.clients", [size]) as (ready, pid):
        yield f"127.0.0.1:{ready['port']}", pid


def with_field(number: int, value: bytes) -> bytes:
    """Encodes a field of a message that is shorter than 128 bytes."""
    # Wire type 2 of protobuf is a length followed by that many bytes; a length below 128 is a single byte.
    return bytes((number << 3 | 2, len(value))) + value


async def evenly(rate: float, seconds: float) -> AsyncIterator[float]:
    """Yields the time at which each request is due, then; late ones at once, so that the rate is kept."""
    began = time.perf_counter()
    for number in range(round(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield due


@dataclass(slots=True)
class _Clients:
    """Running clients of one job, and their measurements."""

    job: Job
    calls: Sequence[Any]
    messages: Sequence[bytes]
    codes: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    answer_bytes: int = 0
    # New in each run: an id that was sent before would get its stored verdict from the docket.
    _run: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def one(self, client: int, due: float | None = None) -> None:
        """Sends one request, and records its status and latency."""
        number = next(self._numbers)
        name = f"{self._run}-{number}"
        message = self.messages[number % len(self.messages)]
        # Protobuf fields may come in any order, so these can be appended to the others.
        if self.job.named:
            message += with_field(REQUEST_ID, name.encode())
        if self.job.text:
            message += with_field(TEXT, f"{self.job.text} {name}".encode())
        # From the time it was due, not the time it was sent: the wait of a late request is part of its latency, and a
        # stalling server would otherwise delay the very requests that should reveal it.
        began = time.perf_counter() if due is None else due
        try:
            answer = await self.calls[client](message, timeout=_LONGEST_S)
            self.answer_bytes = len(answer)
            self.codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.codes[error.code().name] += 1
        self.took.append(time.perf_counter() - began)

    async def closed(self, seconds: float, most: int = 0) -> None:
        """Runs a closed loop: each client sends its next request as soon as it has its answer."""
        end = time.perf_counter() + seconds
        # One iterator for all clients: `most` is their joint limit.
        left = iter(range(most)) if most else itertools.repeat(0)

        async def client(number: int) -> None:
            while time.perf_counter() < end and next(left, None) is not None:
                await self.one(number)

        await asyncio.gather(*(client(number) for number in range(len(self.calls))))

    async def open(self, seconds: float) -> None:
        """Runs an open loop: requests are sent evenly spaced, whether or not earlier ones were answered."""
        clients = itertools.cycle(range(len(self.calls)))
        async with asyncio.TaskGroup() as group:
            async for due in evenly(self.job.rate, seconds):
                group.create_task(self.one(next(clients), due))

    async def asks(self, seconds: float, most: int = 0) -> None:
        """Runs the job."""
        await (self.open(seconds) if self.job.rate else self.closed(seconds, most))


async def do(job: Job, messages: Sequence[bytes]) -> LoadOutcome:
    """Runs a job in this process, with the contents of its request files."""
    channels = [grpc.aio.insecure_channel(job.address, options=_CHANNEL) for _ in range(job.clients)]
    # Without serialisers: messages are bytes on both sides, at the same cost for a service and an echo.
    calls: list[Any] = [channel.unary_unary(JUDGE, None, None) for channel in channels]
    clients = _Clients(job, calls, messages)
    try:
        if job.warm_s:
            await clients.asks(job.warm_s)
        # By now each client has its connection: the time to open it is in no figure.
        clients.codes.clear()
        clients.took.clear()
        began = time.perf_counter()
        await clients.asks(job.seconds, job.most)
        seconds = time.perf_counter() - began
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
    took = sorted(clients.took)
    return LoadOutcome(
        codes=dict(clients.codes),
        seconds=seconds,
        p99_ms=1000 * took[int(0.99 * len(took))],
        answer_bytes=clients.answer_bytes,
    )


async def _echo(size: int) -> None:
    answer = bytes(size)

    async def answered(_: bytes, __: object) -> bytes:
        return answer

    service, _, method = JUDGE.strip("/").partition("/")
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler: Any = grpc.unary_unary_rpc_method_handler(answered)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_echo(int(sys.argv[1])))
