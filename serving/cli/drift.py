"""``memecourt drift``: the error of randomly drawn verdicts, week by week."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from retrieval.library.postgres.address import Address
from serving.cli.common import FiniteRange, awaited, caught_up, docket_in, docket_option, settings_of
from serving.docket.review.drift import FEWEST, RECENT_DAYS, DriftReport, ErrorFigure, measure_drift

# Neither 1 nor 2: those say that the command failed, and this that it found something.
EXIT_DRIFTED = 3


@click.command()
@click.option("--namespace", help="Only trials of this namespace.")
@click.option(
    "--risk",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    help=(
        "Share of unreviewed labels that may be wrong, for the proposed cut-off. [default: "
        "MEMECOURT_TRIAL__REVIEW_RISK, else 0.1]"
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@docket_option
@click.pass_context
@awaited
async def drift(
    context: click.Context, namespace: str | None, risk: float | None, as_json: bool, docket: Path | Address | None
) -> None:
    """Shows how often people disagreed with the court on randomly sampled verdicts, week by week.

    Only these (`review_share`) are representative of all content. Below stands the cut-off of risk that they imply.
    Exit code: 3 if the error rate of the last 28 days is significantly above the verdicts' own risks, else 0.
    """
    settings = settings_of(docket=docket)
    wanted = risk or settings.trial.review_risk
    async with docket_in(settings) as store:
        queue = await caught_up(store, settings)
        report = await measure_drift(queue, store.trials, now=datetime.now(UTC), wanted=wanted, namespace=namespace)
    if as_json:
        figures = {
            "weeks": {str(monday): asdict(figure) for monday, figure in report.weeks.items()},
            "recent": asdict(report.recent),
            "drifted": report.recent.drifted,
            "proposed": report.proposed and asdict(report.proposed),
        }
        click.echo(json.dumps(figures, indent=2))
    else:
        _print_report(report, wanted)
    context.exit(EXIT_DRIFTED if report.recent.drifted else 0)


def _print_report(report: DriftReport, wanted: float) -> None:
    click.echo("week of      drawn  reviewed  wrong  error [95 %]            expected  unseen")
    for monday, figure in report.weeks.items():
        click.echo(f"{monday}  {_line(figure)}")
    click.echo(f"{f'{RECENT_DAYS} days':<10}  {_line(report.recent)}\n")
    if report.recent.drifted:
        click.echo(
            f"The error of the last {RECENT_DAYS} days is surely more than the verdicts' own risks say: look at what "
            "is sent, and build the library again with what was overruled."
        )
    elif report.recent.reviewed < FEWEST:
        click.echo(
            f"Fewer than {FEWEST} of the last {RECENT_DAYS} days are reviewed: too few to tell a drift from chance."
        )
    else:
        click.echo("The error is no more than the verdicts' own risks say, as far as can be told from chance.")
    proposed = report.proposed
    if proposed is None:
        click.echo(f"No cut-off is proposed: it takes {FEWEST} reviewed verdicts with a risk.")
        return
    click.echo(
        f"For at most {wanted:.1%} wrong labels that nobody looks at, a person should look from a risk of "
        f"{proposed.cutoff:.3f} on: {proposed.share:.1%} of the memes (bound {proposed.error:.1%})."
    )
    if proposed.rate is not None:
        click.echo(f"By the library's curve that is MEMECOURT_TRIAL__REVIEW_RATE={proposed.rate:.3f}.")


def _line(figure: ErrorFigure) -> str:
    error = "–" if figure.error is None else f"{figure.error:.3f} [{figure.low:.3f}, {figure.high:.3f}]"
    expected = "–" if figure.expected is None else f"{figure.expected:.3f}"
    unseen = "–" if figure.passed_error is None else f"{figure.passed_error:.3f}"
    return f"{figure.drawn:>5,}  {figure.reviewed:>8,}  {figure.wrong:>5,}  {error:<22}  {expected:>8}  {unseen:>6}"
