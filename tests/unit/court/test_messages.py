"""Messages rebuilt from a record: identical to those sent to the models, as a digest confirms."""

import asyncio
import dataclasses
import json
from collections import Counter

import pytest

from court import events
from court.backends.chat.scripted import ScriptedModel
from court.meme import Frame
from court.messages import file_sha256, in_words, quotable
from court.ports import ChatReply, FinishReason
from court.precedents import SureRange
from court.record import TrialRecord
from court.settings import TrialSettings
from court.trial import TrialCase
from serving.views.messages import PictureShown, messages_of
from tests.support.cast import RULING, Cast, full_court, is_repair
from tests.support.fakes import H, N, RecordingSink, a_meme, a_picture, findings
from tests.support.messages import SHOWN, altered, place_of, run_trial, stored
from tests.support.trial import a_court, hear

CUT = "no JSON at all, but [[brackets]], <|im_end|>, [begin mark] and half a character \ud83d\r\n" + " ".join(
    map(str, range(900))
)


def requests_sent(cast):
    """Counts the requests that models were sent: system message, texts, digests of pictures."""
    return Counter(
        (each.system, tuple(file_sha256(part.png) if isinstance(part, Frame) else part for part in each.parts))
        for each in cast.requests()
    )


def requests_rebuilt(record):
    """Counts the requests rebuilt from a record; a call in two events (a summary ahead of its turn) counts once."""
    calls = {}
    for event in record.events:
        for message in messages_of(record, event):
            assert message.exact and not message.why, message.why
            turn = (getattr(event, "side", None), getattr(event, "round", None))
            calls[(*turn, message.call.prompt_id)] = message
    return Counter(
        (request.system, tuple(part.sha256 if isinstance(part, PictureShown) else part for part in request.parts))
        for message in calls.values()
        for request in message.requests
    )


def inexact_events(record):
    """Returns the sequence numbers of events whose rebuilt messages differ from those sent."""
    return {event.seq for event in record.events for message in messages_of(record, event) if not message.exact}


NONE_SHOWN = {"precedents", "dull_judge", "exhibits_shown"}
"""Settings that leave the Judge without precedents."""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stance_at": "summary"},
        {"stance_at": "switch"},
        {"query": "text and summaries"},
        {"swap_sides": True, "score": False},
        {"captioner": False},
        {"advocates": False},
        {"precedents": False, "reply_chars": 300},
        {"dull_judge": True},
        {"rounds_min": 1, "rounds_max": 1},
        {"tally_shown": False, "similarity_shown": False, "judge_order": "defender first", "query": "summaries"},
        {"exhibits_shown": False},
        {"exhibit_labels": "original"},
    ],
    ids=lambda settings: ", ".join(settings) or "defaults",
)
def test_rebuilt_messages_match_those_sent(settings):
    lines = {"judge": {**RULING, "precedents": {}}} if NONE_SHOWN & settings.keys() else {}
    cast = Cast(rounds=3, **lines)
    record = run_trial(cast, found=SHOWN, **settings)
    assert requests_rebuilt(record) == requests_sent(cast)


def test_rebuilt_messages_match_for_missing_pictures_and_an_empty_text():
    cast = Cast(rounds=2)
    court = full_court(cast, found=SHOWN, settings=TrialSettings(overlap=False))

    async def pictures(ids):
        return [Frame(b"the second", 4, 4) if each == "p1" else None for each in ids]

    court.finder.pictures = pictures
    record = stored(asyncio.run(court.run(TrialCase("t", a_meme(""), events.Procedure.FULL), RecordingSink())))
    assert requests_rebuilt(record) == requests_sent(cast)
    (ruling, odds) = messages_of(record, record.last(events.VerdictGiven))
    shown = [part for part in ruling.requests[0].parts if isinstance(part, PictureShown)]
    assert [(each.owner, each.frame) for each in shown] == [("meme", 0), ("p1", 0)]
    assert len(odds.requests) == 2 and odds.call.prompt_id == "judge/1/odds"


def test_rebuilt_messages_match_for_cascades_with_and_without_a_full_trial():
    cast = Cast(rounds=2)
    settles = SureRange(error=0.05, below=0.2, above=0.8, share=0.5, n=100)
    unsure = run_trial(cast, procedure=events.Procedure.CASCADE, found=findings([H, N, H, N, H], settles=settles))
    assert requests_rebuilt(unsure) == requests_sent(cast) and cast.calls()
    settled = run_trial(Cast(), procedure=events.Procedure.CASCADE, found=findings([H] * 5, settles=settles))
    assert not requests_rebuilt(settled)
    summary = stored(hear(a_court()))
    assert not requests_rebuilt(summary)
    assert summary.opened.policy.content is None and not summary.opened.meme.frames and not summary.opened.fence_mark


