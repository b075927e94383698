"""Wrong verdicts, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from eval.datasets.items import JudgedMeme
from eval.runs.results import NOT_JUDGED, Judged, Results
from eval.solvers.prediction import Outcome, Prediction


class VerdictFault(IntEnum):
    """Kind of wrong verdict, the worst first."""

    MISSED = 0
    """A harmful meme judged not harmful."""
    FALSE_ALARM = 1
    """A meme that is not harmful judged harmful."""
    UNDECIDED = 2
    FAILED = 3

    @property
    def title(self) -> str:
        """Title of the kind."""
        return _TITLES[self]


_TITLES = {
    VerdictFault.MISSED: "Harmful, said not harmful",
    VerdictFault.FALSE_ALARM: "Not harmful, said harmful",
    VerdictFault.UNDECIDED: "Undecided",
    VerdictFault.FAILED: "Failed",
}


def fault_of(meme: JudgedMeme, prediction: Prediction) -> VerdictFault | None:
    """Returns the fault of a prediction; None if it is right.

    A meme that was not judged (yet) is not a wrong verdict: these are counted separately.
    """
    if prediction.outcome is Outcome.UNDECIDED:
        return VerdictFault.UNDECIDED
    if prediction.outcome is Outcome.FAILED:
        # A meme that is not judged yet is not a fault.
        return None if prediction.reason == NOT_JUDGED else VerdictFault.FAILED
    if prediction.outcome.harmful is meme.harmful:
        return None
    return VerdictFault.MISSED if meme.harmful else VerdictFault.FALSE_ALARM


def wrong_of(results: Results) -> tuple[tuple[VerdictFault, Judged], ...]:
    """Every wrong verdict of a run, under any of its protocols, in the order of the split."""
    found = []
    for one in results.judged:
        fault = fault_of(one.meme, one.prediction)
        # A meme that every protocol drops has no gold class to compare with.
        if fault is not None and any(one.meme.gold(protocol) is not None for protocol in results.protocols):
            found.append((fault, one))
    return tuple(found)


def surest_first(faults: Sequence[tuple[VerdictFault, Prediction]]) -> tuple[int, float]:
    """Sort key of a meme: the worst fault of any run, then the confidence of that verdict."""
    worst = min(fault for fault, _ in faults)
    sure = [
        abs(prediction.score - 0.5) for fault, prediction in faults if fault is worst and prediction.score is not None
    ]
    # Those without a score come last within their kind.
    return int(worst), -max(sure, default=-1.0)
