"""Tests that metrics agree with the records, and that logs report events without any text of the meme."""

import asyncio
import itertools
import json
import logging
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from court.errors import BadRequest, NotLoaded, Unavailable
from court.events import (
    Label,
    NearDuplicate,
    NearDuplicatesFound,
    PrecedentsCited,
    Procedure,
    QuestioningEnd,
    ReviewOutcome,
    SideRested,
    SummarisedAhead,
    TextRead,
    TrialFailed,
    TrialOpened,
    VerdictGiven,
)
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import TrialCase
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry, open_telemetry
from serving.telemetry.logs import JsonLines, TextLines
from serving.telemetry.metrics import Metrics
from serving.telemetry.metrics_port import MetricsPort
from tests.support.cast import ACQUITTAL, Cast, ahead_of_time, full_court, is_repair
from tests.support.fakes import (
    FakeReader,
    H,
    N,
    RecordingSink,
    a_meme,
    a_picture,
    findings,
    forwarding_sink,
    ticking_clock,
)
from tests.support.paths import ROOT
from tests.support.telemetry import calls_of, described, logging_as
from tests.support.trial import a_court


def repaired(request):
    return None if is_repair(request) else "no JSON at all"


def try_all(telemetry):
    """Runs trials of every kind, reporting their events to telemetry; returns their records."""
    records = []

    def hear(court, procedure, trial_id, meme=None):
        async def work():
            try:
                return await court.run(TrialCase(trial_id, meme or a_meme(), procedure, request_id=trial_id), watch)
            except TrialAborted as error:
                return error.record

        notes = RecordingSink()

        async def watch(*events):
            await notes(*events)
            await forwarding_sink(telemetry.watch)(*events)

        records.append(asyncio.run(work()))
        assert records[-1].events == tuple(notes.events)

    for number, rounds in enumerate((2, 3, 5)):
        hear(full_court(Cast(rounds=rounds, describe=described)), Procedure.FULL, f"full-{number}")
    hear(full_court(ahead_of_time()), Procedure.FULL, "ahead")
    hear(full_court(Cast(judge=ACQUITTAL), reader=FakeReader("two\nlines")), Procedure.FULL, "read", a_meme(None))
    hear(full_court(Cast(describe=repaired)), Procedure.FULL, "repaired")
    hear(full_court(Cast(odds=None, judge="never a ruling")), Procedure.FULL, "unusable")
    hear(full_court(Cast(accuser_ask=Unavailable("gone", reason="MODEL_GONE"))), Procedure.FULL, "gone")
    hear(full_court(Cast()), Procedure.CASCADE, "cascade")
    hear(a_court(findings([H, H, N, H, H])), Procedure.SUMMARY, "summary")
    hear(a_court(findings([N] * 5)), Procedure.SUMMARY, "benign")
    hear(a_court(findings([])), Procedure.SUMMARY, "far")
    hear(a_court(Unavailable("no search", reason="SEARCH_GONE")), Procedure.SUMMARY, "no search")
    return records


def samples(metrics):
    """All values by name and labels; empty labels are left out, as Prometheus does."""
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def key(name, **labels):
    return (name, frozenset((k, str(v)) for k, v in labels.items() if v))


@pytest.fixture(scope="module")
def all_trials():
    metrics = Metrics(Settings())
    telemetry = Telemetry(metrics)
    records = try_all(telemetry)
    return records, samples(metrics), telemetry


def series_of(values, name):
    """The values of a metric by labels."""
    return {labels: value for (each, labels), value in values.items() if each == name}


def by_labels(counter):
    return {frozenset((k, v) for k, v in labels if v): number for labels, number in counter.items()}


