"""Priorities of requests to model servers, by the kind of call."""

import asyncio
from dataclasses import replace

from court.settings import TrialSettings
from memecourt.v1 import court_pb2 as wire
from tests.support.cast import Cast
from tests.support.real_court import IMAGE, real_court


def request(text):
    return wire.JudgeRequest(image=IMAGE, text=text, request_id=text, procedure=wire.PROCEDURE_FULL)


async def judged(it, text):
    return await it.judge.Judge(request(text), timeout=60)


async def streamed(it, *texts):
    call = it.judge.JudgeStream(timeout=60)
    for text in texts:
        await call.write(wire.JudgeStreamRequest(request=request(text)))
    await call.done_writing()
    return [answer async for answer in call]


def run_scene(path, scene):
    """Runs a scene with a court of scripted models; returns its result and the priorities of all model requests."""

    async def run():
        cast = Cast(rounds=2)
        async with real_court(path) as it:
            executor = it.reception._executor
            court = replace(executor.court, role_models=cast.role_models, settings=TrialSettings(rounds_max=2))
            object.__setattr__(executor, "court", court)
            return await scene(it), [model_request.priority for model_request in cast.requests()]

    return asyncio.run(run())


def test_single_verdicts_have_priority_over_streams(tmp_path):
    response, ranks = run_scene(tmp_path / "one", lambda it: judged(it, "a lamp"))
    assert response.label == wire.LABEL_HARMFUL
    assert max(ranks) <= 2 and min(ranks) == -51
    responses, behind = run_scene(tmp_path / "many", lambda it: streamed(it, "a lamp", "a river"))
    assert [response.WhichOneof("outcome") for response in responses] == ["verdict"] * 2
    assert min(behind) == 49 > max(ranks)
