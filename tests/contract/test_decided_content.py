"""The same content after a person has decided it, and faults of reviews, each over gRPC and HTTP alike."""

import base64
from contextlib import asynccontextmanager

import grpc
import httpx2
import pytest

from court.precedents import STARTER
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.rest.messages import response_json
from tests.support.real_court import IMAGE, real_court
from tests.support.service_calls import refusal_of

HARMFUL_TEXT, FAR_TEXT = "my bird sings", "turbine blades"
UPHELD = {"outcome": "REVIEW_OUTCOME_UPHELD", "reason": "I looked."}
OVERRULED = {"outcome": "REVIEW_OUTCOME_OVERRULED", "label": "LABEL_NOT_HARMFUL", "reason": "I looked."}


class Grpc:
    """Calls over gRPC; answers are as JSON, and a refused review is its status and reason."""

    def __init__(self, court):
        self.court = court

    async def judge(self, text, image=IMAGE, **fields):
        return response_json(await self.court.judge.Judge(judge_request(image, text=text, **fields)))

    async def review(self, trial_id, review, reviewer="ada"):
        fields = {**review, "trial_id": trial_id, "reviewer": reviewer}
        call = self.court.records.ReviewVerdict(wire.ReviewVerdictRequest(**fields))
        try:
            await call
        except grpc.aio.AioRpcError:
            return (await refusal_of(call)).summary[:2]
        return None


class Http:
    """Calls over HTTP, likewise."""

    def __init__(self, web):
        self.web = web

    async def judge(self, text, image=IMAGE, **fields):
        picture = {"image": base64.b64encode(image).decode()} if image else {}
        body = {**picture, **fields, **({} if text is None else {"text": text})}
        answer = await self.web.post("/v1/judge", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def review(self, trial_id, review, reviewer="ada"):
        answer = await self.web.post(f"/v1/trials/{trial_id}/review", json={**review, "reviewer": reviewer})
        return None if answer.status_code == 200 else (answer.status_code, answer.json()["reason"])


@asynccontextmanager
async def served(tmp_path, way, **options):
    async with (
        real_court(tmp_path, http="127.0.0.1:0", **options) as court,
        httpx2.AsyncClient(base_url=court.http, trust_env=False, timeout=120) as web,
    ):
        yield court, Grpc(court) if way == "grpc" else Http(web)


def in_force(answer):
    return answer["in_force"]["by"].removeprefix("AUTHORITY_"), answer["decision"]


@pytest.fixture(params=["grpc", "http"])
def way(request):
    return request.param


@pytest.mark.parametrize(("review", "decision"), [(UPHELD, "block"), (OVERRULED, "allow")])
async def test_a_verdict_that_asks_for_review_is_decided_for_good_by_a_review(tmp_path, way, review, decision):
    """The starter library, whose verdicts all ask for a person."""
    async with served(tmp_path, way, library_name=STARTER) as (_court, caller):
        first = await caller.judge(HARMFUL_TEXT)
        assert first["label"] == "LABEL_HARMFUL" and first["needs_human_review"]
        assert in_force(first) == ("COURT", "review")
        assert "REVIEW_REASON_STARTER_LIBRARY" in {each["reason"] for each in first["review_reasons"]}
        assert await caller.review(first["verdict_id"], review) is None
        again = [await caller.judge(HARMFUL_TEXT), await caller.judge(HARMFUL_TEXT, try_anew=True)]
        assert [in_force(each) for each in again] == [("PERSON", decision)] * 2
        # The court's own words stay as they were.
        assert {each["label"] for each in again} == {"LABEL_HARMFUL"} and again[0]["needs_human_review"]
