"""The contract of memecourt.v1.Court over a real channel and server; only what a trial depends on is a fake."""

import asyncio
import dataclasses
from contextlib import suppress

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from court import errors
from court.events import NearDuplicate, Procedure, TextSource
from court.precedents import Relation
from court.record import TrialAborted, TrialState
from court.settings import TrialSettings
from court.verdict import Label, ReviewReason, ScoreMeaning, Strength
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.docket.errors import TrialUnknown
from serving.judging.request import Caller
from serving.rpc.flow_control import Reservation
from serving.rpc.health import COURT
from serving.rpc.status import failure_of, status_of
from tests.support.cast import RULING, Cast, full_court
from tests.support.fakes import FakeReader, H, N, findings
from tests.support.leftovers import soon, without_garbage_collector
from tests.support.playing import run_within
from tests.support.scenes import IMAGE, a_scene, play
from tests.support.service_calls import Refusal
from tests.support.trial import a_court

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_a_response_carries_everything_the_verdict_is_based_on(tmp_path):
    request = wire.JudgeRequest(
        request_id="r-1",
        content=wire.Content(namespace="forum", id="post-7"),
        image=IMAGE,
        text="some text",
        language="en",
        procedure=wire.PROCEDURE_SUMMARY,
        client_token=b"\x00mine",
    )
    async with a_scene(tmp_path, found=findings([H, H, N, H, H])) as it:
        metadata = (("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),)
        response = await it.stub.Judge(request, timeout=60, metadata=metadata)
        record = await it.docket.trials.record(response.verdict_id)
    assert response.label == wire.LABEL_HARMFUL
    assert response.request_id == "r-1"
    assert (response.content.namespace, response.content.id) == ("forum", "post-7")
    assert response.client_token == b"\x00mine"
    assert response.trace_id == TRACE == record.opened.trace_id
    assert response.harm_score == record.verdict.harm_score
    assert response.harm_score_meaning == wire.SCORE_MEANING_PRECEDENT_VOTE
    assert response.strengths.harmful == wire.STRENGTH_STRONG
    assert response.rationale == record.verdict.rationale
    assert [(p.id, p.label) for p in response.precedents] == [
        ("p0", wire.LABEL_HARMFUL),
        ("p1", wire.LABEL_HARMFUL),
        ("p2", wire.LABEL_NOT_HARMFUL),
    ]
    assert response.precedents[1].text_similarity == pytest.approx(0.79)
    assert response.precedents[0].relation == wire.RELATION_SIMILAR
    assert (response.text.text, response.text.source) == ("some text", wire.TEXT_SOURCE_CALLER)
    assert response.versions.library.digest == "sha256:0"
    assert response.versions.settings == record.opened.versions.settings
    assert response.policy.digest == record.opened.policy.digest
    assert response.picture.pixels_sha256 == "f" * 64
    assert list(response.picture.frames_judged) == [0]
    assert response.decided_at.ToDatetime() == record.events[-1].at.replace(tzinfo=None)
    assert response.timings.total.ToNanoseconds() > 0
    assert not response.needs_human_review
    assert record.state is TrialState.DECIDED


async def test_undecided_has_no_score_or_strengths_and_requests_a_review(tmp_path):
    async with a_scene(tmp_path, found=findings([])) as it:
        response = await it.stub.Judge(judge_request(IMAGE, text="x"), timeout=60)
    assert response.label == wire.LABEL_UNDECIDED
    assert not response.HasField("harm_score")
    assert not response.HasField("strengths")
    assert response.needs_human_review
    assert [r.reason for r in response.review_reasons] == [wire.REVIEW_REASON_NO_SIMILAR_PRECEDENT]


async def test_a_half_that_was_not_compared_has_no_similarity(tmp_path):
    async with a_scene(tmp_path, found=findings([H] * 5, picture=None)) as it:
        response = await it.stub.Judge(judge_request(IMAGE, text="x"), timeout=60)
    assert response.precedents[0].HasField("text_similarity")
    assert not response.precedents[0].HasField("picture_similarity")


async def test_an_empty_text_differs_from_an_absent_text(tmp_path):
    async with a_scene(tmp_path, reader=FakeReader("as read")) as it:
        absent = await it.stub.Judge(judge_request(IMAGE), timeout=60)
        empty = await it.stub.Judge(judge_request(IMAGE, text=""), timeout=60)
    assert (absent.text.text, absent.text.source) == ("as read", wire.TEXT_SOURCE_OCR)
    assert (empty.text.text, empty.text.source) == ("", wire.TEXT_SOURCE_NONE)


async def test_missing_ids_are_generated(tmp_path):
    async with a_scene(tmp_path) as it:
        metadata = (("traceparent", "00-zz-not-a-trace"),)
        one, two = [
            await it.stub.Judge(judge_request(IMAGE, text="x"), timeout=60, metadata=metadata) for _ in range(2)
        ]
    assert one.request_id and one.request_id != two.request_id
    assert one.verdict_id != two.verdict_id
    assert len(one.trace_id) == 32 and one.trace_id != two.trace_id


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"request_id": "x" * 129}, "request_id", "FIELD_TOO_LONG"),
        ({"request_id": "a\0b"}, "request_id", "FIELD_HOLDS_NUL"),
        ({"content": wire.Content(namespace="x" * 129)}, "content.namespace", "FIELD_TOO_LONG"),
        ({"content": wire.Content(id="x" * 257)}, "content.id", "FIELD_TOO_LONG"),
        ({"client_token": b"x" * 1025}, "client_token", "FIELD_TOO_LONG"),
        ({"language": "english, please"}, "language", "BAD_LANGUAGE"),
        ({"language": "klingon"}, "language", "BAD_LANGUAGE"),
        ({"language": "english"}, "language", "BAD_LANGUAGE"),
        ({"language": "x"}, "language", "BAD_LANGUAGE"),
        ({"procedure": 99}, "procedure", "UNKNOWN_PROCEDURE"),
        ({"text": "x" * 1_000_000}, "text", "TEXT_TOO_LONG"),
    ],
)
async def test_a_malformed_field_is_named(tmp_path, change, field, reason):
    request = wire.JudgeRequest(**{"image": IMAGE, "text": "x", **change})
    async with a_scene(tmp_path) as it:
        refusal = await it.refusal(request)
        next_response = await it.stub.Judge(judge_request(IMAGE, text="x"), timeout=60)
        lines = await it.docket.index.list(limit=9)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.info.reason == reason
    (bad,) = refusal.of(error_details_pb2.BadRequest)
    assert [violation.field for violation in bad.field_violations] == [field]
    assert bad.field_violations[0].description == refusal.message
    assert next_response.label == wire.LABEL_HARMFUL
    assert len(lines) == 1  # only the valid request was tried


