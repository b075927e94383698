"""Cost of searching known memes: memory per meme, and search time among 100,000 of them.

The fingerprints have random hashes and generated texts, a hundred captions for each picture. Memory is the difference
of the process before and after they are loaded. A search is that of a trial whose picture is already hashed: it
searches the hashes in eight orientations, compares the texts of near ones, and reads the labels of their trials. No
picture is decoded or aligned with another, because no two texts are equal.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from court.events import AnyEvent
from court.meme import Frame, Picture, PictureFormat
from court.record import TrialRecord
from court.verdict import Label
from eval.perf.bench import Result, resident_bytes
from eval.synthetic.scenes import draw_meme
from retrieval.near_duplicates.match import MemeText, fingerprint
from retrieval.near_duplicates.pdq import BYTES, Hash
from serving.docket.ports import DocketLine, Failure, FingerprintStore, TrialIndex, TrialReader
from serving.runner.near_duplicates import NearDuplicateIndex, StoredFingerprint
from serving.settings import Settings

_CAPTIONS = 100
_QUESTIONS = 30


def near_memes(*, known: int = 100_000) -> Result:
    """Runs the benchmark among ``known`` known memes."""
    return asyncio.run(_measured(known))


async def _measured(known: int) -> Result:
    unknown, picture = _drawn("screen"), _drawn("cat")
    docket = _Docket(known, fingerprint([picture.frames[0].png], MemeText("", read=False)).frames[0][0].hash)
    index = NearDuplicateIndex(fingerprints=docket, trials=docket, index=docket, settings=Settings())
    try:
        # The arrays of the docket above already exist and so are not counted.
        before = resident_bytes()
        began = time.perf_counter()
        await index.catch_up()
        read_s = time.perf_counter() - began
        per_meme = (resident_bytes() - before) / known
        nothing, hundred = await _query(index, unknown), await _query(index, picture)
    finally:
        await index.close()
    return Result(
        figures={
            "bytes_per_meme": round(per_meme),
            "nothing_near_ms": nothing,
            "hundred_captions_ms": hundred,
            "read_at_start_s": read_s,
        },
        goals={"bytes_per_meme": "<= 500"},
    )


async def _query(index: NearDuplicateIndex, picture: Picture) -> float:
    """Returns the median search time for a picture, in milliseconds, without the first search, which hashes it."""
    took = []
    for _ in range(1 + _QUESTIONS):
        began = time.perf_counter()
        await index.find(picture, "a caption that nobody has given to this picture yet", True, "")
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took[1:])


def _drawn(scene: str) -> Picture:
    out = io.BytesIO()
    still = draw_meme(scene, "", seed=0)
    still.save(out, "PNG")
    pixels = hashlib.sha256(still.tobytes()).hexdigest()
    frame = Frame(out.getvalue(), still.width, still.height)
    return Picture(
        format=PictureFormat.PNG,
        bytes_sha256=pixels,
        pixels_sha256=pixels,
        width=still.width,
        height=still.height,
        frame_count=1,
        frames=(frame,),
    )


class _Docket(FingerprintStore, TrialReader, TrialIndex):
    """Generates fingerprints on demand; one of the pictures is real."""

    def __init__(self, known: int, picture: Hash) -> None:
        self._known = known
        rng = np.random.default_rng(0)
        # So few pictures that each has a hundred captions.
        self._pictures = rng.integers(0, 256, (known // _CAPTIONS, BYTES), dtype=np.uint8)
        self._pictures[0] = picture

    async def put_fingerprint(self, trial_id: str, fingerprint: bytes) -> None:
        raise AssertionError("nothing is tried here")

    async def fingerprints(self, since: int, *, most: int = 10_000) -> Sequence[tuple[int, str, bytes]]:
        return [
            (number, str(uuid.UUID(int=number)), self._fingerprint(number))
            for number in range(since + 1, min(since + most, self._known) + 1)
        ]

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        return dict.fromkeys(trial_ids, Label.HARMFUL)

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        raise AssertionError("no text is the same")

    async def record(self, trial_id: str) -> TrialRecord:
        raise AssertionError("nothing is given again")

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        raise AssertionError("no trial is read")

    async def list(self, **options: Any) -> Sequence[DocketLine]:
        raise AssertionError("no trial is listed")

    async def failures(self, pixels_sha256: str) -> Sequence[Failure]:
        raise AssertionError("no picture is decoded")

    async def count_opened(self, namespace: str, since: datetime) -> Mapping[datetime, int]:
        raise AssertionError("nobody has a quota")

    async def requests(self) -> Mapping[str, Sequence[str]]:
        raise AssertionError("nothing is requested")

    def _fingerprint(self, number: int) -> bytes:
        hashes = self._pictures[number % len(self._pictures)][None].copy()
        text = f"People from Blueland bring soup to the neighbours, and this is caption {number} of them all"
        return StoredFingerprint(f"{number:064x}", "", MemeText(text, read=True), hashes).to_bytes()
