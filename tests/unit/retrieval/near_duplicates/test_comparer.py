"""Worker processes that hash and compare pictures: they recover from any picture."""

import asyncio
import os
import signal
from contextlib import aclosing
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from court.backends.sandbox.process import worker_deaths
from court.errors import Overrun, Unavailable
from retrieval.near_duplicates.comparer import GuardedComparer
from retrieval.near_duplicates.match import Agreement, MatchThresholds, fingerprint
from tests.support.encoders import picture_of

THRESHOLDS = MatchThresholds()
DEGENERATE = [*product((1, 2, 3, 8, 900), repeat=2), (1, 1280), (1280, 1), (2, 1280), (1280, 3)]
"""Widths and heights of pictures, in pixels."""


def noise(width, height, seed=0, levels=256):
    pixels = np.random.default_rng(seed).integers(0, levels, (height, width, 3), dtype=np.uint8)
    png = BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return picture_of(png.getvalue())


def frames(picture):
    return [frame.png for frame in picture.frames]


def worker_pids():
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"retrieval.near_duplicates.worker" in place.read_bytes():
                status = (place.parent / "status").read_text()
                if f"\nPPid:\t{os.getpid()}\n" in status:
                    found.append(int(place.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def test_worker_process_agrees_with_in_process_comparison():
    one, other = noise(320, 240), noise(320, 240, seed=1)
    views = fingerprint(frames(one))[0]
    async with aclosing(GuardedComparer()) as comparer:
        hashes = await comparer.hashes(one)
        assert hashes.tolist() == [view.hashes.tolist() for view in views]
        assert await comparer.is_same(frames(one), one, THRESHOLDS, Agreement.SAME)
        assert not await comparer.is_same(frames(other), one, THRESHOLDS, Agreement.SAME)


@pytest.mark.parametrize("levels", [1, 100])
async def test_tiny_and_narrow_pictures_are_hashed_and_compared(levels):
    """Flat pictures and noise: a side of one pixel once sent the border search into an endless loop."""

    deaths = worker_deaths["picture comparer"]
    async with aclosing(GuardedComparer(workers=1)) as comparer:
        for width, height in DEGENERATE:
            picture = noise(width, height, levels=levels)
            hashes = await comparer.hashes(picture)
            assert hashes.shape[1:] == (8, 32), (width, height)
            await comparer.is_same(frames(picture), picture, THRESHOLDS, Agreement.SAME)
    assert worker_deaths["picture comparer"] == deaths


@pytest.mark.parametrize(("options", "error"), [({"cpu_s": 0.02}, Unavailable), ({"wall_s": 0.02}, Overrun)])
async def test_slow_comparison_is_killed_and_counted(options, error):
    large = noise(1280, 1280)

    deaths = worker_deaths["picture comparer"]
    async with aclosing(GuardedComparer(workers=1, **options)) as comparer:
        await comparer.warm()
        before = worker_pids()
        with pytest.raises(error) as caught:
            await comparer.is_same(frames(large), large, THRESHOLDS, Agreement.SAME)
        assert error is Overrun or caught.value.reason == "COMPARER_FAILED"
        await comparer.warm()  # a new process starts
        assert len(before) == 1 and not set(before) & set(worker_pids())
    assert worker_deaths["picture comparer"] == deaths + 1


async def test_externally_killed_worker_has_its_own_reason():
    large = noise(1280, 1280)
    async with aclosing(GuardedComparer(workers=1)) as comparer:
        await comparer.warm()
        (pid,) = worker_pids()
        os.kill(pid, signal.SIGSTOP)  # otherwise a fast worker answers before it is killed
        comparing = asyncio.ensure_future(comparer.is_same(frames(large), large, THRESHOLDS, Agreement.SAME))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable) as caught:
            await comparing
        assert caught.value.reason == "COMPARER_KILLED"
        assert (await comparer.hashes(noise(64, 64))).shape[1:] == (8, 32)


async def test_invalid_picture_fails_without_killing_the_worker():
    async with aclosing(GuardedComparer(workers=1)) as comparer:
        await comparer.warm()
        before = worker_pids()
        with pytest.raises(Unavailable) as caught:
            await comparer.is_same([b"no PNG"], noise(64, 64), THRESHOLDS, Agreement.SAME)
        assert caught.value.reason == "COMPARER_FAILED"
        assert worker_pids() == before
