"""Annotators who disagree: their votes as soft labels, their agreement, and predictions compared with their shares.

A gold label hides how sure it is: of two memes labelled harmful, one may have been found harmful by all annotators and
the other by three of five. Soft labels keep that difference (Uma et al. 2021, "Learning from Disagreement").
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from court.errors import BadRequest
from eval.runs.results import Judged, Results, card_of_results
from eval.scores.means import RESAMPLES_OF_MEANS, mean_of, share_of
from eval.scores.measure import RESAMPLES, Figure, Floats, interval, share_figure
from retrieval.library.cells import plain_word
from retrieval.library.readers import LABEL_WORDS

Scale = Literal["nominal", "ordinal"]
"""Scale of ratings: names, any two of which are equally far apart; or ordered scores, which are the further apart the
more ratings lie between them."""


def alpha(items: Sequence[Sequence[Any]], scale: Scale = "ordinal") -> float | None:
    """Krippendorff's alpha; None if it is undefined, for example if all ratings are equal.

    Krippendorff 2004, chapter 11. Checked against the package ``krippendorff`` in the tests; that one is under the GPL,
    so a library that others build on can't depend on it.
    """
    found = alpha_figure(items, scale, resamples=0)
    return None if found is None else found.value


def alpha_figure(
    items: Sequence[Sequence[Any]], scale: Scale, *, resamples: int = RESAMPLES_OF_MEANS, seed: int = 0
) -> Figure | None:
    """Krippendorff's alpha with its interval by bootstrap over items; None as for :func:`alpha`."""
    if (shares := _coincidences(items)) is None:
        return None
    # Never NaN: there are at least two distinct values.
    value, n = float(_alphas(shares.sum(axis=0)[None], scale)[0]), len(shares)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    alphas = _alphas((drawn @ shares.reshape(n, -1)).reshape(resamples, *shares.shape[1:]), scale)
    # Alpha is undefined in a resample in which all ratings are equal.
    alphas = alphas[~np.isnan(alphas)]
    low, high = interval(alphas) if alphas.size else (value, value)
    if low == high:
        # The interval of a share of items, scaled to run from the alpha of maximal disagreement to 1: a few items that
        # all agree prove little.
        total = shares.sum(axis=0)[None]
        distance, expected = _distances(total.sum(axis=2), scale), _expected(total.sum(axis=2), scale)
        worst = 1 - float(distance.max() * total.sum() / expected[0])
        share = share_figure((value - worst) / (1 - worst), np.zeros(1), n)
        low, high = (worst + (1 - worst) * end for end in (share.low, share.high))
    return Figure(value, low, high)


def _coincidences(items: Sequence[Sequence[Hashable]]) -> Floats | None:
    """Coincidence matrix of each item: each pair of its m ratings has the weight 1 / (m - 1).

    Returns float of shape (items with two ratings or more, values, values); None if there are fewer than two values.
    """
    paired = [judgements for judgements in items if len(judgements) > 1]
    values = sorted({value for judgements in paired for value in judgements})  # type: ignore[type-var]
    if len(values) < 2:
        return None
    place = {value: number for number, value in enumerate(values)}
    counts = np.zeros((len(paired), len(values)))
    for row, judgements in enumerate(paired):
        for value in judgements:
            counts[row, place[value]] += 1
    pairs = counts[:, :, None] * counts[:, None, :]
    diagonal = np.arange(len(values))
    # No rating is paired with itself.
    pairs[:, diagonal, diagonal] -= counts
    return np.asarray(pairs / (counts.sum(axis=1) - 1)[:, None, None])


def _alphas(coincidences: Floats, scale: Scale) -> Floats:
    """Alpha of coincidence matrices, float of shape (tables, values, values); NaN where it is undefined."""
    counts = coincidences.sum(axis=2)
    observed, expected = (coincidences * _distances(counts, scale)).sum(axis=(1, 2)), _expected(counts, scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(expected > 0, 1 - observed / expected, np.nan))


