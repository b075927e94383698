"""Retention, over SQLite and PostgreSQL: exactly the expired trials are erased."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from court.errors import Unavailable
from court.events import TrialOpened
from serving.access.callers import SANDBOX
from serving.docket.errors import TrialErased
from serving.docket.retention import WHO, erase_expired, keep_retention, retention_periods
from serving.docket.store.erasure import UNFINISHED
from serving.settings import Settings
from tests.support.dockets import NOON, append_all, audited, events_of, review_trial

SETTINGS = Settings(
    retention_days=30, namespaces={"forum": {"retention_days": 7}, "court": {"retention_days": "unlimited"}, "shop": {}}
)


def trial_of_age(trial_id, days, namespace):
    """Returns the events of a trial opened this many days before noon."""
    events = events_of(trial_id, NOON - timedelta(days=days))
    opened = events[0]
    assert isinstance(opened, TrialOpened)
    meme = opened.meme.model_copy(update={"namespace": namespace, "pixels_sha256": f"pixels of {trial_id}"})
    return [opened.model_copy(update={"meme": meme}), *events[1:]]


TRIALS = {
    "old post": (8, "forum"),
    "new post": (6, "forum"),
    "old": (31, ""),
    "new": (29, ""),
    "old offer": (31, "shop"),
    "new offer": (8, "shop"),
    "ancient": (4000, "court"),
}
EXPIRED = {"old post", "old", "old offer"}


async def fill_docket(docket):
    await asyncio.gather(
        *(append_all(docket, trial_of_age(name, *age_and_namespace)) for name, age_and_namespace in TRIALS.items())
    )


async def erased_trials(docket):
    found = set()
    for name in TRIALS:
        try:
            await docket.trials.record(name)
        except TrialErased:
            found.add(name)
    return found


async def test_each_namespace_has_its_own_period_and_the_log_still_verifies(opening):
    async with opening() as docket:
        await fill_docket(docket)
        await review_trial(docket, "old")
        forgotten = []

        async def forget(name):
            forgotten.append(name)

        done = await erase_expired(docket, retention_periods(SETTINGS), now=NOON, forget=forget)
        again = await erase_expired(docket, retention_periods(SETTINGS), now=NOON, forget=forget)
        report = await audited(docket)
        entries = [entry for entry in await docket.log.entries(0, 10**6, {"Erased"})]
        erased = await erased_trials(docket)
    assert erased == EXPIRED
    assert (dict(done.erased), done.overdue) == ({"forum": 1, "": 1, "shop": 1}, 0)
    assert (dict(again.erased), again.overdue) == ({}, 0)
    # Only a reviewed trial may have become a precedent.
    assert forgotten == ["trial:old"]
    # The trials' pictures are fakes, which is the only fault.
    assert set(report.counts) <= {"PICTURE_DIFFERS"}
    assert {entry.trial_id for entry in entries} == EXPIRED
    assert all(f'"who":"{WHO}"' in entry.body and "days" in entry.body for entry in entries)


async def test_many_trials_are_erased_page_by_page(opening, monkeypatch):
    monkeypatch.setattr("serving.docket.retention._AT_ONCE", 3)
    async with opening() as docket:
        trials = [trial_of_age(f"t{number}", 31 + number % 4, "") for number in range(10)]
        await asyncio.gather(*(append_all(docket, events) for events in trials))
        assert dict((await erase_expired(docket, retention_periods(SETTINGS), now=NOON)).erased) == {"": 10}


async def test_a_trial_still_in_a_library_is_not_erased_and_is_overdue(opening):
    async with opening() as docket:
        await fill_docket(docket)
        await review_trial(docket, "old")

        async def forget(_):
            raise Unavailable("locked", reason="LIBRARY_LOCKED")

        done = await erase_expired(docket, retention_periods(SETTINGS), now=NOON, forget=forget)
        erased = await erased_trials(docket)
        later = await erase_expired(docket, retention_periods(SETTINGS), now=NOON)
        finally_erased = await erased_trials(docket)
    assert erased == EXPIRED - {"old"} and done.overdue == 1
    assert dict(later.erased) == {"": 1} and later.overdue == 0 and finally_erased == EXPIRED


async def test_an_erasure_that_files_still_hold_is_finished_by_the_next_pass(opening):
    async with opening() as docket:
        await fill_docket(docket)
        calls = []

        class Eraser:
            async def erase_all(self, trials, **options):
                calls.append(set(trials))
                done = await docket.eraser.erase_all(trials, **options)
                if len(calls) == 1:
                    raise Unavailable("readers", reason=UNFINISHED)
                return done

        hindered = replace(docket, eraser=Eraser())
        first = await erase_expired(hindered, retention_periods(SETTINGS), now=NOON)
        second = await erase_expired(hindered, retention_periods(SETTINGS), now=NOON, unfinished=first.unfinished)
    assert first.overdue == 1 and len(first.unfinished) == 1 and sum(first.erased.values()) == 3
    assert second.overdue == 0 and not second.unfinished and not second.erased
    assert calls[-1] == set(first.unfinished)


async def test_the_retention_job_continues_after_a_docket_outage(opening):
    # By today's clock all of these have expired, except in the namespace with unlimited retention.
    async with opening() as docket:
        await fill_docket(docket)
        passes, away = [], [True]

        class Index:
            async def list(self, **options):
                if away.pop() if away else False:
                    raise Unavailable("away", reason="DOCKET_UNAVAILABLE")
                return await docket.index.list(**options)

        done = asyncio.Event()

        def report_pass(erased, overdue):
            passes.append((erased, overdue))
            done.set()

        job = asyncio.create_task(
            keep_retention(replace(docket, index=Index()), SETTINGS, forget=None, report=report_pass, every_s=0.01)
        )
        await asyncio.wait_for(done.wait(), 120)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        assert passes[0] == (len(TRIALS) - 1, 0)


@pytest.mark.parametrize("settings", [Settings(), Settings(namespaces={"shop": {"retention_days": "unlimited"}})])
def test_without_a_retention_period_only_tries_expire(settings):
    assert [(period.days, period.which.namespace) for period in retention_periods(settings)] == [(1, SANDBOX)]
