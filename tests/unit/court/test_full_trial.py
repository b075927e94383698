"""The full procedure with scripted models: rounds, stopping rule, visibility, ruling."""

import asyncio
import itertools
import json
from dataclasses import replace

import pytest

from court.errors import ModelRefused, Overrun, ReplyUnusable, Unavailable
from court.events import Described, Procedure, QuestionAsked, QuestioningEnd, Side, SideRested, Summarised, VerdictGiven
from court.examination import Examination, entropy
from court.full import FullTrial
from court.meme import Picture
from court.ports import ChatReply, FinishReason
from court.record import TrialAborted, TrialState
from court.roles import RoleModels
from court.settings import TrialSettings
from court.trial import TrialCase
from court.verdict import Label, ReviewReason, ScoreMeaning
from tests.support import virtual_time
from tests.support.cast import ACQUITTAL, RULING, Cast, frames_of, full_court, is_repair, prompt_text, task_of, try_meme
from tests.support.fakes import FakeReader, H, N, RecordingSink, a_meme, findings
from tests.support.leftovers import soon, without_garbage_collector

TEXT = "the meme's own words"


def events_of_side(record, kind, side):
    return [event for event in record.all(kind) if event.side is side]


def test_full_trial_runs_from_description_to_verdict():
    cast = Cast(rounds=3)
    record = try_meme(cast)
    kinds = [event.kind for event in record.events]
    assert kinds[0] == "TrialOpened" and kinds[-1] == "VerdictGiven"
    assert record.last(Described).description == "A crowd stands under a green flag."
    for side in Side:
        assert events_of_side(record, SideRested, side)[0].reason is QuestioningEnd.CONVERGED
    verdict_event = record.last(VerdictGiven)
    assert verdict_event.verdict.label is Label.HARMFUL
    assert verdict_event.verdict.finding.clause == "4" and verdict_event.verdict.finding.target == "community"
    assert [reading.id for reading in verdict_event.ruling.precedents] == ["p0", "p1", "p2"]
    assert verdict_event.call.model == "judge-model"
    assert record.opened.versions.models["PROPOSER"] == "proposer-model"
    assert record.opened.versions.prompts.startswith("sha256:")


def test_examination_stops_once_summaries_converge_but_not_before_rounds_min():
    """Algorithm 1: the first r >= R_min at which |Entropy(S_r) - Entropy(S_{r-1})| < epsilon."""
    record = try_meme(Cast(rounds=4))
    summaries = events_of_side(record, Summarised, Side.ACCUSER)
    assert [event.round for event in summaries] == [1, 2, 3, 4]
    assert [event.entropy for event in summaries] == [pytest.approx(entropy(event.summary)) for event in summaries]
    changes = [event.entropy_change for event in summaries]
    assert changes[0] is None
    assert all(change >= 0.02 for change in changes[1:-1]) and changes[-1] < 0.02
    assert events_of_side(record, SideRested, Side.ACCUSER)[0].rounds == 4
    # Converged from the first round on, it still continues to R_min.
    patient = TrialSettings(rounds_min=3)
    record = try_meme(Cast(rounds=1), settings=patient)
    assert events_of_side(record, SideRested, Side.DEFENDER)[0].rounds == 3


def test_falling_entropy_counts_as_a_change():
    """The printed formula has no absolute value: a signed drop would stop the examination at once."""
    lengths = iter(["abcdefgh", "ab", "ab"])

    def falling(request):
        return {"summary": next(lengths), "justification": "j"}

    record = try_meme(Cast(accuser_summarise=falling))
    assert [event.round for event in events_of_side(record, Summarised, Side.ACCUSER)] == [1, 2, 3]


def test_examination_that_does_not_converge_ends_at_rounds_max():
    record = try_meme(Cast(rounds=9), settings=TrialSettings(rounds_max=4))
    rested = events_of_side(record, SideRested, Side.ACCUSER)[0]
    assert (rested.rounds, rested.reason) == (4, QuestioningEnd.ROUND_LIMIT)


