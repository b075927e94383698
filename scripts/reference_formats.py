"""The reference page of file formats, made of the classes that read and write them.

A row is a field, in the order of its class; ``a[].b`` is the field ``b`` of each item of the list ``a``.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, get_args

import pyarrow
from pydantic import BaseModel, TypeAdapter

from court.audition import Audition
from court.policy import Policy
from court.question import CourtQuestion
from eval.arena import folder as arena_folder
from eval.arena.settings import ArenaSettings
from eval.datasets.card import DatasetCard
from eval.datasets.claims import read_claims
from eval.datasets.items import JudgedMeme, Prediction
from eval.models.metered import ModelSpec
from eval.probe import folder as probe_folder
from eval.reports.parquet import write_parquet
from eval.runs import results as run_results
from eval.studies.arms import StudyManifest
from retrieval.facts.corpus import CorpusManifest
from retrieval.facts.documents import FactDocument
from retrieval.library.changes import Change
from retrieval.library.manifest import LabelledMeme, Manifest
from retrieval.library.sources import SourceFormat
from scripts.reference_api import cell, prose
from serving.access.tokens import Entry as Token
from serving.cli.settings import attribute_docs
from serving.docket.audit import audit
from serving.docket.backup import Backup
from serving.docket.log import entries
from serving.export import dsa, source, tables, transparency

_EVENTS = "events.md"

# File, what it is for, and the classes whose fields it has. A class in another row is named there and not repeated.
FORMATS: tuple[tuple[str, str, str, tuple[type[BaseModel], ...]], ...] = (
    ("Policies", "`policy.toml`", "What counts as harm: `--policy`, `memecourt policy check`.", (Policy,)),
    ("Policies", "`question.toml`", "A question for the Judge: `--question`.", (CourtQuestion,)),
    ("Access", "`tokens.toml`", "A table `[[token]]` for each; `memecourt tokens` writes it.", (Token,)),
    ("Docket", "`backup.json`", "Beside the copy that `memecourt docket backup` makes.", (Backup,)),
    (
        "Docket",
        "Entries of the log",
        "Beside the [events](events.md) of trials.",
        (entries.PictureShown, entries.Erased, entries.PrecedentChanged, entries.KeyRotated, entries.SampleCommitted),
    ),
    ("Libraries", "`manifest.json` of a library", "A generation: counts, calibration, files.", (Manifest,)),
    ("Libraries", "A labelled meme", "A row of `memes.sqlite`, and of the database.", (LabelledMeme,)),
    ("Libraries", "A change", "What `memecourt precedents history` lists.", (Change,)),
    ("Libraries", "A document of evidence", "A line of `facts build FILE.jsonl`, and of a corpus.", (FactDocument,)),
    ("Libraries", "`manifest.json` of a corpus", "What `memecourt facts show` prints.", (CorpusManifest,)),
    ("Measuring", "Data-set card", "A TOML file: [how to write one](../datasets.md).", (DatasetCard,)),
    ("Measuring", "`audition.json`", "Calibration of full trials: `--audition`.", (Audition,)),
    ("Measuring", "`manifest.json` of a run", "What must be the same to repeat it.", (run_results.RunManifest,)),
    ("Measuring", "`memes.jsonl`", "A line a judged meme.", (JudgedMeme,)),
    ("Measuring", "`excluded.jsonl`", "A line a precedent that was left out.", (run_results.Excluded,)),
    ("Measuring", "`predictions.jsonl`", "A line a prediction.", (Prediction,)),
    ("Measuring", "`study.json`", "The description of an ablation.", (StudyManifest,)),
    ("Models", "`[models.NAME]`", "A model of a file of models (`--models`).", (ModelSpec,)),
    ("Models", "`[arena]`", "Settings of an arena, in the same file.", (ArenaSettings,)),
    ("Models", "`tasks.jsonl`", "Questions for an arena (`--tasks`).", (arena_folder.FixedTask,)),
    ("Models", "`references.jsonl`", "Answers by people (`--references`).", (arena_folder.HumanReference,)),
    ("Models", "`memes.jsonl` of a probe", "Its memes.", (probe_folder.ProbedMeme,)),
    ("Models", "`mined.jsonl`", "Kinds of harm of each meme.", (probe_folder.Mined,)),
    ("Models", "`scored.jsonl`", "Explanations and their scores.", (probe_folder.Scored,)),
    ("Models", "`rewritten.jsonl`", "Steps of the refinement.", (probe_folder.Step,)),
)
# Modules that begin with a table of the files of a folder.
_FOLDERS: tuple[tuple[str, ModuleType], ...] = (
    ("A run", run_results),
    ("An arena", arena_folder),
    ("A probe", probe_folder),
)


def formats() -> Iterator[str]:
    """Yields the page, part by part."""
    yield (
        "# File formats\n\nFiles that people write or read, by the classes of the code. JSON and TOML have the same "
        "fields; `.jsonl` is one object a line. `a[].b` is the field `b` of each item of the list `a`.\n"
    )
    yield from _labelled()
    yield from _folders()
    topic = ""
    for section, title, about, models in FORMATS:
        if section != topic:
            topic = section
            yield f"\n## {topic}\n"
            yield from _WRITTEN.get(topic, lambda: ())()
        yield f"\n### {title}\n\n{about}\n"
        for model in models:
            if len(models) > 1:
                yield f"\n**`{model.__name__}`**: {prose(inspect.cleandoc(model.__doc__ or ''))}\n"
            yield "\n| field | kind | default | |\n|---|---|---|---|\n"
            yield from _rows(model, "", {one for *_, others in FORMATS for one in others} - {model})


def _rows(model: type[BaseModel], prefix: str, elsewhere: set[type[BaseModel]]) -> Iterator[str]:
    described = attribute_docs(model)
    for name, field in model.model_fields.items():
        # Set by the program in what it reads, and stored nowhere.
        if "set by the program" in described.get(name, "").lower():
            continue
        default = "" if field.is_required() or field.default_factory else _value(field.default)
        needed = " (required)" if field.is_required() else ""
        below = _model_in(field.annotation)
        kind = _kind(TypeAdapter(field.annotation).json_schema())
        yield f"| `{prefix}{name}` | {kind}{needed} | {default} | {cell(described.get(name, ''))} |\n"
        if below is not None and below not in elsewhere:
            sign = "[]" if kind.startswith("list") else ".NAME" if kind.startswith("table of") else ""
            yield from _rows(below, f"{prefix}{name}{sign}.", elsewhere | {below})


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The class of the values of a field, if it is one of ours."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [one for part in get_args(annotation) if (one := _model_in(part)) is not None]
    # Of a union of classes none stands for all.
    return found[0] if len(set(found)) == 1 else None


def _kind(schema: dict[str, Any]) -> str:
    """The kind of a value in words, from its JSON schema."""
    if "$ref" in schema:
        return _kind({**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]})
    beside = {"$defs": schema.get("$defs", {})}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [_kind({**part, **beside}) for part in schema[key]]
            return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    for key in ("enum", "const"):
        if key in schema:
            values = schema[key] if key == "enum" else [schema[key]]
            return ", ".join(f"`{value}`" for value in values if value != "") or "empty"
    kind = schema.get("type", "")
    if kind == "array":
        inner = _kind({**schema.get("items", {}), **beside})
        return f"list of {inner}" if inner else "list"
    if kind == "string":
        return {"date-time": "time", "path": "path"}.get(schema.get("format", ""), "text")
    if isinstance(schema.get("additionalProperties"), dict):
        return f"table of {_kind({**schema['additionalProperties'], **beside}) or 'anything'}"
    return {"object": "table", "boolean": "true or false", "integer": "whole number"}.get(kind, kind)


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value in (None, "", (), {}) or isinstance(value, BaseModel | tuple | dict):
        return ""
    return f"`{json.dumps(value, default=str)}`"


def _labelled() -> Iterator[str]:
    yield ("\n## Labelled memes\n\nLayouts that `memecourt precedents build` recognises.\n\n| layout | |\n|---|---|\n")
    for name, text in member_docs(SourceFormat):
        yield f"| `{name}` | {cell(text)} |\n"
    claims = textwrap.dedent((read_claims.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0])
    yield f"\nClaims of known truth for `memecourt-eval witness`, one a line:\n\n```text\n{claims}\n```\n"


def _folders() -> Iterator[str]:
    yield "\n## Folders\n"
    for name, module in _FOLDERS:
        yield f"\n### {name}\n\n| file | |\n|---|---|\n"
        for file, text in re.findall(r"^``(\S+?)`` +(\S.*)$", module.__doc__ or "", re.MULTILINE):
            without_class = re.sub(r" *\(:(class|mod):`.*?`\)", "", text)
            yield f"| `{file}` | {cell(without_class)} |\n"


def _docket() -> Iterator[str]:
    yield "\n### A record, `records export --as json`\n\n"
    yield f"`{source.FORMAT}`; `jsonl` has one a line. Keys: {_keys(source.document)}. {_LIST_OF_EVENTS}\n"
    yield f"\n### A bundle, `docket bundle`\n\n`{audit.FORMAT}`. Keys: {_keys(audit.bundle, 'value')}.\n\n"
    yield f"Each of `entries` and `parts` has {_keys(audit.bundle, 'return')}.\n"
    yield f"\n### A draft of a statement of reasons, `records export --as dsa`\n\n`{dsa.FORMAT}`. Keys: "
    yield f"{_keys(dsa.draft, 'return')}.\n"
    yield "\n### Many records, `records export --as csv` or `parquet`\n\nA row a trial; `events` in Parquet alone.\n\n"
    yield "| column | kind |\n|---|---|\n"
    for column in tables.schema_of(pyarrow):
        yield f"| `{column.name}` | {column.type} |\n"
    columns = ", ".join(f"`{name}`" for name in transparency.COLUMNS)
    yield f"\n### `report transparency`\n\nEach CSV file has the columns {columns}.\n"


def _measuring() -> Iterator[str]:
    about = _cut(write_parquet.__doc__ or "")
    yield f"\n### `memecourt-eval export --parquet`\n\n{about}\n"


_LIST_OF_EVENTS = f"`events` are [those of the trial]({_EVENTS}), and the others derive from them."
_WRITTEN = {"Docket": _docket, "Measuring": _measuring}


def member_docs(kind: type[Enum]) -> Iterator[tuple[str, str]]:
    """Yields value and text of each member of an enum; the texts stand below the members in the source alone."""
    (body,) = (one.body for one in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if hasattr(one, "body"))
    for place, node in enumerate(body):
        if isinstance(node, ast.Assign):
            after = body[place + 1] if place + 1 < len(body) else None
            yield ast.literal_eval(node.value), ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""


def _keys(function: Any, where: str = "") -> str:
    """Keys of the object that a function makes: assigned to a name, returned last, or the first that there is."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    if where == "return":
        made = [one.value for one in ast.walk(tree) if isinstance(one, ast.Return) and isinstance(one.value, ast.Dict)]
    elif where:
        made = [
            one.value
            for one in ast.walk(tree)
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == where and isinstance(one.value, ast.Dict)
        ]
    return ", ".join(f"`{ast.literal_eval(key)}`" for key in made[0].keys if key is not None)


def _cut(docstring: str) -> str:
    """A docstring as Markdown, without its sections for programmers."""
    return prose(re.split(r"\n(?:Args|Raises|Returns)\b|(?<=\.) Raises ", inspect.cleandoc(docstring))[0].strip())