async def test_a_malformed_message_is_an_invalid_argument(tmp_path):
    async with a_scene(tmp_path) as it:
        call = it.channel.unary_unary(f"/{COURT}/Judge")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff not a message", timeout=60)
        refusal = Refusal(caught.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.info.reason == "MALFORMED_REQUEST"


@pytest.mark.parametrize("procedure", [wire.PROCEDURE_FULL, wire.PROCEDURE_CASCADE])
def test_a_procedure_that_is_not_configured_is_refused(tmp_path, procedure):
    refusal = play(lambda it: it.refusal(judge_request(IMAGE, text="x", procedure=procedure)), tmp_path)
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.info.reason == "PROCEDURE_NOT_LOADED"
    assert "SUMMARY" in refusal.message


async def test_required_policies_are_checked(tmp_path):
    async with a_scene(tmp_path) as it:
        policy = (await it.stub.Judge(judge_request(IMAGE, text="x"), timeout=60)).policy
        references = [
            wire.PolicyReference(id=policy.id),
            policy,
            wire.PolicyReference(digest=policy.digest),
            wire.PolicyReference(id="another"),
            wire.PolicyReference(id="another", digest=policy.digest),
            wire.PolicyReference(version="0"),
            wire.PolicyReference(digest="sha256:0"),
            wire.PolicyReference(id=policy.id, version="0"),
            wire.PolicyReference(id=policy.id, digest="sha256:0"),
        ]
        requests = [wire.JudgeRequest(image=IMAGE, text="x", policy=reference) for reference in references]
        taken = [await it.stub.Judge(request, timeout=60) for request in requests[:3]]
        refused = [await it.refusal(request) for request in requests[3:]]
    assert len(taken) == 3 and len(refused) == 6
    for refusal in refused:
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refusal.info.reason == "POLICY_NOT_LOADED"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["verdict", "refusal", "failure", "fault", "deadline", "left"])
async def test_memory_of_a_call_is_freed_with_its_answer(tmp_path, end):
    """At once: reference cycles would stay until the collector runs, and a refused picture can be large."""
    reader = FakeReader("read")
    options = {
        "verdict": {},
        "deadline": {"reader": reader},
        "left": {"reader": reader},
        "refusal": {"pictures": errors.BadPicture("It is cut.")},
        "failure": {"found": errors.Unavailable("Gone.")},
        "fault": {"pictures": RuntimeError("a fault")},
    }[end]
    async with a_scene(tmp_path, **options) as it:
        if "reader" in options:
            reader.wait = asyncio.Event()
        with without_garbage_collector(Caller, Reservation) as left:
            for number in range(3):
                request = judge_request(IMAGE, client_token=b"%d" % number)
                call = it.stub.Judge(request, timeout=1 if end == "deadline" else 20)
                if end == "left":
                    reader.asked.clear()
                    await reader.asked.wait()
                    call.cancel()
                try:
                    await call
                    assert end == "verdict"
                except (grpc.aio.AioRpcError, asyncio.CancelledError):
                    assert end != "verdict"
                del call
            assert await soon(left) == []


