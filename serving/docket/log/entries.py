r"""Entries of the log: a header that stays, and a body that may be erased.

A leaf of the tree is a header. It contains a commitment to the body, made with a salt that is stored with the body:
with both, anyone can verify that the body is the logged one; without them, nothing about the body can be learned or
guessed, and everything else still verifies.

Bodies are canonical JSON (RFC 8785) of anything that JSON-like values of Python can hold. RFC 8785 has no NaN and no
infinities, no integers beyond 2^53 - 1 and no lone surrogates: what models and callers say may hold all of these.
They are marked, so that they can be written down and read back as they were:

==========================  =============================
value                       is written as
==========================  =============================
``nan``, ``inf``, ``-inf``  ``{"$float": "nan"}``
``12345678901234567890``    ``{"$int": "12345678901234567890"}``
text with a lone surrogate  ``{"$text": "…"}``, each as ``\udXXX`` and each backslash doubled
an object's key with one    ``$text:…`` in the same way
a key that begins with $    with one ``$`` more
==========================  =============================

One thing is not kept: JSON has one kind of number, so that ``1.0`` comes back as ``1``, and ``-0.0`` as ``0``.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

import orjson
import rfc8785
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter

from court.events import AnyEvent, parse_event
from court.values import Value
from serving.docket.log.errors import BadEntry
from serving.docket.log.merkle import leaf_hash

_LARGEST = 2**53 - 1  # beyond it a double does not tell neighbouring integers apart
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|ud[89a-f][0-9a-f]{2})")
_TEXT_KEY = "$text:"
_MANY_KEYS = 64  # objects with more keys are not cached
_DERIVED: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    dict: dict,
    int: int,
    float: float,
    list: list,
    tuple: tuple,
}
"""Conversions of subclasses to their known base types."""
_MARKS = frozenset({"$float", "$int", "$text"})


def canonical(value: Any) -> str:
    """The canonical JSON of a value. Raises TypeError as :func:`canonical_bytes`."""
    return canonical_bytes(value).decode()


def canonical_bytes(value: Any) -> bytes:
    """The canonical JSON of a value, in UTF-8.

    Raises:
        TypeError: The value contains something other than None, bool, int, float, str, list, tuple, or dict with text
            keys.
    """
    unlike: list[Any] = []
    made = _made(value, unlike)
    if not unlike:
        with suppress(TypeError):  # nested deeper than it goes
            return orjson.dumps(made)
    return rfc8785.dumps(made)


def to_canonical(value: Any) -> Any:
    """The value, with what RFC 8785 does not take marked; :func:`from_canonical` turns it back.

    Raises TypeError as above.
    """
    return _made(value, [])


def from_canonical(value: Any) -> Any:
    """The value that :func:`to_canonical` was given.

    Raises:
        ValueError: The bytes are not canonical JSON.
    """
    if isinstance(value, list):
        return [from_canonical(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (mark := next(iter(value))) in _MARKS:
        return _unmarked(mark, value[mark])
    return {_plain_key(key): from_canonical(one) for key, one in value.items()}


def parse(text: str) -> Any:
    """Parses canonical JSON. Raises ValueError if the text is not canonical JSON."""
    value = json.loads(text, parse_int=_number)
    # Marks and escaped keys are all keys that begin with $, which canonical JSON writes like this.
    return from_canonical(value) if '"$' in text else value


def _made(value: Any, unlike: list[Any]) -> Any:
    """Returns the JSON form of a value.

    orjson writes RFC 8785 many times as fast as a library in Python, but for very large and very small numbers and the
    order of keys beyond ASCII: what it would write otherwise is put into ``unlike``.
    """
    kind = type(value)
    if kind is str:
        return value if _well_formed(value) else {"$text": _escape(value)}
    if kind is dict:
        keys = tuple(value)
        # Objects with very many keys rarely recur, and would fill the cache with untrusted input.
        order = _order(keys) if len(keys) <= _MANY_KEYS else _order.__wrapped__(keys)
        unlike += order.unlike
        made = {}
        for key, written in order.keys:
            one = value[key]
            # Most of it, and as it is.
            plain_text = type(one) is str and one.isascii()
            made[written] = one if plain_text or one is None else _made(one, unlike)
        return made
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_LARGEST <= value <= _LARGEST else {"$int": str(value)}
    if kind is float:
        if not math.isfinite(value):
            return {"$float": str(value)}
        size = abs(value)
        # RFC 8785 writes 1.0 as 1, which orjson does not.
        if size <= _LARGEST and value.is_integer():
            return int(value)
        # Beyond these bounds numbers get an exponent, which orjson begins and writes differently from RFC 8785.
        if not 1e-4 <= size <= _LARGEST:
            unlike.append(value)
        return value
    if kind is list or kind is tuple:
        return [_made(one, unlike) for one in value]
    for known, plain_of in _DERIVED.items():
        if isinstance(value, known):
            return _made(plain_of(value), unlike)
    raise TypeError(f"{kind.__name__} can't be written as JSON")


@dataclass(frozen=True, slots=True)
class _Order:
    """Keys of an object, each with what is written for it, in the order in which they are written."""

    keys: tuple[tuple[str, str], ...]
    unlike: tuple[str, ...]


@lru_cache(4096)  # few sets of keys, often repeated
def _order(keys: tuple[Any, ...]) -> _Order:
    written = sorted(((key, _loggable_key(key)) for key in keys), key=lambda each: each[1])
    # Python sorts by code points and RFC 8785 by UTF-16 units: beyond ASCII these may differ.
    return _Order((*written,), tuple([as_is for _, as_is in written if not as_is.isascii()]))


def _number(digits: str) -> int | float:
    number = int(digits)
    return number if abs(number) <= _LARGEST else float(digits)  # such an int would have been marked


def _unmarked(mark: str, text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError(f"{mark} marks a text, and this is none")
    if mark == "$text":
        return _unescape(text)
    return int(text) if mark == "$int" else float(text)


def _loggable_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError("keys of JSON objects are text")
    if not _well_formed(key):
        return _TEXT_KEY + _escape(key)
    return "$" + key if key.startswith("$") else key


def _plain_key(key: str) -> str:
    if key.startswith(_TEXT_KEY):
        return _unescape(key.removeprefix(_TEXT_KEY))
    if not key.startswith("$"):
        return key
    if not key.startswith("$$"):
        raise ValueError(f"{key} is no mark that is known")
    return key[1:]


def _well_formed(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()  # ten times as fast as to search
    except UnicodeEncodeError:
        return False
    return True


def _escape(text: str) -> str:
    # Backslashes are doubled before the escapes of surrogates add some that are not.
    return _LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\\", "\\\\"))


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), text)


FORMAT = 1
"""Format of headers, included in each."""
SALT_SIZE = 32
"""Size of a salt in bytes."""
NO_SEQ = -1
"""Sequence number of entries that are not events of a trial."""


_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log.

    Attributes:
        number: Position in the log, counted from 0 without gaps.
        seq: Position among the events of the trial, counted from 0 without gaps; -1 if it is not an event.
        at: Time of the event as text: ISO 8601, UTC.
        commitment: HMAC-SHA256 of the body under the salt, 32 bytes.
        body: Content of the event as canonical JSON; None once it is erased.
        salt: 32 random bytes; None once the body is erased.
    """

    number: int
    kind: str
    trial_id: str
    seq: int
    at: str
    commitment: bytes
    body: str | None
    salt: bytes | None

    def header(self) -> bytes:
        """Returns the entry's permanent header: canonical JSON, the data of the leaf."""
        # Quicker than canonical_bytes: nothing here has to be marked, and the keys are in order.
        return orjson.dumps(
            {
                "at": self.at,
                "commitment": self.commitment.hex(),
                "kind": self.kind,
                "number": self.number,
                "seq": self.seq,
                "trial": self.trial_id,
                "v": FORMAT,
            }
        )

    def leaf(self) -> bytes:
        """Returns the hash of its leaf."""
        return leaf_hash(self.header())

    @property
    def erased(self) -> bool:
        """True if the body was erased."""
        return self.body is None and self.salt is None


