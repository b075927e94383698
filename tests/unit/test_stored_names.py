"""Tests that pin, by golden files, the names that files, clients, scripts and dashboards of earlier versions rely on.

A removed or changed line breaks somebody's docket, library, run folder, settings, script or alert; an added line breaks
nobody. `pytest --write-golden` rewrites the files, and the diff is reviewed for that.
"""

import ast
import asyncio
import json
import re
import sqlite3
from contextlib import closing

import pytest
from pydantic import TypeAdapter

from court.events import EVENT_KINDS, AnyEvent
from court.policy import Policy
from court.ports import ChatReply, Odds
from eval.arena import events as arena_events
from eval.arena import folder as arena_folder
from eval.arena.settings import ArenaSettings
from eval.datasets.items import JudgedMeme, Prediction
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import ModelSpec
from eval.probe import folder as probe_folder
from eval.probe.agents import Category
from eval.runs.precedents import PreparedCheck
from eval.runs.results import Excluded, RunManifest
from eval.session.directory import Spent
from eval.studies.arms import StudyManifest
from retrieval.library.changes import Change
from retrieval.library.manifest import Counts, LabelledMeme, Manifest
from retrieval.library.meme_table import MemeWriter
from retrieval.library.postgres.schema import About
from serving.access.tokens import _File
from serving.docket.log.entries import Erased, KeyRotated, PictureShown, PrecedentChanged, SampleCommitted
from serving.docket.open import Docket
from serving.models.vllm import VllmSettings
from serving.settings import Settings
from serving.telemetry.metrics import Metrics
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "stored_names"

# The keys belong to this test: classes may be renamed, but not what they store.
SCHEMAS = {
    "events": {"event of a trial": AnyEvent},
    "docket": {
        "entry PictureShown": PictureShown,
        "entry Erased": Erased,
        "entry PrecedentChanged": PrecedentChanged,
        "entry KeyRotated": KeyRotated,
        "entry SampleCommitted": SampleCommitted,
    },
    "library": {
        "manifest.json": Manifest,
        "meme": LabelledMeme,
        "change": Change,
        "PostgreSQL: about": About,
        "PostgreSQL: counts": Counts,
    },
    "run": {
        "manifest.json": RunManifest,
        "excluded": Excluded,
        "meme": JudgedMeme,
        "prediction": Prediction,
        "prepared precedents": PreparedCheck,
        "study.json": StudyManifest,
        "cached reply": ChatReply,
        "cached odds": Odds,
    },
    "arena": {
        "manifest.json": arena_folder.ArenaManifest,
        "event": arena_events.Event,
        "spent": Spent,
        "settings": ArenaSettings,
    },
    "probe": {
        "manifest.json": probe_folder.ProbeManifest,
        "meme": probe_folder.ProbedMeme,
        "proposal": probe_folder.Proposal,
        "mined": probe_folder.Mined,
        "scored": probe_folder.Scored,
        "step": probe_folder.Step,
        "category": Category,
    },
    "settings": {
        "settings": Settings,
        "vLLM": VllmSettings,
        "tokens file": _File,
        "policy": Policy,
        "model of memecourt-eval": ModelSpec,
    },
}


