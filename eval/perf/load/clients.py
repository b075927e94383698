"""Many clients of a gRPC method in a process of their own: how many answers a second they get, and after how long.

Requests are bytes made beforehand, to which each client adds fields of its own: a field that stands twice in a message
counts as it stands last. So the same client asks a service and a bare echo, at the same cost.

``python -m eval.perf.load.clients`` takes a job as JSON on its standard input and tells its outcome on its standard
output; ``python -m eval.perf.load.clients echo SIZE`` serves an echo whose answers have so many bytes, prints
``{"port": …}`` and runs until it is stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc

from eval.perf.bench import run_module, running_module

JUDGE = "/memecourt.v1.Court/Judge"
REQUEST_ID, TEXT = 1, 4
"""Fields of a JudgeRequest."""
# Channels of one process share connections to the same address unless each has a pool of its own.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """Job of the clients.

    Attributes:
        address: ``host:port`` of the server.
        requests: Files of requests, asked in turn.
        clients: Number of clients; each has a connection of its own.
        seconds: Seconds of the load, without warming up.
        warm_s: Seconds of warming up before.
        most: Requests at most, those for warming up not counted; 0 for as many as there is time for.
        rate: Requests a second, evenly spaced and whether or not there are answers; 0 to have each client ask again as
            soon as it has its answer.
        named: True if each request has an id of its own.
        text: Words before the number in texts that are all different; empty to leave the text as it is.
    """

    address: str
    requests: Sequence[str]
    clients: int = 64
    seconds: float = 5.0
    warm_s: float = 1.0
    most: int = 0
    rate: float = 0.0
    named: bool = True
    text: str = ""


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Outcome of a job.

    Attributes:
        codes: Number of answers by gRPC status.
        seconds: Seconds from the first request to the last answer.
        p50_ms: Median time of an answer, from when it was due to be asked for.
        p99_ms: 99th percentile of the latency, in milliseconds.
        p95_ms: 95th percentile of the latency, in milliseconds.
        answer_bytes: Size of the last answer, in bytes.
        cpu_s: Time of the clients on a processor, the warming up included.
        first_ms: The longest answer while they warmed up: over connections that were new.
    """

    codes: dict[str, int]
    seconds: float
    p50_ms: float
    p99_ms: float
    p95_ms: float
    answer_bytes: int
    cpu_s: float
    first_ms: float

    @property
    def answered(self) -> int:
        """Requests that were answered without error."""
        return self.codes.get("OK", 0)

    @property
    def rate(self) -> float:
        """Answered requests a second."""
        return self.answered / self.seconds

    def require_all_answered(self) -> LoadOutcome:
        """Itself. Raises RuntimeError where a request ended in an error: what is measured is then something else."""
        if set(self.codes) != {"OK"}:
            raise RuntimeError(f"not all requests were answered: {self.codes}")
        return self


def ask(job: Job) -> LoadOutcome:
    """Has a process of its own do a job. Raises RuntimeError if it can't."""
    return LoadOutcome(**run_module("eval.perf.load.clients", payload=asdict(job)))


@contextmanager
def echo(size: int) -> Iterator[tuple[str, int]]:
    """A bare grpc.aio server that answers whatever it is asked with so many bytes; gives its address and process id."""
    with running_module("eval.perf.load.clients", ["echo", size]) as (ready, pid):
        yield f"127.0.0.1:{ready['port']}", pid


def with_field(number: int, value: bytes) -> bytes:
    """A field of a message on the wire, of less than 128 bytes."""
    # Wire type 2 of protobuf is a length and so many bytes; below 128 the length is one byte itself.
    return bytes((number << 3 | 2, len(value))) + value


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value that so large a share does not exceed; 0 where there is none."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))] if sorted_values else 0.0


@dataclass(slots=True)
class _Clients:
    """The clients while they ask."""

    job: Job
    calls: Sequence[Any]
    messages: Sequence[bytes]
    codes: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    answer_bytes: int = 0
    # New in each run: an id that was sent before would get the verdict that the docket has for it.
    _run: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def one(self, client: int, due: float | None = None) -> None:
        """One request, counted."""
        number = next(self._numbers)
        name = f"{self._run}-{number}"
        message = self.messages[number % len(self.messages)]
        # Fields of protobuf may come in any order, so that these can be put behind the others.
        if self.job.named:
            message += with_field(REQUEST_ID, name.encode())
        if self.job.text:
            message += with_field(TEXT, f"{self.job.text} {name}".encode())
        # From when it was due, not from when it left: what a late request has waited for is part of its latency,
        # and a server that stalls would otherwise delay the very requests that should show it.
        began = time.perf_counter() if due is None else due
        try:
            answer = await self.calls[client](message, timeout=_LONGEST_S)
            self.answer_bytes = len(answer)
            self.codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.codes[error.code().name] += 1
        self.took.append(time.perf_counter() - began)

    async def closed(self, seconds: float, most: int = 0) -> None:
        """Runs a closed loop: each client asks again as soon as it has its answer."""
        end = time.perf_counter() + seconds
        # One iterator for all clients: `most` is what they send together.
        left = iter(range(most)) if most else itertools.repeat(0)

        async def client(number: int) -> None:
            while time.perf_counter() < end and next(left, None) is not None:
                await self.one(number)

        await asyncio.gather(*(client(number) for number in range(len(self.calls))))

    async def open(self, seconds: float) -> None:
        """Requests leave evenly spaced, whatever has become of those before."""
        began, tasks = time.perf_counter(), set[asyncio.Task[None]]()
        for number in range(round(self.job.rate * seconds)):
            due = began + number / self.job.rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            # The event loop has only weak references to tasks; the set keeps them from being collected.
            task = asyncio.create_task(self.one(number % len(self.calls), due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def asks(self, seconds: float, most: int = 0) -> None:
        """Runs the job."""
        await (self.open(seconds) if self.job.rate else self.closed(seconds, most))


async def do(job: Job, messages: Sequence[bytes]) -> LoadOutcome:
    """Does a job here, with what stands in the files of its requests."""
    channels = [grpc.aio.insecure_channel(job.address, options=_CHANNEL) for _ in range(job.clients)]
    # Without serialisers: messages are bytes on both sides, at the same cost against a service and an echo.
    calls: list[Any] = [channel.unary_unary(JUDGE, None, None) for channel in channels]
    clients = _Clients(job, calls, messages)
    first = 0.0
    try:
        if job.warm_s:
            await clients.asks(job.warm_s)
            first = max(clients.took, default=0.0)
        # By now each client has its connection: what opening them took is in `first_ms` and nowhere else.
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
        p50_ms=1000 * percentile(took, 0.5),
        p99_ms=1000 * percentile(took, 0.99),
        p95_ms=1000 * percentile(took, 0.95),
        answer_bytes=clients.answer_bytes,
        cpu_s=time.process_time(),
        first_ms=1000 * first,
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


def main(arguments: Sequence[str]) -> None:
    """Does what the module says."""
    if arguments and arguments[0] == "echo":
        asyncio.run(_echo(int(arguments[1])))
        return
    job = Job(**json.load(sys.stdin))
    outcome = asyncio.run(do(job, [Path(name).read_bytes() for name in job.requests]))
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
