"""The reference pages of the documentation, made of the code: commands, settings, events, metrics, alerts, interfaces.

They are made anew for each build of the site (``scripts/docs_site.py``), so that they can't go stale.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import BaseModel

from court import verdict
from court.events import EVENT_KINDS
from eval.cli import cli as eval_cli
from memecourt_queue.cli import main as queue_cli
from scripts.reference_api import api_pages, cell
from serving.cli.main import cli
from serving.cli.settings import attribute_docs
from serving.rest.operations import OPERATIONS
from serving.rpc.server import SCOPES
from serving.settings import Settings
from serving.telemetry.metrics import Metrics

_ROOT = Path(__file__).parent.parent
# Fixed, so that pages do not depend on the terminal in which they are built.
_WIDTH = 96


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {
        "commands.md": "".join(_commands()),
        "settings.md": "".join(_settings()),
        "events.md": "".join(_events()),
        "metrics.md": "".join(_metrics()),
        "alerts.md": "".join(_alerts()),
        "http.md": "".join(_http()),
        "reasons.md": "".join(_reasons()),
        **api_pages(),
    }


def _commands() -> Iterator[str]:
    yield "# Commands\n\nEach as it helps itself with `--help`.\n"
    for name, command in (("memecourt", cli), ("memecourt-eval", eval_cli), ("memecourt-queue", queue_cli)):
        context = click.Context(command, info_name=name, terminal_width=_WIDTH, **command.context_settings)
        yield from _command(command, context)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"\n## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, click.Context(below, parent=context, info_name=name, terminal_width=_WIDTH))


def _settings() -> Iterator[str]:
    yield (
        "# Settings\n\nIn the environment by these names, in a file of settings (`--config`, or `MEMECOURT_CONFIG`) "
        "by the same without `MEMECOURT_`, in small letters; two underscores stand for a table. How to choose them: "
        "[service.md](../service.md), [trials.md](../trials.md).\n\n| name | default | |\n|---|---|---|\n"
    )
    yield from _fields(Settings, "MEMECOURT_")


def _fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    described = attribute_docs(model)
    for name, field in model.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from _fields(below, f"{prefix}{name.upper()}__")
            continue
        # One that is worked out is told in words: it differs between machines.
        default = None if field.is_required() or field.default_factory else field.default
        shown = "" if default in (None, "", ()) else f"`{_plain(default)}`"
        yield f"| `{prefix}{name.upper()}` | {shown} | {cell(described.get(name, ''))} |\n"


def _events() -> Iterator[str]:
    yield (
        "# Events\n\nA trial's record is the list of its events: `memecourt records show ID --json`. Every event "
        "has `trial_id`, `seq` (counted from 0) and `at` besides.\n"
    )
    common = {"trial_id", "seq", "at", "kind"}
    for event in EVENT_KINDS:
        described = attribute_docs(event)
        yield f"\n## {event.model_fields['kind'].default}\n\n{inspect.cleandoc(event.__doc__ or '')}\n"
        rows = [name for name in event.model_fields if name not in common]
        if rows:
            yield "\n| field | |\n|---|---|\n"
        for name in rows:
            yield f"| `{name}` | {cell(described.get(name, ''))} |\n"


def _metrics() -> Iterator[str]:
    yield (
        "# Metrics\n\nWhat to watch and when to be woken: [monitoring.md](../monitoring.md).\n\n"
        "| name | kind | labels | |\n|---|---|---|---|\n"
    )
    registry = Metrics(Settings()).registry
    labels = {}
    for collector, names in registry._collector_to_names.items():
        labels |= dict.fromkeys(names, getattr(collector, "_labelnames", ()))
    families = {each.name: each for each in registry.collect() if each.name.startswith("memecourt_")}
    for name, family in sorted(families.items()):
        full = name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        labelled = ", ".join(f"`{label}`" for label in labels.get(full, ()))
        yield f"| `{full}` | {family.type} | {labelled} | {cell(family.documentation)} |\n"


def _alerts() -> Iterator[str]:
    yield (
        "# Alerts\n\nThe rules of `deploy/prometheus`; what to do at each: "
        "[operations.md](../operations.md#when-an-alert-fires), [queue.md](../queue.md#metrics-and-alerts).\n\n"
        "| alert | how soon | after | |\n|---|---|---|---|\n"
    )
    for name in ("alerts.yml", "queue_alerts.yml"):
        rules = yaml.safe_load((_ROOT / "deploy" / "prometheus" / name).read_text("utf-8"))["groups"][0]["rules"]
        for rule in rules:
            soon = "now" if rule["labels"]["severity"] == "page" else "this week"
            summary = cell(re.sub(r"\{\{.*?\}\}", "…", rule["annotations"]["summary"]))
            yield f"| `{rule['alert']}` | {soon} | {rule.get('for', 'at once')} | {summary} |\n"


def _http() -> Iterator[str]:
    yield (
        "# HTTP\n\nEach method has an address. How to call them: [http.md](../http.md); messages: [wire.md](wire.md). "
        "A server describes itself at `/v1/openapi.json`, and as a page at `/v1/docs`.\n\n"
        "| address | method | scope | |\n|---|---|---|---|\n"
    )
    for one in OPERATIONS:
        scope = SCOPES[f"/memecourt.v1.{one.service}/{one.method}"].value
        yield f"| `{one.verb} {one.path}` | `{one.service}.{one.method}` | `{scope}` | {cell(one.summary)} |\n"


def _reasons() -> Iterator[str]:
    yield (
        "# Reasons for a review\n\nWhy a person should look at a verdict (`reasons`), and signals that ask for nobody. "
        "What to do: [troubleshooting](../troubleshooting.md).\n\n| reason | |\n|---|---|\n"
    )
    # Texts below the members of an enum stand in the source alone.
    (body,) = (
        one.body
        for one in ast.parse(inspect.getsource(verdict)).body
        if isinstance(one, ast.ClassDef) and one.name == "ReviewReason"
    )
    for name, text in zip(body[1::2], body[2::2], strict=True):
        assert isinstance(name, ast.Assign) and isinstance(text, ast.Expr)
        yield f"| `{ast.literal_eval(name.value)}` | {cell(ast.literal_eval(text.value))} |\n"


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return "~/…" if value.is_absolute() else str(value)
    return json.dumps(value, default=str)
