"""The command ``memecourt-eval``: measuring the court."""

import click

from serving.cli.program import CommandTable, run_command

COMMANDS = {
    "run": ("eval.commands.run", "Judge every meme of a split, and store predictions and records."),
    "report": ("eval.commands.report", "Report on runs: figures with intervals, curves, errors, as pages or text."),
    "compare": ("eval.commands.compare", "Show which of two runs is better, if there are enough memes to tell."),
    "score": ("eval.commands.score", "Score predictions of any classifier against the labels of a split."),
    "subgroups": ("eval.commands.labels", "Show figures by groups of memes, each beside those of all others."),
    "export": ("eval.commands.export", "Export a run for other tools."),
    "ablate": ("eval.commands.ablate", "Judge a split once per arm, each with one part of the procedure changed."),
    "stability": ("eval.commands.altered", "Say how many verdicts flip where memes, order or seed change."),
    "counterfactual": ("eval.commands.altered", "Say whether the same memes fare otherwise about another group."),
    "sweep": ("eval.commands.sweep", "Judge a validation split with each combination of settings."),
    "audition": ("eval.commands.audition", "Say what models are fit for, and calibrate their verdicts."),
    "policy": ("eval.commands.policy", "Test a policy by its examples, and see what another one would change."),
    "vote": ("eval.commands.vote", "Measure the vote of a library of precedents on labelled memes."),
    "reproduce": ("eval.commands.reproduce", "Reproduce a paper: its tables and figures, its claims as tests."),
    "datasets": ("eval.commands.datasets", "List, check and describe data sets by their cards."),
    "labels": ("eval.commands.labels", "Say how far labels can be trusted."),
    "classify": ("eval.commands.classify", "Ask a question of a card about every meme: stance, target, frames."),
    "functional": ("eval.commands.functional", "Score functional tests in the manner of HateCheck."),
    "witness": ("eval.commands.witness", "Measure the expert witness on claims whose truth is known."),
    "arena": ("eval.commands.arena", "Have models explain memes and judge each other's answers, and rank them."),
    "probe": ("eval.commands.probe", "Find out which harmful memes a model does not understand."),
    "shadow": ("eval.commands.shadow", "Compare a candidate's verdicts with the court's on the same memes."),
    "replay": ("eval.commands.replay", "Rerun recorded trials with their replies, and list what changes."),
    "synthetic": ("eval.commands.synthetic", "Draw a benchmark whose truth is known."),
    "perf": ("eval.commands.perf", "Run benchmarks of the code."),
}


cli = click.version_option(package_name="memecourt")(
    CommandTable(
        name="memecourt-eval",
        table=COMMANDS,
        help="Measures MemeCourt: benchmarks of the code, and how good its verdicts are.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)


def main() -> None:
    """Entry point."""
    run_command(cli, extra="eval")
