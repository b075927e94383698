"""What the pages of the console are made of: links of the rationale, what can't be seen, drawings, sessions."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from court.display import split_hidden
from court.events import Side
from court.record import TrialRecord
from serving.access.callers import Caller, Scope
from serving.console.visitors import Role, Sessions, role_of
from serving.views.charts import Point, bar, curve, gauge
from serving.views.compare import ComparedRow
from serving.views.recheck import differences
from serving.views.text import ago, seconds
from serving.views.trial_view import view_of
from tests.support.shown_trials import drawn, full_trial


def record(**changes):
    return TrialRecord.of(full_trial(picture=drawn(), **changes))


# What can't be seen


@pytest.mark.slow
def test_every_character_that_shows_nothing_is_shown():
    """All of Unicode: whatever is a control, a format, private or unassigned, and what only looks empty."""
    for code in range(0x110000):
        character = chr(code)
        kind = unicodedata.category(character)
        if kind in ("Cc", "Cf", "Cs", "Co", "Cn") and character not in "\n\t":
            assert list(split_hidden(character)) == [(f"U+{code:04X}", True)]
        elif kind[0] in "LNPS" and character not in "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0":
            assert list(split_hidden(character)) == [(character, False)]


def test_an_emoji_is_left_as_it_is_and_nothing_rides_on_it():
    assert list(split_hidden("❤\ufe0f")) == [("❤\ufe0f", False)]
    assert list(split_hidden("❤\ufe0f\ufe0f")) == [("❤\ufe0f", False), ("U+FE0F", True)]
    assert list(split_hidden("a\ufe0f")) == [("a", False), ("U+FE0F", True)]
    assert [hidden for _, hidden in split_hidden("a\U000e0101\u200db")] == [False, True, True, False]


def test_pieces_joined_are_the_text_but_for_those_marks():
    text = "a\u202eb\n\tc\u200b"
    assert "".join(piece for piece, hidden in split_hidden(text) if not hidden) == "ab\n\tc"


# Drawings


def test_a_curve_is_drawn_where_the_figures_are():
    points = [Point(1, 4.0), Point(2, 4.5), Point(3, 3.5, counts=False)]
    drawn_curve = ElementTree.fromstring(curve(Side.ACCUSER, points, lowest=3.5, highest=4.5, rounds=3))
    dots = [(float(one.get("cx")), float(one.get("cy")), one.get("class")) for one in drawn_curve.iter("circle")]
    assert [kind for _, _, kind in dots] == ["dot", "dot", "dot ahead"]
    xs, ys = [x for x, _, _ in dots], [y for _, y, _ in dots]
    assert xs == sorted(xs) and ys[1] < ys[0] < ys[2], "more bits are higher up"
    assert ys[0] == pytest.approx((ys[1] + ys[2]) / 2, abs=0.1)
    assert "round 2 4.50" in drawn_curve.get("aria-label")


@pytest.mark.parametrize("points", [[Point(1, 4.0)], [Point(1, 0.0), Point(2, 0.0)]])
def test_a_curve_of_little_is_drawn_too(points):
    bits = [point.bits for point in points]
    text = curve(Side.DEFENDER, points, lowest=min(bits), highest=max(bits), rounds=len(points))
    assert "nan" not in text and "inf" not in text and ElementTree.fromstring(text) is not None


def test_a_bar_begins_when_its_step_did():
    rect = ElementTree.fromstring(bar(2.0, 3.0, whole=10.0, kind="judge", cached=0.5)).findall("rect")
    assert (rect[0].get("x"), rect[0].get("width")) == ("20.00%", "30.00%")
    assert rect[1].get("width") == "15.00%"
    shortest = ElementTree.fromstring(bar(0, 0, whole=0, kind="court")).find("rect")
    assert shortest.get("width") == "0.40%", "it can be seen"


def test_steps_lie_where_they_were():
    told = view_of(record())
    assert [step.begin for step in told.steps] == sorted(step.begin for step in told.steps)
    judge = next(step for step in told.steps if step.name == "Judge rules")
    given = told.verdict_event
    assert judge.begin + judge.seconds == pytest.approx((given.at - told.record.opened.at).total_seconds())
    assert told.costs.calls == len([step for step in told.steps if step.call]) + 1, "the odds are two calls"
    assert told.costs.tokens_in == sum(step.call.tokens_in for step in told.steps if step.call)


# Comparisons, sessions, words


def test_words_that_differ_are_marked_and_none_are_lost():
    row = ComparedRow("text", "the cat sat on the mat", "the cat lay on the mat", words=True)
    left, right = row.pieces
    assert [piece for piece, same in left if not same] == ["sat"]
    assert [piece for piece, same in right if not same] == ["lay"]
    other = ComparedRow("text", "a b c", "x y z", words=True)
    assert other.pieces == ([("a b c", False)], [("x y z", False)])


def test_a_sound_record_has_no_differences():
    assert differences(record()) == ()


def test_roles_follow_from_scopes():
    assert role_of(Caller("a", frozenset({Scope.JUDGE}))) is None
    assert role_of(Caller("a", frozenset({Scope.JUDGE, Scope.VIEW}))) is Role.VIEWER
    assert role_of(Caller("a", frozenset({Scope.VIEW, Scope.REVIEW}))) is Role.REVIEWER
    assert role_of(Caller("a", frozenset(Scope))) is Role.ADMIN


def test_a_grant_is_for_one_session_and_two_minutes():
    now = [0.0]
    sessions = Sessions(None, now=lambda: now[0])
    one, other = (sessions.find(sessions.open("")[0])[0] for _ in range(2))
    key = one.grant("t", "meme", now[0])
    assert one.granted(key, now[0]).trial_id == "t" and other.granted(key, now[0]) is None
    assert one.granted(key, 121.0) is None
    for _ in range(200):
        one.grant("t", "meme", now[0])
    assert len(one.grants) <= 64


def test_sessions_are_bounded():
    sessions = Sessions(None)
    first = sessions.open("")[0]
    ids = [sessions.open("")[0] for _ in range(1000)]
    assert sessions.find(first) is None and sessions.find(ids[-1]) is not None


def test_durations_are_read_at_a_glance():
    assert [seconds(value) for value in (0.0, 0.84, 3.14, 125.0)] == ["0 ms", "840 ms", "3.1 s", "2 min 5 s"]


@pytest.mark.parametrize(
    ("minutes", "told"),
    [(-5, "now"), (0, "now"), (4, "4 min"), (59, "59 min"), (95, "1 h"), (1439, "23 h"), (1500, "1 d"), (10079, "6 d")],
)
def test_ages_are_read_at_a_glance(minutes, told):
    at = datetime.now(UTC) - timedelta(minutes=minutes, seconds=10)
    assert re.fullmatch(rf'<time datetime="[^"]*" title="[^"]* UTC">{told}</time>', ago(at))


def test_what_is_older_than_a_week_is_told_by_its_day():
    assert ">2 Jan 2026</time>" in ago(datetime(2026, 1, 2, 23, tzinfo=UTC))


@pytest.mark.parametrize(("probability", "at"), [(0.0, "0.00%"), (0.61, "61.00%"), (1.0, "99.00%")])
def test_a_probability_is_marked_where_it_lies(probability, at):
    drawn_line = gauge(probability)
    ElementTree.fromstring(drawn_line)
    assert f'class="gauge-mark" x="{at}"' in drawn_line and " style=" not in drawn_line


def test_evidence_is_the_judge_s_else_the_sides_else_a_precedent_s():
    told = view_of(record()).evidence
    assert told[Side.ACCUSER].words == ("“Go back” is the form of a phrase that drives groups out.",)
    assert told[Side.DEFENDER].source == "judge" and len(told[Side.DEFENDER].words) == 2
    unnamed = view_of(record(harmful=())).evidence[Side.ACCUSER]
    assert unnamed.source == "side" and unnamed.words[0].startswith("“Go back” is the form of a phrase")
    events = [event for event in full_trial(picture=drawn()) if event.kind not in ("VerdictGiven", "Summarised")]
    events = [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events)]
    near = view_of(TrialRecord.of(events)).evidence
    assert near[Side.ACCUSER].source == "precedent" and "Tuesday people" in near[Side.ACCUSER].words[0]
    bare = view_of(TrialRecord.of([event for event in events if event.seq < 2])).evidence
    assert bare == {Side.ACCUSER: None, Side.DEFENDER: None}
