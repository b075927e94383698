"""Telemetry for operators: metrics over HTTP, spans at a collector, log lines; over real ports."""

import asyncio
import dataclasses
import io
import json
import logging
import socket
import urllib.request
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, rpc_attributes, server_attributes
from PIL import ExifTags, Image, PngImagePlugin
from prometheus_client.parser import text_string_to_metric_families

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest, Unavailable
from court.events import Procedure
from court.meme import Meme
from court.record import TrialRecord
from court.trial import TrialCase
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub, DocketStub
from serving.docket.open import Docket
from serving.judging.executor import TrialExecutor
from serving.judging.judge import TrialRunner
from serving.rpc.calls import Method
from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.judge import CourtService
from serving.rpc.server import Methods, make_server
from serving.settings import Settings
from serving.telemetry import open_telemetry
from tests.support import fakes
from tests.support.cast import Cast, full_court
from tests.support.playing import run_within, until
from tests.support.telemetry import attributes_of, calls_of, described, logging_as, running_collector

COURT = "memecourt.v1.Court"
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "00f067aa0ba902b7"


@pytest.fixture
def collector(monkeypatch):
    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        # A busy machine may need longer to export the last spans than a server takes to stop.
        monkeypatch.setattr("serving.telemetry.tracing._TO_EXPORT_S", 60.0)
        yield collector


class ScriptedService:
    """Ends each call as its request id says, in every way a call can end."""

    def __init__(self, telemetry, court):
        self.telemetry = telemetry
        self.court = court
        self.picture = fakes.a_picture()
        self.records = []
        self.asked = asyncio.Event()

    def handler(self):
        memory = ReceiveBudget(64 * 2**20, 20.0)
        return grpc.method_handlers_generic_handler(
            COURT,
            {
                "Judge": Method(wire.JudgeRequest, self.judge, memory).handler(),
                "WatchTrial": Method(wire.WatchTrialRequest, self.watch, memory).handler(),
                "JudgeStream": grpc.stream_stream_rpc_method_handler(
                    self.stream,
                    request_deserializer=wire.JudgeStreamRequest.FromString,
                    response_serializer=wire.JudgeStreamResponse.SerializeToString,
                ),
            },
        )

    async def judge(self, request, context):
        match request.request_id:
            case "bad":
                raise BadRequest("no")
            case "gone":
                raise Unavailable("no")
            case "bug":
                raise ValueError("no")
            case "slow":
                self.asked.set()
                await asyncio.sleep(60)
            case "fine":
                return wire.JudgeResponse()
        case = TrialCase(
            trial_id=f"trial of {request.request_id}",
            meme=Meme(self.picture, request.text if request.HasField("text") else None),
            procedure=Procedure.FULL,
            request_id=request.request_id,
            namespace=request.content.namespace,
            content_id=request.content.id,
            trace_id=self.telemetry.trace_id(),
        )
        # As the trial runner does it: in a task of its own, which callers may share.
        self.records.append(
            await asyncio.create_task(self.court.run(case, fakes.forwarding_sink(self.telemetry.watch)))
        )
        return wire.JudgeResponse(trace_id=self.telemetry.trace_id())

    async def watch(self, request, context):
        if request.trial_id == "bad":
            raise BadRequest("no")
        for _ in range(3):
            yield wire.WatchTrialResponse()

    async def stream(self, requests, context):
        async for _ in requests:
            yield wire.JudgeStreamResponse()


