"""Appeals: opened by reference, first in the review queue, and decided blind by another reviewer."""

import asyncio

import grpc
import pytest
from click.testing import CliRunner
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from court.events import AppealOpened, ReviewOutcome
from court.verdict import Label
from memecourt.v1 import court_pb2 as wire
from serving.access.tokens import Scope
from serving.cli import common
from serving.cli.main import cli
from serving.docket.errors import NotDecided, TrialErased, TrialUnknown
from serving.docket.review.locks import AnotherWanted
from serving.docket.review.projection import ReviewPriority
from serving.rpc import convert
from serving.rpc.server import SCOPES
from tests.support.desks import opened_desk, verdict
from tests.support.dockets import NOON, append_all, audited, events_of, parse_place, with_docket
from tests.support.real_court import IMAGE, real_court

WHY = "It mocks our own habit."


def open_appeal(docket, trial_id, reference="7", statement=WHY, by="forum"):
    return docket.reviews.open_appeal(trial_id, by=by, statement=statement, reference=reference, at=NOON)


async def test_appeals_are_logged_events_and_idempotent_by_reference(opening):
    async with opening() as docket:
        await append_all(docket, events_of("t"))
        first = await open_appeal(docket, "t")
        again = await asyncio.gather(*(open_appeal(docket, "t", statement="Other words.") for _ in range(5)))
        second = await open_appeal(docket, "t", reference="8")
        unnamed = [await open_appeal(docket, "t", reference="") for _ in range(2)]
        record = await docket.trials.record("t")
        report = await audited(docket)
    assert set(again) == {first} and second.seq == first.seq + 1 and unnamed[0] == unnamed[1]
    assert record.all(AppealOpened) == (first, second, unnamed[0]) and record.verdict is not None
    assert set(report.counts) <= {"PICTURE_DIFFERS"}


async def test_only_existing_verdicts_can_be_appealed(opening):
    async with opening() as docket:
        await append_all(docket, events_of("open")[:2])
        await append_all(docket, events_of("gone"))
        await docket.eraser.erase("gone", who="ada", why="asked for", at=NOON)
        for trial_id, error in (("open", NotDecided), ("gone", TrialErased), ("none", TrialUnknown)):
            with pytest.raises(error):
                await open_appeal(docket, trial_id)


