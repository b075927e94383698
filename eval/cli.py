"""The command ``memecourt-eval``: measuring the court."""

from __future__ import annotations

from typing import Any

import click

from court.errors import CourtError
from eval.commands.ablate import ablate
from eval.commands.arena import arena
from eval.commands.classify import classify
from eval.commands.compare import compare
from eval.commands.datasets import datasets
from eval.commands.export import export
from eval.commands.functional import functional
from eval.commands.labels import labels
from eval.commands.perf import perf
from eval.commands.probe import probe
from eval.commands.report import report
from eval.commands.reproduce import reproduce
from eval.commands.run import run
from eval.commands.score import score
from eval.commands.shadow import shadow
from eval.commands.steering import steering
from eval.commands.subgroups import subgroups
from eval.commands.sweep import sweep
from eval.commands.synthetic import synthetic
from eval.commands.vote import vote
from eval.commands.witness import witness
from serving.access.private_files import make_files_private
from serving.cli.main import run_command


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """See the base class. Here, and not in each command, an error of the court becomes its message."""
        try:
            return super().invoke(ctx)
        except CourtError as error:
            # The message says what to do; where it was raised says nothing to a user.
            raise click.ClickException(error.message) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measures MemeCourt: benchmarks of the code, and how good its verdicts are."""
    make_files_private()


for command in (
    ablate,
    arena,
    classify,
    compare,
    datasets,
    export,
    functional,
    labels,
    perf,
    probe,
    report,
    reproduce,
    run,
    score,
    shadow,
    steering,
    subgroups,
    sweep,
    synthetic,
    vote,
    witness,
):
    cli.add_command(command)


def main() -> None:
    """Entry point."""
    run_command(cli)
