"""Dead connections that no one closes: both ends notice, and clients continue over another connection."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager, suppress

import grpc
import pytest

import memecourt.connection
import serving.rpc.server
from memecourt.client import AsyncClient, judge_request
from memecourt.v1 import court_pb2 as wire
from serving.rpc.server import Methods, make_server
from tests.support.client import Loop, Threads, answered
from tests.support.fake_court import FakeCourt, served


class FreezingProxy:
    """A proxy at ``address`` to a server; ``connections`` counts all connections ever accepted."""

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._frozen = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self):
        """Freezes the existing connections: they stay open but carry no more data; new ones work."""
        before, self._frozen = self._frozen, threading.Event()
        before.set()

    def cut(self):
        """Closes the existing connections, which both ends notice."""
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self):
        """Closes the proxy and all its connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self):
        host, _, port = self._server.rpartition(":")
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                upstream = socket.create_connection((host, int(port)))
                self._sockets += client, upstream
                for direction in ((client, upstream), (upstream, client)):
                    threading.Thread(target=_carry, args=(*direction, self._frozen), daemon=True).start()


def _carry(source, to, frozen):
    with suppress(OSError):
        while data := source.recv(65536):
            if not frozen.is_set():
                to.sendall(data)
        if not frozen.is_set():
            to.shutdown(socket.SHUT_WR)


@contextmanager
def freezing_proxy(server):
    """Runs a proxy to a server for as long as the context lasts."""
    way = FreezingProxy(server)
    try:
        yield way
    finally:
        way.close()


SHORT = {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 2_000, "grpc.http2.ping_timeout_ms": 2_000}
# Only options that a client sets by default: a test must not add what is missing.
QUICK = {"options": [(name, SHORT[name]) for name, _ in memecourt.connection._OPTIONS if name in SHORT]}
LONG_S = 40
"""Longer than any of these tests takes if it works, but under the minute after which gRPC itself may notice."""


@pytest.fixture(params=[Threads, Loop])
def client(request):
    return request.param


def test_a_call_is_retried_over_another_connection(client):
    def answer(method, request, number):
        if number == 1:
            way.freeze()
        return court.verdict(request)

    court = FakeCourt(answer)
    with served(court) as address, freezing_proxy(address) as way:
        response = client.call(way.address, "judge", b"image", timeout=LONG_S, _client=QUICK)
        # On a busy machine a healthy connection may be taken for dead, too.
        assert way.connections >= 2
    assert response.decision == "allow"
    assert court.calls["Judge"] >= 2


def test_a_request_stream_continues_over_another_connection(client):
    def stream(requests, number, context):
        if number == 1:
            way.freeze()
        for message in requests:
            yield answered(court, message)

    court = FakeCourt()
    court.stream = stream
    requests_to_send = [judge_request(b"image", request_id=f"r{each}") for each in range(3)]
    with served(court) as address, freezing_proxy(address) as way:
        found = client.each(way.address, "judge_many", requests_to_send, timeout=LONG_S, _client=QUICK)
    assert {name: response.verdict_id for name, response in found} == {f"r{each}": f"of r{each}" for each in range(3)}


@pytest.mark.slow
def test_a_watch_continues_over_another_connection(client):
    """Also after a silence so long that gRPC's defaults would have stopped sending keepalive pings."""
    reconnected = threading.Event()
    late = []

    def answer(method, request, number):
        yield wire.WatchReviewsResponse(next_entry=number, reviewed=wire.ReviewedVerdict(trial_id=f"t{number}"))
        if number == 1:
            time.sleep(5)
            way.freeze()
            if not reconnected.wait(LONG_S):
                late.append("the client has not noticed")
                way.cut()
        else:
            reconnected.set()

    court = FakeCourt(answer)
    with served(court) as address, freezing_proxy(address) as way:
        found = client.each(way.address, "reviews", 0, most=2, _client=QUICK)
        reconnected.set()
    assert [response.reviewed.trial_id for response in found] == ["t1", "t2"] and not late
    assert [request.from_entry for request in court.asked] == [0, 1]


class ReviewWatch:
    """Sends one review at once and then nothing; ``ended`` is set when a watcher is gone."""

    def __init__(self):
        self.ended = asyncio.Event()
        self.watched = 0

    def handler(self):
        async def watch(request, context):
            self.watched += 1
            review = wire.WatchReviewsResponse(next_entry=1, reviewed=wire.ReviewedVerdict(trial_id="t"))
            try:
                await context.write(review.SerializeToString())
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        method = grpc.unary_stream_rpc_method_handler(watch)
        return grpc.method_handlers_generic_handler("memecourt.v1.Docket", {"WatchReviews": method})


def speed_up_keepalive(monkeypatch, *names):
    """Divides the named keepalive options of the server by ten, or all of them if none is named."""
    alive = [(name, value // 10 if name in names or not names else value) for name, value in serving.rpc.server._ALIVE]
    monkeypatch.setattr(serving.rpc.server, "_ALIVE", alive)


def run_with_watcher(work, options=()):
    async def play():
        watched = ReviewWatch()
        server, _ = await make_server(Methods(watched))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with freezing_proxy(f"127.0.0.1:{port}") as way:
            async with AsyncClient(way.address, options=options) as client:
                reviews = client.reviews(0)
                await anext(reviews)
                await work(watched, way, reviews)
                await reviews.aclose()
        await server.stop(0)

    asyncio.run(play())


@pytest.mark.slow
def test_a_client_may_send_frequent_keepalive_pings(monkeypatch):
    speed_up_keepalive(monkeypatch, "grpc.http2.min_ping_interval_without_data_ms")

    async def work(watched, way, reviews):
        more = asyncio.ensure_future(anext(reviews))
        await asyncio.wait((more,), timeout=11)  # five pings
        assert not more.done() and not watched.ended.is_set()
        assert (watched.watched, way.connections) == (1, 1)
        more.cancel()
        await asyncio.gather(more, return_exceptions=True)

    run_with_watcher(work, [("grpc.keepalive_time_ms", 2_000)])


@pytest.mark.slow
def test_a_dead_client_is_noticed(monkeypatch):
    speed_up_keepalive(monkeypatch)

    async def work(watched, way, reviews):
        way.freeze()
        async with asyncio.timeout(LONG_S):
            await watched.ended.wait()

    run_with_watcher(work, [("grpc.keepalive_time_ms", 2**31 - 1)])
