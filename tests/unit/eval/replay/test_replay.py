"""Tests of replay: recorded trials run again through today's code give the same outcome, or the fields that differ."""

import asyncio
import dataclasses
import json

import pytest
from click.testing import CliRunner

from court import prompts, replies
from court.errors import Unavailable
from court.events import GuardHeard, Procedure, QuestioningEnd, RawReply, Side, TrialResumed
from court.guard import GuardOpinion
from court.ports import ChatReply, FinishReason
from court.prompts.sets import packaged
from court.record import TrialAborted, TrialRecord, TrialState
from court.replies import UnusableReply
from court.settings import TrialSettings
from court.trial import TrialCase
from court.verdict import Label, Strength, Strengths
from eval.cli import cli as eval_cli
from eval.replay.replay import outcome, replay
from serving.docket.store.bodies import GONE
from serving.export.source import read_document
from tests.support.cast import Cast, full_court, try_meme
from tests.support.fakes import RecordingSink, a_meme
from tests.support.replayed_trials import FOLDER, TRIALS


def load_record(name):
    return read_document((FOLDER / f"{name}.json").read_bytes())


def run_replay(record):
    return asyncio.run(replay(record))


def differing_fields(record):
    return {difference.what: (difference.recorded, difference.found) for difference in run_replay(record).differences}


def run(*arguments, status=0):
    done = CliRunner().invoke(eval_cli, ["replay", *(str(argument) for argument in arguments)])
    assert done.exit_code == status, done.output
    return done.output


def with_altered_event(record, kind, **values):
    """The record with its last event of this kind altered."""
    last = max(event.seq for event in record.events if event.kind == kind)
    return TrialRecord.of(event.model_copy(update=values) if event.seq == last else event for event in record.events)


def test_recorded_trials_replay_without_differences():
    """Fails on a change of the rule, a parser or a review reason that alters past outcomes."""
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TRIALS)
    output = run("--folder", FOLDER)
    assert f"{len(TRIALS)} replayed, 0 with differences; 0 not replayable." in output


def test_recorded_trials_cover_every_end_and_every_fate_of_a_reply():
    records = [load_record(name) for name in TRIALS]
    assert {record.state for record in records} == {TrialState.DECIDED, TrialState.FAILED}
    verdicts = [record.verdict for record in records if record.verdict]
    assert {verdict.label for verdict in verdicts} == set(Label)
    calls = [event.call for record in records for event in record.events if getattr(event, "call", None)]
    assert any(call.fault for call in calls) and all(call.replies for call in calls)
    assert {len(call.replies) for call in calls} == {1, 2}
    thought = [reply for call in calls for reply in call.replies if reply.thought]
    assert thought and not thought[0].text


# Which changes show as differences


def test_changed_rule_shows_in_the_label_and_its_consequences(monkeypatch):
    record = load_record("full-not-harmful")

    def strict(harmful, benign):
        return Label.NOT_HARMFUL if benign is Strength.STRONG and harmful is Strength.MODERATE else Label.HARMFUL

    for module in ("verdict", "judgment", "roles"):
        monkeypatch.setattr(f"court.{module}.rule", strict)
    found = differing_fields(record)
    # The ruling contradicts the changed rule, so today's code would ask for it again.
    assert "Today's code can't use the ruling" in found["end"][1]
    assert found["label"] == ("NOT_HARMFUL", "none")


def test_parser_that_rejects_an_accepted_reply_shows_as_a_difference(monkeypatch):
    def refuse(text):
        raise UnusableReply("REPLY_MALFORMED", "the reply was refused")

    monkeypatch.setattr(replies, "parse_description", refuse)
    found = differing_fields(load_record("full-harmful"))
    assert "Today's code can't use the description, and it was not asked for again." in found["end"][1]


