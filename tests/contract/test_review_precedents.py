"""Reviews over gRPC that become precedents if the server is configured so: real docket, real library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from court.errors import Unavailable
from memecourt.v1 import court_pb2 as wire
from retrieval.library.writer import LibraryWriter
from serving.access.callers import Scope
from serving.access.tokens import add
from serving.docket.review.corrections import Corrections, Overrulings
from tests.support.docket_service import TIMEOUT, Scene, a_scene
from tests.support.libraries import ENCODER, drawn_library
from tests.support.real_court import IMAGE, real_court
from tests.support.service_calls import caller_metadata, refusal_of

OVERRULED = {"outcome": wire.REVIEW_OUTCOME_OVERRULED, "label": wire.LABEL_NOT_HARMFUL, "clause": "4"}


def play(path: Path, work: Any, overrulings: Overrulings, *, gone: bool = False) -> Any:
    async def scene() -> Any:
        writer = LibraryWriter(drawn_library(path / "library", 5, 12))

        @contextmanager
        def opened() -> Iterator[LibraryWriter]:
            if gone:
                raise Unavailable("The library is away.", reason="LIBRARY_LOCKED")
            yield writer

        async with a_scene(path / "docket.sqlite") as it:
            rulings = Corrections(opened, lambda: ENCODER, it.docket.trials, overrulings)
            it.service.open(SimpleNamespace(docket=it.docket), lambda: it.changes.append(None), rulings)  # type: ignore[arg-type]
            return await work(it, writer)

    return asyncio.run(scene())


@pytest.mark.parametrize(("overrulings", "made"), [(Overrulings.ALWAYS, True), (Overrulings.CHOSEN, False)])
def test_an_overruling_becomes_a_precedent_if_configured(tmp_path: Path, overrulings: Overrulings, made: bool) -> None:
    async def work(it: Scene, writer: LibraryWriter) -> Any:
        await it.tried("t-1", namespace="forum", text="cat dog")
        await it.reviewed("t-1", reason="Satire.", **OVERRULED)
        meme = writer.meme("trial:t-1")
        await it.reviewed("t-1", reason="No satire.")
        return meme, writer.meme("trial:t-1")

    first, later = play(tmp_path, work, overrulings)
    assert (first is not None) is made and later is None
    if made:
        assert (first.label, first.source, first.namespace, first.who) == ("NOT_HARMFUL", "trial:t-1", "forum", "bea")


def test_a_reviewer_with_the_right_to_change_the_library_may_ask_for_a_precedent(tmp_path: Path) -> None:
    async def work(it: Scene, writer: LibraryWriter) -> Any:
        await it.tried("t-1", text="cat dog")

        async def review(caller: str = "", **fields: Any) -> Any:
            signature = {} if caller else {"reviewer": "bea"}
            request = wire.ReviewVerdictRequest(trial_id="t-1", reason="Satire.", precedent=True, **signature, **fields)
            return await it.stub.ReviewVerdict(request, timeout=TIMEOUT, metadata=caller_metadata(caller))

        refusals = [
            await refusal_of(review("ada", **OVERRULED)),
            await refusal_of(review(outcome=wire.REVIEW_OUTCOME_UPHELD)),
        ]
        assert not await it.docket.log.entries(0, 9, {"VerdictReviewed"})
        made = await review(**OVERRULED)
        return [each.summary for each in refusals], made, writer.meme("trial:t-1")

    refused, made, meme = play(tmp_path, work, Overrulings.CHOSEN)
    assert refused == [
        ("PERMISSION_DENIED", "SCOPE_MISSING", "precedent"),
        ("INVALID_ARGUMENT", "NOT_OVERRULED", "precedent"),
    ]
    assert (made.precedent_id, made.precedent_failure, meme.label) == ("trial:t-1", "", "NOT_HARMFUL")


def test_a_server_that_makes_no_precedents_refuses_the_choice(tmp_path: Path) -> None:
    async def work(it: Scene, writer: LibraryWriter) -> Any:
        await it.tried("t-1", text="cat dog")
        refusal = await refusal_of(it.reviewed("t-1", precedent=True, **OVERRULED))
        return refusal.summary, writer.meme("trial:t-1")

    assert play(tmp_path, work, Overrulings.NEVER) == (("FAILED_PRECONDITION", "NOT_LOADED", "precedent"), None)


def test_both_scopes_permit_a_precedent_over_http(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    secrets = {
        "reviewer": add(tokens, "reviewer", [Scope.REVIEW], None),
        "both": add(tokens, "both", [Scope.JUDGE, Scope.REVIEW, Scope.ADMIN], None),
    }
    bearers = {name: {"authorization": f"Bearer {secret}"} for name, secret in secrets.items()}

    async def work() -> Any:
        async with (
            real_court(tmp_path, http="127.0.0.1:0", tokens=tokens) as court,
            httpx2.AsyncClient(base_url=court.http, trust_env=False, timeout=120) as web,
        ):
            form = {"files": {"image": ("meme.png", IMAGE, "image/png")}, "data": {"text": "my bird sings"}}
            verdict = (await web.post("/v1/judge", headers=bearers["both"], **form)).json()
            label = "not_harmful" if verdict["label"] == "LABEL_HARMFUL" else "harmful"
            review = {"outcome": "overruled", "label": label, "reason": "I looked.", "precedent": True}
            address = f"/v1/trials/{verdict['verdict_id']}/review"
            refused = await web.post(address, headers=bearers["reviewer"], json=review)
            made = await web.post(address, headers=bearers["both"], json=review)
            return refused, made, f"trial:{verdict['verdict_id']}"

    refused, made, name = asyncio.run(work())
    assert (refused.status_code, refused.json()["reason"]) == (403, "SCOPE_MISSING")
    assert made.status_code == 200, made.text
    assert (made.json()["precedent_id"], made.json()["precedent_failure"]) == (name, "")


def test_a_review_is_stored_even_if_the_library_is_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(it: Scene, _: LibraryWriter) -> Any:
        await it.tried("t-1", text="cat dog")
        request = wire.ReviewVerdictRequest(
            trial_id="t-1", reviewer="bea", reason="Satire.", precedent=True, **OVERRULED
        )
        return await it.stub.ReviewVerdict(request, timeout=TIMEOUT), len(it.changes)

    response, changes = play(tmp_path, work, Overrulings.ALWAYS, gone=True)
    assert response.summary.review.label == wire.LABEL_NOT_HARMFUL and changes == 1
    assert (response.precedent_id, response.precedent_failure) == ("", "LIBRARY_LOCKED")
    assert "precedent of trial=t-1 not changed reason=LIBRARY_LOCKED" in caplog.text
