"""Response streams that their callers do not read: they end and free their slots."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from memecourt.client import AsyncClient
from memecourt.v1 import court_pb2 as wire
from serving.rpc.calls import Method
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.server import Methods, make_server
from tests.support.service_calls import refusal_of

COUNT = 40
NARROW = [("grpc.http2.bdp_probe", 0)]
"""Options of a caller with the smallest possible receive window."""


class LargeExport:
    """Exports many large trials. ``ended`` is set when the service has finished a call."""

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
        method = Method(wire.ExportTrialsRequest, self.export, self.memory).handler()
        return grpc.method_handlers_generic_handler("memecourt.v1.Docket", {"ExportTrials": method})


@asynccontextmanager
async def serving(idle_s):
    service = LargeExport(idle_s)
    server, _ = await make_server(Methods(service))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield service, address
    finally:
        await server.stop(0)


def test_an_unread_stream_ends_and_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.rpc.calls._MOST_STREAMS", 1)

    async def work():
        async with serving(0.5) as (service, address), grpc.aio.insecure_channel(address, options=NARROW) as channel:
            export = channel.unary_stream("/memecourt.v1.Docket/ExportTrials")
            stuck = export(b"")
            async with asyncio.timeout(60):
                await service.ended.wait()
            bytes_in_use = service.memory.bytes_in_use
            async with AsyncClient(address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
                found = [trial.summary.trial_id async for trial in other.export()]
            return bytes_in_use, found, await refusal_of(drain(stuck))

    bytes_in_use, found, refusal = asyncio.run(work())
    assert bytes_in_use == 0 and found == [f"t{number}" for number in range(COUNT)]
    assert refusal.summary == ("INVALID_ARGUMENT", "IDLE", "")


async def drain(call):
    async for _ in call:
        pass


def test_a_slow_client_receives_each_trial_once() -> None:
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
