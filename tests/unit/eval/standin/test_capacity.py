"""Spare capacity of a model server, and connections to it."""

import asyncio
import re

import pytest

from court.backends.chat.client import ChatCompletions
from court.backends.http import Load, Spread, http_client
from court.ports import ChatRequest
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings


def test_capacity_is_free_below_the_limit():
    load = Load(2)
    with load.call():
        assert load.room() and load.in_flight == 1
        with load.call():
            assert not load.room()
        assert load.room()
    assert load.in_flight == 0
    with pytest.raises(ValueError, match="at least one"):
        Load(0)


HELLO = ChatRequest("s", ("hello",), None, 8)


async def test_load_counts_the_calls_of_all_models_however_they_end():
    load = Load(3)
    async with serving(FakeModelServer(Settings(call_s=60, faults=()))) as port:
        url = f"http://127.0.0.1:{port}/v1"
        models = [ChatCompletions(base_url=url, model=name, load=load, attempts=1) for name in ("stand-in", "none")]
        asking = [asyncio.create_task(models[0].reply(HELLO, within_s=60)) for _ in range(3)]
        for _ in range(20):  # every task reaches its call within a few turns of the event loop
            await asyncio.sleep(0)
        full = (load.in_flight, load.room())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        with pytest.raises(Exception, match="does not know the model"):
            await models[1].reply(HELLO, within_s=60)
        for model in models:
            await model.aclose()
    assert (full, load.in_flight) == ((3, False), 0)


async def test_request_goes_to_the_pool_with_the_fewest_in_flight():
    async with serving(FakeModelServer(Settings())) as port, http_client(connections=64) as http:
        spread = http._transport
        assert isinstance(spread, Spread) and len(spread._pools) == 4
        url = f"http://127.0.0.1:{port}/health"
        in_flight = []
        async with http.stream("GET", url), http.stream("GET", url) as second:
            in_flight.append(list(spread._in_flight))
            await second.aread()
            await second.aclose()
            await second.aclose()  # counted once
            in_flight.append(list(spread._in_flight))
        with pytest.raises(Exception, match=re.compile("connect", re.IGNORECASE)):
            await http.get("http://127.0.0.1:1/")
        in_flight.append(list(spread._in_flight))
        assert in_flight == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
