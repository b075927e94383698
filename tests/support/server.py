"""Helpers of tests of server."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys

from eval.synthetic.scenes import draw_meme
from memecourt.client import Client, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
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


FULL = wire.PROCEDURE_FULL


class ModelServer:
    """The fake model server as a subprocess, on a port that stays the same when it is restarted."""

    def __init__(self, *options: str) -> None:
        self.port = 0  # chosen at the first start
        self.options = options
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eval.standin.server", "--port", str(self.port), *self.options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        port = json.loads(self.process.stdout.readline())["port"]
        assert self.port in (0, port)
        self.port = port

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)
        self.process.stdout.close()


def ask(address, **options):
    with Client(address, retries=Retries(attempts=1)) as court:
        return court.ask(judge_request(drawn(*HARMFUL), text=HARMFUL[1], **options), timeout=100)
