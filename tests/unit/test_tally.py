"""What calls cost that no event tells of is counted in the last one: nothing that was spent is off the record."""

import asyncio
import json
from functools import partial

import pytest

from court.errors import ReplyUnusable, Unavailable
from court.events import (
    Procedure,
    Summarised,
    SummarisedAhead,
    TrialFailed,
    Unused,
    VerdictGiven,
    parse_event,
)
from court.ports import ChatReply, FinishReason
from court.record import TrialAborted
from court.settings import TrialSettings
from tests.support import cast as casts
from tests.support import virtual_time
from tests.support.cast import RULING, Cast, is_repair, task_of

try_meme = partial(casts.try_meme, run=virtual_time.run)

ONE = TrialSettings(rounds_min=1, rounds_max=1, overlap=False)


class Counted:
    """The models of a cast; counts what they answered."""

    def __init__(self, cast):
        self.cast, self.answered, self.cut_off = cast, [], 0
        for model in cast.models.values():
            for name in ("reply", "odds"):
                object.__setattr__(model, name, self.counting(getattr(model, name)))

    def counting(self, ask):
        async def counted(*given, within_s):
            try:
                said = await ask(*given, within_s=within_s)
            except BaseException:
                self.cut_off += 1
                raise
            if said is not None:
                self.answered.append(said if isinstance(said, ChatReply) else said.reply)
            return said

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


def told(record):
    """What the events of a record tell of, each call once, and what the last says besides."""
    kept = {(event.side, event.round) for event in record.all(Summarised)}
    calls = []
    for event in record.events:
        if isinstance(event, SummarisedAhead) and (event.side, event.round) in kept:
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
    """Rounds go on meanwhile, and some of it is for nothing: the side rests after its second."""
    speak = cast.models["accuser"].reply

    async def reply(request, *, within_s):
        if task_of(request) == "summarise" and sum("Question " in part for part in request.parts) == 1:
            await asyncio.sleep(0.05)
        return await speak(request, within_s=within_s)

    object.__setattr__(cast.models["accuser"], "reply", reply)
    return cast


CASTS = {
    "in order": lambda: Cast(rounds=3),
    "rounds for nothing": lambda: slow_first_summary(Cast(rounds=1, delay_s=0.002)),
    "repaired": lambda: Cast(rounds=2, judge=lambda request: RULING if is_repair(request) else ""),
    "no odds in the end": lambda: Cast(rounds=2, odds=(2.0, 0.1)),
    "an answer without odds": lambda: Cast(rounds=2, odds=()),
}


@pytest.mark.parametrize("kind", list(CASTS))
def test_every_call_of_a_trial_is_on_its_record(kind):
    counted = Counted(CASTS[kind]())
    record = try_meme(counted.cast)
    assert told(record) == counted.figures


def test_nothing_is_unused_where_everything_was_needed():
    assert try_meme(Cast(rounds=3), settings=TrialSettings(overlap=False)).last(VerdictGiven).unused == Unused()


def test_what_came_for_nothing_is_unused():
    for none in ((2.0, 0.1), ()):
        record = try_meme(Cast(rounds=2, odds=none), settings=ONE)
        assert record.last(VerdictGiven).odds is None
        unused = record.last(VerdictGiven).unused
        assert (unused.calls, unused.tokens_out, unused.unanswered) == (1, 1, 0)


def test_a_summary_for_nothing_stands_in_the_record():
    counted = Counted(slow_first_summary(Cast(rounds=1, delay_s=0.002)))
    record = try_meme(counted.cast)
    kept = {(event.side, event.round) for event in record.all(Summarised)}
    early = record.all(SummarisedAhead)
    assert [event for event in early if (event.side, event.round) not in kept]
    assert all(event.call.tokens_out for event in early)


def test_a_trial_that_fails_says_what_it_cost():
    cut = ChatReply('{"description": "A', FinishReason.LENGTH, "m", 100, 7, 3, 0.0)
    counted = Counted(Cast(describe=lambda request: cut))
    with pytest.raises(TrialAborted) as caught:
        try_meme(counted.cast)
    assert isinstance(caught.value.cause, ReplyUnusable) and caught.value.reason == "REPLY_CUT"
    failed = caught.value.record.last(TrialFailed)
    assert failed.unused == Unused(calls=2, tokens_in=200, tokens_out=14, tokens_cached=6) == counted.figures


def test_calls_that_failed_or_were_cancelled_are_counted():
    counted = Counted(Cast(rounds=2, judge=lambda request: Unavailable("gone", reason="MODEL_GONE")))
    with pytest.raises(TrialAborted) as caught:
        try_meme(counted.cast)
    assert told(caught.value.record) == counted.figures
    assert caught.value.record.last(TrialFailed).unused.unanswered >= 1


def test_where_nobody_was_asked_nothing_is_said():
    assert try_meme(Cast(), procedure=Procedure.SUMMARY).last(VerdictGiven).unused is None


def test_a_record_of_before_this_was_kept_is_read():
    given = try_meme(Cast(rounds=2)).last(VerdictGiven)
    stored = given.model_dump(mode="json")
    del stored["unused"], stored["call"]["server"], stored["odds"]["call"]["server"]
    old = parse_event(json.dumps(stored))
    assert old.unused is None and old.call.server == ""
    assert old.verdict == given.verdict
