"""Tests of quotas: limits on the trials that a namespace starts per minute and per day, and the advised retry delay."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest
from google.rpc import code_pb2, error_details_pb2

from serving.rpc.status import status_of
from serving.runner.admission import Admission
from serving.runner.quotas import Quota, QuotaExceeded, quotas_of
from serving.settings import Settings
from tests.support.admission import Clock


def retry_after_of(quota):
    with pytest.raises(QuotaExceeded) as caught:
        quota.take()
    return caught.value.retry_after


@pytest.mark.parametrize(("per_minute", "per_day", "seconds"), [(3, None, 60), (None, 3, 86_400), (3, 1000, 60)])
def test_every_window_stays_within_its_quota_and_retry_after_suffices(per_minute, per_day, seconds):
    clock, chance = Clock(), random.Random(3)
    quota = Quota(per_minute=per_minute, per_day=per_day, clock=clock)
    starts = []
    for _ in range(400):
        clock.now += chance.random() * seconds / 6
        try:
            quota.take()
        except QuotaExceeded as error:
            # At most the window plus its last slice.
            assert 0 < error.retry_after <= seconds * (1 + 1 / 60)
            if chance.random() < 0.5:
                clock.now += error.retry_after
                quota.take()
                starts.append(clock.now)
        else:
            starts.append(clock.now)
        assert len([at for at in starts if at > clock.now - seconds]) <= 3
    assert len(starts) > 100


def test_returned_quota_is_available_again_even_after_its_time_slice():
    clock = Clock()
    quota = Quota(per_minute=1, per_day=2, clock=clock)
    taken = quota.take()
    retry_after_of(quota)
    quota.give_back(taken)
    quota.give_back(quota.take())
    taken = quota.take()
    clock.now += 3600
    quota.give_back(taken)
    quota.take()


def test_trials_before_the_server_start_count_towards_the_daily_quota():
    clock = Clock()
    quota = Quota(per_minute=None, per_day=5, clock=clock)
    now = datetime.now(UTC)
    # Two older than a day, three within it, and one opened by a server whose clock is ahead.
    opened = {now - timedelta(hours=25): 2, now - timedelta(hours=20): 3, now + timedelta(minutes=3): 1}
    quota.count_before(opened)
    quota.take()
    assert 3.9 * 3600 < retry_after_of(quota) < 4.1 * 3600


def test_admission_refuses_only_the_namespace_that_used_up_its_quota():
    async def scene():
        clock = Clock()
        quota = Quota(per_minute=2, per_day=None, clock=clock)
        admission = Admission(8, 8, clock, quotas={"shop": quota})

        async def trial(namespace, **options):
            async with admission.acquire(namespace, **options):
                pass

        await trial("shop")
        await trial("shop", patient=True)
        for refuse in (trial("shop"), trial("shop", patient=True)):
            with pytest.raises(QuotaExceeded):
                await refuse
        with pytest.raises(QuotaExceeded):
            admission.check("shop", patient=True)
        admission.check("forum")
        await trial("forum")
        clock.now += 62
        await trial("shop")

    asyncio.run(scene())


def test_caller_leaving_the_queue_uses_no_quota():
    async def scene():
        admission = Admission(1, 8, quotas={"shop": Quota(per_minute=1, per_day=None)})
        async with admission.acquire("forum"):
            waiting = asyncio.create_task(admission.acquire("shop").__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with admission.acquire("shop"):
            pass

    asyncio.run(scene())


def test_quota_refusal_is_resource_exhausted_with_reason_and_retry_delay():
    quota = Quota(per_minute=1, per_day=None, clock=Clock())
    quota.take()
    with pytest.raises(QuotaExceeded) as caught:
        quota.take()
    status = status_of(caught.value)
    assert status.code == code_pb2.RESOURCE_EXHAUSTED
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info) and info.reason == "QUOTA_EXCEEDED"
    assert status.details[1].Unpack(retry) and 59 <= retry.retry_delay.seconds <= 61


def test_only_namespaces_with_quota_settings_get_a_quota():
    settings = Settings(namespaces={"shop": {"trials_per_day": 3}, "forum": {"retention_days": 3}})
    assert set(quotas_of(settings)) == {"shop"}
