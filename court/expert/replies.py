"""Strict parsing of the expert witness's replies, and verification of quotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from court import replies
from court.events import CheckableClaim
from court.prompts import neutralise
from court.replies import TextBounds, UnusableReply, Words
from court.verdict import ClaimLabel

# More than the schema allows: a server without schemas may send more, which is truncated instead of rejected.
_MOST_STATEMENTS = 20
_MORE_STATEMENTS = 3
"""Statements requested in addition to the claims to check, as some are opinions."""
MOST_QUERIES = 4
MOST_NEXT = 2
_MOST_QUOTES = 3
_MOST_FINAL_QUOTES = 6
# Shorter ones occur in nearly every document and prove nothing.
_LEAST_QUOTE = 12
_MOST_QUERY = 200
_MOST_LENGTH = 1000
# Labels as the prompts write them; the record has its own names, which must not change with the prompts.
_LABELS = {"supported": ClaimLabel.SUPPORTED, "refuted": ClaimLabel.REFUTED, "not enough": ClaimLabel.NOT_ENOUGH}

_Label = Literal["supported", "refuted", "not enough"]
_Query = Annotated[Words, TextBounds(most=_MOST_QUERY), Field(max_length=_MOST_QUERY)]
_Quote = Annotated[str, TextBounds(4), Field(max_length=_MOST_LENGTH)]


class _Statement(replies.Reply):
    words: Annotated[str, TextBounds(4, least=0)] = Field(max_length=_MOST_LENGTH)
    claim: Words = Field(max_length=_MOST_LENGTH)
    kind: Literal["fact", "opinion", "joke", "wish"]


class _Statements(replies.Reply):
    statements: list[_Statement] = Field(max_length=_MOST_STATEMENTS)


class _Queries(replies.Reply):
    queries: list[_Query] = Field(max_length=_MOST_STATEMENTS)


class _Order(replies.Reply):
    order: list[int]


class _Comprehensible(replies.Reply):
    comprehensible: bool


class _Helpful(replies.Reply):
    new: bool
    useful: bool
    quotes: list[_Quote] = Field(max_length=_MOST_QUOTES)


class _Sufficient(replies.Reply):
    label: _Label
    enough: bool


class _Weighed(_Sufficient, _Helpful, _Comprehensible):
    # Fields of the last base come first, and models write them in sequence: quotations come before conclusions.
    next: list[_Query] = Field(max_length=MOST_NEXT)


_ABOUT_DOCUMENT: dict[str, type[replies.Reply]] = {
    "weigh": _Weighed,
    "comprehensible": _Comprehensible,
    "helpful": _Helpful,
    "sufficient": _Sufficient,
}


class _FinalQuote(replies.Reply):
    document: int
    quote: _Quote


class _Classified(replies.Reply):
    quotes: list[_FinalQuote] = Field(max_length=_MOST_FINAL_QUOTES)
    label: _Label


@dataclass(frozen=True, slots=True)
class Statements:
    """The claims of fact among a meme's statements."""

    claims: tuple[CheckableClaim, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Weighing:
    """Answers about a document, from one or several calls."""

    comprehensible: bool = False
    helpful: bool = False
    quotes: tuple[str, ...] = ()
    leaning: ClaimLabel | None = None
    enough: bool | None = None
    queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Classification:
    """A final answer about a claim; each verified passage has the index of its document."""

    label: ClaimLabel
    quotes: tuple[tuple[int, str], ...]
    dropped: int


def statements_schema(most: int, chars: int) -> dict[str, Any]:
    """JSON schema of a meme's statements."""
    # Records pin the bytes of a schema, in which this field has had its bounds in this order.
    claim = {"type": "string", "maxLength": chars // 4, "minLength": 1}
    statement = replies.schema_of(_Statement, chars, claim=claim)
    return replies.object_schema({"statements": replies.array_schema(statement, most + _MORE_STATEMENTS)})


def queries_schema(most: int) -> dict[str, Any]:
    """JSON schema of queries."""
    return replies.object_schema(
        {"queries": {**replies.schema_of(_Queries, 0)["properties"]["queries"], "maxItems": most}}
    )


def order_schema(hits: int) -> dict[str, Any]:
    """JSON schema of an order of results."""
    number = {"type": "integer", "minimum": 1, "maximum": hits}
    return replies.object_schema({"order": replies.array_schema(number, hits)})


def weighing_schema(task: str, chars: int) -> dict[str, Any]:
    """JSON schema of the answers about a document: ``weigh``, ``comprehensible``, ``helpful``, ``sufficient``."""
    return replies.schema_of(_ABOUT_DOCUMENT[task], chars)


def classification_schema(documents: int, chars: int) -> dict[str, Any]:
    """JSON schema of a finding: quotations before the label, as a model writes in order."""
    number = {"type": "integer", "minimum": 1, "maximum": documents}
    quote = replies.schema_of(_FinalQuote, chars, document=number)
    return replies.schema_of(_Classified, chars, quotes=replies.array_schema(quote, _MOST_FINAL_QUOTES))


def parse_statements(reply: str, most: int, *texts: str) -> Statements:
    """Parses the claims of fact in a reply. Raises UnusableReply."""
    statements = replies.parse(_Statements, reply).statements
    # Filtered before truncation, so that opinions do not displace claims.
    facts = [statement for statement in statements if statement.kind == "fact"]
    # A claim whose words are not found in the meme is still checked, without a span.
    claims = tuple(
        CheckableClaim(number=number, text=fact.claim, span=fact.words if stands_in(fact.words, *texts) else "")
        for number, fact in enumerate(facts[:most], 1)
    )
    return Statements(claims, len(statements) - len(facts))


def parse_queries(reply: str, most: int) -> tuple[str, ...]:
    """Parses distinct queries. Raises UnusableReply."""
    return _each_once(replies.parse(_Queries, reply).queries)[:most]


def _each_once(queries: Sequence[str]) -> tuple[str, ...]:
    """Removes queries that differ only in case; keeps the order."""
    known: dict[str, str] = {}
    for query in queries:
        # Keeps the first spelling.
        known.setdefault(query.casefold(), query)
    return tuple(known.values())


def parse_order(reply: str, hits: int) -> tuple[int, ...]:
    """Parses a ranking of results, counted from 1; omitted results come last. Raises UnusableReply."""
    order = replies.parse(_Order, reply).order
    if len(set(order)) < len(order) or not all(1 <= number <= hits for number in order):
        raise UnusableReply("REPLY_MALFORMED", f"order must name each of the {hits} results at most once")
    # A model that names only the best results has not rejected the others.
    return (*order, *(number for number in range(1, hits + 1) if number not in order))


def parse_weighing(task: str, reply: str) -> Weighing:
    """Parses answers about a document. Raises UnusableReply. Tasks as for :func:`weighing_schema`."""
    match task:
        case "comprehensible":
            return Weighing(comprehensible=replies.parse(_Comprehensible, reply).comprehensible)
        case "helpful":
            helped = replies.parse(_Helpful, reply)
            return Weighing(helpful=helped.new and helped.useful, quotes=tuple(helped.quotes))
        case "sufficient":
            settled = replies.parse(_Sufficient, reply)
            return Weighing(leaning=_LABELS[settled.label], enough=settled.enough)
        case _:
            parsed = replies.parse(_Weighed, reply)
            return Weighing(
                comprehensible=parsed.comprehensible,
                helpful=parsed.comprehensible and parsed.new and parsed.useful,
                quotes=tuple(parsed.quotes),
                leaning=_LABELS[parsed.label],
                enough=parsed.enough,
                queries=_each_once(parsed.next),
            )


def parse_classification(reply: str, texts: Sequence[str], *, last: bool) -> Classification:
    """Parses a finding and verifies its quotations.

    Raises:
        UnusableReply: The reply can't be parsed, or has no verified quotation.
    """
    # If no quotation occurs in its document, the finding is requested again; if there still is none, the label becomes
    # "not enough".
    parsed = replies.parse(_Classified, reply)
    # Checked before use as an index, where 0 would mean the last document.
    if not all(1 <= quoted.document <= len(texts) for quoted in parsed.quotes):
        raise UnusableReply("REPLY_MALFORMED", f"document must be a number from 1 to {len(texts)}")
    # Distinct quotations, in the order of the reply.
    standing = dict.fromkeys(
        (quoted.document - 1, quoted.quote)
        for quoted in parsed.quotes
        if _is_quote(quoted.quote, texts[quoted.document - 1])
    )
    label = _LABELS[parsed.label]
    if label is not ClaimLabel.NOT_ENOUGH and not standing:
        if not last:
            raise UnusableReply(
                "REPLY_MALFORMED", "no quote stands in its document; copy each letter for letter from where it stands"
            )
        # The label may rest on the model's memory, which nobody could verify without a passage.
        label = ClaimLabel.NOT_ENOUGH
    return Classification(label, tuple(standing), len(parsed.quotes) - len(standing))


def standing_quotes(quotes: Sequence[str], text: str) -> tuple[str, ...]:
    """Returns the distinct quotations that occur in a text."""
    return tuple(dict.fromkeys(quote for quote in quotes if _is_quote(quote, text)))


def _is_quote(quote: str, text: str) -> bool:
    # A single word occurs in nearly every document.
    return len(_spaced(quote)) >= _LEAST_QUOTE and stands_in(quote, text)


def stands_in(quote: str, *texts: str) -> bool:
    """True if a quotation occurs in one of the texts, verbatim or neutralised; white space may differ."""
    words = _spaced(quote)
    # In both forms: the model saw the text in a fence, where control tokens and fence marks are neutralised (PI-1 to
    # PI-3).
    return bool(words) and any(words in _spaced(shown) for text in texts for shown in (text, neutralise(text)))


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
