"""PI-5: replies of models are parsed strictly. Only a complete, valid acquittal by the rule acquits."""

import asyncio
import json
import random
import re

import pytest

from court import judgment
from court.backends.chat.scripted import ScriptedModel
from court.errors import ReplyUnusable
from court.events import TextRead, TextSource
from court.meme import Frame
from court.messages import Exhibit, JudgeBrief
from court.panel import Opinion
from court.policy import DEFAULT_POLICY
from court.ports import ChatReply, FinishReason
from court.replies import UnusableReply, parse_answer, parse_argument, parse_description, parse_question, parse_ruling
from court.roles import Judge
from court.settings import TrialSettings
from court.untrusted import Fence
from court.verdict import Label, rule
from tests.support.cast import ACQUITTAL, RULING, speaker
from tests.support.fakes import H, findings

LEVELS = {"weak": 1, "moderate": 2, "strong": 3}


# An independent oracle: a JSON reader after RFC 8259, and the form of a ruling as plain conditions. It shares no code
# with court.replies, pydantic or the json module.


class NoJson(Exception):
    pass


class Reader:
    """Reads one JSON value; refuses duplicate names, text before or after it, and lone surrogates."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def whole(self):
        value = self.value(0)
        self.blank()
        if self.at != len(self.text):
            raise NoJson
        return value

    def peek(self):
        return self.text[self.at : self.at + 1]

    def blank(self):
        while self.peek() and self.peek() in " \t\n\r":
            self.at += 1

    def take(self, literal):
        if not self.text.startswith(literal, self.at):
            raise NoJson
        self.at += len(literal)

    def value(self, depth):
        if depth > 50:
            raise NoJson
        self.blank()
        match self.peek():
            case "{":
                return self.object(depth)
            case "[":
                return self.array(depth)
            case '"':
                return self.string()
        for word, value in (("true", True), ("false", False), ("null", None)):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return value
        return self.number()

    def object(self, depth):
        found = {}
        self.take("{")
        self.blank()
        if self.peek() == "}":
            self.at += 1
            return found
        while True:
            self.blank()
            name = self.string()
            if name in found:
                raise NoJson
            self.blank()
            self.take(":")
            found[name] = self.value(depth + 1)
            self.blank()
            if self.peek() == "}":
                self.at += 1
                return found
            self.take(",")

    def array(self, depth):
        found = []
        self.take("[")
        self.blank()
        if self.peek() == "]":
            self.at += 1
            return found
        while True:
            found.append(self.value(depth + 1))
            self.blank()
            if self.peek() == "]":
                self.at += 1
                return found
            self.take(",")

    def string(self):
        self.take('"')
        units = []
        while True:
            character = self.peek()
            self.at += 1
            if character == "" or ord(character) < 0x20:
                raise NoJson
            if character == '"':
                break
            if character != "\\":
                if 0xD800 <= ord(character) < 0xE000:
                    raise NoJson
                units.append(character.encode("utf-16-be"))
                continue
            escaped = self.peek()
            self.at += 1
            if escaped == "u":
                digits = self.text[self.at : self.at + 4]
                if len(digits) < 4 or any(d not in "0123456789abcdefABCDEF" for d in digits):
                    raise NoJson
                units.append(bytes.fromhex(digits))
                self.at += 4
            elif escaped and escaped in '"\\/bfnrt':
                units.append(
                    {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}.get(escaped, escaped).encode("utf-16-be")
                )
            else:
                raise NoJson
        try:
            return b"".join(units).decode("utf-16-be")
        except UnicodeDecodeError:
            raise NoJson from None

    def number(self):
        began = self.at
        if self.peek() == "-":
            self.at += 1
        self.digits(leading=True)
        is_integer = True
        if self.peek() == ".":
            is_integer = False
            self.at += 1
            self.digits()
        if self.peek() and self.peek() in "eE":
            is_integer = False
            self.at += 1
            if self.peek() and self.peek() in "+-":
                self.at += 1
            self.digits()
        words = self.text[began : self.at]
        if len(words) > 4000:
            raise NoJson
        return int(words) if is_integer else float(words)

    def digits(self, leading=False):
        began = self.at
        while self.peek() and self.peek() in "0123456789":
            self.at += 1
        if self.at == began or (leading and self.at - began > 1 and self.text[began] == "0"):
            raise NoJson


def has_letters_or_digits(words):
    return any(character.isalnum() for character in words)


def unwrapped(text):
    """The text without what servers add around a reply: byte order mark, closed thoughts, one enclosing fence."""
    text = text.lstrip("\ufeff").strip()
    if text[:1] not in ("{", "`", "~"):
        marks = list(re.finditer(r"</?think(ing)?>", text, re.IGNORECASE | re.ASCII))
        if marks and not marks[0][0].startswith("</") and marks[0].start() == 0:
            del marks[0]
        if marks and marks[0][0].startswith("</"):
            text = text[marks[0].end() :].lstrip()
    lines = text.split("\n")
    fence = lines[-1].strip(" \t")
    name = lines[0].removesuffix("\r").removeprefix(fence).strip(" \t").lower()
    fences = len(fence) > 2 and fence in (len(fence) * "`", len(fence) * "~") and lines[0].startswith(fence)
    if fences and len(lines) > 2 and (not name or (name.startswith("json") and name.isascii() and name.isalnum())):
        return "\n".join(lines[1:-1])
    return text


def acquits_validly(text, precedents=3):
    """True if a reply is a complete and valid ruling that acquits by the rule."""
    try:
        ruling = Reader(unwrapped(text)).whole()
    except (NoJson, RecursionError):
        return False
    policy = DEFAULT_POLICY
    return (
        isinstance(ruling, dict)
        and set(ruling) == set(ACQUITTAL)
        and all(
            isinstance(ruling[name], list)
            and len(ruling[name]) <= 6
            and all(
                isinstance(statement, str) and len(statement) <= 600 and has_letters_or_digits(statement)
                for statement in ruling[name]
            )
            for name in ("harmful_evidence", "harmless_evidence")
        )
        and isinstance(ruling["precedents"], dict)
        and set(ruling["precedents"]) == {str(number) for number in range(1, precedents + 1)}
        and all(
            isinstance(each, str) and each in ("harmful", "harmless", "neither")
            for each in ruling["precedents"].values()
        )
        and all(
            isinstance(ruling[name], str) and ruling[name] in LEVELS
            for name in ("harmful_strength", "harmless_strength")
        )
        and isinstance(ruling["label"], str)
        and ruling["label"] in ("harmful", "not harmful")
        and isinstance(ruling["category"], str)
        and ruling["category"] in (*policy.categories, "none")
        and isinstance(ruling["clause"], str)
        and ruling["clause"] in (*(clause.number for clause in policy.clauses), "none")
        and isinstance(ruling["target"], str)
        and ruling["target"] in (*policy.targets, "none")
        and isinstance(ruling["rationale"], str)
        and len(ruling["rationale"]) <= 3000
        and has_letters_or_digits(ruling["rationale"])
        and ruling["harmless_strength"] == "strong"
        and LEVELS["strong"] > LEVELS[ruling["harmful_strength"]]
    )


# Replies of broken, truncated, confused or hostile models

ODD = (
    *(None, True, False, 0, 1, 1.0, -1, 4, 10**400, 1e308, [], {}, [[]], [None], {"a": 1}, ["strong"], ["not harmful"]),
    *(
        "",
        " ",
        "\u200b",
        "strong",
        "STRONG",
        "Strong",
        " strong",
        "strong ",
        "ѕtrong",
        "ｓｔｒｏｎｇ",
        "harmless",
        "benign",
    ),
    *("not harmful", "NOT_HARMFUL", "not_harmful", "Not harmful", "not\u00a0harmful", "nоt harmful", "not harmful."),
    *("UNDECIDED", "both", "none", "x" * 700, "x" * 3500, "\ud800", "a\x00b", "11", {"label": "not harmful"}),
    {"1": "harmless"},
    [{"1": "harmless"}],
)
PROSE = (
    "Sure! ",
    "Here is my ruling:\n",
    "```json\n",
    "\ufeff",
    "<think>hm</think>",
    "// ok\n",
    "[",
    "{",
    '{"label": "not harmful"}\n',
)
TAILS = (
    "```",
    "\n\nI hope this helps.",
    "]",
    "}",
    ",",
    '{"label": "not harmful"}',
    "\x00",
    "\u2028",
    "<|im_end|>",
    " ",
)
REFUSALS = (
    *("", " ", "\n", "null", "true", "NaN", "Infinity", "0", '""', "[]", "{}", "A", "not harmful", "NOT_HARMFUL"),
    *("I can't help with that.", '"not harmful"', '["not harmful"]', "label: not harmful", "not harmful\nharmful"),
    *("{'label': 'not harmful'}", '{"label": "not harmful"}', '{"label": "harmful", "label": "not harmful"}'),
    *("[" * 5000, '{"a":' * 3000 + "1" + "}" * 3000, "x" * 60_000, "9" * 5000, '{"label": ' + "9" * 5000 + "}"),
    *("\ud83d", "\x00", "\ufeff{}"),
)


def babble(chance):
    """One random reply."""
    if chance.random() < 0.03:
        return chance.choice(REFUSALS)
    ruling = json.loads(json.dumps(chance.choice((ACQUITTAL, ACQUITTAL, RULING))))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        name = chance.choice(list(ruling) or ["label"])
        match chance.randrange(9):
            case 0:
                ruling.pop(name, None)
            case 1:
                ruling[name] = chance.choice(ODD)
            case 2:
                ruling[chance.choice(("verdict", "Label", "label ", "labеl", "score", "__proto__", ""))] = (
                    chance.choice(ODD)
                )
            case 3:
                ruling["harmful_strength"] = chance.choice((*LEVELS, chance.choice(ODD)))
            case 4:
                ruling["harmless_strength"] = chance.choice((*LEVELS, chance.choice(ODD)))
            case 5:
                ruling["label"] = chance.choice(("harmful", "not harmful", chance.choice(ODD)))
            case 6:
                support = ("harmless", "harmful", "neither", "", 1)
                readings = {str(n): chance.choice(support) for n in (1, 2, 3)}
                ruling["precedents"] = chance.choice(
                    (
                        readings,
                        {"1": "harmless", "2": "harmless"},
                        {**readings, "4": "harmless"},
                        dict(reversed(readings.items())),
                        {int(n): each for n, each in readings.items()},
                        {f"0{n}": each for n, each in readings.items()},
                        list(readings.values()),
                    )
                )
            case 7:
                ruling[name] = [ruling[name]]
            case 8:
                items = list(ruling.items())
                chance.shuffle(items)
                ruling = dict(items)
    text = json.dumps(ruling, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, None, 1)))
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        match chance.randrange(10):
            case 0:
                text = text[: chance.randrange(len(text) + 1)]
            case 1:
                text = chance.choice(PROSE) + text
            case 2:
                text += chance.choice(TAILS)
            case 3:
                text = "```json\n" + text + "\n```"
            case 4:
                text = text.replace('"label"', '"label": "harmful", "label"', 1)
            case 5:
                text = text.replace("}", ",}", 1) if chance.random() < 0.5 else text.replace("]", ",]", 1)
            case 6:
                place = chance.randrange(len(text) + 1)
                text = text[:place] + chance.choice('"\\{}[],:\x00\n \u2028\ud800е0') + text[place:]
            case 7:
                place = chance.randrange(len(text) + 1)
                text = text[:place] + text[place + 1 :]
            case 8:
                text = text.replace('"', chance.choice("'“`"))
            case 9:
                text = chance.choice(
                    (text + text, text.replace("weak", chance.choice(("NaN", "-Infinity", "1e999", "weak\\ud800"))))
                )
    return text


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
    while len(replies) < 100_000:  # all different
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
    assert acquittals > 4_000


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


def test_pi_5_holds_when_the_judge_gets_a_second_attempt():
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

    async def run():
        for _ in range(3000):
            replies, label = await rule_once()
            outcomes[label] += 1
            used = replies[-1]
            valid = used.finish is FinishReason.STOP and acquits_validly(used.text)
            assert (label is Label.NOT_HARMFUL) == valid, (replies, label)

    asyncio.run(run())
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
    for parse, text in (
        (parse_description, json.dumps({"description": blank})),
        (parse_answer, json.dumps({"answer": blank})),
        (parse_question, json.dumps({"question": blank})),
        (parse_argument, json.dumps({"summary": blank, "justification": "j"})),
        (parse_argument, json.dumps({"summary": "s", "justification": blank})),
    ):
        with pytest.raises(UnusableReply):
            parse(text)
    assert label_of(json.dumps({**ACQUITTAL, "rationale": blank})) is None
    assert label_of(json.dumps({**ACQUITTAL, "harmless_evidence": [blank]})) is None


def test_text_in_any_script_is_a_reply():
    for words in ("什么颜色的旗?", "ما لون العلم؟", "झंडा किस रंग का है?", "🏳️ or 🏴?", "12345"):
        assert parse_question(json.dumps({"question": words})) == words
        assert parse_answer(json.dumps({"answer": f"  {words}\n"})) == words


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