def test_number_of_calls_follows_the_formula():
    """2 + 3 (r_A + r_D), and two one-token calls for the score; no superfluous calls without overlap."""
    cast = Cast(rounds=3)
    record = try_meme(cast, settings=TrialSettings(overlap=False))
    rounds = sum(event.rounds for event in record.all(SideRested))
    assert rounds == 6
    assert cast.calls() == 2 + 3 * rounds + 2
    assert cast.calls() - 2 == sum(getattr(event, "call", None) is not None for event in record.events)


def test_overlap_changes_timing_only():
    apart = try_meme(Cast(rounds=3), settings=TrialSettings(overlap=False))
    ahead = try_meme(Cast(rounds=3), settings=TrialSettings(overlap=True))
    for side in Side:
        for kind, words in ((Summarised, "summary"), (QuestionAsked, "question")):
            one = [getattr(event, words) for event in events_of_side(apart, kind, side)]
            two = [getattr(event, words) for event in events_of_side(ahead, kind, side)]
            # Up to three further questions may have been asked before the stop was known; they are ignored.
            assert two[: len(one)] == one and len(two) <= len(one) + 3
    assert apart.verdict == ahead.verdict


# Visibility: which role sees what


def test_proposer_never_sees_the_text():
    for meme, reader in ((a_meme(TEXT), None), (a_meme(None), FakeReader(TEXT))):
        cast = Cast(rounds=2)
        try_meme(cast, meme=meme, reader=reader)
        requests = cast.requests("proposer")
        assert {task_of(request) for request in requests} == {"describe", "answer"}
        assert not any(TEXT in prompt_text(request) for request in requests)
        assert all(frames_of(request) for request in requests)


def test_proposer_is_not_shown_which_side_asks():
    cast = Cast(rounds=2)
    try_meme(cast)
    described, *answers = cast.requests("proposer")
    assert {request.system for request in answers} == {described.system}
    assert "accuser" not in described.system.lower() and "defender" not in described.system.lower()


def test_advocates_never_see_a_picture():
    cast = Cast(rounds=3)
    try_meme(cast)
    for request in cast.requests("accuser", "defender"):
        assert frames_of(request) == []
        assert TEXT in prompt_text(request) and "green flag" in prompt_text(request)


def test_sides_never_see_each_other():
    cast = Cast(rounds=3)
    try_meme(cast)
    assert not any("defender" in prompt_text(request) for request in cast.requests("accuser"))
    assert not any("accuser" in prompt_text(request) for request in cast.requests("defender"))


def test_judge_sees_everything_but_the_examinations():
    cast = Cast(rounds=2)
    try_meme(cast)
    ruling = next(request for request in cast.requests("judge") if task_of(request) == "judge")
    words = prompt_text(ruling)
    for part in (TEXT, "green flag", "the accuser's reasons", "the defender's reasons", "text of p0", "text of p2"):
        assert part in words
    assert [frame.png for frame in frames_of(ruling)] == [b"png", *(f"picture of p{n}".encode() for n in range(3))]
    assert "Question 1" not in words and "accuser says" not in words  # justifications, not summaries or exchanges


def test_later_requests_of_a_role_share_their_prefix_with_earlier_ones():
    """A prefix cache serves only an identical beginning: the history grows, and the task comes last."""
    cast = Cast(rounds=4)
    try_meme(cast, settings=TrialSettings(overlap=False))
    requests = [request for request in cast.requests("accuser") if task_of(request) == "summarise"]
    for before, after in itertools.pairwise(requests):
        assert after.parts[: len(before.parts) - 1] == before.parts[:-1]
    judged = cast.requests("judge")
    assert all(request.parts[:-1] == judged[0].parts[:-1] for request in judged)


# Token limits


