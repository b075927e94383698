"""Helpers of tests of run."""

import asyncio

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
