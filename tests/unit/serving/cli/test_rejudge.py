"""Tests of rejudging: memes of stored trials are tried once more, each in a new trial that names the old one."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from court.policy import DEFAULT_POLICY
from court.record import TrialState
from court.verdict import Label
from serving.cli.main import cli
from serving.export.tables import Selection
from serving.judging.known import Findings, VerdictCache
from serving.judging.rejudge import RejudgeOutcome, Rejudging, rejudge_all
from tests.support.fakes import N, findings
from tests.support.reception import ASK, Finder, other, town, trials_in

__all__ = ["town"]

NEW = DEFAULT_POLICY.model_copy(update={"version": "2"})


def with_changes(runner, finder=None, **changes):
    """The same executor with another policy, or with the given changes."""
    executor = runner.executor
    court = replace(executor.court, **{"policy": NEW, **changes}, finder=finder or executor.court.finder)
    return replace(executor, court=court)


def cache_of(executor, settings):
    docket = executor.docket
    return VerdictCache(
        docket.verdict_keys, docket.trials, executor.court_of, settings=settings, findings=Findings(docket.findings)
    )


async def rejudge_trials(executor, settings, at_once=3):
    known = cache_of(executor, settings)
    selection = Selection(executor.docket.index, executor.docket.trials)
    rejudging = Rejudging(executor, known, within_s=60)
    return [rejudged async for rejudged in rejudge_all(rejudging, selection, at_once=at_once)]


async def test_each_trial_is_rejudged_once_in_a_new_trial_that_names_the_old_one(town):
    async with town.server() as runner:
        docket = runner.executor.docket
        first = (await runner.answer(ASK)).record
        await runner.answer(other(image=b"second|file", text=None, namespace="them"))
        before = {trial_id: await docket.trials.record(trial_id) for trial_id in await trials_in(docket)}
        executor = with_changes(runner, Finder(findings([N] * 5)))
        done = await rejudge_trials(executor, town.settings)
        repeated = await rejudge_trials(executor, town.settings)
        after = {trial_id: await docket.trials.record(trial_id) for trial_id in before}
        ids = await trials_in(docket)
    assert before == after and len(ids) == 4
    assert [rejudged.outcome for rejudged in done] == [RejudgeOutcome.DIFFERENT] * 2 and all(
        rejudged.is_new for rejudged in done
    )
    new = next(rejudged.new for rejudged in done if rejudged.old.trial_id == first.trial_id)
    assert new.opened.of_trial == first.trial_id and new.opened.policy.version == "2"
    assert new.verdict.label is Label.NOT_HARMFUL is not first.verdict.label
    assert new.opened.meme.model_dump(exclude={"frames"}) == first.opened.meme.model_dump(exclude={"frames"})
    assert [rejudged.new.trial_id for rejudged in repeated] == [rejudged.new.trial_id for rejudged in done]
    assert not any(rejudged.is_new for rejudged in repeated)


async def test_unchanged_configuration_rejudges_nothing(town):
    async with town.server() as runner:
        await runner.answer(ASK)
        done = await rejudge_trials(runner.executor, town.settings)
        ids = await trials_in(runner.executor.docket)
    assert [rejudged.outcome for rejudged in done] == [RejudgeOutcome.UNCHANGED] and len(ids) == 1


async def test_next_request_for_the_meme_gets_the_new_verdict(town):
    async with town.server() as runner:
        await runner.answer(ASK)
        executor = with_changes(runner)
        (done,) = await rejudge_trials(executor, town.settings)
        known = cache_of(executor, town.settings)
        found = await known.find(known.key(ASK, done.old.opened.meme.digest))
    assert done.outcome is RejudgeOutcome.SAME and found.trial_id == done.new.trial_id


async def test_failed_rejudging_is_reported_and_attempted_again(town):
    async with town.server() as runner:
        await runner.answer(ASK)
        broken = with_changes(runner, Finder(ValueError("broken")))
        (failed,) = await rejudge_trials(broken, town.settings)
        (mended,) = await rejudge_trials(with_changes(runner), town.settings)
        (repeated,) = await rejudge_trials(with_changes(runner), town.settings)
        states = sorted(line.state for line in await runner.executor.docket.index.list(limit=9))
    assert (failed.outcome, failed.reason, failed.new) == (RejudgeOutcome.FAILED, "INTERNAL", None)
    assert mended.outcome is RejudgeOutcome.SAME and mended.is_new
    assert repeated.new.trial_id == mended.new.trial_id and not repeated.is_new
    assert states == [TrialState.DECIDED, TrialState.DECIDED, TrialState.FAILED]


async def test_rejudging_with_an_erased_trial_is_neither_repeated_nor_a_failure(town):
    async with town.server() as runner:
        await runner.answer(ASK)
        (done,) = await rejudge_trials(with_changes(runner), town.settings)
        eraser = runner.executor.docket.eraser
        await eraser.erase(done.new.trial_id, who="ada", why="asked for", at=datetime.now(UTC))
        repeated = [await rejudge_trials(with_changes(runner), town.settings) for _ in range(2)]
        ids = await trials_in(runner.executor.docket)
    assert [(one.outcome, one.new) for (one,) in repeated] == [(RejudgeOutcome.ERASED, None)] * 2 and len(ids) == 2


async def test_interrupted_rejudging_resumes_its_trial(town):
    async with town.server() as runner:
        await runner.answer(ASK)
        finder = Finder()
        finder.gate = asyncio.Event()
        executor = with_changes(runner, finder)
        cut = asyncio.create_task(rejudge_trials(executor, town.settings))
        await finder.searching.wait()
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        finder.gate.set()
        (done,) = await rejudge_trials(executor, town.settings)
    assert done.outcome is RejudgeOutcome.SAME and done.is_new
    assert [event.kind for event in done.new.events].count("TrialResumed") == 1


async def test_trials_made_by_rejudging_are_not_rejudged_themselves(town):
    async with town.server() as runner:
        await runner.answer(ASK)
        await rejudge_trials(with_changes(runner), town.settings)
        newer = with_changes(runner, policy=NEW.model_copy(update={"version": "3"}))
        (done,) = await rejudge_trials(newer, town.settings)
    assert done.old.opened.policy.version == DEFAULT_POLICY.version and done.new.opened.policy.version == "3"


@pytest.mark.slow
@pytest.mark.usefixtures("starter_home")
def test_rejudge_command_lists_changed_outcomes(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    monkeypatch.setenv("MEMECOURT_READER", "none")

    def invoke(*words):
        return CliRunner().invoke(cli, [*map(str, words)])

    for text in ("people from Blueland are late", "a kitten sleeps"):
        assert invoke("judge", "--text", text).exit_code in (0, 10, 11, 12)
    incomplete = invoke("rejudge")
    assert incomplete.exit_code == 2 and "Say which trials" in incomplete.output
    assert "2  nothing has changed" in invoke("rejudge", "--everything").output
    dry_run = invoke("rejudge", "--everything", "--harm-cost", "50", "--dry-run")
    assert "2  would be tried" in dry_run.output and dry_run.exit_code == 0
    done = invoke("rejudge", "since:2020-01-01", "--harm-cost", "50", "--json")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2 and all(line["new_trial_id"] for line in lines)
    assert "once more" in invoke("records", "show", lines[0]["new_trial_id"]).output
    assert not [*filter(lambda line: line["outcome"] == "FAILED", lines)]
    erase_command = ("docket", "erase", lines[0]["new_trial_id"], "--who", "ada", "--why", "asked for", "--yes")
    assert invoke(*erase_command).exit_code == 0
    for _ in range(2):
        repeated = invoke("rejudge", "since:2020-01-01", "--harm-cost", "50")
        assert (
            repeated.exit_code == 0 and "1  erased since" in repeated.output and "no new verdict" not in repeated.output
        )