def test_reply_tokens_are_limited_by_role_and_recorded():
    cast = Cast(rounds=2)
    own = {"judge": 5000, "accuser": 700}
    role_models = cast.role_models
    limited = RoleModels(
        **{name: replace(getattr(role_models, name), max_tokens=own.get(name)) for name in cast.models}
    )
    record = try_meme(cast, role_models=limited)
    usual = {"proposer": 1700, "defender": 3200}  # 1.25 tokens per character of the longest reply, plus 200
    for role, tokens in {**own, **usual}.items():
        limits = {request.max_tokens for request in cast.requests(role) if task_of(request) != "odds"}
        assert limits == {tokens}
        assert record.opened.settings["max_tokens"][role.upper()] == tokens
    other = try_meme(Cast(rounds=2))
    assert other.opened.settings["max_tokens"]["JUDGE"] == 6200
    assert other.opened.versions.settings != record.opened.versions.settings


# The ruling


def test_label_follows_the_rule_and_a_contradicting_reply_is_repaired_once():
    stubborn = {**RULING, "harmful_strength": "weak", "harmless_strength": "weak", "label": "not harmful"}
    cast = Cast(judge=lambda request: stubborn)
    record = try_meme(cast)
    verdict_event = record.last(VerdictGiven)
    assert verdict_event.verdict.label is Label.HARMFUL
    assert verdict_event.ruling.label is Label.NOT_HARMFUL
    assert ReviewReason.JUDGE_CONTRADICTS_ITSELF in {review.reason for review in verdict_event.verdict.review}
    assert "does not follow" in verdict_event.call.fault
    assert sum(map(is_repair, cast.requests("judge"))) == 1
    repentant = Cast(judge=lambda request: RULING if is_repair(request) else stubborn)
    assert not try_meme(repentant).verdict.review


def test_judge_contradicting_a_clear_vote_requests_review():
    cast = Cast(judge=lambda request: ACQUITTAL, odds=(0.1, 0.8))
    verdict = try_meme(cast, found=findings([H] * 5)).verdict
    assert verdict.label is Label.NOT_HARMFUL
    assert {review.reason for review in verdict.review} == {ReviewReason.VOTE_DISAGREES}
    assert not try_meme(Cast(judge=lambda r: ACQUITTAL, odds=(0.1, 0.8)), found=findings([N] * 5)).verdict.review


def test_meme_far_from_all_precedents_gets_the_same_signal_as_in_a_summary():
    far, similar = findings([H] * 5, text=0.1, picture=0.1), findings([H] * 5)
    verdict = try_meme(Cast(), found=far, settings=TrialSettings(audition=False)).verdict
    assert [signal.reason for signal in verdict.signals] == [ReviewReason.NO_SIMILAR_PRECEDENT]
    assert verdict.label is Label.HARMFUL and not verdict.review
    assert not try_meme(Cast(), found=similar).verdict.signals
    shown_none = Cast(judge=lambda request: {**RULING, "precedents": {}})
    assert not try_meme(shown_none, found=far, settings=TrialSettings(precedents=False)).verdict.signals


def test_score_is_the_mean_over_both_orders_of_the_options():
    """A model that always prefers the first letter provides no information: its score is a half."""
    verdict = try_meme(Cast(odds=(0.6, 0.2))).verdict
    assert verdict.harm_score == pytest.approx(0.75)
    assert verdict.harm_score_meaning is ScoreMeaning.LABEL_PROBABILITY
    letters = Cast()
    letters.models["judge"]._odds = lambda request, options: (0.9, 0.1)
    record = try_meme(letters)
    assert record.verdict.harm_score == pytest.approx(0.5)
    assert record.last(VerdictGiven).odds.harmful == (0.9, 0.1)


def test_score_that_contradicts_the_ruling_requests_review():
    verdict = try_meme(Cast(odds=(0.1, 0.7))).verdict
    assert {review.reason for review in verdict.review} == {ReviewReason.SCORE_DISAGREES}


def test_score_is_absent_without_token_probabilities():
    for cast in (Cast(odds=None), Cast(odds=(0.0, 0.0))):
        verdict = try_meme(cast).verdict
        assert verdict.harm_score is None and verdict.harm_score_meaning is None


