"""Hostile pictures, each a unique file.

They declare a size above the limit, promise pixels that never come after many that do, contain an absurd number of
frames or chunks, or are cut off in the middle.
"""

import asyncio
import io
import random
import struct
import time
import zlib
from collections import Counter
from functools import cache

from PIL import Image

from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries

RATE = 20.0
"""Pictures a second."""
NAMESPACE = "bombs"
_PNG = b"\x89PNG\r\n\x1a\n"
_SIDE = 4096
"""Side of the largest accepted square, in pixels."""


def bomb(number: int) -> bytes:
    """Returns a unique hostile picture; the kinds alternate."""
    return _KINDS[number % len(_KINDS)](random.Random(number))


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


_KINDS = (_canvas_beyond_all, _pixels_that_never_come, _chunks_without_end, _frames_without_end, _cut_off, _nothing)
