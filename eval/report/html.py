"""The report as one HTML page that needs nothing else: no network, no other file, no script to be read.

Everything that a stranger or a model wrote is escaped by the template engine; beyond that, the page's own security
policy lets no script run but the one that is named there by its digest, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from court.errors import NotLoaded
from eval.report import words
from eval.report.gather import Group, Report, RunView, Table
from eval.report.transcript import transcript
from eval.report.wrong import Fault


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure of the page, or why there is none."""

    title: str
    svg: str
    """Empty where there is nothing to draw."""
    caption: str
    """What is to be seen; where nothing is, why."""


def as_html(report: Report) -> str:
    """The page; the same for the same report.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    _need()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("eval.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seen=_seen,
        plain=words.plain,
        data_uri=_data_uri,
        digest=_digest,
        pretty=_pretty,
        percent=words.percent,
        percent_span=words.percent_span,
        places=words.places,
        places_span=words.places_span,
        points=words.points,
        points_span=words.points_span,
        lower=words.lower,
    )
    loader = environment.loader
    assert loader is not None
    style, script = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    return environment.get_template("page.html").render(
        report=report,
        style=_own(style),
        script=_own(script),
        style_digest=_source(style),
        script_digest=_source(script),
        title=_title(report.groups),
        faults=list(Fault),
        tables={table.key: _figures_of(table) for group in report.groups for table in group.tables},
        examinations={run.key: _examination_of(run) for run in report.runs},
        transcript=transcript,
        nothing=words.NOTHING,
    )


def _need() -> None:
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NotLoaded(
            f"A report as a page needs {error.name}, which is not installed: pip install 'memecourt[eval]'. "
            "Without --html there is nothing more to install.",
            reason="REPORT_NOT_INSTALLED",
        ) from None


def _title(groups: Sequence[Group]) -> str:
    return words.listed(f"{group.title}, {group.split}" for group in groups)


def _figures_of(table: Table) -> dict[str, Any]:
    """Of one table: figures over all runs, and by run."""
    from eval.report import figures

    bars = [
        figures.Bar(
            label=words.plain(row.run.label),
            accuracy=row.card.strict.accuracy,
            macro_f1=row.card.strict.macro_f1,
            calls=row.run.cost.calls if row.run.cost else 0.0,
            tokens=row.run.cost.tokens if row.run.cost else 0.0,
        )
        for row in table.rows
    ]
    first = table.rows[0].card
    if len(bars) == 1:
        alone = "One run alone can't be set beside another. What it cost stands below, with the run."
        together = [Drawn("Runs side by side", "", alone)]
    else:
        caption = "Strict figures with 95 % intervals. Dashed: always saying the more frequent class."
        if len({(row.card.n, row.card.harmful) for row in table.rows}) > 1:
            caption += f" The runs judged different memes; the dashed line is that of {table.rows[0].run.label}."
        drawn = figures.side_by_side(bars, first.majority, first.majority_macro_f1, f"{table.key}-bars")
        cost = figures.costs(bars, f"{table.key}-costs")
        what = (
            "What a trial takes, whether or not its calls came out of the store."
            if cost
            else "No model was asked, so there is no cost to be set against accuracy."
        )
        together = [Drawn("Runs side by side", drawn, caption), Drawn("Cost against accuracy", cost or "", what)]
    by_run = {}
    for row in table.rows:
        card, name = row.card, f"{table.key}-{row.run.key}"
        curve = figures.calibration(card.calibration, f"{name}-calibration")
        by_run[row.run.key] = [
            Drawn(
                "Confusion matrix", figures.confusion(card, f"{name}-confusion"), "Counts, and their share of the row."
            ),
            Drawn(
                "Calibration",
                curve or "",
                f"{card.scored:,} memes with a score, in bins of nearly equal numbers. On the dashed line a score is "
                "the share of harmful memes among those that have it."
                if curve
                else "No meme has a score, so there is nothing to calibrate.",
            ),
        ]
    return {"together": together, "by_run": by_run}


def _examination_of(run: RunView) -> list[Drawn]:
    from court.events import Side
    from eval.report import figures

    asked = figures.rounds(run.rounds, f"{run.key}-rounds")
    course = figures.entropies({Side(side): found for side, found in run.entropies.items()}, f"{run.key}-entropy")
    none = "No side examined the Proposer in this run, so there are no rounds."
    return [
        Drawn(
            "Rounds per side by gold label", asked or "", "Share of the memes of each gold label." if asked else none
        ),
        Drawn(
            "Entropy by round",
            course or "",
            "Of the sides' summaries: median, and the band between the quartiles. Above it, the number of summaries: a "
            "side that has rested writes no more."
            if course
            else none,
        ),
    ]


def _seen(text: object) -> Any:
    """Text of strangers, escaped, with invisible characters made visible."""
    from markupsafe import Markup

    return Markup("").join(
        Markup('<span class="invisible" title="an invisible character">{}</span>').format(piece) if hidden else piece
        for piece, hidden in words.pieces(str(text))
    )


def _data_uri(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def _digest(digest: str) -> str:
    """The first digits: enough to tell two apart by eye. The whole one stands beside it as a title."""
    kind, _, digits = digest.rpartition(":")
    return f"{kind}:{digits[:12]}" if kind else digits[:12]


def _pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _own(text: str) -> Any:
    """Our own style or script, as it stands."""
    from markupsafe import Markup

    if "</" in text:
        raise ValueError("style and script of the page may not hold what ends them")
    return Markup(text)


def _source(text: str) -> str:
    """By which the page's security policy knows it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
