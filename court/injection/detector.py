"""Detection of prompt injection: evidence for a person, never a gate.

Instructions found in a meme are evidence, not orders. Signs are recorded and cause human review; they never change a
label, and no model is told. The patterns are our own; their detection and miss rates are measured (docs/security.md).

A text is normalised as a reader or tokeniser might read it, undoing disguises: escapes, compatibility forms, case,
accents, invisible characters, homoglyphs, leetspeak, spaced-out letters and base64. Words are then matched by meaning,
and a sign is two or three meanings near each other, in one language. Every step takes linear time: no nested repetition
in patterns, and every distance is bounded.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import string
import tomllib
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from itertools import groupby

from pydantic import Field

from court.values import Value


class SignalKind(StrEnum):
    """Kind of injection attempt."""

    ADDRESSES_MODEL = "ADDRESSES_MODEL"
    """Addresses a model: assigns it a new role, or asks for its instructions."""
    OVERRIDES_INSTRUCTIONS = "OVERRIDES_INSTRUCTIONS"
    """Claims that other instructions replace those of the court."""
    DICTATES_VERDICT = "DICTATES_VERDICT"
    """Dictates the answer, in words or in the form of a reply."""
    IMITATES_CONTROL_TOKENS = "IMITATES_CONTROL_TOKENS"
    """Contains control tokens, tags, markup or placeholders, as in prompts or programs."""
    FAKES_ROLE_OR_FENCE = "FAKES_ROLE_OR_FENCE"
    """Pretends that the material ends, or that another role speaks."""
    HIDDEN_TEXT = "HIDDEN_TEXT"
    """Contains text that people would not see or read: encoded, reversed, invisible or stacked."""
    FLOODS = "FLOODS"
    """Consists mostly of repetition."""


class Signal(Value):
    """The first sign of a kind in a text."""

    kind: SignalKind
    start: int = Field(ge=0)
    """Index of its first character (code point) in the text."""
    end: int = Field(ge=1)
    """Index after its last character."""


def find_injection_signals(text: str) -> tuple[Signal, ...]:
    """Finds signs in a text, at most one of each kind, ordered by position."""
    # Strict UTF-8 rejects lone surrogates, which a hostile text may contain.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    known = _known.get(digest)
    if known is None:
        # Cleared completely, as LRU eviction would need bookkeeping on each access.
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[digest] = _signals(text)
    return known


_known: dict[bytes, tuple[Signal, ...]] = {}
"""Cache by digest, as the same precedents recur; texts are not stored, as they may be long, or be erased."""
_MOST_KNOWN = 4096


def _signals(text: str) -> tuple[Signal, ...]:
    first: dict[SignalKind, Signal] = {}
    for kind, start, end in _matches(text):
        known = first.get(kind)
        if known is None or (start, end) < (known.start, known.end):
            first[kind] = Signal(kind=kind, start=start, end=end)
    return tuple(sorted(first.values(), key=lambda signal: (signal.start, signal.end, signal.kind)))


_Found = tuple[SignalKind, int, int]


@dataclass(frozen=True, slots=True)
class _TextVariant:
    """One reading of a text, with the source of each character in the original; ``glued`` without spaces."""

    text: str
    start: Sequence[int]
    end: Sequence[int]
    glued: bool = False

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns the span in the original of a non-empty piece of this reading."""
        return self.start[start], max(self.end[start], self.end[end - 1])


def _matches(text: str) -> Iterator[_Found]:
    for kind, pattern in _ASCII_RAW if text.isascii() else _RAW:
        if match := pattern.search(text):
            yield kind, match.start(), match.end()
    yield from _floods(text)
    plain = _folded(text)
    # Each reading separately, as undoing one disguise may damage undisguised words.
    for view in (plain, *_disguises(plain)):
        yield from _read(view)
    for start, end, decoded in _encoded(text):
        yield SignalKind.HIDDEN_TEXT, start, end
        # Positions in decoded text are meaningless in the original, so the whole encoded part is the span.
        for kind, _, _ in _read(_folded(decoded)):
            yield kind, start, end


