"""Hundreds of odd pictures: the test images of Pillow, downloaded by ``scripts/fetch_corpus.py``.

They don't include PngSuite. Pillow's own PNG files stand in for its valid ones, and ``test_picture_reader.py`` writes
the bit depths that PngSuite covers by hand.
"""

import os
from pathlib import Path

import pytest

from court.backends.pictures.reader import GuardedPictureReader
from court.backends.pictures.refusals import words
from court.errors import BadPicture
from scripts.fetch_corpus import IMAGES

pytestmark = pytest.mark.corpus

REFUSED = Path(__file__).with_name("corpus_refused.txt")
BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


@pytest.fixture(scope="module")
def corpus():
    if IMAGES.is_dir():
        return sorted(path for path in IMAGES.rglob("*") if path.is_file())
    missing = "the picture corpus is missing: run python scripts/fetch_corpus.py"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)  # in CI, a skipped check would go unnoticed
    pytest.skip(missing)


async def test_every_corpus_file_is_read_or_refused_as_expected(corpus):
    costs = []

    reader = GuardedPictureReader(watch=costs.append)
    try:
        found = {path.relative_to(IMAGES).as_posix(): await decision(reader, path) for path in corpus}
    finally:
        await reader.aclose()
    assert len(found) > 1000
    assert set(found.values()) <= words().keys() | {"accepted"}
    lines = [line.split(maxsplit=2) for line in REFUSED.read_text().splitlines() if not line.startswith("#")]
    expected = {path.relative_to(IMAGES).as_posix(): expectation(path) for path in corpus}
    assert found == expected | {name: reason for name, reason, _ in lines}
    assert max(cost.cpu_s for cost in costs) <= 2
    assert max(cost.peak_bytes for cost in costs) <= 256 * 1024 * 1024


async def decision(reader, path):
    try:
        await reader.read(path.read_bytes())
    except BadPicture as refused:
        return refused.reason
    return "accepted"


def expectation(path):
    begins = path.read_bytes()[:12]
    if begins.startswith(BEGINNINGS) or (begins.startswith(b"RIFF") and begins.endswith(b"WEBP")):
        return "accepted"
    return "PICTURE_FORMAT_NOT_READ" if begins else "PICTURE_EMPTY"
