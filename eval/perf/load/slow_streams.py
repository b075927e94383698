"""What 1,000 slow or half-open callers cost those who behave: the p99 of normal load beside them, over that without.

A quarter each: calls of ``Judge`` that are opened and send nothing; streams that send a request and read no answer;
watchers of a trial that stands still; connections that say nothing. They live in a process of their own, and come back
a second after the server has sent them away. Normal load is known memes at a steady rate, measured before, beside and
after them; undisturbed is the mean of before and after.

Each normal request has an id, which is on the disk before the answer. Where there is a file system in memory, the
docket is in it: a disk that others use as well is late by tens of milliseconds now and then, and the p99 would tell of
that instead of the callers.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import grpc

from eval.perf.bench import Result
from eval.perf.load.clients import JUDGE, Job, Outcome, ask
from eval.perf.load.process import Process, picture, served
from eval.perf.load.service import first_answers, known_memes
from eval.perf.model_server.replies import meme_text
from eval.perf.trials.trials import server as stand_in
from memecourt.v1 import court_pb2 as wire

_COURT = JUDGE.rpartition("/")[0]
_STANDING = "a request whose trial stands still"
_MEMORY = "/dev/shm"
_PER_CONNECTION = 100
_BACK_S = 1.0
_SETTLE_S = 5.0
_HOLDS_S = 3600.0
"""What the caller of the trial that stands still gives it."""
_HANGING = 1000
"""Calls that the model server never answers, which is more than one trial makes."""


_ENVIRONMENT = {"MEMECOURT_GRACE": "0", "MEMECOURT_TRIAL__CALL_S": "3600"}
"""The trial that stands still is not to end while it is watched, and not to be waited for at the end."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        slow: Callers that are slow.
        rate: Normal requests a second.
        clients: That ask them.
        seconds: Of each of the three measurements.
    """

    slow: int = 1000
    rate: float = 100.0
    clients: int = 16
    seconds: float = 20.0


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a normal request was not answered.
    """
    size = size or Scale()
    in_memory = os.access(_MEMORY, os.W_OK)
    with (
        TemporaryDirectory(prefix="memecourt-slow-", dir=_MEMORY if in_memory else None) as directory,
        stand_in("--play") as models,
    ):
        place = Path(directory)
        requests = known_memes(place, 32)
        options = ("--llm-url", f"{models}/v1", "--model", "stand-in")
        with served(place / "home", *options, environment=_ENVIRONMENT) as server:
            first_answers(server, requests)
            _hold(models)
            with _standing(server):
                before = _normal(server, requests, size)
                with _slow(server, size.slow) as told:
                    time.sleep(_SETTLE_S)
                    beside = _normal(server, requests, size)
                    held = server.held()
                slow = told()
                time.sleep(_SETTLE_S)
                after = _normal(server, requests, size)
    undisturbed = (before.p99_ms + after.p99_ms) / 2
    return Result(
        name="slow-streams",
        figures={
            "p99_over_undisturbed": round(beside.p99_ms / undisturbed, 3),
            "p50_over_undisturbed": round(2 * beside.p50_ms / (before.p50_ms + after.p50_ms), 3),
            "p99_ms": round(beside.p99_ms, 2),
            "before_p99_ms": round(before.p99_ms, 2),
            "after_p99_ms": round(after.p99_ms, 2),
            "new_connections_ms": round(beside.first_ms, 1),
            "docket_in_memory": int(in_memory),
            "slow_at_once": slow["most"],
            "sent_away": slow["ended"],
            "memory_mib": round(held.memory, 1),
            "handles": held.handles,
            "loadavg": round(os.getloadavg()[0], 2),
        },
        goals={"p99_over_undisturbed": "<= 2", "slow_at_once": f">= {round(0.9 * size.slow)}"},
    )


def _normal(server: Process, requests: Sequence[str], size: Scale) -> Outcome:
    return ask(
        Job(server.address, requests, clients=size.clients, seconds=size.seconds, rate=size.rate)
    ).require_all_answered()


