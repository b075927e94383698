"""``memecourt prompts``: the words in which models are asked, shown, checked and compared."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from court.prompts import PromptSet
from court.prompts.sets import open_set, packaged, packaged_versions, source
from serving.cli.common import run, settings_of
from serving.models.rehearsal import rehearse

# As diff ends where it finds something.
EXIT_DIFFERENT = 1
_FILES = ("proposer", "advocate", "judge", "repair")


@click.group()
def prompts() -> None:
    """Lists, shows, checks and compares sets of prompts.

    A set is a packaged version (`1` or `2`) or a folder with proposer.toml, advocate.toml and judge.toml; the setting
    trial.prompts, or --prompts, names the one that trials use.
    """


@prompts.command("list")
def list_prompts() -> None:
    """Lists the packaged prompt sets and the one that the settings name."""
    chosen = open_set(settings_of().trial.prompts)
    found = {version: packaged(version) for version in packaged_versions()}
    for name, each in {**found, chosen.name: chosen}.items():
        mark = "  in use" if each.digest == chosen.digest else ""
        click.echo(f"{name}  {'packaged' if name in found else 'folder'}  {each.digest}{mark}")
        for file, prompt in each.by_file.items():
            click.echo(f"     {file:<9} {prompt.id:<14} {prompt.digest}")


@prompts.command("show")
@click.argument("role", type=click.Choice(_FILES))
@click.option(
    "--from", "name", metavar="SET", help="Prompt set: a packaged version or a folder. [default: trial.prompts]"
)
def show_prompt(role: str, name: str | None) -> None:
    """Prints the file of one prompt, as a start for your own."""
    try:
        click.echo(source(name or settings_of().trial.prompts, role), nl=False)
    except FileNotFoundError:
        raise click.ClickException(f"There are no packaged prompts {name}.") from None


@prompts.command("check")
@click.argument("folder", metavar="DIR")
def check_prompts(folder: str) -> None:
    """Lists every fault of the prompt set in a folder, and runs one trial of an invented meme with a stand-in.

    No model is called. Exit code: 0 if there is no fault, 1 if there is one.
    """
    chosen = open_set(folder)
    rehearsal = run(rehearse(chosen, settings_of().trial))
    for file, prompt in chosen.by_file.items():
        click.echo(f"{file:<9} {prompt.id:<14} {prompt.digest}")
    click.echo(f"{chosen.name}  {chosen.digest}")
    click.echo(
        f"A trial with a stand-in came to its verdict in {rehearsal.calls} calls; the longest message has "
        f"{rehearsal.longest:,} characters."
    )


@prompts.command("diff")
@click.argument("first", metavar="SET")
@click.argument("second", metavar="SET")
def diff_prompts(first: str, second: str) -> None:
    """Shows the differences between two prompt sets, part by part. Exit code: 0 if there are none, 1 otherwise."""
    lines = list(_differences(open_set(first), open_set(second)))
    click.echo("\n".join(lines) if lines else "The two sets have the same words.")
    sys.exit(EXIT_DIFFERENT if lines else 0)


def _differences(first: PromptSet, second: PromptSet) -> Iterator[str]:
    # Every set has the same files, in the same order.
    for (file, one), other in zip(first.by_file.items(), second.by_file.values(), strict=True):
        before, after = _parts(one.content), _parts(other.content)
        for part in dict.fromkeys((*before, *after)):
            yield from difflib.unified_diff(
                before.get(part, "").splitlines(),
                after.get(part, "").splitlines(),
                f"{first.name}: {file} {part}",
                f"{second.name}: {file} {part}",
                lineterm="",
            )


def _parts(content: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """The texts of a prompt by their places, such as ``tasks.ask``."""
    parts: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            parts |= _parts(value, f"{before}{name}.")
        else:
            parts[f"{before}{name}"] = str(value)
    return parts
