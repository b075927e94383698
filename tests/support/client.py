"""Helpers of tests of client."""

import asyncio
import threading
from contextlib import aclosing, closing

import pytest

from memecourt.client import AsyncClient, Client, Retries
from memecourt.v1 import court_pb2 as wire

QUICK = Retries(first_s=0.01, most_s=0.05, ready_s=0.5)


class Threads:
    """Runs calls with the client for threads."""

    @staticmethod
    def call(address, name, *arguments, _client=None, **options):
        with Client(address, **{"retries": QUICK, **(_client or {})}) as client:
            return getattr(client, name)(*arguments, **options)

    @staticmethod
    def each(address, name, *arguments, most=None, _client=None, _found=None, **options):
        found = [] if _found is None else _found
        with Client(address, **{"retries": QUICK, **(_client or {})}) as client:
            with closing(getattr(client, name)(*arguments, **options)) as items:
                for item in items:
                    found.append(item)
                    if len(found) == most:
                        break
            return found

    @staticmethod
    def closing(address, requests, when, found):
        """Closes the client when ``when`` is set, while it waits for outcomes."""
        with Client(address, retries=QUICK) as client:
            threading.Thread(target=lambda: when.wait(60) and client.close(), daemon=True).start()
            for outcome in client.judge_many(requests, timeout=300):
                found.append(outcome)


class Loop:
    """Runs calls with the client for asyncio."""

    @staticmethod
    def closing(address, requests, when, found):
        async def work():
            async def close():
                await asyncio.to_thread(when.wait, 60)
                await client.close()

            async with AsyncClient(address, retries=QUICK) as client:
                ending = asyncio.ensure_future(close())
                async for outcome in client.judge_many(requests, timeout=300):
                    found.append(outcome)
                await ending

        asyncio.run(asyncio.wait_for(work(), 120))

    @staticmethod
    def call(address, name, *arguments, _client=None, **options):
        async def work():
            async with AsyncClient(address, **{"retries": QUICK, **(_client or {})}) as client:
                return await getattr(client, name)(*arguments, **options)

        return asyncio.run(work())

    @staticmethod
    def each(address, name, *arguments, most=None, _client=None, _found=None, **options):
        async def work():
            found = [] if _found is None else _found
            async with AsyncClient(address, **{"retries": QUICK, **(_client or {})}) as client:
                async with aclosing(getattr(client, name)(*arguments, **options)) as items:
                    async for item in items:
                        found.append(item)
                        if len(found) == most:
                            break
                return found

        return asyncio.run(work())


@pytest.fixture(params=[Threads, Loop])
def client(request):
    return request.param


def answered(court, message):
    return wire.JudgeStreamResponse(request_id=message.request.request_id, verdict=court.verdict(message.request))
