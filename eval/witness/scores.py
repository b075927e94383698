"""Figures of the witness: labels versus truth, abstentions, and support of findings by citations.

A claim is answered like a question with two labels; intervals are 95 %, by percentile bootstrap over claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from court.verdict import ClaimLabel
from eval.datasets.claims import Gold
from eval.reports.sections import Section
from eval.scores.means import difference_of, share_of
from eval.scores.measure import RESAMPLES, Figure, TaskArrays, figure, listed, measure
from eval.scores.metrics import KINDS, known_figure
from eval.solvers.witness import Arm, CheckedClaim
from eval.witness.run import WitnessManifest


def witness_lead(manifest: WitnessManifest, cards: Sequence[WitnessCard]) -> list[str]:
    """Returns the introduction: what was asked, which models answered, and what figures leave out."""
    first = cards[0]
    lines = [
        f"{first.n:,} claims ({first.true:,} true, {first.n - first.true:,} false), checked by {manifest.model}.",
        f"Evidence: {manifest.source}.",
        f"At most {manifest.queries} queries a claim and {manifest.results} documents a query, questions "
        f"{'each in a call of its own' if manifest.steps == 'apart' else 'about a document in one call'}.",
    ]
    if manifest.demonstration:
        lines.append("The world is drawn and the model a stand-in: the figures show that the evaluation works.")
    if manifest.forced:
        lines.append("As published: where the evidence is not enough, true or false is asked for once more.")
    failed = [f"{card.failed:,} in the arm {card.arm}" for card in cards if card.failed]
    if failed:
        lines.append(f"No source or no model gave a finding for {listed(failed)}; they count as wrong.")
    return lines


def witness_sections(manifest: WitnessManifest, cards: Sequence[WitnessCard]) -> list[Section]:
    """Builds the tables of figures."""
    rows: list[tuple[str, ...]] = [("", *(str(card.arm) for card in cards))]

    def row(title: str, cells: Sequence[str]) -> None:
        if any(cell != "–" for cell in cells):
            rows.append((title, *cells))

    row("accuracy", [figure(card.accuracy) for card in cards])
    row("accuracy, less witness's", [figure(card.against) for card in cards])
    row("macro-F1", [figure(card.macro_f1) for card in cards])
    row("weighted F1", [figure(card.weighted_f1) for card in cards])
    for label in reversed(_LABELS):
        for kind in KINDS:
            title = f"{label}: {'F1' if kind == 'f1' else kind}"
            row(title, [figure(card.by_label[f"{kind}:{label}"]) for card in cards])
    row("coverage", [figure(card.coverage) for card in cards])
    row("not attempted", [figure(card.not_attempted) for card in cards])
    row("accuracy of answers", [figure(card.decided_accuracy) for card in cards])
    row("abstained, failed", [f"{card.abstained:,}, {card.failed:,}" for card in cards])
    row("verbatim quotes", [figure(card.citations.standing) for card in cards])
    row("findings backed by quotes", [figure(card.citations.bearing) for card in cards])
    row("calls a claim", [f"{card.calls:.2f}" for card in cards])
    row("tokens a claim", [f"{card.tokens:,.0f}" for card in cards])
    row("documents a claim", [f"{card.documents:.2f}" for card in cards])
    notes = (
        "Intervals are 95 %, by bootstrap over claims. A claim without an answer counts as wrong: it lowers accuracy, "
        "recall and F1, and no precision.",
        "Verbatim quotes: share of the named passages that code found in their documents; others are dropped.",
        f"Findings backed by quotes: share with a passage that by itself says so, as judged by {manifest.citations_by}."
        if manifest.citations_by
        else "No model judged whether passages back the findings.",
    )
    return [Section(key="figures", title="Figures", rows=tuple(rows), notes=notes)]


_ABSTAINED, _FAILED = 2, 3
"""Columns of a confusion matrix beside the answers false and true."""
_LABELS = ("False", "True")
_PER_LABEL = tuple(f"{kind}:{label}" for label in _LABELS for kind in KINDS)
_BEARS: dict[ClaimLabel | None, str] = {ClaimLabel.SUPPORTED: "supports", ClaimLabel.REFUTED: "refutes"}


@dataclass(frozen=True, slots=True)
class Citations:
    """Citations of findings other than abstentions."""

    quotes: int
    dropped: int
    """Number of cited passages that occur in no document; none of them is part of a finding."""
    standing: Figure | None
    """Share of all cited passages that occur in their document; None if none was cited."""
    judged: int
    """Number of findings for which a model judged if a passage supports them."""
    bearing: Figure | None
    """Share of these with a passage that supports them by itself; None if there are none."""


@dataclass(frozen=True, slots=True)
class WitnessCard:
    """Figures of one arm."""

    arm: Arm
    n: int
    true: int
    """Number of the ``n`` that are true."""
    abstained: int
    """Number of the ``n`` without an answer because the evidence was not enough."""
    failed: int
    """Number of the ``n`` without a finding because the source or the model failed."""
    coverage: Figure
    """Share of the ``n`` with an answer."""
    not_attempted: Figure
    """Share of the ``n`` without one."""
    accuracy: Figure
    """Share of the ``n`` with a correct answer; a missing answer counts as wrong."""
    decided_accuracy: Figure | None
    """Share of correct ones among the answers; None if there are no answers."""
    macro_f1: Figure
    weighted_f1: Figure
    """Mean F1 of both labels, weighted by the number of claims with each."""
    by_label: Mapping[str, Figure | None]
    """Precision, recall and F1 of both labels, such as ``f1:True``."""
    against: Figure | None
    """Difference in accuracy to the arm ``witness``, over the same claims; None for that arm, or without it."""
    citations: Citations
    calls: float
    """Mean number of model calls per claim."""
    tokens: float
    """Mean number of tokens per claim, in and out."""
    documents: float
    """Mean number of documents read per claim."""


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
    predicted = [_column(one) for one in lines]
    gold = np.array([[one.gold is not Gold.TRUE, one.gold is Gold.TRUE] for one in lines], dtype=np.bool_)
    columns = np.array(predicted)
    arrays = TaskArrays(
        _LABELS, gold, columns[:, None] == np.arange(2), columns < _ABSTAINED, scores=np.full(gold.shape, np.nan)
    )
    names = ("coverage", "accuracy", "macro-f1", "weighted-f1", *_PER_LABEL)
    found = measure(arrays, names, None, resamples=resamples, seed=seed)
    decided = measure(arrays, ("accuracy",), None, only=arrays.answered, resamples=resamples, seed=seed)
    coverage = known_figure(found["coverage"])

    return WitnessCard(
        arm=arm,
        n=len(lines),
        true=int(gold[:, 1].sum()),
        abstained=predicted.count(_ABSTAINED),
        failed=predicted.count(_FAILED),
        coverage=coverage,
        not_attempted=Figure(1 - coverage.value, 1 - coverage.high, 1 - coverage.low),
        accuracy=known_figure(found["accuracy"]),
        decided_accuracy=decided["accuracy"],
        macro_f1=known_figure(found["macro-f1"]),
        weighted_f1=known_figure(found["weighted-f1"]),
        by_label={name: found[name] for name in _PER_LABEL},
        against=difference_of(_right(lines), _right(baseline), resamples=resamples, seed=seed),
        citations=_citations(lines, resamples, seed),
        calls=_mean([one.calls for one in lines]),
        tokens=_mean([one.tokens_in + one.tokens_out for one in lines]),
        documents=_mean([one.documents for one in lines]),
    )


def _column(one: CheckedClaim) -> int:
    # Failure takes precedence over abstention: without a label there was no finding, so nothing to abstain from.
    if one.label is None:
        return _FAILED
    return _ABSTAINED if one.answer is None else int(one.answer)


def _right(lines: Sequence[CheckedClaim]) -> list[tuple[str, float]]:
    # Compared by identity: a missing answer is None, neither True nor False, and counts as wrong.
    return [(one.id, float(one.answer is (one.gold is Gold.TRUE))) for one in lines]


def _citations(lines: Sequence[CheckedClaim], resamples: int, seed: int) -> Citations:
    found = [one for one in lines if one.label in _BEARS]
    quotes = sum(len(one.evidence) for one in found)
    # Dropped passages belong in the denominator: otherwise a witness that invents quotes would get 100 % by having them
    # all removed.
    dropped = sum(one.quotes_dropped for one in found)
    # Findings without any judged passage count neither for nor against.
    judged = [one for one in found if one.relations]
    bearing = sum(_BEARS.get(one.label) in one.relations for one in judged)
    return Citations(
        quotes=quotes,
        dropped=dropped,
        standing=_share(quotes, quotes + dropped, resamples, seed),
        judged=len(judged),
        bearing=_share(bearing, len(judged), resamples, seed),
    )


def _share(part: int, whole: int, resamples: int, seed: int) -> Figure | None:
    return share_of([(str(number), float(number < part)) for number in range(whole)], resamples, seed)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