def _hold(models: str) -> None:
    """From now on the model server answers nothing."""
    script = json.dumps(["hang"] * _HANGING).encode()
    with urlopen(Request(f"{models}/script", script, {"Content-Type": "application/json"})) as answer:
        answer.read()


@contextmanager
def _standing(server: Process) -> Iterator[None]:
    """A full trial that waits for the model, for as long as the block lasts."""
    request = wire.JudgeRequest(
        image=picture(1000), text=meme_text("standing", 2), procedure=wire.PROCEDURE_FULL, request_id=_STANDING
    )
    with grpc.insecure_channel(server.address) as channel:
        judge: Any = channel.unary_unary(JUDGE, None, None)
        call = judge.future(request.SerializeToString(), timeout=_HOLDS_S)
        try:
            yield
        finally:
            call.cancel()


@contextmanager
def _slow(server: Process, count: int) -> Iterator[Callable[[], dict[str, int]]]:
    """The slow callers, all of them there; what is given tells of them once they have gone."""
    command = [sys.executable, "-m", "eval.perf.load.slow_streams", server.address, str(count)]
    told: dict[str, int] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            if process.stdout.readline().strip() != "there":
                raise RuntimeError("the slow callers did not come")
            yield lambda: told
            process.stdin.close()
            told |= json.loads(process.stdout.readline())
        finally:
            process.kill()


@dataclass(slots=True)
class _Counts:
    there: int = 0
    most: int = 0
    ended: int = 0


class _Callers:
    """The slow ones."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._counts = _Counts()
        self._channels: list[grpc.aio.Channel] = []

    async def stay(self, count: int) -> dict[str, int]:
        """Until the standard input ends."""
        kinds = (self._silent_call, self._unread_stream, self._watcher, self._silent_connection)
        tasks = [asyncio.create_task(self._again(kinds[n % len(kinds)], n // len(kinds))) for n in range(count)]
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(end.set)), daemon=True).start()
        began = time.monotonic()
        while self._counts.there < 0.9 * count and time.monotonic() - began < 60:  # noqa: ASYNC110 - seconds, once
            await asyncio.sleep(0.1)
        sys.stdout.write("there\n")
        sys.stdout.flush()
        await end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))
        return {"most": self._counts.most, "ended": self._counts.ended}

    async def _again(self, caller: Callable[[int], Awaitable[None]], number: int) -> None:
        while True:
            self._counts.there += 1
            self._counts.most = max(self._counts.most, self._counts.there)
            try:
                with suppress(grpc.aio.AioRpcError, OSError):
                    await caller(number)
            finally:
                self._counts.there -= 1
            self._counts.ended += 1
            await asyncio.sleep(_BACK_S)

    def _channel(self, number: int) -> grpc.aio.Channel:
        place = number // _PER_CONNECTION
        while len(self._channels) <= place:
            options = (("grpc.use_local_subchannel_pool", 1),)
            self._channels.append(grpc.aio.insecure_channel(self._address, options=options))
        return self._channels[place]

    async def _silent_call(self, number: int) -> None:
        call: Any = self._channel(number).stream_unary(JUDGE, None, None)()
        await call.code()

    async def _unread_stream(self, number: int) -> None:
        call: Any = self._channel(number).stream_stream(f"{_COURT}/JudgeStream", None, None)()
        judge = wire.JudgeRequest(image=b"no picture", request_id="unread")
        await call.write(wire.JudgeStreamRequest(request=judge).SerializeToString())
        await call.code()

    async def _watcher(self, number: int) -> None:
        asked = wire.WatchTrialRequest(request=wire.RequestName(request_id=_STANDING))
        watch: Any = self._channel(number).unary_stream(f"{_COURT}/WatchTrial", None, None)
        call = watch(asked.SerializeToString())
        while await call.read() is not grpc.aio.EOF:
            pass

    async def _silent_connection(self, _: int) -> None:
        host, _sep, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            while await reader.read(4096):
                pass
        finally:
            writer.close()


if __name__ == "__main__":
    outcome = asyncio.run(_Callers(sys.argv[1]).stay(int(sys.argv[2])))
    sys.stdout.write(json.dumps(outcome) + "\n")