def test_recorded_trials_cover_every_kind(all_trials):
    """Ensures that the following tests compare more than zeros."""
    records, *_ = all_trials
    states = Counter((record.opened.procedure, record.state) for record in records)
    assert states[Procedure.FULL, TrialState.DECIDED] == 6
    assert states[Procedure.FULL, TrialState.FAILED] == 2
    assert states[Procedure.SUMMARY, TrialState.FAILED] == 1
    assert {record.verdict.label for record in records if record.verdict} == set(Label)
    assert any(call.fault for record in records for call, _ in calls_of(record))
    assert any(record.all(SummarisedAhead) for record in records)
    assert any(e.unused and e.unused.calls for r in records for e in r.events if isinstance(e, VerdictGiven))


def test_trial_metrics_match_the_records(all_trials):
    records, values, _ = all_trials
    trials, opened, failed = Counter(), Counter(), Counter()
    for record in records:
        procedure = record.opened.procedure.value
        opened[(("procedure", procedure),)] += 1
        label = record.verdict.label.value if record.verdict else ""
        trials[("procedure", procedure), ("outcome", record.state.value), ("label", label)] += 1
        for event in record.all(TrialFailed):
            failed[("procedure", procedure), ("step", event.step), ("reason", event.reason)] += 1
    assert series_of(values, "memecourt_trials_total") == by_labels(trials)
    assert series_of(values, "memecourt_trials_opened_total") == by_labels(opened)
    assert series_of(values, "memecourt_trial_failures_total") == by_labels(failed)
    for (procedure, state), number in Counter((r.opened.procedure, r.state) for r in records).items():
        labels = {"procedure": procedure, "outcome": state}
        assert values[key("memecourt_trial_duration_seconds_count", **labels)] == number
        spent = sum(r.seconds for r in records if (r.opened.procedure, r.state) == (procedure, state))
        assert values[key("memecourt_trial_duration_seconds_sum", **labels)] == pytest.approx(spent)


def test_call_and_token_metrics_match_the_records(all_trials):
    records, values, _ = all_trials
    expected = {name: Counter() for name in ("calls", "repairs", "in", "cached", "out", "seconds")}
    for record in records:
        for call, number in calls_of(record):
            labels = (("role", call.role.value), ("model", f"{call.role.value.lower()}-model"))
            expected["calls"][labels] += number
            expected["repairs"][labels] += bool(call.fault)
            expected["in"][labels] += call.tokens_in
            expected["cached"][labels] += call.tokens_cached
            expected["out"][labels] += call.tokens_out
            expected["seconds"][labels] += call.latency_s
    assert series_of(values, "memecourt_model_calls_total") == by_labels(expected["calls"])
    assert series_of(values, "memecourt_model_input_tokens_total") == by_labels(expected["in"])
    assert series_of(values, "memecourt_model_cached_input_tokens_total") == by_labels(expected["cached"])
    assert series_of(values, "memecourt_model_output_tokens_total") == by_labels(expected["out"])
    assert series_of(values, "memecourt_model_call_duration_seconds_sum") == pytest.approx(
        by_labels(expected["seconds"])
    )
    repairs = {labels: number for labels, number in by_labels(expected["repairs"]).items() if number}
    assert repairs and series_of(values, "memecourt_model_repairs_total") == repairs
    assert sum(expected["cached"].values()) == 300  # three descriptions with half of a prompt cached each

    last = [r.last(VerdictGiven) or r.last(TrialFailed) for r in records]
    unused = [event.unused for event in last if event.unused]
    for name, field in {
        "calls": "calls",
        "input_tokens": "tokens_in",
        "cached_input_tokens": "tokens_cached",
        "output_tokens": "tokens_out",
    }.items():
        assert values[key(f"memecourt_model_unused_{name}_total")] == sum(
            getattr(event_unused, field) for event_unused in unused
        )
    assert values[key("memecourt_model_unanswered_calls_total")] == sum(
        event_unused.unanswered for event_unused in unused
    )


