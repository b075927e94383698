"""GetVerdict over a real channel: during a trial, after its failure, and after its verdict."""

import asyncio
from datetime import UTC, datetime

import grpc
import pytest

from court.errors import Unavailable
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.access.tokens import add
from serving.docket.store.requests import RequestName
from tests.support.real_court import IMAGE, real_court
from tests.support.service_calls import refusal_of


def request_name(request_id, namespace=""):
    return wire.RequestName(namespace=namespace, request_id=request_id)


async def verdict(court, metadata=(), **fields):
    return await court.judge.GetVerdict(wire.GetVerdictRequest(**fields), timeout=60, metadata=metadata)


async def refused(court, code, metadata=(), **fields):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await verdict(court, metadata, **fields)
    assert caught.value.code() is code
    return caught.value.details()


async def test_a_trial_is_reported_while_it_runs_and_when_decided(tmp_path):
    async with real_court(tmp_path) as court:
        await refused(court, grpc.StatusCode.NOT_FOUND, request=request_name("r"))
        court.reader.wait = asyncio.Event()
        judging = asyncio.ensure_future(court.judge.Judge(judge_request(IMAGE, request_id="r"), timeout=60))
        await court.reader.asked.wait()
        open_trial = await verdict(court, request=request_name("r"))
        assert open_trial.state == wire.TRIAL_STATE_OPEN
        assert not open_trial.HasField("verdict")
        court.reader.wait.set()
        response = await judging
        decided = await verdict(court, request=request_name("r"))
        assert decided.trial_id == open_trial.trial_id == response.verdict_id
        assert decided.state == wire.TRIAL_STATE_DECIDED
        response.ClearField("timings")
        assert decided.verdict == response
        assert await verdict(court, trial_id=decided.trial_id) == decided
        # A request answered with an earlier trial's verdict returns that verdict.
        again = await court.judge.Judge(judge_request(IMAGE, request_id="s", text="as read"), timeout=60)
        reused = await verdict(court, request=request_name("s"))
        assert reused.verdict.verdict_id == again.verdict_id
        assert reused.verdict.request_id == "s"


async def test_a_failed_trial_has_no_verdict_and_a_reason(tmp_path):
    async with real_court(tmp_path) as court:
        court.reader.result = Unavailable("The reader is away.", reason="READER_AWAY")
        with pytest.raises(grpc.aio.AioRpcError):
            await court.judge.Judge(judge_request(IMAGE, request_id="r"), timeout=60)
        failed = await verdict(court, request=request_name("r"))
        assert (failed.state, failed.failure_reason) == (wire.TRIAL_STATE_FAILED, "READER_AWAY")
        assert not failed.HasField("verdict")
        for invalid in ({}, {"trial_id": "x" * 200}, {"request": request_name("x" * 200)}):
            await refused(court, grpc.StatusCode.INVALID_ARGUMENT, **invalid)
        await refused(court, grpc.StatusCode.NOT_FOUND, trial_id="none")


async def test_a_trial_of_another_namespace_appears_not_to_exist(tmp_path):
    path = tmp_path / "tokens.toml"
    everybody, own = (
        (("authorization", f"Bearer {token_file.add(path, caller, [Scope.JUDGE], namespaces)}"),)
        for caller, namespaces in (("everybody", None), ("own", ["forum"]))
    )
    async with real_court(tmp_path, tokens=path) as court:
        request = judge_request(IMAGE, request_id="r", namespace="other")
        trial_id = (await court.judge.Judge(request, timeout=60, metadata=everybody)).verdict_id
        assert (await verdict(court, everybody, trial_id=trial_id)).trial_id == trial_id
        unknown = await refused(court, grpc.StatusCode.NOT_FOUND, own, trial_id="none")
        assert await refused(court, grpc.StatusCode.NOT_FOUND, own, trial_id=trial_id) == unknown
        await refused(court, grpc.StatusCode.PERMISSION_DENIED, own, request=request_name("r", "other"))
        await refused(court, grpc.StatusCode.NOT_FOUND, own, request=request_name("r", "forum"))


THREE = 3


def forum_request(**fields):
    content = wire.Content(namespace="forum", id="1")
    return wire.JudgeRequest(image=IMAGE, text="a cat", content=content, client_token=b"t", **fields)


async def test_the_original_request_of_the_trial_is_not_reported_as_reused(tmp_path):
    async with real_court(tmp_path) as court:
        first = await court.judge.Judge(forum_request(request_id="r"))
        for _ in range(THREE):
            other = await court.judge.Judge(forum_request())
        same = await court.judge.Judge(forum_request(request_id="r"))
    assert first.verdict_id == other.verdict_id == same.verdict_id
    assert [response.HasField("reused_from") for response in (first, other, same)] == [False, True, False]


async def test_a_generated_request_id_is_not_stored_for_content_without_an_id(tmp_path):
    async with real_court(tmp_path) as court:
        for _ in range(THREE):
            response = await court.judge.Judge(judge_request(IMAGE, text="a cat"))
        assert await court.docket.leases.claim_of(RequestName("", response.request_id)) is None


async def test_reuse_hides_the_source_in_a_namespace_the_caller_cannot_see(tmp_path):
    file = tmp_path / "tokens.toml"
    forum, blog, both = (
        add(file, "+".join(names), [Scope.JUDGE], names) for names in (["forum"], ["blog"], ["forum", "blog"])
    )
    async with real_court(tmp_path, tokens=file, reuse="everywhere") as court:
        await court.judge.Judge(forum_request(), metadata=bearer(forum))
        request = forum_request()
        request.content.namespace = "blog"
        responses = [
            await court.judge.Judge(request, metadata=bearer(token))
            for token in (blog, blog, both, both, both, blog, blog)
        ]
    assert len({response.verdict_id for response in responses}) == 1
    assert [response.reused_from.content.namespace for response in responses] == ["", "", *["forum"] * 3, "", ""]


async def test_a_trial_of_another_namespace_is_reported_as_unknown(tmp_path):
    file = tmp_path / "tokens.toml"
    insider, outsider = (add(file, name, [Scope.JUDGE], [name]) for name in ("forum", "elsewhere"))
    async with real_court(tmp_path, tokens=file) as court:
        existing, gone = [
            await court.judge.Judge(forum_request(try_anew=True), metadata=bearer(insider)) for _ in range(2)
        ]
        await court.docket.eraser.erase(gone.verdict_id, who="ada", why="as was asked", at=datetime.now(UTC))
        refusals = []
        for trial_id in (existing.verdict_id, gone.verdict_id, "nowhere"):
            watching = court.judge.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), metadata=bearer(outsider))
            refusals.append(await refusal_of(watching.read()))
    assert {(*refusal.summary, refusal.message) for refusal in refusals} == {
        ("NOT_FOUND", "TRIAL_UNKNOWN", "", "There is no such trial, or it has not begun yet.")
    }


def bearer(token):
    return (("authorization", f"Bearer {token}"),)
