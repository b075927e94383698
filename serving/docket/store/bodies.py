"""Storage of entry bodies: compressed, with quoted content in separate entries so that it can be erased.

A trial's record quotes precedents, and documents that an expert witness read. Their texts, and the digests of their
pictures, are separate entries of the kind ``Part``, each stored once however often it is quoted; the quoting event
contains ``{"part": NUMBER}`` instead. So erasing a precedent or document removes it from every record that quoted it,
and every record still verifies. Empty texts stay in the body: an empty part stands for quotes of an erased precedent.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import lz4.block  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from court.events import AnyEvent, parse_event
from serving.docket.log.entries import SALT_SIZE, canonical_bytes, commitment_to, parse

PART = "Part"
"""Kind of the entries that contain a part."""
GONE = "[erased]"
"""Placeholder of an erased part."""

Part = tuple[str, str]
"""Id of a precedent, and a text of it or the digest of its picture; or id of a document, and a text of it."""

_QUOTES = ("PrecedentsCited", "VerdictGiven", "EvidenceSearched", "DocumentWeighed", "ClaimSettled")
_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
_PARALLEL_BYTES = 64 * 1024
"""Total bytes from which distributing bodies to several threads pays off."""
_HANDS = min(4, os.cpu_count() or 1)
_hands = ThreadPoolExecutor(_HANDS, thread_name_prefix="sealing")


@dataclass(frozen=True, slots=True)
class SealedBodies:
    """An entry's body, ready to be stored."""

    salt: bytes
    commitment: bytes
    stored: bytes


