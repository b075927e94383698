"""Parts of console pages: hidden characters, charts, comparisons, sessions and evidence."""

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from court.display import split_hidden
from court.events import CheckFailed, Side, TrialChecked
from court.record import TrialRecord
from court.verdict import ReviewReason
from serving.access.callers import Caller, Scope
from serving.console.pages.trying import _examples
from serving.console.visitors import Role, Sessions, role_of
from serving.views.charts import Point, bar, curve, gauge
from serving.views.compare import ComparedRow
from serving.views.recheck import differences
from serving.views.text import ago, seconds
from serving.views.trial_view import view_of
from tests.support.shown_trials import drawn_picture, full_trial


def record(**changes):
    return TrialRecord.of(full_trial(picture=drawn_picture(), **changes))


# The finding in one sentence, and the checks.


def changed(events, kind, **values):
    return [event.model_copy(update=values) if event.kind == kind else event for event in events]


def test_close_call_of_the_precedents_is_one_plain_sentence():
    known = _examples()["crowd"]
    vote = known.precedents.vote.model_copy(update={"voters": 100, "harmful": 57})
    verdict = known.verdict.model_copy(update={"risk": 0.48})
    events = changed(changed(known.events, "PrecedentsCited", vote=vote), "VerdictGiven", verdict=verdict)
    sentence = view_of(TrialRecord.of(events)).in_short
    assert sentence == "57 of the 100 nearest labelled memes were harmful: a close call."
    assert view_of(TrialRecord.of(known.events[:2])).in_short == ""


def test_failed_checks_come_first_and_passed_ones_are_named():
    events = full_trial(picture=drawn_picture())
    failed = (CheckFailed(check=ReviewReason.SIDE_CHANGED, side=Side.ACCUSER),)
    at = next(event for event in events if event.kind == "VerdictGiven")
    checked = TrialChecked(trial_id=at.trial_id, seq=at.seq, at=at.at, failed=failed)
    later = [event.model_copy(update={"seq": event.seq + 1}) for event in events[at.seq :]]
    found = view_of(TrialRecord.of([*events[: at.seq], checked, *later])).checks
    assert found[0] == ("the Accuser argued for the other side", False)
    assert ("rationale is the Judge’s own", True) in found and "sides kept their side" not in dict(found)
    assert ("sides kept their side", True) in view_of(record()).checks


def test_summary_trial_has_no_checks_of_a_debate():
    assert view_of(_examples()["crowd"]).checks == [("worked out again: the same", True)]


# Hidden characters.


@pytest.mark.slow
def test_every_invisible_character_is_made_visible():
    """All of Unicode: control, format, private and unassigned characters, and those that look empty."""
    for code in range(0x110000):
        character = chr(code)
        kind = unicodedata.category(character)
        if kind in ("Cc", "Cf", "Cs", "Co", "Cn") and character not in "\n\t":
            assert list(split_hidden(character)) == [(f"U+{code:04X}", True)]
        elif kind[0] in "LNPS" and character not in "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0":
            assert list(split_hidden(character)) == [(character, False)]


def test_emoji_is_unchanged_and_hides_no_characters():
    assert list(split_hidden("❤\ufe0f")) == [("❤\ufe0f", False)]
    assert list(split_hidden("❤\ufe0f\ufe0f")) == [("❤\ufe0f", False), ("U+FE0F", True)]
    assert list(split_hidden("a\ufe0f")) == [("a", False), ("U+FE0F", True)]
    assert [hidden for _, hidden in split_hidden("a\U000e0101\u200db")] == [False, True, True, False]


def test_visible_pieces_add_up_to_the_text():
    text = "a\u202eb\n\tc\u200b"
    assert "".join(piece for piece, hidden in split_hidden(text) if not hidden) == "ab\n\tc"


# Charts.


def test_curve_points_match_the_values():
    points = [Point(1, 4.0), Point(2, 4.5), Point(3, 3.5, counts=False)]
    drawn_curve = ElementTree.fromstring(curve(Side.ACCUSER, points, lowest=3.5, highest=4.5, rounds=3))
    dots = [(float(one.get("cx")), float(one.get("cy")), one.get("class")) for one in drawn_curve.iter("circle")]
    assert [kind for _, _, kind in dots] == ["dot", "dot", "dot ahead"]
    xs, ys = [x for x, _, _ in dots], [y for _, y, _ in dots]
    assert xs == sorted(xs) and ys[1] < ys[0] < ys[2], "more bits are drawn higher"
    assert ys[0] == pytest.approx((ys[1] + ys[2]) / 2, abs=0.1)
    assert "round 2 4.50" in drawn_curve.get("aria-label")


@pytest.mark.parametrize("points", [[Point(1, 4.0)], [Point(1, 0.0), Point(2, 0.0)]])
def test_curve_of_few_or_equal_points_is_drawn(points):
    bits = [point.bits for point in points]
    text = curve(Side.DEFENDER, points, lowest=min(bits), highest=max(bits), rounds=len(points))
    assert "nan" not in text and "inf" not in text and ElementTree.fromstring(text) is not None


