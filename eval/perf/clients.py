"""Load: many callers at once, closed loops and open ones; and bytes prepared in advance sent to a gRPC method.

Requests are bytes, to which each client may append fields of its own: if a protobuf message contains a field twice, the
last value counts. So the same client calls a service and a bare echo, at the same cost.

``python -m eval.perf.clients SIZE`` serves an echo whose answers have SIZE bytes, prints ``{"port": …}`` and runs until
it is stopped.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from eval.standin.process import running_module

JUDGE = "/memecourt.v1.Court/Judge"
# Channels in one process share connections to the same address unless each has a separate pool.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
_LONGEST_S = 60.0


async def closed_loop(
    one: Callable[[int], Coroutine[Any, Any, None]], callers: int, seconds: float, most: int | None = None
) -> None:
    """Has callers, each given its number, send their next request as soon as they have their answer.

    Args:
        most: Requests of all callers together; None for as many as there is time for.
    """
    end = time.perf_counter() + seconds
    left = iter(range(most)) if most is not None else itertools.repeat(0)

    async def caller(number: int) -> None:
        while time.perf_counter() < end and next(left, None) is not None:
            await one(number)

    await asyncio.gather(*map(caller, range(callers)))


async def open_loop(one: Callable[[int, float], Coroutine[Any, Any, None]], rate: float, seconds: float) -> None:
    """Sends numbered requests, each at the time it is due; late ones at once, so that the rate a second is kept."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(number, due))


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Outcome of a load whose requests were all answered."""

    answered: int
    rate: float
    """Answers a second."""
    p99_ms: float


async def load(
    address: str,
    message: Callable[[int], bytes],
    *,
    clients: int = 64,
    seconds: float,
    warm_s: float = 1.0,
    most: int | None = None,
    rate: float = 0.0,
) -> LoadOutcome:
    """Calls ``Judge`` over a connection for each client. Raises AioRpcError if any request ends in an error.

    Args:
        message: Returns the request of a number; each number is used once.
        warm_s: Seconds of the same load before anything is measured, in which the connections are opened.
        rate: Requests a second, evenly spaced, whether or not earlier ones were answered; 0 for closed loops.
    """
    channels = [grpc.aio.insecure_channel(address, options=_CHANNEL) for _ in range(clients)]
    # Without serialisers: messages are bytes on both sides, at the same cost for a service and an echo.
    calls: list[Any] = [channel.unary_unary(JUDGE, None, None) for channel in channels]
    numbers = itertools.count()
    took: list[float] = []

    async def one(client: int, due: float | None = None) -> None:
        # From the time it was due, not the time it was sent: the wait of a late request is part of its latency, and a
        # stalling server would otherwise delay the very requests that should reveal it.
        began = time.perf_counter() if due is None else due
        await calls[client % clients](message(next(numbers)), timeout=_LONGEST_S)
        took.append(time.perf_counter() - began)

    async def run(seconds: float, most: int | None) -> float:
        took.clear()
        began = time.perf_counter()
        await (open_loop(one, rate, seconds) if rate else closed_loop(one, clients, seconds, most))
        return time.perf_counter() - began

    try:
        if warm_s:
            await run(warm_s, None)
        elapsed = await run(seconds, most)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
    return LoadOutcome(len(took), len(took) / elapsed, 1000 * float(np.percentile(took, 99)))


def with_field(number: int, value: bytes) -> bytes:
    """Encodes a field of a message that is shorter than 128 bytes."""
    # Wire type 2 of protobuf is a length followed by that many bytes; a length below 128 is a single byte.
    return bytes((number << 3 | 2, len(value))) + value


@contextmanager
def echo(size: int) -> Iterator[str]:
    """Runs a bare grpc.aio server whose answers have ``size`` bytes; yields its address."""
    with running_module("eval.perf.clients", [size]) as ready:
        yield f"127.0.0.1:{ready['port']}"


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
