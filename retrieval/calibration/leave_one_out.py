"""Leave-one-out search: finds each meme's neighbours in the rest of its library, for the votes of calibration.

Memes that share the picture or words of the judged meme are left out with it, since a new meme has no such twin: with
them, a vote would look better than it is. Calibration also leaves out near-duplicates and adjacent memes of the
library: memes that were collected together resemble each other more than the next one to be judged resembles any of
them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.library.manifest import LabelledMeme, Safeguards
from retrieval.text import normalise_text, text_key

GROUP = 8
"""Neighbouring memes of a library that are kept together in a fold, or left out together."""
NEARLY = 0.9
"""Cosine of text or picture above which two memes are nearly the same."""
_BLOCK = 256
"""Memes tried at once: bounds the matrix of similarities to 256 x n."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Neighbours of q memes in the rest of the library, (q, depth), nearest first, padded with -inf."""

    similarities: NDArray[np.float64]
    harmful: NDArray[np.bool_]
    labels: NDArray[np.bool_]
    rows: NDArray[np.int64]


def leave_one_out_neighbours(
    rows: NDArray[np.float32],
    memes: Sequence[LabelledMeme],
    text_dim: int,
    *,
    alphas: Sequence[float],
    depth: int,
    limit: int,
    apart: bool = False,
    safeguards: Safeguards | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Iterator[Neighbours]:
    """Finds for each alpha the neighbours of each meme, or of an even sample if there are more than ``limit``.

    Args:
        apart: True to also leave out near-duplicates (:data:`NEARLY`) and memes in the same block of :data:`GROUP`,
            which a data set often collected from one place.
        groups: int64 of shape (n,): groups of memes to use instead of blocks of :data:`GROUP`; None
            for the blocks.
    """
    # As in a search, a meme that lacks a half is compared by the other alone, clones count once, and the safeguards
    # apply except that for sole acquittals, which only a search can apply. Memes without any neighbour are not
    # returned.
    n = len(memes)
    guarded = safeguards or Safeguards()
    tried = _even_sample(n, limit)
    texts = group_numbers(text_key(normalise_text(meme.text)) for meme in memes)
    pixels = group_numbers(meme.pixels_sha256 for meme in memes)
    labels = np.array([meme.harmful for meme in memes])
    has_text = np.array([meme.has_text for meme in memes])
    has_picture = np.array([meme.has_picture for meme in memes])
    depth = min(depth, n)
    silent = silent_memes(memes, guarded)
    # Prefixed, since an empty key equals no other, and memes without a source must share one.
    sources = group_numbers(f"={meme.source}" for meme in memes)
    groups = np.arange(n) // GROUP if groups is None else groups

    similarities = np.empty((len(alphas), tried.size, depth))
    harm = np.empty(similarities.shape, dtype=np.bool_)
    for start in range(0, tried.size, _BLOCK):
        block = tried[start : start + _BLOCK]
        by_text = rows[block, :text_dim] @ rows[:, :text_dim].T
        by_picture = rows[block, text_dim:] @ rows[:, text_dim:].T
        left_out = (texts[block, None] == texts) & (texts[block, None] >= 0)
        left_out |= (pixels[block, None] == pixels) & (pixels[block, None] >= 0)
        if apart:
            left_out |= (by_text > NEARLY) | (by_picture > NEARLY)
            left_out |= groups[block, None] == groups
        left_out |= silent
        # The meme itself may have neither words nor pixels to be left out by.
        left_out[np.arange(block.size), block] = True
        for number, alpha in enumerate(alphas):
            weight = np.where(~has_picture[block], 1.0, np.where(~has_text[block], 0.0, alpha)).astype(np.float32)
            fused = weight[:, None] * by_text + (1 - weight[:, None]) * by_picture
            fused[left_out] = -np.inf
            if guarded.cap is not None:
                _cap(fused, sources, guarded.cap)
            # Takes the nearest in any order, sorts by row, then by similarity: the stable sort keeps ties by row.
            nearest = np.sort(np.argpartition(-fused, depth - 1, axis=1)[:, :depth], axis=1)
            by_nearness = np.argsort(-np.take_along_axis(fused, nearest, axis=1), axis=1, kind="stable")
            order = np.take_along_axis(nearest, by_nearness, axis=1)
            similarities[number, start : start + _BLOCK] = np.take_along_axis(fused, order, axis=1)
            harm[number, start : start + _BLOCK] = labels[order]
    for number in range(len(alphas)):
        found = np.isfinite(similarities[number, :, 0])
        yield Neighbours(similarities[number, found], harm[number, found], labels[tried][found], tried[found])


def repeated_memes(rows: NDArray[np.float32], memes: Sequence[LabelledMeme], text_dim: int, limit: int) -> float:
    """Share of memes with a twin (same picture or words) or near-duplicate; of more than ``limit``, a sample."""
    n, count = len(memes), 0
    tried = _even_sample(n, limit)
    texts = group_numbers(text_key(normalise_text(meme.text)) for meme in memes)
    pixels = group_numbers(meme.pixels_sha256 for meme in memes)
    for start in range(0, tried.size, _BLOCK):
        block = tried[start : start + _BLOCK]
        same = (texts[block, None] == texts) & (texts[block, None] >= 0)
        same |= (pixels[block, None] == pixels) & (pixels[block, None] >= 0)
        same |= rows[block, :text_dim] @ rows[:, :text_dim].T > NEARLY
        same |= rows[block, text_dim:] @ rows[:, text_dim:].T > NEARLY
        # A meme is not its own twin.
        same[np.arange(block.size), block] = False
        count += int(same.any(axis=1).sum())
    return count / tried.size


def _even_sample(n: int, limit: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, n - 1, min(n, limit)).round().astype(np.int64))


def silent_memes(memes: Sequence[LabelledMeme], safeguards: Safeguards) -> NDArray[np.bool_]:
    """Mask of memes that never vote, shape (n,): unverified ones, if so wished, and all clones but the first."""
    verified = np.array([meme.verified for meme in memes], dtype=np.bool_)
    silent = ~verified if safeguards.verified_only and verified.any() else np.zeros(len(memes), dtype=np.bool_)
    seen: set[Hashable] = set()
    for index, meme in enumerate(memes):
        key = meme.duplicate_key
        if key is not None and not silent[index]:
            silent[index] = key in seen
            seen.add(key)
    return silent


def _cap(fused: NDArray[np.float32], sources: NDArray[np.int64], most: int) -> None:
    """Masks in each row of similarities, shape (q, n), all but the nearest ``most`` of each source, shape (n,)."""
    for row in fused:
        # By source, nearest first; the stable sort keeps ties in order.
        order = np.lexsort((-row, sources))
        sorted_sources = sources[order]
        starts = np.flatnonzero(np.r_[True, sorted_sources[1:] != sorted_sources[:-1]])
        # Rank of each meme within its source.
        rank = np.arange(order.size) - np.repeat(starts, np.diff(np.r_[starts, order.size]))
        row[order[rank >= most]] = -np.inf


def group_numbers(keys: Iterable[Hashable]) -> NDArray[np.int64]:
    """A number for each key, the same for equal keys; -1 for empty keys, which match nothing."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) if key else -1 for key in keys], dtype=np.int64)