async def test_an_appeal_comes_first_and_goes_blind_to_a_new_reviewer(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("doubtful", verdict(Label.UNDECIDED))
        await it.tried("sure", verdict(Label.HARMFUL))
        await it.reviewed("sure", "ada", Label.HARMFUL, again=True)
        before = await it.waiting("ben")
        await open_appeal(it.docket, "sure")
        queues = {who: await it.waiting(who) for who in ("ada", "ben")}
        only = await it.waiting("ben", why=ReviewPriority.APPEAL)
        hidden = {who: await it.desk.hidden_from(who, ["sure"]) for who in ("ada", "ben")}
        with pytest.raises(AnotherWanted):
            await it.desk.take("sure", "ada")
        # A review by the same person over gRPC does not close it either.
        await it.docket.reviews.review(
            "sure", outcome=ReviewOutcome.UPHELD, label=Label.HARMFUL, reason="r", clause="", reviewer="ada", at=NOON
        )
        after_own_review = await it.waiting("ben")
        review = await it.reviewed("sure", "ben", Label.HARMFUL)
        after, counts = await it.waiting("ben"), await it.desk.counts()
    assert before == ["doubtful"]
    assert queues == {"ada": ["doubtful"], "ben": ["sure", "doubtful"]} and only == ["sure"]
    assert hidden == {"ada": frozenset(), "ben": frozenset({"sure"})}
    assert after_own_review == ["sure", "doubtful"] and review.blind and after == ["doubtful"]
    assert counts == {ReviewPriority.UNDECIDED: 1}


async def test_two_reviewers_disagreeing_about_an_appeal_leave_it_to_a_third(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("t", verdict(Label.HARMFUL))
        await it.reviewed("t", "ada", Label.HARMFUL, again=True)
        await open_appeal(it.docket, "t")
        await it.reviewed("t", "ben", Label.NOT_HARMFUL)
        case = await it.desk.case("t")
        await it.reviewed("t", "eve", Label.NOT_HARMFUL)
        decided = await it.desk.case("t")
    assert case.waiting and case.reasons[0][0] is ReviewPriority.APPEAL
    assert {why for why, _ in case.reasons} == {ReviewPriority.APPEAL, ReviewPriority.REVIEWERS_DISAGREE}
    assert not decided.waiting and decided.holds is Label.NOT_HARMFUL


async def test_a_second_opinion_keeps_an_appeal_first_and_with_another_reviewer(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("t", verdict(Label.HARMFUL))
        await it.reviewed("t", "ada", Label.HARMFUL, again=True)
        await open_appeal(it.docket, "t")
        await it.desk.take("t", "ben")
        await it.desk.leave_note("t", "ben", "Is the costume meant?", second_opinion=True)
        counts = await it.desk.counts()
        await it.docket.reviews.review(
            "t", outcome=ReviewOutcome.UPHELD, label=Label.HARMFUL, reason="r", clause="", reviewer="ada", at=NOON
        )
        queues = [await it.waiting(who) for who in ("ada", "ben", "eve")]
    assert counts == {ReviewPriority.APPEAL: 1} and queues == [[], [], ["t"]]


async def test_appeals_are_opened_over_grpc_by_verdict_or_by_content(tmp_path):
    async with real_court(tmp_path) as served:
        content = wire.Content(namespace="forum", id="post 7")
        judged = await served.judge.Judge(wire.JudgeRequest(image=IMAGE, text="one", content=content), timeout=120)

        def ask(**fields):
            request = wire.OpenAppealRequest(**{"statement": WHY, "by": "forum", **fields})
            return served.records.OpenAppeal(request, timeout=120)

        by_id = await ask(trial_id=judged.verdict_id, reference="1")
        by_content = await ask(content=content, reference="1")
        reasons = {}
        for name, fields in {
            "no verdict": {},
            "no statement": {"trial_id": judged.verdict_id, "statement": ""},
            "nobody": {"trial_id": judged.verdict_id, "by": ""},
            "unknown content": {"content": wire.Content(namespace="forum", id="other")},
            "unknown trial": {"trial_id": "none"},
        }.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(**fields)
            info = error_details_pb2.ErrorInfo()
            assert any(each.Unpack(info) for each in rpc_status.from_call(caught.value).details)
            reasons[name] = (caught.value.code().name, info.reason)
        verdict_id = judged.verdict_id
    assert by_id == by_content and by_id.trial_id == verdict_id and by_id.seq > 0
    assert reasons == {
        "no verdict": ("INVALID_ARGUMENT", "FIELD_MISSING"),
        "no statement": ("INVALID_ARGUMENT", "FIELD_MISSING"),
        "nobody": ("INVALID_ARGUMENT", "FIELD_MISSING"),
        "unknown content": ("NOT_FOUND", "TRIAL_UNKNOWN"),
        "unknown trial": ("NOT_FOUND", "TRIAL_UNKNOWN"),
    }


def test_the_judge_scope_allows_appeals():
    assert SCOPES["/memecourt.v1.Docket/OpenAppeal"] is Scope.JUDGE


def test_the_command_opens_an_appeal_once_per_reference(tmp_path, monkeypatch):
    place = tmp_path / "docket.sqlite"
    with_docket(place, lambda docket: append_all(docket, events_of("t")))
    monkeypatch.setenv("MEMECOURT_DOCKET", str(place))

    def invoke(*words):
        return CliRunner().invoke(cli, ["records", *words])

    first = invoke("appeal", "t", "--by", "forum", "--statement", WHY, "--reference", "7")
    again = invoke("appeal", "t", "--by", "forum", "--statement", WHY, "--reference", "7")
    assert first.exit_code == 0 and first.output == again.output
    shown = invoke("show", "t").output
    assert shown.count("AppealOpened") == 1 and WHY in shown
    assert invoke("appeal", "none", "--by", "forum", "--statement", WHY).exit_code == 1
    assert invoke("appeal", "t", "--by", " ", "--statement", WHY).exit_code == 2
    assert (common.MOST_WHO, common.MOST_WHY) == (convert.MOST_WHO, convert.MOST_WHY), "as over gRPC"
    assert invoke("appeal", "t", "--by", "forum", "--statement", "x" * 2001).exit_code == 2
    assert invoke("appeal", "t", "--by", "forum", "--statement", WHY, "--reference", "\udcff").exit_code == 2
    assert "handed in by forum" in shown
