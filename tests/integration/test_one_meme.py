"""The number of files that one trial runs through: those a reader opens to follow a meme from request to answer."""

import asyncio
import os
import signal

import grpc
import pytest

from eval.standin.process import model_server
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub
from serving.app import serve
from serving.settings import Settings
from tests.support.pictures import captioned, encode
from tests.support.walks import Walk

MOST_FILES = 70
"""Most files of court, retrieval and serving in which functions run in the server's process during one full trial."""
BACKGROUND = {
    "retrieval/library/storage.py",
    "serving/rpc/health.py",
    "serving/judging/heartbeat.py",
    "serving/docket/retention.py",
    "serving/docket/review/corrections.py",
    "serving/docket/review/queue.py",
    "serving/wiring.py",
}
"""Files of background loops, which no trial calls: health checks, heartbeat, watching for a changed library, retention,
and having the library follow reviews."""


@pytest.mark.usefixtures("starter_home")
def test_one_full_trial_runs_functions_in_few_files(tmp_path):
    walk = Walk()
    walk.on = False

    async def judge_one(models):
        ready, address = asyncio.Event(), []
        settings = Settings(home=tmp_path, llm={"url": f"{models}/v1", "model": "stand-in"}, procedure="FULL")
        serving = asyncio.create_task(serve(settings, "127.0.0.1:0", bound=address.append, ready=ready.set))
        await asyncio.wait([serving, asyncio.ensure_future(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set(), serving.exception()
        async with grpc.aio.insecure_channel(address[0]) as channel:
            request = wire.JudgeRequest(image=encode(captioned("soup"), "PNG"), text="my aunt brings soup")
            walk.on = True
            response = await CourtStub(channel).Judge(request, timeout=120)
            walk.on = False
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        return response

    with walk.followed(), model_server("--play") as models:
        response = asyncio.run(judge_one(models))
    assert response.label != wire.LABEL_UNSPECIFIED and response.procedure == wire.PROCEDURE_FULL
    files = [name for name in walk.files("court", "retrieval", "serving") if name not in BACKGROUND]
    assert len(files) > 40, files  # fewer mean that the profiler missed the trial
    assert len(files) <= MOST_FILES, "\n".join(files)
