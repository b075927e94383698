"""Connections that carry nothing any more, and nobody says so: both ends notice, and clients go on over another."""

import asyncio
import threading
import time

import grpc
import pytest

import memecourt.connection
import serving.rpc.server
from memecourt.client import AsyncClient, judge_request
from memecourt.v1 import court_pb2 as wire
from serving.rpc.methods import Methods
from serving.rpc.server import make_server
from tests.contract.fake_court import FakeCourt, served
from tests.contract.test_client import Loop, Threads, answered
from tests.support.freezing import a_way

SHORT = {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 2_000, "grpc.http2.ping_timeout_ms": 2_000}
# Only those that a client has by itself: a test is not to bring what is missing.
QUICK = {"options": [(name, SHORT[name]) for name, _ in memecourt.connection._OPTIONS if name in SHORT]}
LONG_S = 40
"""Longer than any of these takes where it works, and less than a minute, after which gRPC itself may notice."""


@pytest.fixture(params=[Threads, Loop])
def client(request):
    return request.param


def test_a_call_is_made_again_over_another_connection(client):
    def answer(method, request, number):
        if number == 1:
            way.freeze()
        return court.verdict(request)

    court = FakeCourt(answer)
    with served(court) as address, a_way(address) as way:
        response = client.call(way.address, "judge", b"image", timeout=LONG_S, _client=QUICK)
        # On a busy machine a connection that is well may be taken for a dead one as well.
        assert way.connections >= 2
    assert response.label == wire.LABEL_NOT_HARMFUL
    assert court.calls["Judge"] >= 2


def test_a_stream_of_requests_goes_on_over_another_connection(client):
    def stream(requests, number, context):
        if number == 1:
            way.freeze()
        for asked in requests:
            yield answered(court, asked)

    court = FakeCourt()
    court.stream = stream
    asks = [judge_request(b"image", request_id=f"r{each}") for each in range(3)]
    with served(court) as address, a_way(address) as way:
        found = client.each(way.address, "judge_many", asks, timeout=LONG_S, _client=QUICK)
    assert {name: response.verdict_id for name, response in found} == {f"r{each}": f"of r{each}" for each in range(3)}


@pytest.mark.slow
def test_who_only_listens_goes_on_over_another_connection(client):
    """Also after a silence in which gRPC by itself would have stopped asking whether the other end is there."""
    over = threading.Event()
    late = []

    def answer(method, request, number):
        yield wire.WatchReviewsResponse(next_entry=number, reviewed=wire.ReviewedVerdict(trial_id=f"t{number}"))
        if number == 1:
            time.sleep(5)
            way.freeze()
            if not over.wait(LONG_S):
                late.append("the client has not noticed")
                way.cut()
        else:
            over.set()

    court = FakeCourt(answer)
    with served(court) as address, a_way(address) as way:
        found = client.each(way.address, "reviews", 0, most=2, _client=QUICK)
        over.set()
    assert [response.reviewed.trial_id for response in found] == ["t1", "t2"] and not late
    assert [request.from_entry for request in court.asked] == [0, 1]


class Watched:
    """Tells of a review at once, and of nothing more; ``ended`` is set when a watcher is gone."""

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


def hastened(monkeypatch, *names):
    """So many of the server's options, all where none is named, are a tenth."""
    alive = [(name, value // 10 if name in names or not names else value) for name, value in serving.rpc.server._ALIVE]
    monkeypatch.setattr(serving.rpc.server, "_ALIVE", alive)


def with_watcher(work, options=()):
    async def play():
        watched = Watched()
        server, _ = await make_server(Methods(watched))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with a_way(f"127.0.0.1:{port}") as way:
            async with AsyncClient(way.address, options=options) as client:
                reviews = client.reviews(0)
                await anext(reviews)
                await work(watched, way, reviews)
                await reviews.aclose()
        await server.stop(0)

    asyncio.run(play())


@pytest.mark.slow
def test_a_client_may_ask_again_and_again_whether_the_server_is_there(monkeypatch):
    hastened(monkeypatch, "grpc.http2.min_ping_interval_without_data_ms")

    async def work(watched, way, reviews):
        more = asyncio.ensure_future(anext(reviews))
        await asyncio.wait((more,), timeout=11)  # five times
        assert not more.done() and not watched.ended.is_set()
        assert (watched.watched, way.connections) == (1, 1)
        more.cancel()
        await asyncio.gather(more, return_exceptions=True)

    with_watcher(work, [("grpc.keepalive_time_ms", 2_000)])


@pytest.mark.slow
def test_a_caller_that_is_gone_is_noticed(monkeypatch):
    hastened(monkeypatch)

    async def work(watched, way, reviews):
        way.freeze()
        async with asyncio.timeout(LONG_S):
            await watched.ended.wait()

    with_watcher(work, [("grpc.keepalive_time_ms", 2**31 - 1)])