@pytest.mark.parametrize(
    ("options", "code", "reason", "retry"),
    [
        (
            {"pictures": errors.BadPicture("It is cut.", reason="PICTURE_DAMAGED")},
            "INVALID_ARGUMENT",
            "PICTURE_DAMAGED",
            False,
        ),
        ({"pictures": errors.Unavailable("Later.", reason="X", retry_after=2.5)}, "UNAVAILABLE", "X", True),
        ({"reader": FakeReader(errors.Unavailable("Gone.", reason="Y"))}, "UNAVAILABLE", "Y", True),
        ({"found": errors.Unavailable("Gone.", reason="Z")}, "UNAVAILABLE", "Z", True),
        ({"found": errors.BadLibrary("Broken.")}, "FAILED_PRECONDITION", "BAD_LIBRARY", False),
        ({"found": RuntimeError("/secret/path 0x7f00 <script>")}, "INTERNAL", "INTERNAL", False),
        ({"pictures": RuntimeError("/secret/path 0x7f00 <script>")}, "INTERNAL", "INTERNAL", False),
    ],
)
async def test_errors_are_reported_in_google_rpc_terms(tmp_path, options, code, reason, retry):
    async with a_scene(tmp_path, **options) as it:
        refusal, lines = await it.refusal(judge_request(IMAGE)), await it.docket.index.list(limit=9)
    assert refusal.code.name == code
    assert refusal.info.reason == reason
    assert "secret" not in refusal.message and "0x7f" not in refusal.message
    retries = refusal.of(error_details_pb2.RetryInfo)
    assert len(retries) == retry
    if reason == "X":
        assert retries[0].retry_delay.ToMilliseconds() == 2500
    # A trial that started is on record, and the error names it.
    began = "pictures" not in options
    assert [line.state for line in lines] == ([TrialState.FAILED] if began else [])
    assert refusal.info.metadata.get("trial_id", None) == (lines[0].trial_id if began else None)


async def test_outside_its_session_the_court_is_unavailable(tmp_path):
    async with a_scene(tmp_path, open_court=False) as it:
        refusal = await it.refusal(judge_request(IMAGE))
        health = health_pb2_grpc.HealthStub(it.channel)
        health = [await health.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("", COURT)]
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert refusal.info.reason == "NOT_IN_SESSION"
    assert refusal.of(error_details_pb2.RetryInfo)
    assert all(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING for answer in health)


async def test_a_full_court_asks_for_a_retry_while_health_still_answers(tmp_path):
    wait = FakeReader("x")
    async with a_scene(tmp_path, reader=wait, concurrent_trials=1, waiting_trials=0) as it:
        wait.wait = asyncio.Event()
        running = it.stub.Judge(judge_request(IMAGE), timeout=60)
        await wait.asked.wait()
        refusal = await it.refusal(judge_request(IMAGE))
        health = await health_pb2_grpc.HealthStub(it.channel).Check(health_pb2.HealthCheckRequest(service=COURT))
        wait.wait.set()
        await running
        again = await it.stub.Judge(judge_request(IMAGE), timeout=60)
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.info.reason == "BUSY"
    assert refusal.of(error_details_pb2.RetryInfo)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert again.label == wire.LABEL_HARMFUL