class Scene:
    def __init__(self, telemetry, stand, channel):
        self.telemetry = telemetry
        self.stand = stand
        self.channel = channel

    def judge(self, request_id, **options):
        call = self.channel.unary_unary(
            f"/{COURT}/Judge",
            request_serializer=wire.JudgeRequest.SerializeToString,
            response_deserializer=wire.JudgeResponse.FromString,
        )
        return call(wire.JudgeRequest(request_id=request_id, text="the words"), **{"timeout": 60, **options})

    async def values(self):
        """Returns all samples, scraped over HTTP."""
        page = await asyncio.to_thread(self.scraped)
        return {
            (sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def scraped(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.telemetry.metrics_port}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return answer.read().decode()


def a_court(cast=None, **options):
    court = full_court(cast or Cast(rounds=3, describe=described), **options)
    return dataclasses.replace(court, now=lambda: datetime.now(UTC))


@asynccontextmanager
async def a_scene(*, traces=False, court=None, **settings):
    async with open_telemetry(Settings(traces=traces, metrics="127.0.0.1:0", **settings)) as telemetry:
        server = grpc.aio.server(interceptors=telemetry.interceptors())
        stand = ScriptedService(telemetry, court or a_court())
        server.add_generic_rpc_handlers((stand.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Scene(telemetry, stand, channel)
        finally:
            await server.stop(0)


def play(work, **options):
    return run_within(a_scene(**options), work)


async def expect_error(call):
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call


LATE = "DEADLINE_EXCEEDED"
"""May be counted more than once: a call that times out on its way may have reached the server, or not."""


async def make_calls_with_every_outcome(it):
    """Makes calls that end in every possible way, and returns the expected counts."""
    await it.judge("fine")
    await it.judge("fine")
    for request_id in ("bad", "gone", "bug"):
        await expect_error(it.judge(request_id))
    while not it.stand.asked.is_set():  # a call may time out on its way, on a busy machine
        await expect_error(it.judge("slow", timeout=0.2))
    it.stand.asked.clear()
    call = it.judge("slow")
    await it.stand.asked.wait()
    call.cancel()
    await expect_error(call)
    await expect_error(it.channel.unary_unary(f"/{COURT}/Judge")(b"\xff\xff no message"))
    for method in ("/memecourt.v1.Court/Invented", "/invented.by.Caller/zebra"):
        await expect_error(it.channel.unary_unary(method)(b""))
    watch = it.channel.unary_stream(f"/{COURT}/WatchTrial", request_serializer=wire.WatchTrialRequest.SerializeToString)
    assert len([response async for response in watch(wire.WatchTrialRequest(trial_id="t"))]) == 3
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in watch(wire.WatchTrialRequest(trial_id="bad")):
            pass
    stream = it.channel.stream_stream(
        f"/{COURT}/JudgeStream",
        request_serializer=wire.JudgeStreamRequest.SerializeToString,
        response_deserializer=wire.JudgeStreamResponse.FromString,
    )
    assert len([response async for response in stream(iter([wire.JudgeStreamRequest()] * 3))]) == 3
    await health_pb2_grpc.HealthStub(it.channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    return {
        ("Judge", "OK"): 2,
        ("Judge", "INVALID_ARGUMENT"): 2,
        ("Judge", "UNAVAILABLE"): 1,
        ("Judge", "INTERNAL"): 1,
        ("Judge", LATE): 1,
        ("Judge", "CANCELLED"): 1,
        ("WatchTrial", "OK"): 1,
        ("WatchTrial", "INVALID_ARGUMENT"): 1,
        ("JudgeStream", "OK"): 1,
        ("_OTHER", "UNIMPLEMENTED"): 2,
        ("Check", "OK"): 1,
    }


def requests_in(values):
    """Returns the counted calls, by method and code."""
    found = {}
    for (name, labels), value in values.items():
        if name == "memecourt_requests_total":
            labels = dict(labels)
            found[labels["method"], labels["code"]] = value
            service = {"Check": "grpc.health.v1.Health", "_OTHER": "_OTHER"}.get(labels["method"], COURT)
            assert labels["service"] == service
    return found


async def test_calls_are_counted_by_outcome_and_unknown_methods_together():
    async with a_scene() as it:
        expected = await make_calls_with_every_outcome(it)

        async def all_counted():
            found = requests_in(await it.values())
            return all(found.get(outcome, 0) >= times for outcome, times in expected.items())

        await until(all_counted)
        values = await it.values()
    found = requests_in(values)
    expected["Judge", LATE] = max(1, found["Judge", LATE])
    assert found == expected
    counts = Counter()
    for (method, _), number in expected.items():
        counts[method] += number
    for method, number in counts.items():
        (timed,) = (
            value
            for (name, labels), value in values.items()
            if name == "memecourt_request_duration_seconds_count" and ("method", method) in labels
        )
        assert timed == number
    assert not any(value for (name, _), value in values.items() if name == "memecourt_requests_in_progress")


async def test_a_running_call_is_in_progress():
    labels = frozenset({("service", COURT), ("method", "Judge")})
    async with a_scene() as it:
        call = it.judge("slow")
        await it.stand.asked.wait()
        values = await it.values()
        call.cancel()
        await expect_error(call)
        assert values["memecourt_requests_in_progress", labels] == 1


async def test_a_trace_spans_caller_trial_and_each_model_call(collector):
    header = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)
    async with a_scene(traces=True) as it:
        response = await it.judge("r-1", metadata=header)
        record = it.stand.records[0]
    assert record.opened.trace_id == TRACE == response.trace_id
    (call,) = collector.named(f"{COURT}/Judge")
    (trial,) = collector.named("invoke_workflow")
    model_spans = collector.named("chat ")
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert call.parent_span_id.hex() == CALLER and call.kind == Span.SPAN_KIND_SERVER
    assert trial.parent_span_id == call.span_id and trial.kind == Span.SPAN_KIND_INTERNAL
    assert {span.parent_span_id for span in model_spans} == {trial.span_id}
    assert {span.kind for span in model_spans} == {Span.SPAN_KIND_CLIENT}

    assert attributes_of(call) == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{COURT}/Judge",
        "rpc.response.status_code": "OK",
    }
    assert trial.name == "invoke_workflow memecourt.full"
    assert attributes_of(trial) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "memecourt.full",
        "openinference.span.kind": "CHAIN",
        "session.id": record.trial_id,
        "memecourt.trial.id": record.trial_id,
        "memecourt.request.id": "r-1",
        "memecourt.procedure": "FULL",
        "memecourt.resumed": False,
        "memecourt.outcome": "DECIDED",
        "memecourt.label": record.verdict.label.value,
        "memecourt.needs_human_review": record.verdict.needs_human_review,
    }
    # One span for each call in the record, with its figures.
    expected = Counter(
        (
            f"chat {call.role.value.lower()}-model",
            call.model,
            call.prompt_id,
            call.tokens_in,
            call.tokens_out,
            call.tokens_cached,
            number,
        )
        for call, number in calls_of(record)
    )
    found = Counter()
    for span in model_spans:
        attributes = attributes_of(span)
        found[
            span.name,
            attributes["gen_ai.response.model"],
            attributes["gen_ai.prompt.name"],
            attributes["gen_ai.usage.input_tokens"],
            attributes["gen_ai.usage.output_tokens"],
            attributes["gen_ai.usage.cache_read.input_tokens"],
            attributes["memecourt.calls"],
        ] += 1
        assert attributes["gen_ai.operation.name"] == "chat" and attributes["gen_ai.provider.name"] == "openai"
        # The same in OpenInference's terms, for viewers that read those.
        assert (
            attributes["openinference.span.kind"] == "LLM"
            and attributes["llm.model_name"] == attributes["gen_ai.response.model"]
        )
        assert attributes["llm.token_count.prompt"] == attributes["gen_ai.usage.input_tokens"]
        assert attributes["llm.token_count.completion"] == attributes["gen_ai.usage.output_tokens"]
        assert (
            attributes["llm.token_count.total"]
            == attributes["llm.token_count.prompt"] + attributes["llm.token_count.completion"]
        )
        assert attributes["gen_ai.conversation.id"] == record.trial_id == attributes["memecourt.trial.id"]
        event = record.events[attributes["memecourt.event.seq"]]
        assert (
            attributes["gen_ai.agent.name"]
            == (event.odds if attributes["memecourt.calls"] == 2 else event).call.role.value.lower()
        )
        assert span.end_time_unix_nano == round(event.at.timestamp() * 1e6) * 1000
        taken = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert taken == pytest.approx(
            (event.odds if attributes["memecourt.calls"] == 2 else event).call.latency_s, abs=1e-5
        )
    assert found == expected and len(model_spans) >= 10
    (described_by,) = [
        attributes_of(span) for span in model_spans if "describe" in attributes_of(span)["gen_ai.prompt.name"]
    ]
    assert described_by["gen_ai.request.model"] == "proposer-model"
    assert (described_by["server.address"], described_by["server.port"]) == ("model.example", 8000)
    assert described_by["gen_ai.usage.cache_read.input_tokens"] == 100
    assert collector.resource["service.name"] == "memecourt"


async def test_without_a_caller_s_trace_a_new_one_starts_and_is_recorded(collector):
    async with a_scene(traces=True) as it:
        await it.judge("r-1")
        await it.judge("r-2", metadata=(("traceparent", "00-zz-not-a-trace"),))
        records = it.stand.records
    calls = {span.span_id: span for span in collector.named(COURT)}
    trials = {attributes_of(span)["memecourt.request.id"]: span for span in collector.named("invoke_workflow")}
    assert len(calls) == 2
    for record in records:
        trial = trials[record.opened.request_id]
        assert trial.trace_id.hex() == record.opened.trace_id
        call = calls[trial.parent_span_id]
        assert call.trace_id == trial.trace_id and not call.parent_span_id
    assert records[0].opened.trace_id != records[1].opened.trace_id


def test_a_caller_s_decision_not_to_sample_is_respected(collector):
    play(lambda it: it.judge("r-1", metadata=(("traceparent", f"00-{TRACE}-{CALLER}-00"),)), traces=True)
    assert not collector.spans


def test_spans_have_the_outcome_and_health_checks_have_no_span(collector):
    play(make_calls_with_every_outcome, traces=True)
    ends = Counter()
    for span in collector.spans:
        attributes = attributes_of(span)
        code = attributes["rpc.response.status_code"]
        ends[span.name, code] += 1
        # Server errors set the span's error status; the caller's errors and cancellations do not.
        ours = code in {"UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"}
        assert (span.status.code == Status.STATUS_CODE_ERROR) == ours
        assert attributes.get("error.type") == (code if ours else None)
        assert not span.status.message
    assert ends.pop((f"{COURT}/Judge", LATE)) >= 1
    assert ends == {
        (f"{COURT}/Judge", "OK"): 2,
        (f"{COURT}/Judge", "INVALID_ARGUMENT"): 2,
        (f"{COURT}/Judge", "UNAVAILABLE"): 1,
        (f"{COURT}/Judge", "INTERNAL"): 1,
        (f"{COURT}/Judge", "CANCELLED"): 1,
        (f"{COURT}/WatchTrial", "OK"): 1,
        (f"{COURT}/WatchTrial", "INVALID_ARGUMENT"): 1,
        (f"{COURT}/JudgeStream", "OK"): 1,
    }


def test_a_failed_trial_s_span_has_step_and_reason(collector):
    court = a_court(Cast(accuser_ask=Unavailable("no such words in a span", reason="MODEL_GONE")))
    play(lambda it: expect_error(it.judge("r-1")), traces=True, court=court)
    (trial,) = collector.named("invoke_workflow")
    attributes = attributes_of(trial)
    assert (attributes["memecourt.outcome"], attributes["error.type"]) == ("FAILED", "MODEL_GONE")
    assert attributes["memecourt.step"] and trial.status.code == Status.STATUS_CODE_ERROR and not trial.status.message
    (call,) = collector.named(COURT)
    assert attributes_of(call)["rpc.response.status_code"] == "UNAVAILABLE"


def test_a_resumed_trial_continues_in_the_recorded_trace(collector):
    case = TrialCase("t", fakes.a_meme(), Procedure.FULL, trace_id=TRACE, request_id="r-1")
    whole = asyncio.run(a_court().run(case, fakes.RecordingSink()))
    cut = TrialRecord.of(whole.events[:8])

    async def work(it):
        it.telemetry.resuming(cut)
        return await it.stand.court.resume(cut, fakes.a_picture(), it.telemetry.watch)

    record = play(work, traces=True)
    (trial,) = collector.named("invoke_workflow")
    assert trial.trace_id.hex() == TRACE and not trial.parent_span_id
    assert attributes_of(trial)["memecourt.resumed"] is True and attributes_of(trial)["memecourt.request.id"] == "r-1"
    assert {span.parent_span_id for span in collector.named("chat ")} == {trial.span_id}
    new = sum(1 for _ in calls_of(record)) - sum(1 for _ in calls_of(cut))
    assert len(collector.named("chat ")) == new


async def test_a_trial_recorded_in_another_trace_is_linked_to_its_call(collector):
    async with a_scene(traces=True) as it:
        it.telemetry.trace_id = lambda: "f" * 32
        await it.judge("r-1", metadata=(("traceparent", f"00-{TRACE}-{CALLER}-01"),))
    (call,) = collector.named(COURT)
    (trial,) = collector.named("invoke_workflow")
    assert trial.trace_id.hex() == "f" * 32 and not trial.parent_span_id
    assert [(link.trace_id, link.span_id) for link in trial.links] == [(call.trace_id, call.span_id)]


async def test_reuse_is_noted_in_the_call_s_span(collector):
    async with a_scene(traces=True) as it:

        async def judge(request, context):
            it.telemetry.reused(near=False)
            return wire.JudgeResponse()

        it.stand.judge = judge
        server = grpc.aio.server(interceptors=it.telemetry.interceptors())
        server.add_generic_rpc_handlers((it.stand.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            it.channel = channel
            await it.judge("r-1")
        await server.stop(0)
    assert attributes_of(collector.named(COURT)[0])["memecourt.reused"] == "exact"


def test_the_operator_s_variables_name_the_service(collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "court of appeal")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=one")
    play(lambda it: it.judge("fine"), traces=True)
    assert collector.resource["service.name"] == "court of appeal"
    assert collector.resource["deployment.environment.name"] == "test"
    assert collector.resource["service.instance.id"] == "one"


async def test_trials_run_without_a_reachable_collector(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with a_scene(traces=True) as it:
        await it.judge("r-1")
        (record,) = it.stand.records
    assert record.verdict is not None


def test_a_silent_collector_does_not_delay_shutdown(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("serving.telemetry.tracing._TO_EXPORT_S", 0.2)
        play(lambda it: it.judge("r-1"), traces=True)
    assert "dropped" in caplog.text


NEWER = {"gen_ai.prompt.version"}
"""In the conventions' repository, but not yet in the installed package."""


OPENINFERENCE = {
    *("openinference.span.kind", "session.id", "agent.name", "llm.model_name", "llm.token_count.prompt"),
    *("llm.token_count.completion", "llm.token_count.total", "llm.token_count.prompt_details.cache_read"),
}
"""The attributes of its specification that we use (tests/live/test_phoenix.py shows
that they are understood)."""


def test_attribute_names_follow_the_conventions(collector):
    play(lambda it: it.judge("r-1"), traces=True)
    known = {
        value
        for module in (gen_ai_attributes, rpc_attributes, server_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    used = {name for span in collector.spans for name in attributes_of(span)}
    theirs = {name for name in used if not name.startswith("memecourt.")}
    assert OPENINFERENCE <= theirs <= known | NEWER | OPENINFERENCE
    assert {name for name in used if name.startswith("gen_ai.")} >= {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.usage.input_tokens",
    }


# The server with all its parts: only precedents' pictures, search and models are fakes.

MARKED = {
    "text": "zebrawords of people from Blueland",
    "second text": "zebrawords of people from Redland",
    "namespace": "zebranamespace",
    "content": "zebracontent",
    "precedent": "zebraprecedent",
    "category": "zebracategory",
    "source": "zebrasource",
    "read": "zebraread off the picture",
    "said": "zebrasaid by a model",
    "reviewer": "zebrareviewer",
    "review": "zebrareason of a review",
}
METADATA = "zebrametadata of a picture"
"""Metadata in the picture's file, which is not even stored."""


def a_picture_file(color):
    """Returns a PNG with metadata, in its text chunk and in its EXIF data."""
    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = METADATA
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", METADATA)
    file = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(file, "PNG", exif=exif, pnginfo=info)
    assert file.getvalue().count(METADATA.encode()) == 2
    return file.getvalue()


def marked_court():
    found = fakes.findings([fakes.H] * 5)
    exhibits = tuple(
        fakes.precedent(place, fakes.H, categories=(MARKED["category"],)).model_copy(
            update={"id": f"{MARKED['precedent']}-{place}", "text": MARKED["precedent"], "source": MARKED["source"]}
        )
        for place in range(3)
    )
    found = found.model_copy(update={"exhibits": exhibits, "nearest_harmful": exhibits[0]})
    replies = {
        "describe": {"description": MARKED["said"]},
        "answer": {"answer": MARKED["said"]},
        "ask": {"question": f"What does {MARKED['said']} mean?"},
        "summarise": {"summary": MARKED["said"], "justification": MARKED["said"]},
    }
    cast = Cast(rounds=2, **{task: lambda _, line=line: line for task, line in replies.items()})
    return a_court(cast, found=found, reader=fakes.FakeReader(MARKED["read"]))


@asynccontextmanager
async def a_server(path, court):
    settings = Settings(home=path, metrics="127.0.0.1:0", traces=True, procedure="FULL")
    async with AsyncExitStack() as stack:
        telemetry = await stack.enter_async_context(open_telemetry(settings))
        docket = Docket.open(settings.docket_place)
        stack.push_async_callback(docket.close)
        pictures = GuardedPictureReader(workers=1)
        stack.push_async_callback(pictures.aclose)
        executor = TrialExecutor(court, pictures, docket)
        reception = await stack.enter_async_context(TrialRunner(executor, settings, telemetry))
        memory = ReceiveBudget(settings.picture_memory, settings.idle)
        services = CourtService(settings, telemetry, memory=memory), DocketService(telemetry, memory=memory)
        services[0].open(executor, reception)
        services[1].open(executor, reception.refresh)
        telemetry.metrics.read("library_precedents", lambda: executor.court.finder.library.size)
        server, _ = await make_server(Methods(*services, telemetry=telemetry))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stack.push_async_callback(server.stop, 0)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        yield Scene(telemetry, None, channel), executor


async def run_all_kinds_of_calls(it, executor):
    """Makes trials with and without text, one that fails, a reuse, a stream and a review; returns the records."""
    content = wire.Content(namespace=MARKED["namespace"], id=MARKED["content"])
    court, dockets = CourtStub(it.channel), DocketStub(it.channel)

    def ask(request_id, color="red", **changes):
        return wire.JudgeRequest(request_id=request_id, content=content, image=a_picture_file(color), **changes)

    first = await court.Judge(ask("r-0", text=MARKED["text"]), timeout=60)
    again = await court.Judge(ask("r-1", text=MARKED["text"]), timeout=60)
    same = await court.Judge(ask("r-0", text=MARKED["text"]), timeout=60)
    assert again.reused_from.verdict_id == first.verdict_id == same.verdict_id
    read = await court.Judge(ask("r-2", "green"), timeout=60, metadata=(("traceparent", f"00-{TRACE}-{CALLER}-01"),))
    stream_requests = [ask("r-3", "blue", text=MARKED["second text"]), ask("", "blue"), ask("r-4", text="x" * 10_001)]
    answers = [
        answer
        async for answer in court.JudgeStream(iter([wire.JudgeStreamRequest(request=each) for each in stream_requests]))
    ]
    assert sorted(answer.WhichOneof("outcome") for answer in answers) == ["failure", "failure", "verdict"]
    await dockets.ReviewVerdict(
        wire.ReviewVerdictRequest(
            trial_id=first.verdict_id,
            outcome=wire.REVIEW_OUTCOME_OVERRULED,
            label=wire.LABEL_NOT_HARMFUL,
            reason=MARKED["review"],
            reviewer=MARKED["reviewer"],
        ),
        timeout=60,
    )
    with pytest.raises(grpc.aio.AioRpcError):
        await court.Judge(wire.JudgeRequest(content=content, image=METADATA.encode()), timeout=60)
    # Libraries may log parts of a meme.
    logging.getLogger("sqlalchemy.engine").error("INSERT %s", MARKED["text"])
    logging.getLogger("asyncio").error(MARKED["said"], exc_info=ValueError(MARKED["read"]))
    assert read.trace_id == TRACE
    return [await executor.docket.trials.record(line.trial_id) for line in await executor.docket.index.list(limit=100)]


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_the_server_s_telemetry_matches_the_docket_and_reveals_no_meme(collector, tmp_path, log_format):
    with logging_as(log_format) as lines:
        async with a_server(tmp_path, marked_court()) as (it, executor):
            records = await run_all_kinds_of_calls(it, executor)
            refused = frozenset({("service", COURT), ("method", "Judge"), ("code", "INVALID_ARGUMENT")})

            async def all_counted():
                return ("memecourt_requests_total", refused) in await it.values()

            await until(all_counted)
            values, page = await it.values(), await asyncio.to_thread(it.scraped)

    # Metrics equal the figures in the docket.
    def total(name, **labels):
        return sum(
            v
            for (each, sample_labels), v in values.items()
            if each == name and set(labels.items()) <= set(sample_labels)
        )

    assert len(records) == 3
    assert total("memecourt_trials_total", outcome="DECIDED", procedure="FULL") == 3
    assert total("memecourt_trials_opened_total") == 3
    calls = [each for record in records for each in calls_of(record)]
    assert total("memecourt_model_calls_total") == sum(number for _, number in calls)
    assert total("memecourt_model_input_tokens_total") == sum(call.tokens_in for call, _ in calls)
    assert total("memecourt_model_output_tokens_total") == sum(call.tokens_out for call, _ in calls)
    assert total("memecourt_reused_verdicts_total", kind="exact") == 1
    assert total("memecourt_reused_verdicts_total") == 1
    assert total("memecourt_reviews_total", outcome="OVERRULED") == 1
    assert total("memecourt_requests_total", method="Judge", code="OK") == 4
    assert total("memecourt_requests_total", method="Judge", code="INVALID_ARGUMENT") == 1
    assert total("memecourt_requests_total", method="ReviewVerdict", code="OK") == 1
    assert total("memecourt_stream_responses_total", code="OK") == 1
    assert total("memecourt_stream_responses_total", code="INVALID_ARGUMENT") == 2
    assert total("memecourt_texts_total", source="OCR") == 1 and total("memecourt_texts_total", source="CALLER") == 2
    assert total("memecourt_picture_decode_duration_seconds_count") >= 3
    assert total("memecourt_library_precedents") == fakes.LIBRARY.size
    assert total("memecourt_running_trials") == total("memecourt_waiting_requests") == 0

    # Every record names the trace of its trial's span, which is a child of the call's span.
    trials = {attributes_of(span)["memecourt.trial.id"]: span for span in collector.named("invoke_workflow")}
    spans = {span.span_id: span for span in collector.spans}
    assert trials.keys() == {record.trial_id for record in records}
    for record in records:
        trial = trials[record.trial_id]
        call = spans[trial.parent_span_id]
        assert trial.trace_id.hex() == record.opened.trace_id == call.trace_id.hex()
        method = "JudgeStream" if record.opened.request_id == "r-3" else "Judge"
        assert call.name == f"{COURT}/{method}"
        model_spans = [span for span in collector.named("chat ") if span.parent_span_id == trial.span_id]
        assert len(model_spans) == sum(1 for _ in calls_of(record))
    assert [attributes_of(span).get("memecourt.reused") for span in collector.named(f"{COURT}/Judge")].count(
        "exact"
    ) == 1

    # PR-1: the markers went through the trials and are stored, but nothing that an operator sees contains them.
    stored = " ".join(event.model_dump_json() for record in records for event in record.events)
    assert all(marker in stored for marker in MARKED.values())
    exported = "".join(str(request) for request in collector.requests)
    identities = [record.opened.meme for record in records]
    for place in (page, exported, lines.text):
        assert "zebra" not in place.lower() and "blueland" not in place.lower()
        for meme in identities:
            assert meme.pixels_sha256 not in place and meme.bytes_sha256 not in place
    for record in records:
        for name in (record.trial_id, record.opened.request_id):
            assert name in lines.text and name in exported
            assert f'"{name}"' not in page
    assert "sqlalchemy.engine" in lines.text
    if log_format == "json":
        of_trials = [json.loads(line) for line in lines if '"memecourt.trials"' in line]
        assert len(of_trials) == sum(len(record.events) for record in records) - 1  # without the review
        assert {line["request"] for line in of_trials} == {"r-0", "r-2", "r-3"}