@pytest.mark.parametrize("odds", [(1e-9, 1e-11), (0.02, 0.02), (0.0, 0.0)])
def test_odds_with_little_probability_on_the_labels_give_no_score(odds):
    """A model may be about to think: the ratio of the small remaining probabilities was once taken for 99 %."""
    verdict = try_meme(Cast(odds=odds)).verdict
    assert verdict.harm_score is None and verdict.harm_score_meaning is None
    (signal,) = verdict.signals
    assert signal.reason is ReviewReason.SCORE_UNKNOWN and f"{sum(odds):.2g} of its probability" in signal.detail
    assert not verdict.review


def test_least_probability_of_the_labels_is_configurable():
    settings = TrialSettings(least_label_mass=0.03)
    assert try_meme(Cast(odds=(0.03, 0.01)), settings=settings).verdict.harm_score == pytest.approx(0.75)


# Ablations


def test_judge_sees_no_precedents_if_they_are_disabled():
    none = {**RULING, "precedents": {}}
    cast = Cast(judge=lambda request: none)
    record = try_meme(cast, settings=TrialSettings(precedents=False))
    assert record.precedents is None
    assert "Precedent 1" not in prompt_text(cast.requests("judge")[0])
    assert len(frames_of(cast.requests("judge")[0])) == 1


def test_no_side_argues_if_advocates_are_disabled():
    cast = Cast()
    record = try_meme(cast, settings=TrialSettings(advocates=False))
    assert not record.all(Summarised) and not record.all(SideRested)
    assert not cast.requests("accuser", "defender")
    assert "The side that says" not in prompt_text(cast.requests("judge")[0])


def test_advocates_argue_from_the_description_if_the_captioner_is_disabled():
    cast = Cast()
    record = try_meme(cast, settings=TrialSettings(captioner=False))
    assert not record.all(QuestionAsked)
    assert {event.reason for event in record.all(SideRested)} == {QuestioningEnd.NO_EXAMINATION}
    assert "the accuser's reasons" in prompt_text(cast.requests("judge")[0])


def test_dull_judge_is_one_call_with_the_meme_alone():
    cast = Cast(judge=lambda request: {**RULING, "precedents": {}})
    try_meme(cast, settings=TrialSettings(dull_judge=True, score=False))
    assert cast.calls() == 1
    (request,) = cast.requests("judge")
    assert TEXT in prompt_text(request) and len(frames_of(request)) == 1
    assert "description" not in prompt_text(request).rpartition("Reply in JSON")[2].lower()


def test_stance_at_the_summary_gives_both_sides_the_same_questioning_prompt():
    cast = Cast(rounds=2)
    try_meme(cast, settings=TrialSettings(stance_at="summary"))
    systems = {}
    for role in ("accuser", "defender"):
        for request in cast.requests(role):
            systems.setdefault((role, task_of(request)), set()).add(request.system)
    assert systems["accuser", "ask"] == systems["defender", "ask"]
    assert systems["accuser", "summarise"] != systems["defender", "summarise"]


def test_switched_sides_ask_for_the_other_at_first_and_sum_up_for_their_own():
    cast = Cast(rounds=4)
    try_meme(cast, settings=TrialSettings(stance_at="switch", rounds_min=4))
    systems = {
        (role, task_of(request), request.call_id.round): request.system
        for role in ("accuser", "defender")
        for request in cast.requests(role)
    }
    for own, other in (("accuser", "defender"), ("defender", "accuser")):
        prompts = [systems[own, "ask", number] for number in (1, 2, 3, 4)]
        assert prompts[0] == prompts[1] == systems[other, "ask", 3] != prompts[2] == prompts[3]
        assert systems[own, "summarise", 1] == systems[own, "summarise", 4] == prompts[3]


# Thoughts of reasoning models


def test_thoughts_are_recorded_but_shown_to_no_role():
    thought, replies = "SECRETLY I WONDER", Cast()

    def thinking(request):
        task = task_of(request)
        role = next(name for name, model in cast.models.items() if any(one.request is request for one in model.asked))
        return reply(json.dumps(replies._usual(role, task, request)), FinishReason.STOP, thought)

    cast = Cast(**dict.fromkeys(("describe", "answer", "ask", "summarise", "judge"), thinking))
    record, without = try_meme(cast), try_meme(Cast())
    calls = [event.call for event in record.events if getattr(event, "call", None)]
    assert calls and {call.thought for call in calls} == {thought}
    for request in cast.requests():
        assert all(thought not in part for part in request.parts if isinstance(part, str))
    # Entropy and verdict are the same as without thoughts.
    entropies = [[event.entropy for event in one.all(Summarised)] for one in (record, without)]
    assert entropies[0] == entropies[1] and record.verdict == without.verdict


