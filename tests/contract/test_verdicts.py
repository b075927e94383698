"""GetVerdict through a real channel: what a trial has come to, while it is held, when it has failed, and afterwards."""

import asyncio

import grpc
import pytest

from court.errors import Unavailable
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access import tokens as token_file
from serving.access.callers import Scope
from tests.contract.real_court import IMAGE, real_court


def name(request_id, namespace=""):
    return wire.RequestName(namespace=namespace, request_id=request_id)


async def verdict(court, metadata=(), **fields):
    return await court.judge.GetVerdict(wire.GetVerdictRequest(**fields), timeout=60, metadata=metadata)


async def refused(court, code, metadata=(), **fields):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await verdict(court, metadata, **fields)
    assert caught.value.code() is code
    return caught.value.details()


def test_a_trial_is_told_of_while_it_is_held_and_when_it_has_a_verdict(tmp_path):
    async def work():
        async with real_court(tmp_path) as court:
            await refused(court, grpc.StatusCode.NOT_FOUND, request=name("r"))
            court.reader.wait = asyncio.Event()
            judging = asyncio.ensure_future(court.judge.Judge(judge_request(IMAGE, request_id="r"), timeout=60))
            await court.reader.asked.wait()
            held = await verdict(court, request=name("r"))
            assert held.state == wire.TRIAL_STATE_OPEN
            assert not held.HasField("verdict")
            court.reader.wait.set()
            response = await judging
            given = await verdict(court, request=name("r"))
            assert given.trial_id == held.trial_id == response.verdict_id
            assert given.state == wire.TRIAL_STATE_DECIDED
            response.ClearField("timings")
            assert given.verdict == response
            assert await verdict(court, trial_id=given.trial_id) == given
            # A request that was answered with the verdict of an earlier trial has that one.
            again = await court.judge.Judge(judge_request(IMAGE, request_id="s", text="as read"), timeout=60)
            reused = await verdict(court, request=name("s"))
            assert reused.verdict.verdict_id == again.verdict_id
            assert reused.verdict.request_id == "s"

    asyncio.run(work())


def test_a_trial_that_failed_has_no_verdict_and_says_why(tmp_path):
    async def work():
        async with real_court(tmp_path) as court:
            court.reader.result = Unavailable("The reader is away.", reason="READER_AWAY")
            with pytest.raises(grpc.aio.AioRpcError):
                await court.judge.Judge(judge_request(IMAGE, request_id="r"), timeout=60)
            failed = await verdict(court, request=name("r"))
            assert (failed.state, failed.failure_reason) == (wire.TRIAL_STATE_FAILED, "READER_AWAY")
            assert not failed.HasField("verdict")
            for nothing in ({}, {"trial_id": "x" * 200}, {"request": name("x" * 200)}):
                await refused(court, grpc.StatusCode.INVALID_ARGUMENT, **nothing)
            await refused(court, grpc.StatusCode.NOT_FOUND, trial_id="none")

    asyncio.run(work())


def test_a_trial_of_another_namespace_is_not_there(tmp_path):
    path = tmp_path / "tokens.toml"
    everybody, own = (
        (("authorization", f"Bearer {token_file.add(path, caller, [Scope.JUDGE], namespaces)}"),)
        for caller, namespaces in (("everybody", None), ("own", ["forum"]))
    )

    async def work():
        async with real_court(tmp_path, tokens=path) as court:
            asked = judge_request(IMAGE, request_id="r", namespace="other")
            trial_id = (await court.judge.Judge(asked, timeout=60, metadata=everybody)).verdict_id
            assert (await verdict(court, everybody, trial_id=trial_id)).trial_id == trial_id
            unknown = await refused(court, grpc.StatusCode.NOT_FOUND, own, trial_id="none")
            assert await refused(court, grpc.StatusCode.NOT_FOUND, own, trial_id=trial_id) == unknown
            await refused(court, grpc.StatusCode.PERMISSION_DENIED, own, request=name("r", "other"))
            await refused(court, grpc.StatusCode.NOT_FOUND, own, request=name("r", "forum"))

    asyncio.run(work())
