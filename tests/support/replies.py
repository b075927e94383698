"""Helpers of tests of replies."""

import json
import re

from court.policy import DEFAULT_POLICY
from tests.support.cast import ACQUITTAL, RULING

LEVELS = {"weak": 1, "moderate": 2, "strong": 3}


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
            and all(isinstance(statement, str) for statement in ruling[name])
            # Scraps without a word count as nothing beside evidence, and as a fault alone.
            and all(len(statement) <= 1000 for statement in ruling[name] if has_letters_or_digits(statement))
            and (not ruling[name] or any(map(has_letters_or_digits, ruling[name])))
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