def test_long_thoughts_are_truncated_in_the_record():
    long = reply('{"description": "A crowd."}', FinishReason.STOP, "x" * 50_000)
    record = try_meme(Cast(describe=lambda request: long))
    assert record.last(Described).call.thought == "x" * 20_000


def test_thinking_role_gets_extra_tokens_except_for_odds():
    cast = Cast(rounds=2)
    role_models = replace(
        cast.role_models, judge=replace(cast.role_models.judge, thought_tokens=500, thoughts_by=("TEMPLATE", "x"))
    )
    record = try_meme(cast, role_models=role_models)
    assert record.state is TrialState.DECIDED
    tokens = {(role, task_of(request)): request for role in cast.models for request in cast.requests(role)}
    assert {key: request.thought_tokens for key, request in tokens.items() if request.thought_tokens} == {
        ("judge", "judge"): 500
    }
    assert record.opened.settings["thoughts"] == {"JUDGE": {"tokens": 500, "by": ["TEMPLATE", "x"]}}
    plain = try_meme(Cast(rounds=2))
    assert "thoughts" not in plain.opened.settings
    assert record.opened.settings["max_tokens"] == plain.opened.settings["max_tokens"]
    assert record.opened.versions.settings != plain.opened.versions.settings


def test_record_states_which_roles_have_a_working_prefix_cache():
    cast = Cast(rounds=2)
    role_models = replace(
        cast.role_models,
        judge=replace(cast.role_models.judge, prefix_cache=False),
        accuser=replace(cast.role_models.accuser, prefix_cache=True),
    )
    record = try_meme(cast, role_models=role_models)
    assert record.opened.prefix_cache == {"JUDGE": False, "ACCUSER": True}
    # Restarting a server does not make another version.
    assert record.opened.versions == try_meme(Cast(rounds=2)).opened.versions


# Priorities


@pytest.mark.parametrize("batch", [False, True])
def test_calls_closer_to_the_verdict_take_priority_and_batches_come_last(batch):
    cast = Cast(rounds=4)
    case = TrialCase("t", a_meme(TEXT), Procedure.FULL, batch=batch)
    asyncio.run(full_court(cast, settings=TrialSettings(overlap=False)).run(case, RecordingSink()))
    by_task = {}
    for model in cast.models.values():
        for call in model.asked:
            by_task.setdefault(task_of(call.request), []).append(call.request.priority - (100 if batch else 0))
    assert by_task["describe"] == [0]
    for side in ("ask", "summarise"):
        assert sorted(by_task[side], reverse=True) == [-number for number in (1, 2, 3, 4) for _ in Side]
    assert sorted(by_task["answer"], reverse=True) == sorted(by_task["ask"], reverse=True)
    assert by_task["judge"] == [-51] and by_task["odds"] == [-51, -51]


def test_speculative_calls_yield_to_needed_ones():
    """Next questions overtake slow summaries, and must not delay anyone's summary."""
    cast = Cast(rounds=6, accuser_summarise=None)
    slow = cast.models["accuser"]
    usual = slow.reply

    async def reply(request, *, within_s):
        if task_of(request) == "summarise":
            await asyncio.sleep(0.02)
        return await usual(request, within_s=within_s)

    slow.reply = reply
    try_meme(cast)
    first_ahead = next(call.request for call in slow.asked if "Question 1" in prompt_text(call.request))
    assert task_of(first_ahead) == "ask" and first_ahead.priority == 0  # round 2, while only round 1 is needed
    summaries = [call.request.priority for call in slow.asked if task_of(call.request) == "summarise"]
    assert summaries[0] == -1


# Unusable replies


