"""Figures on memes that were judged again after an alteration: flips that should not be, and gaps between groups."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.stats import wilcoxon

from court.display import word
from court.errors import BadRequest
from eval.runs.controls import names, swapped_groups
from eval.runs.results import Judged, Results
from eval.scores.means import RESAMPLES_OF_MEANS, mean_of, share_of
from eval.scores.measure import Figure, holm, mcnemar, wilson
from eval.scores.metrics import known_figure

_PARTS = ("lowest third", "middle third", "highest third")
Labels = tuple[bool | None, bool | None]
"""Label of a meme as it is, and after an alteration; None where a run gave none."""


@dataclass(frozen=True, slots=True)
class FlipRate:
    """Share of verdicts that flip, with its 95 % interval."""

    name: str
    n: int
    """Number of verdicts that both runs gave."""
    share: Figure | None
    silent: int = 0
    """Number of verdicts that only one of the two runs gave."""
    risk: float | None = None
    """Of one meme: least probability that its label is wrong."""

    @classmethod
    def of(cls, name: str, labels: Collection[Labels], by_score: float | None = None) -> Self:
        """Counts flips, with Wilson's interval; with a risk by the score, that of the meme by its flips as well."""
        # A verdict that failed in one run is no flip; it is counted apart.
        both = [new is not old for old, new in labels if new is not None and old is not None]
        share = wilson(sum(both), len(both))
        # Of two opposite labels one is wrong: the risk is at least the share of flips, whatever the score says.
        risk = None if by_score is None or share is None else max(by_score, share.value)
        silent = sum((new is None) is not (old is None) for old, new in labels)
        return cls(name, len(both), share, silent=silent, risk=risk)


@dataclass(frozen=True, slots=True)
class Stability:
    """Stability of the verdicts of a run under alterations that should not change them."""

    n: int
    shares: Mapping[str, Figure | None]
    """Mean share of alterations that flip a meme (``of_memes``, by bootstrap over memes), share of memes that at least
    one flips (``worst``), accuracy on memes with a label (``right``), and the same with every alteration as well
    (``right_always``)."""
    arms: tuple[FlipRate, ...]
    depends: Mapping[str, tuple[FlipRate, ...]]
    """Flip rates by parts of the memes, by the name of what they are divided by."""
    wrong: tuple[FlipRate, ...]
    """Shares of wrong labels of memes that no alteration flips, and of those that one flips."""
    memes: tuple[FlipRate, ...]
    """Every meme, those that flip most first."""


def stability(base: Results, arms: Sequence[Results], *, resamples: int = RESAMPLES_OF_MEANS) -> Stability:
    """Measures how many verdicts of a run alterations flip. Raises BadRequest if the runs are of other memes."""
    known = _by_meme(base, arms)
    by_arm = {arm.name: {one.meme.id: (_label(known[one.meme.id]), _label(one)) for one in arm.judged} for arm in arms}
    tried = (FlipRate.of(meme, [arm[meme] for arm in by_arm.values()], _risk(one)) for meme, one in known.items())
    memes = {each.name: each for each in tried if each.n}
    shares = {meme: each.share.value for meme, each in memes.items() if each.share}
    gold = {meme: known[meme].meme.harmful for meme in memes}
    right = {meme: _label(known[meme]) is harmful for meme, harmful in gold.items() if harmful is not None}
    # Right by luck does not count: right under every alteration that was tried.
    always = [fine and not shares[meme] for meme, fine in right.items()]
    wrong = [
        (name, [not fine for meme, fine in right.items() if (shares[meme] > 0) is moved])
        for name, moved in (("that nothing flips", False), ("that something flips", True))
    ]

    def mean(some: Iterable[str]) -> Figure | None:
        return share_of([(meme, shares[meme]) for meme in some], resamples)

    return Stability(
        n=len(memes),
        shares={
            "of_memes": mean(memes),
            "worst": _share([share > 0 for share in shares.values()]),
            "right": _share(right.values()),
            "right_always": _share(always),
        },
        arms=tuple(FlipRate.of(name, pairs.values()) for name, pairs in by_arm.items()),
        depends={
            name: tuple(FlipRate(part, sum(memes[each].n for each in some), mean(some)) for part, some in parts.items())
            for name, parts in _divided([known[meme] for meme in memes])
        },
        wrong=tuple(FlipRate(name, len(each), _share(each)) for name, each in wrong),
        memes=tuple(sorted(memes.values(), key=lambda each: -shares[each.name])),
    )