@pytest.mark.parametrize("task", ["describe", "accuser_ask", "answer", "defender_summarise", "judge"])
def test_repair_request_is_rebuilt_with_the_reply_that_it_quotes(task):
    """Even if the reply contains fence markers, control tokens or invalid characters."""
    cast = Cast(rounds=2)
    cast.lines[task] = lambda request: None if is_repair(request) else CUT
    record = run_trial(cast)
    assert requests_rebuilt(record) == requests_sent(cast)
    mended = [message for event in record.events for message in messages_of(record, event) if message.call.fault]
    assert mended and all(len(message.requests) == 2 and message.call.quoted == quotable(CUT) for message in mended)
    # The first reply is part of what was sent, so altering it is detected.
    event = next(e for e in record.events if getattr(e, "call", None) and e.call.fault)
    call = event.call.model_copy(update={"quoted": event.call.quoted.replace("no JSON", "fine JSON")})
    assert event.seq in inexact_events(altered(record, event.seq, call=call))


def test_repair_of_a_loop_is_rebuilt_with_its_phrase_quoted_once():
    cast = Cast(rounds=2)
    cast.lines["answer"] = lambda request: None if is_repair(request) else '{"answer": "' + "There is a lamp. " * 40
    record = run_trial(cast)
    assert requests_rebuilt(record) == requests_sent(cast)
    mended = [message.call for event in record.events for message in messages_of(record, event) if message.call.fault]
    assert mended and {call.quoted for call in mended} == {'{"answer": "There is a lamp. '}


def test_schema_described_in_words_is_part_of_the_rebuilt_message():
    """A server without schema support gets it at the end of the message, and so does a reader of the record."""
    cast = Cast(rounds=2)
    usual = dict(cast.models)
    for role, model in usual.items():
        speak = model._answers

        def in_their_words(request, speak=speak):
            reply = ChatReply(json.dumps(speak(request)), FinishReason.STOP, "m", 1, 1, 0, 0.0, schema_in_words=True)
            return reply

        cast.models[role] = ScriptedModel(in_their_words, name=model.name)
    record = run_trial(cast)
    assert not inexact_events(record)
    for event in record.events:
        for message in messages_of(record, event):
            request = next(
                each for each in cast.requests() if each.parts == _texts(message.requests[0].parts[:-1], each)
            )
            assert message.requests[0].parts[-1] == in_words(request.reply_schema)


def _texts(parts, request):
    """Returns the parts with the request's own pictures in place of their placeholders."""
    frames = iter(part for part in request.parts if isinstance(part, Frame))
    return tuple(next(frames, None) if isinstance(part, PictureShown) else part for part in parts)


@pytest.mark.parametrize("place", [2, 5, 9, 14])
def test_resumed_trial_has_a_new_fence_mark_from_there_on(place):
    whole = run_trial(Cast(rounds=3))
    cut = TrialRecord.of(whole.events[:place])
    assert not isinstance(cut.events[-1], events.VerdictGiven)
    court = dataclasses.replace(full_court(Cast(rounds=3), settings=TrialSettings(overlap=False)), fence_mark=None)
    record = stored(asyncio.run(court.resume(cut, a_picture(), RecordingSink())))
    marks = [event.fence_mark for event in record.events if isinstance(event, events.TrialOpened | events.TrialResumed)]
    assert len(set(marks)) == 2 and all(marks)
    assert not inexact_events(record)
    # With the old mark throughout, later calls would not match those sent.
    assert inexact_events(altered(record, place, fence_mark=marks[0]))


def test_messages_of_speculative_rounds_are_rebuilt_too():
    cast = Cast(rounds=3, delay_s=0.001)
    record = run_trial(cast, overlap=True)
    assert not inexact_events(record)
    assert sum(requests_rebuilt(record).values()) <= cast.calls()


def test_failed_trial_shows_the_messages_sent_before_the_failure():
    cast = Cast(rounds=2, judge="never a ruling")
    notes = RecordingSink()
    court = full_court(cast, settings=TrialSettings(overlap=False))
    with pytest.raises(Exception, match="could not be used"):
        asyncio.run(court.run(TrialCase("t", a_meme(), events.Procedure.FULL), notes))
    record = stored(TrialRecord.of(notes.events))
    assert record.last(events.TrialFailed) and not inexact_events(record)
    assert sum(requests_rebuilt(record).values()) == len(cast.requests("proposer", "accuser", "defender"))