def reply(text, finish, thought=""):
    return ChatReply(text, finish, "m", 1, 1, 0, 0.0, thought=thought)


BAD = {
    "empty": ("", "REPLY_EMPTY"),
    "cut": (reply('{"question": "What', FinishReason.LENGTH), "REPLY_CUT"),
    "cut in mid-thought": (reply("", FinishReason.LENGTH, "I wonder whether"), "THOUGHT_CUT"),
    "a loop up to the limit of tokens": (
        reply('{"question": "' + "Is it so? " * 80, FinishReason.LENGTH),
        "REPLY_LOOPS",
    ),
    "a loop up to the limit of a string": (json.dumps({"description": "a lamp and " * 800}), "REPLY_LOOPS"),
    "a loop that the server ended": (reply('{"question": "Is it', FinishReason.REPETITION), "REPLY_LOOPS"),
    "a loop of a thought": (reply("", FinishReason.LENGTH, "I wonder. " * 80), "REPLY_LOOPS"),
    "refused": (reply("I can't help with that", FinishReason.REFUSAL), "REPLY_REFUSED"),
}


@pytest.mark.parametrize("task", ["describe", "answer", "ask", "summarise", "judge"])
@pytest.mark.parametrize("kind", list(BAD))
def test_reply_that_stays_unusable_fails_the_trial_with_its_reason(task, kind):
    bad_reply, reason = BAD[kind]
    cast = Cast(**{task: lambda request: bad_reply})
    notes = RecordingSink()
    # A trial goes on without a description, except as published.
    settings = TrialSettings(mistrials=task != "describe" or kind not in ("empty", "refused"))
    with pytest.raises(TrialAborted) as caught:
        try_meme(cast, watch=notes, settings=settings)
    assert isinstance(caught.value.cause, ReplyUnusable)
    assert caught.value.reason == reason
    assert caught.value.record.state is TrialState.FAILED and caught.value.record.verdict is None
    assert notes.events[-1].reason == reason


@pytest.mark.parametrize("task", ["describe", "answer", "ask", "summarise", "judge"])
@pytest.mark.parametrize("kind", ["empty", "cut", "cut in mid-thought"])
def test_one_repair_request_names_the_fault_without_a_repetition_penalty(task, kind):
    bad_reply, _ = BAD[kind]
    cast = Cast(rounds=2, **{task: lambda request: None if is_repair(request) else bad_reply})
    record = try_meme(cast)
    assert record.state is TrialState.DECIDED
    repaired = [event.call.fault for event in record.events if getattr(event, "call", None) and event.call.fault]
    assert repaired and all(kind.split()[0] in fault for fault in repaired)
    assert not any(request.avoid_repetition for request in cast.requests())


@pytest.mark.parametrize("task", ["describe", "answer", "ask", "summarise", "judge"])
@pytest.mark.parametrize("kind", [kind for kind in BAD if "loop" in kind])
def test_looping_reply_is_retried_with_a_repetition_penalty_and_quoted_briefly(task, kind):
    bad_reply, _ = BAD[kind]
    cast = Cast(rounds=2, **{task: lambda request: None if is_repair(request) else bad_reply})
    record = try_meme(cast)
    assert record.state is TrialState.DECIDED
    requests = cast.requests()
    assert {is_repair(request) for request in requests if request.avoid_repetition} == {True}
    assert all(request.avoid_repetition for request in requests if is_repair(request))
    repaired = [event.call for event in record.events if getattr(event, "call", None) and event.call.fault]
    assert repaired and all("over and over" in call.fault and len(call.quoted) < 60 for call in repaired)


@pytest.mark.parametrize("task", ["describe", "answer", "ask", "summarise", "judge"])
@pytest.mark.parametrize("error", [Unavailable("gone", reason="MODEL_GONE"), ModelRefused("too long"), Overrun("slow")])
def test_failing_server_ends_the_trial(task, error):
    with pytest.raises(TrialAborted) as caught:
        try_meme(Cast(**{task: lambda request: error}))
    assert caught.value.cause is error
    assert caught.value.record.events[-1].retryable == isinstance(error, Unavailable)


