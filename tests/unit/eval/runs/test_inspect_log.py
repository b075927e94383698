"""Runs exported as logs of Inspect AI, read back with Inspect AI itself."""

import asyncio

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.runs.results import DOCKET, PREDICTIONS, RunFolder, read_results
from eval.scores.metrics import task_card
from serving.docket.open import Docket
from tests.support.judged import H, N, results
from tests.support.report_runs import write_report_run

KINDS = {"Described", "QuestionAsked", "AnswerGiven"}
"""Kinds of events that are exactly one model call."""


@pytest.fixture(scope="module", autouse=True)
def inspect_log():
    """Inspect AI's log reader. Imported here because that takes a second, and every worker collects every file."""
    return pytest.importorskip("inspect_ai.log", reason="needs the extra inspect")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_report_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def log(run, inspect_log, tmp_path_factory):
    target = tmp_path_factory.mktemp("logs") / "run.eval"
    outcome = CliRunner().invoke(cli, ["export", str(run), "--inspect", str(target)])
    assert outcome.exit_code == 0, outcome.output
    assert f"{len(read_results(run).judged)} samples" in outcome.output
    return inspect_log.read_eval_log(str(target))


def records(run):
    async def read():
        docket = Docket.open(run / DOCKET, create=False)
        try:
            predictions = [one.prediction for one in read_results(run).judged if one.prediction.trial]
            return {one.meme: await docket.trials.record(one.trial) for one in predictions}
        finally:
            await docket.close()

    return asyncio.run(read())


def test_every_meme_is_a_sample_with_gold_label_and_prediction(run, log):
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


def test_figures_match_those_of_the_report(run, log):
    ours = read_results(run)
    for score in log.results.scores:
        found = task_card(ours, next(p for p in ours.protocols if p == score.name))
        for name in ("accuracy", "macro-f1", "coverage"):
            assert score.metrics[name].value == found.known(name).value
    assert [score.name for score in log.results.scores] == [str(p) for p in ours.protocols]


def test_transcript_contains_every_event_of_a_trial_in_order(run, log):
    records_by_meme = records(run)
    for sample in log.samples:
        if sample.id not in records_by_meme:
            assert sample.events == []
            continue
        record = records_by_meme[sample.id]
        assert [event.uuid for event in sample.events] == [f"{record.trial_id}/{event.seq}" for event in record.events]
        for ours, theirs in zip(record.events, sample.events, strict=True):
            if ours.kind in KINDS:
                assert theirs.event == "model"
                assert theirs.output.usage.output_tokens == ours.call.tokens_out
                assert str(ours.call.role).lower() == theirs.role


def test_tokens_are_counted_once(run, log):
    records_by_meme = records(run)
    assert any(record.calls for record in records_by_meme.values())
    for sample in log.samples:
        if sample.id in records_by_meme:
            calls = [each.call for each in records_by_meme[sample.id].calls]
            assert sum(usage.input_tokens for usage in sample.model_usage.values()) == sum(c.tokens_in for c in calls)
            # The Judge's two calls belong to the verdict; every other call is an event of its own.
            own = [e.output.usage.input_tokens for e in sample.events if e.event == "model"]
            judged = [call.tokens_in for call in calls if call.role == "JUDGE"]
            assert sum(own) + sum(judged) == sum(call.tokens_in for call in calls)


def test_existing_log_is_not_overwritten(run, tmp_path):
    target = tmp_path / "run.json"
    target.write_text("mine")
    outcome = CliRunner().invoke(cli, ["export", str(run), "--inspect", str(target)])
    assert outcome.exit_code == 1
    assert "is there already" in outcome.output
    assert target.read_text() == "mine"


def test_other_file_extensions_are_refused(run, tmp_path):
    outcome = CliRunner().invoke(cli, ["export", str(run), "--inspect", str(tmp_path / "run.html")])
    assert outcome.exit_code == 1
    assert ".eval or .json" in outcome.output


def test_predictions_from_elsewhere_cannot_be_exported(tmp_path):
    from eval.reports.inspect_log import export_inspect

    with pytest.raises(BadRequest, match="elsewhere"):
        asyncio.run(export_inspect(results([True, False], [H, N]), None, tmp_path / "x.eval"))


def test_log_of_an_unfinished_run_is_marked_cancelled(run, inspect_log, tmp_path):
    import shutil

    unfinished = tmp_path / "run"
    shutil.copytree(run, unfinished)
    folder = RunFolder(unfinished)
    folder.write_manifest(folder.manifest().model_copy(update={"finished": None}))
    folder.write(PREDICTIONS, folder.predictions()[:1])
    target = tmp_path / "run.eval"
    assert CliRunner().invoke(cli, ["export", str(unfinished), "--inspect", str(target)]).exit_code == 0
    log = inspect_log.read_eval_log(str(target))
    assert log.status == "cancelled"
    assert sum(sample.error is not None for sample in log.samples) >= len(log.samples) - 1
