"""Figures as aligned text for terminals, shared by all commands."""

from __future__ import annotations

from collections.abc import Sequence

from court.display import word
from eval.scores.bootstrap import Figure
from eval.scores.metrics import OUTCOMES, Card, Rates, noise


def table(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Rows as aligned columns, two spaces apart; the first row is the header.

    Args:
        rows: Cells, the same number in each row.
        numbers: True to right-align all columns but the first.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            # Right-aligns numbers; the first column has names.
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def figure(value: Figure | float | None, form: str = ".3f", *, times: float = 1.0) -> str:
    """A figure, with its interval if it has one; a dash if there is no figure.

    Args:
        form: Format of a number, such as ``+.1f``.
        times: Factor of the figure and of its interval: 100 for per cent.
    """
    match value:
        case None:
            return "–"
        case Figure():
            # Multiplied before rounding, or the last digit of a percentage would be lost.
            low, high = times * value.low, times * value.high
            return f"{times * value.value:{form}} [{low:{form}}, {high:{form}}]"
        case _:
            return f"{times * value:{form}}"


def cards_table(cards: Sequence[tuple[str, Card]]) -> str:
    """Cards side by side, one per column: counts, figures and baselines.

    Args:
        cards: Heading and score card of each column.
    """
    rows = [["", *(name for name, _ in cards)]]

    def row(title: str, cells: list[str]) -> None:
        if any(cell != "–" for cell in cells):
            rows.append([title, *cells])

    each = [card for _, card in cards]
    row("protocol", [str(card.protocol) for card in each])
    row("memes", [f"{card.n:,}: {card.harmful:,} harmful, {card.benign:,} not" for card in each])
    row("dropped by the protocol", [f"{card.dropped:,}" if card.dropped else "–" for card in each])
    row("undecided, failed", [f"{card.undecided:,}, {card.failed:,}" for card in each])
    row("coverage", [figure(card.coverage) for card in each])
    row("accuracy, strict", [figure(card.strict.accuracy) for card in each])
    row("macro-F1, strict", [figure(card.strict.macro_f1) for card in each])
    row("accuracy, decided", [figure(card.decided.accuracy if card.decided else None) for card in each])
    row("macro-F1, decided", [figure(card.decided.macro_f1 if card.decided else None) for card in each])
    for place, name in enumerate(("not harmful", "harmful")):
        for field in ("precision", "recall", "f1"):
            title = f"{name}: {'F1' if field == 'f1' else field}, strict"
            row(title, [figure(getattr(card.strict.classes[place], field)) for card in each])
    row("AUROC", [_over(card.auroc, card.scored, card.n) for card in each])
    row("AUROC, decided", [_over(card.auroc_decided, card.scored_decided, card.n) for card in each])
    row("AUROC, strict", [figure(card.auroc_strict) for card in each])
    row("Brier", [_over(card.brier, card.scored, card.n) for card in each])
    row("ECE", [_over(card.ece, card.scored, card.n) for card in each])
    row("MMAE", [_over(card.mmae, card.levelled, card.n) for card in each])
    row("majority: accuracy", [figure(card.majority) for card in each])
    row("majority: macro-F1", [figure(card.majority_macro_f1) for card in each])
    row("precedent vote: accuracy", [_vote(card, "accuracy") for card in each])
    row("precedent vote: macro-F1", [_vote(card, "macro_f1") for card in each])
    return table(rows)


def confusion_table(card: Card) -> str:
    """Confusion counts, with a row per gold label and a column per outcome."""
    words = [word(outcome) for outcome in OUTCOMES]
    rows = [["gold \\ said", *words]]
    rows += [[name, *(f"{n:,}" for n in row)] for name, row in zip(words[:2], card.confusion, strict=True)]
    return table(rows)


def noise_in_words(card: Card) -> str:
    """Describes how much the strict accuracy would vary with another sample of the same size."""
    accuracy = card.strict.accuracy
    # The normal approximation has no width at 0 and 1, and assumes that memes of a group are independent.
    if accuracy.value in (0.0, 1.0) or card.groups:
        known, within = f"to lie between {accuracy.low:.3f} and {accuracy.high:.3f}", "a difference within that"
    else:
        known, within = f"to about ±{100 * noise(card.n, accuracy.value):.1f} points", "less than that"
    memes = f"{card.n:,} meme{'' if card.n == 1 else 's'}"
    return (
        f"With {memes} an accuracy of {accuracy.value:.3f} is known {known}; {within} between two systems is "
        "noise unless they are compared meme by meme."
    )


def _over(value: Figure | float | None, memes: int, n: int) -> str:
    return figure(value) if value is None or memes == n else f"{figure(value)} of {memes:,}"


def _vote(card: Card, field: str) -> str:
    rates: Rates | None = card.vote
    return _over(getattr(rates, field), card.voted, card.n) if rates else "–"