class _OwnEntry(Value):
    trial_id: str
    at: AwareDatetime


class PictureShown(_OwnEntry):
    """Somebody viewed an unblurred picture of a trial, or on a case its text."""

    kind: Literal["PictureShown"] = "PictureShown"
    who: str = Field(min_length=1)
    what: str
    """Shown content: ``meme`` (with its text), ``text``, ``precedent:`` and its id, or ``all`` of these at once."""


class Erased(_OwnEntry):
    """Bodies of entries were erased. Its own body never is; bodies missing without such an entry were tampered with."""

    kind: Literal["Erased"] = "Erased"
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    numbers: tuple[int, ...]
    """Numbers of the entries whose bodies were erased, ascending."""
    buried: int = 0
    """Number of precedents of which nothing is stored any more, even if quoted later."""
    left: dict[str, str | bool | None] = Field(default_factory=dict)
    """Remaining row of the trial in the listing, which can't be derived any more; empty if no trial was erased."""


class PrecedentChanged(_OwnEntry):
    """A precedent of the served library was changed; only recorded if webhook receivers subscribe to it."""

    kind: Literal["PrecedentChanged"] = "PrecedentChanged"
    trial_id: Literal[""] = ""
    precedent_id: str = Field(min_length=1)
    change: Literal["add", "remove", "relabel", "revoke"]
    library: str
    """Name of the library."""
    number: int = Field(ge=1)
    """Number of the change in the library's history."""


