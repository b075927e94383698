"""Model text to typed question, argument or ruling: strictly. What can't be read is a fault, never a guess."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from court.policy import Policy
from court.question import CourtQuestion, OptionStrengths, options_that_fit
from court.verdict import Label, Strength

REPLY_LOOPS = "REPLY_LOOPS"
"""Reason of a reply in which the same is said over and over."""
_NONE = "none"
_STRENGTHS = {str(s).lower(): s for s in Strength}
_MOST_EVIDENCE = 6
_MARK = r"[Tt][Hh][Ii][Nn][Kk](?:[Ii][Nn][Gg])?>"
_THOUGHTS = re.compile(rf"\A(?![{{`~])(?:<{_MARK})?(?:(?!</?{_MARK}).)*</{_MARK}\s*", re.DOTALL)
"""A closed block at the beginning; some templates open it in the prompt, so that the reply begins within. A reply that
begins as it should may quote a meme that has such a mark."""
_FENCED = re.compile(
    r"(?P<fence>`{3,}|~{3,})[ \t]*(?:[Jj][Ss][Oo][Nn][a-zA-Z0-9]*)?[ \t]*\r?\n(?P<inside>.*)\n[ \t]*(?P=fence)",
    re.DOTALL,
)
_MOST = 50_000  # characters of a reply: more than any that is asked for can have
_LONGEST_PHRASE = 300
"""Characters of the longest phrase that is looked for."""
_REPETITIONS = 4
_LOOP_END = 40  # characters at the end of a text whose earlier places say how long the phrase is
_LEAST_REPEATED = 200
"""Characters that a phrase must fill by being repeated: letters that a meme draws out, or a laugh, are no loop."""


class UnusableReply(Exception):
    """A reply that can't be used.

    Attributes:
        reason: Code for machines: REPLY_EMPTY, REPLY_CUT, REPLY_LOOPS, THOUGHT_CUT, REPLY_REFUSED, REPLY_MALFORMED.
        what: Fault in words, for the repair request and the record; quotes nothing of the reply.
    """

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what


def _says(text: str) -> bool:
    """True if a text contains a letter, a digit or a picture sign."""
    return any(unicodedata.category(character)[0] in "LNS" for character in text)


def _saying(text: str) -> str:
    if not _says(text):
        raise ValueError("nothing is said")
    return text.strip()


Words = Annotated[str, AfterValidator(_saying)]
"""Of a model's own: never blank."""


class Reply(BaseModel):
    """A model's reply, as a JSON object of exactly these names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Description(Reply):
    """The Proposer's description of the picture."""

    description: Words = Field(min_length=1, max_length=4000)


class Answer(Reply):
    """The Proposer's answer to a question."""

    answer: Words = Field(min_length=1, max_length=2000)


class Question(Reply):
    """An advocate's question."""

    question: Words = Field(min_length=5, max_length=500)


class Argument(Reply):
    """An advocate's conclusion."""

    summary: Words = Field(min_length=1, max_length=2000)
    justification: Words = Field(min_length=1, max_length=2000)


class ArgumentOnClaim(Argument):
    """An advocate's conclusion, and the claim of fact on which it rests."""

    claim: str = Field(max_length=600)
    """Empty where it rests on none."""


Support = Literal["harmful", "harmless", "neither"]


_Evidence = Annotated[Words, Field(max_length=600)]


class Ruling(Reply):
    """The Judge's ruling."""

    harmful_evidence: tuple[_Evidence, ...] = Field(max_length=_MOST_EVIDENCE)
    harmless_evidence: tuple[_Evidence, ...] = Field(max_length=_MOST_EVIDENCE)
    precedents: dict[str, Support]
    """What each supports, by its number in words, ``"1"`` the first."""
    harmful_strength: Strength
    harmless_strength: Strength
    # UNDECIDED is not the Judge's to give.
    label: Literal[Label.HARMFUL, Label.NOT_HARMFUL]
    category: str
    clause: str
    target: str
    rationale: Words = Field(min_length=1, max_length=3000)


class QuestionRuling(Reply):
    """The Judge's ruling on a further question."""

    rationale: Words = Field(min_length=1, max_length=3000)
    chosen: tuple[str, ...]
    """Options that fit, in the question's order."""
    strengths: dict[str, OptionStrengths] = Field(default_factory=dict)
    """From which the answer follows; empty where the Judge named one option."""


R = TypeVar("R", bound=Reply)


