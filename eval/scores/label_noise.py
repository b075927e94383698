"""Labels that are likely wrong, found by confident learning.

Northcutt, Jiang & Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels", as implemented in the
package ``cleanlab``: the number of memes of one label that are confidently given the other estimates how many labels
are wrong, and that many labels with the least support are listed. The list also contains mistakes of the system
itself: it is for people to review, and never a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from court.errors import BadRequest, NotLoaded

FEWEST = 20
"""Fewest memes of each label for reliable confidence thresholds."""
TOO_FEW = "TOO_FEW_TO_SAY"
"""Error reason if there are fewer."""


@dataclass(frozen=True, slots=True)
class NoisyLabel:
    """A label that is likely wrong.

    Attributes:
        probability: Probability of harm, from a system that has not seen the label.
    """

    id: str
    harmful: bool
    probability: float

    @property
    def support(self) -> float:
        """Probability of the label itself, in [0, 1]: the lower, the more likely the label is wrong."""
        return self.probability if self.harmful else 1 - self.probability


@dataclass(frozen=True, slots=True)
class LabelNoise:
    """Labels that are likely wrong, and the estimated share of them.

    Attributes:
        n: Number of memes with a probability.
        without: Number of memes without one, which could not be checked.
        noisy: Labels that are likely wrong, the least supported first.
        harmful_wrong: Estimated share of the memes labelled harmful that are not.
        benign_wrong: Estimated share of the memes labelled not harmful that are harmful.
    """

    n: int
    without: int
    noisy: tuple[NoisyLabel, ...]
    harmful_wrong: float
    benign_wrong: float


def find_label_noise(memes: Sequence[tuple[str, bool, float | None]]) -> LabelNoise:
    """Lists labels that are likely wrong.

    Args:
        memes: Id, label (True for harmful) and probability of harm (None if there is none). The probability must come
            from a system that has not seen the label: a court whose precedents are from another split, or a vote that
            leaves the meme out.

    Raises:
        BadRequest: Fewer than :data:`FEWEST` memes of a label have a probability.
        NotLoaded: cleanlab is not installed.
    """
    scored = [(id_, harmful, probability) for id_, harmful, probability in memes if probability is not None]
    counts = [sum(harmful is label for _, harmful, _ in scored) for label in (False, True)]
    if min(counts) < FEWEST:
        raise BadRequest(
            f"{counts[1]:,} memes labelled harmful and {counts[0]:,} labelled not harmful have a probability; label "
            f"noise needs {FEWEST} of each.",
            reason=TOO_FEW,
        )
    try:
        from cleanlab.count import estimate_joint
        from cleanlab.filter import find_label_issues
    except ImportError as error:
        raise NotLoaded(
            f"Listing label noise needs {error.name}, which is not installed: pip install 'memecourt[labels]'.",
            reason="CLEANLAB_NOT_INSTALLED",
        ) from None
    labels = np.array([harmful for _, harmful, _ in scored], dtype=np.int64)
    probabilities = np.array([probability for *_, probability in scored], dtype=np.float64)
    both = np.stack([1 - probabilities, probabilities], axis=1)
    # In this process: starting a pool takes longer than processing thousands of rows.
    places = find_label_issues(labels, both, return_indices_ranked_by="self_confidence", n_jobs=1)
    # Given label x estimated label, shares of all memes.
    joint = estimate_joint(labels, both)
    # For each given label, the estimated shares of the true labels.
    benign, harmful = (joint / joint.sum(axis=1, keepdims=True)).tolist()
    return LabelNoise(
        n=len(scored),
        without=len(memes) - len(scored),
        noisy=tuple(NoisyLabel(*scored[int(place)]) for place in places),
        harmful_wrong=float(harmful[0]),
        benign_wrong=float(benign[1]),
    )
