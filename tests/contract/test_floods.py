"""GR-3: callers who speak HTTP/2 to do harm. No honest call fails meanwhile, and health always answers."""

import asyncio
import socket
import struct
from contextlib import ExitStack

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memecourt.client import judge_request
from memecourt.v1.court_pb2_grpc import CourtStub
from serving.rpc.health import COURT, LIVENESS
from tests.contract.scenes import play
from tests.support.fakes import FakeReader
from tests.support.flooder import (
    ACK,
    FLOODS,
    MAX_CONCURRENT_STREAMS,
    PREFACE,
    SETTINGS,
    flood,
    frame,
    headers_only,
    ping,
)
from tests.support.sizes import FULL

FRAMES = 10_000 if FULL else 800
HONEST = 200 if FULL else 15
IDLE = 200


async def honest(it):
    """Calls of a caller that means well, and health checks beside them; none may fail."""
    channel = it.another_channel()
    try:
        stub, health = CourtStub(channel), health_pb2_grpc.HealthStub(channel)
        for number in range(HONEST):
            verdict = await stub.Judge(judge_request(b"honest %d" % number, text="some text"), timeout=60)
            assert verdict.label
            for service in (LIVENESS, COURT):
                told = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
                assert told.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await channel.close()


@pytest.mark.promise("GR-3", "5 kinds x 4 attackers x 10,000 frames: 0 honest calls failed")
@pytest.mark.slow
@pytest.mark.parametrize("attack", FLOODS)
def test_a_flood_of_frames_fails_no_honest_call(tmp_path, forks, attack):
    async def work(it):
        ear, mouth = forks.Pipe()
        attacking = forks.Process(target=flood, args=(it.address, attack, FRAMES, mouth))
        attacking.start()
        try:
            before = await asyncio.to_thread(ear.recv)
            await honest(it)  # while they are at it
            ear.send("enough")
            sent = await asyncio.to_thread(ear.recv)
            assert all(late >= early + FRAMES for early, late in zip(before, sent, strict=True))
            await asyncio.to_thread(attacking.join, 20)
        finally:
            attacking.kill()
            attacking.join()
            ear.close()
        await honest(it)  # and afterwards
        return len(await it.docket.index.list(limit=10_000))

    tried = play(work, tmp_path, reader=FakeReader())
    assert tried == 2 * HONEST, "only what was asked for is on trial"


def test_connections_that_say_nothing_and_calls_that_never_go_on_fail_no_honest_call(tmp_path):
    async def work(it):
        host, _, port = it.address.rpartition(":")
        with ExitStack() as stack:
            for number in range(IDLE):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                if number % 20 == 0:
                    calls = b"".join(headers_only(each) for each in range(120))
                    connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + calls)
            await honest(it)
        await honest(it)

    play(work, tmp_path, reader=FakeReader())


def test_calls_that_stand_in_line_fail_no_honest_call(tmp_path):
    """By itself the library cancels calls by chance where 1,000 stand in line, and all from 3,000 on."""

    async def work(it):
        host, _, port = it.address.rpartition(":")
        with ExitStack() as stack:
            for _ in range(40):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                calls = b"".join(headers_only(each) for each in range(120))
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + calls + ping(1))
                answer = b""
                while ping(1)[9:] not in answer:  # then it has all of them, and this thread, the server's, none
                    answer += connection.recv(1_000)
            await honest(it)

    play(work, tmp_path, reader=FakeReader())


def test_how_many_calls_a_connection_may_have_is_said_to_it(tmp_path):
    """Whoever resets at once can have no more of them in the server than that."""

    async def work(it):
        host, _, port = it.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        told = {}
        while not told:
            head = await asyncio.wait_for(reader.readexactly(9), 60)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == SETTINGS and not head[4] & ACK:
                told = dict(struct.iter_unpack(">HI", body))
        writer.close()
        return told

    assert play(work, tmp_path)[MAX_CONCURRENT_STREAMS] == 128
