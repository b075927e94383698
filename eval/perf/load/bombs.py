"""What 20 hostile pictures a second cost those who behave (IM-6): p95 of normal load beside them over that without.

The pictures say that they are larger than is taken, promise pixels that never come after many that do, hold more frames
or chunks than anybody draws, or are cut off in the middle; each is a file of its own. They come in turn, evenly spaced,
by a process of their own and in a namespace of their own. Every one must be refused as what it is.

Two normal loads are measured at the same time, before, beside and after them: known memes, whose verdict is given
again, and memes that nobody has seen, each in a file of its own, which are decoded by the same processes as the hostile
ones and tried. Undisturbed is the mean of before and after.
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
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from eval.perf.bench import Result
from eval.perf.load.clients import Job, Outcome, ask
from eval.perf.load.process import Process, picture, served
from eval.perf.load.service import first_answers, known_memes
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

RATE = 20.0
"""Hostile pictures a second."""
NAMESPACE = "bombs"
"""In which they are handed in."""
_PNG = b"\x89PNG\r\n\x1a\n"
_REFUSED = "INVALID_ARGUMENT"
_SETTLE_S = 2.0
_SIDE = 4096
"""Of the largest square that is taken, in pixels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        bombs: Hostile pictures a second.
        known: Known memes a second.
        fresh: Memes a second that nobody has seen.
        seconds: Of each of the three measurements.
    """

    bombs: float = RATE
    known: float = 50.0
    fresh: float = 2.0
    seconds: float = 60.0


def bomb(number: int) -> bytes:
    """A hostile picture, like no other; the kinds take turns."""
    return _KINDS[number % len(_KINDS)](random.Random(number))


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a normal request was not answered.
    """
    size = size or Scale()
    with TemporaryDirectory(prefix="memecourt-bombs-") as directory:
        place = Path(directory)
        requests = known_memes(place, 32)
        fresh = [_unseen(place, turn, round(size.fresh * size.seconds) + 1) for turn in range(3)]
        with served(place / "home") as server:
            first_answers(server, requests)
            before = _normal(server, requests, fresh[0], size)
            with ThreadPoolExecutor(1) as thread:
                thrown = thread.submit(_thrown, server.address, size)
                beside = _normal(server, requests, fresh[1], size)
                told = thrown.result()
            time.sleep(_SETTLE_S)
            after = _normal(server, requests, fresh[2], size)
    return Result(
        name="bombs",
        figures={
            **_over("known", before[0], beside[0], after[0]),
            **_over("fresh", before[1], beside[1], after[1]),
            "bombs": sum(told.values()),
            "bombs_refused": told[_REFUSED] / sum(told.values()),
            "loadavg": round(os.getloadavg()[0], 2),
        },
        goals={
            "known_p95_over_undisturbed": "<= 1.5",
            "fresh_p95_over_undisturbed": "<= 1.5",
            "bombs": f">= {round(0.99 * size.bombs * size.seconds)}",
            "bombs_refused": "== 1",
        },
    )


async def throw(address: str, rate: float, seconds: float) -> Counter[str]:
    """Hands in so many a second, whatever has become of those before; how often each status came."""
    codes: Counter[str] = Counter()

    async def one(client: AsyncClient, image: bytes) -> None:
        try:
            await client.ask(judge_request(image, text="x", namespace=NAMESPACE), timeout=60)
            codes["OK"] += 1
        except JudgeError as error:
            codes[error.code.name] += 1

    made = [bomb(number) for number in range(round(rate * seconds))]
    began = time.monotonic()
    async with AsyncClient(address, retries=Retries(attempts=1)) as client, asyncio.TaskGroup() as group:
        for number, image in enumerate(made):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(client, image))
    return codes


def _thrown(address: str, size: Scale) -> Counter[str]:
    command = [sys.executable, "-m", "eval.perf.load.bombs", address, str(size.bombs), str(size.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Who throws the bombs ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Counter(json.loads(done.stdout))


def _unseen(place: Path, turn: int, count: int) -> list[str]:
    """Files with a request each, about pictures that are in no other."""
    paths = [place / f"fresh-{turn}-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        unseen = wire.JudgeRequest(image=picture(10_000 * (turn + 1) + number), text=f"Meme {number} of turn {turn}")
        path.write_bytes(unseen.SerializeToString())
    return [str(path) for path in paths]


def _normal(server: Process, known: Sequence[str], fresh: Sequence[str], size: Scale) -> tuple[Outcome, Outcome]:
    """Both loads at once: known memes, and unseen ones."""
    jobs = (
        Job(server.address, known, clients=8, seconds=size.seconds, rate=size.known),
        Job(server.address, fresh, clients=4, seconds=size.seconds, rate=size.fresh, warm_s=0),
    )
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(ask, jobs)
    return first.require_all_answered(), second.require_all_answered()


def _over(name: str, before: Outcome, beside: Outcome, after: Outcome) -> dict[str, float]:
    return {
        f"{name}_p95_over_undisturbed": round(2 * beside.p95_ms / (before.p95_ms + after.p95_ms), 3),
        f"{name}_p95_ms": round(beside.p95_ms, 2),
        f"{name}_before_p95_ms": round(before.p95_ms, 2),
        f"{name}_after_p95_ms": round(after.p95_ms, 2),
    }


# What hostile pictures are made of.


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _head(width: int, height: int) -> bytes:
    return _PNG + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def _noted(chance: random.Random) -> bytes:
    return _chunk(b"tEXt", b"n\0" + chance.randbytes(8).hex().encode())


def _canvas_beyond_all(chance: random.Random) -> bytes:
    """A few bytes that would become gigabytes."""
    zeros = zlib.compress(bytes(1_000_000), 9)
    return _head(30_000, 30_000) + _noted(chance) + _chunk(b"IDAT", zeros) + _chunk(b"IEND", b"")


def _pixels_that_never_come(chance: random.Random) -> bytes:
    """As large as is taken, of which the last lines are missing: all the others are decoded for nothing."""
    return _head(_SIDE, _SIDE) + _noted(chance) + _chunk(b"IDAT", _most_lines()) + _chunk(b"IEND", b"")


@cache
def _most_lines() -> bytes:
    return zlib.compress((b"\0" + bytes(3 * _SIDE)) * (_SIDE - 8), 6)[:-4]


def _chunks_without_end(chance: random.Random) -> bytes:
    return _head(16, 16) + b"".join(_noted(chance) for _ in range(5000)) + _chunk(b"IEND", b"")


def _frames_without_end(chance: random.Random) -> bytes:
    """More frames than are taken, each a few bytes."""
    return _many_frames() + chance.randbytes(8)


@cache
def _many_frames() -> bytes:
    frames = [Image.new("P", (512, 512), number % 7) for number in range(70)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=20)
    return file.getvalue()


def _cut_off(chance: random.Random) -> bytes:
    """A progressive JPEG of many scans that ends in one of the first."""
    data = _many_scans()
    return data[: len(data) // 3 + chance.randrange(100_000)]


@cache
def _many_scans() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((1200, 900), 60).convert("RGB").save(file, "JPEG", quality=85, progressive=True)
    return file.getvalue()


def _nothing(chance: random.Random) -> bytes:
    """The head of a picture, and noise."""
    return b"\xff\xd8\xff\xe0" + chance.randbytes(60_000)


_KINDS: Sequence[Callable[[random.Random], bytes]] = (
    _canvas_beyond_all,
    _pixels_that_never_come,
    _chunks_without_end,
    _frames_without_end,
    _cut_off,
    _nothing,
)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.stdout.write(json.dumps(asyncio.run(throw(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))) + "\n")