def test_metrics_of_rounds_texts_precedents_and_reviews_match_the_records(all_trials):
    records, values, _ = all_trials
    rested = [event for record in records for event in record.all(SideRested)]
    assert series_of(values, "memecourt_sides_rested_total") == by_labels(
        Counter((("side", event.side.value), ("reason", event.reason.value)) for event in rested)
    )
    examined = [event for event in rested if event.reason is not QuestioningEnd.NO_EXAMINATION]
    assert sum(series_of(values, "memecourt_side_rounds_sum").values()) == sum(event.rounds for event in examined) > 0
    assert sum(series_of(values, "memecourt_side_rounds_count").values()) == len(examined)
    texts = [event for record in records for event in record.all(TextRead)]
    assert series_of(values, "memecourt_texts_total") == by_labels(
        Counter((("source", e.source.value),) for e in texts)
    )
    assert values[key("memecourt_text_read_duration_seconds_count")] == sum(bool(e.reader) for e in texts) == 1
    found = sum(len(record.all(PrecedentsCited)) for record in records)
    assert values[key("memecourt_precedents_duration_seconds_count")] == found > 0
    verdicts = [record.verdict for record in records if record.verdict]
    assert sum(series_of(values, "memecourt_verdicts_for_review_total").values()) == sum(
        verdict.needs_human_review for verdict in verdicts
    )
    reasons = Counter(r for verdict in verdicts for r in {review.reason.value for review in verdict.review})
    assert series_of(values, "memecourt_review_reasons_total") == by_labels(
        {(("reason", reason),): number for reason, number in reasons.items()}
    )


def test_ended_trials_are_forgotten(all_trials):
    *_, telemetry = all_trials
    assert not telemetry._trials


def test_trials_that_never_report_an_end_are_evicted(monkeypatch):
    monkeypatch.setattr("serving.telemetry._MOST_TRIALS", 10)
    telemetry = Telemetry(Metrics(Settings()))
    opened = asyncio.run(a_court().run(TrialCase("t", a_meme(), Procedure.SUMMARY), RecordingSink())).opened
    for number in range(25):
        asyncio.run(telemetry.watch(opened.model_copy(update={"trial_id": f"t{number}"})))
    assert list(telemetry._trials) == [f"t{number}" for number in range(15, 25)]


def test_resumed_trial_counts_each_call_once_under_its_procedure():
    complete = asyncio.run(full_court(ahead_of_time()).run(TrialCase("t", a_meme(), Procedure.FULL), RecordingSink()))
    place = next(n for n, event in enumerate(complete.events) if isinstance(event, SummarisedAhead)) + 1
    cut = TrialRecord.of(complete.events[:place])
    metrics = Metrics(Settings())
    telemetry = Telemetry(metrics)
    telemetry.resuming(cut)
    # The resuming server's clock continues where the first server's stopped.
    resumed = asyncio.run(full_court(Cast(rounds=3)).resume(cut, a_picture(), telemetry.watch))
    values = samples(metrics)
    assert values[key("memecourt_trials_resumed_total", procedure="FULL")] == 1
    assert values[key("memecourt_trials_total", procedure="FULL", outcome="DECIDED", label="HARMFUL")] == 1
    assert not series_of(values, "memecourt_trials_opened_total")
    before = sum(number for _, number in calls_of(cut))
    assert sum(series_of(values, "memecourt_model_calls_total").values()) == (
        sum(number for _, number in calls_of(resumed)) - before
    )
    assert resumed.state is TrialState.DECIDED
    assert values[key("memecourt_trial_duration_seconds_count", procedure="FULL", outcome="DECIDED")] == 1


