"""Requests that ask the same again, id aside: they skip nearly everything, and nothing that matters."""

from datetime import UTC, datetime

import pytest

from memecourt.v1 import court_pb2 as wire
from serving.access.callers import Scope
from serving.access.tokens import add
from serving.docket.ports import RequestName
from serving.runner.runner import TrialRunner
from tests.contract.real_court import IMAGE, real_court
from tests.support.libraries import drawn_library
from tests.support.playing import play_in
from tests.support.service_calls import refused

THREE = 3


def asked(**fields):
    content = wire.Content(namespace="forum", id="1")
    return wire.JudgeRequest(image=IMAGE, text="a cat", content=content, client_token=b"t", **fields)


@pytest.fixture
def again(monkeypatch):
    """What came of each request that was taken for a repeat: whether it was answered as one."""
    answered, really = [], TrialRunner.again

    async def again(self, given, request_id):
        record = await really(self, given, request_id)
        answered.append(record is not None)
        return record

    monkeypatch.setattr(TrialRunner, "again", again)
    return answered


def run(path, work, **settings):
    return play_in(real_court(path, **settings), work)


def bare(response):
    """A response without what is its own each time."""
    rest = wire.JudgeResponse.FromString(response.SerializeToString())
    rest.ClearField("request_id")
    rest.timings.ClearField("total")
    return rest


def test_a_repeat_is_answered_as_the_one_before(tmp_path, again):
    async def work(court):
        first = await court.judge.Judge(asked())
        return first, [await court.judge.Judge(asked()) for _ in range(THREE)]

    first, others = run(tmp_path, work)
    assert again == [True] * (THREE - 1)  # the first that asked again was looked at whole
    assert {response.verdict_id for response in others} == {first.verdict_id}
    assert all(bare(response) == bare(others[0]) for response in others)
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
def test_whatever_else_is_asked_is_no_repeat(tmp_path, again, other):
    async def work(court):
        for _ in range(THREE):
            await court.judge.Judge(asked())
        request = asked()
        request.MergeFrom(other)
        before = len(again)
        if other.HasField("pins"):
            assert (await refused(court.judge.Judge(request))).said[1] == "PIN_NOT_LOADED"
        else:
            response = await court.judge.Judge(request)
            assert response.content == request.content and response.client_token == request.client_token
        assert len(again) == before

    run(tmp_path, work)


def test_a_repeat_with_an_id_is_kept_for_good(tmp_path, again):
    async def work(court):
        for _ in range(THREE):
            first = await court.judge.Judge(asked())
        named = await court.judge.Judge(asked(request_id="r"))
        assert again[-1] and named.request_id == "r"
        claim = await court.docket.leases.claim_of(RequestName("forum", "r"))
        assert claim.trial_id == named.verdict_id == first.verdict_id
        # Under that id nothing else may be asked any more, of those that were answered before neither.
        for _ in range(THREE):
            await court.judge.Judge(replaced_text("a dog"))
        return await refused(court.judge.Judge(replaced_text("a dog", request_id="r")))

    assert run(tmp_path, work).said[:2] == ("ALREADY_EXISTS", "REQUEST_ID_TAKEN")
    assert run(tmp_path, lambda court: court.judge.Judge(asked(request_id="r"))).request_id == "r"  # after a restart


def test_the_request_that_the_trial_was_held_for_is_no_repeat(tmp_path, again):
    async def work(court):
        first = await court.judge.Judge(asked(request_id="r"))
        for _ in range(THREE):
            other = await court.judge.Judge(asked())
        return first, other, await court.judge.Judge(asked(request_id="r"))

    first, other, same = run(tmp_path, work)
    assert first.verdict_id == other.verdict_id == same.verdict_id
    assert [response.HasField("reused_from") for response in (first, other, same)] == [False, True, False]


def replaced_text(text, **fields):
    request = asked(**fields)
    request.text = text
    return request


def test_an_id_without_a_name_leaves_nothing_behind(tmp_path, again):
    async def work(court):
        for _ in range(THREE):
            response = await court.judge.Judge(asked())
        assert again[-1]
        return await court.docket.leases.claim_of(RequestName("forum", response.request_id))

    assert run(tmp_path, work) is None


