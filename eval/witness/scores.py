"""Figures of the witness: labels versus truth, abstentions, and support of findings by citations.

A claim is answered like a question with two labels; intervals are 95 %, by percentile bootstrap over claims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from court.verdict import ClaimLabel
from eval.datasets.claims import Gold
from eval.reports.sections import Section
from eval.scores.means import difference_of, share_of
from eval.scores.measure import RESAMPLES, Figure, TaskArrays, figure, listed, measure
from eval.scores.metrics import KINDS, known_figure
from eval.solvers.witness import Arm, CheckedClaim
from eval.witness.run import WitnessManifest

_ABSTAINED, _FAILED = 2, 3
"""Columns of a confusion matrix beside the answers false and true."""
_LABELS = ("False", "True")
_BEARS: dict[ClaimLabel | None, str] = {ClaimLabel.SUPPORTED: "supports", ClaimLabel.REFUTED: "refutes"}
_ROWS = {
    "accuracy": "accuracy",
    "against": "accuracy, less witness's",
    "macro_f1": "macro-F1",
    "weighted_f1": "weighted F1",
    **{f"{kind}:{label}": f"{label}: {kind.replace('f1', 'F1')}" for label in ("True", "False") for kind in KINDS},
    "coverage": "coverage",
    "not_attempted": "not attempted",
    "decided_accuracy": "accuracy of answers",
    "abstained": "abstained, failed",
    "verbatim": "verbatim quotes",
    "backed": "findings backed by quotes",
    "calls": "calls a claim",
    "tokens": "tokens a claim",
    "documents": "documents a claim",
}
"""Rows of the table, by figure or number."""
_FORMS = {
    "abstained": "{abstained:,}, {failed:,}",
    "calls": "{calls:.2f}",
    "tokens": "{tokens:,.0f}",
    "documents": "{documents:.2f}",
}
"""Formats of numbers in the table."""


@dataclass(frozen=True, slots=True)
class WitnessCard:
    """Figures of one arm."""

    arm: Arm
    numbers: Mapping[str, float]
    """``n`` claims, of which so many are ``true``, were ``abstained`` from or ``failed`` for want of a source or model;
    passages that were cited (``quotes``), and ``dropped`` as they stand in no document; findings ``judged`` for a
    passage that supports them; ``calls``, ``tokens`` and ``documents`` per claim."""
    figures: Mapping[str, Figure | None]
    """Shares of the claims, where a missing answer counts as wrong, and the difference in accuracy to the arm
    ``witness`` over the same claims (``against``). Of the answers alone: ``decided_accuracy``. Of cited passages, those
    that occur in their document (``verbatim``); of judged findings, those with a passage that supports them by itself
    (``backed``). None where nothing is counted."""

    @property
    def as_json(self) -> dict[str, Any]:
        """All figures by name, for programs."""
        figures = {name: asdict(one) if one else None for name, one in self.figures.items()}
        return {"arm": self.arm, **self.numbers, **figures}

    def shown(self, name: str) -> str:
        """A figure or number of the table in words."""
        return _FORMS[name].format(**self.numbers) if name in _FORMS else figure(self.figures[name])


def witness_lead(manifest: WitnessManifest, cards: Sequence[WitnessCard]) -> list[str]:
    """Returns the introduction: what was asked, which models answered, and what figures leave out."""
    n, true = cards[0].numbers["n"], cards[0].numbers["true"]
    lines = [
        f"{n:,} claims ({true:,} true, {n - true:,} false), checked by {manifest.model}.",
        f"Evidence: {manifest.source}.",
        f"At most {manifest.queries} queries a claim and {manifest.results} documents a query, questions "
        f"{'each in a call of its own' if manifest.steps == 'apart' else 'about a document in one call'}.",
    ]
    if manifest.demonstration:
        lines.append("The world is drawn and the model a stand-in: the figures show that the evaluation works.")
    if manifest.forced:
        lines.append("As published: where the evidence is not enough, true or false is asked for once more.")
    failed = [f"{card.numbers['failed']:,} in the arm {card.arm}" for card in cards if card.numbers["failed"]]
    if failed:
        lines.append(f"No source or no model gave a finding for {listed(failed)}; they count as wrong.")
    return lines


def witness_sections(manifest: WitnessManifest, cards: Sequence[WitnessCard]) -> list[Section]:
    """Builds the table of figures; rows without any figure are left out."""
    rows = [(title, *(card.shown(name) for card in cards)) for name, title in _ROWS.items()]
    shown = [row for row in rows if any(cell != "–" for cell in row[1:])]
    notes = (
        "Intervals are 95 %, by bootstrap over claims. A claim without an answer counts as wrong: it lowers accuracy, "
        "recall and F1, and no precision.",
        "Verbatim quotes: share of the named passages that code found in their documents; others are dropped.",
        f"Findings backed by quotes: share with a passage that by itself says so, as judged by {manifest.citations_by}."
        if manifest.citations_by
        else "No model judged whether passages back the findings.",
    )
    head = ("", *(str(card.arm) for card in cards))
    return [Section(key="figures", title="Figures", rows=(head, *shown), notes=notes)]


def score_arms(checked: Sequence[CheckedClaim], *, resamples: int = RESAMPLES, seed: int = 0) -> list[WitnessCard]:
    """Scores each arm that has results, in the order of :class:`Arm`."""
    # Arms in the order of the enumeration, not of their lines: claims are checked concurrently.
    by_arm = {arm: [one for one in checked if one.arm is arm] for arm in Arm}
    baseline = by_arm[Arm.WITNESS]
    return [
        # The baseline isn't compared with itself: a difference of zero with a zero-width interval would look like a
        # result.
        _card(arm, lines, [] if arm is Arm.WITNESS else baseline, resamples=resamples, seed=seed)
        for arm, lines in by_arm.items()
        if lines
    ]


def _card(
    arm: Arm, lines: Sequence[CheckedClaim], baseline: Sequence[CheckedClaim], *, resamples: int, seed: int
) -> WitnessCard:
    gold = np.array([[one.gold is not Gold.TRUE, one.gold is Gold.TRUE] for one in lines], dtype=np.bool_)
    columns = np.array([_column(one) for one in lines])
    arrays = TaskArrays(
        _LABELS, gold, columns[:, None] == np.arange(2), columns < _ABSTAINED, scores=np.full(gold.shape, np.nan)
    )
    names = (
        "coverage",
        "accuracy",
        "macro-f1",
        "weighted-f1",
        *(f"{kind}:{label}" for label in _LABELS for kind in KINDS),
    )
    found = measure(arrays, names, None, resamples=resamples, seed=seed)
    decided = measure(arrays, ("accuracy",), None, only=arrays.answered, resamples=resamples, seed=seed)
    coverage = known_figure(found["coverage"])

    def share(part: int, whole: int) -> Figure | None:
        return share_of([(str(number), float(number < part)) for number in range(whole)], resamples, seed)

    cited = [one for one in lines if one.label in _BEARS]
    quotes, dropped = sum(len(one.evidence) for one in cited), sum(one.quotes_dropped for one in cited)
    # Findings without any judged passage count neither for nor against.
    judged = [one for one in cited if one.relations]
    backed = sum(_BEARS[one.label] in one.relations for one in judged)
    return WitnessCard(
        arm,
        numbers={
            "n": len(lines),
            "true": int(gold[:, 1].sum()),
            "abstained": int((columns == _ABSTAINED).sum()),
            "failed": int((columns == _FAILED).sum()),
            "quotes": quotes,
            "dropped": dropped,
            "judged": len(judged),
            "calls": fmean(one.calls for one in lines),
            "tokens": fmean(one.tokens_in + one.tokens_out for one in lines),
            "documents": fmean(one.documents for one in lines),
        },
        figures={
            **{name.replace("-", "_"): one for name, one in found.items()},
            "not_attempted": Figure(1 - coverage.value, 1 - coverage.high, 1 - coverage.low),
            "decided_accuracy": decided["accuracy"],
            "against": difference_of(_right(lines), _right(baseline), resamples=resamples, seed=seed),
            # Dropped passages belong in the denominator: otherwise a witness that invents quotes would get 100 % by
            # having them all removed.
            "verbatim": share(quotes, quotes + dropped),
            "backed": share(backed, len(judged)),
        },
    )


def _column(one: CheckedClaim) -> int:
    # Failure takes precedence over abstention: without a label there was no finding, so nothing to abstain from.
    if one.label is None:
        return _FAILED
    return _ABSTAINED if one.answer is None else int(one.answer)


def _right(lines: Sequence[CheckedClaim]) -> list[tuple[str, float]]:
    # Compared by identity: a missing answer is None, neither True nor False, and counts as wrong.
    return [(one.id, float(one.answer is (one.gold is Gold.TRUE))) for one in lines]
