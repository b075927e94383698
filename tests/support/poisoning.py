"""Attacks on a library's vote: flipped labels, and poisoned precedents planted to acquit one meme.

Each meme of a library is judged by the others, without its duplicates; the library itself is not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from court.precedents import Findings, LibraryIdentity
from court.summary import vote_if_close
from court.verdict import Label
from eval.scores.metrics import score
from retrieval.calibration.calibrate import safeguarded_votes
from retrieval.calibration.leave_one_out import leave_one_out_neighbours
from retrieval.index.exact import FusedIndex, Hits, SegmentedIndex
from retrieval.library.filters import Filter
from retrieval.library.library import Library
from retrieval.library.manifest import Counts, LabelledMeme, Tuning
from retrieval.precedents.search import Query, SearchRequest, search_library
from retrieval.text import normalise_text, text_key

CLONES = 20
_OPEN: Mapping[str, Any] = {"no_sole_acquittal": False}
_SOLE: Mapping[str, Any] = {"no_sole_acquittal": True}
_CROWDS: Mapping[str, Any] = {"no_sole_acquittal": True, "per_cluster": 1}


def macro_f1_by_flipped(library: Library, share: float, *, seeds: int = 20) -> tuple[float, list[float]]:
    """Returns macro-F1 of the vote with the true labels, and with a share of them flipped, for each seed.

    The vote keeps the library's settings, as an attacker flips labels in a library that is already calibrated.
    """
    rows, memes = library.rows, list(library.memes)
    tuning, dim = library.manifest.tuning, library.manifest.encoder.text_dim
    true = np.array([meme.harmful for meme in memes], dtype=np.bool_)

    def macro_f1(voting: Sequence[LabelledMeme]) -> float:
        (neighbours,) = leave_one_out_neighbours(
            rows,
            voting,
            dim,
            alphas=[tuning.alpha],
            depth=tuning.vote.k + 1,
            limit=4000,
            safeguards=tuning.safeguards,
        )
        votes = safeguarded_votes(neighbours.similarities, neighbours.harmful, tuning.vote, tuning.safeguards)
        found = votes >= tuning.vote.threshold
        return score(true[neighbours.rows].tolist(), found.tolist(), resamples=1).macro_f1.value

    figures = []
    for seed in range(seeds):
        flipped = np.random.default_rng(seed).choice(len(memes), max(1, round(share * len(memes))), replace=False)
        voting = list(memes)
        for row in flipped.tolist():
            voting[row] = _relabelled(memes[row], not memes[row].harmful)
        figures.append(macro_f1(voting))
    return macro_f1(memes), figures


def acquitted_by_planted(library: Library, *, trials: int) -> Counter[str]:
    """Counts how many harmful memes are acquitted because of a poisoned precedent planted for each.

    The poisoned precedent has the meme's words and one more, at a random similarity from identical to barely similar.
    Clones of it differ in spacing and case; variants differ in a word, and slightly in their vectors. The meme and its
    duplicates are left out, and only memes that the vote does not acquit anyway are chosen.
    """
    judged = _Judged(library)
    rng = np.random.default_rng(0)
    harmful = [place for place, meme in enumerate(judged.memes) if meme.harmful]
    found: Counter[str] = Counter()
    done = 0
    while done < trials:
        place = harmful[int(rng.integers(len(harmful)))]
        if _acquitted(judged.precedents_of(place, 0, _OPEN)):
            continue
        vector = _nearby(library, place, rng)
        one, clones = (judged.precedents_of(place, count, _OPEN, vector) for count in (1, CLONES))
        found["one"] += _acquitted(one)
        found["clones"] += _acquitted(clones)
        voices = sum(entry.id.startswith(_POISON) for entry in clones.tally)
        found["clones counted twice"] += voices > 1 or vote_if_close(one) != vote_if_close(clones)
        found["guarded: one"] += _acquitted(judged.precedents_of(place, 1, _SOLE, vector))
        found["guarded: clones"] += _acquitted(judged.precedents_of(place, CLONES, _SOLE, vector))
        variants = np.concatenate([_aside(vector[0], judged.base.text_dim, 0.98, rng) for _ in range(CLONES)])
        found["guarded: variants"] += _acquitted(judged.precedents_of(place, CLONES, _SOLE, variants))
        found["guarded, one of a crowd: variants"] += _acquitted(judged.precedents_of(place, CLONES, _CROWDS, variants))
        done += 1
    return found


def acquittals(library: Library, *, no_sole_acquittal: bool) -> list[bool]:
    """True for each meme of a library that the others acquit, with nothing poisoned."""
    judged = _Judged(library)
    safeguards = _SOLE if no_sole_acquittal else _OPEN
    return [_acquitted(judged.precedents_of(place, 0, safeguards)) for place in range(len(judged.memes))]


_POISON = "\0poison-"
"""Prefix of planted ids, which no id of a library on disk can have."""


class _Judged:
    """Judges each meme of a library by the others, with poisoned precedents among them."""

    def __init__(self, library: Library) -> None:
        self.library, self.memes = library, list(library.memes)
        self.base = FusedIndex(library.rows, library.manifest.encoder.text_dim)
        self._by_words = _groups(self.memes, _words)
        self._by_pixels = _groups(self.memes, lambda meme: meme.pixels_sha256)

    def precedents_of(
        self, place: int, poison: int, safeguards: Mapping[str, Any], vectors: NDArray[np.float32] | None = None
    ) -> Findings:
        """Finds precedents of a meme with ``poison`` planted ones under these safeguards.

        One vector, of shape (1, dim), plants clones; several plant variants, each with a vector and word of its own.
        """
        meme = self.memes[place]
        duplicates = {place, *self._by_words.get(_words(meme), ()), *self._by_pixels.get(meme.pixels_sha256, ())}
        varied = vectors is not None and len(vectors) > 1
        planted = _variants(meme, poison) if varied else _clones(meme, poison)
        if vectors is not None and not varied:
            vectors = np.tile(vectors, (poison, 1))
        view = _Poisoned(
            self.library,
            self.memes,
            self.base,
            hidden=duplicates,
            planted=planted,
            vectors=vectors,
            safeguards=safeguards,
        )
        return search_library(view, _query(self.library, place, meme), SearchRequest(exhibits=3, tally=25, alpha=None))


class _Poisoned:
    """A :class:`~retrieval.library.ports.LibraryView` with some precedents hidden and others planted."""

    def __init__(
        self,
        library: Library,
        memes: Sequence[LabelledMeme],
        base: FusedIndex,
        *,
        hidden: Collection[int],
        planted: Sequence[LabelledMeme],
        vectors: NDArray[np.float32] | None,
        safeguards: Mapping[str, Any],
    ) -> None:
        self._library, self._memes, self._planted = library, memes, planted
        segments = [base]
        self._text_dim = base.text_dim
        if vectors is not None:
            segments.append(FusedIndex(np.ascontiguousarray(vectors), base.text_dim))
        self._index = SegmentedIndex(segments, hidden)
        self._harmful = np.array([meme.harmful for meme in (*memes, *planted)], dtype=np.bool_)
        guarded = library.manifest.tuning.safeguards.model_copy(update=dict(safeguards))
        self.tuning: Tuning = library.manifest.tuning.model_copy(
            # No regression: it was fitted on the whole library, including the meme that is left out.
            update={"safeguards": guarded, "regression": None}
        )

    @property
    def identity(self) -> LibraryIdentity:
        return self._library.identity

    @property
    def counts(self) -> Counts:
        return self._library.counts

    def rows_of(self, ids: Collection[str]) -> list[int]:
        planted = {meme.id: len(self._memes) + n for n, meme in enumerate(self._planted)}
        known = (planted.get(id_, self._library.row_of(id_)) for id_ in ids)
        return [row for row in known if row is not None]

    def count(self, where: Filter) -> int:
        return sum(where.lets_through(meme) for meme in (*self._memes, *self._planted))

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        n = len(self._memes)
        return [self._memes[row] if row < n else self._planted[row - n] for row in rows]

    def halves(self, rows: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        found = self._index.vectors(rows)
        return found[:, : self._text_dim], found[:, self._text_dim :]

    def search(
        self,
        text: NDArray[np.float32] | None,
        picture: NDArray[np.float32] | None,
        *,
        alpha: float,
        k: int,
        exclude: Collection[int] = (),
        where: Filter | None = None,
        harmful: bool | None = None,
    ) -> Hits:
        among = None
        if where is not None or harmful is not None:
            among = self._harmful == harmful if harmful is not None else np.ones_like(self._harmful)
            if where is not None:
                among &= np.array([where.lets_through(meme) for meme in (*self._memes, *self._planted)])
        return self._index.search(text, picture, alpha=alpha, k=k, exclude=exclude, among=among)


def _acquitted(findings: Findings) -> bool:
    vote = vote_if_close(findings)
    return vote is not None and vote.probability < vote.settings.threshold


def _words(meme: LabelledMeme) -> str:
    return text_key(normalise_text(meme.text))


def _groups(memes: Sequence[LabelledMeme], key: Callable[[LabelledMeme], str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place, meme in enumerate(memes):
        if key(meme):
            groups.setdefault(key(meme), []).append(place)
    return groups


def _query(library: Library, place: int, meme: LabelledMeme) -> Query:
    dim, row = library.manifest.encoder.text_dim, np.array(library.rows[place])
    return Query(
        text=row[:dim] if meme.has_text else None,
        picture=row[dim:] if meme.has_picture else None,
        text_key=text_key(meme.text),
        pixels_sha256=meme.pixels_sha256,
        text_cut=False,
    )


def _clones(meme: LabelledMeme, count: int) -> list[LabelledMeme]:
    return [
        _relabelled(meme, False).model_copy(
            update={
                "id": f"{_POISON}{number}",
                "text": f"{meme.text}{' ' * (1 + number)}{'Really' if number % 2 else 'really'}",
                "source": "poison",
                "kept": None,
            }
        )
        for number in range(count)
    ]


def _variants(meme: LabelledMeme, count: int) -> list[LabelledMeme]:
    """Returns poisoned precedents that are not clones: each has a word of its own."""
    return [
        one.model_copy(update={"text": f"{meme.text} really{number}"})
        for number, one in enumerate(_clones(meme, count))
    ]


def _relabelled(meme: LabelledMeme, harmful: bool) -> LabelledMeme:
    return meme.model_copy(update={"label": Label.HARMFUL if harmful else Label.NOT_HARMFUL})


def _nearby(library: Library, place: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Returns a vector with a cosine of at least 0.7 to the meme's in each half, shared by all clones."""
    return _aside(np.array(library.rows[place]), library.manifest.encoder.text_dim, rng.uniform(0.7, 1.0), rng)


def _aside(row: NDArray[np.float32], dim: int, cosine: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Returns a vector of shape (1, n) with this cosine to a row in each half."""
    row = row.copy()
    for half in (row[:dim], row[dim:]):
        if half.any():
            aside = rng.normal(size=half.size).astype(np.float32)
            aside -= (aside @ half) * half
            length = float(np.linalg.norm(aside))
            if length > 0:
                half[:] = cosine * half + (1 - cosine**2) ** 0.5 * aside / length
            half /= np.linalg.norm(half)
    return np.ascontiguousarray(row[None])
