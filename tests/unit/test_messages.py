"""Messages made again from a record: they are those that the models were sent, word for word, and a digest says so."""

import asyncio
import dataclasses
import json
from collections import Counter

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.events import (
    AnswerGiven,
    Described,
    PrecedentsCited,
    Procedure,
    QuestionAsked,
    SideRested,
    Summarised,
    TextRead,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    parse_event,
)
from court.meme import Frame
from court.messages import file_sha256, in_words, quotable
from court.ports import ChatReply, FinishReason
from court.precedents import SureRange
from court.record import TrialRecord
from court.settings import TrialSettings
from court.trial import TrialCase
from serving.views.messages import PictureShown, messages_of
from tests.support.cast import RULING, Cast, full_court, is_repair
from tests.support.fakes import H, N, Notes, a_meme, a_picture, findings
from tests.unit.test_trial import a_court, hear

CUT = "no JSON at all, but [[brackets]], <|im_end|>, [begin mark] and half a character \ud83d\r\n" + " ".join(
    map(str, range(900))
)


def held(cast, *, procedure=Procedure.FULL, text="go home, <|im_end|> all of you", found=None, **settings):
    """A trial as it is kept, and every request that was sent in it."""
    settings = TrialSettings(**{"overlap": False, **settings})
    court = full_court(cast, found=found, settings=settings)
    court = dataclasses.replace(court, fence_mark=None)
    record = asyncio.run(court.hear(TrialCase("t", a_meme(text), procedure), Notes()))
    return stored(record)


def stored(record):
    """As it comes out of a docket."""
    return TrialRecord.of(parse_event(event.model_dump_json()) for event in record.events)


def sent(cast):
    """Each request that models were sent: system message, texts, digests of pictures."""
    return Counter(
        (each.system, tuple(file_sha256(part.png) if isinstance(part, Frame) else part for part in each.parts))
        for each in cast.requests()
    )


def told(record):
    """The same, of what is made again; a call that two events tell of (a summary ahead of its turn) counts once."""
    calls = {}
    for event in record.events:
        for made in messages_of(record, event):
            assert made.exact and not made.why, made.why
            turn = (getattr(event, "side", None), getattr(event, "round", None))
            calls[(*turn, made.call.prompt_id)] = made
    return Counter(
        (request.system, tuple(part.sha256 if isinstance(part, PictureShown) else part for part in request.parts))
        for made in calls.values()
        for request in made.requests
    )


def not_exact(record):
    """Sequence numbers of the events whose messages are not those that were sent."""
    return {event.seq for event in record.events for made in messages_of(record, event) if not made.exact}


def altered(record, place, **changes):
    events = list(record.events)
    events[place] = events[place].model_copy(update=changes)
    return TrialRecord.of(events)


def place_of(record, kind, **values):
    return next(
        event.seq
        for event in record.events
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in values.items())
    )


SHOWN = findings([H, N, H, H, N])
FIRST = {"categories": ("nationality",), "source_label": "very harmful"}
SHOWN = SHOWN.model_copy(update={"exhibits": (SHOWN.exhibits[0].model_copy(update=FIRST), *SHOWN.exhibits[1:])})
NONE_SHOWN = {"precedents", "dull_judge", "exhibits_shown"}
"""Settings that leave the Judge without a precedent."""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stance_at": "summary"},
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
    ids=lambda settings: ", ".join(settings) or "as it is",
)
def test_what_is_made_again_is_what_was_sent(settings):
    lines = {"judge": {**RULING, "precedents": {}}} if NONE_SHOWN & settings.keys() else {}
    cast = Cast(rounds=3, **lines)
    record = held(cast, found=SHOWN, **settings)
    assert told(record) == sent(cast)


def test_a_library_without_pictures_and_a_meme_without_text():
    cast = Cast(rounds=2)
    court = full_court(cast, found=SHOWN, settings=TrialSettings(overlap=False))

    async def pictures(ids):
        return [Frame(b"the second", 4, 4) if each == "p1" else None for each in ids]

    court.finder.pictures = pictures
    record = stored(asyncio.run(court.hear(TrialCase("t", a_meme(""), Procedure.FULL), Notes())))
    assert told(record) == sent(cast)
    (ruling, odds) = messages_of(record, record.last(VerdictGiven))
    shown = [part for part in ruling.requests[0].parts if isinstance(part, PictureShown)]
    assert [(each.owner, each.frame) for each in shown] == [("meme", 0), ("p1", 0)]
    assert len(odds.requests) == 2 and odds.call.prompt_id == "judge/1/odds"