def inlined(schema, definitions=None):
    """The schema without names and descriptions of classes; references are replaced by what they refer to."""
    if isinstance(schema, list):
        return [inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", definitions)
    if "$ref" in schema:
        return inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    plain = {}
    for key, value in schema.items():
        if key == "properties":  # names of fields, which may themselves be "title"
            plain[key] = {name: inlined(field, definitions) for name, field in value.items()}
        elif key in ("anyOf", "oneOf"):
            plain[key] = sorted((inlined(part, definitions) for part in value), key=json.dumps)
        elif key in ("enum", "required"):
            plain[key] = sorted(value)
        elif key not in ("title", "description", "discriminator", "$defs"):
            plain[key] = inlined(value, definitions)
    return plain


def lines_of(schema, place=""):
    """A line for each field: its path and its permitted values."""
    fields, inner = schema.get("properties"), {key: value for key, value in schema.items() if key != "properties"}
    required = inner.pop("required", [])
    for key in ("anyOf", "oneOf"):
        if any("properties" in part for part in inner.get(key, [])):
            for part in inner.pop(key):
                kind = part.get("properties", {}).get("kind", {}).get("const", "")
                yield from lines_of(part, f"{place}<{kind}>" if kind else place)
    for key, sign in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(inner.get(key), dict):
            yield from lines_of(inner.pop(key), place + sign)
    if inner:
        yield f"{place or '.'}: {json.dumps(inner, sort_keys=True, ensure_ascii=False)}"
    for name, field in sorted((fields or {}).items()):
        yield from lines_of(field, f"{place}.{name}{'!' if name in required else ''}")


def schema_lines(models):
    for name, kind in models.items():
        yield f"# {name}"
        yield from sorted(set(lines_of(inlined(TypeAdapter(kind).json_schema()))))


def code_lines():
    """Upper-case names in the code: reasons of errors, values of enumerations, environment variables."""
    found = set()
    for folder in ("court", "retrieval", "serving", "eval"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.relative_to(ROOT).parts[:2] in {("eval", "perf"), ("eval", "standin")}:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                nodes = [node]
                if (isinstance(node, ast.keyword) and node.arg == "reason") or (
                    isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "default_reason"
                ):
                    nodes = list(ast.walk(node.value))
                    pattern = r"[A-Z][A-Z0-9_]+"
                else:
                    pattern = r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)+"
                found |= {
                    part.value
                    for part in nodes
                    if isinstance(part, ast.Constant)
                    and isinstance(part.value, str)
                    and re.fullmatch(pattern, part.value)
                }
    return sorted(found)


def metric_lines():
    registry = Metrics(Settings()).registry
    labels = {
        metric._name: metric._labelnames for metric in registry._collector_to_names if hasattr(metric, "_labelnames")
    }
    for family in registry.collect():
        if family.name.startswith("memecourt_"):
            yield f"{family.name} {family.type} {' '.join(labels.get(family.name, ()))}".rstrip()


def tables_of(path):
    """Columns of every table of a SQLite file, and the names of its indexes and triggers."""
    with closing(sqlite3.connect(path)) as connection:
        for kind, name in connection.execute(
            "SELECT type, name FROM sqlite_master ORDER BY type DESC, name"
        ).fetchall():
            if kind != "table":
                if not name.startswith("sqlite_autoindex"):
                    yield f"{kind} {name}"
                continue
            for _, column, type_, not_null, _, key in connection.execute(f'PRAGMA table_info("{name}")').fetchall():
                yield f"{name}.{column} {type_}{' NOT NULL' if not_null else ''}{' KEY' if key else ''}"


@pytest.fixture
def databases(tmp_path):
    asyncio.run(Docket.open(tmp_path / "docket.sqlite").close())
    asyncio.run(SqliteCallCache(tmp_path / "calls.sqlite").close())
    writer = MemeWriter(tmp_path / "memes.sqlite")
    writer.finish()
    return [tmp_path / f"{name}.sqlite" for name in ("docket", "memes", "calls")]


def check(name, lines, request):
    path, text = GOLDEN / f"{name}.txt", "".join(f"{line}\n" for line in lines)
    if request.config.getoption("--write-golden"):
        path.write_text(text)
    assert text.splitlines() == path.read_text().splitlines()


@pytest.mark.parametrize("family", SCHEMAS)
def test_stored_records_keep_their_fields(family, request):
    check(f"schema_{family}", schema_lines(SCHEMAS[family]), request)


def test_every_kind_of_event_is_in_the_union(request):
    kinds = {kind.model_fields["kind"].default for kind in EVENT_KINDS}
    check("event_kinds", sorted(kinds), request)


def test_codes_do_not_change(request):
    check("codes", code_lines(), request)


def test_metrics_keep_their_names_and_labels(request):
    check("metrics", metric_lines(), request)


def test_tables_keep_their_columns(request, databases):
    check("tables", [line for path in databases for line in (f"# {path.stem}", *tables_of(path))], request)
