"""Range in which a vote alone decides: bounds on the probability beyond which few labels are wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from court.precedents import MinSimilarity, SureRange
from retrieval.embed.encoder import KnownMinSimilarity
from retrieval.library.manifest import LabelledMeme
from retrieval.text import normalise_text, script_of, text_key

ERROR = 0.05
"""Share of wrong labels that is put up with where nobody says."""
CONFIDENCE = 0.9
"""One-sided, of the statement that a side has no more errors than are put up with."""
NONE_BELOW, NONE_ABOVE = -1.0, 2.0
"""Bounds that no probability reaches."""
_HUNDREDTHS = tuple(number / 100 for number in range(1, 100))
_LEAST = 0.05
"""Share of the memes that a side must settle to be worth its while. Nothing smaller is looked at: one wrong label among
the first few would end the search."""


def choose_sure_range(
    probabilities: NDArray[np.float64], labels: NDArray[np.bool_], threshold: float, error: float
) -> SureRange | None:
    """Returns the widest reliable bounds; None if neither side has any."""
    # Each side is widened from its far end in steps of 0.01 while the upper end of the Clopper-Pearson interval of its
    # error rate is at most ``error``; it stops at the first step that fails. Taking the widest of all steps that pass
    # would be multiple testing that reports the luckiest.
    low = [(bound, probabilities <= bound) for bound in _HUNDREDTHS if bound < threshold]
    high = [(bound, probabilities >= bound) for bound in reversed(_HUNDREDTHS) if bound >= threshold]
    below, above = _widest(low, labels, error), _widest(high, ~labels, error)
    if below is None and above is None:
        return None
    settles = SureRange(
        error=error,
        below=NONE_BELOW if below is None else below,
        above=NONE_ABOVE if above is None else above,
        share=0,
        n=probabilities.size,
    )
    return settles.model_copy(update={"share": float(settled(probabilities, settles).mean())})


def _widest(sides: Sequence[tuple[float, NDArray[np.bool_]]], wrong: NDArray[np.bool_], error: float) -> float | None:
    """The last of the leading bounds that hold; each bound comes with a mask of the memes on its side."""
    # With fewer memes, even zero errors would be too little evidence.
    # Zero errors in n memes pass once (1 - error) ** n is at most 1 - CONFIDENCE.
    fewest = max(math.log(1 - CONFIDENCE) / math.log1p(-error), _LEAST * wrong.size)
    widest = None
    for bound, side in sides:
        n = int(side.sum())
        # Too few memes yet; the next bound includes more.
        if n < fewest:
            continue
        if not within(int(wrong[side].sum()), n, error):
            break
        widest = bound
    return widest


def settled(probabilities: NDArray[np.float64], settles: SureRange | None) -> NDArray[np.bool_]:
    """Mask of the probabilities, shape (q,), that settle a meme."""
    if settles is None:
        return np.zeros(probabilities.shape, dtype=np.bool_)
    return (probabilities <= settles.below) | (probabilities >= settles.above)


def within(wrong: int, n: int, error: float) -> bool:
    """True if the upper end of the one-sided Clopper-Pearson interval of ``wrong`` in ``n`` is at most ``error``."""
    # Equivalently, if ``error`` were the true rate, so few errors would have probability ``1 - CONFIDENCE`` or less.
    if wrong >= n * error:
        return False  # avoids the sum: about half of the probability lies below
    # In logarithms, as factorials of thousands overflow.
    ways = math.lgamma(n + 1)
    chance = sum(
        math.exp(
            ways - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(error) + (n - k) * math.log1p(-error)
        )
        for k in range(wrong + 1)
    )
    return chance <= 1 - CONFIDENCE


# One in twenty unrelated pairs is nearer than the minimum similarity.
_QUANTILE = 0.95
_PAIRS = 100_000
"""Number of pairs drawn, which gives the quantile to about .001."""
_BLOCK = 4096
"""Pairs compared at once: bounds the rows that are copied."""
NO_PAIR = 0.99
"""Floor of a half of which there are no two different memes: nothing but a copy is then held to be near."""


def measure_min_similarity(
    rows: NDArray[np.float32], memes: Sequence[LabelledMeme], text_dim: int, known: KnownMinSimilarity
) -> MinSimilarity:
    """Minimum similarities of a library: those known to the encoder, and the others measured on pairs of its memes."""
    # The pairs are drawn with a fixed seed, so the same library gives the same values. Of memes with the same words or
    # picture only one is used, as twins are not unrelated.
    text, picture = known.text, known.picture
    if text is None:
        indices = _first_of_each([text_key(normalise_text(meme.text)) if meme.has_text else "" for meme in memes])
        text = _quantile(rows[:, :text_dim], indices)
    if picture is None:
        # A picture without a digest counts as unique.
        keys = [meme.pixels_sha256 or f"#{n}" if meme.has_picture else "" for n, meme in enumerate(memes)]
        picture = _quantile(rows[:, text_dim:], _first_of_each(keys))
    return MinSimilarity(text=text, picture=picture)


_FEWEST_OF_A_SCRIPT = 50
"""Memes of a script that differ, below which its texts keep the minimum similarity of all."""
_KNOWN_SCRIPT = "LATIN"
"""The script for which an encoder's own minimum similarity was measured."""


def measure_text_floors(
    rows: NDArray[np.float32], memes: Sequence[LabelledMeme], text_dim: int, known: KnownMinSimilarity
) -> dict[str, float]:
    """Measures the minimum similarity of texts for each script with enough distinct memes."""
    by_script: dict[str, dict[str, int]] = {}
    for index, meme in enumerate(memes):
        if meme.has_text:
            by_script.setdefault(script_of(meme.text), {}).setdefault(text_key(normalise_text(meme.text)), index)
    return {
        script: _quantile(rows[:, :text_dim], np.array(list(first.values()), dtype=np.int64))
        for script, first in sorted(by_script.items())
        if script and len(first) >= _FEWEST_OF_A_SCRIPT and not (script == _KNOWN_SCRIPT and known.text is not None)
    }


def _first_of_each(keys: Sequence[str]) -> NDArray[np.int64]:
    first: dict[str, int] = {}
    for index, key in enumerate(keys):
        if key:
            first.setdefault(key, index)
    return np.array(list(first.values()), dtype=np.int64)


def _quantile(half: NDArray[np.float32], indices: NDArray[np.int64]) -> float:
    n = indices.size
    if n < 2:
        return NO_PAIR
    rng = np.random.default_rng(0)
    one = rng.integers(0, n, _PAIRS)
    # Any other meme: an offset of 1 to n - 1 never leads back to the first.
    other = (one + rng.integers(1, n, _PAIRS)) % n
    similarities = np.concatenate(
        [
            np.einsum("nd,nd->n", half[indices[one[at : at + _BLOCK]]], half[indices[other[at : at + _BLOCK]]])
            for at in range(0, _PAIRS, _BLOCK)
        ]
    )
    return round(float(np.quantile(similarities, _QUANTILE)), 3)
