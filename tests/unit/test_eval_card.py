"""Cards of evaluations: what they say of runs of trials and of questions, as Markdown and as a page."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard

from eval.cli import cli
from eval.reports.eval_card import eval_card
from eval.runs.folder import RunFolder, RunManifest
from eval.runs.results import read_results
from eval.scores.metrics import card
from eval.scores.task_card import task_card
from tests.support.report_runs import a_run
from tests.unit.test_task_card import CARD, PAIRS, QUESTION, results


def made(of):
    return asyncio.run(eval_card(of))


def section(of, key):
    return next(one for one in of.sections if one.key == key)


def notes(of):
    return [note for one in of.sections for note in one.notes]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("run") / "run")


def test_a_run_of_trials_has_its_figures_beside_a_constant_answer_and_those_of_others(run):
    of = read_results(run)
    page = made(of)
    scored = card(of, of.protocols[0], resamples=100)
    rows = {row[0]: row for row in section(page, "verdicts-merged").rows}
    assert rows["accuracy"][1].startswith(f"{scored.strict.accuracy.value:.3f} [")
    assert rows["accuracy"][2] == f"{scored.majority:.3f}"
    assert rows["AUROC"][2] == "0.500" and rows["ECE"][2] == "–"
    systems = [row[0] for row in section(page, "published").rows]
    assert "RGCL (2023)" in systems and "LoReHM (GPT-4o) (2024)" in systems
    assert "On this data set: 21 of 251 memes of the test split are harmful under the protocol extreme." in notes(page)
    assert "The card names no languages, so that it is not known of which these figures hold." in notes(page)
    facts = dict(section(page, "repeat").rows)
    manifest = of.manifest
    assert facts["settings"] == manifest.settings_digest and facts["labelled memes"] == manifest.library
    assert page.lead == ()


def test_the_hub_reads_the_metadata_and_names_of_strangers_stay_text(run):
    of = replace(read_results(run), name="<b>| [x](y) *z*\n---")
    content = made(of).as_markdown()
    hub = ModelCard(content)
    (first, *_) = hub.data.eval_results
    assert (first.task_name, first.dataset_type, first.dataset_split) == ("harm", "harm-c", "test")
    by_name = {one.metric_name: one.metric_value for one in hub.data.eval_results}
    accuracy = card(of, of.protocols[0], resamples=10).strict.accuracy.value
    assert by_name["accuracy (merged)"] == round(accuracy, 4)
    assert {one.metric_type for one in hub.data.eval_results} >= {"accuracy", "macro-f1", "auroc"}
    body = content.partition("\n---\n")[2]
    assert body.lstrip().startswith("# Evaluation of &lt;b&gt;\\| \\[x\\](y) \\*z\\*")
    assert "<b>" not in body and "&lt;b>" in body


def test_what_is_not_finished_altered_or_of_one_language_is_said(run):
    manifest = RunFolder(run).manifest()
    of = read_results(run)
    changed = replace(
        of,
        manifest=manifest.model_copy(update={"finished": None, "control": "swapped sides", "text_only": True}),
        judged=tuple(replace(one, meme=one.meme.model_copy(update={"language": "de"})) for one in of.judged),
    )
    page = made(changed)
    assert page.lead == ("NOT FINISHED: these figures will change.",)
    for sentence in (
        "All memes are in one language (de): nothing is known of others.",
        "Memes were judged by their texts, without pictures.",
        "The court was altered as a control (swapped sides), and is not served so.",
    ):
        assert sentence in notes(page)
    two = replace(
        of,
        judged=tuple(
            replace(one, meme=one.meme.model_copy(update={"language": ("de", "hi")[place % 2]}))
            for place, one in enumerate(of.judged)
        ),
    )
    rows = section(made(two), "by-1").rows
    assert [row[:2] for row in rows[1:]] == [(tag, how) for tag in ("de", "hi") for how in ("merged", "extreme")]


def test_a_run_that_asked_a_question_has_the_authors_metrics_and_published_figures():
    of = results(PAIRS)
    fields = RunManifest.model_fields
    known = {"finished": None, "created": datetime(2026, 1, 2, tzinfo=UTC), "card": CARD, "question": QUESTION}
    blank = {name: "" for name, field in fields.items() if field.annotation is str}
    blank |= {"models": {"judge": "a-model"}, "excluded": {}, "data": {}, "library_size": 0, "limit": 4, "seed": 3}
    of = replace(of, manifest=RunManifest.model_construct(**(blank | known | {"dataset": "d"})))
    page = made(of)
    figures = section(page, "task-1-figures-0").rows
    value = task_card(of, resamples=100).figures["accuracy"].value
    assert any(row[0] == "accuracy" and row[1].startswith(f"{value:.3f}") for row in figures)
    assert section(page, "task-1-published").rows[2][0] == "A (2024)"
    facts = dict(section(page, "data").rows)
    assert facts["gold labels"] == "12 for, 8 against, 2 neither" and facts["memes"] == "22, a sample (seed 3)"
    assert dict(section(page, "system").rows)["models"] == "judge a-model"
    assert "2 of 22 memes have no answer, and count as wrong." in notes(page)
    assert "On this data set: they are few." in notes(page)
    assert "stance" in page.metadata["model-index"][0]["results"][0]["task"]["name"]


def test_the_card_is_written_as_markdown_and_as_a_page(run, tmp_path):
    for name, begins in (("card.md", "---\n"), ("card.html", "<!DOCTYPE html>")):
        said = CliRunner().invoke(cli, ["export", str(run), "--eval-card", str(tmp_path / name)])
        assert said.exit_code == 0 and "is the card of the evaluation" in said.output, said.output
        assert (tmp_path / name).read_text().startswith(begins)
    assert "Name a form" in CliRunner().invoke(cli, ["export", str(run)]).output
    away = CliRunner().invoke(cli, ["export", str(run), "--eval-card", str(tmp_path / "no" / "card.md")])
    assert away.exit_code == 1 and "can't be written" in away.output
