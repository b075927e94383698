"""The reference pages of the documentation, made of the code: commands, settings, events, metrics, files, interfaces.

They are made anew for each build of the site (``scripts/docs_site.py``), so that they can't go stale.
"""

from __future__ import annotations

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
from eval.solvers.witness import Arm as WitnessArm
from eval.studies.arms import ARMS
from memecourt_queue.cli import main as queue_cli
from memecourt_queue.metrics import QueueMetrics
from scripts.reference_api import api_pages, cell
from scripts.reference_errors import errors
from scripts.reference_formats import formats, member_docs
from serving.cli.main import cli
from serving.cli.settings import attribute_docs
from serving.models.presets import PRESETS
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
        "formats.md": "".join(formats()),
        "errors.md": "".join(errors()),
        "models.md": "".join(_models()),
        "arms.md": "".join(_arms()),
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
    yield "# Metrics\n\nWhat to watch and when to be woken: [monitoring.md](../monitoring.md).\n"
    for title, registry in (("The court", Metrics(Settings()).registry), ("A consumer", QueueMetrics().registry)):
        yield f"\n## {title}\n\n| name | kind | labels | |\n|---|---|---|---|\n"
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
        "# Alerts\n\nThe rules of `deploy/prometheus`, and what to do at each; an alert carries the same as its "
        "`description`.\n\n| alert | how soon | after | | what to do |\n|---|---|---|---|---|\n"
    )
    for name in ("alerts.yml", "queue_alerts.yml"):
        rules = yaml.safe_load((_ROOT / "deploy" / "prometheus" / name).read_text("utf-8"))["groups"][0]["rules"]
        for rule in rules:
            soon = "now" if rule["labels"]["severity"] == "page" else "this week"
            annotations = rule["annotations"]
            summary = cell(re.sub(r"\{\{.*?\}\}", "…", annotations["summary"]))
            after = rule.get("for", "at once")
            yield f"| `{rule['alert']}` | {soon} | {after} | {summary} | {cell(annotations['description'])} |\n"


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
    for name, text in member_docs(verdict.ReviewReason):
        yield f"| `{name}` | {cell(text)} |\n"


def _models() -> Iterator[str]:
    yield (
        "# Models with a preset\n\n`memecourt vllm --preset NAME`, `memecourt serve --vllm NAME`. Memory of a GPU is "
        "computed for the weights in bfloat16 and one prompt of full length; more holds more trials at once. How many "
        "memes an hour, and at which cost: [sizing.md](../sizing.md).\n\n"
        "| preset | model | weights | GPU memory, GiB | each of two, GiB | context |\n|---|---|--:|--:|--:|--:|\n"
    )
    for one in PRESETS.values():
        memory = f"{one.memory_gib():.1f} | {one.memory_gib(2):.1f}"
        yield f"| `{one.name}` | `{one.model}` | {one.weights / 1e9:.1f} billion | {memory} | {one.context:,} |\n"


def _arms() -> Iterator[str]:
    yield (
        "# Arms of a study\n\nWhat `memecourt-eval ablate --arms NAME,NAME` alters, and `memecourt-eval witness "
        "--arm NAME`. How to use them: [studies.md](../studies.md), [witness.md](../witness.md).\n\n"
        "| arm | |\n|---|---|\n"
    )
    for arm in ARMS.values():
        yield f"| `{arm.name}` | {cell(arm.what)} |\n"
    yield "\n## Of the expert witness\n\n| arm | |\n|---|---|\n"
    for name, text in member_docs(WitnessArm):
        yield f"| `{name}` | {cell(text)} |\n"


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return "~/…" if value.is_absolute() else str(value)
    return json.dumps(value, default=str)