DEADLINES = (1, 4, 16, 64)
"""Seconds. A busy machine may need longer than the first to reach the state under test; then the next is tried."""


@pytest.mark.parametrize("way_to_leave", ["deadline", "cancel"])
async def test_a_caller_that_leaves_ends_its_trial_and_the_record_says_so(tmp_path, way_to_leave):
    reader = FakeReader("never")
    async with a_scene(tmp_path, reader=reader) as it:
        reader.wait = asyncio.Event()
        for seconds in DEADLINES:
            call = it.stub.Judge(judge_request(IMAGE), timeout=seconds if way_to_leave == "deadline" else 60)
            if way_to_leave == "cancel":
                await reader.asked.wait()
                call.cancel()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)) as caught:
                await call
            if reader.asked.is_set():
                break
        await it.service.empty(60)
        last, *_ = await it.docket.index.list(limit=9)
        error, record = caught.value, await it.docket.trials.record(last.trial_id)
    if way_to_leave == "deadline":
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert record.state is TrialState.FAILED
    # The caller's deadline, the trial's own clock and the cancellation occur at the same moment.
    assert record.events[-1].reason in ({"DEADLINE", "CANCELLED"} if way_to_leave == "deadline" else {"CANCELLED"})
    assert record.verdict is None


def play_full(work, path, cast, **options):
    return run_within(a_scene(path, court=full_court(cast, **options)), work)


def test_a_full_trial_returns_finding_models_and_score(tmp_path):
    request = judge_request(IMAGE, text="x", procedure=wire.PROCEDURE_FULL)
    response = play_full(lambda it: it.stub.Judge(request, timeout=60), tmp_path, Cast(rounds=2))
    assert response.label == wire.LABEL_HARMFUL
    assert response.procedure == wire.PROCEDURE_FULL
    assert (response.finding.category, response.finding.clause, response.finding.target) == (
        "nationality",
        "4",
        "community",
    )
    assert response.harm_score_meaning == wire.SCORE_MEANING_LABEL_PROBABILITY
    assert dict(response.versions.models)["JUDGE"] == "judge-model"
    assert response.versions.prompts.startswith("sha256:")
    assert response.rationale == RULING["rationale"]


def test_without_precedents_the_response_names_no_library(tmp_path):
    cast = Cast(judge=lambda request: {**RULING, "precedents": {}})
    request = judge_request(IMAGE, text="x", procedure=wire.PROCEDURE_FULL)
    response = play_full(
        lambda it: it.stub.Judge(request, timeout=60), tmp_path, cast, settings=TrialSettings(precedents=False)
    )
    assert not response.precedents and not response.versions.HasField("library")
    assert response.finding.clause == "4"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (errors.Unavailable("gone", reason="MODEL_GONE"), "UNAVAILABLE", "MODEL_GONE"),
        (errors.ModelRefused("unknown model"), "FAILED_PRECONDITION", "MODEL_REFUSED"),
        ("", "ABORTED", "REPLY_EMPTY"),
    ],
)
async def test_failures_of_models_are_distinguished(tmp_path, error, code, reason):
    request = judge_request(IMAGE, text="x", procedure=wire.PROCEDURE_FULL)
    cast = Cast(judge=lambda _: error)
    async with a_scene(tmp_path, court=full_court(cast)) as it:
        refusal = await it.refusal(request)
        record = await it.docket.trials.record(refusal.info.metadata["trial_id"])
    assert (refusal.code.name, refusal.info.reason) == (code, reason)
    assert record.state is TrialState.FAILED and record.verdict is None


def test_sides_stop_early_so_that_the_verdict_meets_the_deadline(tmp_path):
    """The verdict says that the trial was cut short."""
    request = judge_request(IMAGE, text="x", procedure=wire.PROCEDURE_FULL)

    def verdict():
        for seconds in DEADLINES:
            cast = Cast(rounds=9, delay_s=seconds / 20)  # time for two thirds of the rounds
            with suppress(grpc.aio.AioRpcError):
                return play_full(lambda it, within=seconds: it.stub.Judge(request, timeout=within), tmp_path, cast)
        raise AssertionError("there was no verdict")

    response = verdict()
    assert response.label == wire.LABEL_HARMFUL
    assert wire.REVIEW_REASON_CUT_SHORT in [review.reason for review in response.review_reasons]


