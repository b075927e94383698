"""Generated memes, and an encoder and a library for them: no model's time is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.meme import Frame
from court.precedents import Findings, MinSimilarity, VoteSettings
from court.verdict import Label
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.precedents.finder import LibraryFinder

Floats = NDArray[np.float32]

DIM = 512
"""Numbers of each half of a vector."""
TALLY = 25
_CLUSTERS = 5000
_NOISE = 0.8
_BLOCK = 16_384
_WORDS = ("cat", "dog", "monday", "coffee", "alarm", "office", "train", "rain", "summer", "week", "meeting", "pizza")


def drawn(count: int, seed: int, into: Floats | None = None) -> Floats:
    """Generates rows, float32 of shape (count, 1024), whose halves have length 1 and lie around 5,000 centres each.

    Args:
        into: Array for the vectors, such as a memory-mapped file; a new array if None.
    """
    # The same centres for every seed, otherwise queries would lie elsewhere than rows.
    centres = np.random.default_rng(1).standard_normal((2, _CLUSTERS, DIM), dtype=np.float32)
    random = np.random.default_rng([2, seed])
    rows = np.empty((count, 2 * DIM), dtype=np.float32) if into is None else into
    # In blocks: the noise for all rows at once would take as much memory as the rows.
    for start in range(0, count, _BLOCK):
        block = rows[start : start + _BLOCK]
        for half, around in zip((block[:, :DIM], block[:, DIM:]), centres, strict=True):
            part = random.standard_normal(half.shape, dtype=np.float32) * _NOISE
            part += around[random.integers(_CLUSTERS, size=len(half))]
            half[:] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


class KnownVectors(Halves):
    """An encoder that looks up the vectors of memes by number, so that no model's time is measured."""

    def __init__(self, vectors: Floats) -> None:
        self._vectors = vectors
        self.identity = EncoderIdentity(
            name="drawn", digest=f"sha256:{0:064x}", text_dim=DIM, picture_dim=DIM, text_tokens=100
        )
        self.floors = MinSimilarity(text=0, picture=0)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """Returns the vectors of the memes whose numbers are the texts."""
        numbers = [int(text) % len(self._vectors) for text in texts]
        return TextEmbeddings(self._vectors[numbers, :DIM], (False,) * len(texts))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> Floats:
        """Returns the vectors of the memes whose numbers are the first frames."""
        return self._vectors[[int(frames[0]) % len(self._vectors) for frames in pictures], DIM:]


def drawn_meme(number: int) -> LabelledMeme:
    """Builds the stored description of a generated meme: a label, and a text of a dozen words."""
    # Not validated: a million are written, and each is validated when it is read.
    return LabelledMeme.model_construct(
        id=f"meme-{number}",
        label=Label.HARMFUL if number % 2 else Label.NOT_HARMFUL,
        text=" ".join(_WORDS[(number // 12**place + place) % 12] for place in range(11)) + f" {number}",
        source=f"source {number % 20}",
        bytes_sha256=hashlib.sha256(str(number).encode()).hexdigest(),
        pixels_sha256=hashlib.sha256(f"pixels of {number}".encode()).hexdigest(),
        has_text=True,
        has_picture=True,
    )


def drawn_library(root: Path, rows: Floats, encoder: EncoderIdentity) -> Library:
    """Builds a library of generated memes."""
    tuning = Tuning(
        alpha=0.5,
        vote=VoteSettings(k=TALLY, tau=0.1, prior=0.5),
        floors=MinSimilarity(text=0.3, picture=0.5),
        calibration=Calibration(method="defaults", n=0, majority=0.5),
    )
    memes = map(drawn_meme, range(len(rows)))
    return Library.create(root, name="drawn", encoder=encoder, memes=memes, rows=rows, tuning=tuning)


async def find(finder: LibraryFinder, number: int) -> Findings:
    """Searches as a trial does, for the meme that the encoder knows by this number."""
    # The encoder treats the number as the meme: no picture is decoded.
    frames = (Frame(str(number).encode(), 1, 1),)
    return await finder.find(text=str(number), frames=frames, pixels_sha256="", exhibits=3, tally=TALLY, alpha=None)
