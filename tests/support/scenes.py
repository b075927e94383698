"""A scene for contract tests: a real server and a real channel; only what a trial leans on is a fake."""

import hashlib
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace

import grpc
import pytest

from court.meme import Frame
from memecourt.v1.court_pb2_grpc import CourtStub
from serving.docket.open import Docket
from serving.judging.executor import TrialExecutor
from serving.judging.judge import TrialRunner
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.judge import CourtService
from serving.rpc.server import Methods, make_server
from serving.settings import Settings
from tests.support.fakes import a_picture
from tests.support.playing import run_within
from tests.support.service_calls import Refusal
from tests.support.trial import a_court

IMAGE = b"any bytes: the picture reader is a fake"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x04\0\0\0\x03"  # as far as a trial that is resumed looks at it


class FakePictures:
    """Picture reader that takes any bytes for a distinct picture, or returns or raises the result given to it."""

    def __init__(self, result=None):
        self.result = result

    async def read(self, data):
        if isinstance(self.result, Exception):
            raise copy(self.result)  # one that was raised remembers who was told of it
        if self.result is not None:
            return self.result
        picture = a_picture("f" * 64 if data == IMAGE else hashlib.sha256(data).hexdigest())
        return replace(picture, frames=(Frame(png=PNG, width=4, height=3),))


class Scene:
    def __init__(self, address, docket, service, reception, channel, server):
        self.address = address
        self.docket = docket
        self.service = service
        self.reception = reception
        self.channel = channel
        self.server = server
        self.stub = CourtStub(channel)

    async def refusal(self, request, **options):
        """Sends a request that must be refused, and returns the status with its details."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.stub.Judge(request, timeout=60, **options)
        return Refusal(caught.value)

    def another_channel(self, *options):
        """Opens a channel with a separate connection, like another caller."""
        return grpc.aio.insecure_channel(self.address, options=[*_OPTIONS, *options])


_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@asynccontextmanager
async def a_scene(
    path, *, found=None, reader=None, pictures=None, open_court=True, court=None, place=None, patience=10.0, **settings
):
    """Verdicts are given again only where a test is about that."""
    settings = Settings(**{"reuse": "off", "home": path, **settings})
    docket = Docket.open(place or path / "docket.sqlite", patience=patience)
    service = CourtService(settings, memory=ReceiveBudget(settings.picture_memory, settings.idle))
    server, healthy = await make_server(Methods(service))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    executor = TrialExecutor(court or a_court(found, reader), FakePictures(pictures), docket)
    address = f"127.0.0.1:{port}"
    try:
        async with TrialRunner(executor, settings) as reception:
            if open_court:
                service.open(executor, reception)
                for name in healthy.services:
                    healthy.say(name, serving=True)
            async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
                yield Scene(address, docket, service, reception, channel, server)
            await server.stop(0)
            await service.empty(60)
    finally:
        await server.stop(0)
        healthy.end()
        await docket.close()
    assert service.memory.bytes_in_use == 0, "memory of a request was not given back"
    assert reception.admission.running == reception.admission.waiting == 0, "a place was lost"


def play(work, path, **options):
    return run_within(a_scene(path, **options), work)


async def remaining_responses(call):
    """Reads the remaining responses of a stream."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses
