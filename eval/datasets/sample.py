"""A part of a split that stands for the whole: stratified by gold label, and the same for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from eval.datasets.items import JudgedMeme


def by_harm(meme: JudgedMeme) -> str:
    """Stratum of a meme by its label of harm."""
    # Levels and classes are digits, so that strata are in the order that they always were.
    return str(int((meme.harmful or False) if meme.level is None else meme.level))


def sample(
    memes: Sequence[JudgedMeme], limit: int | None, seed: int, stratum_of: Callable[[JudgedMeme], str] = by_harm
) -> tuple[JudgedMeme, ...]:
    """At most ``limit`` memes, in the order of the split.

    Each label (each of three levels, where there are three) gets its share of the limit, rounded by largest remainder.
    Within a label those are taken whose id has the smallest SHA-256 with the seed: that does not depend on the order of
    the file, nor on how some version of a random generator draws, and a larger limit only adds memes to a label.

    Args:
        memes: Memes of the split.
        limit: Number of memes; None for all.
        seed: Another seed, another sample.
        stratum_of: Label of a meme.
    """
    if limit is None or limit >= len(memes):
        return tuple(memes)
    strata: dict[str, list[JudgedMeme]] = {}
    for meme in memes:
        strata.setdefault(stratum_of(meme), []).append(meme)
    labels = sorted(strata)
    exact = {label: limit * len(strata[label]) / len(memes) for label in labels}
    shares = {label: int(exact[label]) for label in labels}
    # Equal remainders go by label, so that the sample never depends on the order of the file.
    by_remainder = sorted(labels, key=lambda label: (shares[label] - exact[label], label))
    for label in by_remainder[: limit - sum(shares.values())]:
        shares[label] += 1
    taken = {
        meme.id for label in labels for meme in sorted(strata[label], key=lambda m: _rank(m, seed))[: shares[label]]
    }
    return tuple(meme for meme in memes if meme.id in taken)


def _rank(meme: JudgedMeme, seed: int) -> str:
    # By hash and not by a generator: the order of the file plays no part.
    return hashlib.sha256(f"{seed}\0{meme.id}".encode()).hexdigest()
