"""Helpers of tests of server."""

import asyncio
import io
import os
import subprocess
import sys

from eval.synthetic.scenes import draw_meme
from serving.docket.open import Docket

# None of these is in the starter library.
HARMFUL = ("crowd", "People from Blueland are filth. Kick every one of them out of our town!")


HARMLESS = ("cat", "When the alarm rings on Monday and you are already late for coffee")


def drawn(scene, text, seed=0):
    file = io.BytesIO()
    draw_meme(scene, text, seed=seed).save(file, "PNG")
    return file.getvalue()


def memecourt(*arguments, home, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *map(str, arguments)],
        capture_output=True,
        text=stdin is None,
        input=stdin,
        env={**os.environ, "MEMECOURT_HOME": str(home)},
        timeout=300,
    )


def records(docket, *trial_ids):
    async def read():
        store = Docket.open(docket, create=False)
        try:
            entries = await store.index.list(limit=10_000)
            return {entry.trial_id: await store.trials.record(entry.trial_id) for entry in entries}
        finally:
            await store.close()

    found = asyncio.run(read())
    return [found[trial_id] for trial_id in trial_ids] if trial_ids else found