async def test_an_error_with_a_long_quotation_arrives(tmp_path):
    """A status larger than the client's metadata limit would sometimes arrive as another error."""
    request = judge_request(IMAGE, text="x", pins=wire.Pins(models={"\N{GRINNING FACE}" * 512: "x"}))
    async with a_scene(tmp_path) as it:
        refusals = [await it.refusal(request) for _ in range(30)]
    for refusal in refusals:
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "PIN_NOT_LOADED")
        assert len(refusal.message.encode()) <= 1000 and refusal.info.metadata["field"].startswith(
            "pins.models.\U0001f600"
        )


def test_every_enum_value_of_the_court_exists_on_the_wire():
    """A label, strength, reason or relation missing on the wire would fail only at its first occurrence."""
    for ours, theirs, prefix in (
        (Label, wire.Label, "LABEL_"),
        (Strength, wire.Strength, "STRENGTH_"),
        (ScoreMeaning, wire.ScoreMeaning, "SCORE_MEANING_"),
        (ReviewReason, wire.ReviewReason, "REVIEW_REASON_"),
        (Relation, wire.Relation, "RELATION_"),
        (Procedure, wire.Procedure, "PROCEDURE_"),
        (TextSource, wire.TextSource, "TEXT_SOURCE_"),
    ):
        assert {f"{prefix}{word}" for word in ours} | {f"{prefix}UNSPECIFIED"} == {name for name, _ in theirs.items()}


async def test_a_known_meme_gets_the_earlier_verdict_and_its_source(tmp_path):
    def request_for(namespace, content_id, **fields):
        return wire.JudgeRequest(
            image=IMAGE, text="x", content=wire.Content(namespace=namespace, id=content_id), **fields
        )

    async with a_scene(tmp_path, reuse="namespace") as it:
        first = await it.stub.Judge(request_for("forum", "1", client_token=b"1"), timeout=60)
        again = [await it.stub.Judge(request_for("forum", f"{n}", client_token=b"%d" % n), timeout=60) for n in (2, 3)]
        anew = await it.stub.Judge(request_for("forum", "4", try_anew=True), timeout=60)
        elsewhere = await it.stub.Judge(request_for("another", "5"), timeout=60)
    assert not first.HasField("reused_from")
    for number, response in zip((2, 3), again, strict=True):
        assert response.verdict_id == first.verdict_id
        assert response.reused_from == wire.ReusedFrom(
            verdict_id=first.verdict_id, content=wire.Content(namespace="forum", id="1")
        )
        assert (response.content.id, response.client_token) == (f"{number}", b"%d" % number)
        assert response.request_id not in ("", first.request_id)
        assert response.timings.text.ToNanoseconds() == response.timings.precedents.ToNanoseconds() == 0
        # Everything else equals the earlier trial's response.
        for own in ("request_id", "content", "client_token", "timings", "reused_from"):
            response.ClearField(own)
        expected = wire.JudgeResponse.FromString(first.SerializeToString())
        for own in ("request_id", "content", "client_token", "timings"):
            expected.ClearField(own)
        assert response == expected
    for other in (anew, elsewhere):
        assert other.verdict_id != first.verdict_id and not other.HasField("reused_from")


async def test_reused_request_ids_and_unloaded_versions_are_refused(tmp_path):
    async with a_scene(tmp_path) as it:
        first = await it.stub.Judge(judge_request(IMAGE, text="x", request_id="r"), timeout=60)
        same = await it.stub.Judge(judge_request(IMAGE, text="x", request_id="r"), timeout=60)
        elsewhere = await it.stub.Judge(judge_request(IMAGE, text="y", request_id="r", namespace="n"), timeout=60)
        taken = await it.refusal(judge_request(IMAGE, text="y", request_id="r"))
        pinned = wire.JudgeRequest(image=IMAGE, text="x", pins=wire.Pins(settings=first.versions.settings))
        accepted = await it.stub.Judge(pinned, timeout=60)
        pinned.pins.models["JUDGE"] = "another model"
        pinned = await it.refusal(pinned)
    assert same.verdict_id == first.verdict_id != elsewhere.verdict_id
    assert accepted.label == wire.LABEL_HARMFUL
    assert (taken.code.name, taken.info.reason) == ("ALREADY_EXISTS", "REQUEST_ID_TAKEN")
    assert taken.info.metadata["field"] == "request_id"
    assert (pinned.code.name, pinned.info.reason) == ("FAILED_PRECONDITION", "PIN_NOT_LOADED")
    assert pinned.info.metadata["field"] == "pins.models.judge"