def _read(view: _TextVariant) -> Iterator[_Found]:
    for kind, pattern in _FORMS:
        if match := pattern.search(view.text):
            yield kind, *view.span(*match.span())
    assistant, answered = _TURNS
    # Both have a colon, which few texts have.
    if ":" in view.text and (match := assistant.search(view.text)) and answered.search(view.text):
        yield SignalKind.FAKES_ROLE_OR_FENCE, *view.span(*match.span())
    words = view.text if view.glued else _words(view.text)
    positions: Sequence[int] = ()
    for language, places in _places(words, view.glued).items():
        for rule in _RULES:
            if rule.needs <= places.keys():
                within = rule.within // 3 if language == _CHINESE else rule.within
                if piece := _first_close([places[meaning] for meaning in rule.meanings], within):
                    # Positions are computed when a rule has matched, which is rare: most texts never need them.
                    positions = positions or (range(len(words)) if view.glued else _word_positions(view.text))
                    yield rule.kind, *view.span(positions[piece[0]], positions[piece[1] - 1] + 1)


def _places(text: str, glued: bool) -> dict[int, dict[str, list[tuple[int, int]]]]:
    """Finds each meaning in words, by language; at every position, the longest entry of each."""
    size = len(text)
    found: dict[int, dict[str, list[tuple[int, int]]]] = {}
    root = _tree(glued).following
    # Without spaces, a word may begin at any letter.
    for start in range(size) if glued else [word.start() for word in _START.finditer(text)]:
        node, place = root.get(text[start]), start + 1
        longest: dict[tuple[int, str], int] = {}
        while node:
            if node.meanings:
                # An entry that is no stem counts only as a whole word.
                ended = glued or place == size or text[place] == " " or _runs_on(text[place])
                for language, meaning, stem in node.meanings:
                    if ended or stem:
                        longest[language, meaning] = place if ended else _word_end(text, place)
            node, place = node.following.get(text[place]) if place < size else None, place + 1
        for (language, meaning), end in longest.items():
            found.setdefault(language, {}).setdefault(meaning, []).append((start, end))
    return found


def _word_end(text: str, place: int) -> int:
    last = min(len(text), place + _ENDING)
    return next((i for i in range(place, last) if text[i] == " " or _runs_on(text[i])), last)


def _first_close(spans: Sequence[Sequence[tuple[int, int]]], within: int) -> tuple[int, int] | None:
    """The first place where one span of each list stands at most so many characters from that of the first list."""
    for start, end in spans[0]:
        low, high = start, end
        for others in spans[1:]:
            place = bisect_left(others, (start, start))
            # A few neighbours by position are enough, and keep the search linear where a text repeats a word thousands
            # of times. Spans must not overlap: one word with two meanings is no sign by itself.
            nearby = [
                other
                for other in others[max(place - 2, 0) : place + 3]
                if other[0] <= end + within and other[1] >= start - within and (other[1] <= start or other[0] >= end)
            ]
            if not nearby:
                break
            nearest = min(nearby, key=lambda other: max(other[0] - end, start - other[1]))
            low, high = min(low, nearest[0]), max(high, nearest[1])
        else:
            return low, high
    return None


def _floods(text: str) -> Iterator[_Found]:
    if len(text) < _FLOOD:
        return
    place = 0
    for _, run in groupby(text):
        length = sum(1 for _ in run)
        if length >= _FLOOD:
            yield SignalKind.FLOODS, place, place + length
        place += length
    words = Counter(text.split())
    if words and (most := max(words.values())) >= _FLOOD and most > 0.8 * words.total():
        yield SignalKind.FLOODS, 0, len(text)


_FLOOD = 300
"""Minimum repetitions of a character in a row, or of a word, that count as flooding."""


# Reading a text