class KeyRotated(_OwnEntry):
    """The docket's checkpoints are signed with another key from here on; see :mod:`serving.docket.log.rotation`."""

    kind: Literal["KeyRotated"] = "KeyRotated"
    trial_id: Literal[""] = ""
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    compromised: bool = False
    """True if the retired key may have leaked."""
    note: str
    """Statement of the rotation, signed by both keys."""


class SampleCommitted(_OwnEntry):
    """A sample of trials is to be drawn by the value that a public beacon gives later, and by nothing else."""

    kind: Literal["SampleCommitted"] = "SampleCommitted"
    trial_id: Literal[""] = ""
    who: str = Field(min_length=1)
    checkpoint: str
    """Signed checkpoint of the log that is drawn from."""
    count: int = Field(ge=1)
    """Number of trials to draw."""
    beacon: str = Field(min_length=1)
    """Name or address of the beacon."""
    round: int = Field(ge=0)
    due: AwareDatetime
    """Time before which nobody knows the round's value."""


OWN_KINDS = frozenset({"PictureShown", "Erased", "Part", "PrecedentChanged", "KeyRotated", "SampleCommitted"})
"""Kinds of entries that are not events of a trial."""


def commitment_to(body: bytes, salt: bytes) -> bytes:
    """Returns the header's commitment to a UTF-8 body."""
    return hmac.digest(salt, body, sha256)


def check(entry: Entry) -> None:
    """Verifies that the body matches the header's commitment and fields.

    An erased body is accepted: only the whole log shows whether it was erased properly.

    Raises:
        BadEntry: The entry is inconsistent; the message says how.
    """
    if entry.erased:
        return
    # An erasure removes both, so a remaining one indicates tampering.
    if entry.body is None or entry.salt is None:
        raise BadEntry(f"Entry {entry.number} has lost its {'body' if entry.body is None else 'salt'}.")
    if not hmac.compare_digest(commitment_to(entry.body.encode(), entry.salt), entry.commitment):
        raise BadEntry(f"The body of entry {entry.number} is not the one that was logged.")


def body_of(value: BaseModel) -> str:
    """Builds the body of an entry for an event, or for one of our own kinds."""
    return canonical(value.model_dump(mode="json"))


def event_of(body: str) -> AnyEvent:
    """Parses the event in a body. Raises ValueError (or its subclass ValidationError) if it is invalid."""
    # Markers stand for values that JSON can't represent, so such a body needs the slower parser.
    return _EVENT.validate_python(parse(body)) if '"$' in body else parse_event(body)


def erased_of(body: str) -> Erased:
    """Parses the body of an erasure entry. Raises BadEntry if it is invalid."""
    try:
        return Erased.model_validate(parse(body))
    # RecursionError: a body may be nested too deeply for the parser.
    except (ValueError, RecursionError):
        raise BadEntry("An entry that says what was erased can't be read.") from None