def test_bar_position_and_width_match_the_step():
    rect = ElementTree.fromstring(bar(2.0, 3.0, whole=10.0, kind="judge", cached=0.5)).findall("rect")
    assert (rect[0].get("x"), rect[0].get("width")) == ("20.00%", "30.00%")
    assert rect[1].get("width") == "15.00%"
    shortest = ElementTree.fromstring(bar(0, 0, whole=0, kind="court")).find("rect")
    assert shortest.get("width") == "0.40%", "still visible"


def test_steps_have_their_times_and_costs():
    view = view_of(record())
    assert [step.begin for step in view.steps] == sorted(step.begin for step in view.steps)
    judge = next(step for step in view.steps if step.name == "Judge rules")
    verdict_given = view.record.verdict_event
    assert judge.begin + judge.seconds == pytest.approx((verdict_given.at - view.record.opened.at).total_seconds())
    assert view.costs.calls == len([step for step in view.steps if step.call]) + 1, "the odds are two calls"
    assert view.costs.tokens_in == sum(step.call.tokens_in for step in view.steps if step.call)


# Comparisons, sessions, durations.


def test_differing_words_are_marked_and_none_are_lost():
    row = ComparedRow("text", "the cat sat on the mat", "the cat lay on the mat", words=True)
    left, right = row.pieces
    assert [piece for piece, same in left if not same] == ["sat"]
    assert [piece for piece, same in right if not same] == ["lay"]
    other = ComparedRow("text", "a b c", "x y z", words=True)
    assert other.pieces == ([("a b c", False)], [("x y z", False)])


def test_intact_record_has_no_differences():
    assert differences(record()) == ()


def test_roles_follow_from_scopes():
    assert role_of(Caller("a", frozenset({Scope.JUDGE}))) is None
    assert role_of(Caller("a", frozenset({Scope.JUDGE, Scope.VIEW}))) is Role.VIEWER
    assert role_of(Caller("a", frozenset({Scope.VIEW, Scope.REVIEW}))) is Role.REVIEWER
    assert role_of(Caller("a", frozenset(Scope))) is Role.ADMIN


def test_grant_is_valid_for_one_session_and_two_minutes():
    now = [0.0]
    sessions = Sessions(None, now=lambda: now[0])
    one, other = (sessions.find(sessions.open("")[0])[0] for _ in range(2))
    key = one.grant("t", "meme", now[0])
    assert one.granted(key, now[0]).trial_id == "t" and other.granted(key, now[0]) is None
    assert one.granted(key, 121.0) is None
    for _ in range(200):
        one.grant("t", "meme", now[0])
    assert len(one.grants) <= 64


def test_number_of_sessions_is_bounded():
    sessions = Sessions(None)
    first = sessions.open("")[0]
    ids = [sessions.open("")[0] for _ in range(1000)]
    assert sessions.find(first) is None and sessions.find(ids[-1]) is not None


def test_durations_are_rounded_for_reading():
    assert [seconds(value) for value in (0.0, 0.84, 3.14, 125.0)] == ["0 ms", "840 ms", "3.1 s", "2 min 5 s"]


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(-5, "now"), (0, "now"), (4, "4 min"), (59, "59 min"), (95, "1 h"), (1439, "23 h"), (1500, "1 d"), (10079, "6 d")],
)
def test_ages_are_rounded_for_reading(minutes, expected):
    at = datetime.now(UTC) - timedelta(minutes=minutes, seconds=10)
    assert re.fullmatch(rf'<time datetime="[^"]*" title="[^"]* UTC">{expected}</time>', ago(at))


def test_ages_over_a_week_are_shown_as_a_date():
    assert ">2 Jan 2026</time>" in ago(datetime(2026, 1, 2, 23, tzinfo=UTC))


@pytest.mark.parametrize(("probability", "at"), [(0.0, "0.00%"), (0.61, "61.00%"), (1.0, "99.00%")])
def test_gauge_marks_the_probability(probability, at):
    drawn_line = gauge(probability)
    ElementTree.fromstring(drawn_line)
    assert f'class="gauge-mark" x="{at}"' in drawn_line and " style=" not in drawn_line


def test_evidence_falls_back_from_judge_to_side_to_precedent():
    evidence = view_of(record()).evidence
    assert evidence[Side.ACCUSER].words == ("“Go back” is the form of a phrase that drives groups out.",)
    assert evidence[Side.DEFENDER].source == "judge" and len(evidence[Side.DEFENDER].words) == 2
    unnamed = view_of(record(harmful=())).evidence[Side.ACCUSER]
    assert unnamed.source == "side" and unnamed.words[0].startswith("“Go back” is the form of a phrase")
    events = [
        event for event in full_trial(picture=drawn_picture()) if event.kind not in ("VerdictGiven", "Summarised")
    ]
    events = [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events)]
    from_precedents = view_of(TrialRecord.of(events)).evidence
    assert (
        from_precedents[Side.ACCUSER].source == "precedent"
        and "Tuesday people" in from_precedents[Side.ACCUSER].words[0]
    )
    bare = view_of(TrialRecord.of([event for event in events if event.seq < 2])).evidence
    assert bare == {Side.ACCUSER: None, Side.DEFENDER: None}