def _distances(counts: Floats, scale: Scale) -> Floats:
    """Distances between values, of shape (tables, values, values), from the frequency of each value."""
    if scale == "ordinal":
        # The squared number of ratings between two values, counting half of the ratings at the values themselves.
        upto = np.cumsum(counts, axis=1) - counts / 2
        return np.asarray((upto[:, :, None] - upto[:, None, :]) ** 2)
    values = counts.shape[1]
    return np.broadcast_to(1 - np.eye(values), (len(counts), values, values))


def _expected(counts: Floats, scale: Scale) -> Floats:
    """Disagreement expected by chance, of shape (tables,)."""
    pairs = counts[:, :, None] * counts[:, None, :] * _distances(counts, scale)
    # Minus one, since no rating is paired with itself by chance either.
    return np.asarray(pairs.sum(axis=(1, 2)) / (counts.sum(axis=1) - 1))


Votes = Mapping[str, Mapping[str, str]]
"""Label by annotator, by meme."""


def card_votes(results: Results) -> Votes:
    """Votes on a run's memes that the data set's card has, on harm or on the task that the run asked about.

    The votes are anonymous: those on each meme are numbered.

    Raises BadRequest: The card has no votes.
    """
    card, votes = card_of_results(results), {}
    court = card.court_task.id if card and card.court_task else ""
    task = results.question.task if results.question else court
    for one in results.judged:
        n = one.meme.annotators.get(task, 0)
        # Cards store shares, not counts; rounding restores the whole number that a product of floats may miss.
        labels = [label for label, share in one.meme.shares.get(task, {}).items() for _ in range(round(share * n))]
        if labels:
            votes[one.meme.id] = {str(number): label for number, label in enumerate(labels, 1)}
    if not votes:
        raise BadRequest(
            f"The card of {results.dataset} keeps no votes of annotators of the memes of {results.name}. Name a file "
            "of votes.",
            reason="VOTES_MISSING",
        )
    return votes


def votes_of(rows: Iterable[Sequence[str]]) -> Votes:
    """Votes from rows of meme, annotator and label, each label in its most frequent spelling.

    Case, spaces, ``_`` and ``-`` make no other label. An annotator's later vote on a meme replaces the earlier one:
    nobody votes twice.
    """
    rows = list(rows)
    spellings: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for _, _, label in rows:
        spellings[plain_word(label)][label] += 1
    votes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for meme, annotator, label in rows:
        votes[meme][annotator] = spellings[plain_word(label)].most_common(1)[0][0]
    return votes


def annotator_agreement(votes: Votes, *, seed: int = 0) -> dict[str, Figure | None]:
    """Measures how far annotators agree on memes with two votes or more; intervals are 95 %, by bootstrap over memes.

    Returns Krippendorff's ``alpha``; shares of ``pairs`` of votes that agree, and of ``unanimous`` memes; and the
    ``ceiling``: the share of votes that match the majority of the other votes on the meme, ignoring ties. That is an
    annotator's accuracy against the others, the most that a system can be expected to reach.
    """
    # A meme with one vote says nothing about agreement, only about the share of labels.
    paired = {meme: list(by_annotator.values()) for meme, by_annotator in votes.items() if len(by_annotator) > 1}
    pairs: list[tuple[str, float]] = []
    unanimous: list[tuple[str, float]] = []
    ceiling: list[tuple[str, float]] = []
    for meme, labels in paired.items():
        counts, n = Counter(labels), len(labels)
        # Pairs of votes that agree, over all pairs: a meme counts once, however many annotators it has.
        pairs.append((meme, sum(count * (count - 1) for count in counts.values()) / (n * (n - 1))))
        unanimous.append((meme, float(len(counts) == 1)))
        for label in labels:
            # Without this vote; otherwise an annotator would partly be compared with themselves.
            first = (counts - Counter([label])).most_common(2)
            # If the other votes are tied there is nothing to agree or disagree with.
            if len(first) < 2 or first[0][1] > first[1][1]:
                ceiling.append((meme, float(label == first[0][0])))
    return {
        # Nominal, as no order of the labels is known.
        "alpha": alpha_figure(list(paired.values()), "nominal", resamples=RESAMPLES, seed=seed),
        "pairs": share_of(pairs, RESAMPLES, seed),
        "unanimous": share_of(unanimous, RESAMPLES, seed),
        "ceiling": share_of(ceiling, RESAMPLES, seed),
    }


