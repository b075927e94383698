"""Scores of functional tests: the pass rate of each functionality, and of contrast sets as a whole."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from court.errors import BadRequest
from eval.runs.results import Results
from eval.scores.measure import Figure, wilson
from eval.scores.metrics import known_figure
from eval.synthetic.functional import FunctionalCase


@dataclass(frozen=True, slots=True)
class FunctionalityScore:
    """Figures of one functionality."""

    id: str
    harmful: bool
    n: int
    passed: Figure
    """Share of cases that were given that label, with Wilson's 95 % interval."""
    silent: int
    """Number of cases that were given no class; they count as failed."""


@dataclass(frozen=True, slots=True)
class FunctionalScores:
    """Figures of a system on the functional tests."""

    n: int
    passed: Figure
    """Share of all cases that passed. It hides large differences between the functionalities."""
    always_harmful: float
    functionalities: tuple[FunctionalityScore, ...]
    sets: int
    """Number of contrast sets."""
    contrast: Mapping[str, Figure]
    """Shares of whole sets, of which all four memes passed, and of pairs in them with different labels of which both
    passed: with the same text on two pictures, so that only the picture tells them apart, or with different texts on
    the same picture. Empty without sets."""


def functional_scores(cases: Sequence[FunctionalCase], results: Results) -> FunctionalScores:
    """Scores a system on all cases; a case without an answer counts as failed.

    Raises BadRequest: The predictions are for other memes, a case was not judged, or there is no case.
    """
    outcomes = {one.meme.id: one.prediction.outcome for one in results.judged}
    gold = {one.meme.id: one.meme.harmful for one in results.judged}
    # Regenerated tests may have the same ids with other labels.
    if not cases or any(case.id in gold and gold[case.id] is not case.harmful for case in cases):
        raise BadRequest(
            f"{results.name} is of other functional tests than these: labels differ. Name the directory that it "
            "judged.",
            reason="GOLD_DIFFERS",
        )
    # A case that was never asked is a gap in the tests, which a rate over the others would hide; one that
    # was asked but not answered has failed.
    missing = [case.id for case in cases if case.id not in outcomes]
    if missing:
        raise BadRequest(
            f"{results.name} has not judged {len(missing):,} of {len(cases):,} cases, {missing[0]} among them: "
            "functional tests are scored whole. Judge all of them, without --limit.",
            reason="RUN_UNFINISHED",
        )
    # `is`, not `==`: a missing class is None, which never passes.
    passed = {case.id: outcomes[case.id].harmful is case.harmful for case in cases}
    by_functionality: dict[str, list[FunctionalCase]] = defaultdict(list)
    sets: dict[int, list[FunctionalCase]] = defaultdict(list)
    for case in cases:
        by_functionality[case.functionality].append(case)
        if case.contrast is not None:
            sets[case.contrast].append(case)
    parts = {
        # As a whole: cues of the picture alone or the text alone get part of each set right.
        "whole sets right": [all(passed[case.id] for case in own) for own in sets.values()],
        "told by the picture": _pairs(sets.values(), passed, lambda case: case.caption),
        "told by the words": _pairs(sets.values(), passed, lambda case: case.sign),
    }
    return FunctionalScores(
        n=len(cases),
        passed=_rate(list(passed.values())),
        always_harmful=sum(case.harmful for case in cases) / len(cases),
        functionalities=tuple(
            FunctionalityScore(
                id=id_,
                # All cases of a functionality have the same expected label, so the first one's is used.
                harmful=own[0].harmful,
                n=len(own),
                passed=_rate([passed[case.id] for case in own]),
                silent=sum(outcomes[case.id].harmful is None for case in own),
            )
            for id_, own in by_functionality.items()
        ),
        sets=len(sets),
        contrast={name: _rate(found) for name, found in parts.items() if found},
    )


def _pairs(
    sets: Iterable[Sequence[FunctionalCase]], passed: Mapping[str, bool], same: Callable[[FunctionalCase], str]
) -> list[bool]:
    """True for each passed pair, among pairs that agree in ``same`` but have different labels."""
    return [
        passed[one.id] and passed[other.id]
        for own in sets
        for one, other in combinations(own, 2)
        # Same picture or text but opposite labels: a system that ignores what differs gets one of the two wrong.
        if same(one) == same(other) and one.harmful is not other.harmful
    ]


def _rate(passed: Sequence[bool]) -> Figure:
    return known_figure(wilson(sum(passed), len(passed)))
