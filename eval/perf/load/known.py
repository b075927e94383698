"""A server that has already tried some memes, so that their verdicts are reused."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from eval.perf.load.clients import JUDGE
from eval.standin.process import Process, Resources, served
from eval.synthetic.scenes import SCENES, draw_meme
from memecourt.v1 import court_pb2 as wire


@contextmanager
def served_known(
    memes: int, *options: object, environment: Mapping[str, str] | None = None, directory: str | None = None
) -> Iterator[tuple[Process, list[str], int]]:
    """Runs a server that has already tried some memes; yields it, a request file for each, and the size of an answer.

    Args:
        options: Options as for :func:`served`.
        environment: Environment as for :func:`served`.
        directory: Parent of its temporary directory; the system's default if None.
    """
    with TemporaryDirectory(prefix="memecourt-known-", dir=directory) as folder:
        requests = known_memes(Path(folder), memes)
        with served(Path(folder) / "home", *options, environment=environment) as server:
            yield server, requests, first_answers(server, requests)


def known_memes(place: Path, count: int) -> list[str]:
    """Writes files with one request each, whose text is given."""
    paths = [place / f"request-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        request = wire.JudgeRequest(image=picture(number), text=f"Meme number {number} of those that are known")
        path.write_bytes(request.SerializeToString())
    return [str(path) for path in paths]


def first_answers(server: Process, requests: list[str]) -> int:
    """Has all memes tried, so that they are known; returns the size of the last answer when its verdict is reused."""
    with grpc.insecure_channel(server.address) as channel:
        judge: Any = channel.unary_unary(JUDGE, None, None)
        for name in (*requests, requests[-1]):
            answer = judge(Path(name).read_bytes(), timeout=120)
    # Otherwise the load would measure trials, and not the path of a reused verdict.
    if not wire.JudgeResponse.FromString(answer).HasField("reused_from"):
        raise RuntimeError("a meme that was tried before has been tried again")
    return len(answer)


def picture(number: int, *, size: tuple[int, int] = (640, 480)) -> bytes:
    """Returns a unique generated meme as JPEG; some 30 to 60 KB at the default size."""
    file = io.BytesIO()
    drawn = draw_meme(sorted(SCENES)[number % len(SCENES)], f"Number {number}\nis like no other", seed=number)
    drawn.resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()


def settled(process: Process, *, most_s: float = 10.0) -> Resources:
    """Returns the resources of a process after a second without work, or after ``most_s`` seconds."""
    end = time.monotonic() + most_s
    before = process.cpu_s()
    while time.monotonic() < end:
        time.sleep(1.0)
        now = process.cpu_s()
        # Not zero: even an idle server runs its heartbeat and timers.
        if now - before < 0.1:
            break
        before = now
    return process.resources()