def seal_bodies(bodies: Sequence[bytes]) -> list[SealedBodies]:
    """Salts, commits to and compresses bodies.

    Hashing and compression release the interpreter lock, so that large batches are distributed to threads.
    """
    if sum(map(len, bodies)) < _PARALLEL_BYTES:
        return [*map(_sealed, bodies)]
    # Rounded up, so that there are never more shares than threads.
    share = -(-len(bodies) // _HANDS)
    shares = [bodies[first : first + share] for first in range(0, len(bodies), share)]
    others = [_hands.submit(list, map(_sealed, some)) for some in shares[1:]]
    # This thread does the first share itself, instead of only waiting for the others.
    return [*map(_sealed, shares[0]), *itertools.chain.from_iterable(other.result() for other in others)]


def _sealed(body: bytes) -> SealedBodies:
    salt = secrets.token_bytes(SALT_SIZE)
    return SealedBodies(salt, commitment_to(body, salt), bytes(lz4.block.compress(body)))


def packed(body: str) -> bytes:
    """Compresses a body for storage."""
    return bytes(lz4.block.compress(body.encode()))


def unpacked(stored: bytes) -> str:
    """Decompresses a stored body. Raises ValueError if it is invalid."""
    try:
        return bytes(lz4.block.decompress(stored)).decode()
    except (lz4.block.LZ4BlockError, MemoryError) as error:  # the data states its own length, which may be absurd
        raise ValueError("this is no stored body") from error


def part_key(part: Part) -> bytes:
    """Returns the lookup key of a part's entry."""
    of, value = part
    # The length makes the encoding unambiguous, as an id may contain spaces. Texts may contain lone surrogates, which
    # plain UTF-8 refuses.
    return sha256(f"{len(of)} {of} {value}".encode("utf-8", "surrogatepass")).digest()


def part_body(part: Part) -> bytes:
    """Returns the body of a part's entry."""
    of, value = part
    return canonical_bytes({"kind": PART, "of": of, "value": value})


def part_value(body: str) -> str:
    """Returns the content of a part's entry. Raises ValueError if it is invalid."""
    return _part_field(body, "value")


def part_owner(body: str) -> str:
    """Returns the owner of a part's text. Raises ValueError if the entry is invalid."""
    return _part_field(body, "of")


def _part_field(body: str, field: str) -> str:
    value = parse(body)
    if not isinstance(value, dict) or value.get("kind") != PART or not isinstance(value.get(field), str):
        raise ValueError("this is no part")
    return str(value[field])


def bodies(events: Sequence[AnyEvent], numbers: Callable[[Sequence[Part]], Mapping[Part, int]]) -> list[bytes]:
    """Builds the bodies of events' entries.

    Args:
        numbers: Returns the entry numbers of all parts; called at most once.
    """
    values = [event.model_dump(mode="json") for event in events]
    slots = [slot for value in values for slot in _slots(value) if slot[0][slot[1]]]  # empty texts stay in the body
    if slots:
        found = numbers(sorted({(of, holder[field]) for holder, field, of in slots}))
        for holder, field, of in slots:
            holder[field] = {"part": found[of, holder[field]]}
    return [canonical_bytes(value) for value in values]


def parts_in(kind: str, body: str) -> set[int]:
    """Returns the entry numbers of a body's parts. Raises ValueError if it is invalid."""
    # A fast check, and safe: canonical JSON writes references exactly so, and escapes quotes within texts.
    if kind not in _QUOTES or '{"part":' not in body:
        return set()
    return {holder[field]["part"] for holder, field, _ in _slots(parse(body)) if isinstance(holder[field], dict)}


def event_in(body: str, parts: Mapping[int, str]) -> AnyEvent:
    """Parses the event in a body. Raises ValueError if it is invalid.

    Args:
        parts: Content of the part entries, by number; a missing or empty one was erased.
    """
    # The common case: without parts or markers, the text is parsed directly.
    if '{"part":' not in body and '"$' not in body:
        return parse_event(body)
    value = parse(body)
    for holder, field, _ in _slots(value):
        if isinstance(holder[field], dict):
            holder[field] = parts.get(holder[field]["part"]) or GONE
    return _EVENT.validate_python(value)


def quotes_erased(events: Iterable[AnyEvent]) -> bool:
    """True if events quote a precedent or a document that was erased."""
    quoting = (event.model_dump(mode="json") for event in events if event.kind in _QUOTES)
    return any(holder[field] == GONE for value in quoting for holder, field, _ in _slots(value))


def document_owner(document_id: str) -> str:
    """Returns the owner of a document's parts, which is distinct from all precedents."""
    return f"document:{document_id}"


def is_document(owner: str) -> bool:
    """True if an owner of parts is a document."""
    return owner.startswith(document_owner(""))


def _slots(value: Any) -> Iterator[tuple[Any, str | int, str]]:
    """Yields the places where an event may quote: object or list, its field or index, and the owner of the text.

    For a value that is not an event, yields only well-formed places.
    """
    match value.get("kind") if isinstance(value, dict) else None:
        case "PrecedentsCited":
            findings = _object(value.get("findings"))
            quoted = [*_list(findings.get("exhibits")), findings.get("nearest_harmful"), findings.get("nearest_benign")]
            yield from _fields(quoted, "text", "id", str)
        case "VerdictGiven":
            yield from _fields(_list(_object(value.get("ruling")).get("precedents")), "picture", "id", str)
            for finding in _list(_object(value.get("verdict")).get("claims")):
                yield from _fields(_list(_object(finding).get("evidence")), "quote", "document", document_owner)
        case "EvidenceSearched":
            yield from _fields(_list(value.get("hits")), "snippet", "id", document_owner)
        case "ClaimSettled":
            yield from _fields(_list(value.get("evidence")), "quote", "document", document_owner)
        case "DocumentWeighed":
            yield from _fields([value], "text", "document", document_owner)
            quotes = _list(value.get("quotes"))
            if isinstance(value.get("document"), str):
                yield from ((quotes, index, document_owner(value["document"])) for index in range(len(quotes)))


def _fields(
    quoted: Sequence[Any], field: str, name: str, owner: Callable[[str], str]
) -> Iterator[tuple[Any, str | int, str]]:
    for one in quoted:
        if isinstance(one, dict) and field in one and isinstance(one.get(name), str):
            yield one, field, owner(one[name])


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
