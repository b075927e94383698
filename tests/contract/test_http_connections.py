"""Times of HTTP connections behind proxies that reuse them (BO-2, LB-1)."""

import asyncio
import contextlib
import re
import time

import pytest

from serving.app import allow_open_files
from serving.http import connections
from serving.http.listen import Listener, open_listener
from serving.settings import Settings
from tests.support.sizes import FULL

REQUEST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"
ANSWER = b"answered"


async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": ANSWER})


@contextlib.asynccontextmanager
async def listening(*, at_once=16, keep_alive=1.0, stopping=None, drain_delay=0.0):
    """Yields a function that opens a connection to a listener."""
    listener = Listener("The test", field="test", example="", at_once=at_once)
    settings = Settings(keep_alive=keep_alive, drain_delay=drain_delay)
    opened = []
    async with open_listener(listener, app, settings, "127.0.0.1:0", stopping=stopping) as url:

        async def connect():
            opened.append(await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])))
            return opened[-1]

        yield connect
        for _, writer in opened:
            writer.transport.abort()


async def answer(reader):
    """Returns the head of the next answer. Raises IncompleteReadError if the connection is closed instead."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    if b"content-length: 8" in head:
        assert await reader.readexactly(8) == ANSWER
    return head


async def ask(connection, request=REQUEST):
    reader, writer = connection
    writer.write(request)
    return await answer(reader)


def test_answers_announce_the_time_for_which_a_connection_stays_open():
    async def work(seconds):
        async with listening(keep_alive=seconds) as connect:
            return await ask(await connect())

    for seconds, announced in ((75.0, b"timeout=75"), (1.9, b"timeout=1"), (600.0, b"timeout=600")):
        assert b"keep-alive: " + announced in asyncio.run(work(seconds))


@pytest.mark.parametrize("idle_s", [0.4, 1.0, 1.6])
async def test_connections_are_reused_for_longer_than_a_head_may_take(monkeypatch, idle_s):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    async with listening(keep_alive=3.0) as connect:
        one = await connect()
        for _ in range(2):
            assert b"200 OK" in await ask(one)
            await asyncio.sleep(idle_s)  # the time itself is tested


@pytest.mark.parametrize("cut", [1, 5, len(REQUEST) - 4])
async def test_requests_that_began_before_the_idle_time_ended_are_answered(cut):
    """Their head and body arrive after it: each part has a time of its own."""
    async with listening(keep_alive=1.0) as connect:
        one = reader, writer = await connect()
        await ask(one)
        await asyncio.sleep(0.7)
        writer.write(REQUEST[:cut])
        await asyncio.sleep(0.7)
        assert b"200 OK" in await ask(one, REQUEST[cut:])
        assert await asyncio.wait_for(reader.read(), 60) == b"", "closed when idle again"


async def test_head_that_arrives_with_the_previous_request_is_not_idle():
    async with listening(keep_alive=1.0) as connect:
        one = await connect()
        await ask(one, REQUEST + REQUEST[:7])
        await asyncio.sleep(1.5)
        assert b"200 OK" in await ask(one, REQUEST[7:])


@pytest.mark.parametrize("start", [b"", b"G", b"GET / HTTP/1.1\r\nHost:"])
async def test_first_request_has_the_time_of_a_head_alone(monkeypatch, start):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    async with listening(keep_alive=60.0) as connect:
        reader, writer = await connect()
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_slow_head_of_a_further_request_gets_an_answer(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    async with listening(keep_alive=60.0) as connect:
        one = await connect()
        await ask(one)
        assert b"408" in await ask(one, REQUEST[:9])


async def test_idle_connections_make_room_before_others():
    async with listening(at_once=5, keep_alive=60.0) as connect:
        begun = await connect()
        begun[1].write(REQUEST[:9])
        idle = [await connect() for _ in range(3)]
        for one in idle:
            await ask(one)
        for reader, _ in idle:
            assert b"200 OK" in await ask(await connect())
            assert await asyncio.wait_for(reader.read(), 60) == b""
        assert b"200 OK" in await ask(begun, REQUEST[9:]), "the request that had begun is not displaced"


async def test_stopping_servers_end_connections_with_their_answers():
    stopping = asyncio.Event()
    async with listening(keep_alive=60.0, stopping=stopping, drain_delay=60.0) as connect:
        one, begun = await connect(), await connect()
        assert b"connection: close" not in await ask(one)
        begun[1].write(REQUEST[:-1])
        await ask(await connect())  # answered later than the request that has begun
        stopping.set()
        for each, request in ((one, REQUEST), (begun, REQUEST[-1:]), (await connect(), REQUEST)):
            assert b"connection: close" in await ask(each, request)
            assert await asyncio.wait_for(each[0].read(), 60) == b""


@pytest.mark.parametrize("cut", [1, 9, len(REQUEST) - 1])
async def test_stopped_servers_refuse_connections_and_answer_what_has_begun(cut):
    stopping = asyncio.Event()
    async with listening(keep_alive=60.0, stopping=stopping, drain_delay=0.2) as connect:
        idle, begun = await connect(), await connect()
        await ask(idle)
        await ask(begun)
        begun[1].write(REQUEST[:cut])
        stopping.set()
        assert await asyncio.wait_for(idle[0].read(), 60) == b""
        with pytest.raises(ConnectionRefusedError):
            await connect()
        assert b"connection: close" in await ask(begun, REQUEST[cut:])


CONNECTIONS = 1000 if FULL else 40


@pytest.mark.promise("LB-1", "1,000 connections reused up to the announced idle time less a second: 0 requests lost")
async def test_lb_1_connections_are_reused_up_to_the_announced_time_less_a_second():
    allow_open_files()
    lost, reused = [], 0

    async def call(connect, number):
        nonlocal reused
        one = await connect()
        try:
            for _ in range(3):
                # Before the answer, so that a busy machine's delays can't make this caller believe in more time.
                sent = time.monotonic()
                head = await ask(one)
                announced = int(re.search(rb"keep-alive: timeout=(\d+)", head)[1])
                # Most wait for the whole time, the others for parts of it.
                idle_s = (announced - 1) * min(1, (number % 10 + 1) / 5)
                await asyncio.sleep(max(0.0, sent + idle_s - time.monotonic()))
                if time.monotonic() - sent > announced - 0.5:
                    one = await connect()  # it was woken too late
                else:
                    reused += 1
            await ask(one)
        except (OSError, asyncio.IncompleteReadError) as error:
            lost.append(repr(error))

    async with listening(at_once=2 * CONNECTIONS, keep_alive=4.0) as connect:
        await asyncio.gather(*(call(connect, number) for number in range(CONNECTIONS)))
    assert lost == [] and reused > CONNECTIONS
