"""``memecourt policy``: checks a policy file, and imports policies that others wrote."""

from __future__ import annotations

from pathlib import Path

import click

from court.policy import Policy
from serving.cli.common import CheckingGroup
from serving.policy_files import faults_of, import_policy, to_toml

EXIT_FAULTS = 1


@click.group(cls=CheckingGroup)
def policy() -> None:
    """Checks and imports policies.

    A policy has clauses, each with examples that it forbids (`violates`) and that it allows (`allows`). `memecourt-eval
    policy` tries them, compares two policies on recorded cases, and improves a clause.
    """


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_context
def check(context: click.Context, file: Path) -> None:
    """Lists the clauses of a policy file with their examples, and its faults.

    Exit code: 0 if there is no fault, 1 if there is one, 2 if it is no policy file.
    """
    found = Policy.load(file)
    click.echo(f"{found.id}, version {found.version}, {found.digest}")
    for clause in found.clauses:
        examples = f"{len(clause.violates)} forbidden, {len(clause.allows)} allowed examples"
        click.echo(f"  {clause.number:<4} {clause.category:<24} {examples}")
    if untested := [clause.number for clause in found.clauses if not (clause.violates and clause.allows)]:
        click.echo(f"Examples of both kinds are missing for: {', '.join(untested)}.")
    faults = list(faults_of(found))
    for fault in faults:
        click.echo(fault)
    context.exit(EXIT_FAULTS if faults else 0)


@policy.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Policy file to write (TOML)."
)
def import_(source: Path, out: Path) -> None:
    """Reads a policy for a guard model (Markdown) or the folder of a policy pack, and writes a policy file.

    Criteria become clauses, definitions and exceptions the preamble, examples the tests of the clauses. What has no
    counterpart, such as levels of severity, is listed. Read the file before you use it.
    """
    if out.exists():
        raise click.ClickException(f"{out} is there already. Name another file with --out.")
    found = import_policy(source)
    out.write_text(to_toml(found.policy), encoding="utf-8")
    examples = sum(len(clause.violates) + len(clause.allows) for clause in found.policy.clauses)
    click.echo(f"Written: {out}. Clauses: {len(found.policy.clauses)}; examples: {examples}.")
    for each in found.left_out:
        click.echo(f"No counterpart: {each}")
