"""What a few poisoned precedents can do to the vote: labels that were flipped, and a precedent made to acquit.

All of it is measured on a library's own memes: each is judged by the rest, without its twins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from court.errors import BadRequest
from court.precedents import Findings, LibraryIdentity
from court.summary import vote_if_close
from court.verdict import Label
from eval.scores.metrics import score
from eval.scores.resampling import interval
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


@dataclass(frozen=True, slots=True)
class Flipped:
    """What flipping a share of the labels does to macro-F1, over seeds.

    Attributes:
        share: Of the labels that were flipped.
        seeds: How often.
        untouched: Macro-F1 of the vote with the true labels.
        mean_drop: Mean of what it falls by, in [-1, 1].
        worst_drop: The most that it falls by.
        low: Lower end of the middle 95 % of the falls.
        high: Upper end.
    """

    share: float
    seeds: int
    untouched: float
    mean_drop: float
    worst_drop: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Planted:
    """What a precedent that was made to acquit one meme does to the verdict on it.

    Attributes:
        trials: Harmful memes that the vote did not acquit before; each with a poisoned precedent of its own.
        by_one: Of these, acquitted with one.
        by_clones: Acquitted with twenty clones of it.
        counted_twice: Trials in which more than one clone was in the tally, or the vote was another than by one.
        sole_by_one: Acquitted with one where the library leaves out sole acquittals.
        sole_by_clones: Likewise with twenty clones.
        sole_by_variants: Likewise with twenty that are no clones: each with a word of its own, and nearly the same.
        crowd_by_variants: The same where, besides, of what is nearly the same one is heard.
    """

    trials: int
    by_one: int
    by_clones: int
    counted_twice: int
    sole_by_one: int
    sole_by_clones: int
    sole_by_variants: int
    crowd_by_variants: int


@dataclass(frozen=True, slots=True)
class Price:
    """What leaving out sole acquittals does to the vote on memes that nobody has poisoned.

    Attributes:
        memes: That were judged; what is not acquitted counts as found harmful, undecided ones too.
        accuracy: As the library is without it.
        accuracy_guarded: With sole acquittals left out.
        accuracy_crowds: With these left out, and of what is nearly the same one heard.
        macro_f1: As the library is without it.
        macro_f1_guarded: With sole acquittals left out.
        macro_f1_crowds: As for accuracy.
        benign_lost: Benign memes that are acquitted without it only.
        harmful_caught: Harmful memes that are acquitted without it only.
    """

    memes: int
    accuracy: float
    accuracy_guarded: float
    accuracy_crowds: float
    macro_f1: float
    macro_f1_guarded: float
    macro_f1_crowds: float
    benign_lost: int
    harmful_caught: int


def measure_flipped(library: Library, share: float, *, seeds: int = 20, limit: int = 4000) -> Flipped:
    """Flips this share of the labels, and votes with the library's own settings on memes whose labels are true.

    The settings are not chosen anew: whoever flips labels does so in a library that is in use.

    Args:
        library: Whose memes are judged, each by the rest.
        share: Of the labels to flip, in (0, 1).
        seeds: How often.
        limit: Memes that are judged at most.
    """
    rows, memes = library.rows, list(library.memes)
    true = np.array([meme.harmful for meme in memes], dtype=np.bool_)

    def macro_f1(voting: Sequence[LabelledMeme]) -> float:
        tuning = library.manifest.tuning
        dim = library.manifest.encoder.text_dim
        k, guarded = tuning.vote.k, tuning.safeguards
        (near,) = leave_one_out_neighbours(
            rows, voting, dim, alphas=[tuning.alpha], depth=k + 1, limit=limit, safeguards=guarded
        )
        probabilities = safeguarded_votes(near.similarities, near.harmful, tuning.vote, guarded)
        said = probabilities >= tuning.vote.threshold
        return score(true[near.rows].tolist(), said.tolist(), resamples=1).macro_f1.value

    untouched = macro_f1(memes)
    drops = []
    for seed in range(seeds):
        flipped = np.random.default_rng(seed).choice(len(memes), max(1, round(share * len(memes))), replace=False)
        voting = list(memes)
        for place in flipped.tolist():
            voting[place] = _relabelled(memes[place], not memes[place].harmful)
        drops.append(untouched - macro_f1(voting))
    low, high = interval(np.array(drops))
    return Flipped(share, seeds, untouched, float(np.mean(drops)), max(drops), low, high)


def measure_planted(
    library: Library, *, trials: int = 1000, seed: int = 0, progress: Callable[[int, int], None] = lambda *_: None
) -> Planted:
    """Puts a benign precedent on top of a harmful meme, and twenty clones of it, and holds the court's own vote.

    The poisoned precedent has the meme's words with one more of its own and lies at a random distance from it, from a
    copy to what is hardly near. Its clones differ in spacing and case. The meme and its twins are not in the library.

    Raises:
        BadRequest: The library has no harmful meme that its vote does not acquit.
    """
    memes = list(library.memes)
    by_words, by_pixels = _groups(memes, _words), _groups(memes, lambda meme: meme.pixels_sha256)
    base = FusedIndex(library.rows, library.manifest.encoder.text_dim)
    rng = np.random.default_rng(seed)
    harmful = [place for place, meme in enumerate(memes) if meme.harmful]
    found: Counter[str] = Counter()
    done = skipped = 0
    while done < trials:
        if skipped > 2 * len(harmful) + 10 and not done:
            raise BadRequest("The library has no harmful meme that its vote does not acquit: there is nothing to try.")
        place = harmful[int(rng.integers(len(harmful)))] if harmful else -1
        if place < 0:
            skipped = 2 * len(harmful) + 11
            continue
        meme = memes[place]
        twins = {place, *by_words.get(_words(meme), ()), *by_pixels.get(meme.pixels_sha256, ())}
        query = _query(library, place, meme)

        trial = _Trial(library, memes, base, twins, query, meme)
        if _acquitted(trial.judged(0, _OPEN)):
            skipped += 1
            continue
        vector = _nearby(library, place, rng)
        one, clones = trial.judged(1, _OPEN, vector), trial.judged(CLONES, _OPEN, vector)
        found["one"] += _acquitted(one)
        found["clones"] += _acquitted(clones)
        safeguarded_votes = sum(entry.id.startswith(_POISON) for entry in clones.tally)
        found["twice"] += safeguarded_votes > 1 or vote_if_close(one) != vote_if_close(clones)
        found["sole one"] += _acquitted(trial.judged(1, _SOLE, vector))
        found["sole clones"] += _acquitted(trial.judged(CLONES, _SOLE, vector))
        variants = np.concatenate([_aside(vector[0], base.text_dim, 0.98, rng) for _ in range(CLONES)])
        found["sole variants"] += _acquitted(trial.judged(CLONES, _SOLE, variants))
        found["crowd variants"] += _acquitted(trial.judged(CLONES, _CROWDS, variants))
        done += 1
        progress(done, trials)
    return Planted(
        trials=trials,
        by_one=found["one"],
        by_clones=found["clones"],
        counted_twice=found["twice"],
        sole_by_one=found["sole one"],
        sole_by_clones=found["sole clones"],
        sole_by_variants=found["sole variants"],
        crowd_by_variants=found["crowd variants"],
    )


def measure_price(library: Library, *, limit: int = 4000, seed: int = 0) -> Price:
    """What it costs and brings to leave out sole acquittals where nobody has poisoned anything.

    Args:
        library: Whose memes are judged, each by the rest without its twins.
        limit: Memes that are judged at most; evenly spaced ones where there are more.
        seed: Of the bootstrap.
    """
    memes = list(library.memes)
    by_words, by_pixels = _groups(memes, _words), _groups(memes, lambda meme: meme.pixels_sha256)
    base = FusedIndex(library.rows, library.manifest.encoder.text_dim)
    gold: list[bool] = []
    said: tuple[list[bool], ...] = ([], [], [])
    for place in np.unique(np.linspace(0, len(memes) - 1, min(limit, len(memes))).round().astype(int)).tolist():
        meme = memes[place]
        twins = {place, *by_words.get(_words(meme), ()), *by_pixels.get(meme.pixels_sha256, ())}
        trial = _Trial(library, memes, base, twins, _query(library, place, meme), meme)
        gold.append(meme.harmful)
        for one, safeguards in zip(said, (_OPEN, _SOLE, _CROWDS), strict=True):
            # What is not acquitted is found harmful, or goes to a person, who is not asked here.
            one.append(not _acquitted(trial.judged(0, safeguards)))
    plain, guarded, crowds = (score(gold, one, seed=seed) for one in said)
    turned = [before is not after for before, after in zip(said[0], said[1], strict=True)]
    return Price(
        memes=len(gold),
        accuracy=plain.accuracy.value,
        accuracy_guarded=guarded.accuracy.value,
        accuracy_crowds=crowds.accuracy.value,
        macro_f1=plain.macro_f1.value,
        macro_f1_guarded=guarded.macro_f1.value,
        macro_f1_crowds=crowds.macro_f1.value,
        benign_lost=sum(now and not harmful for now, harmful in zip(turned, gold, strict=True)),
        harmful_caught=sum(now and harmful for now, harmful in zip(turned, gold, strict=True)),
    )


def open_poisoned(place: Path) -> Library:
    """The library to measure. Raises BadLibrary."""
    return Library.open(place, None)


_POISON = "\0poison-"
"""Begins the ids of what is planted: no id of a library on disk can."""


@dataclass(frozen=True, slots=True)
class _Trial:
    library: Library
    memes: Sequence[LabelledMeme]
    base: FusedIndex
    hidden: Collection[int]
    query: Query
    meme: LabelledMeme

    def judged(
        self, poison: int, safeguards: Mapping[str, Any], vectors: NDArray[np.float32] | None = None
    ) -> Findings:
        """What is found with so many poisoned precedents, and with these safeguards instead of the library's.

        They are clones where ``vectors`` is one, of shape (1, dim); else, with one each, each has a word of its own.
        """
        varied = vectors is not None and len(vectors) > 1
        planted = _variants(self.meme, poison) if varied else _clones(self.meme, poison)
        if vectors is not None and not varied:
            vectors = np.tile(vectors, (poison, 1))
        shelf = _Poisoned(self.library, self.memes, self.base, self.hidden, planted, vectors, safeguards)
        return search_library(shelf, self.query, SearchRequest(exhibits=3, tally=25, alpha=None))


class _Poisoned:
    """A :class:`~retrieval.library.ports.LibraryView` with some precedents hidden and others planted."""

    def __init__(
        self,
        library: Library,
        memes: Sequence[LabelledMeme],
        base: FusedIndex,
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
        self.tuning: Tuning = library.manifest.tuning.model_copy(update={"safeguards": guarded})

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
    held = vote_if_close(findings)
    return held is not None and held.probability < held.settings.threshold


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