def test_metrics_outside_trials_follow_their_observations():
    metrics = Metrics(Settings(concurrent_trials=3, waiting_trials=7))
    telemetry = Telemetry(metrics)
    now = {"running": 0}
    metrics.read("running_trials", lambda: now["running"])
    metrics.set("library_precedents", 100)
    telemetry.reused(near=False)
    telemetry.reused(near=False)
    telemetry.reused(near=True)
    metrics.count("reviews", ReviewOutcome.OVERRULED)
    metrics.observe("picture_decode_duration_seconds", 0.02)
    now["running"] = 5
    values = samples(metrics)
    assert values[key("memecourt_reused_verdicts_total", kind="exact")] == 2
    assert values[key("memecourt_reused_verdicts_total", kind="near")] == 1
    assert values[key("memecourt_reviews_total", outcome="OVERRULED")] == 1
    assert values[key("memecourt_picture_decode_duration_seconds_sum")] == 0.02
    assert values[key("memecourt_running_trials")] == 5
    assert values[key("memecourt_library_precedents")] == 100
    assert values[key("memecourt_limit", of="running_trials")] == 3
    assert values[key("memecourt_limit", of="waiting_requests")] == 7


def test_near_duplicates_are_counted_by_label():
    metrics = Metrics(Settings())
    duplicate = NearDuplicate(trial_id="old", label=Label.HARMFUL, distance=3, same_text=True, same_picture=False)
    found = NearDuplicatesFound(
        trial_id="t",
        seq=3,
        at=next(ticking_clock()),
        duplicates=(duplicate, duplicate, duplicate.model_copy(update={"label": Label.NOT_HARMFUL})),
        latency_s=0.25,
    )
    asyncio.run(Telemetry(metrics).watch(found))
    values = samples(metrics)
    assert values[key("memecourt_trials_with_near_duplicates_total")] == 1
    assert values[key("memecourt_near_duplicates_total", label="HARMFUL")] == 2
    assert values[key("memecourt_near_duplicates_total", label="NOT_HARMFUL")] == 1
    assert values[key("memecourt_near_duplicates_duration_seconds_sum")] == 0.25


def test_failing_metrics_do_not_fail_a_trial(caplog):
    class Broken:
        def on_event(self, event, trial, calls):
            raise ValueError("ze" + "bra")

    record = asyncio.run(
        a_court().run(TrialCase("t", a_meme(), Procedure.SUMMARY), forwarding_sink(Telemetry(Broken()).watch))
    )
    assert record.state is TrialState.DECIDED
    assert len([r for r in caplog.records if "not counted: ValueError" in r.getMessage()]) == len(record.events)
    assert "zebra" not in caplog.text


def test_silent_telemetry_counts_and_logs_nothing(caplog):
    caplog.set_level(logging.DEBUG)
    asyncio.run(a_court().run(TrialCase("t", a_meme(), Procedure.SUMMARY), forwarding_sink(SILENT.watch)))
    SILENT.reused(near=True)
    SILENT.metrics.count("reviews", ReviewOutcome.UPHELD)
    SILENT.metrics.anchored(3)
    assert (
        not [record for record in caplog.records if record.name != "asyncio"]
        and not SILENT._trials
        and SILENT.trace_id() == ""
    )


ALLOWED = {
    "service", "method", "code", "procedure", "outcome", "label", "step", "reason", "side", "role", "model", "source",
    "hook", "kind", "of", "worker",
}  # fmt: skip
"""Labels whose values are closed sets or configured by the operator."""