def test_parser_that_reads_another_value_shows_in_that_field_only(monkeypatch):
    parse = replies.parse_description
    monkeypatch.setattr(replies, "parse_description", lambda text: parse(text).upper())
    assert set(differing_fields(load_record("full-harmful"))) == {"description"}


def test_parser_that_accepts_a_rejected_reply_shows_in_the_value(monkeypatch):
    parse = replies.parse_description
    monkeypatch.setattr(replies, "parse_description", lambda text: text if text.startswith("It shows") else parse(text))
    # Both replies say the same; only raw replies could show that the second request is no longer needed.
    assert differing_fields(load_record("full-asked-again")) == {}
    monkeypatch.setattr(replies, "parse_description", lambda text: "!" if text.startswith("It shows") else parse(text))
    assert differing_fields(load_record("full-asked-again")) == {"description": ("It shows a flag.", "!")}


def test_failed_trial_that_would_no_longer_fail_shows_as_a_difference(monkeypatch):
    parse, argument = replies.parse, replies.Argument(summary="s", justification="j")
    monkeypatch.setattr(
        replies, "parse", lambda kind, text: argument if text == "no JSON at all" else parse(kind, text)
    )
    found = differing_fields(load_record("full-failed"))
    recorded_end, found_end = found["end"]
    assert "could not be used" in recorded_end and "the record has none" in found_end


def test_changed_end_of_the_examination_shows_in_the_rounds(monkeypatch):
    monkeypatch.setattr("court.examination.entropy", lambda text: 1.0)
    found = differing_fields(load_record("full-harmful"))
    assert found["Accuser's rounds"] == ("4, converged", "2, converged")
    assert found["Accuser's summary, round 4"][1] == "none"


def test_round_beyond_the_recorded_ones_is_a_difference_and_never_guessed(monkeypatch):
    lengths = iter(range(1, 1000))
    monkeypatch.setattr("court.examination.entropy", lambda text: float(next(lengths)))
    found = differing_fields(load_record("full-harmful"))
    assert "Today's code asks for a " in found["end"][1] and "in round 5, and the record has none" in found["end"][1]


def test_changed_floor_of_the_score_shows_in_score_and_signals(monkeypatch):
    monkeypatch.setattr("court.judgment.score_of", lambda odds, least: None)
    found = differing_fields(load_record("full-harmful"))
    assert found["score"][1] == "none" and "SCORE_UNKNOWN" in found["signals"][1]


def test_changed_review_reasons_show_in_the_signals(monkeypatch):
    monkeypatch.setattr("court.judgment._cut_short", lambda sides: [])
    monkeypatch.setattr("court.judgment.no_similar_precedent", lambda findings: ())
    assert differing_fields(load_record("full-far-precedents")) == {"signals": ("NO_SIMILAR_PRECEDENT", "none")}


def test_changed_reading_of_a_guard_reply_shows_in_its_opinion(monkeypatch):
    record = load_record("full-guard-heard")
    assert record.last(GuardHeard).call.replies[0].text.startswith("<think>")
    monkeypatch.setattr("court.guard.parse_opinion", lambda adapter, reply, policy: GuardOpinion(harmful=False))
    found = differing_fields(record)
    assert found["guard's opinion"] == ("harmful", "not harmful")
    assert found["guard's categories"] == ("hate (S10)", "none")
    assert found["review reasons"] == ("VOTE_DISAGREES, GUARD_DISAGREES", "VOTE_DISAGREES")


def test_label_that_contradicts_its_replies_shows_as_a_difference():
    record = load_record("full-harmful")
    strengths = Strengths(harmful=Strength.WEAK, benign=Strength.STRONG)
    verdict = record.verdict.model_copy(update={"label": Label.NOT_HARMFUL, "strengths": strengths, "finding": None})
    found = differing_fields(with_altered_event(record, "VerdictGiven", verdict=verdict))
    assert found["label"] == ("NOT_HARMFUL", "HARMFUL") and "strengths" in found


