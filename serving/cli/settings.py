"""``memecourt settings``: what is in force, from options, environment and file together."""

from __future__ import annotations

import json
from typing import Any

import click

from serving.cli.common import settings_of


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def settings(as_json: bool) -> None:
    """Shows the settings that are in force, in the form that a file of settings has; keys are not shown.

    Those of a trial stand in every record, with their digest.
    """
    effective = settings_of()
    values = effective.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps({**values, "trial_digest": effective.trial.digest}, indent=2))
        return
    click.echo("\n".join(_toml(values)))
    click.echo(f"\n# digest of [trial]: {effective.trial.digest}")


def _toml(values: dict[str, Any], table: str = "") -> list[str]:
    """The values as TOML; what is not set is a comment, for TOML has no word for it."""
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    lines = [f"[{table}]"] if table and plain else []
    lines += [f"# {name} =" if value is None else f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    for name, value in values.items():
        if isinstance(value, dict):
            inner = _toml(value, f"{table}.{name}" if table else name)
            lines += ["", *inner] if inner else []
    return lines