def text_schema(kind: type[Description] | type[Answer] | type[Question] | type[Argument], chars: int) -> dict[str, Any]:
    """JSON schema of a reply of words alone: bounded strings, in the order of the fields. Unbounded ones may never end.

    Args:
        kind: Which of them.
        chars: Longest description, summary or justification; a question, an answer or a claim has a quarter of it.
    """
    most = chars // 4 if kind in (Question, Answer) else chars
    least = 5 if kind is Question else 1  # as the fields above: what is asked for is what is taken
    words = {name: {"type": "string", "minLength": least, "maxLength": most} for name in kind.model_fields}
    if kind is ArgumentOnClaim:
        words["claim"] = {"type": "string", "maxLength": chars // 4}  # may be empty
    return object_schema(words)


def ruling_schema(policy: Policy, precedents: int, chars: int) -> dict[str, Any]:
    """JSON schema of a ruling. Evidence comes before strengths and these before the label: a model writes in order.

    Args:
        policy: Names the categories, clauses and targets that may be found.
        precedents: Number of precedents shown; the ruling speaks about each, for each is a name of its own in the
            schema.
        chars: Longest rationale; a piece of evidence has a quarter of it.
    """
    words = {"type": "string", "minLength": 1, "maxLength": chars // 4}
    evidence = {"type": "array", "items": words, "maxItems": _MOST_EVIDENCE}
    strength = _strength_schema()
    support = {"type": "string", "enum": list(get_args(Support))}
    properties: dict[str, Any] = {
        "harmful_evidence": evidence,
        "harmless_evidence": evidence,
        "precedents": object_schema({str(number): support for number in range(1, precedents + 1)}),
        "harmful_strength": strength,
        "harmless_strength": strength,
        "label": {"type": "string", "enum": ["harmful", "not harmful"]},
        "category": {"type": "string", "enum": [*policy.categories, _NONE]},
        "clause": {"type": "string", "enum": [*(clause.number for clause in policy.clauses), _NONE]},
        "target": {"type": "string", "enum": [*policy.targets, _NONE]},
        "rationale": {"type": "string", "minLength": 1, "maxLength": chars},
    }
    return object_schema(properties)


def question_schema(question: CourtQuestion, chars: int) -> dict[str, Any]:
    """JSON schema of a ruling on a further question; the reasons come first, for a model writes in order.

    Args:
        question: The question.
        chars: Longest rationale.
    """
    rationale = {"type": "string", "minLength": 1, "maxLength": chars}
    strength = _strength_schema()
    # Each option a name of its own in the schema, so that none can be left out.
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
    """JSON schema of an object that has all of these and nothing else, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def parse_description(text: str) -> str:
    """A description. Raises UnusableReply."""
    return parse(Description, text).description


def parse_answer(text: str) -> str:
    """An answer. Raises UnusableReply."""
    return parse(Answer, text).answer


def parse_question(text: str) -> str:
    """A question. Raises UnusableReply."""
    return parse(Question, text).question


def parse_argument(text: str) -> Argument:
    """A summary and justification. Raises UnusableReply."""
    return parse(Argument, text)


def parse_argument_on_claim(text: str) -> ArgumentOnClaim:
    """A summary and justification, and the claim that they rest on. Raises UnusableReply."""
    return parse(ArgumentOnClaim, text)


def parse_ruling(text: str, policy: Policy, precedents: int) -> Ruling:
    """A ruling about exactly the precedents that were shown, in words of the policy. Raises UnusableReply."""
    content = _object(text)
    # By exact words alone: a label or a strength that is nearly one of them is never guessed at (PI-5).
    for name in ("harmful_strength", "harmless_strength"):
        content[name] = _word(content, name, _STRENGTHS)
    labels = {"harmful": Label.HARMFUL, "not harmful": Label.NOT_HARMFUL}
    content["label"] = _word(content, "label", labels)
    for name in ("harmful_evidence", "harmless_evidence"):
        # The reply types are strict, and JSON has no tuples.
        if isinstance(content.get(name), list):
            content[name] = tuple(content[name])
    ruling = _valid(Ruling, content)
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
    """A ruling on a further question, in words of its options. Raises UnusableReply."""
    content = _object(text)
    field = "strengths" if question.sides is not None else "labels" if question.several else "label"
    # A reply that says more than was asked for may mean another answer than the one that would be read.
    if content.keys() != {"rationale", field}:
        _malformed(f"it must hold rationale and {field}, and nothing else")
    answer, strengths = content.pop(field), dict[str, OptionStrengths]()
    if question.weighed:
        if not isinstance(answer, dict) or answer.keys() != set(question.weighed):
            _malformed(f"{field} must name each of {', '.join(question.weighed)} once, and nothing else")
        strengths = _of_sides(question, answer) if question.sides is not None else _of_options(question, answer)
        # By the rule: where strengths are asked for, no model names the answer itself.
        chosen = options_that_fit(question, strengths)
    else:
        chosen = (_word({field: answer}, field, {option: option for option in question.options}),)
    return _valid(QuestionRuling, {**content, "chosen": chosen, "strengths": strengths})


def _of_sides(question: CourtQuestion, strengths: dict[str, Any]) -> dict[str, OptionStrengths]:
    """Strengths of two sides: what speaks for the one speaks against the other."""
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
    """A reply of this kind, and nothing else. Raises UnusableReply."""
    return _valid(kind, _object(text))


def _object(text: str) -> dict[str, Any]:
    if not text.strip():
        raise UnusableReply("REPLY_EMPTY", "it was empty")
    if len(text) > _MOST:
        _malformed("it was far too long")
    try:
        content = json.loads(
            _unwrapped(text), object_pairs_hook=_once, parse_constant=lambda _: _malformed("it held no number")
        )
    except (ValueError, RecursionError):
        # RecursionError comes from brackets that are nested deeper than the parser goes.
        _malformed("it was not valid JSON")
    if not isinstance(content, dict):
        _malformed("it was not a JSON object")
    return content


def _unwrapped(text: str) -> str:
    """The reply without a byte order mark, one closed block of thoughts before it, and one code fence around it.

    Servers that enforce no schema, or parse no reasoning, pass these on. Nothing else is taken off: of two objects in a
    reply it can't be known which one is meant.
    """
    bare = _THOUGHTS.sub("", text.lstrip("\ufeff").strip(), count=1)
    fenced = _FENCED.fullmatch(bare)
    return fenced["inside"] if fenced else bare


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a name that stands twice: which of two labels was meant can't be known."""
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
        # Where and which rule, never the words themselves: they would stand outside the fence.
        names = sorted({str(fault["loc"][0]) for fault in error.errors() if fault["loc"]} & set(kind.model_fields))
        extra = any(fault["type"] == "extra_forbidden" for fault in error.errors())
        if names:
            _malformed(f"{', '.join(names)} missing or not as asked")
        _malformed("it held names that were not asked for" if extra else "it was not as asked")
    # Here, while the reply can still be repaired: found by the record instead, it would end the trial.
    _writable(json.dumps(content, ensure_ascii=False, default=str))
    return reply


def _writable(text: str) -> str:
    """Refuses lone surrogates, which no record could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        _malformed("it held half a character")
    return text


def _malformed(what: str) -> NoReturn:
    raise UnusableReply("REPLY_MALFORMED", what)


def find_loop(text: str) -> int | None:
    """Returns the place at which a text has said a phrase once and begins to repeat it up to its end; None if none.

    Args:
        text: Text of a reply, cut or whole; the last repetition may be cut.
    """
    end = text[-_LOOP_END:]
    place = len(text) - len(end)
    # By the places at which the end of the text stands before: of most texts there are none.
    # Each search ends one character to the left of the last find, not one length: a phrase shorter than `end` makes it
    # overlap itself.
    while (place := text.rfind(end, max(0, len(text) - len(end) - _LONGEST_PHRASE), place + len(end) - 1)) >= 0:
        period = len(text) - len(end) - place
        fills = max(_REPETITIONS * period, _LEAST_REPEATED)
        # Finds farther to the left have longer periods, which need even more text.
        if fills > len(text):
            return None
        # Equal to itself moved by one period: a single comparison, however often the phrase stands there.
        if text[-fills:-period] == text[period - fills :]:
            start = len(text) - fills
            while start and text[start - 1] == text[start - 1 + period]:
                start -= 1
            return start + period
    return None


def find_loop_in_reply(reply: str) -> int | None:
    """Returns the place in a reply at which a loop begins; None if it has none.

    A string under a schema ends at its greatest length, and the reply goes on as if it were whole. So each stretch
    between quotation marks is looked at, beside the end of the reply.

    Args:
        reply: Reply as the model wrote it.
    """
    start = 0
    for piece in reply.split('"'):
        if (found := find_loop(piece)) is not None:
            return start + found
        start += len(piece) + 1
    return find_loop(reply)
