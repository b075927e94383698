"""Pictures of a probe's memes as its pages show them."""

from __future__ import annotations

from pathlib import Path

from eval.probe.folder import ERASED, ProbedMeme
from eval.reports.records import shrunk


def small_pictures(root: Path, meme: ProbedMeme, side: int) -> tuple[bytes, ...]:
    """The meme's pictures without text as small JPEG files; pictures missing from the folder are omitted.

    Args:
        side: Longest side, in pixels.
    """
    paths = [root / ERASED / name for name in meme.erased]
    small = (shrunk(path.read_bytes(), side) for path in paths if path.is_file())
    return tuple(jpeg for jpeg in small if jpeg is not None)
