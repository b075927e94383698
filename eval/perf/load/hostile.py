"""Hostile traffic and its cost to well-behaved callers: normal load next to it, over normal load without it.

Normal load is measured before, during and after the hostile load; undisturbed is the mean of before and after.

``bombs``: 20 hostile pictures per second (IM-6). They declare a size above the limit, promise pixels that never come
after many that do, contain an absurd number of frames or chunks, or are cut off in the middle; each is a unique file.
They are sent evenly spaced and with alternating kinds, from a separate process and in a separate namespace. Each must
be refused for the right reason. Two normal loads are measured at the same time: known memes, whose verdict is reused,
and new memes, each a unique file, which are tried and whose pictures are decoded by the same processes as the hostile
ones.

``slow-streams``: 1,000 slow or half-open callers, a quarter each: calls of ``Judge`` that are opened and send nothing;
streams that send a request and read no answer; watchers of a trial that makes no progress; connections that send
nothing. They live in a separate process, and reconnect a second after the server has dropped them. Normal load is known
memes at a steady rate. Each normal request has an id, which is on disk before the answer. The docket is in an in-memory
file system if there is one: a disk shared with others is occasionally late by tens of milliseconds, and the p99 would
show that instead of the effect of the callers.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import grpc
from PIL import Image

from eval.perf.bench import Result
from eval.perf.load.clients import JUDGE, Job, LoadOutcome, ask
from eval.perf.load.known import picture, served_known
from eval.standin.process import Process, model_server, run_module
from eval.standin.replies import meme_text
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

_KNOWN = 32
"""Memes whose verdict is ready."""

RATE = 20.0
"""Hostile pictures a second."""
NAMESPACE = "bombs"
"""Namespace of the hostile pictures."""
_PNG = b"\x89PNG\r\n\x1a\n"
_REFUSED = "INVALID_ARGUMENT"
_SIDE = 4096
"""Side of the largest accepted square, in pixels."""
_BOMBS_SETTLE_S = 2.0

_COURT = JUDGE.rpartition("/")[0]
_STANDING = "a request whose trial stands still"
_MEMORY = "/dev/shm"
_PER_CONNECTION = 100
_BACK_S = 1.0
_SLOW_SETTLE_S = 5.0
_HOLDS_S = 3600.0
"""Timeout of the caller of the stalled trial."""
_HANGING = 1000
"""Calls that the model server never answers, which is more than one trial makes."""
_ENVIRONMENT = {"MEMECOURT_GRACE": "0", "MEMECOURT_TRIAL__CALL_S": "3600"}
"""The stalled trial must not end while it is watched, nor be waited for at the end."""


def bomb(number: int) -> bytes:
    """Returns a unique hostile picture; the kinds alternate."""
    return _KINDS[number % len(_KINDS)](random.Random(number))


def bombs(*, rate: float = RATE, known: float = 50.0, fresh: float = 2.0, seconds: float = 60.0) -> Result:
    """Runs the benchmark.

    Args:
        rate: Hostile pictures per second.
        known: Known memes per second.
        fresh: New memes per second.
        seconds: Length of each of the three measurements.

    Raises:
        RuntimeError: The server did not start, or a normal request was not answered.
    """
    with (
        TemporaryDirectory(prefix="memecourt-fresh-") as directory,
        served_known(_KNOWN) as (server, requests, _),
        ThreadPoolExecutor(3) as threads,
    ):
        unseen = [_unseen(Path(directory), turn, round(fresh * seconds) + 1) for turn in range(3)]

        def normal(turn: int) -> list[LoadOutcome]:
            """Runs both loads at once: known memes, and new ones."""
            jobs = (
                Job(server.address, requests, clients=8, seconds=seconds, rate=known),
                # Without a warm-up, which would use up memes that have to be new.
                Job(server.address, unseen[turn], clients=4, seconds=seconds, rate=fresh, warm_s=0),
            )
            return [outcome.require_all_answered() for outcome in threads.map(ask, jobs)]

        before = normal(0)
        thrown = threads.submit(run_module, __name__, ["bombs", server.address, rate, seconds])
        beside = normal(1)
        counts = Counter[str](thrown.result())
        # The last hostile pictures may still be in the decoding processes; the next measurement must be free of them.
        time.sleep(_BOMBS_SETTLE_S)
        after = normal(2)
    figures: dict[str, float] = {}
    for name, load in zip(("known", "fresh"), zip(before, beside, after, strict=True), strict=True):
        figures |= {f"{name}_{figure}": value for figure, value in _disturbed("p95", *load).items()}
    return Result(
        figures={
            **figures,
            "bombs": sum(counts.values()),
            "bombs_refused": counts[_REFUSED] / sum(counts.values()),
        },
        goals={
            "known_p95_over_undisturbed": "<= 1.5",
            "fresh_p95_over_undisturbed": "<= 1.5",
            # If the sender had fallen behind its rate, the ratios above would flatter the server.
            "bombs": f">= {round(0.99 * rate * seconds)}",
            "bombs_refused": "== 1",
        },
    )


def _disturbed(percentile: str, before: LoadOutcome, beside: LoadOutcome, after: LoadOutcome) -> dict[str, float]:
    """Returns a percentile of normal load, such as ``p95``, during the hostile load and over that without it."""
    first, disturbed, last = (getattr(outcome, f"{percentile}_ms") for outcome in (before, beside, after))
    return {
        # Over the mean of before and after, so that a slowdown of the machine is not blamed on the load.
        f"{percentile}_over_undisturbed": 2 * disturbed / (first + last),
        f"{percentile}_ms": disturbed,
        f"before_{percentile}_ms": first,
        f"after_{percentile}_ms": last,
    }


async def throw(address: str, rate: float, seconds: float) -> Counter[str]:
    """Sends ``rate`` pictures per second, regardless of earlier outcomes; returns the count of each status."""
    codes: Counter[str] = Counter()

    async def one(client: AsyncClient, image: bytes) -> None:
        try:
            await client.ask(judge_request(image, text="x", namespace=NAMESPACE), timeout=60)
            codes["OK"] += 1
        except JudgeError as error:
            codes[error.code.name] += 1

    # Made in advance: compressing them takes a processor, and would delay the pictures that follow.
    made = [bomb(number) for number in range(round(rate * seconds))]
    began = time.monotonic()
    # No retries, which would raise the rate and count one picture twice.
    async with AsyncClient(address, retries=Retries(attempts=1)) as client, asyncio.TaskGroup() as group:
        for number, image in enumerate(made):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(client, image))
    return codes


def _unseen(place: Path, turn: int, count: int) -> list[str]:
    """Writes files with one request each, about pictures that are in no other request."""
    paths = [place / f"fresh-{turn}-{number}" for number in range(count)]
    # Each turn has numbers that no other turn and no known meme has.
    for number, path in enumerate(paths):
        unseen = wire.JudgeRequest(image=picture(10_000 * (turn + 1) + number), text=f"Meme {number} of turn {turn}")
        path.write_bytes(unseen.SerializeToString())
    return [str(path) for path in paths]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _head(width: int, height: int) -> bytes:
    return _PNG + _chunk(b"IHDR", struct.pack(">II", width, height) + bytes((8, 2, 0, 0, 0)))


def _noted(chance: random.Random) -> bytes:
    # A random note makes each file unique, so that no cache of file digests can refuse it.
    return _chunk(b"tEXt", b"n\0" + chance.randbytes(8).hex().encode())


def _canvas_beyond_all(chance: random.Random) -> bytes:
    """A few bytes that would decode to gigabytes."""
    zeros = zlib.compress(bytes(1_000_000), 9)
    return _head(30_000, 30_000) + _noted(chance) + _chunk(b"IDAT", zeros) + _chunk(b"IEND", b"")


def _pixels_that_never_come(chance: random.Random) -> bytes:
    """Builds a picture of the largest size without its last lines: decoding all others is wasted work."""
    return _head(_SIDE, _SIDE) + _noted(chance) + _chunk(b"IDAT", _most_lines()) + _chunk(b"IEND", b"")


# The same in all files, and slow to compress.
@cache
def _most_lines() -> bytes:
    # Without the last four bytes, zlib's checksum: the stream just ends.
    return zlib.compress((b"\0" + bytes(3 * _SIDE)) * (_SIDE - 8), 6)[:-4]


def _chunks_without_end(chance: random.Random) -> bytes:
    # More than `Limits.max_png_chunks`, 4,096.
    return _head(16, 16) + b"".join(_noted(chance) for _ in range(5000)) + _chunk(b"IEND", b"")


def _frames_without_end(chance: random.Random) -> bytes:
    """More frames than are accepted, each a few bytes."""
    # Bytes after the end of a GIF give another file with the same picture.
    return _many_frames() + chance.randbytes(8)


@cache
def _many_frames() -> bytes:
    # More than `Limits.max_frames`, 64. Neighbours differ, because Pillow merges equal ones into a single frame.
    frames = [Image.new("P", (512, 512), number % 7) for number in range(70)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=20)
    return file.getvalue()


def _cut_off(chance: random.Random) -> bytes:
    """An animation of frames that are slow to decode, which ends in the middle of one."""
    data = _noisy_frames()
    return data[: len(data) // 3 + chance.randrange(len(data) // 3)]


@cache
def _noisy_frames() -> bytes:
    frames = [Image.effect_noise((600, 450), 60).convert("P") for _ in range(4)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=20)
    return file.getvalue()


def _nothing(chance: random.Random) -> bytes:
    """The header of a picture followed by noise."""
    return b"\xff\xd8\xff\xe0" + chance.randbytes(60_000)


_KINDS: Sequence[Callable[[random.Random], bytes]] = (
    _canvas_beyond_all,
    _pixels_that_never_come,
    _chunks_without_end,
    _frames_without_end,
    _cut_off,
    _nothing,
)


def slow_streams(*, slow: int = 1000, rate: float = 100.0, clients: int = 16, seconds: float = 20.0) -> Result:
    """Runs the benchmark.

    Args:
        slow: Slow callers.
        rate: Normal requests per second.
        seconds: Length of each of the three measurements.

    Raises:
        RuntimeError: The server did not start, or a normal request was not answered.
    """
    in_memory = os.access(_MEMORY, os.W_OK)
    with (
        model_server("--play") as models,
        served_known(
            _KNOWN,
            *("--llm-url", f"{models}/v1", "--model", "stand-in"),
            environment=_ENVIRONMENT,
            directory=_MEMORY if in_memory else None,
        ) as (server, requests, _),
    ):
        job = Job(server.address, requests, clients=clients, seconds=seconds, rate=rate)
        # Only now: the known memes have been tried, and the stalled trial has not begun.
        _hold(models)
        with _standing(server):
            before = ask(job).require_all_answered()
            with _slow(server, slow) as counts:
                time.sleep(_SLOW_SETTLE_S)
                beside = ask(job).require_all_answered()
                used = server.resources()
            # They report when they leave, so the counts are complete only after the block has ended.
            callers = counts()
            time.sleep(_SLOW_SETTLE_S)
            after = ask(job).require_all_answered()
    return Result(
        figures={
            **_disturbed("p99", before, beside, after),
            "p50_over_undisturbed": _disturbed("p50", before, beside, after)["p50_over_undisturbed"],
            "new_connections_ms": beside.first_ms,
            "docket_in_memory": int(in_memory),
            "slow_at_once": callers["most"],
            "sent_away": callers["ended"],
            "memory_mib": used.memory,
            "handles": used.handles,
        },
        goals={"p99_over_undisturbed": "<= 2", "slow_at_once": f">= {round(0.9 * slow)}"},
    )


def _hold(models: str) -> None:
    """Makes the model server hang on every further call."""
    script = json.dumps(["hang"] * _HANGING).encode()
    with urlopen(Request(f"{models}/script", script, {"Content-Type": "application/json"})) as answer:
        answer.read()


@contextmanager
def _standing(server: Process) -> Iterator[None]:
    """Keeps a full trial waiting for the model while the block lasts."""
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
    """Runs the slow callers, all connected; yields a function that returns their counts once they have gone."""
    command = [sys.executable, "-m", "eval.perf.load.hostile", "slow", server.address, str(count)]
    counts: dict[str, int] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            if process.stdout.readline().strip() != "there":
                raise RuntimeError("the slow callers did not come")
            yield lambda: counts
            # Closing their standard input is the signal to leave.
            process.stdin.close()
            counts |= json.loads(process.stdout.readline())
        finally:
            process.kill()


@dataclass(slots=True)
class _Counts:
    there: int = 0
    most: int = 0
    ended: int = 0


class _Callers:
    """The slow callers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._counts = _Counts()
        self._channels: list[grpc.aio.Channel] = []

    async def stay(self, count: int) -> dict[str, int]:
        """Stays until standard input ends."""
        kinds = (self._silent_call, self._unread_stream, self._watcher, self._silent_connection)
        tasks = [asyncio.create_task(self._again(kinds[n % len(kinds)], n // len(kinds))) for n in range(count)]
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        # In a thread, because reading standard input would block the loop.
        threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(end.set)), daemon=True).start()
        began = time.monotonic()
        # Never wait for all of them: callers that were dropped are gone for a second.
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
                # Being dropped is expected: it is counted below.
                with suppress(grpc.aio.AioRpcError, OSError):
                    await caller(number)
            finally:
                self._counts.there -= 1
            # Reached only if the server ended the call: at the end the task is cancelled.
            self._counts.ended += 1
            await asyncio.sleep(_BACK_S)

    def _channel(self, number: int) -> grpc.aio.Channel:
        place = number // _PER_CONNECTION
        while len(self._channels) <= place:
            # A separate pool, otherwise all channels would share one connection.
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
        request = wire.WatchTrialRequest(request=wire.RequestName(request_id=_STANDING))
        watch: Any = self._channel(number).unary_stream(f"{_COURT}/WatchTrial", None, None)
        call = watch(request.SerializeToString())
        # Events are read: this caller is slow because the trial is stalled, not because it stops reading.
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


def _main(kind: str, address: str, *numbers: str) -> None:
    """Runs the hostile load in this process, and prints its counts to standard output."""
    if kind == "bombs":
        rate, seconds = map(float, numbers)
        counts = dict(asyncio.run(throw(address, rate, seconds)))
    else:
        counts = asyncio.run(_Callers(address).stay(int(numbers[0])))
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        _main(*sys.argv[1:])
