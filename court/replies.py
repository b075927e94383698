"""Strict parsing of model text into typed replies. Text that can't be parsed is an error, never guessed at."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from court import checks
from court.policy import Policy
from court.prompts import neutralise
from court.question import CourtQuestion, OptionStrengths, options_that_fit
from court.verdict import Label, Strength

REPLY_LOOPS = "REPLY_LOOPS"
_NONE = "none"
_STRENGTHS = {str(s).lower(): s for s in Strength}
_MAX_EVIDENCE = 6
_MAX_QUOTES = 3
_SHARE_OF_REASON = 2
"""Part of the longest text that the reason of an argument in parts may have: 1 over this."""
QUOTES_UNFOUND = "none of its quotes stands in what you were shown; copy words from there exactly"
_QUOTATION_MARKS = re.compile(r"[\"“”„«»\s]+")
_AROUND = " ,;:.…[]{}"
"""Signs that small models leave around a quote, from the JSON that they write."""
_MARK = r"[Tt][Hh][Ii][Nn][Kk](?:[Ii][Nn][Gg])?>"
_THOUGHTS = re.compile(rf"\A(?![{{`~])(?:<{_MARK})?(?:(?!</?{_MARK}).)*</{_MARK}\s*", re.DOTALL)
"""A closed thought at the beginning. Some templates open it in the prompt, so that the reply begins inside it. Replies
that begin like JSON are left alone, as they may quote such a tag from a meme."""
_FENCED = re.compile(
    r"(?P<fence>`{3,}|~{3,})[ \t]*(?:[Jj][Ss][Oo][Nn][a-zA-Z0-9]*)?[ \t]*\r?\n(?P<inside>.*)\n[ \t]*(?P=fence)",
    re.DOTALL,
)
_MAX_REPLY = 50_000  # characters of a reply: more than any request allows
_LONGEST_PHRASE = 300
"""Characters of the longest repeated phrase that is detected."""
_REPETITIONS = 4
_LOOP_END = 40  # characters at the end of a text whose earlier occurrences give the period of the loop
_MIN_LOOP = 200
"""Minimum length of a loop in characters, so that drawn-out letters or laughter of a meme don't count."""


class UnusableReply(Exception):
    """A reply that can't be used: a code for machines, and the fault in words that quote nothing of the reply."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what


def _has_content(text: str) -> bool:
    # A letter, a digit or a symbol such as an emoji.
    return any(unicodedata.category(character)[0] in "LNS" for character in text)


def _check_content(text: str) -> str:
    if not _has_content(text):
        raise ValueError("nothing is said")
    return text.strip()


Words = Annotated[str, AfterValidator(_check_content)]
"""Text by a model; never blank."""


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Lengths that a reply's schema asks for, ``reply_chars`` over ``share`` and ``least``; parsing allows more."""

    share: int = 1
    least: int = 1
    most: int = 0


class Reply(BaseModel):
    """Base of replies: a JSON object with exactly these fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Description(Reply):
    """The Proposer's description of the picture."""

    description: Annotated[Words, TextBounds()] = Field(min_length=1, max_length=4000)


class Answer(Reply):
    """The Proposer's answer to a question."""

    answer: Annotated[Words, TextBounds(4)] = Field(min_length=1, max_length=2000)


class Question(Reply):
    """An advocate's question."""

    question: Annotated[Words, TextBounds(4, least=5)] = Field(min_length=5, max_length=500)


class Argument(Reply):
    """An advocate's conclusion."""

    summary: Annotated[Words, TextBounds()] = Field(min_length=1, max_length=2000)
    justification: Annotated[Words, TextBounds()] = Field(min_length=1, max_length=2000)


_Claim = Annotated[str, TextBounds(4, least=0), Field(max_length=600)]
"""Claim of fact on which an argument rests; empty if it rests on none."""


class ArgumentOnClaim(Argument):
    """An advocate's conclusion, and the claim of fact on which it rests."""

    claim: _Claim


