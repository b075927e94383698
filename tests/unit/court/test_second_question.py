"""Tests of a further question to the Judge of a trial: its material, its answer, and that the verdict stays."""

import asyncio
import dataclasses
import json

import pytest
from pydantic import ValidationError

from court.errors import BadRequest, CantResume, Unavailable
from court.events import Procedure, QuestionRuled, TrialFailed, parse_event
from court.meme import Meme
from court.question import CourtQuestion, read_question
from court.record import TrialAborted, TrialRecord, TrialState
from court.replies import UnusableReply, parse_question_ruling, question_schema
from court.second_question import QuestionBrief, rule_on_question
from court.settings import TrialSettings
from court.trial import TrialCase
from eval.replay.replay import replay
from serving.export.source import ExportSource
from serving.export.trial_file import page
from serving.views.event_text import Fact, pieces_of
from serving.views.messages import messages_of
from serving.views.recheck import differences
from serving.views.trial_view import view_of
from tests.support.cast import RULING, Cast, frames_of, full_court, is_repair, prompt_text, task_of
from tests.support.fakes import RecordingSink, a_meme, a_picture

TARGET = CourtQuestion(
    id="target",
    text="whom is the meme aimed at?",
    options=("blueland", "redland", "nobody"),
    define={"nobody": "no group is meant"},
)
STANCE = CourtQuestion(
    id="stance",
    text="what stance does it take on flags?",
    options=("for flags", "neither", "against flags"),
    sides={"accuser": "for flags", "defender": "against flags"},
)
FRAMES = CourtQuestion(
    id="frames", text="which frames does it use?", options=("crowd", "colour", "weather"), several=True
)
RULED_TARGET = {"rationale": "The words name them.", "label": "blueland"}
RULED_STANCE = {"rationale": "It waves one.", "strengths": {"for flags": "strong", "against flags": "weak"}}


def pairs(**options):
    return {name: {"supporting": pro, "opposing": contra} for name, (pro, contra) in options.items()}


RULED_FRAMES = {
    "rationale": "A crowd and a colour are shown.",
    "labels": pairs(crowd=("strong", "weak"), colour=("moderate", "moderate"), weather=("weak", "strong")),
}

NONE_FITS = pairs(crowd=("weak", "weak"), colour=("weak", "weak"), weather=("weak", "strong"))


def hold_trial(cast, *, meme=None, procedure=Procedure.FULL, settings=None, **options):
    """A court, and the record of a trial in it."""
    court = full_court(cast, settings=settings, **options)
    return court, asyncio.run(court.run(TrialCase("t", meme or a_meme("go home"), procedure), RecordingSink()))


def with_ruling(court, record, question, *, picture="picture", **brief):
    """The record extended by the ruling on a question."""
    notes = RecordingSink()
    picture = a_picture() if picture == "picture" else picture
    asyncio.run(rule_on_question(court, record, picture, QuestionBrief(question, **brief), keep=notes))
    return reload((*record.events, *notes.events))


def reload(events):
    """The record as it is read back from a docket."""
    return TrialRecord.of(parse_event(event.model_dump_json()) for event in events)


def rule_with(reply, question, **options):
    cast = Cast(judge_question=reply)
    court, record = hold_trial(cast)
    return cast, record, with_ruling(court, record, question, **options)


@pytest.mark.parametrize(
    ("question", "reply", "chosen"),
    [
        (TARGET, RULED_TARGET, ("blueland",)),
        (STANCE, RULED_STANCE, ("for flags",)),
        (STANCE, {**RULED_STANCE, "strengths": {"for flags": "weak", "against flags": "moderate"}}, ("against flags",)),
        (STANCE, {**RULED_STANCE, "strengths": {"for flags": "strong", "against flags": "strong"}}, ("neither",)),
        (FRAMES, RULED_FRAMES, ("crowd",)),
        (FRAMES, {**RULED_FRAMES, "labels": NONE_FITS}, ()),
    ],
)
def test_answer_follows_from_the_ruling(question, reply, chosen):
    _, before, after = rule_with(reply, question)
    ruled = after.ruling_on(question.id)
    assert (ruled.chosen, ruled.failure, ruled.rationale) == (chosen, "", reply["rationale"])
    assert bool(ruled.strengths) == bool(ruled.rule) == bool(question.weighed)
    assert ruled.unused.calls == 0 and ruled.call.prompt_id == "question/1/question"
    # The rest of the record stays the same: the verdict, its reasons and its time.
    assert after.events[:-1] == reload(before.events).events
    assert (after.state, after.verdict, after.seconds) == (TrialState.DECIDED, before.verdict, before.seconds)
    assert differences(after) == ()


