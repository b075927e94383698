"""Helpers of tests of run."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing

from eval.models.call_cache import SqliteCallCache
from eval.runs.results import DOCKET
from serving.docket.open import Docket


def docket_of(folder, work):
    async def scene():
        docket = Docket.open(folder.root / DOCKET, create=False)
        try:
            return await work(docket)
        finally:
            await docket.close()

    return asyncio.run(scene())


def stored_calls(path):
    """Number of replies in a store of calls."""
    with closing(sqlite3.connect(path)) as file:
        return file.execute("SELECT count(*) FROM calls").fetchone()[0]


@asynccontextmanager
async def opened_calls(path):
    """A store of calls, for as long as the context lasts."""
    store = SqliteCallCache(path)
    try:
        yield store
    finally:
        await store.close()
