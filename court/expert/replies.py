"""Replies of the expert witness, read as strictly as those of the court, and the check that a quotation is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from court import replies
from court.events import CheckableClaim
from court.replies import UnusableReply, Words
from court.untrusted import neutralise
from court.verdict import ClaimLabel

# Wider than what the schema asks for: a server without schemas may send more, which is cut off and not refused.
_MOST_STATEMENTS = 20
_MORE_STATEMENTS = 3
"""Statements that are asked for beyond the claims that are checked: some are opinions."""
MOST_QUERIES = 4
"""Queries that the witness plans at first, at most."""
MOST_NEXT = 2
"""Further queries after a document, at most."""
_MOST_QUOTES = 3
_MOST_FINAL_QUOTES = 6
# Shorter ones stand in nearly every document, and prove nothing about it.
_LEAST_QUOTE = 12
"""Characters of a quotation, at least."""
_MOST_QUERY = 200
_MOST_LENGTH = 1000
# Words of the prompts; the record has names of its own, which must not change with them.
_LABELS = {"supported": ClaimLabel.SUPPORTED, "refuted": ClaimLabel.REFUTED, "not enough": ClaimLabel.NOT_ENOUGH}

_Label = Literal["supported", "refuted", "not enough"]
_Query = Annotated[Words, Field(max_length=_MOST_QUERY)]
_Quote = Annotated[str, Field(max_length=_MOST_LENGTH)]


class _Statement(replies.Reply):
    words: str = Field(max_length=_MOST_LENGTH)
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


class _Weighed(replies.Reply):
    comprehensible: bool
    new: bool
    useful: bool
    quotes: list[_Quote] = Field(max_length=_MOST_QUOTES)
    label: _Label
    enough: bool
    next: list[_Query] = Field(max_length=MOST_NEXT)


class _FinalQuote(replies.Reply):
    document: int
    quote: _Quote


class _Classified(replies.Reply):
    quotes: list[_FinalQuote] = Field(max_length=_MOST_FINAL_QUOTES)
    label: _Label


@dataclass(frozen=True, slots=True)
class Statements:
    """The claims of fact among a meme's statements.

    Attributes:
        claims: Claims that are checked.
        left_out: Number of statements that are opinions, jokes or wishes.
    """

    claims: tuple[CheckableClaim, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Weighing:
    """Answers about a document, of one call or of several.

    Attributes:
        comprehensible: True if it can be understood.
        helpful: True if it says something that is new and useful.
        quotes: Passages that were named, unchecked.
        leaning: Label by the evidence with it; None where that was not asked.
        enough: True if the evidence is enough; None where that was not asked.
        queries: Further queries.
    """

    comprehensible: bool = False
    helpful: bool = False
    quotes: tuple[str, ...] = ()
    leaning: ClaimLabel | None = None
    enough: bool | None = None
    queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Classification:
    """A final answer about a claim.

    Attributes:
        label: The label.
        quotes: Passages that stand in their documents, each with the place of its document in the evidence.
        dropped: Number of passages that do not.
    """

    label: ClaimLabel
    quotes: tuple[tuple[int, str], ...]
    dropped: int


def statements_schema(most: int, chars: int) -> dict[str, Any]:
    """JSON schema of a meme's statements."""
    words = {"type": "string", "maxLength": chars // 4}
    statement = replies.object_schema(
        {
            "words": words,
            "claim": {**words, "minLength": 1},
            "kind": {"type": "string", "enum": ["fact", "opinion", "joke", "wish"]},
        }
    )
    return replies.object_schema(
        {"statements": {"type": "array", "items": statement, "maxItems": most + _MORE_STATEMENTS}}
    )


def queries_schema(most: int) -> dict[str, Any]:
    """JSON schema of queries."""
    return replies.object_schema({"queries": _queries(most)})


def _queries(most: int) -> dict[str, Any]:
    query = {"type": "string", "minLength": 1, "maxLength": _MOST_QUERY}
    return {"type": "array", "items": query, "maxItems": most}


def order_schema(hits: int) -> dict[str, Any]:
    """JSON schema of an order of results."""
    number = {"type": "integer", "minimum": 1, "maximum": hits}
    return replies.object_schema({"order": {"type": "array", "items": number, "maxItems": hits}})


def weighing_schema(task: str, chars: int) -> dict[str, Any]:
    """JSON schema of what is asked about a document.

    Args:
        task: ``weigh``, ``comprehensible``, ``helpful`` or ``sufficient``.
        chars: Longest text that is asked for; a quotation has a quarter of it.
    """
    yes = {"type": "boolean"}
    quote = {"type": "string", "minLength": 1, "maxLength": chars // 4}
    fields: dict[str, dict[str, Any]] = {
        "comprehensible": yes,
        "new": yes,
        "useful": yes,
        # In this order, for models write fields in turn: what the document says comes before what follows from it.
        "quotes": {"type": "array", "items": quote, "maxItems": _MOST_QUOTES},
        "label": {"type": "string", "enum": [*_LABELS]},
        "enough": yes,
        "next": _queries(MOST_NEXT),
    }
    properties = {
        "weigh": tuple(fields),
        "comprehensible": ("comprehensible",),
        "helpful": ("new", "useful", "quotes"),
        "sufficient": ("label", "enough"),
    }[task]
    return replies.object_schema({name: fields[name] for name in properties})


def classification_schema(documents: int, chars: int) -> dict[str, Any]:
    """JSON schema of a finding: its quotations before its label, for a model writes in order."""
    quote = replies.object_schema(
        {
            "document": {"type": "integer", "minimum": 1, "maximum": documents},
            "quote": {"type": "string", "minLength": 1, "maxLength": chars // 4},
        }
    )
    return replies.object_schema(
        {
            "quotes": {"type": "array", "items": quote, "maxItems": _MOST_FINAL_QUOTES},
            "label": {"type": "string", "enum": [*_LABELS]},
        }
    )


def parse_statements(reply: str, most: int, *texts: str) -> Statements:
    """The claims of fact in a reply. Raises UnusableReply.

    Args:
        reply: Reply of the model.
        most: Largest number of claims.
        texts: Text and description, in which the words of a claim have to stand.
    """
    statements = replies.parse(_Statements, reply).statements
    # Filtered before it is cut: opinions must not take the places of claims.
    facts = [statement for statement in statements if statement.kind == "fact"]
    # A claim whose words stand nowhere in the meme is checked all the same, without a place in it.
    claims = tuple(
        CheckableClaim(number=number, text=fact.claim, span=fact.words if stands_in(fact.words, *texts) else "")
        for number, fact in enumerate(facts[:most], 1)
    )
    return Statements(claims, len(statements) - len(facts))


def parse_queries(reply: str, most: int) -> tuple[str, ...]:
    """Queries, each once. Raises UnusableReply."""
    return _each_once(replies.parse(_Queries, reply).queries)[:most]


def _each_once(queries: Sequence[str]) -> tuple[str, ...]:
    """Queries that differ in more than the size of letters, in order."""
    known: dict[str, str] = {}
    for query in queries:
        # The first spelling stays, since it is the one that stands in the reply on record.
        known.setdefault(query.casefold(), query)
    return tuple(known.values())


def parse_order(reply: str, hits: int) -> tuple[int, ...]:
    """An order of results, counted from 1: those that it does not name come after it. Raises UnusableReply."""
    order = replies.parse(_Order, reply).order
    if len(set(order)) < len(order) or not all(1 <= number <= hits for number in order):
        raise UnusableReply("REPLY_MALFORMED", f"order must name each of the {hits} results at most once")
    # A model that names only the best has not refused the others: they are read after them.
    return (*order, *(number for number in range(1, hits + 1) if number not in order))


def parse_weighing(task: str, reply: str) -> Weighing:
    """Answers about a document. Raises UnusableReply. Tasks as for :func:`weighing_schema`."""
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
    """A finding, with its quotations checked.

    Where none of its quotations stands in its document, the finding is asked for again; if there still is none, there
    is not enough evidence that anybody could read.

    Args:
        reply: Reply of the model.
        texts: Texts of the evidence, in order.
        last: True if it is not asked for again.

    Raises:
        UnusableReply: The reply can't be read, or rests on no passage of any document.
    """
    parsed = replies.parse(_Classified, reply)
    # Before any number is used as an index, by which 0 would be the last document.
    if not all(1 <= quoted.document <= len(texts) for quoted in parsed.quotes):
        raise UnusableReply("REPLY_MALFORMED", f"document must be a number from 1 to {len(texts)}")
    # A quotation counts once, and in the order of the reply.
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
        # A label may rest on what the model remembers; without a passage nobody could check it.
        label = ClaimLabel.NOT_ENOUGH
    return Classification(label, tuple(standing), len(parsed.quotes) - len(standing))


def standing_quotes(quotes: Sequence[str], text: str) -> tuple[str, ...]:
    """Quotations that stand in a text, each once."""
    return tuple(dict.fromkeys(quote for quote in quotes if _is_quote(quote, text)))


def _is_quote(quote: str, text: str) -> bool:
    # A single word stands in nearly every document.
    return len(_spaced(quote)) >= _LEAST_QUOTE and stands_in(quote, text)


def stands_in(quote: str, *texts: str) -> bool:
    """True if a quotation stands in one of the texts, as it is or as a fence shows it; white space may differ."""
    words = _spaced(quote)
    # In both forms: the model saw the text in a fence, where control tokens and fence posts are made harmless
    # (PI-1 to PI-3).
    return bool(words) and any(words in _spaced(shown) for text in texts for shown in (text, neutralise(text)))


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