class StatedArgument(Argument):
    """An advocate's conclusion however it was replied, or read from a record."""

    claim: Annotated[str, AfterValidator(str.strip)] = ""
    """Claim of fact on which it rests; empty if it rests on none."""
    dropped: tuple[str, ...] = ()
    """Quotes that stand nowhere in what the side was shown."""


class QuotingArgument(Reply):
    """An advocate's conclusion in parts: quotes, and a reason behind a given opening."""

    # Together at most as long as an argument.
    quotes: tuple[Annotated[str, TextBounds(12), Field(max_length=160)], ...] = Field(max_length=_MAX_QUOTES)
    conclusion: str
    because: Annotated[Words, TextBounds(_SHARE_OF_REASON)] = Field(min_length=1, max_length=960)


class QuotingArgumentOnClaim(QuotingArgument):
    """An advocate's conclusion in parts, and the claim of fact on which it rests."""

    claim: _Claim


Support = Literal["harmful", "harmless", "neither"]


# Half of a text: small models copy a side's whole sentence, and go on in scraps where the schema cuts it off.
_Evidence = Annotated[Words, TextBounds(2), Field(max_length=1000)]


class RulingReply(Reply):
    """The Judge's ruling."""

    harmful_evidence: tuple[_Evidence, ...] = Field(max_length=_MAX_EVIDENCE)
    harmless_evidence: tuple[_Evidence, ...] = Field(max_length=_MAX_EVIDENCE)
    precedents: dict[str, Support]
    """Side that each precedent supports, by its number as a string, beginning with ``"1"``."""
    harmful_strength: Strength
    harmless_strength: Strength
    # The Judge can't answer UNDECIDED.
    label: Literal[Label.HARMFUL, Label.NOT_HARMFUL]
    category: str
    clause: str
    target: str
    rationale: Annotated[Words, TextBounds()] = Field(min_length=1, max_length=3000)


class QuestionRuling(Reply):
    """The Judge's ruling on a further question."""

    rationale: Words = Field(min_length=1, max_length=3000)
    chosen: tuple[str, ...]
    strengths: dict[str, OptionStrengths] = Field(default_factory=dict)
    """Strengths from which the answer follows; empty if the Judge named one option."""


R = TypeVar("R", bound=Reply)


@cache
def _type_hints(kind: type[Reply]) -> dict[str, Any]:
    # Cached, as the annotations are strings, which Python compiles each time.
    return get_type_hints(kind, include_extras=True)


