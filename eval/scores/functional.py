"""Functional tests scored: a pass rate for each functionality, and contrast sets that are right as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from court.errors import BadRequest
from eval.runs.prediction import Outcome
from eval.runs.results import Results
from eval.scores.metrics import Figure
from eval.scores.subgroups import wilson
from eval.synthetic.functional import FunctionalCase


@dataclass(frozen=True, slots=True)
class FunctionalityScore:
    """Figures of one functionality.

    Attributes:
        id: Its id.
        harmful: Label that a classifier must give.
        n: Cases.
        passed: Share of cases that were given that label, with Wilson's 95 % interval.
        silent: Number of cases that were given no class; they have not passed.
    """

    id: str
    harmful: bool
    n: int
    passed: Figure
    silent: int


@dataclass(frozen=True, slots=True)
class FunctionalScores:
    """Figures of a system on the functional tests.

    Attributes:
        n: Cases.
        passed: Share of all cases that passed. It hides more than it says: see the functionalities.
        always_harmful: The share that always saying harmful would pass.
        functionalities: In the order of the tests.
        sets: Number of contrast sets.
        sets_passed: Share of contrast sets of which all four memes passed; None without any.
        by_picture: Share of pairs of the same words over two pictures, with different labels, that both passed: the
            picture alone tells them apart. None without any.
        by_text: Share of pairs of different words over the same picture, with different labels, that both passed.
    """

    n: int
    passed: Figure
    always_harmful: float
    functionalities: tuple[FunctionalityScore, ...]
    sets: int
    sets_passed: Figure | None
    by_picture: Figure | None
    by_text: Figure | None


def functional_scores(cases: Sequence[FunctionalCase], results: Results) -> FunctionalScores:
    """Scores a system on all cases; one that nothing was said of has not passed.

    Args:
        cases: Cases of the tests.
        results: Predictions on them.

    Raises:
        BadRequest: The predictions are of other memes, or there is no case.
    """
    outcomes = {one.meme.id: one.prediction.outcome for one in results.judged}
    gold = {one.meme.id: one.meme.harmful for one in results.judged}
    # By identity: tests that were drawn anew may have the same ids under other labels.
    if not cases or any(case.id in gold and gold[case.id] is not case.harmful for case in cases):
        raise BadRequest(
            f"{results.name} is of other functional tests than these: labels differ. Name the directory that it "
            "judged.",
            reason="GOLD_DIFFERS",
        )
    # One that was never asked is a gap in the tests, which a rate over the others would hide; one that
    # was asked and not answered has failed.
    missing = [case.id for case in cases if case.id not in outcomes]
    if missing:
        raise BadRequest(
            f"{results.name} has not judged {len(missing):,} of {len(cases):,} cases, {missing[0]} among them: "
            "functional tests are scored whole. Judge all of them, without --limit.",
            reason="RUN_UNFINISHED",
        )
    # By identity too: no class is None, and has not passed.
    passed = {case.id: outcomes[case.id].harmful is case.harmful for case in cases}
    by_functionality: dict[str, list[FunctionalCase]] = defaultdict(list)
    sets: dict[int, list[FunctionalCase]] = defaultdict(list)
    for case in cases:
        by_functionality[case.functionality].append(case)
        if case.contrast is not None:
            sets[case.contrast].append(case)
    return FunctionalScores(
        n=len(cases),
        passed=_rate(passed.values()),
        always_harmful=sum(case.harmful for case in cases) / len(cases),
        functionalities=tuple(
            FunctionalityScore(
                id=id_,
                # All cases of a functionality have one label, which defines it; the first one's stands
                # for them.
                harmful=own[0].harmful,
                n=len(own),
                passed=_rate(passed[case.id] for case in own),
                silent=sum(outcomes[case.id] in (Outcome.UNDECIDED, Outcome.FAILED) for case in own),
            )
            for id_, own in by_functionality.items()
        ),
        sets=len(sets),
        # As a whole: cues of the picture or of the words alone get a part of each set right.
        sets_passed=_rate(all(passed[case.id] for case in own) for own in sets.values()) if sets else None,
        by_picture=_pairs(sets.values(), passed, lambda case: case.caption),
        by_text=_pairs(sets.values(), passed, lambda case: case.sign),
    )


def _pairs(
    sets: Iterable[Sequence[FunctionalCase]], passed: Mapping[str, bool], same: Callable[[FunctionalCase], str]
) -> Figure | None:
    """Share of pairs that have one thing in common and different labels of which both passed."""
    found = [
        passed[one.id] and passed[other.id]
        for own in sets
        for place, one in enumerate(own)
        for other in own[place + 1 :]
        # Over the same thing but with the other label: whoever ignores what differs gets one of the two wrong.
        if same(one) == same(other) and one.harmful is not other.harmful
    ]
    return _rate(found) if found else None


def _rate(passed: Iterable[bool]) -> Figure:
    outcomes = list(passed)
    rate = wilson(sum(outcomes), len(outcomes))
    assert rate is not None
    return rate
