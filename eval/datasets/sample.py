"""Draws a reproducible sample of a split, stratified by gold label."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable

from eval.datasets.items import JudgedMeme


def by_harm(meme: JudgedMeme) -> str:
    """Stratum of a meme by its label of harm."""
    # Levels and classes become digits, so that the order of strata stays that of earlier versions.
    return str(int((meme.harmful or False) if meme.level is None else meme.level))


def sample(
    memes: Iterable[JudgedMeme], limit: int | None, seed: int, stratum_of: Callable[[JudgedMeme], str] = by_harm
) -> tuple[JudgedMeme, ...]:
    """Draws at most ``limit`` memes, in the order of the split.

    Each label (each level, if there are three) gets its share of the limit, rounded by largest remainder. Within a
    label, the memes with the smallest SHA-256 of seed and id are taken: the sample depends neither on the order of the
    file nor on a version of a random generator, and a larger limit only adds memes to a label.

    Memory holds at most ``limit`` memes of each label.

    Args:
        limit: Maximum number of memes; None for all.
        stratum_of: Function that returns a meme's stratum.
    """
    if limit is None:
        return tuple(memes)
    # The best so far of each label in a heap, worst on top; the index avoids comparing memes.
    best: dict[str, list[tuple[int, int, JudgedMeme]]] = {}
    counts: Counter[str] = Counter()
    for place, meme in enumerate(memes):
        label = stratum_of(meme)
        counts[label] += 1
        heap = best.setdefault(label, [])
        entry = (-_rank(meme, seed), -place, meme)
        # No label can have more memes than the whole sample.
        if len(heap) < limit:
            heapq.heappush(heap, entry)
        elif heap and entry > heap[0]:
            heapq.heapreplace(heap, entry)
    labels = sorted(counts)
    exact = {label: limit * counts[label] / max(limit, counts.total()) for label in labels}
    shares = {label: int(exact[label]) for label in labels}
    # Ties in the remainders are broken by label, so that the order of the file never matters.
    by_remainder = sorted(labels, key=lambda label: (shares[label] - exact[label], label))
    for label in by_remainder[: min(limit, counts.total()) - sum(shares.values())]:
        shares[label] += 1
    taken = [entry for label in labels for entry in heapq.nlargest(shares[label], best[label])]
    return tuple(meme for _, _, meme in sorted(taken, key=lambda entry: -entry[1]))


def _rank(meme: JudgedMeme, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{meme.id}".encode()).digest())
