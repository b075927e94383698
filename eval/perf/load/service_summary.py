"""How much of what its encoder could do a server does: ``summary`` trials of ever new memes whose text is given.

The encoder alone is given the same texts and pictures, decoded beforehand, one meme at a time as they come, in a
process that does nothing else; the server decodes, searches, judges and keeps besides. What is missing from 1 is that.
Which encoder it is matters: the built-in one takes so little that the rest weighs, a CLIP model on a processor takes
nearly all there is. ``MEMECOURT_PERF_ENCODER`` names another than the built-in one, as ``MEMECOURT_ENCODER`` does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from court.backends.pictures.reader import GuardedPictureReader
from court.meme import Picture
from eval.perf.bench import Result
from eval.perf.load.clients import Job, ask
from eval.perf.load.process import picture, served
from eval.perf.load.service import known_memes
from retrieval.embed.encoder import Encoder
from retrieval.open import load_encoder_for

ENCODER_VARIABLE = "MEMECOURT_PERF_ENCODER"
"""The encoder to measure with; the built-in one if it is not set."""
_TEXT = "A text that nobody has sent before, with number"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        pictures: Different ones; every text is new.
        clients: That ask at once.
        requests: Of a turn, at most.
        turn_s: What a turn takes the encoder alone, about, in seconds; at most.
        turns: Of either.
    """

    pictures: int = 32
    clients: int = 16
    requests: int = 300
    turn_s: float = 10.0
    turns: int = 7


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    size = size or Scale()
    named = os.environ.get(ENCODER_VARIABLE) or None
    encoder = load_encoder_for(None, named)
    pictures = asyncio.run(_decoded(size.pictures))
    turns = []
    with TemporaryDirectory(prefix="memecourt-summary-") as directory:
        place = Path(directory)
        requests = known_memes(place, size.pictures)
        with served(place / "home", environment={"MEMECOURT_ENCODER": named} if named else None) as server:
            _alone(encoder, pictures, size.clients)  # warms up
            a_meme = _alone(encoder, pictures, size.clients) / size.clients
            count = min(size.requests, max(2 * size.clients, round(size.turn_s / a_meme)))
            for _ in range(size.turns):
                alone = _alone(encoder, pictures, count)
                job = Job(server.address, requests, size.clients, 600.0, 1.0, count, text=_TEXT)
                told = ask(job).require_all_answered()
                turns.append((told.rate, count / alone, told.p99_ms))
    return Result(
        name="service-summary",
        figures={
            "of_encoder": round(statistics.median(rate / encoder for rate, encoder, _ in turns), 3),
            "requests_s": round(statistics.median(rate for rate, _, _ in turns), 1),
            "encoder_s": round(statistics.median(encoder for _, encoder, _ in turns), 1),
            "p99_ms": round(statistics.median(p99 for _, _, p99 in turns), 1),
            "requests_a_turn": count,
            "loadavg": round(os.getloadavg()[0], 2),
        },
        goals={"of_encoder": ">= 0.8"},
    )


async def _decoded(count: int) -> Sequence[Picture]:
    reader = GuardedPictureReader(workers=1)
    try:
        return [await reader.read(picture(number)) for number in range(count)]
    finally:
        await reader.aclose()


def _alone(encoder: Encoder, pictures: Sequence[Picture], count: int) -> float:
    """Seconds that the encoder takes for so many memes."""
    run = uuid.uuid4().hex[:16]  # as the clients mark their texts, which are twice as long by it
    began = time.perf_counter()
    for number in range(count):
        encoder.embed_texts([f"{_TEXT} {run}-{number}"])
        encoder.embed_pictures([[frame.png for frame in pictures[number % len(pictures)].frames]])
    return time.perf_counter() - began
