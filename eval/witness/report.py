"""Figures of the witness as text and tables, next to published ones."""

from __future__ import annotations

from collections.abc import Sequence

from eval.datasets.published import published_file
from eval.reports.sections import Section
from eval.scores.tables import figure, listed
from eval.witness.run import WitnessManifest
from eval.witness.scores import WitnessCard


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
    if first.unknown:
        lines.append(f"{first.unknown:,} claims that the data set calls unknown are left out of all figures but one.")
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
    for place, name in ((1, "True"), (0, "False")):
        for field in ("precision", "recall", "f1"):
            title = f"{name}: {'F1' if field == 'f1' else field}"
            row(title, [figure(getattr(card.labels[place], field)) for card in cards])
    row("coverage", [figure(card.coverage) for card in cards])
    row("accuracy of answers", [figure(card.decided_accuracy) for card in cards])
    row("abstained, failed", [f"{card.abstained:,}, {card.failed:,}" for card in cards])
    row("abstained on unknown", [figure(card.unknown_abstained) for card in cards])
    row("verbatim quotes", [figure(card.citations.standing) for card in cards])
    row("findings backed by quotes", [figure(card.citations.bearing) for card in cards])
    row("calls a claim", [f"{card.calls:.2f}" for card in cards])
    row("tokens a claim", [f"{card.tokens:,.0f}" for card in cards])
    row("documents a claim", [f"{card.documents:.2f}" for card in cards])
    notes = (
        "Intervals are 95 %, by bootstrap over claims. A claim without an answer counts as wrong: it lowers accuracy, "
        "recall and F1, and no precision.",
        "Verbatim quotes: share of the named passages that code found in their documents; others are dropped. "
        f"Findings backed by quotes: share with a passage that by itself says so, as judged by {manifest.citations_by}."
        if manifest.citations_by
        else "No model judged whether passages back the findings.",
    )
    published = Section(
        key="published",
        title="Published, not measured here",
        rows=(
            ("data", "method", "True P/R/F1", "False P/R/F1", "macro-F1", "weighted F1"),
            *(tuple(row) for row in published_file("papers/emulate")["rows"]),
        ),
        notes=("Compare runs with --as-published alone: with abstentions the figures have another meaning.",),
    )
    figures = Section(key="figures", title="Figures", rows=tuple(rows), notes=notes)
    # Next to a synthetic world, published figures would invite a meaningless comparison.
    return [figures] if manifest.demonstration else [figures, published]
