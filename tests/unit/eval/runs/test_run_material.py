"""Tests of the memes of a run: fields are checked on the whole split, not on a sample, before any call."""

import json
from types import SimpleNamespace

import pytest

from court.errors import BadRequest
from court.events import Procedure
from eval.runs.judge import material_of
from eval.runs.plan import Plan
from eval.solvers.question import question_about
from serving.settings import Settings
from tests.support.cards import own_card


def material(tmp_path, rows, *inputs):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"id": "id", "text": "text", "picture": "image", "language": "lang"}
    card = own_card("jsonl", ["rows.jsonl"], fields=fields)
    plan = Plan(
        out=tmp_path / "run",
        name="run",
        dataset=card,
        data=tmp_path,
        split="all",
        procedure=Procedure.FULL,
        protocols=(),
        settings=Settings(),
        question=question_about(card.task("harm"), inputs=inputs),
    )
    return material_of(plan, SimpleNamespace(tell=print, tell_once=print))


def row(id_, **others):
    return {"id": id_, "text": "a pond", "image": f"{id_}.png", "label": 0} | others


def test_language_found_only_in_a_later_row_is_not_missing(tmp_path):
    # The first row has the text and a later one the language: both fields exist.
    found = material(tmp_path, [row("a", lang=""), row("b", lang="en")], "text", "language")
    assert [meme.language for meme in found.memes] == ["", "en"]
    with pytest.raises(BadRequest, match="No meme has a field language"):
        material(tmp_path, [row("a", lang=""), row("b", lang="")], "text", "language")