def soft_labels(votes: Votes) -> dict[str, dict[str, float]]:
    """Share of each label among the votes on each meme."""
    found = {}
    for meme, by_annotator in votes.items():
        counts = Counter(by_annotator.values())
        found[meme] = {label: count / counts.total() for label, count in counts.most_common()}
    return found


def harm_shares(soft: Mapping[str, Mapping[str, float]], harmful: Collection[str] = ()) -> dict[str, float]:
    """Share of annotators who found each meme harmful.

    Args:
        harmful: Labels that count as harmful, all others as not harmful; if empty, labels must be words for the two
            classes.

    Raises BadRequest: A label is not a known word for either class, or no meme has any of the harmful labels.
    """
    # Labels of all memes, so that rare ones are checked too.
    labels = {label for shares in soft.values() for label in shares}
    if harmful:
        named = {plain_word(word) for word in harmful}
        # A misspelt label would silently make shares smaller.
        if unknown := sorted(word for word in harmful if plain_word(word) not in map(plain_word, labels)):
            raise BadRequest(
                f"No annotator gave the label {' or '.join(unknown)}; there are: {', '.join(sorted(labels))}.",
                reason="LABEL_UNKNOWN",
            )
        classes = {label: plain_word(label) in named for label in labels}
    else:
        words = {label: LABEL_WORDS.get(plain_word(label) or "") for label in labels}
        open_labels = sorted(label for label, known in words.items() if known is None)
        # Treating an unforeseen label as not harmful would bias all shares.
        if open_labels:
            raise BadRequest(
                f"It is not known whether {open_labels[0]!r} is harmful, of {', '.join(sorted(labels))}. Name the "
                "labels that are: --harmful LABEL,LABEL.",
                reason="LABEL_UNKNOWN",
            )
        classes = {label: bool(known) for label, known in words.items()}
    # Rounded: 1/2, 1/3 and 1/6 add up to a little less than 1, and a unanimous meme would count as contested.
    found = ((meme, [share for label, share in shares.items() if classes[label]]) for meme, shares in soft.items())
    return {meme: round(sum(shares), 12) for meme, shares in found}


def soft_scores(judged: Sequence[Judged], shares: Mapping[str, float], *, seed: int = 0) -> dict[str, Any]:
    """Scores predictions against the shares of annotators; a meme without a class counts as wrong.

    Returns the number of memes with a score (``scored``) and their ``brier`` score; strict accuracy on ``unanimous``
    memes, on which all annotators agree, and on ``contested`` ones, with the majority's label as gold; the number of
    memes with ``even`` votes, which are in neither; and of those ``without_votes``.
    """
    squares: list[tuple[str, float]] = []
    right: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    even = without = 0
    for one in judged:
        meme, share, score = one.meme.id, shares.get(one.meme.id), one.prediction.score
        if share is None:
            # Reported, so that a figure over few of many memes is recognised as such.
            without += 1
            continue
        if score is not None:
            squares.append((meme, (score - share) ** 2))
        if share == 0.5:
            even += 1
        else:
            # `is`, not `==`: an undecided verdict is None, which matches neither class.
            right[share in (0.0, 1.0)].append((meme, float(one.prediction.outcome.harmful is (share > 0.5))))
    return {
        "scored": len(squares),
        "brier": mean_of(squares, RESAMPLES, seed),
        "unanimous": share_of(right[True], RESAMPLES, seed),
        "contested": share_of(right[False], RESAMPLES, seed),
        "even": even,
        "without_votes": without,
    }
