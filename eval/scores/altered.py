"""Figures on memes that were judged again after an alteration: flips that should not be, and gaps between groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from court.errors import BadRequest
from eval.runs.controls import names, swapped_groups
from eval.runs.results import Judged, Results
from eval.scores.compare import holm, mcnemar
from eval.scores.means import RESAMPLES_OF_MEANS, mean_of, share_of
from eval.scores.measure import Figure
from eval.scores.subgroups import wilson

_PARTS = 3
_MOST = 20
"""Memes that flip most, which are listed."""


@dataclass(frozen=True, slots=True)
class FlipRate:
    """Share of verdicts that flip, with its 95 % interval."""

    name: str
    n: int
    """Number of verdicts that both runs gave."""
    share: Figure | None
    silent: int = 0
    """Number of memes that got a label in only one of the two."""


@dataclass(frozen=True, slots=True)
class Stability:
    """Stability of the verdicts of a run under alterations that should not change them.

    Attributes:
        of_memes: Mean share of alterations that flip a meme, by bootstrap over memes.
        worst: Share of memes that at least one alteration flips.
        right: Accuracy of the run on memes with a label; ``right_always`` with every alteration as well.
        risk: Mean risk of a wrong label by the scores alone; ``risk_with_flips`` with the flips of each meme.
        wrong: Shares of wrong labels of memes that no alteration flips, and of those that one flips.
        depends: Flip rates by parts of the memes, by the name of what they are divided by.
        memes: Memes that flip most: id, flips, number of verdicts, and risk.
    """

    n: int
    of_memes: Figure | None
    worst: Figure | None
    right: Figure | None
    right_always: Figure | None
    risk: Figure | None
    risk_with_flips: Figure | None
    wrong: tuple[FlipRate, ...]
    arms: tuple[FlipRate, ...]
    depends: Mapping[str, tuple[FlipRate, ...]]
    memes: tuple[tuple[str, int, int, float], ...]


def stability(base: Results, arms: Sequence[Results], *, resamples: int = RESAMPLES_OF_MEANS) -> Stability:
    """Measures how many verdicts of a run alterations flip. Raises BadRequest if the runs are of other memes."""
    known = _by_meme(base, arms)
    flips: dict[str, list[bool]] = defaultdict(list)
    rates = []
    for arm in arms:
        pairs = [(one, known[one.meme.id]) for one in arm.judged]
        labels = [(one.meme.id, label(one), label(other)) for one, other in pairs]
        # A verdict that failed in one run is no flip; it is counted apart.
        both = [(meme, new is not old) for meme, new, old in labels if new is not None and old is not None]
        for meme, flipped in both:
            flips[meme].append(flipped)
        silent = sum((new is None) is not (old is None) for _, new, old in labels)
        rates.append(FlipRate(arm.name, len(both), wilson(sum(flipped for _, flipped in both), len(both)), silent))
    gold = {meme: one.meme.harmful for meme, one in known.items() if one.meme.harmful is not None and meme in flips}
    right = {meme: label(known[meme]) is harmful for meme, harmful in gold.items()}
    # Right by luck does not count: right under every alteration that was tried.
    always = [right[meme] and not any(flips[meme]) for meme in right]
    wrong = {
        name: [not fine for meme, fine in right.items() if any(flips[meme]) is moved]
        for name, moved in (("that nothing flips", False), ("that something flips", True))
    }
    own = {meme: _risk(known[meme]) for meme in flips}
    # Of two opposite labels of one meme one is wrong: the risk is at least the share of flips, whatever the score says.
    risk = {meme: max(own[meme] or 0.0, sum(each) / len(each)) for meme, each in flips.items()}
    most = [(meme, sum(each), len(each), risk[meme]) for meme, each in flips.items() if any(each)]
    return Stability(
        n=len(flips),
        of_memes=share_of([(meme, float(one)) for meme, each in flips.items() for one in each], resamples),
        worst=wilson(sum(any(each) for each in flips.values()), len(flips)),
        right=wilson(sum(right.values()), len(right)),
        right_always=wilson(sum(always), len(always)),
        risk=mean_of([(meme, each) for meme, each in own.items() if each is not None], resamples),
        risk_with_flips=mean_of([(meme, risk[meme]) for meme, each in own.items() if each is not None], resamples),
        wrong=tuple(FlipRate(name, len(each), wilson(sum(each), len(each))) for name, each in wrong.items()),
        arms=tuple(rates),
        depends={
            name: tuple(_rates(parts, flips, resamples)) for name, parts in _divided([known[meme] for meme in flips])
        },
        memes=tuple(sorted(most, key=lambda it: -it[1])[:_MOST]),
    )


def _risk(one: Judged) -> float | None:
    """Returns the probability of the other label by the score; None without a label or a score."""
    found, score = label(one), one.prediction.score
    return None if found is None or score is None else 1 - score if found else score


def label(one: Judged) -> bool | None:
    """The predicted class; None if there is none."""
    return one.prediction.outcome.harmful


def _by_meme(base: Results, arms: Sequence[Results]) -> dict[str, Judged]:
    known = {one.meme.id: one for one in base.judged}
    for arm in arms:
        if {one.meme.id for one in arm.judged} != known.keys():
            raise BadRequest(f"{arm.name} is of other memes than {base.name}.", reason="RUNS_DIFFER")
    return known


def _divided(judged: Sequence[Judged]) -> Iterator[tuple[str, Mapping[str, Sequence[str]]]]:
    """Divides memes by what a flip may depend on."""
    labels: dict[str, list[str]] = defaultdict(list)
    for one in judged:
        labels[str(one.prediction.outcome)].append(one.meme.id)
    yield "verdict", labels
    scored = [(abs(one.prediction.score - 0.5), one.meme.id) for one in judged if one.prediction.score is not None]
    yield "distance of the score from 0.5", _thirds(scored)
    yield "length of the text", _thirds([(len(one.meme.text), one.meme.id) for one in judged])


def _thirds(values: Sequence[tuple[float, str]]) -> Mapping[str, Sequence[str]]:
    parts = np.array_split(np.array([meme for _, meme in sorted(values)], dtype=object), _PARTS)
    return {
        name: list(part) for name, part in zip(("lowest third", "middle third", "highest third"), parts, strict=True)
    }


def _rates(
    parts: Mapping[str, Sequence[str]], flips: Mapping[str, Sequence[bool]], resamples: int
) -> Iterator[FlipRate]:
    for name, memes in parts.items():
        values = [(meme, float(one)) for meme in memes for one in flips[meme]]
        yield FlipRate(name, len(values), share_of(values, resamples))


@dataclass(frozen=True, slots=True)
class GroupGap:
    """Difference between the verdicts on the same memes about one group and about another.

    Attributes:
        labels: Share found harmful about ``one`` less that about ``other``; ``scores`` likewise for the harm score.
        p_labels: P-value of the exact McNemar test, by Holm's procedure over all; ``p_scores`` is that of Wilcoxon's
            signed-rank test.
    """

    one: str
    other: str
    n: int
    labels: Figure
    p_labels: float
    scores: Figure | None
    p_scores: float | None


def group_gaps(base: Results, arms: Sequence[Results], *, resamples: int = RESAMPLES_OF_MEANS) -> tuple[GroupGap, ...]:
    """Compares verdicts on memes with those after their group was swapped, by pair of groups.

    Raises BadRequest: The runs are of other memes, or no meme names a group.
    """
    known = _by_meme(base, arms)
    labels: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    scores: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for arm in arms:
        groups = swapped_groups(arm.manifest.control) if arm.manifest else None
        if groups is None:
            continue
        old, new = groups
        pair = (min(groups), max(groups))
        # Both directions of a swap count for the same pair.
        sign = 1 if old == pair[0] else -1
        for swapped in arm.judged:
            # Memes that name both are about neither alone.
            if not names(swapped.meme.text, old) or names(swapped.meme.text, new):
                continue
            before, meme = known[swapped.meme.id], swapped.meme.id
            first, second = label(before), label(swapped)
            if first is not None and second is not None:
                labels[pair].append((meme, float(sign * (first - second))))
            if before.prediction.score is not None and swapped.prediction.score is not None:
                scores[pair].append((meme, sign * (before.prediction.score - swapped.prediction.score)))
    if not labels:
        raise BadRequest("No meme names one of the groups alone.", reason="GROUPS_MISSING")
    found = [(pair, values, scores[pair]) for pair, values in sorted(labels.items())]
    p_labels = [mcnemar(sum(d > 0 for _, d in each), sum(d < 0 for _, d in each)) for _, each, _ in found]
    p_scores = [_signed_ranks([d for _, d in each]) for _, _, each in found]
    # Labels and scores of all pairs are one family of tests.
    corrected = holm([*p_labels, *p_scores])
    gaps = []
    for place, (pair, each, scored) in enumerate(found):
        gap, p_score = mean_of(each, resamples), corrected[len(found) + place] if scored else None
        assert gap is not None, "a pair has values"
        gaps.append(
            GroupGap(
                *pair,
                len(each),
                labels=gap,
                p_labels=corrected[place],
                scores=mean_of(scored, resamples),
                p_scores=p_score,
            )
        )
    return tuple(gaps)


def _signed_ranks(differences: Sequence[float]) -> float:
    # Where nothing differs, there is nothing to test.
    return float(wilcoxon(differences).pvalue) if np.any(differences) else 1.0