def test_metrics_are_served_only_at_their_path_and_start_at_zero():
    metrics = MetricsPort(Metrics(Settings()).registry, "127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as answer:
            assert b'memecourt_reviews_total{outcome="UPHELD"} 0.0' in answer.read()
        for path in ("/", "/metrics/", "/etc/passwd", "/metricsx"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}{path}", timeout=60)
            assert caught.value.code == 404
            caught.value.close()
    finally:
        metrics.close()


def test_metric_names_follow_conventions_and_labels_are_bounded(all_trials):
    records, *_ = all_trials
    metrics = Metrics(Settings())
    for family in metrics.registry.collect():
        if not family.name.startswith("memecourt_"):
            continue
        assert family.documentation.endswith("."), family.name
        assert not any(unit in family.name for unit in ("_ms", "_millis", "_minutes", "_mb", "_kb")), family.name
        if family.type == "histogram" and "duration" in family.name:
            assert family.name.endswith("_seconds")
        assert family.type != "counter" or not family.name.endswith(("_count", "_sum")), family.name
    labels = {
        name for collector in metrics.registry._collector_to_names for name in getattr(collector, "_labelnames", ())
    }
    assert labels <= ALLOWED
    # Ten times as many trials add no series.
    telemetry = Telemetry(metrics)

    async def report_again(round_):
        for record in records:
            for event in record.events:
                update = {"trial_id": f"{record.trial_id}-{round_}"}
                if isinstance(event, TrialOpened):
                    meme = event.meme.model_copy(update={"namespace": f"n{round_}", "content_id": f"c{round_}"})
                    update |= {"meme": meme, "request_id": f"r{round_}", "trace_id": f"{round_:032x}"}
                await telemetry.watch(event.model_copy(update=update))

    asyncio.run(report_again(0))
    series = len(samples(metrics))
    for round_ in range(1, 10):
        asyncio.run(report_again(round_))
    assert len(samples(metrics)) == series


def test_monitoring_page_names_existing_metrics():
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    registry = Metrics(Settings()).registry
    names = {name for names in registry._collector_to_names.values() for name in names}
    assert set(re.findall(r"\bmemecourt_\w+", page)) - {"memecourt_"} <= names | {
        f"{family.name}_bucket" for family in registry.collect()
    }


@pytest.mark.parametrize(
    ("address", "host"),
    [("0", "127.0.0.1"), (":0", "127.0.0.1"), ("127.0.0.2:0", "127.0.0.2"), ("0.0.0.0:0", "0.0.0.0")],
)
def test_metrics_listen_on_loopback_by_default(address, host):
    metrics = MetricsPort(Metrics(Settings()).registry, address)
    try:
        assert metrics.address == host
    finally:
        metrics.close()


def test_unusable_metrics_address_is_an_error():
    for address in ("127.0.0.1:notaport", "256.0.0.1:0", "127.0.0.1:99999999", "nothing"):
        with pytest.raises(BadRequest, match="Metrics can't be served") as caught:
            MetricsPort(Metrics(Settings()).registry, address)
        assert caught.value.reason == "METRICS_ADDRESS_UNUSABLE"


def test_everything_but_traces_works_without_opentelemetry(monkeypatch):
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import asyncio, serving.telemetry as t\n"
        "from serving.settings import Settings\n"
        "async def work():\n"
        "    async with t.open_telemetry(Settings(metrics='127.0.0.1:0')) as telemetry:\n"
        "        telemetry.interceptors(); telemetry.reused(near=False)\n"
        "asyncio.run(work())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "serving.telemetry.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    async def work():
        async with open_telemetry(Settings(traces=True)):
            pass

    with pytest.raises(NotLoaded, match="pip install 'memecourt\\[telemetry\\]'"):
        asyncio.run(work())


# Logs.


def test_log_lines_name_trial_request_and_event():
    telemetry = Telemetry(log=True)
    case = TrialCase("t-1", a_meme(), Procedure.SUMMARY, request_id="r-1", namespace="forum", content_id="post-7")
    with logging_as("text") as text:
        record = asyncio.run(a_court().run(case, forwarding_sink(telemetry.watch)))
    with logging_as("json") as as_json_lines:
        asyncio.run(a_court().run(case, forwarding_sink(telemetry.watch)))
    kinds = [event.kind for event in record.events]
    assert [line.split(" memecourt.trials ")[1] for line in text] == [
        f"trial=t-1 request=r-1 seq={seq} event={kind}" for seq, kind in enumerate(kinds)
    ]
    for seq, line in enumerate(as_json_lines):
        fields = json.loads(line)
        assert (fields["trial"], fields["request"], fields["seq"], fields["event"]) == ("t-1", "r-1", seq, kinds[seq])
        assert (fields["level"], fields["logger"]) == ("INFO", "memecourt.trials")
        assert fields["time"].endswith("+00:00")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_request_id_cannot_forge_log_lines_or_fields(log_format):
    evil = "r\n2026-01-01 00:00:00,000 INFO memecourt.trials trial=x\x1b[2J\u2028 event=VerdictGiven"
    with logging_as(log_format) as lines:
        logging.getLogger("memecourt.trials").info("trial=%s request=%s seq=%d event=%s", "t", evil, 0, "TrialOpened")
    (line,) = lines.text.rstrip("\n").split("\n")
    assert "\x1b" not in line and "\u2028" not in line
    if log_format == "json":
        assert json.loads(line)["request"] == evil and json.loads(line)["event"] == "TrialOpened"
    else:
        assert ' request="r' in line and line.endswith('" seq=0 event=TrialOpened')


SECRET = "zebra crossing words"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_texts_of_libraries_and_exceptions_stay_out_of_the_log(log_format):
    def fail():
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"about {SECRET}") from error

    with logging_as(log_format) as lines:
        for name in ("sqlalchemy.engine", "grpc._cython.cygrpc", "asyncio", "httpx", "PIL.Image"):
            logging.getLogger(name).error("statement %s", SECRET)
        try:
            fail()
        except ValueError:
            logging.getLogger("asyncio").exception(f"never retrieved: {SECRET}")
            logging.getLogger("memecourt.service").exception("request failed")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(SECRET, stacklevel=1)
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

        class Dropped:
            def __del__(self):
                fail()

        Dropped()
    assert SECRET not in lines.text and "zebra" not in lines.text
    # Logger names, places and exception types are still logged.
    for expected in ("sqlalchemy.engine", "grpc._cython.cygrpc", "py.warnings", "ValueError", "KeyError", "in fail"):
        assert expected in lines.text, expected
    assert lines.text.count("ValueError") >= 4
    assert "test_telemetry.py:" in lines.text
    if log_format == "json":
        assert all(json.loads(line) for line in lines)