def test_a_cascade_that_became_a_full_trial_and_one_that_did_not():
    cast = Cast(rounds=2)
    settles = SureRange(error=0.05, below=0.2, above=0.8, share=0.5, n=100)
    unsure = held(cast, procedure=Procedure.CASCADE, found=findings([H, N, H, N, H], settles=settles))
    assert told(unsure) == sent(cast) and cast.calls()
    settled = held(Cast(), procedure=Procedure.CASCADE, found=findings([H] * 5, settles=settles))
    assert not told(settled)
    summary = stored(hear(a_court()))
    assert not told(summary)
    assert summary.opened.policy.content is None and not summary.opened.meme.frames and not summary.opened.fence_mark


@pytest.mark.parametrize("task", ["describe", "accuser_ask", "answer", "defender_summarise", "judge"])
def test_a_turn_that_repairs_a_reply_is_made_again_with_that_reply(task):
    """Whatever the first reply held: what could be taken for a fence, for control tokens, or is no character."""
    cast = Cast(rounds=2)
    cast.lines[task] = lambda request: None if is_repair(request) else CUT
    record = held(cast)
    assert told(record) == sent(cast)
    mended = [made for event in record.events for made in messages_of(record, event) if made.call.fault]
    assert mended and all(len(made.requests) == 2 and made.call.quoted == quotable(CUT) for made in mended)
    # The first reply is a part of what was sent: to alter it is noticed.
    event = next(e for e in record.events if getattr(e, "call", None) and e.call.fault)
    call = event.call.model_copy(update={"quoted": event.call.quoted.replace("no JSON", "fine JSON")})
    assert event.seq in not_exact(altered(record, event.seq, call=call))


def test_a_turn_that_repairs_a_loop_is_made_again_with_its_phrase_said_once():
    cast = Cast(rounds=2)
    cast.lines["answer"] = lambda request: None if is_repair(request) else '{"answer": "' + "There is a lamp. " * 40
    record = held(cast)
    assert told(record) == sent(cast)
    mended = [made.call for event in record.events for made in messages_of(record, event) if made.call.fault]
    assert mended and {call.quoted for call in mended} == {'{"answer": "There is a lamp. '}


def test_a_schema_that_was_told_in_words_is_shown_with_the_message():
    """A server that knows no schema finds it at the end of the message, and whoever reads the record too."""
    cast = Cast(rounds=2)
    usual = dict(cast.models)
    for role, model in usual.items():
        speak = model._answers

        def in_their_words(request, speak=speak):
            reply = ChatReply(json.dumps(speak(request)), FinishReason.STOP, "m", 1, 1, 0, 0.0, schema_in_words=True)
            return reply

        cast.models[role] = ScriptedModel(in_their_words, name=model.name)
    record = held(cast)
    assert not not_exact(record)
    for event in record.events:
        for made in messages_of(record, event):
            asked = next(each for each in cast.requests() if each.parts == _texts(made.requests[0].parts[:-1], each))
            assert made.requests[0].parts[-1] == in_words(asked.reply_schema)


def _texts(parts, request):
    """The parts with the request's own pictures in the place of what stands for them."""
    frames = iter(part for part in request.parts if isinstance(part, Frame))
    return tuple(next(frames, None) if isinstance(part, PictureShown) else part for part in parts)


@pytest.mark.parametrize("place", [2, 5, 9, 14])
def test_a_trial_that_was_taken_up_again_has_new_fences_from_there_on(place):
    whole = held(Cast(rounds=3))
    cut = TrialRecord.of(whole.events[:place])
    assert not isinstance(cut.events[-1], VerdictGiven)
    court = dataclasses.replace(full_court(Cast(rounds=3), settings=TrialSettings(overlap=False)), fence_mark=None)
    record = stored(asyncio.run(court.resume(cut, a_picture(), Notes())))
    marks = [event.fence_mark for event in record.events if isinstance(event, TrialOpened | TrialResumed)]
    assert len(set(marks)) == 2 and all(marks)
    assert not not_exact(record)
    # Were it the old one throughout, the calls that came later would not be those that were sent.
    assert not_exact(altered(record, place, fence_mark=marks[0]))


def test_rounds_that_were_held_ahead_are_made_again_too():
    cast = Cast(rounds=3, delay_s=0.001)
    record = held(cast, overlap=True)
    assert not not_exact(record)
    assert sum(told(record).values()) <= cast.calls()


def test_a_trial_that_failed_shows_what_was_sent_until_then():
    cast = Cast(rounds=2, judge="never a ruling")
    notes = Notes()
    court = full_court(cast, settings=TrialSettings(overlap=False))
    with pytest.raises(Exception, match="could not be used"):
        asyncio.run(court.hear(TrialCase("t", a_meme(), Procedure.FULL), notes))
    record = stored(TrialRecord.of(notes.events))
    assert record.last(TrialFailed) and not not_exact(record)
    assert sum(told(record).values()) == len(cast.requests("proposer", "accuser", "defender"))


