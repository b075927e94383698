"""PI-5: replies of models are parsed strictly. Only a complete, valid acquittal by the rule acquits."""

import asyncio
import json
import random

import pytest

from court import checks, judgment
from court.backends.chat.scripted import ScriptedModel
from court.errors import ReplyUnusable
from court.events import TextRead, TextSource
from court.judgment import Opinion
from court.meme import Frame
from court.messages import Exhibit, JudgeBrief
from court.policy import DEFAULT_POLICY
from court.ports import ChatReply, FinishReason
from court.prompts import Fence
from court.replies import (
    Answer,
    Argument,
    Question,
    UnusableReply,
    argument_schema,
    find_loop,
    find_loop_in_reply,
    has_cut_text,
    parse,
    parse_description,
    parse_quoting_argument,
    parse_ruling,
)
from court.roles import Judge
from court.settings import TrialSettings
from court.verdict import Label, rule
from tests.support.cast import ACQUITTAL, RULING, speaker
from tests.support.fakes import H, findings
from tests.support.replies import REFUSALS, acquits_validly, babble
from tests.support.sizes import FULL

# An independent oracle: a JSON reader after RFC 8259, and the form of a ruling as plain conditions. It shares no code
# with court.replies, pydantic or the json module.


# Replies of broken, truncated, confused or hostile models


def label_of(text):
    """The label by the rule if the reply can be used, else None."""
    try:
        ruling = parse_ruling(text, DEFAULT_POLICY, 3)
    except UnusableReply as fault:
        assert fault.reason in ("REPLY_EMPTY", "REPLY_MALFORMED")
        fault.what.encode()
        return None
    return rule(ruling.harmful_strength, ruling.harmless_strength)


@pytest.mark.slow
def test_pi_5_only_a_complete_valid_acquittal_acquits():
    chance = random.Random(5)
    acquittals, replies = 0, set()
    count = 100_000 if FULL else 25_000
    while len(replies) < count:  # all different
        text = babble(chance)
        if text in replies:
            continue
        replies.add(text)
        acquits = label_of(text) is Label.NOT_HARMFUL
        # The oracle is slow. It checks every acquittal and a third of the other replies, so that refusing all can't
        # pass.
        if acquits or len(replies) % 3 == 0:
            assert acquits == acquits_validly(text), text[:400]
        acquittals += acquits
    assert acquittals > count / 25


def test_oracle_recognises_an_acquittal():
    assert acquits_validly(json.dumps(ACQUITTAL)) and acquits_validly(json.dumps(ACQUITTAL, indent=2))
    assert not acquits_validly(json.dumps(RULING))
    for text in REFUSALS:
        assert not acquits_validly(text) and label_of(text) is None


REPLY = json.dumps(ACQUITTAL)


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{REPLY}\n```",
        f"```\n{REPLY}\n```\n",
        f'<think>The draft is {{"label": "not harmful"}}.</think>\n{REPLY}',
        f"<Thinking>hm</Thinking>{REPLY}",
        f"```JSON\r\n{REPLY}\r\n```\r\n",
        f"~~~json5\n{REPLY}\n~~~",
        f"````\n{REPLY}\n````",
        f"</think>\n{REPLY}",
        f"It seems clear. </think>\n\n```json\n{REPLY}\n```",
        f"\ufeff{REPLY}",
        json.dumps({**ACQUITTAL, "rationale": "The picture says </think> and ``` on a sign."}),
    ],
)
def test_wrappers_that_servers_add_to_a_reply_are_stripped(text):
    assert label_of(text) is Label.NOT_HARMFUL


@pytest.mark.parametrize(
    "text",
    [
        f"{REPLY},",
        f'{{"label": "not harmful"}}\n{REPLY}',
        f"{REPLY}\n{REPLY}",
        f"<think>perhaps {REPLY}",
        f"<thinking>perhaps {REPLY}",
        f"```json\n{REPLY}\n~~~",
        f"```\n```json\n{REPLY}\n```\n```",
        f"<think>perhaps <think>or</think> {REPLY}",
        f"Here it is:\n```json\n{REPLY}\n```",
        f"```json\n{REPLY}\n```\nThat is all.",
        f"```json\n```json\n{REPLY}\n```\n```",
        f"```python\n{REPLY}\n```",
        f"```json\n{REPLY}",
    ],
)
def test_other_malformed_replies_are_not_repaired(text):
    assert label_of(text) is None


