"""Helpers of tests of calibrate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from court.precedents import MinSimilarity
from court.verdict import Label
from retrieval.embed.encoder import unit_rows
from retrieval.library.manifest import LabelledMeme

FLOORS = MinSimilarity(text=0.3, picture=0.5)
DIM = 8


def meme(number: int, harmful: bool, *, text: str | None = None, pixels: str = "") -> LabelledMeme:
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL if harmful else Label.NOT_HARMFUL,
        text=f"text {number}" if text is None else text,
        pixels_sha256=pixels,
        has_text=text != "",
        has_picture=bool(pixels),
    )


def world(
    n: int, *, text: float, picture: float | None = None, seed: int = 0, share_of_harm: float = 0.5
) -> tuple[NDArray[np.float32], list[LabelledMeme]]:
    """Memes whose text and picture vectors separate the labels with the given strength; None for no pictures."""
    random = np.random.default_rng(seed)
    harmful = random.random(n) < share_of_harm
    towards = np.where(harmful, 1.0, -1.0)[:, None] * np.eye(DIM)[0]
    texts = unit_rows(text * towards + random.normal(size=(n, DIM)) * 0.4)
    pictures = np.zeros((n, DIM), np.float32)
    if picture is not None:
        pictures = unit_rows(picture * towards + random.normal(size=(n, DIM)) * 0.4)
    memes = [meme(i, bool(h), pixels="" if picture is None else f"p{i}") for i, h in enumerate(harmful)]
    return np.hstack([texts, pictures]), memes
