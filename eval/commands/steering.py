"""``memecourt-eval steering``: the share of texts that the detector of steering flags; no part of a text is shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from scipy.stats import binomtest

from court.display import word
from court.errors import BadRequest
from court.injection.detector import SignalKind, find_injection_signals
from eval.commands.options import Shown, shows_sections
from eval.reports.sections import Section
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from serving.cli.common import PATH

FORMS = frozenset({SignalKind.IMITATES_CONTROL_TOKENS, SignalKind.HIDDEN_TEXT, SignalKind.FLOODS})
"""Kinds of signal that are recognised by form, whatever the words say."""


@dataclass(frozen=True, slots=True)
class Share:
    """Share of ``n`` texts, with its exact 95 % interval (Clopper and Pearson, 1934)."""

    flagged: int
    n: int
    low: float
    high: float

    @classmethod
    def of(cls, flagged: int, n: int) -> Share:
        """The share with its interval. Raises ValueError if there are no texts."""
        interval = binomtest(flagged, n).proportion_ci(confidence_level=0.95, method="exact")
        return cls(flagged, n, float(interval.low), float(interval.high))

    @property
    def value(self) -> float:
        """The share, in [0, 1]."""
        return self.flagged / self.n


@dataclass(frozen=True, slots=True)
class SteeringReport:
    """Report of the detector on some texts."""

    flagged: Share
    in_words: Share
    """Share of texts with a signal that is not recognised by its form alone (:data:`FORMS`)."""
    kinds: dict[SignalKind, Share]
    """Share of texts with a signal of each kind."""
    left_out: int = 0


def measure_steering(paths: Iterable[Path]) -> SteeringReport:
    """Runs the detector on every text of some files.

    Args:
        paths: Paths of memes in any format that precedents are built from, of texts line by line (``.txt``), or of one
            JSON array of texts (``.json``).

    Raises BadRequest: A file can't be read, or none contains a text.
    """
    texts: list[str] = []
    left_out = 0
    for path in paths:
        found, problems = _texts(path)
        texts += found
        left_out += problems
    if not texts:
        raise BadRequest("There is no text in these files.", reason="SOURCE_EMPTY")
    return report_of(texts, left_out)


def report_of(texts: Iterable[str], left_out: int = 0) -> SteeringReport:
    """Runs the detector on texts. Raises ValueError if there are none."""
    counts: Counter[SignalKind] = Counter()
    n = flagged = in_words = 0
    for text in texts:
        # A text counts once per kind, however many signals of that kind it has.
        kinds = {signal.kind for signal in find_injection_signals(text)}
        n += 1
        flagged += bool(kinds)
        in_words += bool(kinds - FORMS)
        counts.update(kinds)
    return SteeringReport(
        Share.of(flagged, n),
        Share.of(in_words, n),
        {kind: Share.of(counts[kind], n) for kind in SignalKind},
        left_out,
    )


def _texts(path: Path) -> tuple[list[str], int]:
    if path.suffix not in (".txt", ".json"):
        rows = read_source(Source(path=path))
        return [row.text for row in rows.good], len(rows.problems)
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise BadRequest(f"The texts in {path.name} can't be read as UTF-8.", reason="SOURCE_UNREADABLE") from None
    if path.suffix == ".txt":
        # Not splitlines(), which also splits at form feeds and U+2028, which may occur within a text.
        return [line for line in content.split("\n") if line.strip()], 0
    try:
        # Deeply nested JSON raises RecursionError, and is not an array of texts either.
        texts = json.loads(content)
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{path.name} is no JSON array of texts.", reason="SOURCE_FORMAT_UNKNOWN")
    return texts, 0


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE…")
@shows_sections(page=False)
def steering(files: tuple[Path, ...]) -> Shown:
    """Counts the texts in each FILE, all together, that read like an attempt to steer the court.

    FILE holds memes (as for `memecourt precedents build`), texts line by line (.txt), or a JSON array of texts (.json).
    No text is shown. Intervals are 95 %, exact (Clopper-Pearson); "in words" leaves out texts that only their form
    betrays: control tokens, hidden text, floods.
    """
    report = measure_steering(files)
    shares = {"flagged": report.flagged, "in words": report.in_words}
    shares |= {word(kind): share for kind, share in report.kinds.items()}
    rows = [
        (name, f"{one.flagged:,}", f"{one.value:.2%}", f"{one.low:.2%} to {one.high:.2%}")
        for name, one in shares.items()
    ]
    notes = (f"Rows that can't be used: {report.left_out:,}.",) if report.left_out else ()
    title = f"{report.flagged.n:,} texts"
    section = Section("steering", title, (("kind", "texts", "share", "interval"), *rows), notes)
    return Shown(title="Steering", sections=[section], figures=asdict(report))
