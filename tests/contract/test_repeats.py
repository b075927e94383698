"""Requests that repeat an earlier one but for its id: they skip nearly all work, but no check that matters."""

from datetime import UTC, datetime

import pytest

from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import Scope
from serving.access.tokens import add
from serving.docket.store.requests import RequestName
from tests.support.libraries import drawn_library
from tests.support.playing import run_within
from tests.support.real_court import IMAGE, real_court
from tests.support.service_calls import refusal_of

THREE = 3


def forum_request(**fields):
    content = wire.Content(namespace="forum", id="1")
    return wire.JudgeRequest(image=IMAGE, text="a cat", content=content, client_token=b"t", **fields)


def run(path, work, **settings):
    return run_within(real_court(path, **settings), work)


def without_varying_fields(response):
    """Returns a response without the fields that differ each time."""
    stripped = wire.JudgeResponse.FromString(response.SerializeToString())
    stripped.ClearField("request_id")
    stripped.timings.ClearField("total")
    return stripped


def test_a_repeat_is_answered_like_the_request_before(tmp_path):
    async def work(court):
        first = await court.judge.Judge(forum_request())
        return first, [await court.judge.Judge(forum_request()) for _ in range(THREE)]

    first, others = run(tmp_path, work)
    assert {response.verdict_id for response in others} == {first.verdict_id}
    assert all(without_varying_fields(response) == without_varying_fields(others[0]) for response in others)
    assert others[-1].reused_from.verdict_id == first.verdict_id
    assert others[-1].timings.total.ToNanoseconds() > 0 == others[-1].timings.text.ToNanoseconds()
    assert (others[-1].content.id, others[-1].client_token) == ("1", b"t")
    assert len({response.request_id for response in others} - {""}) == THREE


@pytest.mark.parametrize(
    "other",
    [
        wire.JudgeRequest(text="a dog"),
        wire.JudgeRequest(language="en"),
        wire.JudgeRequest(content=wire.Content(id="2")),
        wire.JudgeRequest(client_token=b"u"),
        wire.JudgeRequest(try_anew=True),
        wire.JudgeRequest(pins=wire.Pins(library="sha256:another")),
    ],
    ids=lambda other: other.ListFields()[0][0].name,
)
def test_a_request_that_differs_is_answered_for_what_it_says(tmp_path, other):
    async def work(court):
        for _ in range(THREE):
            await court.judge.Judge(forum_request())
        request = forum_request()
        request.MergeFrom(other)
        if other.HasField("pins"):
            assert (await refusal_of(court.judge.Judge(request))).summary[1] == "PIN_NOT_LOADED"
        else:
            response = await court.judge.Judge(request)
            assert response.content == request.content and response.client_token == request.client_token
            assert response.HasField("reused_from") == (
                request.text == "a cat" and not (request.try_anew or request.language)
            )

    run(tmp_path, work)


def test_a_repeat_with_a_request_id_is_stored_for_good(tmp_path):
    async def work(court):
        for _ in range(THREE):
            first = await court.judge.Judge(forum_request())
        named = await court.judge.Judge(forum_request(request_id="r"))
        assert named.request_id == "r"
        claim = await court.docket.leases.claim_of(RequestName("forum", "r"))
        assert claim.trial_id == named.verdict_id == first.verdict_id
        # No other request may use that id from now on, not even one that was answered before.
        for _ in range(THREE):
            await court.judge.Judge(request_with_text("a dog"))
        return await refusal_of(court.judge.Judge(request_with_text("a dog", request_id="r")))

    assert run(tmp_path, work).summary[:2] == ("ALREADY_EXISTS", "REQUEST_ID_TAKEN")
    # Also after a restart.
    assert run(tmp_path, lambda court: court.judge.Judge(forum_request(request_id="r"))).request_id == "r"


def test_the_original_request_of_the_trial_is_not_reported_as_reused(tmp_path):
    async def work(court):
        first = await court.judge.Judge(forum_request(request_id="r"))
        for _ in range(THREE):
            other = await court.judge.Judge(forum_request())
        return first, other, await court.judge.Judge(forum_request(request_id="r"))

    first, other, same = run(tmp_path, work)
    assert first.verdict_id == other.verdict_id == same.verdict_id
    assert [response.HasField("reused_from") for response in (first, other, same)] == [False, True, False]


def request_with_text(text, **fields):
    request = forum_request(**fields)
    request.text = text
    return request


def test_a_generated_request_id_is_not_stored_for_content_without_an_id(tmp_path):
    async def work(court):
        for _ in range(THREE):
            response = await court.judge.Judge(judge_request(IMAGE, text="a cat"))
        return await court.docket.leases.claim_of(RequestName("", response.request_id))

    assert run(tmp_path, work) is None


