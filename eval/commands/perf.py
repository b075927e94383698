"""``memecourt-eval perf``: benchmarks of the code."""

import json
import sys

import click

from eval.perf.bench import BENCHMARKS, measure


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def perf(name: str | None, as_json: bool) -> None:
    """Runs the benchmark NAME; without a name, lists what there is.

    Exit code: 0 if every figure is within its bound, 1 if not, 2 if there is no such benchmark.
    """
    if name is None:
        for known, (_, what) in BENCHMARKS.items():
            click.echo(f"{known:<16} {what}")
        return
    if name not in BENCHMARKS:
        raise click.UsageError(f"There is no benchmark {name!r}. There are: {', '.join(BENCHMARKS)}.")
    result = measure(name)
    if as_json:
        line = {"name": name, "figures": result.rounded, "goals": dict(result.goals), "holds": result.holds}
        click.echo(json.dumps(line))
    else:
        for figure, value in result.rounded.items():
            verdict = ""
            if bound := result.goals.get(figure):
                verdict = f"  to be {bound}: {'holds' if result.within_bound(figure) else 'DOES NOT HOLD'}"
            click.echo(f"{figure:<24} {value:>12g}{verdict}")
    # So that a script can tell that a bound was missed.
    sys.exit(0 if result.holds else 1)
