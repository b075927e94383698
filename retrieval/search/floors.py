"""From which similarity on two memes have something to say about each other, where the encoder can't tell.

CLIP spaces are cones: two pictures that have nothing in common lie at .2 in one and at .6 in another, so that no
constant holds for all of them. What unrelated memes come to is measured on the library itself: the floor of a half is
the 95th percentile of the similarity of two of its memes drawn at random.

By the built-in sentence encoder that gives .390 on the texts of Harm-C's train split and .352 on those of Harm-P, where
the floor that was measured by what the votes were worth is .385.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from court.precedents import Floors
from retrieval.encoders.embedding import KnownFloors
from retrieval.library.manifest import LabelledMeme
from retrieval.likeness.text import normalise_text, text_key

_QUANTILE = 0.95
_PAIRS = 100_000
"""Pairs drawn: the quantile is then good to about .001."""
_BLOCK = 4096
"""Pairs compared at once: bounds the rows that are copied."""
NO_PAIR = 0.99
"""Floor of a half of which there are no two different memes: nothing but a copy is then held to be near."""


def floors_of(rows: NDArray[np.float32], memes: Sequence[LabelledMeme], text_dim: int, known: KnownFloors) -> Floors:
    """The floors of a library: what the encoder knows, and what it does not from pairs of its memes.

    The pairs are drawn by a fixed seed: the same library has the same floors. Of memes with the same words, or the same
    picture, one is drawn from: twins are no unrelated memes.

    Args:
        rows: float32 of shape (n, text_dim + picture_dim).
        memes: Theirs.
        text_dim: Where the text half ends.
        known: What the encoder knows of its floors.
    """
    text, picture = known.text, known.picture
    if text is None:
        places = _first_of_each([text_key(normalise_text(meme.text)) if meme.has_text else "" for meme in memes])
        text = _quantile(rows[:, :text_dim], places)
    if picture is None:
        # A picture without a digest is taken to be like no other.
        keys = [meme.pixels_sha256 or f"#{n}" if meme.has_picture else "" for n, meme in enumerate(memes)]
        picture = _quantile(rows[:, text_dim:], _first_of_each(keys))
    return Floors(text=text, picture=picture)


def _first_of_each(keys: Sequence[str]) -> NDArray[np.int64]:
    """Places of the first of each key, in order; blank keys left out."""
    first: dict[str, int] = {}
    for place, key in enumerate(keys):
        if key:
            first.setdefault(key, place)
    return np.array(list(first.values()), dtype=np.int64)


def _quantile(half: NDArray[np.float32], places: NDArray[np.int64]) -> float:
    n = places.size
    if n < 2:
        return NO_PAIR
    rng = np.random.default_rng(0)
    one = rng.integers(0, n, _PAIRS)
    # Any but the first: an offset of 1 to n - 1 never leads back to it.
    other = (one + rng.integers(1, n, _PAIRS)) % n
    similarities = np.concatenate(
        [
            np.einsum("nd,nd->n", half[places[one[at : at + _BLOCK]]], half[places[other[at : at + _BLOCK]]])
            for at in range(0, _PAIRS, _BLOCK)
        ]
    )
    return round(float(np.quantile(similarities, _QUANTILE)), 3)