_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|%([0-9a-fA-F]{2})|&#x([0-9a-fA-F]{1,6});|&#(\d{1,7});")
_CONTROL = re.compile("[\0-\t\v-\x1f\x7f]")
_ENTITIES = re.compile(r"&(lt|gt|amp|quot);")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}
# Angle brackets of other alphabets: what looks like a control token is one to a reader. Strokes between words as well.
_LOOKALIKES = str.maketrans({"‹": "<", "›": ">", "⟨": "<", "⟩": ">", "〈": "<", "〉": ">", "’": "'", "ı": "i"})
_TAGS = range(0xE0020, 0xE007F)  # ASCII once more, unseen


@lru_cache(maxsize=4096)
def _bare(character: str) -> str:
    """A character without case, accents and compatibility form; nothing where it is unseen."""
    if ord(character) in _TAGS:
        return chr(ord(character) - 0xE0000).casefold()
    category = unicodedata.category(character)
    if category in ("Cf", "Cs", "Mn", "Me") or character in _FILLERS:
        return ""
    if category == "Cc":
        return "\n" if character in "\n\r\v\f\x85" else " " if character == "\t" else ""
    if category in ("Zl", "Zp"):
        return "\n"
    # Twice, because case folding can bring back combined characters.
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    bare = "".join(c for c in decomposed if unicodedata.category(c) not in ("Mn", "Me")).translate(_LOOKALIKES)
    return bare[:4]  # an Arabic ligature stands for eighteen letters, none of which is looked for


# By category these are letters or marks; none of them is seen.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


def _fold(words: str) -> str:
    return "".join(map(_bare, words))


def _folded(text: str) -> _TextVariant:
    if not (_ESCAPE.search(text) or _ENTITIES.search(text)):
        # Fast path for most texts, where each character maps to one.
        folded = text.lower() if text.isascii() and not _CONTROL.search(text) else _one_each(text)
        if folded is not None:
            return _TextVariant(folded, range(len(text)), range(1, len(text) + 1))
    characters: list[str] = []
    start: list[int] = []
    end: list[int] = []
    for character, low, high in _unescaped(text):
        for each in _bare(character):
            characters.append(each)
            start.append(low)
            end.append(high)
    return _TextVariant("".join(characters), start, end)


def _one_each(text: str) -> str | None:
    """A text as it is folded; None where a character of it stands for none or for several."""
    folded = list(map(_bare, text))
    return "".join(folded) if set(map(len, folded)) == {1} else None


def _unescaped(text: str) -> Iterator[tuple[str, int, int]]:
    """Characters with their spans, escapes of JSON, URIs and HTML undone."""
    place = 0
    escapes = [(match, chr(_code(match))) for match in _ESCAPE.finditer(text)]
    escapes += [(match, _NAMED[match[1]]) for match in _ENTITIES.finditer(text)]
    for match, character in sorted(escapes, key=lambda escape: escape[0].start()):
        yield from ((text[i], i, i + 1) for i in range(place, match.start()))
        yield character, match.start(), match.end()
        place = match.end()
    yield from ((text[i], i, i + 1) for i in range(place, len(text)))


def _code(match: re.Match[str]) -> int:
    *hexadecimal, decimal = match.groups()
    code = int(decimal) if decimal else int(next(filter(None, hexadecimal)), 16)
    # A numeric escape may name any number, and chr() raises beyond Unicode's last code point.
    return code if code < 0x110000 else 0xFFFD


def _words(text: str) -> str:
    return _BETWEEN.sub(" ", text.replace("_", " "))


def _word_positions(text: str) -> list[int]:
    """Returns the position in a text of each character of its words."""
    positions: list[int] = []
    place = 0
    for between in _BETWEEN.finditer(text.replace("_", " ")):
        positions += range(place, between.start() + 1)
        place = between.end()
    positions += range(place, len(text))
    return positions


_BETWEEN = re.compile("[^\\w\u0900-\u0963]+")  # vowel signs are no letters


