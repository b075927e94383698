"""Attacks on a library's vote: labels that are flipped, and precedents that are made to acquit one meme.

Each meme of a library is judged by the rest, without its twins; the library itself is not changed.
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
from retrieval.index.exact import FusedIndex, Hits
from retrieval.index.segments import SegmentedIndex
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
    """Macro-F1 of the vote with the true labels, and with this share of them flipped, for each seed.

    The vote's settings are the library's own: whoever flips labels does so in a library that is in use.
    """
    rows, memes = library.rows, list(library.memes)
    tuning, dim = library.manifest.tuning, library.manifest.encoder.text_dim
    true = np.array([meme.harmful for meme in memes], dtype=np.bool_)

    def macro_f1(voting: Sequence[LabelledMeme]) -> float:
        (near,) = leave_one_out_neighbours(
            rows,
            voting,
            dim,
            alphas=[tuning.alpha],
            depth=tuning.vote.k + 1,
            limit=4000,
            safeguards=tuning.safeguards,
        )
        votes = safeguarded_votes(near.similarities, near.harmful, tuning.vote, tuning.safeguards)
        found = votes >= tuning.vote.threshold
        return score(true[near.rows].tolist(), found.tolist(), resamples=1).macro_f1.value

    figures = []
    for seed in range(seeds):
        flipped = np.random.default_rng(seed).choice(len(memes), max(1, round(share * len(memes))), replace=False)
        voting = list(memes)
        for place in flipped.tolist():
            voting[place] = _relabelled(memes[place], not memes[place].harmful)
        figures.append(macro_f1(voting))
    return macro_f1(memes), figures


def acquitted_by_planted(library: Library, *, trials: int) -> Counter[str]:
    """Counts how many harmful memes, each with a poisoned precedent of its own, are acquitted on account of it.

    The poisoned precedent has the meme's words with one more of its own and lies at a random distance from it, from a
    copy to what is hardly near. Its clones differ in spacing and case; its variants are no clones, but nearly the same.
    The meme and its twins are not in the library, and it is one that the vote does not acquit by itself.
    """
    judged = _Judged(library)
    rng = np.random.default_rng(0)
    harmful = [place for place, meme in enumerate(judged.memes) if meme.harmful]
    found: Counter[str] = Counter()
    done = 0
    while done < trials:
        place = harmful[int(rng.integers(len(harmful)))]
        if _acquitted(judged.by_the_rest(place, 0, _OPEN)):
            continue
        vector = _nearby(library, place, rng)
        one, clones = (judged.by_the_rest(place, count, _OPEN, vector) for count in (1, CLONES))
        found["one"] += _acquitted(one)
        found["clones"] += _acquitted(clones)
        voices = sum(entry.id.startswith(_POISON) for entry in clones.tally)
        found["clones counted twice"] += voices > 1 or vote_if_close(one) != vote_if_close(clones)
        found["guarded: one"] += _acquitted(judged.by_the_rest(place, 1, _SOLE, vector))
        found["guarded: clones"] += _acquitted(judged.by_the_rest(place, CLONES, _SOLE, vector))
        variants = np.concatenate([_aside(vector[0], judged.base.text_dim, 0.98, rng) for _ in range(CLONES)])
        found["guarded: variants"] += _acquitted(judged.by_the_rest(place, CLONES, _SOLE, variants))
        found["guarded, one of a crowd: variants"] += _acquitted(judged.by_the_rest(place, CLONES, _CROWDS, variants))
        done += 1
    return found


def acquittals(library: Library, *, no_sole_acquittal: bool) -> list[bool]:
    """True for each meme of a library that the rest acquits, where nothing is poisoned."""
    judged = _Judged(library)
    safeguards = _SOLE if no_sole_acquittal else _OPEN
    return [_acquitted(judged.by_the_rest(place, 0, safeguards)) for place in range(len(judged.memes))]


_POISON = "\0poison-"
"""Begins the ids of what is planted: no id of a library on disk can."""


class _Judged:
    """Judges each meme of a library by the rest, with poisoned precedents among them."""

    def __init__(self, library: Library) -> None:
        self.library, self.memes = library, list(library.memes)
        self.base = FusedIndex(library.rows, library.manifest.encoder.text_dim)
        self._by_words = _groups(self.memes, _words)
        self._by_pixels = _groups(self.memes, lambda meme: meme.pixels_sha256)

    def by_the_rest(
        self, place: int, poison: int, safeguards: Mapping[str, Any], vectors: NDArray[np.float32] | None = None
    ) -> Findings:
        """Finds precedents of a meme with so many poisoned ones, and with these safeguards.

        They are clones where ``vectors`` is one, of shape (1, dim); else, with one each, each has a word of its own.
        """
        meme = self.memes[place]
        twins = {place, *self._by_words.get(_words(meme), ()), *self._by_pixels.get(meme.pixels_sha256, ())}
        varied = vectors is not None and len(vectors) > 1
        planted = _variants(meme, poison) if varied else _clones(meme, poison)
        if vectors is not None and not varied:
            vectors = np.tile(vectors, (poison, 1))
        view = _Poisoned(
            self.library,
            self.memes,
            self.base,
            hidden=twins,
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
            # The vote alone: a regression over the whole library knows the meme that is left out.
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
    """Poisoned precedents that are no clones: each has a word of its own."""
    return [
        one.model_copy(update={"text": f"{meme.text} really{number}"})
        for number, one in enumerate(_clones(meme, count))
    ]


def _relabelled(meme: LabelledMeme, harmful: bool) -> LabelledMeme:
    return meme.model_copy(update={"label": Label.HARMFUL if harmful else Label.NOT_HARMFUL})


def _nearby(library: Library, place: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A vector at a cosine of at least .7 to the meme's, half by half; the same for the clones."""
    return _aside(np.array(library.rows[place]), library.manifest.encoder.text_dim, rng.uniform(0.7, 1.0), rng)


def _aside(row: NDArray[np.float32], dim: int, cosine: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """A vector of shape (1, n) at this cosine to a row, half by half."""
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