def test_question_reaches_only_the_judge_with_the_same_material_as_before():
    cast, _, after = rule_with(RULED_TARGET, TARGET)
    (request,) = [sent for sent in cast.requests("judge") if task_of(sent) == "question"]
    (ruling,) = [sent for sent in cast.requests("judge") if task_of(sent) == "judge"]
    # The same beginning, word for word: picture, precedents, description and arguments.
    assert request.system == ruling.system and request.parts[: len(ruling.parts) - 1] == ruling.parts[:-1]
    words = prompt_text(request)
    for statement in (
        "go home",
        "A crowd stands under a green flag.",
        "the accuser's reasons",
        "the defender's reasons",
    ):
        assert statement in words
    assert TARGET.text in words and "no group is meant" in words
    # The verdict and its reasons are not shown, so that they can't speak for an option.
    assert RULING["rationale"] not in words
    others = cast.requests("proposer", "accuser", "defender")
    assert others and not any(TARGET.text in prompt_text(sent) or "blueland" in prompt_text(sent) for sent in others)
    assert not any("go home" in prompt_text(sent) for sent in cast.requests("proposer"))
    assert not any(frames_of(sent) for sent in cast.requests("accuser", "defender"))
    # The sent messages can be rebuilt from the record.
    (rebuilt,) = messages_of(after, after.ruling_on("target"))
    assert rebuilt.exact, rebuilt.why


def test_human_labels_of_precedents_and_their_vote_are_shown_and_recorded():
    known = {"p0": ("blueland",), "p1": (), "elsewhere": ("redland",)}
    vote = {"blueland": 0.71, "redland": 0.2, "nobody": 0.125}
    cast, _, after = rule_with(RULED_TARGET, TARGET, precedent_labels=known, vote=vote)
    ruled = after.ruling_on("target")
    # Labels of precedents that the Judge was not shown are left out.
    assert ruled.precedent_labels == {"p0": ("blueland",), "p1": ()} and ruled.vote == vote
    words = prompt_text(cast.requests("judge")[-1])
    assert "people labelled precedent 1: blueland" in words and "people labelled precedent 2: none" in words
    assert "precedent 3:" not in words.partition("further question below")[2]
    assert "- blueland: 0.71" in words
    (rebuilt,) = messages_of(after, ruled)
    assert rebuilt.exact, rebuilt.why
    # If the Judge is shown no count on harm, it is shown none here.
    cast = Cast(judge_judge={**RULING, "precedents": {}}, judge_question=RULED_TARGET)
    court, record = hold_trial(cast, settings=TrialSettings(tally_shown=False, exhibits_shown=False))
    ruled = with_ruling(court, record, TARGET, precedent_labels=known, vote=vote).ruling_on("target")
    assert (ruled.precedent_labels, ruled.vote) == ({}, {})


@pytest.mark.parametrize(
    "reply",
    [
        {"rationale": "x", "label": "greenland"},
        {"label": "blueland"},
        {**RULED_TARGET, "more": 1},
        {"rationale": "x", "label": ["blueland"]},
        "blueland",
    ],
)
def test_unusable_reply_fails_only_the_question(reply):
    cast, before, after = rule_with(reply, TARGET)
    ruled = after.ruling_on("target")
    assert (ruled.chosen, ruled.failure, ruled.retryable) == (None, "REPLY_MALFORMED", False)
    # Both replies and their cost are recorded.
    assert len(ruled.unusable.replies) == 2 and ruled.unused.calls == 2
    assert after.state is TrialState.DECIDED and after.verdict == before.verdict and not after.all(TrialFailed)
    assert is_repair(cast.requests("judge")[-1])
    facts = [piece for piece in pieces_of(ruled) if isinstance(piece, Fact)]
    assert Fact("no answer", "REPLY_MALFORMED; asking again will not help") in facts
    assert "No answer" in page(ExportSource(after), messages=False)
    assert "None of the labels" not in page(ExportSource(after), messages=False)


def test_question_can_be_repeated_after_its_server_was_unavailable():
    def gone(request):
        raise Unavailable("away", reason="MODEL_UNAVAILABLE")

    cast = Cast(judge_question=gone)
    court, record = hold_trial(cast)
    first = with_ruling(court, record, FRAMES)
    assert (first.ruling_on("frames").failure, first.ruling_on("frames").retryable) == ("MODEL_UNAVAILABLE", True)
    assert first.ruling_on("frames").unused.unanswered == 1
    cast.lines["judge_question"] = RULED_FRAMES
    second = with_ruling(court, first, FRAMES)
    # Appended: the failure stays on record, and the last ruling counts.
    assert [ruled.chosen for ruled in second.all(QuestionRuled)] == [None, ("crowd",)]
    assert second.ruling_on("frames").chosen == ("crowd",) and second.ruling_on("other") is None