def _share(outcomes: Collection[bool]) -> Figure | None:
    return wilson(sum(outcomes), len(outcomes))


def _risk(one: Judged) -> float:
    """Returns the probability of the other label by the score; 0 without a label or a score."""
    found, score = _label(one), one.prediction.score
    return 0.0 if found is None or score is None else 1 - score if found else score


def _label(one: Judged) -> bool | None:
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
        labels[word(str(one.prediction.outcome))].append(one.meme.id)
    yield "verdict", labels
    scored = [(abs(one.prediction.score - 0.5), one.meme.id) for one in judged if one.prediction.score is not None]
    yield "distance of the score from 0.5", _thirds(scored)
    yield "length of the text", _thirds([(len(one.meme.text), one.meme.id) for one in judged])


def _thirds(values: Sequence[tuple[float, str]]) -> Mapping[str, Sequence[str]]:
    parts = np.array_split(np.array([meme for _, meme in sorted(values)], dtype=object), len(_PARTS))
    return {name: list(part) for name, part in zip(_PARTS, parts, strict=True)}


@dataclass(frozen=True, slots=True)
class GroupGap:
    """Difference between the verdicts on the same memes about one group and about another.

    P-values are of the exact McNemar test and of Wilcoxon's signed-rank test, by Holm's procedure over all.
    """

    one: str
    other: str
    n: int
    labels: Figure
    """Share found harmful about ``one`` less that about ``other``; ``scores`` likewise for the harm score."""
    p_labels: float
    scores: Figure | None
    p_scores: float | None


def group_gaps(base: Results, arms: Sequence[Results], *, resamples: int = RESAMPLES_OF_MEANS) -> tuple[GroupGap, ...]:
    """Compares verdicts on memes with those after their group was swapped, by pair of groups.

    Raises BadRequest: The runs are of other memes, or no meme names a group.
    """
    known = _by_meme(base, arms)
    moved: dict[tuple[str, str], list[tuple[str, float, float | None]]] = defaultdict(list)
    for arm in arms:
        groups = swapped_groups(arm.manifest.control) if arm.manifest else None
        if groups is None:
            continue
        old, new = groups
        # Both directions of a swap count for the same pair.
        sign = 1 if old < new else -1
        for swapped in arm.judged:
            before = known[swapped.meme.id]
            first, second = _label(before), _label(swapped)
            # Memes that name both are about neither alone.
            named = names(swapped.meme.text, old) and not names(swapped.meme.text, new)
            if named and first is not None and second is not None:
                one, other = before.prediction.score, swapped.prediction.score
                score = None if one is None or other is None else sign * (one - other)
                moved[min(groups), max(groups)].append((swapped.meme.id, float(sign * (first - second)), score))
    if not moved:
        raise BadRequest("No meme names one of the groups alone.", reason="GROUPS_MISSING")
    pairs = sorted(moved)
    by_label = [[(meme, gap) for meme, gap, _ in moved[pair]] for pair in pairs]
    by_score = [[(meme, gap) for meme, _, gap in moved[pair] if gap is not None] for pair in pairs]
    p_labels = [mcnemar(sum(gap > 0 for _, gap in each), sum(gap < 0 for _, gap in each)) for each in by_label]
    # Where nothing differs, there is nothing to test.
    p_scores = [float(wilcoxon(d).pvalue) if np.any(d := [gap for _, gap in each]) else 1.0 for each in by_score]
    # Labels and scores of all pairs are one family of tests.
    corrected = holm([*p_labels, *p_scores])
    ps = zip(corrected[: len(pairs)], corrected[len(pairs) :], strict=True)
    return tuple(
        GroupGap(
            *pair,
            len(labels),
            labels=known_figure(mean_of(labels, resamples)),
            p_labels=p_label,
            scores=mean_of(scores, resamples),
            p_scores=p_score if scores else None,
        )
        for pair, labels, scores, (p_label, p_score) in zip(pairs, by_label, by_score, ps, strict=True)
    )
