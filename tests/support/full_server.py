"""Helpers of tests of full server."""

import json
import signal
import subprocess
import sys

from memecourt.client import Client, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from tests.support.server import HARMFUL, drawn

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