def test_replies_to_a_question_are_parsed_strictly():
    def read(reply, question):
        return parse_question_ruling(json.dumps(reply), question)

    assert read(RULED_FRAMES, FRAMES).chosen == ("crowd",)
    for reply in (
        {**RULED_FRAMES, "labels": pairs(crowd=("strong", "weak"))},
        {**RULED_FRAMES, "labels": {**RULED_FRAMES["labels"], "crowd": "strong"}},
        {**RULED_FRAMES, "labels": {**RULED_FRAMES["labels"], "crowd": {"supporting": "strong"}}},
        {**RULED_FRAMES, "labels": {**RULED_FRAMES["labels"], "crowd": {"supporting": "STRONG", "opposing": "weak"}}},
        {**RULED_FRAMES, "rationale": " "},
    ):
        with pytest.raises(UnusableReply):
            read(reply, FRAMES)
    for reply in ({**RULED_STANCE, "strengths": {"for flags": "strong"}}, {**RULED_STANCE, "strengths": "strong"}):
        with pytest.raises(UnusableReply):
            read(reply, STANCE)
    # The schema requires the fields that are parsed, reasons first.
    for question in (TARGET, STANCE, FRAMES):
        assert next(iter(question_schema(question, 1200)["properties"])) == "rationale"
    assert question_schema(FRAMES, 1200)["properties"]["labels"]["required"] == list(FRAMES.options)


def test_question_needs_a_decided_trial_with_its_own_versions_and_pictures():
    cast = Cast(judge_question=RULED_TARGET)
    court, record = hold_trial(cast)
    with pytest.raises(BadRequest, match="no verdict"):
        with_ruling(court, TrialRecord.of(record.events[:-1]), TARGET)
    with pytest.raises(CantResume, match="settings"):
        with_ruling(dataclasses.replace(court, settings=TrialSettings(rounds_max=3)), record, TARGET)
    with pytest.raises(CantResume, match="picture is not the one"):
        with_ruling(court, record, TARGET, picture=a_picture("e" * 64))
    with pytest.raises(CantResume, match="picture is not the one"):
        with_ruling(court, record, TARGET, picture=None)

    class OtherPictures(type(court.finder)):
        async def pictures(self, ids):
            return [None for _ in ids]

    other = OtherPictures(asyncio.run(court.finder.find()))
    with pytest.raises(CantResume, match="precedent"):
        with_ruling(dataclasses.replace(court, finder=other), record, TARGET)
    with pytest.raises(BadRequest, match="No model was asked in this trial"):
        with_ruling(*hold_trial(Cast(), procedure=Procedure.SUMMARY), TARGET)
    # The trial had models; it is this process that has none loaded, and the error says so.
    with pytest.raises(BadRequest, match=r"No chat models are loaded: .* Load its models and its library"):
        with_ruling(dataclasses.replace(court, role_models=None), record, TARGET)
    assert "question" not in map(task_of, cast.requests("judge"))


def test_failed_trial_takes_no_further_questions():
    court = full_court(cast := Cast(judge_judge="nothing that could be read", judge_question=RULED_TARGET))
    with pytest.raises(TrialAborted) as aborted:
        asyncio.run(court.run(TrialCase("t", a_meme("x"), Procedure.FULL), RecordingSink()))
    with pytest.raises(BadRequest, match="no verdict"):
        with_ruling(court, aborted.value.record, TARGET)
    assert "question" not in map(task_of, cast.requests("judge"))
    # A ruling cannot be put into its record either.
    _, record, ruled = rule_with(RULED_TARGET, TARGET)
    failed = aborted.value.record
    late = ruled.ruling_on("target").model_copy(update={"seq": len(failed.events)})
    with pytest.raises(ValueError, match="before there is a verdict"):
        TrialRecord.of((*failed.events, late))
    early = ruled.ruling_on("target").model_copy(update={"seq": len(record.events) - 1})
    with pytest.raises(ValueError, match="before there is a verdict"):
        TrialRecord.of((*record.events[:-1], early))