def test_messages_of_opentelemetry_are_logged():
    with logging_as("text") as lines:
        logging.getLogger("opentelemetry.exporter.otlp").warning("Transient error %s", "UNAVAILABLE")
    assert "Transient error UNAVAILABLE" in lines.text


def test_formatters_accept_messages_that_are_not_templates():
    records = [
        logging.LogRecord("memecourt.x", logging.INFO, "f.py", 1, message, arguments, None)
        for message, arguments in (
            ("100 % of nothing", ()),
            ("50 %% of %s", ("it",)),
            ("a=%(a)s", ({"a": 1},)),
            ({"no": "text"}, ()),
            ("width=%5.2f name=%r", (1.5, "b c")),
        )
    ]
    for formatter in (TextLines(), JsonLines()):
        formatted = [formatter.format(record) for record in records]
        assert "100 % of nothing" in formatted[0] and "50 % of it" in formatted[1] and "a=1" in formatted[2]
    fields = json.loads(JsonLines().format(records[4]))
    assert fields["width"] == 1.5 and fields["name"] == "b c"


def test_log_lines_show_the_time_of_the_record():
    record = logging.LogRecord("memecourt.x", logging.INFO, "f.py", 1, "now", (), None)
    record.created, record.msecs = 0.25, 250
    assert json.loads(JsonLines().format(record))["time"] == "1970-01-01T00:00:00.250+00:00"
    assert TextLines().format(record).startswith(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0)) + ",250 ")


def test_clock_set_back_gives_a_duration_of_zero():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    minutes = itertools.count()
    court = replace(a_court(findings([H] * 5)), now=lambda: noon - timedelta(minutes=next(minutes)))
    metrics = Metrics(Settings())
    asyncio.run(court.run(TrialCase("t", a_meme()), forwarding_sink(Telemetry(metrics).watch)))
    lasted = {"procedure": "SUMMARY", "outcome": "DECIDED"}
    assert metrics.registry.get_sample_value("memecourt_trial_duration_seconds_count", lasted) == 1
    assert metrics.registry.get_sample_value("memecourt_trial_duration_seconds_sum", lasted) == 0
