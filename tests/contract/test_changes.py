"""Requests and contents whose answers a review changes, over gRPC and HTTP."""

from contextlib import asynccontextmanager

import httpx2
import pytest

from memecourt.client import AsyncClient, judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access import tokens as token_file
from serving.access.callers import Scope
from tests.support.dockets import NOON
from tests.support.real_court import IMAGE, real_court
from tests.support.service_calls import refusal_of

NO_REVIEW = ("NOT_FOUND", "TRIAL_UNKNOWN", "entry")


@pytest.fixture
def tokens(tmp_path):
    """Returns the file, and tokens of a pipeline of one namespace, of one of another, and of a reviewer of all."""
    file = tmp_path / "tokens.toml"
    only = {"forum": [Scope.JUDGE], "shop": [Scope.JUDGE], "all": [Scope.JUDGE, Scope.REVIEW, Scope.ADMIN]}
    namespaces = {"forum": ["forum"], "shop": ["shop"], "all": None}
    return file, {name: token_file.add(file, name, scopes, namespaces[name]) for name, scopes in only.items()}


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


@asynccontextmanager
async def served(tmp_path, tokens, **settings):
    async with (
        real_court(tmp_path, http="127.0.0.1:0", tokens=tokens[0], reuse="everywhere", **settings) as court,
        httpx2.AsyncClient(base_url=court.http, trust_env=False, timeout=120) as web,
    ):
        yield court, web, tokens[1]


async def judged(court, token, content_id, namespace="forum", request_id="", text="my bird sings"):
    request = judge_request(IMAGE, text=text, request_id=request_id, namespace=namespace, content_id=content_id)
    return await court.judge.Judge(request, metadata=bearer(token))


async def reviewed(court, token, trial_id, outcome=wire.REVIEW_OUTCOME_OVERRULED):
    """Reviews, and returns the entry that the stream of reviews names."""
    label = wire.LABEL_NOT_HARMFUL if outcome == wire.REVIEW_OUTCOME_OVERRULED else wire.LABEL_UNSPECIFIED
    review = wire.ReviewVerdictRequest(trial_id=trial_id, outcome=outcome, label=label, reason="I looked.")
    await court.records.ReviewVerdict(review, metadata=bearer(token))
    async with AsyncClient(court.address, token=token, allow_plain_token=True) as client:
        entries = []
        async for response in client.reviews(0):
            entries.append(response.reviewed.entry)
            if response.next_entry == await court.docket.log.size():
                return entries[-1]


async def names(court, token, entry, size=0):
    async with AsyncClient(court.address, token=token, allow_plain_token=True) as client:
        return [
            (each.content.namespace, each.content.id, each.request_id)
            async for each in client.changes(entry, page_size=size)
        ]


async def test_a_review_lists_the_requests_and_contents_that_had_the_old_answer(tmp_path, tokens):
    async with served(tmp_path, tokens) as (court, web, of):
        first = await judged(court, of["all"], "post-1", request_id="r1")
        for number in (2, 3, 4):
            await judged(court, of["all"], f"post-{number}", request_id=f"r{number}")
        unnamed = await judged(court, of["all"], "post-5")
        shop = await judged(court, of["all"], "item-1", "shop", "s1")
        assert {unnamed.verdict_id, shop.verdict_id} == {first.verdict_id}
        await judged(court, of["all"], "post-9", request_id="r9", text="another text")
        entry = await reviewed(court, of["all"], first.verdict_id)
        expected = [("forum", f"post-{number}", f"r{number}") for number in (1, 2, 3, 4)]
        expected = sorted([*expected, ("forum", "post-5", unnamed.request_id)], key=lambda each: each[2])
        assert await names(court, of["forum"], entry) == expected
        for size in (1, 2, 1000):
            assert await names(court, of["all"], entry, size) == [*expected, ("shop", "item-1", "s1")]
        found, address = [], f"/v1/reviews/{entry}/changes"
        token = ""
        while True:
            page = await web.get(
                address, params={"page_size": 2, "page_token": token}, headers=dict(bearer(of["forum"]))
            )
            assert page.status_code == 200, page.text
            assert page.json()["in_force"]["decision"] == "allow"
            found += [(one["content"]["namespace"], one["content"]["id"], one["request_id"])
                      for one in page.json()["requests"]]  # fmt: skip
            if not (token := page.json()["next_page_token"]):
                break
        assert found == expected


async def test_requests_after_the_review_are_left_out_and_a_later_review_lists_them(tmp_path, tokens, monkeypatch):
    monkeypatch.setattr("serving.rpc.docket._LATE_S", 0.0)
    async with served(tmp_path, tokens) as (court, _web, of):
        first = await judged(court, of["all"], "post-1", request_id="r1")
        overruled = await reviewed(court, of["all"], first.verdict_id)
        repost = await judged(court, of["all"], "post-2", request_id="r2")
        assert repost.decision == "allow"
        upheld = await reviewed(court, of["all"], first.verdict_id, wire.REVIEW_OUTCOME_UPHELD)
        one, both = [await names(court, of["all"], entry) for entry in (overruled, upheld)]
    assert one == [("forum", "post-1", "r1")]
    assert both == [*one, ("forum", "post-2", "r2")]


async def test_reviews_of_other_namespaces_of_erased_trials_and_of_no_entry_are_not_found(tmp_path, tokens):
    async with served(tmp_path, tokens) as (court, web, of):
        first = await judged(court, of["all"], "post-1", request_id="r1")
        entry = await reviewed(court, of["all"], first.verdict_id)

        async def refused(name, number):
            request = wire.ListChangesRequest(entry=number)
            refusal = await refusal_of(court.records.ListChanges(request, metadata=bearer(of[name])))
            address = f"/v1/reviews/{number}/changes"
            page = await web.get(address, headers=dict(bearer(of[name])))
            assert (page.status_code, page.json()["reason"]) == (404, "TRIAL_UNKNOWN")
            return refusal.summary

        assert await refused("shop", entry) == NO_REVIEW
        for number in (0, entry + 1, 2**64 - 1):
            assert await refused("all", number) == NO_REVIEW
        await court.docket.eraser.erase(first.verdict_id, who="ada", why="asked", at=NOON)
        assert await refused("all", entry) == NO_REVIEW


@pytest.mark.parametrize("size", [-1, 1001])
async def test_pages_have_at_most_a_thousand_requests_and_tokens_of_other_lists_are_refused(tmp_path, tokens, size):
    async with served(tmp_path, tokens) as (court, _web, of):
        for number in (1, 2):
            first = await judged(court, of["all"], f"post-{number}", request_id=f"r{number}")
        entries = [await reviewed(court, of["all"], first.verdict_id) for _ in range(2)]
        page = wire.ListChangesRequest(entry=entries[0], page_size=1)
        token = (await court.records.ListChanges(page, metadata=bearer(of["all"]))).next_page_token
        trials = await court.records.ListTrials(wire.ListTrialsRequest(), metadata=bearer(of["all"]))
        assert token and trials.trials
        refusals = []
        for request in (
            wire.ListChangesRequest(entry=entries[0], page_size=size),
            wire.ListChangesRequest(entry=entries[1], page_token=token),
            wire.ListChangesRequest(entry=entries[0], page_token=token[:-2] + "AA"),
        ):
            refusal = await refusal_of(court.records.ListChanges(request, metadata=bearer(of["all"])))
            refusals.append(refusal.summary)
        bounds, *others = refusals
    assert bounds[0] == "INVALID_ARGUMENT" and bounds[2] == "page_size"
    assert others == [("INVALID_ARGUMENT", "BAD_PAGE_TOKEN", "page_token")] * 2
