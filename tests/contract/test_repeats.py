"""Requests that repeat an earlier one: the contents of their answers, and who may see the first one."""

from datetime import UTC, datetime

from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import Scope
from serving.access.tokens import add
from serving.docket.store.requests import RequestName
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


def test_the_original_request_of_the_trial_is_not_reported_as_reused(tmp_path):
    async def work(court):
        first = await court.judge.Judge(forum_request(request_id="r"))
        for _ in range(THREE):
            other = await court.judge.Judge(forum_request())
        return first, other, await court.judge.Judge(forum_request(request_id="r"))

    first, other, same = run(tmp_path, work)
    assert first.verdict_id == other.verdict_id == same.verdict_id
    assert [response.HasField("reused_from") for response in (first, other, same)] == [False, True, False]


def test_a_generated_request_id_is_not_stored_for_content_without_an_id(tmp_path):
    async def work(court):
        for _ in range(THREE):
            response = await court.judge.Judge(judge_request(IMAGE, text="a cat"))
        return await court.docket.leases.claim_of(RequestName("", response.request_id))

    assert run(tmp_path, work) is None


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
