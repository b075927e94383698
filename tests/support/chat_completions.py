"""Helpers of tests of chat completions."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from court.backends.chat.client import ChatCompletions
from court.errors import CourtError
from court.ports import ChatRequest
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from tests.support.playing import run_within

MARKER = "marker-of-a-meme"
KEY = "sk-very-secret"
HELLO = ChatRequest(system="You are brief.", parts=(f"Say {MARKER}.",), reply_schema=None, max_tokens=64)


@asynccontextmanager
async def court_and_server(settings=None, **model):
    server = FakeModelServer(settings or Settings(api_key=KEY), keep=True)
    options = {"model": "stand-in", "api_key": KEY, "pause_s": 0.01, "pause_max_s": 0.02, **model}
    async with asyncio.timeout(200), serving(server) as port:
        chat = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", **options)
        try:
            yield chat, server
        finally:
            await chat.aclose()


def with_server(scenario, settings=None, **model):
    """Runs ``scenario(chat, server)`` and returns its result."""
    return run_within(court_and_server(settings, **model), scenario)


def failing(script, *, within_s=60.0, settings=None, request=HELLO, **model):
    """The error of a call when the server plays this script of faults, and the number of requests it got."""

    async def scenario(chat, server):
        server.faults.script(script)
        with pytest.raises(CourtError) as caught:
            await chat.reply(request, within_s=within_s)
        return caught.value, server.stats.calls

    return with_server(scenario, settings, **model)


async def wait_for_stats(server, *, within_s=60.0, **wanted):
    """Waits until the server's counters reach these values."""
    until = time.monotonic() + within_s
    while any(getattr(server.stats, name) < count for name, count in wanted.items()):
        assert time.monotonic() < until, server.stats
        await asyncio.sleep(0.005)