def test_an_overruled_verdict_is_not_repeated(tmp_path, again):
    async def work(court):
        for _ in range(THREE):
            response = await court.judge.Judge(asked())
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
        return response, await court.judge.Judge(asked())

    before, after = run(tmp_path, work)
    assert again[-1] is False
    assert after.verdict_id != before.verdict_id


def test_with_another_library_nothing_is_repeated(tmp_path, again):
    async def work(court):
        for _ in range(THREE):
            before = await court.judge.Judge(asked())
        court.finder.swap(drawn_library(tmp_path / "another", 8, 41))
        return before, await court.judge.Judge(asked())

    before, after = run(tmp_path, work)
    assert again[-1] is False
    assert after.versions.library != before.versions.library and not after.HasField("reused_from")


def test_a_repeat_is_for_callers_of_that_namespace_only(tmp_path, again):
    file = tmp_path / "tokens.toml"
    insider, outsider = (add(file, name, [Scope.JUDGE], [name]) for name in ("forum", "elsewhere"))

    async def work(court):
        for _ in range(THREE):
            await court.judge.Judge(asked(), metadata=bearer(insider))
        assert again[-1]
        refusal = await refused(court.judge.Judge(asked(), metadata=bearer(outsider)))
        assert again == [True]
        return refusal

    assert run(tmp_path, work, tokens=file).said[:2] == ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED")


def test_who_may_not_see_a_namespace_is_not_told_whose_verdict_is_given_again(tmp_path, again):
    file = tmp_path / "tokens.toml"
    forum, blog, both = (
        add(file, "+".join(names), [Scope.JUDGE], names) for names in (["forum"], ["blog"], ["forum", "blog"])
    )

    async def work(court):
        await court.judge.Judge(asked(), metadata=bearer(forum))
        request = asked()
        request.content.namespace = "blog"
        return [
            await court.judge.Judge(request, metadata=bearer(token))
            for token in (blog, blog, both, both, both, blog, blog)
        ]

    told = run(tmp_path, work, tokens=file, reuse="everywhere")
    assert len({response.verdict_id for response in told}) == 1
    assert [response.reused_from.content.namespace for response in told] == ["", "", *["forum"] * 3, "", ""]
    assert again == [True, True]  # of those who may see it


def test_a_trial_of_another_namespace_can_not_be_told_from_one_that_is_not_there(tmp_path):
    file = tmp_path / "tokens.toml"
    insider, outsider = (add(file, name, [Scope.JUDGE], [name]) for name in ("forum", "elsewhere"))

    async def work(court):
        kept, gone = [await court.judge.Judge(asked(try_anew=True), metadata=bearer(insider)) for _ in range(2)]
        await court.docket.eraser.erase(gone.verdict_id, who="ada", why="as was asked", at=datetime.now(UTC))
        told = []
        for trial_id in (kept.verdict_id, gone.verdict_id, "nowhere"):
            watching = court.judge.WatchTrial(wire.WatchTrialRequest(trial_id=trial_id), metadata=bearer(outsider))
            told.append(await refused(watching.read()))
        return told

    told = run(tmp_path, work, tokens=file)
    assert {(*refusal.said, refusal.message) for refusal in told} == {
        ("NOT_FOUND", "TRIAL_UNKNOWN", "", "There is no such trial, or it has not begun yet.")
    }


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize(("request_id", "reason"), [("x" * 129, "FIELD_TOO_LONG"), ("a\0b", "FIELD_HOLDS_NUL")])
def test_an_id_that_can_t_be_kept_is_refused_however_often_the_same_was_asked(tmp_path, again, request_id, reason):
    async def work(court):
        errors = [await refused(court.judge.Judge(asked(request_id=request_id)))]
        for _ in range(THREE):
            await court.judge.Judge(asked())
        errors.append(await refused(court.judge.Judge(asked(request_id=request_id))))
        assert await court.docket.leases.claim_of(RequestName("forum", request_id)) is None
        await court.judge.Judge(asked(request_id="x" * 128))
        return errors

    errors = run(tmp_path, work)
    assert [error.said[:2] for error in errors] == [("INVALID_ARGUMENT", reason)] * 2
    assert again == [True] * 2
