"""A part of a split that stands for the whole: stratified by gold label, and the same for the same seed."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable

from eval.datasets.items import JudgedMeme


def by_harm(meme: JudgedMeme) -> str:
    """Stratum of a meme by its label of harm."""
    # Levels and classes are digits, so that strata are in the order that they always were.
    return str(int((meme.harmful or False) if meme.level is None else meme.level))


def sample(
    memes: Iterable[JudgedMeme], limit: int | None, seed: int, stratum_of: Callable[[JudgedMeme], str] = by_harm
) -> tuple[JudgedMeme, ...]:
    """At most ``limit`` memes, in the order of the split.

    Each label (each of three levels, where there are three) gets its share of the limit, rounded by largest remainder.
    Within a label those are taken whose id has the smallest SHA-256 with the seed: that does not depend on the order of
    the file, nor on how some version of a random generator draws, and a larger limit only adds memes to a label.

    No more than ``limit`` memes of each label are in memory, however many there are.

    Args:
        memes: Memes of the split.
        limit: Number of memes; None for all.
        seed: Another seed, another sample.
        stratum_of: Label of a meme.
    """
    if limit is None:
        return tuple(memes)
    # The best so far of each label, the worst of them on top; by place, so that memes are never compared.
    best: dict[str, list[tuple[int, int, JudgedMeme]]] = {}
    counts: Counter[str] = Counter()
    for place, meme in enumerate(memes):
        label = stratum_of(meme)
        counts[label] += 1
        heap = best.setdefault(label, [])
        entry = (-_rank(meme, seed), -place, meme)
        # No label can have more than the limit of the sample.
        if len(heap) < limit:
            heapq.heappush(heap, entry)
        elif heap and entry > heap[0]:
            heapq.heapreplace(heap, entry)
    labels = sorted(counts)
    exact = {label: limit * counts[label] / max(limit, counts.total()) for label in labels}
    shares = {label: int(exact[label]) for label in labels}
    # Equal remainders go by label, so that the sample never depends on the order of the file.
    by_remainder = sorted(labels, key=lambda label: (shares[label] - exact[label], label))
    for label in by_remainder[: min(limit, counts.total()) - sum(shares.values())]:
        shares[label] += 1
    taken = [entry for label in labels for entry in heapq.nlargest(shares[label], best[label])]
    return tuple(meme for _, _, meme in sorted(taken, key=lambda entry: -entry[1]))


def _rank(meme: JudgedMeme, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{meme.id}".encode()).digest())