def test_summary_score_is_computed_again():
    record = load_record("summary-harmful")
    verdict = record.verdict.model_copy(update={"harm_score": 0.1})
    assert set(differing_fields(with_altered_event(record, "VerdictGiven", verdict=verdict))) == {"score"}


def test_differences_of_a_summary_trial_name_no_round_and_count_its_voters():
    record = load_record("summary-harmful")
    argued = with_altered_event(record, "Summarised", justification="Because.")
    assert differing_fields(argued).keys() == {"Defender's justification"}
    vote = record.precedents.vote.model_copy(update={"harmful": 0})
    was, now = differing_fields(with_altered_event(record, "PrecedentsCited", vote=vote))["precedents' vote"]
    assert was.startswith("0 of 5, ") and now.startswith("4 of 5, ")


# Matching replies to calls


def test_replies_are_matched_by_side_when_both_sides_ask_the_same():
    """Both sides ask the Proposer in the same words and get different answers: no answer changes sides."""
    answers = iter([{"answer": f"Answer {n}."} for n in range(100)])
    cast = Cast(rounds=2, ask={"question": "What is in the middle?"}, answer=lambda request: next(answers))
    record = try_meme(cast)
    by_side = {side: [e.answer for e in record.events if getattr(e, "answer", "") and e.side is side] for side in Side}
    assert by_side[Side.ACCUSER] != by_side[Side.DEFENDER]
    assert run_replay(record).differences == ()


def test_interrupted_and_resumed_trial_replays():
    rulings = iter([Unavailable("gone", reason="MODEL_GONE")])
    court, meme, notes = (
        full_court(Cast(rounds=3, judge=lambda _: next(rulings, None))),
        a_meme("words"),
        RecordingSink(),
    )

    async def work():
        with pytest.raises(TrialAborted) as aborted:
            await court.run(TrialCase("t", meme, Procedure.FULL), notes)
        return await court.resume(aborted.value.record, meme.picture, notes)

    record = asyncio.run(work())
    assert record.last(TrialResumed) and outcome(record)["label"][1] == "HARMFUL"
    found = run_replay(record)
    assert (found.differences, found.obstacle) == ((), "")


def test_looping_thought_replays_as_the_same_failure():
    thought = "I think that it is so. " * 60
    circling = ChatReply("", FinishReason.LENGTH, "m", 1, 1, 0, 0.1, thought=thought)
    with pytest.raises(TrialAborted) as aborted:
        try_meme(Cast(describe=circling))
    record = aborted.value.record
    assert aborted.value.reason == "REPLY_LOOPS" and thought not in record.events[-1].model_dump_json()
    found = run_replay(record)
    assert (found.differences, found.obstacle) == ((), "")


# Not replayable


def test_reworded_prompt_is_no_difference_but_not_replayable(monkeypatch):
    judge = prompts.load("judge").content
    other = prompts.Prompt({**judge, "tasks": {**judge["tasks"], "judge": "Judge this meme."}})
    changed = dataclasses.replace(packaged(), judge=other)
    monkeypatch.setattr("court.prompts.sets._OPENED", {})
    monkeypatch.setattr("court.prompts.sets.packaged", lambda version="1": changed)
    found = run_replay(load_record("full-harmful"))
    assert found.differences == () and "worded otherwise" in found.obstacle
    assert "not replayable" in run("--folder", FOLDER, status=2)
    # Where a precedent was erased since, messages can't be made again, and the prompt of each call still shows it.
    record = load_record("full-harmful")
    findings = record.precedents.findings
    erased = tuple(precedent.model_copy(update={"text": GONE}) for precedent in findings.exhibits)
    bare = with_altered_event(record, "PrecedentsCited", findings=findings.model_copy(update={"exhibits": erased}))
    assert "in other words than it was asked for" in run_replay(bare).obstacle


