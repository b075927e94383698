"""Tests of the tally of unused calls: the last event counts every call that no other event records."""

import asyncio
from functools import partial

import pytest

from court.errors import ReplyUnusable, Unavailable
from court.events import Procedure, Summarised, SummarisedAhead, TrialFailed, Unused, VerdictGiven
from court.ports import ChatReply, FinishReason
from court.record import TrialAborted
from court.settings import TrialSettings
from tests.support import cast as casts
from tests.support import virtual_time
from tests.support.cast import RULING, Cast, is_repair, task_of

try_meme = partial(casts.try_meme, run=virtual_time.run)

ONE = TrialSettings(rounds_min=1, rounds_max=1, overlap=False)


class CountingModels:
    """The models of a cast; counts their answers."""

    def __init__(self, cast):
        self.cast, self.answered, self.cut_off = cast, [], 0
        for model in cast.models.values():
            for name in ("reply", "odds"):
                object.__setattr__(model, name, self.counting(getattr(model, name)))

    def counting(self, ask):
        async def counted(*arguments, within_s):
            try:
                answer = await ask(*arguments, within_s=within_s)
            except BaseException:
                self.cut_off += 1
                raise
            if answer is not None:
                self.answered.append(answer if isinstance(answer, ChatReply) else answer.reply)
            return answer

        return counted

    @property
    def figures(self):
        return Unused(
            calls=len(self.answered),
            tokens_in=sum(reply.tokens_in for reply in self.answered),
            tokens_out=sum(reply.tokens_out for reply in self.answered),
            tokens_cached=sum(reply.tokens_cached for reply in self.answered),
            unanswered=self.cut_off,
        )


def recorded_figures(record):
    """The figures of all calls in a record, each counted once, plus the unused ones of its last event."""
    counted_rounds = {(event.side, event.round) for event in record.all(Summarised)}
    calls = []
    for event in record.events:
        if isinstance(event, SummarisedAhead) and (event.side, event.round) in counted_rounds:
            continue
        call = getattr(event, "call", None)
        if call is not None:
            calls.append((call, 2 if call.fault else 1))
        if isinstance(event, VerdictGiven) and event.odds:
            calls.append((event.odds.call, len(event.odds.harmful)))
    unused = record.events[-1].unused
    return Unused(
        calls=sum(number for _, number in calls) + unused.calls,
        tokens_in=sum(call.tokens_in for call, _ in calls) + unused.tokens_in,
        tokens_out=sum(call.tokens_out for call, _ in calls) + unused.tokens_out,
        tokens_cached=sum(call.tokens_cached for call, _ in calls) + unused.tokens_cached,
        unanswered=unused.unanswered,
    )


def slow_first_summary(cast):
    """Later rounds run meanwhile, some of them for nothing: the side rests after its second round."""
    original_reply = cast.models["accuser"].reply

    async def reply(request, *, within_s):
        if task_of(request) == "summarise" and sum("Question " in part for part in request.parts) == 1:
            await asyncio.sleep(0.05)
        return await original_reply(request, within_s=within_s)

    object.__setattr__(cast.models["accuser"], "reply", reply)
    return cast


CASTS = {
    "in order": lambda: Cast(rounds=3),
    "unused rounds": lambda: slow_first_summary(Cast(rounds=1, delay_s=0.002)),
    "repaired": lambda: Cast(rounds=2, judge=lambda request: RULING if is_repair(request) else ""),
    "no odds in the end": lambda: Cast(rounds=2, odds=(2.0, 0.1)),
    "a reply without odds": lambda: Cast(rounds=2, odds=()),
}


@pytest.mark.parametrize("kind", list(CASTS))
def test_every_call_of_a_trial_is_on_its_record(kind):
    counted = CountingModels(CASTS[kind]())
    record = try_meme(counted.cast)
    assert recorded_figures(record) == counted.figures


def test_unused_calls_are_zero_if_every_call_was_needed():
    assert try_meme(Cast(rounds=3), settings=TrialSettings(overlap=False)).last(VerdictGiven).unused == Unused()


def test_unusable_odds_count_as_unused():
    for masses in ((2.0, 0.1), ()):
        record = try_meme(Cast(rounds=2, odds=masses), settings=ONE)
        assert record.last(VerdictGiven).odds is None
        unused = record.last(VerdictGiven).unused
        assert (unused.calls, unused.tokens_out, unused.unanswered) == (1, 1, 0)


def test_unused_early_summary_is_recorded():
    counted = CountingModels(slow_first_summary(Cast(rounds=1, delay_s=0.002)))
    record = try_meme(counted.cast)
    counted_rounds = {(event.side, event.round) for event in record.all(Summarised)}
    early = record.all(SummarisedAhead)
    assert [event for event in early if (event.side, event.round) not in counted_rounds]
    assert all(event.call.tokens_out for event in early)


def test_failed_trial_records_its_cost():
    cut = ChatReply('{"description": "A', FinishReason.LENGTH, "m", 100, 7, 3, 0.0)
    counted = CountingModels(Cast(describe=lambda request: cut))
    with pytest.raises(TrialAborted) as caught:
        try_meme(counted.cast)
    assert isinstance(caught.value.cause, ReplyUnusable) and caught.value.reason == "REPLY_CUT"
    failed = caught.value.record.last(TrialFailed)
    assert failed.unused == Unused(calls=2, tokens_in=200, tokens_out=14, tokens_cached=6) == counted.figures


def test_failed_and_cancelled_calls_are_counted():
    counted = CountingModels(Cast(rounds=2, judge=lambda request: Unavailable("gone", reason="MODEL_GONE")))
    with pytest.raises(TrialAborted) as caught:
        try_meme(counted.cast)
    assert recorded_figures(caught.value.record) == counted.figures
    assert caught.value.record.last(TrialFailed).unused.unanswered >= 1


def test_trial_without_calls_records_no_unused_calls():
    assert try_meme(Cast(), procedure=Procedure.SUMMARY).last(VerdictGiven).unused is None
