"""Numbers, untrusted text and tables as all reports write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from court.display import split_hidden, word
from eval.scores.bootstrap import Figure
from eval.scores.metrics import OUTCOMES, Card, Rates, noise

NOTHING = "–"
"""Placeholder for a missing figure."""


def table(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Rows as aligned columns, two spaces apart; the first row is the header."""
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
        times: Factor of the figure and of its interval: 100 for per cent.
    """
    match value:
        case None:
            return NOTHING
        case Figure():
            # Multiplied before rounding, or the last digit of a percentage would be lost.
            low, high = times * value.low, times * value.high
            return f"{times * value.value:{form}} [{low:{form}}, {high:{form}}]"
        case _:
            return f"{times * value:{form}}"


def plain(text: object) -> str:
    """Untrusted text on one line, with invisible characters as code points."""
    return " ".join("".join(piece for piece, _ in split_hidden(str(text))).split())


def listed(parts: Iterable[str]) -> str:
    """Joins words: ``a``, ``a and b``, ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def traps_in_words(caveats: Iterable[str]) -> list[str]:
    """Caveats of a data set's card, as sentences."""
    return [f"On this data set: {plain(caveat).rstrip('.')}." for caveat in caveats]


def notes_in_words(runs: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Notes on runs, by name; those that are on all of them are not repeated."""
    named: dict[str, list[str]] = {}
    for name, notes in runs:
        for note in notes:
            named.setdefault(note, []).append(name)
    return [note if len(names) == len(runs) > 1 else f"{', '.join(names)}: {note}" for note, names in named.items()]


def cards_rows(cards: Sequence[tuple[str, Card]], unfinished: Collection[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Cards side by side, one per column: counts, figures and baselines."""
    rows: list[tuple[str, ...]] = [("", *(name for name, _ in cards))]

    def row(title: str, cells: list[str]) -> None:
        if any(cell != NOTHING for cell in cells):
            rows.append((title, *cells))

    each = [card for _, card in cards]
    strict = [None if name in unfinished else card.strict for name, card in cards]
    decided = [card.decided for card in each]
    row("protocol", [str(card.protocol) for card in each])
    row("memes", [f"{card.n:,}: {card.harmful:,} harmful, {card.benign:,} not" for card in each])
    row("dropped by the protocol", [f"{card.dropped:,}" if card.dropped else NOTHING for card in each])
    row("undecided, failed", [f"{card.undecided:,}, {card.failed:,}" for card in each])
    row("coverage", [figure(card.coverage) for card in each])
    for kind, rates in (("strict", strict), ("decided", decided)):
        row(f"accuracy, {kind}", [figure(one.accuracy if one else None) for one in rates])
        row(f"macro-F1, {kind}", [figure(one.macro_f1 if one else None) for one in rates])
    for place, name in enumerate(("not harmful", "harmful")):
        for kind, rates in (("strict", strict), ("decided", decided)):
            for field in ("precision", "recall", "f1"):
                title = f"{name}: {'F1' if field == 'f1' else field}, {kind}"
                row(title, [figure(getattr(one.classes[place], field) if one else None) for one in rates])
    row("AUROC", [_over(card.auroc, card.scored, card.n) for card in each])
    row("AUROC, decided", [_over(card.auroc_decided, card.scored_decided, card.n) for card in each])
    row("AUROC, strict", [figure(None if name in unfinished else card.auroc_strict) for name, card in cards])
    row("Brier", [_over(card.brier, card.scored, card.n) for card in each])
    row("ECE", [_over(card.ece, card.scored, card.n) for card in each])
    row("MMAE", [_over(card.mmae, card.levelled, card.n) for card in each])
    row("majority: accuracy", [figure(card.majority) for card in each])
    row("majority: macro-F1", [figure(card.majority_macro_f1) for card in each])
    row("precedent vote: accuracy", [_vote(card, "accuracy") for card in each])
    row("precedent vote: macro-F1", [_vote(card, "macro_f1") for card in each])
    return tuple(rows)


def confusion_rows(card: Card) -> tuple[tuple[str, ...], ...]:
    """Confusion counts, with a row per gold label and a column per outcome."""
    words = [word(outcome) for outcome in OUTCOMES]
    counts = (tuple(f"{n:,}" for n in row) for row in card.confusion)
    return (
        ("gold \\ said", *words),
        *((name, *row) for name, row in zip(words[:2], counts, strict=True)),
    )


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
    return _over(getattr(rates, field), card.voted, card.n) if rates else NOTHING
