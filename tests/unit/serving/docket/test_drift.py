"""Drift: the error rate of the random sample, the cut-off proposed from it, and drift alarms."""

import asyncio
import json
import random
from datetime import UTC, date, datetime, timedelta

import pytest
from click.testing import CliRunner

from court.deadline import cancel_all
from court.verdict import Label
from serving.cli.main import cli
from serving.docket.review.drift import FEWEST, SampledVerdict, measure_drift, propose_cutoff, wilson
from serving.docket.review.projection import Rules, is_sampled
from serving.settings import Settings
from serving.telemetry.metrics import Metrics, measure_sample
from tests.support.desks import opened_desk, verdict
from tests.support.dockets import NOON
from tests.support.playing import run_within, until

HALF = Rules(sampled=0.5)


def sampled_verdict(risk, wrong, number=0):
    return SampledVerdict(f"t{number}", NOON, wrong=wrong, risk=risk, passed=True)


@pytest.mark.parametrize(
    ("wrong", "n", "low", "high"),
    # Published examples (Newcombe 1998, table I).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_interval_matches_published_wilson_intervals(wrong, n, low, high):
    found = wilson(wrong, n)
    assert found == pytest.approx((low, high), abs=6e-5)


def test_proposed_cutoff_is_the_highest_within_the_error_bound():
    rng = random.Random(5)
    verdicts = [sampled_verdict(risk := rng.random() / 2, rng.random() < risk, n) for n in range(400)]
    for wanted in (0.01, 0.05, 0.1, 0.2, 0.9):
        proposed = propose_cutoff(verdicts, wanted)

        def bound(cutoff):
            return (sum(each.wrong for each in verdicts if each.risk <= cutoff) + 1) / (len(verdicts) + 1)

        assert proposed.error <= wanted and bound(proposed.cutoff) == pytest.approx(proposed.error)
        above = sorted(each.risk for each in verdicts if each.risk > proposed.cutoff)
        assert proposed.share == pytest.approx(len(above) / len(verdicts))
        assert not above or bound(above[0]) > wanted


def test_equal_risks_are_passed_all_or_none():
    verdicts = [sampled_verdict(0.1, n < 3, n) for n in range(40)] + [sampled_verdict(0.2, False, n) for n in range(40)]
    assert propose_cutoff(verdicts, 0.05).cutoff == 0.2
    assert propose_cutoff(verdicts, 0.04).cutoff == 0.0 and propose_cutoff(verdicts, 0.04).share == 1.0


def test_too_few_verdicts_or_missing_risks_give_no_proposal():
    assert propose_cutoff([sampled_verdict(0.1, False, n) for n in range(FEWEST - 1)], 0.1) is None
    assert propose_cutoff([sampled_verdict(None, False, n) for n in range(100)], 0.1) is None
    assert propose_cutoff([], 0.1) is None


def sampled_ids(count, rules=HALF):
    """Ids in the random sample, and one that is not."""
    ids = [f"t{number}" for number in range(10_000)]
    drawn = [each for each in ids if is_sampled(each, rules.sampled)][:count]
    return drawn, next(each for each in ids if not is_sampled(each, rules.sampled))


def with_risk(label, risk):
    return verdict(label).model_copy(update={"risk": risk})


async def test_only_sampled_trials_and_first_reviews_count(tmp_path):
    drawn, other = sampled_ids(4)
    async with opened_desk(tmp_path / "docket.sqlite", HALF) as court:
        for trial_id in (*drawn, other):
            await court.tried(trial_id, with_risk(Label.HARMFUL, 0.25))
        await court.tried("undecided", verdict(Label.UNDECIDED))
        await court.reviewed(drawn[0], "ada", Label.NOT_HARMFUL)
        await court.reviewed(drawn[0], "ben", Label.HARMFUL, again=True)
        await court.reviewed(drawn[1], "ada", Label.HARMFUL)
        await court.reviewed(other, "ada", Label.NOT_HARMFUL, again=True)
        await court.docket.eraser.erase(drawn[3], who="ada", why="asked for", at=NOON)
        now = NOON + timedelta(days=1)
        report = await measure_drift(court.desk, court.docket.trials, now=now, wanted=0.1)
    (monday, figure), *more = report.weeks.items()
    assert not more and monday == date(2025, 12, 29) and monday.weekday() == 0
    assert (figure.drawn, figure.reviewed, figure.wrong, figure.passed_wrong) == (3, 2, 1, 1)
    assert (figure.error, figure.expected) == (0.5, 0.25) and figure == report.recent
    assert not report.recent.drifted and report.proposed is None


@pytest.mark.parametrize(("wrong", "drifted"), [(3, False), (20, True)])
def test_drift_shows_in_command_exit_code_and_metric(tmp_path, monkeypatch, wrong, drifted):
    drawn, _ = sampled_ids(40)
    now = datetime.now(UTC)

    async def scenario(court):
        for number, trial_id in enumerate(drawn):
            at = now - timedelta(days=1 + number % 20)
            await court.tried(trial_id, with_risk(Label.HARMFUL, 0.1), at=at, namespace="shop" if number % 2 else "")
            await court.reviewed(trial_id, "ada", Label.NOT_HARMFUL if number < wrong else Label.HARMFUL)
        measuring = asyncio.create_task(measure_sample(metrics, court.desk, court.docket.trials, wanted=0.1))
        await until(lambda: metrics.registry.get_sample_value("memecourt_sample_reviewed") == 40)
        await cancel_all(measuring)
        return await measure_drift(court.desk, court.docket.trials, now=now, weeks=4, wanted=0.1)

    metrics = Metrics(Settings())
    report = run_within(opened_desk(tmp_path / "docket.sqlite", HALF), scenario)
    assert report.recent.drifted is drifted and sum(each.wrong for each in report.weeks.values()) == wrong

    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    monkeypatch.setenv("MEMECOURT_REVIEW_SHARE", "0.5")
    ran = CliRunner().invoke(cli, ["drift"])
    assert ran.exit_code == (3 if drifted else 0), ran.output
    assert ("surely more" in ran.output) is drifted and "a person should look from a risk of" in ran.output
    of_shop = json.loads(CliRunner().invoke(cli, ["drift", "--namespace", "shop", "--json"]).output)
    assert of_shop["recent"]["reviewed"] == 20 and of_shop["proposed"] is None

    value = metrics.registry.get_sample_value
    assert (value("memecourt_sample_error_low") > value("memecourt_sample_expected_error")) is drifted