def test_near_duplicates_are_returned_as_recorded(tmp_path):
    """The finder of near-duplicates is a fake; its result goes through the record to the response."""
    duplicate = NearDuplicate(trial_id="earlier", label=Label.HARMFUL, distance=12, same_text=True, same_picture=False)

    class Finder:
        async def find(self, *_, **__):
            return (duplicate,)

    court = dataclasses.replace(a_court(findings([N] * 5)), duplicates=Finder())
    response = play(lambda it: it.stub.Judge(judge_request(IMAGE, text="x"), timeout=60), tmp_path, court=court)
    assert list(response.near_duplicates) == [
        wire.NearDuplicate(verdict_id="earlier", label=wire.LABEL_HARMFUL, distance=12, same_text=True)
    ]
    assert wire.REVIEW_REASON_NEAR_DUPLICATE_HARMFUL in [review.reason for review in response.review_reasons]
    assert response.label == wire.LABEL_NOT_HARMFUL


def _kinds(kind):
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def test_every_kind_of_error_has_its_code():
    """An unmapped new kind would become INTERNAL, so each kind must be listed here with its code."""
    expected = {
        "CourtError": "INTERNAL",
        "CantResume": "INTERNAL",
        "DocketError": "INTERNAL",
        "LogError": "INTERNAL",
        "BadProof": "INTERNAL",
        "BadNote": "INTERNAL",
        "BadEntry": "INTERNAL",
        "BadInput": "INVALID_ARGUMENT",
        "BadPicture": "INVALID_ARGUMENT",
        "BadText": "INVALID_ARGUMENT",
        "BadRequest": "INVALID_ARGUMENT",
        "Malformed": "INVALID_ARGUMENT",
        "NoSuchPrecedent": "NOT_FOUND",
        "TrialUnknown": "NOT_FOUND",
        "TrialErased": "NOT_FOUND",
        "PrecedentExists": "ALREADY_EXISTS",
        "RequestConflict": "ALREADY_EXISTS",
        "CantChange": "FAILED_PRECONDITION",
        "NotDecided": "FAILED_PRECONDITION",
        "NotLoaded": "FAILED_PRECONDITION",
        "BadLibrary": "FAILED_PRECONDITION",
        "ModelRefused": "FAILED_PRECONDITION",
        "Unavailable": "UNAVAILABLE",
        "Overrun": "UNAVAILABLE",
        "Busy": "RESOURCE_EXHAUSTED",
        "ReplyUnusable": "ABORTED",
        "Unauthenticated": "UNAUTHENTICATED",
        "NotAllowed": "PERMISSION_DENIED",
    }
    special = {"ReplyUnusable": errors.ReplyUnusable("JUDGE", "judge", "REPLY_CUT", "it was cut")}
    ours = {k for k in _kinds(errors.CourtError) if k.__module__.split(".")[0] in ("court", "serving", "retrieval")}
    ours -= {TrialAborted}  # wraps another error and has its code
    # Errors that no call returns: of the command that starts a vLLM, of the console, and of a witness who settles
    # claims.
    elsewhere = (*("serving.models.vllm", "serving.docket.review.locks"), "court.expert.witness")
    ours = {kind for kind in ours if kind.__module__ not in elsewhere}
    assert {kind.__name__ for kind in ours} - expected.keys() == set()
    for kind in ours:
        error = special.get(kind.__name__) or kind("What is wrong, and what to do.")
        assert code_pb2.Code.Name(status_of(error).code) == expected[kind.__name__] == _name(failure_of(error).code)
    late = errors.Overrun("Over.", reason="DEADLINE")
    assert _name(status_of(late).code) == _name(failure_of(late).code) == "DEADLINE_EXCEEDED"
    assert not failure_of(late).HasField("retry_delay")


def _name(code):
    return code_pb2.Code.Name(code)


def test_a_message_that_quotes_the_caller_is_truncated():
    """A status too long for the metadata of a call would be lost as a whole."""
    assert len(status_of(TrialUnknown("x" * 100_000)).SerializeToString()) < 8192
    assert len(status_of(errors.BadRequest("x" * 100_000)).SerializeToString()) < 8192