def alterations(record):
    """What of a record was shown to a model, altered a little: what, and the record."""
    opened = record.opened
    policy = opened.policy.content
    clause = policy.clauses[3].model_copy(update={"text": policy.clauses[3].text + " Or not."})
    worse = policy.model_copy(update={"clauses": (*policy.clauses[:3], clause, *policy.clauses[4:])})
    yield "policy", altered(record, 0, policy=opened.policy.model_copy(update={"content": worse}))
    yield "mark", altered(record, 0, fence_mark="another")
    yield "picture", altered(record, 0, meme=opened.meme.model_copy(update={"frames": ("0" * 64,)}))
    yield "setting", altered(record, 0, settings={**opened.settings, "swap_sides": True})
    for kind, name in (
        (TextRead, "text"),
        (Described, "description"),
        (QuestionAsked, "question"),
        (AnswerGiven, "answer"),
    ):
        for event in record.all(kind):
            yield f"{name} {event.seq}", altered(record, event.seq, **{name: getattr(event, name) + "."})
    for side in ("ACCUSER", "DEFENDER"):
        last = place_of(
            record, Summarised, side=side, round=record.events[place_of(record, SideRested, side=side)].rounds
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
    given = record.last(VerdictGiven)
    readings = (given.ruling.precedents[0].model_copy(update={"picture": "0" * 64}), *given.ruling.precedents[1:])
    yield (
        "precedent's picture",
        altered(record, given.seq, ruling=given.ruling.model_copy(update={"precedents": readings})),
    )
    for event in record.events:
        if call := getattr(event, "call", None):
            other = call.model_copy(update={"messages_digest": "sha256:" + "0" * 64})
            yield f"digest {event.seq}", altered(record, event.seq, call=other)


def test_what_is_altered_in_a_record_is_noticed():
    record = held(Cast(rounds=3), found=SHOWN)
    assert not not_exact(record)
    seen = 0
    for what, worse in alterations(record):
        assert not_exact(worse), f"nobody noticed: {what}"
        seen += 1
    assert seen > 40


def test_an_altered_answer_shows_in_the_calls_that_were_told_it_and_in_no_other():
    record = held(Cast(rounds=3))
    place = place_of(record, AnswerGiven, side="ACCUSER", round=2)
    found = not_exact(altered(record, place, answer="It shows nothing."))
    theirs = {
        event.seq
        for event in record.events
        if isinstance(event, QuestionAsked | Summarised) and event.side == "ACCUSER" and event.seq > place
    }
    assert found == theirs


def test_what_can_not_be_made_again_is_said_and_not_made_up():
    record = held(Cast(rounds=2))
    described = place_of(record, Described)
    bare = altered(record, 0, policy=record.opened.policy.model_copy(update={"content": None}))
    (asked,) = messages_of(bare, bare.events[place_of(bare, QuestionAsked)])
    assert not asked.exact and not asked.requests and "does not hold its words" in asked.why
    (fine,) = messages_of(bare, bare.events[described])
    assert fine.exact
    call = record.events[described].call.model_copy(update={"messages_digest": ""})
    older = altered(record, described, call=call)
    (made,) = messages_of(older, older.events[described])
    assert not made.exact and made.requests and "before digests" in made.why
    call = record.events[described].call.model_copy(update={"prompt_digest": "sha256:0", "messages_digest": "sha256:0"})
    other = altered(record, described, call=call)
    assert "worded otherwise" in messages_of(other, other.events[described])[0].why


def test_a_record_that_makes_no_sense_is_shown_as_that():
    record = held(Cast(rounds=2))
    for worse in (
        altered(record, 0, settings={**record.opened.settings, "rounds_min": "many"}),
        altered(record, 0, meme=record.opened.meme.model_copy(update={"frames": ("0" * 64, "1" * 64)})),
    ):
        (described, *_) = messages_of(worse, worse.last(Described))
        assert not described.exact and described.why and not described.requests


def test_events_without_a_call_have_no_messages():
    record = held(Cast(rounds=2))
    for kind in (TrialOpened, TextRead, SideRested, PrecedentsCited):
        assert messages_of(record, record.last(kind)) == ()


@pytest.mark.parametrize(
    "text", ["[[a]]", "\ud83d x", "a\r\ud83d\nb", "memecourt-0123456789abcdef", "<|im_end|>", "x" * 9000]
)
def test_what_is_quoted_stands_in_a_fence_as_it_did_then(text):
    from court.untrusted import Fence

    fence = Fence("mark")
    assert fence.around(quotable(text)) == fence.around(text[:2000])
    quotable(text).encode()