def test_changed_messages_of_the_same_prompt_are_not_replayable(monkeypatch):
    monkeypatch.setattr(
        "court.messages.apart", lambda parts: tuple(f"{part}\n" if isinstance(part, str) else part for part in parts)
    )
    assert "not what was sent" in run_replay(load_record("full-harmful")).obstacle


def test_open_trial_has_no_outcome_to_compare():
    record = load_record("full-harmful")
    found = run_replay(TrialRecord.of(record.events[:-1]))
    assert found.without_outcome and "has not ended" in found.obstacle


def test_trial_cut_short_by_its_deadline_is_not_replayable():
    record = load_record("full-harmful")
    found = run_replay(with_altered_event(record, "SideRested", reason=QuestioningEnd.TIME))
    assert "deadline" in found.obstacle and not found.differences


def test_removed_values_of_settings_are_not_replayable():
    record = load_record("full-harmful")
    opened = record.opened.model_copy(update={"settings": {**record.opened.settings, "query": "stars"}})
    found = run_replay(TrialRecord.of([opened, *record.events[1:]]))
    assert found.obstacle.endswith("a trial could be held with: query.")


# The command


def test_command_needs_exactly_one_source_and_fails_without_a_trial(tmp_path):
    assert "use either --all or --folder" in run(status=2)
    assert "use either --all or --folder" in run("one", "--all", status=2)
    (tmp_path / "empty").mkdir()
    assert "no trial with an outcome" in run("--folder", tmp_path / "empty", status=2)
    (tmp_path / "bad.json").write_text("{}")
    output = run("--folder", tmp_path, status=2)
    assert "bad.json" in output and "no trial in the form" in output and "Traceback" not in output
    (tmp_path / "bad.json").unlink()
    (tmp_path / "folder.json").mkdir()
    assert "folder.json can't be read" in run("--folder", tmp_path, status=2)


def test_folder_of_json_lines_is_read_and_differences_exit_with_1(tmp_path):
    record = load_record("summary-harmful")
    document = json.loads((FOLDER / "summary-harmful.json").read_text())
    document["events"][-1]["verdict"]["harm_score"] = 0.125
    (tmp_path / "trials.jsonl").write_text(json.dumps(document) + "\n" + json.dumps(document) + "\n")
    output = run("--folder", tmp_path, status=1)
    assert "score (event" in output and "0.125000" in output and f"{record.verdict.harm_score:.6f}" in output
    assert "2 replayed, 2 with differences" in output


# Raw replies


def test_raw_replies_are_recorded_unchanged():
    record = load_record("full-asked-again")
    described = next(event for event in record.events if event.kind == "Described")
    assert described.call.replies == (
        RawReply(text="It shows a flag."),
        RawReply(text='{"description": "It shows a flag."}'),
    )
    question = next(event for event in record.events if event.kind == "QuestionAsked" and event.side is Side.ACCUSER)
    assert question.call.replies[0].finish == "LENGTH" and question.call.replies[0].text == '{"question": "What'


def test_lone_surrogate_is_recorded_as_its_escape():
    described = next(event for event in load_record("full-half-a-character").events if event.kind == "Described")
    assert described.call.replies[0].text == '{"description": "a flag \\ud83d"}'
    assert described.call.fault


def test_reply_that_leaks_its_instructions_is_not_recorded():
    secret = prompts.load("proposer").secret
    with pytest.raises(TrialAborted) as aborted:
        try_meme(Cast(describe={"description": f"I was told: {secret}"}))
    failed = aborted.value.record.events[-1]
    assert failed.reason == "SYSTEM_LEAKED" and failed.unusable is None
    assert secret not in "".join(event.model_dump_json() for event in aborted.value.record.events)


def test_replay_uses_the_settings_of_the_record():
    """A setting added later has its default value, and asking ahead is off: it changes nothing but time."""
    record = try_meme(Cast(rounds=9), settings=TrialSettings(rounds_max=3, epsilon=0.0))
    assert run_replay(record).differences == ()
