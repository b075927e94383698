"""Search over any library view: finders differ in the view that they search, not in this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from court.meme import Frame
from court.precedents import Findings, LibraryIdentity, MinSimilarity, Precedent, Relation, Search, TallyEntry, vote
from court.summary import vote_if_close
from court.verdict import Label
from retrieval.embed.encoder import Encoder
from retrieval.index.exact import Hits
from retrieval.library.filters import EVERYTHING, Filter
from retrieval.library.manifest import Counts, DuplicateKey, LabelledMeme, Safeguards, Tuning
from retrieval.library.ports import LibraryView
from retrieval.text import script_of, text_key

NEAR = MinSimilarity(text=0.80, picture=0.70)
"""Similarities from which, in both halves, two memes count as near-duplicates, as in the benchmark's check."""
NEARLY = 0.95
"""Cosine per half from which two precedents are near-duplicates."""
_FEW_DUPLICATES, _MOST_DUPLICATES = 64, 4096
"""Initial and maximum number of rows examined for near-duplicates."""
_SPARE, _MOST_LOOKED_AT = 8, 16_384
"""Additional rows fetched to replace duplicates, and the maximum number of rows fetched."""


@dataclass(frozen=True, slots=True)
class LibraryInfo:
    """Description of a library at one moment."""

    identity: LibraryIdentity
    counts: Counts
    tuning: Tuning

    @classmethod
    def of(cls, view: LibraryView) -> LibraryInfo:
        """Describes the library of a view."""
        return cls(view.identity, view.counts, view.tuning)


@dataclass(frozen=True, slots=True)
class Query:
    """Embedded query of a search; a half is None if there is none, or its text can't be read."""

    text: NDArray[np.float32] | None
    picture: NDArray[np.float32] | None
    text_key: str
    pixels_sha256: str
    text_cut: bool
    text_not_understood: bool = False
    script: str = ""

    @classmethod
    def embedded(cls, encoder: Encoder, text: str, frames: Sequence[Frame], pixels_sha256: str) -> Query:
        """Embeds a meme with an encoder."""
        texts, pictures = encoder.embed_meme(text, [frame.png for frame in frames])
        key, read = text_key(text), bool(texts.vectors[0].any())
        return cls(
            text=texts.vectors[0] if read else None,
            picture=pictures[0] if pictures is not None and pictures[0].any() else None,
            text_key=key,
            pixels_sha256=pixels_sha256,
            text_cut=texts.cut[0] and read,
            text_not_understood=bool(key) and not read,
            script=script_of(text),
        )


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Arguments of :meth:`retrieval.precedents.finder.LibraryFinder.find`.

    Raises:
        ValueError: Alpha is outside [0, 1], or a number below 0.
    """

    exhibits: int
    tally: int
    alpha: float | None
    exclude: Collection[str] = ()
    where: Filter | None = None
    leave_out_duplicates: bool = False

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1], not {self.alpha}")
        if self.exhibits < 0 or self.tally < 0:
            raise ValueError("exhibits and tally can't be negative")


def search_library(view: LibraryView, query: Query, wanted: SearchRequest) -> Findings:
    """Finds the most similar precedents; duplicates count once, and the library's safeguards apply."""
    findings = _findings(view, query, wanted)
    if not view.tuning.safeguards.no_sole_acquittal or not _acquits(findings):
        return findings
    # One more than the voters: it moves up when another is excluded.
    for id_ in _perhaps_sole(_findings(view, query, replace(wanted, tally=findings.vote_settings.k + 1))):
        (row,) = view.rows_of([id_])
        (meme,) = view.read([row])
        cluster = None
        if view.tuning.safeguards.per_cluster is not None:
            # Its near-duplicates are excluded too, or the next one would take its place.
            cluster = _ClusterCap(1)
            cluster.scan(*view.halves([row]))
            cluster.join(0, meme.harmful)
        without = _findings(view, query, wanted, _LeftOut(id_, meme.duplicate_key, cluster))
        if not _acquits(without):
            # Named in the notes, so that readers of the record can look it up.
            note = f"The precedent {id_} was left out: without it, the vote is not for acquittal."
            return without.model_copy(update={"notes": (*without.notes, note)})
    return findings


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """A precedent that is excluded together with its duplicates, and with its cluster if clusters are capped."""

    id: str
    key: DuplicateKey | None
    cluster: _ClusterCap | None