def test_text_only_trial_takes_a_question_without_a_picture():
    cast = Cast(judge_question=RULED_TARGET)
    court, record = hold_trial(cast, meme=Meme(None, text="go home"))
    after = with_ruling(court, record, TARGET, picture=None)
    ruled = after.ruling_on("target")
    assert ruled.chosen == ("blueland",) and messages_of(after, ruled)[0].exact


def test_first_model_of_a_panel_answers():
    cast = Cast(judge_question=RULED_TARGET)
    court, record = hold_trial(cast, settings=TrialSettings(judges=3))
    after = with_ruling(court, record, TARGET)
    assert after.ruling_on("target").chosen == ("blueland",) and messages_of(after, after.events[-1])[0].exact


def test_event_without_an_answer_is_distinct_from_one_without_labels():
    _, _, after = rule_with(RULED_FRAMES, FRAMES)
    complete = after.ruling_on("frames").model_dump(mode="json")
    for changes in (
        {"chosen": None},
        {"failure": "REPLY_MALFORMED"},
        {"chosen": ["storm"]},
        {"chosen": [], "question": TARGET.model_dump(mode="json")},
    ):
        with pytest.raises(ValidationError):
            QuestionRuled.model_validate(complete | changes)
    assert QuestionRuled.model_validate(complete | {"chosen": []}).chosen == ()


def test_views_show_the_answer_and_replay_reveals_an_altered_one():
    _, _, after = rule_with(RULED_FRAMES, FRAMES)
    ruled = after.ruling_on("frames")
    view = view_of(after)
    assert after.questions == (ruled,) and "Judge answers: frames" in [step.name for step in view.steps]
    facts = [piece for piece in pieces_of(ruled) if isinstance(piece, Fact)]
    assert Fact("answer", "crowd") in facts and Fact("weather", "weak for it, strong against it") in facts
    html = page(ExportSource(after), messages=True)
    assert FRAMES.text in html and "question/1/question" in html
    assert "crowd</span>: strong for it, weak against it" in html
    altered = ruled.model_copy(update={"chosen": ("weather",)})
    (difference,) = differences(TrialRecord.of((*after.events[:-1], altered)))
    assert (difference.what, difference.recorded, difference.found) == ("answer", "weather", "crowd")


def test_replay_parses_the_answer_again(monkeypatch):
    _, _, after = rule_with(RULED_FRAMES, FRAMES)
    assert asyncio.run(replay(after)).differences == ()
    monkeypatch.setattr("court.replies.options_that_fit", lambda question, strengths: question.options[:2])
    (difference,) = asyncio.run(replay(after)).differences
    assert (difference.what, difference.recorded, difference.found) == ("frames's answer", "crowd", "crowd, colour")
    monkeypatch.undo()
    # A failure replays as a failure, including one caused by an unavailable server.
    for reply in ("no JSON", lambda request: (_ for _ in ()).throw(Unavailable("away"))):
        _, _, failed = rule_with(reply, FRAMES)
        found = asyncio.run(replay(failed))
        assert (found.differences, found.obstacle) == ((), "")
    # Worded differently, it would have been another question.
    ruled = after.ruling_on("frames")
    call = ruled.call.model_copy(update={"prompt_digest": "sha256:other", "messages_digest": "sha256:other"})
    other = TrialRecord.of((*after.events[:-1], ruled.model_copy(update={"call": call})))
    assert "worded otherwise" in asyncio.run(replay(other)).obstacle


def test_question_file_is_read_or_its_fault_is_named(tmp_path):
    file = tmp_path / "question.toml"
    file.write_text(
        'id = "stance"\ntext = "what stance?"\noptions = ["a", "b", "neither"]\n'
        'sides = {accuser = "a", defender = "b"}\n'
    )
    assert read_question(file).weighed == ("a", "b")
    complete = 'id = "x"\ntext = "y"\noptions = ["a", "b"]\n'
    for content, fault in (
        ("id = ", "no TOML"),
        (complete.replace('"b"', '"a"'), "twice"),
        (complete + 'define = {c = "d"}\n', "no option"),
        (complete + 'sides = {accuser = "a", defender = "b"}\n', "three options"),
        (complete + 'sides = {accuser = "a"}\n', "defender"),
        (complete.replace('"y"', '"two\\nlines"'), "text"),
        (complete + "tone = 1\n", "tone"),
        ("\xff", "no TOML"),
    ):
        file.write_bytes(content.encode("latin-1"))
        with pytest.raises(BadRequest, match=fault):
            read_question(file)
    with pytest.raises(BadRequest, match="can't be read"):
        read_question(tmp_path / "none.toml")
