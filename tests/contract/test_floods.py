"""GR-3: HTTP/2 attacks. No honest call fails meanwhile, and health checks always answer."""

import asyncio
import socket
import struct
from contextlib import ExitStack

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memecourt.client import judge_request
from memecourt.v1.court_pb2_grpc import CourtStub
from serving.rpc.health import COURT, LIVENESS
from tests.support import flooder
from tests.support.fakes import FakeReader
from tests.support.scenes import a_scene
from tests.support.sizes import FULL

FRAMES = 10_000 if FULL else 800
HONEST = 200 if FULL else 8
IDLE = 200


async def make_honest_calls(it):
    """Makes honest calls with health checks beside them; none may fail."""
    channel = it.another_channel()
    try:
        stub, health = CourtStub(channel), health_pb2_grpc.HealthStub(channel)
        for number in range(HONEST):
            verdict = await stub.Judge(judge_request(b"honest %d" % number, text="some text"), timeout=60)
            assert verdict.label
            for service in (LIVENESS, COURT):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await channel.close()


@pytest.mark.promise("GR-3", "5 kinds x 4 attackers x 10,000 frames: 0 honest calls failed")
@pytest.mark.slow
@pytest.mark.parametrize("attack", flooder.FLOODS)
async def test_a_flood_of_frames_fails_no_honest_call(tmp_path, forks, attack):
    async with a_scene(tmp_path, reader=FakeReader()) as it:
        receiver, sender = forks.Pipe()
        attacking = forks.Process(target=flooder.flood, args=(it.address, attack, FRAMES, sender))
        attacking.start()
        try:
            before = await asyncio.to_thread(receiver.recv)
            await make_honest_calls(it)  # during the attack
            receiver.send("enough")
            sent = await asyncio.to_thread(receiver.recv)
            assert all(late >= early + FRAMES for early, late in zip(before, sent, strict=True))
            await asyncio.to_thread(attacking.join, 20)
        finally:
            attacking.kill()
            attacking.join()
            receiver.close()
        await make_honest_calls(it)  # after it
        tried = len(await it.docket.index.list(limit=10_000))
    assert tried == 2 * HONEST, "only honest requests were tried"


async def test_silent_connections_and_unfinished_calls_fail_no_honest_call(tmp_path):
    async with a_scene(tmp_path, reader=FakeReader()) as it:
        host, _, port = it.address.rpartition(":")
        with ExitStack() as stack:
            for number in range(IDLE):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                if number % 20 == 0:
                    calls = b"".join(flooder.headers_only(each) for each in range(120))
                    connection.sendall(flooder.PREFACE + flooder.frame(flooder.SETTINGS, 0, 0) + calls)
            await make_honest_calls(it)
        await make_honest_calls(it)


async def test_queued_calls_fail_no_honest_call(tmp_path):
    """The library by default cancels calls at random when 1,000 are queued, and all from 3,000 on."""
    async with a_scene(tmp_path, reader=FakeReader()) as it:
        host, _, port = it.address.rpartition(":")
        with ExitStack() as stack:
            for _ in range(40):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                calls = b"".join(flooder.headers_only(each) for each in range(120))
                connection.sendall(flooder.PREFACE + flooder.frame(flooder.SETTINGS, 0, 0) + calls + flooder.ping(1))
                answer = b""
                while flooder.ping(1)[9:] not in answer:  # then the server has all of them, and its thread is idle
                    answer += connection.recv(1_000)
            await make_honest_calls(it)


async def test_each_connection_is_sent_its_limit_of_concurrent_streams(tmp_path):
    """Limits how many calls of a client that resets them at once are in the server."""
    async with a_scene(tmp_path) as it:
        host, _, port = it.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(flooder.PREFACE + flooder.frame(flooder.SETTINGS, 0, 0))
        settings = {}
        while not settings:
            head = await asyncio.wait_for(reader.readexactly(9), 60)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == flooder.SETTINGS and not head[4] & flooder.ACK:
                settings = dict(struct.iter_unpack(">HI", body))
        writer.close()
        assert settings[flooder.MAX_CONCURRENT_STREAMS] == 128
