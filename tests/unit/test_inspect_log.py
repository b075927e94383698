"""A run as a log of Inspect AI, read back by Inspect AI itself."""

import asyncio

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.runs.folder import DOCKET, RunFolder
from eval.runs.from_record import calls_of
from eval.runs.results import read_results
from eval.scores.metrics import card
from serving.docket.open import Docket
from tests.support.judged import H, N, results
from tests.support.report_runs import a_run

KINDS = {"Described", "QuestionAsked", "AnswerGiven"}
"""Of our events, those that are a call of a model and nothing else."""


@pytest.fixture(scope="module", autouse=True)
def inspect_log():
    """Inspect AI's reader of logs. Imported here, since that takes a second, and each worker collects each file."""
    return pytest.importorskip("inspect_ai.log", reason="needs the extra inspect")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def log(run, inspect_log, tmp_path_factory):
    target = tmp_path_factory.mktemp("logs") / "run.eval"
    told = CliRunner().invoke(cli, ["export", str(run), "--inspect", str(target)])
    assert told.exit_code == 0, told.output
    assert f"{len(read_results(run).judged)} samples" in told.output
    return inspect_log.read_eval_log(str(target))


def records(run):
    async def read():
        docket = Docket.open(run / DOCKET, create=False)
        try:
            said = [one.prediction for one in read_results(run).judged if one.prediction.trial]
            return {one.meme: await docket.trials.record(one.trial) for one in said}
        finally:
            await docket.close()

    return asyncio.run(read())


def test_every_meme_is_a_sample_with_its_gold_label_and_what_was_said(run, log):
    ours = read_results(run)
    assert [sample.id for sample in log.samples] == [one.meme.id for one in ours.judged]
    for sample, one in zip(log.samples, ours.judged, strict=True):
        assert sample.target == ("HARMFUL" if one.meme.harmful else "NOT_HARMFUL")
        assert sample.metadata["prediction"] == one.prediction.model_dump(mode="json")
        gold = {str(protocol): one.meme.gold(protocol) for protocol in ours.protocols}
        assert {name: score.value == "C" for name, score in sample.scores.items()} == {
            name: one.prediction.outcome.harmful is harmful for name, harmful in gold.items() if harmful is not None
        }
        assert (sample.error is not None) == (one.prediction.outcome == "FAILED")


def test_the_figures_are_those_of_the_report(run, log):
    ours = read_results(run)
    for score in log.results.scores:
        found = card(ours, next(p for p in ours.protocols if p == score.name))
        assert score.metrics["accuracy"].value == found.strict.accuracy.value
        assert score.metrics["macro_f1"].value == found.strict.macro_f1.value
        assert score.metrics["coverage"].value == found.coverage.value
    assert [score.name for score in log.results.scores] == [str(p) for p in ours.protocols]


def test_every_event_of_a_trial_stands_in_its_transcript_in_order(run, log):
    kept = records(run)
    for sample in log.samples:
        if sample.id not in kept:
            assert sample.events == []
            continue
        record = kept[sample.id]
        told = [event for event in sample.events if event.event not in ("span_begin", "span_end")]
        assert [event.uuid for event in told] == [f"{record.trial_id}/{event.seq}" for event in record.events]
        for ours, theirs in zip(record.events, told, strict=True):
            if ours.kind in KINDS:
                assert theirs.event == "model"
                assert theirs.output.usage.output_tokens == ours.call.tokens_out
                assert str(ours.call.role).lower() == theirs.role
        begun = {event.id for event in sample.events if event.event == "span_begin"}
        assert begun == {event.id for event in sample.events if event.event == "span_end"}


def test_tokens_are_counted_once(run, log):
    kept = records(run)
    assert any(calls_of(record) for record in kept.values())
    for sample in log.samples:
        if sample.id in kept:
            calls = [call for call, _ in calls_of(kept[sample.id])]
            assert sum(usage.input_tokens for usage in sample.model_usage.values()) == sum(c.tokens_in for c in calls)
            # The Judge's two calls stand in the verdict; every other one is an event of its own.
            own = [e.output.usage.input_tokens for e in sample.events if e.event == "model"]
            judged = [call.tokens_in for call in calls if call.role == "JUDGE"]
            assert sum(own) + sum(judged) == sum(call.tokens_in for call in calls)


def test_a_log_that_is_there_is_not_written_over(run, tmp_path):
    target = tmp_path / "run.json"
    target.write_text("mine")
    told = CliRunner().invoke(cli, ["export", str(run), "--inspect", str(target)])
    assert told.exit_code == 1
    assert "is there already" in told.output
    assert target.read_text() == "mine"


def test_other_names_are_refused(run, tmp_path):
    told = CliRunner().invoke(cli, ["export", str(run), "--inspect", str(tmp_path / "run.html")])
    assert told.exit_code == 1
    assert ".eval or .json" in told.output


def test_predictions_from_elsewhere_have_no_transcripts(tmp_path):
    from eval.reports.inspect_log import export_inspect

    with pytest.raises(BadRequest, match="elsewhere"):
        asyncio.run(export_inspect(results([True, False], [H, N]), None, tmp_path / "x.eval"))


def test_a_run_that_is_not_finished_says_so(run, inspect_log, tmp_path):
    import shutil

    begun = tmp_path / "run"
    shutil.copytree(run, begun)
    folder = RunFolder(begun)
    folder.write_manifest(folder.manifest().model_copy(update={"finished": None}))
    folder.write_predictions(folder.predictions()[:1])
    target = tmp_path / "run.eval"
    assert CliRunner().invoke(cli, ["export", str(begun), "--inspect", str(target)]).exit_code == 0
    log = inspect_log.read_eval_log(str(target))
    assert log.status == "cancelled"
    assert sum(sample.error is not None for sample in log.samples) >= len(log.samples) - 1
