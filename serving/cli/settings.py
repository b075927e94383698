"""``memecourt settings``: what is in force, from options, environment and file together."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import BaseModel

from serving.cli.common import settings_of
from serving.presets import load_preset
from serving.settings import (
    GuardSettings,
    ModelSettings,
    NamespaceSettings,
    RoleName,
    RoleSettings,
    Settings,
    WebhookSettings,
)

_OPTIONAL: tuple[tuple[type[BaseModel], str, str], ...] = (
    (GuardSettings, "[llm.guard]", "A guard model, which is heard in full trials as a further witness:"),
    (
        RoleSettings,
        "[[llm.judges]]",
        "A further judge; the table may come again. What one does not name is as the Judge's:",
    ),
    (NamespaceSettings, "[namespaces.NAME]", "What is otherwise for the content of one namespace; a table for each:"),
    (WebhookSettings, "[[webhooks]]", "A receiver that is told what happens; the table may come again:"),
)
"""Models of tables that are not there by themselves, with the head of each and a line about it."""
# Fields that the walk over the models leaves out, because _OPTIONAL and the last lines of the example explain them.
_SHOWN_APART = {
    (ModelSettings, "roles"),
    (ModelSettings, "guard"),
    (ModelSettings, "judges"),
    (Settings, "webhooks"),
    (Settings, "namespaces"),
}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""
_MARKUP = re.compile(r":\w+:`~?([^`]+)`|``([^`]+)``")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--example", is_flag=True, help="Print a settings file instead, with every setting explained and its default."
)
@click.option("--preset", metavar="NAME", help="Apply a preset of settings, such as as-published.")
def settings(as_json: bool, example: bool, preset: str | None) -> None:
    """Shows the settings in force as a settings file, with where each comes from; keys are hidden.

    Every record holds the settings of its trial with their digest. A preset's settings override the environment's; the
    record of a reproduction holds their digest.
    """
    if example:
        click.echo("\n".join(_example()))
        return

    chosen = load_preset(preset) if preset else None
    effective = settings_of(**chosen.settings()) if chosen else settings_of()
    values = effective.model_dump(mode="json")
    if as_json:
        more = {"preset": {**chosen.model_dump(mode="json"), "digest": chosen.digest}} if chosen else {}
        click.echo(json.dumps({**values, "trial_digest": effective.trial.digest, **more}, indent=2))
        return
    click.echo("\n".join(_toml(values)))
    click.echo(f"\n# digest of [trial]: {effective.trial.digest}")
    if chosen:
        click.echo(f"\n# preset {chosen.id}: {chosen.what}; digest {chosen.digest}")
        for value in chosen.values:
            click.echo(f"# {value.setting} = {json.dumps(value.value)} ({value.source_words}): {value.why}")
        for other in chosen.others:
            click.echo(f"# {other.thing}: {other.paper}. Here: {other.here}.")


def _toml_value(value: Any) -> str:
    # As it stands: TOML knows no pairs of surrogates, as JSON in ASCII writes characters such as emoji.
    return json.dumps(value, ensure_ascii=False)


def _toml(values: dict[str, Any], table: str = "") -> list[str]:
    """The values as TOML; what is not set is a comment, for TOML has no word for it."""
    tables = {name: value for name, value in values.items() if _is_tables(value)}
    # Plain values come before all tables: below a head, TOML would take them for values of that table.
    plain = {name: value for name, value in values.items() if not isinstance(value, dict) and name not in tables}
    lines = [f"[{table}]"] if table and plain else []
    lines += [f"# {name} =" if value is None else f"{name} = {_toml_value(value)}" for name, value in plain.items()]
    before = f"{table}." if table else ""
    for name, value in values.items():
        if isinstance(value, dict):
            inner = _toml(value, before + (name if _BARE.fullmatch(name) else _toml_value(name)))
            lines += ["", *inner] if inner else []
    for name, value in tables.items():
        for each in value:
            lines += ["", f"[[{before}{name}]]", *_toml(each)]
    return lines


def _example() -> Iterator[str]:
    """Lines of a file of settings in which everything is explained, and nothing set."""
    yield "# Settings of MemeCourt, each with its default. Remove the # in front of a name to change it."
    yield from _explained(Settings, "")
    for field, table, lead in _OPTIONAL:
        yield f"\n# {lead}\n# {table}"
        yield from _explained(field, "")
    yield "\n# The same for one role, which goes before those of all roles:"
    yield from (f"# [llm.roles.{role}]" for role in get_args(RoleName))


def _explained(model: type[BaseModel], table: str) -> Iterator[str]:
    docs = attribute_docs(model)
    tables = {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    if table:
        yield f"\n[{table}]"
    for name, field in model.model_fields.items():
        if name in tables or (model, name) in _SHOWN_APART:
            continue
        words = _MARKUP.sub(lambda match: match[1] or match[2], " ".join(docs.get(name, "").split()))
        words += " Required." if field.is_required() else ""
        yield "\n" + "\n".join(textwrap.wrap(words, 100, initial_indent="# ", subsequent_indent="# "))
        # A default that is worked out differs between machines.
        worked_out = field.default_factory or field.is_required()
        default = None if worked_out else json.loads(json.dumps(field.default, default=_as_written))
        yield f"# {name} =" if default is None else f"# {name} = {json.dumps(default)}"
    for name, below in tables.items():
        yield from _explained(below, f"{table}.{name}" if table else name)


def _as_written(value: object) -> str:
    return str(value) if isinstance(value, Path) else str(getattr(value, "value", value))


def attribute_docs(model: type[BaseModel]) -> dict[str, str]:
    """Sentences under the attributes of a class and of those it inherits from, by attribute."""
    docs: dict[str, str] = {}
    # Base classes first, so that what a subclass says of the same attribute replaces it.
    for each in reversed(model.__mro__):
        if not issubclass(each, BaseModel) or each is BaseModel:
            continue
        # From the source: Python drops texts that stand below attributes.
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for one, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
                docs[one.target.id] = str(ast.literal_eval(after.value))
    return docs


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