def _disguises(plain: _TextVariant) -> Iterator[_TextVariant]:
    """Other readings of a text, each only where it differs."""
    for meant, replaced in ((_OTHERS, _one_alphabet), (_DIGITS, _letters)):
        if not meant.isdisjoint(plain.text):
            reading = _WORD.sub(replaced, plain.text)
            if reading != plain.text:
                yield _TextVariant(reading, plain.start, plain.end)
    for match in _APART.finditer(plain.text):
        letters = [i for i in range(*match.span()) if plain.text[i].isalnum()]
        yield _TextVariant(
            "".join(plain.text[i] for i in letters).translate(_LEET),
            [plain.start[i] for i in letters],
            [plain.end[i] for i in letters],
            glued=True,
        )


_WORD = re.compile(r"[^\s<>|\[\]{}\"'.,:;()]+")
# Ten letters or more that stand alone, each with little between.
_APART = re.compile(r"(?<![^\W_])[^\W_](?:[\W_]{1,3}[^\W_](?![^\W_])){9,}")
_HOMOGLYPHS = str.maketrans("авекмнорстухіјѕԁԛԝьαβεικνορτυχγω", "abekmhopctyxijsdqwbabeikvoptuxyw")
"""Letters of Cyrillic and Greek that look like Latin ones."""
_LEET = str.maketrans("01345789@$", "oieastbgas")
_LATIN = frozenset(string.ascii_lowercase)
_OTHERS = frozenset(map(chr, _HOMOGLYPHS))
_DIGITS = frozenset(map(chr, _LEET))


def _one_alphabet(match: re.Match[str]) -> str:
    letters = set(match[0])
    return match[0].translate(_HOMOGLYPHS) if letters & _LATIN and letters & _OTHERS else match[0]


def _letters(match: re.Match[str]) -> str:
    """Digits read as the letters that they stand for, in words that have letters too."""
    word = match[0]
    return word.translate(_LEET) if set(word) & _LATIN and not word.isalpha() else word


_BASE64 = re.compile(r"[A-Za-z0-9+/]{20,}")
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:[0-9a-fA-F]{2} ?){10,}(?![0-9a-zA-Z])")