def schema_of(kind: type[Reply], chars: int, **overrides: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of a reply, in the order of its fields; texts are bounded, as unbounded ones may never end."""
    fields = _type_hints(kind)
    bounds = {name: info.metadata for name, info in kind.model_fields.items()}
    return object_schema(
        {name: overrides.get(name) or _schema(fields[name], bounds[name], chars) for name in kind.model_fields}
    )


def _schema(hint: Any, bounds: Sequence[Any], chars: int) -> dict[str, Any]:
    marks = list(bounds)
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        marks += more
    if hint is bool:
        return {"type": "boolean"}
    if hint is Strength:
        return _strength_schema()
    if get_origin(hint) is Literal:
        return {"type": "string", "enum": [str(word) for word in get_args(hint)]}
    if get_origin(hint) in (list, tuple):
        most = next(mark.max_length for mark in marks if hasattr(mark, "max_length"))
        return array_schema(_schema(get_args(hint)[0], (), chars), most)
    if hint is str:
        limits = next(mark for mark in marks if isinstance(mark, TextBounds))
        least = {"minLength": limits.least} if limits.least else {}
        return {"type": "string", **least, "maxLength": limits.most or chars // limits.share}
    return schema_of(hint, chars)


def array_schema(items: dict[str, Any], most: int) -> dict[str, Any]:
    """JSON schema of a list."""
    return {"type": "array", "items": items, "maxItems": most}


def argument_schema(opening: str, chars: int, *, on_claim: bool) -> dict[str, Any]:
    """JSON schema of an argument; in parts if its conclusion has an ``opening``."""
    if not opening:
        return schema_of(ArgumentOnClaim if on_claim else Argument, chars)
    kind = QuotingArgumentOnClaim if on_claim else QuotingArgument
    return schema_of(kind, chars, conclusion={"type": "string", "enum": [opening]})


def ruling_schema(policy: Policy, precedents: int, chars: int, *, label_last: bool = False) -> dict[str, Any]:
    """JSON schema of a ruling: evidence before strengths before the label, as a model writes in order."""
    support = _schema(Support, (), chars)
    schema = schema_of(
        RulingReply,
        chars,
        precedents=object_schema({str(number): support for number in range(1, precedents + 1)}),
        label={"type": "string", "enum": ["harmful", "not harmful"]},
        category={"type": "string", "enum": [*policy.categories, _NONE]},
        clause={"type": "string", "enum": [*(clause.number for clause in policy.clauses), _NONE]},
        target={"type": "string", "enum": [*policy.targets, _NONE]},
    )
    if not label_last:
        return schema
    properties = schema["properties"]
    for name in ("harmful_strength", "harmless_strength", "category", "clause", "target", "label"):
        properties[name] = properties.pop(name)
    return object_schema(properties)


def question_schema(question: CourtQuestion, chars: int) -> dict[str, Any]:
    """JSON schema of a ruling on a further question; the rationale comes first, as a model writes in order."""
    rationale = {"type": "string", "minLength": 1, "maxLength": chars}
    strength = _strength_schema()
    # Each option is a property of its own, so that none can be omitted.
    if question.sides is not None:
        strengths = object_schema(dict.fromkeys(question.weighed, strength))
        return object_schema({"rationale": rationale, "strengths": strengths})
    if question.several:
        pair = object_schema({"supporting": strength, "opposing": strength})
        return object_schema({"rationale": rationale, "labels": object_schema(dict.fromkeys(question.options, pair))})
    return object_schema({"rationale": rationale, "label": {"type": "string", "enum": list(question.options)}})


def _strength_schema() -> dict[str, Any]:
    return {"type": "string", "enum": [str(s).lower() for s in reversed(Strength)]}


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of an object with exactly these properties, in this order."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def has_cut_text(text: str, schema: dict[str, Any]) -> bool:
    """True if a text of a usable reply is cut at the limit that the schema sets."""
    try:
        return checks.has_cut_text(_object(text), schema)
    except UnusableReply:
        return False  # it was read some other way


def parse_description(text: str) -> str:
    """Parses a description. Raises UnusableReply."""
    content = _object(text)
    # Also of small models that copy the dots of the form.
    if content.keys() == {"description"} and not _has_content(str(content["description"] or "")):
        raise UnusableReply("REPLY_EMPTY", "it describes nothing; say part by part what can be seen, however little")
    return _valid(Description, content).description


def parse_quoting_argument(
    text: str, opening: str, shown: Sequence[str], chars: int, *, on_claim: bool, quotes_needed: bool
) -> StatedArgument:
    """Parses an argument in parts and puts it together, with the quotes that stand in what was shown.

    Raises:
        UnusableReply: The reply is malformed, its conclusion is not the side's, or it lacks a quote that is needed.
    """
    content = _object(text)
    # The reply types are strict, and JSON has no tuples.
    if isinstance(content.get("quotes"), list):
        content["quotes"] = tuple(content["quotes"])
    kind = QuotingArgumentOnClaim if on_claim else QuotingArgument
    reply = _valid(kind, content)
    if reply.conclusion.strip() != opening:
        _malformed(f'"conclusion" must be "{opening}"')
    because = reply.because
    # Some models write the opening twice.
    if because.casefold().startswith(opening.casefold()):
        because = because[len(opening) :].strip()
    if not _has_content(because):
        _malformed('"because" must hold a reason')
    # No quote reaches from one text into the next.
    whole = "\n".join(map(_spoken, shown))
    quotes = [q for each in reply.quotes if _spoken(q := _QUOTATION_MARKS.sub(" ", each).strip(_AROUND))]
    found = {spoken: quote for quote in quotes if (spoken := _spoken(quote)) in whole}
    # A part of another quote adds nothing.
    true_quotes = [quote for spoken, quote in found.items() if not any(spoken in each != spoken for each in found)]
    if quotes_needed and not true_quotes:
        _malformed(QUOTES_UNFOUND)
    if checks.is_cut(because, chars // _SHARE_OF_REASON):
        # Without half a word at its end.
        because = f"{because.rpartition(' ')[0]} {checks.CUT_MARK}".strip()
    quoted = "".join(f"“{quote}”. " for quote in true_quotes)
    return StatedArgument(
        summary=f"{quoted}{because}",
        justification=f"{quoted}{opening} {because}",
        claim=reply.claim if isinstance(reply, QuotingArgumentOnClaim) else "",
        dropped=tuple(quote for quote in quotes if _spoken(quote) not in whole),
    )


def _spoken(text: str) -> str:
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", neutralise(text)).casefold()))


def parse_ruling(text: str, policy: Policy, precedents: int) -> RulingReply:
    """Parses a ruling, which must cover exactly the shown precedents in the policy's terms. Raises UnusableReply."""
    content = _object(text)
    # Exact matches only: a label or strength is never guessed from a similar word (PI-5).
    for name in ("harmful_strength", "harmless_strength"):
        content[name] = _word(content, name, _STRENGTHS)
    labels = {"harmful": Label.HARMFUL, "not harmful": Label.NOT_HARMFUL}
    content["label"] = _word(content, "label", labels)
    for name in ("harmful_evidence", "harmless_evidence"):
        # The reply types are strict, and JSON has no tuples.
        if isinstance(content.get(name), list):
            # Scraps such as "," beside evidence say nothing, and no trial fails for them. Scraps alone are no evidence.
            entries = [each for each in content[name] if not isinstance(each, str) or _has_content(each)]
            content[name] = tuple(entries or content[name])
    ruling = _valid(RulingReply, content)
    if ruling.precedents.keys() != {str(number) for number in range(1, precedents + 1)}:
        _malformed(f"it must speak about each of the {precedents} precedents once")
    for name, known in (
        ("category", policy.categories),
        ("clause", tuple(clause.number for clause in policy.clauses)),
        ("target", policy.targets),
    ):
        if getattr(ruling, name) not in (*known, _NONE):
            _malformed(f"{name} must be one of {', '.join((*known, _NONE))}")
    return ruling


def parse_question_ruling(text: str, question: CourtQuestion) -> QuestionRuling:
    """Parses a ruling on a further question, in terms of its options. Raises UnusableReply."""
    content = _object(text)
    field = "strengths" if question.sides is not None else "labels" if question.several else "label"
    # With additional fields, the reply may mean another answer than the one that would be read.
    if content.keys() != {"rationale", field}:
        _malformed(f"it must hold rationale and {field}, and nothing else")
    answer, strengths = content.pop(field), dict[str, OptionStrengths]()
    if question.weighed:
        if not isinstance(answer, dict) or answer.keys() != set(question.weighed):
            _malformed(f"{field} must name each of {', '.join(question.weighed)} once, and nothing else")
        strengths = _of_sides(question, answer) if question.sides is not None else _of_options(question, answer)
        # By the rule: if strengths are requested, the model does not name the answer itself.
        chosen = options_that_fit(question, strengths)
    else:
        chosen = (_word({field: answer}, field, {option: option for option in question.options}),)
    return _valid(QuestionRuling, {**content, "chosen": chosen, "strengths": strengths})


def _of_sides(question: CourtQuestion, strengths: dict[str, Any]) -> dict[str, OptionStrengths]:
    """Returns the strengths for two sides: evidence for one is evidence against the other."""
    one, other = question.weighed
    first, second = (_word(strengths, side, _STRENGTHS) for side in (one, other))
    return {
        one: OptionStrengths(supporting=first, opposing=second),
        other: OptionStrengths(supporting=second, opposing=first),
    }


def _of_options(question: CourtQuestion, pairs: dict[str, Any]) -> dict[str, OptionStrengths]:
    found = {}
    for option in question.weighed:
        pair = pairs[option]
        if not isinstance(pair, dict) or pair.keys() != {"supporting", "opposing"}:
            _malformed(f"{option} must have supporting and opposing, and nothing else")
        words = {side: _word(pair, side, _STRENGTHS) for side in ("supporting", "opposing")}
        found[option] = OptionStrengths(**words)
    return found


def parse(kind: type[R], text: str) -> R:
    """Parses a reply of this type. Raises UnusableReply."""
    return _valid(kind, _object(text))


def _object(text: str) -> dict[str, Any]:
    if not text.strip():
        raise UnusableReply("REPLY_EMPTY", "it was empty")
    if len(text) > _MAX_REPLY:
        _malformed("it was far too long")
    try:
        content = json.loads(
            _unwrapped(text), object_pairs_hook=_once, parse_constant=lambda _: _malformed("it held no number")
        )
    except (ValueError, RecursionError):
        # RecursionError is raised for brackets nested too deeply for the parser.
        _malformed("it was not valid JSON")
    if not isinstance(content, dict):
        _malformed("it was not a JSON object")
    return content


def _unwrapped(text: str) -> str:
    """Returns the reply without a byte order mark, one leading thought block and one surrounding code fence."""
    # Servers that do not enforce schemas or parse reasoning pass these on. Nothing else is removed: with two objects in
    # a reply, it is unclear which one is meant.
    bare = _THOUGHTS.sub("", text.lstrip("\ufeff").strip(), count=1)
    fenced = _FENCED.fullmatch(bare)
    return fenced["inside"] if fenced else bare


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Rejects duplicate names: with two labels, it is unclear which one is meant."""
    if len({name for name, _ in pairs}) < len(pairs):
        _malformed("a name stood in it twice")
    return dict(pairs)


def _word(content: dict[str, Any], name: str, words: dict[str, Any]) -> Any:
    value = content.get(name)
    if not isinstance(value, str) or value not in words:
        _malformed(f'"{name}" must be one of {", ".join(words)}')
    return words[value]


def _valid(kind: type[R], content: dict[str, Any]) -> R:
    try:
        reply = kind.model_validate(content)
    except ValidationError as error:
        # Field names only, never the values: the message is not fenced.
        names = sorted({str(fault["loc"][0]) for fault in error.errors() if fault["loc"]} & set(kind.model_fields))
        extra = any(fault["type"] == "extra_forbidden" for fault in error.errors())
        if names:
            _malformed(f"{', '.join(names)} missing or not as asked")
        _malformed("it held names that were not asked for" if extra else "it was not as asked")
    # Checked here, while the reply can still be repaired; a failure in the record would end the trial.
    _writable(json.dumps(content, ensure_ascii=False, default=str))
    return reply


def _writable(text: str) -> str:
    """Rejects lone surrogates, which a record can't store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        _malformed("it held half a character")
    return text


def _malformed(what: str) -> NoReturn:
    raise UnusableReply("REPLY_MALFORMED", what)


def find_loop(text: str) -> int | None:
    """Returns the index from which a text only repeats the phrase before it, up to its end; None without a loop."""
    end = text[-_LOOP_END:]
    index = len(text) - len(end)
    # Searches for earlier occurrences of the text's end; most texts have none. Each search ends one character, not one
    # length, before the last match, as a phrase shorter than `end` overlaps itself.
    while (index := text.rfind(end, max(0, len(text) - len(end) - _LONGEST_PHRASE), index + len(end) - 1)) >= 0:
        period = len(text) - len(end) - index
        fills = max(_REPETITIONS * period, _MIN_LOOP)
        # Matches farther to the left have longer periods, which need even more text.
        if fills > len(text):
            return None
        # Equal to itself shifted by one period: a single comparison for any number of repetitions.
        if text[-fills:-period] == text[period - fills :]:
            start = len(text) - fills
            while start and text[start - 1] == text[start - 1 + period]:
                start -= 1
            return start + period
    return None


def find_loop_in_reply(reply: str) -> int | None:
    """Returns the index in a reply at which a loop begins; None without a loop."""
    # Under a schema, a looping string ends at its maximum length and the reply continues. So each part between
    # quotation marks is checked, in addition to the end of the reply.
    start = 0
    for piece in reply.split('"'):
        if (found := find_loop(piece)) is not None:
            return start + found
        start += len(piece) + 1
    return find_loop(reply)
