"""Tests of loop detection in replies: loops are found, and short repetitions are not taken for loops."""

import json

import pytest

from court.replies import find_loop, find_loop_in_reply

PHRASE = "the people from Blueland meet for tea, and "


@pytest.mark.parametrize(
    "text",
    [
        "A lamp stands. " + PHRASE * 6,
        "A lamp stands. " + PHRASE * 6 + "the people from Bl",  # cut off in the middle of a repetition
        '{"description": "A lamp' + "\n" * 200,
        "ha" * 100,
        "".join(f"{PHRASE}once more; " * 5),
    ],
)
def test_loop_is_found_at_its_beginning(text):
    at = find_loop(text)
    assert at is not None
    period = next(n for n in range(1, 301) if text[at - n : at] * 3 == text[at - n : at + 2 * n])
    assert text[at:] == (text[at - period : at] * 300)[: len(text) - at]
    assert find_loop(text[:at]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        PHRASE * 3,
        "It laughs: " + "ha" * 90,
        "no " * 60,
        PHRASE * 6 + "That is all that there is to see.",
        " ".join(str(number) for number in range(400)),
        "One lamp, two lamps, three lamps. " * 3 + "The lamps stand beside the river, and nothing else is to be seen.",
    ],
)
def test_short_or_ended_repetition_is_not_a_loop(text):
    assert find_loop(text) is None


def test_loop_in_a_string_cut_off_by_its_schema_is_found():
    argument = {"summary": (PHRASE * 40)[:1200], "justification": "The sign says who is welcome."}
    reply = json.dumps(argument)
    assert find_loop(reply) is None  # the reply ends as it should
    at = find_loop_in_reply(reply)
    assert reply[:at] == '{"summary": "' + PHRASE
    assert find_loop_in_reply(json.dumps({**argument, "summary": PHRASE})) is None


def test_loop_of_whole_array_elements_is_found():
    reply = '{"harmful_evidence": [' + '"It says go home.", ' * 12
    assert reply[: find_loop_in_reply(reply)].count("go home") == 1
