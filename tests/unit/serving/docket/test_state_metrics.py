"""Tests of metrics of the current state, each read at its source when metrics are collected."""

import asyncio
import math
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import trustme

from court.events import ReviewOutcome
from court.verdict import Label
from serving.access.tls import Certificates
from serving.docket.audit.anchoring import FileWitness, keep_anchored
from serving.docket.open import Docket
from serving.rpc.health import COURT, SERVING, Health
from serving.settings import Settings
from serving.telemetry.metrics import Metrics, measure_docket
from tests.support.dockets import append_all, review_trial
from tests.support.receivers import decided


@pytest.fixture
def metrics():
    return Metrics(Settings())


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"memecourt_{name}", labels)


def test_unknown_values_are_nan_so_that_no_alert_fires(metrics):
    for name in (
        "docket_entries", "review_queue", "review_queue_oldest_seconds", "anchor_lag_entries",
        "certificate_expiry_timestamp_seconds",
    ):  # fmt: skip
        assert math.isnan(value(metrics, name)), name
    assert value(metrics, "verdicts_for_review_total", procedure="SUMMARY") == 0


async def test_serving_metric_follows_the_health_checks(metrics):
    health = Health()
    metrics.read("serving", lambda: health.status(COURT) == SERVING, COURT)
    values = []
    for serving in (False, True, False):
        health.say(COURT, serving)
        values.append(value(metrics, "serving", service=COURT))
    assert values == [0, 1, 0]


def test_certificate_expiry_is_that_of_the_certificate_in_use(metrics, tmp_path):
    authority, names = trustme.CA(), (tmp_path / "chain.pem", tmp_path / "key.pem")
    ends = [datetime(2031, 1, 2, tzinfo=UTC), datetime(2032, 3, 4, tzinfo=UTC)]

    def issue(until):
        certificate = authority.issue_cert("court.example", not_after=until)
        names[0].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        names[1].write_bytes(certificate.private_key_pem.bytes())
        return tuple(path.read_bytes() for path in names)

    issue(ends[0])
    certificates = Certificates.of(Settings(tls_certificate=names[0], tls_key=names[1]))
    metrics.read("certificate_expiry_timestamp_seconds", lambda: certificates.expires.timestamp())
    assert value(metrics, "certificate_expiry_timestamp_seconds") == ends[0].timestamp()
    certificates.use(issue(ends[1]))
    assert value(metrics, "certificate_expiry_timestamp_seconds") == ends[1].timestamp()


async def test_docket_metrics_follow_the_docket(metrics, tmp_path):
    class Notifying(Metrics):
        def docket_measured(self, **found):
            super().docket_measured(**found)
            updated.set()

        def anchored(self, entries):
            super().anchored(entries)
            updated.set()

    metrics.__class__, updated = Notifying, asyncio.Event()

    async def measure_once(docket):
        updated.clear()
        task = asyncio.create_task(measure_docket(metrics, docket.reviews, docket.log, every_s=60))
        await updated.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return value(metrics, "review_queue"), value(metrics, "review_queue_oldest_seconds")

    docket = Docket.open(tmp_path / "docket.sqlite")
    docket.transactions.written = partial(metrics.observe, "docket_write_duration_seconds")
    measurements = [await measure_once(docket)]
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for trial_id, needs_review in (("a", True), ("b", True), ("c", False)):
        events = [event.model_copy(update={"at": hour_ago}) for event in decided(trial_id, review=needs_review)]
        await append_all(docket, events)
    metrics.anchored(0)
    measurements.append(await measure_once(docket))
    assert value(metrics, "anchor_lag_entries") == await docket.log.size() > 0
    witness = FileWitness(tmp_path / "checkpoints")
    updated.clear()
    anchoring = asyncio.create_task(keep_anchored(docket.log, witness, every_s=60, on_anchored=metrics.anchored))
    await updated.wait()
    await review_trial(docket, "a", ReviewOutcome.UPHELD, Label.HARMFUL)
    await docket.eraser.erase("b", who="Ruth", why="asked", at=datetime.now(UTC))
    measurements.append(await measure_once(docket))
    lag = value(metrics, "anchor_lag_entries")
    anchoring.cancel()
    await asyncio.gather(anchoring, return_exceptions=True)
    entries = await docket.log.size()
    await docket.close()
    assert measurements[0] == measurements[2] == (0, 0)
    assert measurements[1][0] == 2 and 3600 <= measurements[1][1] < 3700
    assert lag == 2, "the review and the erasure came after the checkpoint"
    assert value(metrics, "docket_entries") == entries
    writes = value(metrics, "docket_write_duration_seconds_count")
    assert writes >= 2 + sum(len(decided(trial_id)) for trial_id in "abc")
    assert 0 < value(metrics, "docket_write_duration_seconds_sum") < 60


async def test_measuring_continues_while_the_docket_is_unavailable(metrics):
    class UnavailableDocket:
        def __init__(self):
            self.calls = 0
            self.called_often = asyncio.Event()

        async def awaiting_review(self):
            from court.errors import Unavailable

            self.calls += 1
            if self.calls > 2:
                self.called_often.set()
            raise Unavailable("away", reason="DOCKET_UNAVAILABLE")

    away = UnavailableDocket()

    task = asyncio.create_task(measure_docket(metrics, away, away, every_s=0.01))
    await away.called_often.wait()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert math.isnan(value(metrics, "review_queue"))


def test_forgotten_gauge_is_gone_until_it_is_set_again(metrics):
    metrics.set("webhook_lag_entries", 7, "queue")
    assert value(metrics, "webhook_lag_entries", hook="queue") == 7
    metrics.forget("webhook_lag_entries", "queue")
    metrics.forget("webhook_lag_entries", "queue")
    assert value(metrics, "webhook_lag_entries", hook="queue") is None
    metrics.set("webhook_lag_entries", 2, "queue")
    assert value(metrics, "webhook_lag_entries", hook="queue") == 2
