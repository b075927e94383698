"""The gRPC server: listens, says whether it is well, and goes down without dropping what it holds."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from court.errors import BadRequest, CourtError, Unavailable
from court.meme import LIMITS
from serving.assembly import Courthouse, open_courthouse
from serving.service import SERVICE, CourtService
from serving.settings import Settings

MESSAGE_BYTES = LIMITS.max_bytes + 64 * 1024
"""Largest message: a picture at its limit, and room for everything else. gRPC's default of 4 MiB is too small."""

_HEALTH_OF = ("", SERVICE)  # the server as a whole, and the one service

_log = logging.getLogger("memecourt.server")


async def serve(
    settings: Settings,
    address: str,
    *,
    resume: bool = False,
    ended: Callable[[], Awaitable[int]] | None = None,
    bound: Callable[[str], None] = lambda _: None,
    ready: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Serves until SIGTERM or SIGINT, then lets running trials finish within the grace.

    Args:
        settings: What to serve.
        address: ``host:port``; port 0 for a free one.
        resume: Whether trials that were cut off are taken up, beside the new ones.
        ended: Returns when a model server that was started for this court has ended by itself; the court then ends too.
        bound: Is told the address with its port as soon as the server listens.
        ready: Is called when asks are heard.
        tell: Is told what takes long, in a sentence.

    Raises:
        BadRequest: The address can't be listened on.
        CourtError: The courthouse can't be opened.
        Unavailable: The model server ended.
    """
    service = CourtService(settings.concurrent_trials, settings.procedure)
    server, healthy = await make_server(service)
    port = _listen(server, address)
    stopping = _stop_signals()
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop, 0)
        bound(f"{address.rpartition(':')[0]}:{port}")
        house = open_courthouse(settings, tell=tell, follow_library=True)
        opening = asyncio.ensure_future(stack.enter_async_context(house))
        waiting = asyncio.ensure_future(stopping.wait())
        widowed = asyncio.ensure_future(_stop_when(ended, stopping))
        stack.push_async_callback(_end, widowed)
        await asyncio.wait((opening, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait((opening,))
            return
        courthouse = opening.result()
        # Those that are open now were cut off; new ones will be open too.
        cut_off = await courthouse.docket.open_trials() if resume else ()
        service.open(courthouse)
        resuming = asyncio.ensure_future(_resume(courthouse, cut_off))
        stack.push_async_callback(_end, resuming)
        await say_serving(healthy)
        ready()
        await waiting
        _log.info("stopping: running trials have %.0f s to finish", settings.grace)
        await healthy.enter_graceful_shutdown()
        service.close()
        await server.stop(settings.grace)
        await service.empty(seconds=5)
        if widowed.done():
            raise Unavailable("The model server ended by itself, and the court with it.", reason="MODEL_SERVER_ENDED")


async def _stop_when(ended: Callable[[], Awaitable[int]] | None, stopping: asyncio.Event) -> None:
    await (ended() if ended else asyncio.Event().wait())
    _log.error("the model server ended by itself")
    stopping.set()


async def _resume(courthouse: Courthouse, cut_off: Sequence[str]) -> None:
    """Takes up what was cut off, one after the other: what is asked for now goes first."""
    for trial_id in cut_off:
        try:
            record = await courthouse.resume(trial_id)
            _log.info("trial=%s resumed state=%s", trial_id, record.state)
        except CourtError as error:
            _log.warning("trial=%s not resumed reason=%s", trial_id, error.reason)


async def _end(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def make_server(service: CourtService) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """A server with the court, health and reflection, not yet listening; its health says NOT_SERVING."""
    # The library's health says SERVING from birth unless told otherwise.
    healthy = health.aio.HealthServicer()
    for name in _HEALTH_OF:
        await healthy.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a share of its requests
            ("grpc.max_concurrent_streams", 128),  # bounds what a rapid-reset attack can cost per connection
            ("grpc.server_handshake_timeout_ms", 10_000),  # a connection that says nothing is closed
        ]
    )
    server.add_generic_rpc_handlers((service.handler(),))
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, healthy


async def say_serving(healthy: health.aio.HealthServicer) -> None:
    """From now on, health checks are told that asks are heard."""
    for name in _HEALTH_OF:
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)


def _listen(server: grpc.aio.Server, address: str) -> int:
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise BadRequest(
            f"Can't listen on {address}: it is taken, or no address of this machine. Give host:port, port 0 for a "
            "free one.",
            reason="ADDRESS_UNUSABLE",
            field="address",
        )
    return port


def _stop_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