def alterations(record):
    """Yields records in which something shown to a model is slightly altered: its name, and the record."""
    opened = record.opened
    policy = opened.policy.content
    clause = policy.clauses[3].model_copy(update={"text": policy.clauses[3].text + " Or not."})
    worse = policy.model_copy(update={"clauses": (*policy.clauses[:3], clause, *policy.clauses[4:])})
    yield "policy", altered(record, 0, policy=opened.policy.model_copy(update={"content": worse}))
    yield "mark", altered(record, 0, fence_mark="another")
    yield "picture", altered(record, 0, meme=opened.meme.model_copy(update={"frames": ("0" * 64,)}))
    yield "setting", altered(record, 0, settings={**opened.settings, "swap_sides": True})
    for kind, name in (
        (events.TextRead, "text"),
        (events.Described, "description"),
        (events.QuestionAsked, "question"),
        (events.AnswerGiven, "answer"),
    ):
        for event in record.all(kind):
            yield f"{name} {event.seq}", altered(record, event.seq, **{name: getattr(event, name) + "."})
    for side in ("ACCUSER", "DEFENDER"):
        last = place_of(
            record,
            events.Summarised,
            side=side,
            round=record.events[place_of(record, events.SideRested, side=side)].rounds,
        )
        yield f"justification {side}", altered(record, last, justification="another")
    cited = record.precedents
    at = cited.seq
    first, *others = cited.findings.exhibits
    for name, value in (("text", "another"), ("label", N), ("text_similarity", 0.11), ("categories", ())):
        exhibits = (first.model_copy(update={name: value}), *others)
        yield (
            f"precedent's {name}",
            altered(record, at, findings=cited.findings.model_copy(update={"exhibits": exhibits})),
        )
    fewer = cited.findings.model_copy(update={"exhibits": tuple(others)})
    yield "a precedent left out", altered(record, at, findings=fewer)
    yield "vote", altered(record, at, vote=cited.vote.model_copy(update={"harmful": 0}))
    verdict_event = record.last(events.VerdictGiven)
    readings = (
        verdict_event.ruling.precedents[0].model_copy(update={"picture": "0" * 64}),
        *verdict_event.ruling.precedents[1:],
    )
    yield (
        "precedent's picture",
        altered(record, verdict_event.seq, ruling=verdict_event.ruling.model_copy(update={"precedents": readings})),
    )
    for event in record.events:
        if call := getattr(event, "call", None):
            other = call.model_copy(update={"messages_digest": "sha256:" + "0" * 64})
            yield f"digest {event.seq}", altered(record, event.seq, call=other)


def test_any_alteration_of_a_record_is_detected():
    record = run_trial(Cast(rounds=3), found=SHOWN)
    assert not inexact_events(record)
    count = 0
    for what, worse in alterations(record):
        assert inexact_events(worse), f"undetected: {what}"
        count += 1
    assert count > 40


def test_altered_answer_affects_exactly_the_later_calls_that_quote_it():
    record = run_trial(Cast(rounds=3))
    place = place_of(record, events.AnswerGiven, side="ACCUSER", round=2)
    found = inexact_events(altered(record, place, answer="It shows nothing."))
    theirs = {
        event.seq
        for event in record.events
        if isinstance(event, events.QuestionAsked | events.Summarised) and event.side == "ACCUSER" and event.seq > place
    }
    assert found == theirs


def test_messages_that_cannot_be_rebuilt_are_explained_and_not_invented():
    record = run_trial(Cast(rounds=2))
    described = place_of(record, events.Described)
    bare = altered(record, 0, policy=record.opened.policy.model_copy(update={"content": None}))
    (question,) = messages_of(bare, bare.events[place_of(bare, events.QuestionAsked)])
    assert not question.exact and not question.requests and "does not hold its words" in question.why
    (fine,) = messages_of(bare, bare.events[described])
    assert fine.exact
    call = record.events[described].call.model_copy(update={"messages_digest": ""})
    older = altered(record, described, call=call)
    (made,) = messages_of(older, older.events[described])
    assert not made.exact and made.requests and "before digests" in made.why
    call = record.events[described].call.model_copy(update={"prompt_digest": "sha256:0", "messages_digest": "sha256:0"})
    other = altered(record, described, call=call)
    assert "worded otherwise" in messages_of(other, other.events[described])[0].why


def test_inconsistent_record_is_reported_as_such():
    record = run_trial(Cast(rounds=2))
    for worse in (
        altered(record, 0, settings={**record.opened.settings, "rounds_min": "many"}),
        altered(record, 0, meme=record.opened.meme.model_copy(update={"frames": ("0" * 64, "1" * 64)})),
    ):
        (described, *_) = messages_of(worse, worse.last(events.Described))
        assert not described.exact and described.why and not described.requests


def test_events_without_a_call_have_no_messages():
    record = run_trial(Cast(rounds=2))
    for kind in (events.TrialOpened, events.TextRead, events.SideRested, events.PrecedentsCited):
        assert messages_of(record, record.last(kind)) == ()


@pytest.mark.parametrize(
    "text", ["[[a]]", "\ud83d x", "a\r\ud83d\nb", "memecourt-0123456789abcdef", "<|im_end|>", "x" * 9000]
)
def test_quoted_text_is_fenced_like_the_original(text):
    from court.prompts import Fence

    fence = Fence("mark")
    assert fence.around(quotable(text)) == fence.around(text[:2000])
    quotable(text).encode()