def test_a_repeat_of_overruled_content_has_the_decision_of_the_finding(tmp_path):
    async def work(court):
        for _ in range(THREE):
            response = await court.judge.Judge(forum_request())
        label = wire.LABEL_NOT_HARMFUL if response.label == wire.LABEL_HARMFUL else wire.LABEL_HARMFUL
        await court.records.ReviewVerdict(
            wire.ReviewVerdictRequest(
                trial_id=response.verdict_id,
                outcome=wire.REVIEW_OUTCOME_OVERRULED,
                label=label,
                reason="It says something else.",
                clause="1",
                reviewer="r-1",
            )
        )
        return response, await court.judge.Judge(forum_request())

    before, after = run(tmp_path, work)
    decided = {"allow": wire.LABEL_NOT_HARMFUL, "block": wire.LABEL_HARMFUL}
    assert (after.verdict_id, after.label) == (before.verdict_id, before.label)
    assert decided[after.decision] == after.in_force.label != before.label


def test_a_changed_library_ends_repeats(tmp_path):
    async def work(court):
        for _ in range(THREE):
            before = await court.judge.Judge(forum_request())
        court.finder.swap(drawn_library(tmp_path / "another", 8, 41))
        return before, await court.judge.Judge(forum_request())

    before, after = run(tmp_path, work)
    assert after.versions.library != before.versions.library and not after.HasField("reused_from")


def test_repeats_are_answered_only_to_callers_of_the_namespace(tmp_path):
    file = tmp_path / "tokens.toml"
    insider, outsider = (add(file, name, [Scope.JUDGE], [name]) for name in ("forum", "elsewhere"))

    async def work(court):
        for _ in range(THREE):
            await court.judge.Judge(forum_request(), metadata=bearer(insider))
        refusal = await refusal_of(court.judge.Judge(forum_request(), metadata=bearer(outsider)))
        return refusal

    assert run(tmp_path, work, tokens=file).summary[:2] == ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED")


def test_reuse_hides_the_source_in_a_namespace_the_caller_cannot_see(tmp_path):
    file = tmp_path / "tokens.toml"
    forum, blog, both = (
        add(file, "+".join(names), [Scope.JUDGE], names) for names in (["forum"], ["blog"], ["forum", "blog"])
    )

    async def work(court):
        await court.judge.Judge(forum_request(), metadata=bearer(forum))
        request = forum_request()
        request.content.namespace = "blog"
        return [
            await court.judge.Judge(request, metadata=bearer(token))
            for token in (blog, blog, both, both, both, blog, blog)
        ]

    responses = run(tmp_path, work, tokens=file, reuse="everywhere")
    assert len({response.verdict_id for response in responses}) == 1
    assert [response.reused_from.content.namespace for response in responses] == ["", "", *["forum"] * 3, "", ""]


def test_a_trial_of_another_namespace_is_reported_as_unknown(tmp_path):
    file = tmp_path / "tokens.toml"
    insider, outsider = (add(file, name, [Scope.JUDGE], [name]) for name in ("forum", "elsewhere"))

    async def work(court):
        existing, gone = [
            await court.judge.Judge(forum_request(try_anew=True), metadata=bearer(insider)) for _ in range(2)
        ]
        await court.docket.eraser.erase(gone.verdict_id, who="ada", why="as was asked", at=datetime.now(UTC))
        refusals = []
        for trial_id in (existing.verdict_id, gone.verdict_id, "nowhere"):
            watching = court.judge.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), metadata=bearer(outsider))
            refusals.append(await refusal_of(watching.read()))
        return refusals

    refusals = run(tmp_path, work, tokens=file)
    assert {(*refusal.summary, refusal.message) for refusal in refusals} == {
        ("NOT_FOUND", "TRIAL_UNKNOWN", "", "There is no such trial, or it has not begun yet.")
    }


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize(("request_id", "reason"), [("x" * 129, "FIELD_TOO_LONG"), ("a\0b", "FIELD_HOLDS_NUL")])
def test_an_invalid_request_id_is_refused_even_for_a_repeat(tmp_path, request_id, reason):
    async def work(court):
        errors = [await refusal_of(court.judge.Judge(forum_request(request_id=request_id)))]
        for _ in range(THREE):
            await court.judge.Judge(forum_request())
        errors.append(await refusal_of(court.judge.Judge(forum_request(request_id=request_id))))
        assert await court.docket.leases.claim_of(RequestName("forum", request_id)) is None
        await court.judge.Judge(forum_request(request_id="x" * 128))
        return errors

    errors = run(tmp_path, work)
    assert [error.summary[:2] for error in errors] == [("INVALID_ARGUMENT", reason)] * 2