async def test_pi_5_holds_when_the_judge_gets_a_second_attempt():
    """The reply that was used counts: the first if it can be used as it is, else the second."""
    chance = random.Random(55)
    found = findings([H, H, H])
    exhibits = tuple(Exhibit(precedent, None) for precedent in found.exhibits)
    text = TextRead(trial_id="t", seq=0, at="2026-01-01T00:00:00Z", text="x", source=TextSource.CALLER)
    outcomes = {Label.HARMFUL: 0, Label.NOT_HARMFUL: 0, None: 0}

    async def rule_once():
        replies = [reply(chance) for _ in range(2)]
        model = ScriptedModel([(None, candidate) for candidate in replies])
        try:
            ruling = await Judge(speaker(model)).rule(brief(pictures=(Frame(b"", 1, 1),), exhibits=exhibits))
        except ReplyUnusable:
            return replies[: len(model.asked)], None
        verdict = judgment.verdict_of([Opinion(ruling.value)], text=text, settings=TrialSettings())
        return replies[: len(model.asked)], verdict.label

    for _ in range(3000):
        replies, label = await rule_once()
        outcomes[label] += 1
        used = replies[-1]
        valid = used.finish is FinishReason.STOP and acquits_validly(used.text)
        assert (label is Label.NOT_HARMFUL) == valid, (replies, label)
    assert min(outcomes.values()) > 100


def reply(chance):
    finish = chance.choice((FinishReason.STOP,) * 8 + (FinishReason.LENGTH, FinishReason.REFUSAL))
    return ChatReply(babble(chance), finish, "m", 1, 1, 0, 0.0)


def brief(**values):
    return JudgeBrief(policy=DEFAULT_POLICY, fence=Fence("m"), text="x", **{"pictures": (), **values})


def test_truncated_or_refused_ruling_is_unusable_even_if_it_parses():
    """The finish reason is checked before the text."""
    for finish in (FinishReason.LENGTH, FinishReason.REFUSAL):
        ruling_reply = ChatReply(json.dumps({**ACQUITTAL, "precedents": {}}), finish, "m", 1, 1, 0, 0.0)
        judge = Judge(speaker(ScriptedModel(lambda _, ruling_reply=ruling_reply: ruling_reply)))
        with pytest.raises(ReplyUnusable):
            asyncio.run(judge.rule(brief()))


@pytest.mark.parametrize("blank", ["", "   ", "\u200b\u200b\u200b\u200b\u200b", "\n\n\n\n\n\n", "……?!…", "\u3000" * 9])
def test_text_without_letters_or_digits_is_no_reply(blank):
    with pytest.raises(UnusableReply):
        parse_description(json.dumps({"description": blank}))
    for kind, fields in (
        (Answer, {"answer": blank}),
        (Question, {"question": blank}),
        (Argument, {"summary": blank, "justification": "j"}),
        (Argument, {"summary": "s", "justification": blank}),
    ):
        with pytest.raises(UnusableReply):
            parse(kind, json.dumps(fields))
    assert label_of(json.dumps({**ACQUITTAL, "rationale": blank})) is None
    assert label_of(json.dumps({**ACQUITTAL, "harmless_evidence": [blank]})) is None
    # A list that its schema cut off may go on in scraps.
    ruling = json.dumps({**ACQUITTAL, "harmless_evidence": [blank, "a flag", blank]})
    assert parse_ruling(ruling, DEFAULT_POLICY, len(ACQUITTAL["precedents"])).harmless_evidence == ("a flag",)


def test_text_in_any_script_is_a_reply():
    for words in ("什么颜色的旗?", "ما لون العلم؟", "झंडा किस रंग का है?", "🏳️ or 🏴?", "12345"):
        assert parse(Question, json.dumps({"question": words})).question == words
        assert parse(Answer, json.dumps({"answer": f"  {words}\n"})).answer == words


def test_fault_descriptions_never_quote_the_reply():
    chance = random.Random(7)
    word = "Gadolinium"
    faults = set()
    for _ in range(3000):
        text = (
            babble(chance)
            .replace("joke", word)
            .replace("strong", word)
            .replace("label", f"{word}", chance.randrange(2))
        )
        try:
            parse_ruling(text, DEFAULT_POLICY, 3)
        except UnusableReply as fault:
            faults.add(fault.what)
    assert len(faults) > 5 and not [description for description in faults if word in description]