def _encoded(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields the encoded parts of a text: their place and their decoded content."""
    for match in _HEX.finditer(text):
        yield from _as_words(match, bytes.fromhex(match[0]))
    for match in _BASE64.finditer(text):
        # No base64 is 4n + 1 characters long: the last one then belongs to something else, and the decoder would raise.
        whole = match[0][: len(match[0]) - (len(match[0]) % 4 == 1)]
        yield from _as_words(match, binascii.a2b_base64(whole + "=" * (-len(whole) % 4)))


def _as_words(match: re.Match[str], decoded: bytes) -> Iterator[tuple[int, int, str]]:
    """Decoded bytes, where they are words: UTF-8, printable, with a space between."""
    try:
        words = decoded.decode()
    except UnicodeDecodeError:
        return
    if " " in words.strip() and words.replace("\n", " ").isprintable():
        yield *match.span(), words


# What is looked for


_INVISIBLE = "\u034f\u115f\u1160\u180b-\u180f\u200b-\u200d\u2060-\u2064\u3164\ufe00-\ufe0f\ufeff"
# In the text as it is: folding takes these away.
_ASCII_RAW: tuple[tuple[SignalKind, re.Pattern[str]], ...] = tuple(
    (SignalKind.HIDDEN_TEXT, re.compile(pattern))
    for pattern in (
        "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\U000f0000-\U0010ffff]",
        r"\\u00[01][0-9a-fA-F]",
        "[0-9a-fA-F]{256}",
    )
)
_RAW: tuple[tuple[SignalKind, re.Pattern[str]], ...] = _ASCII_RAW + tuple(
    (SignalKind.HIDDEN_TEXT, re.compile(pattern))
    for pattern in (  # none of these can be found in ASCII
        # Tags; after a black flag they are part of it.
        "(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007e]",
        "[\u202d\u202e]",  # turn the direction of what follows
        f"(?<=[!-~])[{_INVISIBLE}]{{1,99}}(?=[!-~])",  # other alphabets need them, and so do emoji
        f"[{_INVISIBLE}\u200e\u200f\u2066-\u2069\U000e0100-\U000e01ef]{{6}}",
        "[\u0300-\u036f]{24}",
    )
)

# Who speaks, in the transcript of a conversation with a model: an assistant, and somebody who is answered.
_ASSISTANT = "assistant|assistent|asistente|助手|المساعد|ассистент|सहायक"
_ANSWERED = (
    "system|systeme|sistema|系统|النظام|система|सिस्टम"
    "|user|human|benutzer|utilisateur|usuario|用户|المستخدم|пользователь|उपयोगकर्ता"
)
_TOKENS = (
    r"inst|[gs]?mask|cls|sep|pad|unk|[be]os|eot|img(?:_break|_end)?|tool_calls|(?:available_)?tools|tool_results"
    r"|system_prompt|prefix|middle|suffix|think|args|call_id|(?:begin_)?audio|(?:start|end)_header_id|control_\d{1,4}"
    r"|unused_token_\d{1,4}|\|[a-z_]{1,30}\|"
)
_TAG_NAMES = (
    r"think|tool_call|tool_response|system|assistant|user|human|s|[be]os|pad|unk|mask|image|img|video|audio|box|script"
    r"|iframe|(?:start|end)_of_(?:turn|image)|image_soft_token|img_context|sop|unused\d{1,4}|0x[0-9a-f]{2}|instructions?"
)
_KEYS = (
    r"label|verdict|score|rationale|justification|summary|question|classification|is_harmful|harmful|harmless"
    r"|harm(?:ful|less)_(?:evidence|strength)"
)
# In the folded text.
_FORM_PATTERNS = {
    SignalKind.IMITATES_CONTROL_TOKENS: (
        r"<\||\|>",
        r"<<\s{0,3}/?sys",
        rf"\[/?(?:{_TOKENS})\]",
        rf"</?(?:{_TAG_NAMES})(?:\s[^<>\n]{{0,80}})?>",
        r"<a\s{1,4}href|<!--|<!\[cdata\[|<\?xml|<!doctype|javascript:|data:text/|!\[[^\]\n]{0,60}\]\(",
        r"\{\{[^{}\n]{1,60}\}\}|\{%|\$\{[a-z_]{1,30}\}|%\([a-z_]{1,30}\)s|\\g<|\{[a-z_]{1,30}![rsa]\}",
        r">>\s{0,2}[a-z_]{3,20}\s{0,2}<<",
        r"[\]}]{6}",
    ),
    SignalKind.DICTATES_VERDICT: (
        rf"\"(?:{_KEYS})\"\s{{0,4}}:",
        r"harm(?:ful|less)_(?:evidence|strength)",
        r"\"\s{0,3}\}?\]?\s{0,3},\s{0,3}\"[a-z_]{1,30}\"\s{0,3}:\s{0,3}\[?\{?\s{0,3}\"",
    ),
    SignalKind.FAKES_ROLE_OR_FENCE: (
        r"role\"?\s?:\s?\"?(?:system|assistant)",
        r"###\s{0,3}(?:instruction|response|system|input|task|assistant|user)",
        r"\[\s{0,3}(?:begin|end)\s[^\]\n]{0,90}?[0-9a-f]{8}",
        r"(?:end|beginning|start) of (?:the )?(?:material|content|input|document|prompt|user input)|the text ends here"
        r"|between the marks",
        # What the court's own messages say (court/prompts).
        r"the witness's answer|by the witness:|the side that says it is|precedent \d{1,3} was found"
        r"|nearest to this one,|judge the meme\.|your side: the one|your last reply could not be used",
    ),
}
_FORMS = tuple((kind, re.compile(pattern)) for kind, patterns in _FORM_PATTERNS.items() for pattern in patterns)
# The names are folded like the texts in which they are searched, or their accents would hide them.
_TURNS = tuple(re.compile(rf"(?<![^\W_])(?:{_fold(names)})\s?:") for names in (_ASSISTANT, _ANSWERED))


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: SignalKind
    within: int
    meanings: tuple[str, ...]
    needs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", frozenset(self.meanings))


_RULES = (
    _Rule(SignalKind.OVERRIDES_INSTRUCTIONS, 50, ("override", "rules", "whose")),
    _Rule(SignalKind.OVERRIDES_INSTRUCTIONS, 40, ("override", "told")),
    _Rule(SignalKind.OVERRIDES_INSTRUCTIONS, 40, ("override", "check")),
    _Rule(SignalKind.OVERRIDES_INSTRUCTIONS, 40, ("obey", "my_orders")),
    _Rule(SignalKind.OVERRIDES_INSTRUCTIONS, 0, ("authority",)),
    _Rule(SignalKind.DICTATES_VERDICT, 40, ("say", "cleared")),
    _Rule(SignalKind.DICTATES_VERDICT, 60, ("classify", "thing", "fine")),
    _Rule(SignalKind.DICTATES_VERDICT, 30, ("thing", "cleared")),
    _Rule(SignalKind.DICTATES_VERDICT, 30, ("verdict", "fine")),
    _Rule(SignalKind.DICTATES_VERDICT, 60, ("verdict", "no_more")),
    _Rule(SignalKind.DICTATES_VERDICT, 60, ("cleared", "no_more")),
    _Rule(SignalKind.ADDRESSES_MODEL, 40, ("become", "model")),
    _Rule(SignalKind.ADDRESSES_MODEL, 60, ("become", "unbound")),
    _Rule(SignalKind.ADDRESSES_MODEL, 40, ("reveal", "secret")),
    _Rule(SignalKind.ADDRESSES_MODEL, 60, ("model", "heed", "thing")),
    _Rule(SignalKind.ADDRESSES_MODEL, 60, ("model", "heed", "cleared")),
)

_ENDING = 15  # letters that a stem may be followed by; what is longer is cut
_CHINESE = 4  # denser: a character is about three letters


_RUN_ON = "\u4e00-\u9fff\u0620-\u06ff"
_START = re.compile(f"[^ ][^ {_RUN_ON}]*")
"""A word, or what of it stands behind the first letter that may be one by itself."""


def _runs_on(character: str) -> bool:
    """True if a letter is of an alphabet in which words run together (Chinese) or begin with an article (Arabic)."""
    return "\u4e00" <= character <= "\u9fff" or "\u0620" <= character <= "\u06ff"


@dataclass(slots=True)
class _Node:
    """Trie node: following letters, and entries that end here (language, meaning, True for a stem)."""

    following: dict[str, _Node] = field(default_factory=dict)
    meanings: list[tuple[int, str, bool]] = field(default_factory=list)


def phrases() -> dict[str, dict[str, list[str]]]:
    """Reads the phrases by meaning and language; all meanings list the same languages in the same order."""
    return tomllib.loads(files(__package__).joinpath("phrases.toml").read_text("utf-8"))


@cache
def _tree(glued: bool) -> _Node:
    """All entries, letter by letter. Made when first needed, so that nobody waits for it who tries no meme."""
    root = _Node()
    for meaning, languages in phrases().items():
        for language, entries in enumerate(languages.values()):
            for entry in entries:
                node = root
                # The same reading as a text gets: apostrophes part words, too. A stem within an entry has no ending.
                for letter in _words(_folded(entry.rstrip("*")).text).strip().replace(" ", "" if glued else " "):
                    node = node.following.setdefault(letter, _Node())
                node.meanings.append((language, meaning, entry.endswith("*")))
    return root
