"""Which verdicts are wrong, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from eval.datasets.items import JudgedMeme
from eval.runs.prediction import Outcome, Prediction
from eval.runs.results import NOT_JUDGED, Judged, Results


class VerdictFault(IntEnum):
    """Kind of wrong verdict, in the order of the list."""

    MISSED = 0
    """Harmful, and said not to be."""
    FALSE_ALARM = 1
    """Not harmful, and said to be."""
    UNDECIDED = 2
    FAILED = 3

    @property
    def title(self) -> str:
        """In words."""
        return _TITLES[self]


_TITLES = {
    VerdictFault.MISSED: "Harmful, said not harmful",
    VerdictFault.FALSE_ALARM: "Not harmful, said harmful",
    VerdictFault.UNDECIDED: "Undecided",
    VerdictFault.FAILED: "Failed",
}


def fault_of(meme: JudgedMeme, prediction: Prediction) -> VerdictFault | None:
    """Returns the fault of a prediction; None if it is right.

    A meme that was not judged (yet) is no wrong verdict: how many there are is told beside.
    """
    if prediction.outcome is Outcome.UNDECIDED:
        return VerdictFault.UNDECIDED
    if prediction.outcome is Outcome.FAILED:
        # What is not judged yet is no fault of the run.
        return None if prediction.reason == NOT_JUDGED else VerdictFault.FAILED
    if prediction.outcome.harmful is meme.harmful:
        return None
    return VerdictFault.MISSED if meme.harmful else VerdictFault.FALSE_ALARM


def wrong_of(results: Results) -> tuple[tuple[VerdictFault, Judged], ...]:
    """Every wrong verdict of a run, under any of its protocols, in the order of the split."""
    found = []
    for one in results.judged:
        fault = fault_of(one.meme, one.prediction)
        # A meme that every protocol drops has no gold class that a verdict could miss.
        if fault is not None and any(one.meme.gold(protocol) is not None for protocol in results.protocols):
            found.append((fault, one))
    return tuple(found)


def surest_first(faults: Sequence[tuple[VerdictFault, Prediction]]) -> tuple[int, float]:
    """Sorts memes: by the worst that any run said of them, then by how sure it was of that."""
    worst = min(fault for fault, _ in faults)
    sure = [
        abs(prediction.score - 0.5) for fault, prediction in faults if fault is worst and prediction.score is not None
    ]
    # Those without a score come last within their kind.
    return int(worst), -max(sure, default=-1.0)
