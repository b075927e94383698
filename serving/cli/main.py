"""The command ``memecourt``."""

from __future__ import annotations

import os

import click

from serving.cli.program import CommandTable, run_command

COMMANDS = {
    "setup": ("serving.cli.setup", "Fetch the encoder's weights, once."),
    "judge": ("serving.cli.judge", "Try memes and say what each is."),
    "serve": ("serving.cli.serve", "Serve verdicts over gRPC."),
    "console": ("serving.cli.console", "Serve pages on which trials are read and reviewed."),
    "health": ("serving.cli.health", "Ask a server whether it serves."),
    "tokens": ("serving.cli.tokens", "Say who may call the server, and what each may do."),
    "webhooks": ("serving.cli.webhooks", "List, test, replay and stop what is told to receivers."),
    "vllm": ("serving.cli.vllm", "Start a vLLM on this machine, set up for the court."),
    "precedents": ("serving.cli.precedents", "Make, extend, search and describe libraries of precedents."),
    "facts": ("serving.cli.facts", "Make, show and search corpora of documents that claims are checked by."),
    "records": ("serving.cli.records", "List trials, show them step by step, resume those that were cut off."),
    "notice": ("serving.cli.notice", "Print what to tell those whose content was decided on."),
    "prompts": ("serving.cli.prompts", "Show, check and compare the words in which models are asked."),
    "policy": ("serving.cli.policy", "Check a policy file, and import policies that others wrote."),
    "docket": ("serving.cli.docket", "Check what is kept, hand trials over with proofs, erase."),
    "rejudge": ("serving.cli.rejudge", "Try memes of stored trials once more, after policy or library have changed."),
    "report": ("serving.cli.report", "Write figures that a platform has to publish."),
    "drift": ("serving.cli.drift", "Show the error of randomly drawn verdicts, week by week."),
    "settings": ("serving.cli.settings", "Show the settings that are in force."),
    "demo": ("serving.cli.demo", "See it work: a server, three memes drawn for it, three verdicts."),
}


@click.group(cls=CommandTable, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="memecourt")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Settings file (TOML).")
def cli(config: str | None) -> None:
    """MemeCourt puts memes on trial: two sides argue, precedents are cited, a judge rules, every step is kept.

    Settings come from options, else from the environment (MEMECOURT_HOME, MEMECOURT_LIBRARY, MEMECOURT_DOCKET …), else
    from the file that --config or MEMECOURT_CONFIG names. `memecourt settings` shows those in force.
    """
    if config:
        # Where Settings looks for it, in this process and in those it starts.
        os.environ["MEMECOURT_CONFIG"] = config


def main() -> None:
    """Entry point."""
    run_command(cli)
