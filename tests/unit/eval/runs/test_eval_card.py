"""Evaluation cards: contents for runs of trials and of questions, as Markdown and as an HTML page."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard

from eval.cli import cli
from eval.reports.eval_card import eval_card
from eval.runs.results import RunFolder, RunManifest, read_results
from eval.scores.metrics import card
from eval.scores.task_card import task_card
from tests.support.report_runs import write_report_run
from tests.support.task_card import CARD, PAIRS, QUESTION, results


def card_of(run_results):
    return asyncio.run(eval_card(run_results))


def section(page, key):
    return next(one for one in page.sections if one.key == key)


def notes(page):
    return [note for one in page.sections for note in one.notes]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_report_run(tmp_path_factory.mktemp("run") / "run")


def test_trial_run_card_compares_figures_with_a_constant_answer_and_published_ones(run):
    run_results = read_results(run)
    page = card_of(run_results)
    scored = card(run_results, run_results.protocols[0], resamples=100)
    rows = {row[0]: row for row in section(page, "verdicts-merged").rows}
    assert rows["accuracy"][1].startswith(f"{scored.strict.accuracy.value:.3f} [")
    assert rows["accuracy"][2] == f"{scored.majority:.3f}"
    assert rows["AUROC"][2] == "0.500" and rows["ECE"][2] == "–"
    systems = [row[0] for row in section(page, "published").rows]
    assert "RGCL (2023)" in systems and "LoReHM (GPT-4o) (2024)" in systems
    assert "On this data set: 21 of 251 memes of the test split are harmful under the protocol extreme." in notes(page)
    assert "The card names no languages, so that it is not known of which these figures hold." in notes(page)
    facts = dict(section(page, "repeat").rows)
    manifest = run_results.manifest
    assert facts["settings"] == manifest.settings_digest and facts["labelled memes"] == manifest.library
    assert page.lead == ()


def test_card_metadata_is_readable_by_the_hub_and_foreign_names_are_escaped(run):
    run_results = replace(read_results(run), name="<b>| [x](y) *z*\n---")
    content = card_of(run_results).as_markdown()
    hub = ModelCard(content)
    (first, *_) = hub.data.eval_results
    assert (first.task_name, first.dataset_type, first.dataset_split) == ("harm", "harm-c", "test")
    by_name = {one.metric_name: one.metric_value for one in hub.data.eval_results}
    accuracy = card(run_results, run_results.protocols[0], resamples=10).strict.accuracy.value
    assert by_name["accuracy (merged)"] == round(accuracy, 4)
    assert {one.metric_type for one in hub.data.eval_results} >= {"accuracy", "macro-f1", "auroc"}
    body = content.partition("\n---\n")[2]
    assert body.lstrip().startswith("# Evaluation of &lt;b&gt;\\| \\[x\\](y) \\*z\\*")
    assert "<b>" not in body and "&lt;b&gt;" in body


def test_card_states_unfinished_runs_control_experiments_and_single_languages(run):
    manifest = RunFolder(run).manifest()
    run_results = read_results(run)
    changed = replace(
        run_results,
        manifest=manifest.model_copy(update={"finished": None, "control": "swapped sides", "text_only": True}),
        judged=tuple(replace(one, meme=one.meme.model_copy(update={"language": "de"})) for one in run_results.judged),
    )
    page = card_of(changed)
    assert page.lead == ("NOT FINISHED: these figures will change.",)
    for sentence in (
        "All memes are in one language (de): nothing is known of others.",
        "Memes were judged by their texts, without pictures.",
        "The court was altered as a control (swapped sides), and is not served so.",
    ):
        assert sentence in notes(page)
    two = replace(
        run_results,
        judged=tuple(
            replace(one, meme=one.meme.model_copy(update={"language": ("de", "hi")[place % 2]}))
            for place, one in enumerate(run_results.judged)
        ),
    )
    rows = section(card_of(two), "by-1").rows
    assert [row[:2] for row in rows[1:]] == [(tag, how) for tag in ("de", "hi") for how in ("merged", "extreme")]


def test_question_run_card_has_the_authors_metrics_and_published_figures():
    run_results = results(PAIRS)
    fields = RunManifest.model_fields
    known = {"finished": None, "created": datetime(2026, 1, 2, tzinfo=UTC), "card": CARD, "question": QUESTION}
    blank = {name: "" for name, field in fields.items() if field.annotation is str}
    blank |= {"models": {"judge": "a-model"}, "excluded": {}, "data": {}, "library_size": 0, "limit": 4, "seed": 3}
    run_results = replace(run_results, manifest=RunManifest.model_construct(**(blank | known | {"dataset": "d"})))
    page = card_of(run_results)
    figures = section(page, "task-1-figures-0").rows
    value = task_card(run_results, resamples=100).figures["accuracy"].value
    assert any(row[0] == "accuracy" and row[1].startswith(f"{value:.3f}") for row in figures)
    assert section(page, "task-1-published").rows[2][0] == "A (2024)"
    facts = dict(section(page, "data").rows)
    assert facts["gold labels"] == "12 for, 8 against, 2 neither" and facts["memes"] == "22, a sample (seed 3)"
    assert dict(section(page, "system").rows)["models"] == "judge a-model"
    assert "2 of 22 memes have no answer, and count as wrong." in notes(page)
    assert "On this data set: they are few." in notes(page)
    assert "stance" in page.metadata["model-index"][0]["results"][0]["task"]["name"]


def test_command_writes_the_card_as_markdown_and_html(run, tmp_path):
    for name, begins in (("card.md", "---\n"), ("card.html", "<!DOCTYPE html>")):
        outcome = CliRunner().invoke(cli, ["export", str(run), "--eval-card", str(tmp_path / name)])
        assert outcome.exit_code == 0 and "is the card of the evaluation" in outcome.output, outcome.output
        assert (tmp_path / name).read_text().startswith(begins)
    assert "Name a form" in CliRunner().invoke(cli, ["export", str(run)]).output
    away = CliRunner().invoke(cli, ["export", str(run), "--eval-card", str(tmp_path / "no" / "card.md")])
    assert away.exit_code == 1 and "can't be written" in away.output