def test_failure_of_one_side_cancels_the_other():
    cast = Cast(rounds=5, delay_s=0.05, accuser_ask=lambda request: Unavailable("gone"))
    cast.models["accuser"]._delay_s = 0.01  # it fails while the other side waits for its own model
    with pytest.raises(TrialAborted):
        try_meme(cast)
    calls = cast.calls()
    assert cast.models["defender"].cancelled or cast.models["proposer"].cancelled
    asyncio.run(asyncio.sleep(0.05))
    assert cast.calls() == calls


@pytest.mark.parametrize("end", ["verdict", "failure", "fault", "refusal", "late", "deadline", "left"])
async def test_pictures_are_freed_with_their_trial(end):
    """At once: pictures are large, and the garbage collector runs by object count alone."""
    errors = {"failure": Unavailable("away"), "fault": ValueError("a fault"), "refusal": ModelRefused("no")}
    lines = {"defender_ask": lambda _: errors[end]} if end in errors else {}
    slow = 9.0 if end in ("late", "deadline", "left") else 0.0

    async def prompt_text(court):
        # The other side's call is in flight, and is cancelled with this one.
        case = TrialCase("t", a_meme(TEXT), Procedure.FULL, within_s=0.3 if end == "deadline" else None)
        trial = asyncio.ensure_future(court.run(case, RecordingSink()))
        if end == "left":
            await asyncio.wait([trial], timeout=0.05)
            trial.cancel()
        try:
            await trial
        except TrialAborted as error:
            return error.reason
        except asyncio.CancelledError:
            return "left"
        finally:
            del trial  # its exception refers to this frame
        return "verdict"

    court = full_court(Cast(delay_s=slow, **lines), settings=TrialSettings(call_s=0.3))
    with without_garbage_collector(Picture, FullTrial, Examination) as uncollected_objects:
        reason = await prompt_text(court)
        errors.clear()
        uncollected_objects = await soon(uncollected_objects)
    assert uncollected_objects == []
    reasons = {"failure": "UNAVAILABLE", "fault": "INTERNAL", "refusal": "MODEL_REFUSED", "late": "MODEL_TOO_SLOW"}
    assert reason == {**reasons, "deadline": "DEADLINE"}.get(end, end)


# Time


def test_short_deadline_ends_examinations_early_and_the_judge_still_rules(monkeypatch):
    virtual_time.use_virtual_deadlines(monkeypatch)
    cast = Cast(rounds=9, delay_s=0.05)
    record = try_meme(cast, within_s=0.75, run=virtual_time.run)
    assert record.state is TrialState.DECIDED
    assert QuestioningEnd.TIME in {event.reason for event in record.all(SideRested)}
    assert ReviewReason.CUT_SHORT in {review.reason for review in record.verdict.review}
    assert record.verdict.label is Label.HARMFUL


def test_deadline_too_short_for_the_judge_yields_no_verdict(monkeypatch):
    virtual_time.use_virtual_deadlines(monkeypatch)
    with pytest.raises(TrialAborted) as caught:
        try_meme(Cast(delay_s=0.05), within_s=0.12, run=virtual_time.run)
    assert isinstance(caught.value.cause, Overrun)
    assert caught.value.record.verdict is None


async def test_longest_chain_of_calls_matches_the_overlap_formula():
    """D + R (q + a) + s + J: calls that wait for another, in delays of equal length."""
    clock = asyncio.get_running_loop().time
    for overlap, chain in ((True, 1 + 2 * 4 + 1 + 1), (False, 1 + 3 * 4 + 1)):
        cast = Cast(rounds=4, delay_s=0.05)
        court = full_court(cast, settings=TrialSettings(overlap=overlap, score=False))
        began = clock()
        await court.run(TrialCase("t", a_meme(TEXT), Procedure.FULL), RecordingSink())
        # A lower bound holds on any machine; how closely it is met is measured by a benchmark.
        assert clock() - began >= chain * 0.05 - 0.01
        if overlap:
            assert len([r for r in cast.requests("accuser") if task_of(r) == "ask"]) <= 5
