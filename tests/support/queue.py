"""Helpers of tests of queue."""

from __future__ import annotations

import asyncio

import grpc

from court.errors import BadRequest
from memecourt.errors import JudgeError
from memecourt.v1 import court_pb2 as wire
from serving.queue.source import QueueSettings

AGAIN_S = 0.4
LONG_S = 4.0


"""For tests in which nothing may be redelivered by itself: longer than a busy machine keeps a loop waiting."""


class FakeCourt:
    """Answers each request_id with its scripted answers in turn, and then as not harmful."""

    def __init__(self, **scripted):
        self.scripted = {name: list(answers) for name, answers in scripted.items()}
        self.asked = []
        self.serves = True
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def judge(self, request):
        self.asked.append(request)
        await self.may_answer.wait()
        answers = self.scripted.get(request.request_id)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, JudgeError):
            raise answer
        return wire.JudgeResponse(
            request_id=request.request_id,
            verdict_id=f"verdict of {request.request_id}",
            label=answer or wire.LABEL_NOT_HARMFUL,
        )

    async def is_serving(self):
        return self.serves


def failed(code, reason="", retry_after=None):
    error = JudgeError(code, "Not now.")
    error.reason, error.retry_after = reason, retry_after
    return error


async def no_fetch(url):
    raise BadRequest("Nothing is fetched.", reason="URL_NOT_ALLOWED", field="image_url")


def settings(url, **options):
    defaults = {
        "stream": "memes",
        "group": "courts",
        "answers": "answers",
        "dead": "dead",
        "again_after_s": AGAIN_S,
        "remove": False,
    }
    return QueueSettings(**{"address": url, **defaults, **options})


def over_quota(retry_after):
    return failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", retry_after)