class _ClusterCap:
    """Limits the number of near-duplicates among the chosen precedents.

    Rows are compared in batches: numpy releases the GIL at every step, and under load reacquiring it takes longer than
    the step itself.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._halves: tuple[NDArray[np.float32], ...] = ()
        self._chosen: list[bool | None] = []
        """For each recent row, True if it is harmful, False if not; None if it was not chosen."""
        self._first = 0
        """Index of the first row of the current batch."""
        self._near_duplicates: list[list[int]] = []
        """For each row of the batch, the indices of its near-duplicates."""

    def scan(self, texts: NDArray[np.float32], pictures: NDArray[np.float32]) -> None:
        # Only chosen rows are kept; skipped ones do not count.
        chosen = [place for place, harmful in enumerate(self._chosen) if harmful is not None]
        before = [half[chosen] for half in self._halves] or [half[:0] for half in (texts, pictures)]
        self._halves = tuple(map(np.concatenate, zip(before, (texts, pictures), strict=True)))
        self._chosen = [*(self._chosen[place] for place in chosen), *[None] * len(texts)]
        self._first = len(chosen)
        same = np.ones((len(texts), len(self._chosen)), dtype=np.bool_)
        for mine, all_ in zip((texts, pictures), self._halves, strict=True):
            # A half that neither has does not distinguish them.
            neither = ~np.logical_or.outer(mine.any(axis=1), all_.any(axis=1))
            # Not a matrix product, whose threads would spin at the expense of other work.
            same &= (np.einsum("ik,jk->ij", mine, all_) >= NEARLY) | neither
        self._near_duplicates = [[] for _ in range(len(texts))]
        for row, place in zip(*map(np.ndarray.tolist, np.nonzero(same)), strict=True):
            self._near_duplicates[row].append(place)

    def full(self, row: int, harmful: bool) -> bool:
        # None, for rows that were not chosen, equals neither label.
        return sum(self._chosen[place] == harmful for place in self._near_duplicates[row]) >= self._most

    def join(self, row: int, harmful: bool) -> None:
        self._chosen[self._first + row] = harmful


def _acquits(findings: Findings) -> bool:
    close_vote = vote_if_close(findings)
    return close_vote is not None and close_vote.probability < close_vote.settings.threshold


def _perhaps_sole(findings: Findings) -> list[str]:
    """Returns ids of precedents that may alone decide for "not harmful", by weight or for lack of near ones."""
    settings = findings.vote_settings
    benign = [entry.id for entry in findings.tally[: settings.k] if entry.label is Label.NOT_HARMFUL]
    without = {id_: [entry for entry in findings.tally if entry.id != id_] for id_ in benign}
    # Without any voter left, there is no vote for "not harmful".
    probability = {
        id_: vote(others, settings, findings.regression).probability if others else 1.0
        for id_, others in without.items()
    }
    # Without any one of these the vote would tip; the most influential one represents them.
    weighty = [id_ for id_ in benign if probability[id_] >= settings.threshold]
    shown = (*findings.exhibits, *filter(None, [findings.nearest_benign]))
    benign_ids = [one.id for one in shown if one.label is Label.NOT_HARMFUL]
    return list(dict.fromkeys([*sorted(weighty, key=lambda id_: -probability[id_])[:1], *benign_ids]))


def _findings(view: LibraryView, query: Query, wanted: SearchRequest, silenced: _LeftOut | None = None) -> Findings:
    tuning = view.tuning.for_query(text=query.text is not None, picture=query.picture is not None)
    exhibits = wanted.exhibits
    # Not `or`: a weight of 0 is a search by picture alone.
    alpha = tuning.alpha if wanted.alpha is None else wanted.alpha
    # The vote was calibrated with this number of voters.
    tally = max(wanted.tally, tuning.vote.k)
    used, notes = _weights(view.counts, query, alpha)
    excluded = view.rows_of(wanted.exclude) if wanted.exclude else []
    if excluded:
        notes.append(f"{len(excluded)} precedents were left out on purpose.")
    where = None if wanted.where == EVERYTHING else wanted.where
    if where is not None:
        count, size = view.count(where), view.counts.memes
        notes.append(f"Only {count:,} of {size:,} precedents were searched, as was asked for.")
    # Off if none of the searched precedents is verified, as nothing would be left to cite.
    if tuning.safeguards.verified_only and view.count(replace(where or EVERYTHING, verified=True)):
        where = replace(where or EVERYTHING, verified=True)
        notes.append("Precedents whose label nobody has confirmed were left out, as the library asks for.")
    if wanted.leave_out_duplicates:
        duplicates = _duplicates(view, query, where) - set(excluded)
        excluded += sorted(duplicates)
        if duplicates:
            notes.append(f"{len(duplicates)} precedents were left out as the same meme or nearly the same.")

    regression = None
    if tuning.regression is not None and used is not None:
        if excluded or wanted.where not in (None, EVERYTHING):
            notes.append("The library's regression was left out: it was fitted to precedents that were not searched.")
        else:
            regression = tuning.regression.log_odds(query.text, query.picture)

    found: tuple[Precedent, ...] = ()
    counted: tuple[TallyEntry, ...] = ()
    nearest: dict[bool, Precedent | None] = {True: None, False: None}
    if used is not None:
        # At least one, as the nearest of each label are needed even without exhibits.
        k = max(exhibits, tally, 1)
        nearest_first = _Ranking(
            view=view,
            query=query,
            alpha=used,
            exclude=excluded,
            where=where,
            safeguards=tuning.safeguards,
            silenced=silenced,
        )
        hits, memes = nearest_first.first(k)
        notes += nearest_first.notes
        found = tuple(_precedent(meme, query, hits, place) for place, meme in enumerate(memes[:exhibits]))
        counted = tuple(_entry(meme, hits, place) for place, meme in enumerate(memes[:tally]))
        for harmful in nearest:
            # Usually among the hits; otherwise that label is searched separately.
            place = next((place for place, meme in enumerate(memes) if meme.harmful == harmful), None)
            if place is not None:
                nearest[harmful] = _precedent(memes[place], query, hits, place)
                continue
            best, only = nearest_first.first(1, harmful)
            for meme in only:
                nearest[harmful] = _precedent(meme, query, best, 0)
        notes += _gaps(memes[:exhibits], used)
    return Findings(
        library=view.identity,
        search=Search(
            alpha_asked=alpha,
            alpha=alpha if used is None else used,
            has_text=query.text is not None,
            has_picture=query.picture is not None,
            exhibits=exhibits,
            tally=tally,
            excluded=len(excluded),
        ),
        floors=tuning.floors_of(query.script),
        exhibits=found,
        nearest_harmful=nearest[True],
        nearest_benign=nearest[False],
        tally=counted,
        vote_settings=tuning.vote,
        settles=tuning.settles,
        text_cut=query.text_cut,
        text_not_understood=query.text_not_understood,
        regression=regression,
        risk=tuning.risk,
        notes=tuple(notes),
    )


class _Ranking:
    """Ranking of the nearest precedents, without duplicates and limited per source."""

    def __init__(
        self,
        view: LibraryView,
        query: Query,
        alpha: float,
        exclude: Collection[int],
        where: Filter | None,
        safeguards: Safeguards,
        silenced: _LeftOut | None,
    ) -> None:
        self._silenced = silenced
        self._view, self._query, self._alpha = view, query, alpha
        self._exclude, self._where, self._cap = exclude, where, safeguards.cap
        self._per_cluster = safeguards.per_cluster
        self.notes: list[str] = []

    def first(self, k: int, harmful: bool | None = None) -> tuple[Hits, list[LabelledMeme]]:
        """Returns the first ``k``, optionally of one label; :attr:`notes` says what was skipped among both labels."""
        fetched = k + _SPARE
        while True:
            hits = self._view.search(
                self._query.text,
                self._query.picture,
                alpha=self._alpha,
                k=fetched,
                exclude=self._exclude,
                where=self._where,
                harmful=harmful,
            )
            places, memes, passed_over = self._chosen(hits, k)
            # Fewer rows than requested means that there are no more.
            if len(places) == k or hits.rows.size < fetched or fetched >= _MOST_LOOKED_AT:
                break
            # Each round searches from the start; with fourfold growth, all rounds together cost little more than the
            # last.
            fetched = min(4 * fetched, _MOST_LOOKED_AT)
        if harmful is None:
            self._note(k, hits.rows.size == fetched, len(places), passed_over)
        at = np.array(places, dtype=np.int64)
        return Hits(hits.rows[at], hits.scores[at], hits.text[at], hits.picture[at]), memes

    def _note(self, k: int, more: bool, found: int, passed_over: Counter[str]) -> None:
        if passed_over["clone"]:
            self.notes.append(
                f"Passed over {passed_over['clone']} precedents that repeat a nearer one: clones count once."
            )
        if passed_over["source"]:
            self.notes.append(
                f"Passed over {passed_over['source']} precedents: of one source, at most {self._cap} are heard."
            )
        if passed_over["cluster"]:
            self.notes.append(
                f"Passed over {passed_over['cluster']} precedents that are nearly the same as nearer ones: of such, at "
                f"most {self._per_cluster} are heard."
            )
        if found < k and more:
            self.notes.append(f"Only the {_MOST_LOOKED_AT:,} nearest precedents were looked at, most of them clones.")

    def _chosen(self, hits: Hits, k: int) -> tuple[list[int], list[LabelledMeme], Counter[str]]:
        places: list[int] = []
        memes: list[LabelledMeme] = []
        passed_over: Counter[str] = Counter()
        per_source: Counter[str] = Counter()
        seen: set[DuplicateKey] = set()
        crowds = None if self._per_cluster is None else _ClusterCap(self._per_cluster)
        silenced = self._silenced.cluster if self._silenced is not None else None
        comparing = [one for one in (crowds, silenced) if one is not None]
        start = 0
        while len(places) < k and start < hits.rows.size:
            # Reads only as many as may be needed in the first round.
            end = start + (k if start == 0 else max(k, _SPARE))
            rows = hits.rows[start:end].tolist()
            if comparing:
                halves = self._view.halves(rows)
                for one in comparing:
                    one.scan(*halves)
            for place, meme in enumerate(self._view.read(rows), start):
                key = meme.duplicate_key
                if self._is_silenced(meme, key):
                    continue
                if silenced is not None and silenced.full(place - start, meme.harmful):
                    continue
                if key is not None and key in seen:
                    passed_over["clone"] += 1
                elif self._cap is not None and per_source[meme.source] >= self._cap:
                    passed_over["source"] += 1
                elif crowds is not None and crowds.full(place - start, meme.harmful):
                    passed_over["cluster"] += 1
                else:
                    if crowds is not None:
                        crowds.join(place - start, meme.harmful)
                    places.append(place)
                    memes.append(meme)
                    per_source[meme.source] += 1
                    if len(places) == k:
                        break
                if key is not None:
                    # Also for precedents skipped for their source or cluster: their duplicates must not take their
                    # place.
                    seen.add(key)
            start = end
        return places, memes, passed_over

    def _is_silenced(self, meme: LabelledMeme, key: DuplicateKey | None) -> bool:
        out = self._silenced
        return out is not None and (meme.id == out.id or (key is not None and key == out.key))


def _weights(counts: Counts, query: Query, alpha: float) -> tuple[float | None, list[str]]:
    """Returns the usable weight of the text, None if nothing can be compared, and notes about it."""
    notes = []
    if query.text_not_understood:
        notes.append("The encoder does not understand the meme's text: it is not compared by text.")
    elif query.text is None:
        notes.append("The meme has no text: it is not compared by text.")
    elif not counts.with_text:
        notes.append("No precedent in the library has a text: the text is not compared.")
    if query.picture is None:
        notes.append("The meme has no picture to compare: it is not compared by picture.")
    elif not counts.with_picture:
        notes.append("No precedent in the library has a picture: the picture is not compared.")
    by_text = query.text is not None and counts.with_text > 0
    by_picture = query.picture is not None and counts.with_picture > 0
    if by_text and by_picture:
        return alpha, notes
    if by_text:
        return 1.0, notes
    if by_picture:
        return 0.0, notes
    notes.append("Nothing is left to compare: no precedent is cited.")
    return None, notes


def _duplicates(view: LibraryView, query: Query, where: Filter | None) -> set[int]:
    """Returns rows of the meme itself and its near-duplicates, among the :data:`_MOST_DUPLICATES` nearest per half."""
    found: set[int] = set()
    for alpha, half, floor in ((1.0, query.text, NEAR.text), (0.0, query.picture, NEAR.picture)):
        if half is None:
            continue
        k = _FEW_DUPLICATES
        while True:
            # With all weight on one half, the score is that half's similarity, to which the threshold applies.
            hits = view.search(query.text, query.picture, alpha=alpha, k=k, where=where)
            # Done if there are no more rows, or the last one is too far away.
            if hits.rows.size < k or hits.scores[-1] < floor or k >= _MOST_DUPLICATES:
                break
            k *= 4
        # Preselected by one half, which the index finds quickly; both halves are compared below.
        close = np.flatnonzero(hits.scores >= floor)
        memes = view.read(hits.rows[close].tolist())
        for place, meme in zip(close.tolist(), memes, strict=True):
            both = hits.text[place] >= NEAR.text and hits.picture[place] >= NEAR.picture
            # If neither has a text, only the pictures can distinguish them.
            textless = not query.text_key and not meme.has_text and hits.picture[place] >= NEAR.picture
            if both or textless or _relation(meme, query) is not Relation.SIMILAR:
                found.add(int(hits.rows[place]))
    return found


def _gaps(shown: Sequence[LabelledMeme], alpha: float) -> list[str]:
    """Returns notes on exhibits that lack a half by which the others are compared."""
    without_text = sum(not meme.has_text for meme in shown) if alpha > 0 else 0
    without_picture = sum(not meme.has_picture for meme in shown) if alpha < 1 else 0
    return [
        f"Of the {len(shown)} precedents shown, {count} without a {half}: their {half} similarity counts as 0."
        for count, half in ((without_text, "text"), (without_picture, "picture"))
        if count
    ]


def _relation(meme: LabelledMeme, query: Query) -> Relation:
    # Two missing digests do not mean equal pictures.
    same_picture = bool(query.pixels_sha256) and meme.pixels_sha256 == query.pixels_sha256
    same_text = text_key(meme.text) == query.text_key
    if same_picture:
        return Relation.SAME_MEME if same_text else Relation.SAME_PICTURE
    return Relation.SAME_TEXT if same_text and query.text_key else Relation.SIMILAR


def _precedent(meme: LabelledMeme, query: Query, hits: Hits, place: int) -> Precedent:
    compared_text = meme.has_text and query.text is not None
    compared_picture = meme.has_picture and query.picture is not None
    return Precedent(
        id=meme.id,
        label=meme.label,
        text=meme.text,
        similarity=float(hits.scores[place]),
        text_similarity=float(hits.text[place]) if compared_text else None,
        picture_similarity=float(hits.picture[place]) if compared_picture else None,
        relation=_relation(meme, query),
        categories=meme.categories,
        source=meme.source,
        source_label=meme.source_label,
    )


def _entry(meme: LabelledMeme, hits: Hits, place: int) -> TallyEntry:
    return TallyEntry(id=meme.id, label=meme.label, similarity=float(hits.scores[place]))