def test_invalid_odds_count_as_no_odds():
    for masses in ((float("nan"), 0.5), (1.5, 0.2), (-0.1, 0.5), (float("inf"), 0.1)):
        model = ScriptedModel([], odds=lambda request, options, masses=masses: masses)
        assert asyncio.run(Judge(speaker(model)).odds(brief())) is None


# An argument in parts

SHOWN = ("Bluelanders, all of them, are late!\nAgain.", "A crowd at a bus stop.", "The sign says <b>Route 7</b>.")
OPENING = "This is harmful because"
PARTS = {
    "quotes": ["all of them are late", "A crowd at a bus stop"],
    "conclusion": OPENING,
    "because": "it says so of everybody from there.",
}


def parts(*, needed=False, chars=1200, on_claim=False, **changes):
    text = json.dumps({**PARTS, **changes})
    return parse_quoting_argument(text, OPENING, SHOWN, chars, on_claim=on_claim, quotes_needed=needed)


def test_argument_is_put_together_from_its_parts():
    argument = parts()
    assert argument.justification == (
        "“all of them are late”. “A crowd at a bus stop”. This is harmful because it says so of everybody from there."
    )
    assert argument.justification.replace(f"{OPENING} ", "") == argument.summary and argument.dropped == ()
    assert parts(because=f"{OPENING} it says so.").justification.count(OPENING) == 1
    assert parts(on_claim=True, claim="All are late.").claim == "All are late." and argument.claim == ""


@pytest.mark.parametrize(
    ("quotes", "number", "dropped"),
    [
        (["ALL of them — are LATE", "late again"], 2, ()),
        (["“The sign says <b>Route”", "the sign says <b>Route"], 1, ()),
        (["again A crowd at a bus"], 0, ("again A crowd at a bus",)),
        (["all of them are early", "A crowd at a bus stop"], 1, ("all of them are early",)),
        (["],", "A crowd", "A crowd"], 1, ()),
        (["crowd at a", ", A crowd at a bus stop", "A crowd"], 1, ()),
        ([], 0, ()),
    ],
)
def test_quotes_that_stand_nowhere_are_dropped(quotes, number, dropped):
    argument = parts(quotes=quotes)
    assert argument.summary.count("“") == number and argument.dropped == dropped


@pytest.mark.parametrize(
    "changes",
    [
        {"conclusion": "This is not harmful because"},
        {"because": OPENING},
        {"because": "…"},
        {"because": ""},
        {"quotes": "all of them"},
        {"quotes": ["a"] * 4},
        {"quotes": ["x" * 161]},
        {"claim": "No one asked."},
    ],
)
def test_argument_in_other_parts_is_refused(changes):
    with pytest.raises(UnusableReply) as caught:
        parts(**changes)
    assert caught.value.reason == "REPLY_MALFORMED"


def test_quote_is_needed_where_a_reply_can_be_repaired():
    assert parts(needed=True, quotes=["not there", "A crowd"]).dropped == ("not there",)
    for quotes in (["not there"], []):
        with pytest.raises(UnusableReply, match="none of its quotes stands"):
            parts(needed=True, quotes=quotes)


def test_part_that_is_cut_off_is_marked_and_loses_half_a_word():
    assert parts(chars=120, because="it says so of everybody her").justification.endswith("her")
    argument = parts(chars=54, because="it says so of everybody her")
    assert argument.summary.endswith("so of everybody […]") and argument.justification.endswith("so of everybody […]")
    assert checks.is_cut(argument.summary, 54) and checks.is_cut(argument.justification, 54)


def test_quote_that_ends_at_its_limit_is_no_cut_text():
    schema = argument_schema(OPENING, 240, on_claim=False)
    cut = {**PARTS, "quotes": ["x" * schema["properties"]["quotes"]["items"]["maxLength"]]}
    assert not has_cut_text(json.dumps(cut), schema)
    assert has_cut_text(json.dumps({**PARTS, "because": "it says so of everybody " * 4 + "ever" * 6}), schema)


def test_longest_argument_in_parts_is_within_bounds():
    text = "word " * 31 + "wor. "
    argument = parts(quotes=[text[:158]] * 3, because=(text * 6)[:960], chars=1900)
    assert len(argument.justification) < 2000


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
