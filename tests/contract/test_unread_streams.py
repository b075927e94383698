"""Streams of responses that their callers do not read: they end, and others have their places."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from memecourt.client import AsyncClient
from memecourt.v1 import court_pb2 as wire
from serving.rpc.calls import streaming
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.methods import Methods
from serving.rpc.server import make_server
from tests.support.service_calls import refused

COUNT = 40
NARROW = [("grpc.http2.bdp_probe", 0)]
"""Options of a caller that takes no more on the way than it must."""


class Exporting:
    """Exports so many large trials. ``ended`` is set when a call is over for the service."""

    def __init__(self, idle_s):
        self.ended = asyncio.Event()
        self.memory = ReceiveBudget(2**28, idle_s)
        self.calls = 0

    async def export(self, request, context):
        self.calls += 1
        try:
            for number in range(COUNT):
                trial = wire.Trial(summary=wire.TrialSummary(trial_id=f"t{number}"))
                trial.events.add(json="x" * 100_000)
                yield wire.ExportTrialsResponse(trial=trial)
        finally:
            self.ended.set()

    def handler(self):
        method = streaming(wire.ExportTrialsRequest, self.export, self.memory)
        return grpc.method_handlers_generic_handler("memecourt.v1.Docket", {"ExportTrials": method})


@asynccontextmanager
async def serving(idle_s):
    service = Exporting(idle_s)
    server, _ = await make_server(Methods(service))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield service, address
    finally:
        await server.stop(0)


def test_a_stream_that_nobody_reads_ends_and_another_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.rpc.calls._MOST_STREAMS", 1)

    async def work():
        async with serving(0.5) as (service, address), grpc.aio.insecure_channel(address, options=NARROW) as channel:
            export = channel.unary_stream("/memecourt.v1.Docket/ExportTrials")
            stuck = export(b"")
            async with asyncio.timeout(60):
                await service.ended.wait()
            held = service.memory.bytes_in_use
            async with AsyncClient(address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
                found = [trial.summary.trial_id async for trial in other.export()]
            return held, found, await refused(_rest(stuck))

    held, found, refusal = asyncio.run(work())
    assert held == 0 and found == [f"t{number}" for number in range(COUNT)]
    assert refusal.said == ("INVALID_ARGUMENT", "IDLE", "")


async def _rest(call):
    async for _ in call:
        pass


def test_a_client_that_was_slow_to_read_has_each_trial_once() -> None:
    async def work():
        async with serving(0.5) as (service, address), AsyncClient(address, options=NARROW) as client:
            trials = client.export()
            found = [(await anext(trials)).summary.trial_id]
            async with asyncio.timeout(60):
                await service.ended.wait()
            found += [trial.summary.trial_id async for trial in trials]
            return found, service.calls

    found, calls = asyncio.run(work())
    assert found == [f"t{number}" for number in range(COUNT)]
    assert calls >= 2  # on a busy machine it may be slow once more
