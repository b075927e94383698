"""Finds faults of a library automatically; reports ids, never texts.

=================  ====================================================================================================
duplicates         several precedents with the same words and the same picture: they count once, and are best removed
conflicts          two precedents that are the same or nearly the same, with different labels
suspicious labels  precedents whose label the vote of their neighbours clearly contradicts
near-empty         precedents without any near neighbour in the library: memes like them will go to a person
leaks              precedents that are too near to judged memes (:mod:`retrieval.audit.leakage`)
=================  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.audit.leakage import Leaks
from retrieval.calibration.calibrate import probabilities_of, shares
from retrieval.calibration.leave_one_out import group_numbers, leave_one_out_neighbours
from retrieval.library.library import Library
from retrieval.library.manifest import LabelledMeme
from retrieval.precedents.search import NEAR
from retrieval.text import normalise_text, script_of, text_key

_BLOCK = 256
"""Memes compared at once: bounds the matrices of similarities to 256 x n."""
SURE = 0.1
"""Probability of its own label up to which a label is suspicious."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two precedents that contradict each other; ``same`` if word for word and pixel for pixel."""

    harmful: str
    not_harmful: str
    same: bool


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A label that its neighbours contradict, with the probability of harm by their vote."""

    id: str
    harmful: bool
    probability: float


@dataclass(frozen=True, slots=True)
class LibraryCheck:
    """Result of a check of a library; ``leaks`` is None if there were no memes to compare with."""

    memes: int
    duplicates: tuple[tuple[str, ...], ...]
    conflicts: tuple[Conflict, ...]
    suspicious: tuple[Suspicion, ...]
    near_empty: tuple[str, ...]
    leaks: Leaks | None = None

    @property
    def clean(self) -> bool:
        """True if no fault was found. Near-empty regions don't count as a fault."""
        return not (self.duplicates or self.conflicts or self.suspicious or (self.leaks and self.leaks.leaks))


def check_library(library: Library, *, leaks: Leaks | None = None, sure: float = SURE) -> LibraryCheck:
    """Compares all precedents with each other, in quadratic time; ``sure`` is in (0, 0.5).

    Raises:
        BadLibrary: The table of memes can't be read.
        ValueError: ``sure`` is out of bounds.
    """
    if not 0 < sure < 0.5:
        raise ValueError(f"a label is suspicious at a probability in (0, 0.5), not {sure}")
    memes = list(library.memes)
    keys = [meme.duplicate_key for meme in memes]
    groups: dict[object, list[str]] = {}
    for meme, key in zip(memes, keys, strict=True):
        if key is not None:
            groups.setdefault(key, []).append(meme.id)
    conflicts, isolated = _compared(library, memes)
    return LibraryCheck(
        memes=len(memes),
        duplicates=tuple(tuple(group) for group in groups.values() if len(group) > 1),
        conflicts=conflicts,
        suspicious=_suspicious(library, memes, sure),
        near_empty=isolated,
        leaks=leaks,
    )


def _suspicious(library: Library, memes: Sequence[LabelledMeme], sure: float) -> tuple[Suspicion, ...]:
    """Judges every meme by the rest of the library, without its twins, as in calibration."""
    tuning = library.manifest.tuning
    (neighbours,) = leave_one_out_neighbours(
        library.rows,
        memes,
        library.manifest.encoder.text_dim,
        alphas=[tuning.alpha],
        depth=tuning.vote.k,
        limit=len(memes),
        safeguards=tuning.safeguards,
    )
    if not neighbours.labels.size:
        return ()
    probabilities = probabilities_of(shares(neighbours.similarities, neighbours.harmful, tuning.vote), tuning.vote)
    own = np.where(neighbours.labels, probabilities, 1 - probabilities)
    # Stable, so that equally doubtful labels stay in the library's order.
    doubtful = [int(index) for index in np.argsort(own, kind="stable") if own[index] <= sure]
    return tuple(
        Suspicion(
            memes[int(neighbours.rows[index])].id, bool(neighbours.labels[index]), round(float(probabilities[index]), 4)
        )
        for index in doubtful
    )


def _compared(library: Library, memes: Sequence[LabelledMeme]) -> tuple[tuple[Conflict, ...], tuple[str, ...]]:
    """Pairs that contradict each other, and memes without a near neighbour, both in order."""
    rows, dim, tuning = library.rows, library.manifest.encoder.text_dim, library.manifest.tuning
    words = group_numbers([text_key(normalise_text(meme.text)) for meme in memes])
    pixels = group_numbers([meme.pixels_sha256 for meme in memes])
    harmful = np.array([meme.harmful for meme in memes], dtype=np.bool_)
    has_text = np.array([meme.has_text for meme in memes], dtype=np.bool_)
    has_picture = np.array([meme.has_picture for meme in memes], dtype=np.bool_)
    text_floors = np.array([tuning.floors_of(script_of(meme.text)).text for meme in memes])
    conflicts: list[Conflict] = []
    empty: list[str] = []
    for start in range(0, len(memes), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(memes)))
        texts, picture_cosines = rows[block, :dim] @ rows[:, :dim].T, rows[block, dim:] @ rows[:, dim:].T
        same_words = (words[block, None] == words) & (words[block, None] >= 0)
        same_pixels = (pixels[block, None] == pixels) & (pixels[block, None] >= 0)
        # If both lack a picture, the words decide; if both lack words, the picture.
        without = ~has_picture[block, None] & ~has_picture
        textless = ~has_text[block, None] & ~has_text
        same = (same_words & (same_pixels | without)) | (same_pixels & textless)
        close = (
            (picture_cosines >= NEAR.picture)
            & ((texts >= NEAR.text) | textless)
            & has_picture[block, None]
            & has_picture
        )
        # Each pair once: the harmful one is in the row, the other in the column.
        for i, j in np.argwhere((same | close) & (harmful[block, None] & ~harmful)).tolist():
            conflicts.append(Conflict(memes[start + i].id, memes[j].id, bool(same[i, j])))
        # Twins say nothing about how well a region is covered.
        identical = same_words | same_pixels
        # Also the meme itself, if it has neither words nor pixels to match by.
        identical[np.arange(block.size), block] = True
        by_text, by_picture = (
            np.where(identical, -1, texts).max(axis=1),
            np.where(identical, -1, picture_cosines).max(axis=1),
        )
        alpha = np.where(~has_picture[block], 1.0, np.where(~has_text[block], 0.0, tuning.alpha))
        # As in court.summary.Coverage: the halves that are near enough must carry half of the weight.
        weight = alpha * (by_text >= text_floors[block]) + (1 - alpha) * (by_picture >= tuning.floors.picture)
        empty += [memes[start + int(i)].id for i in np.flatnonzero(weight < 0.5)]
    return tuple(conflicts), tuple(empty)
