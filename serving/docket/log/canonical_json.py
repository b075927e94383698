r"""Canonical JSON (RFC 8785) of anything that JSON-like values of Python can hold.

RFC 8785 has no NaN and no infinities, no integers beyond 2^53 - 1 and no lone surrogates: what models and callers say
may hold all of these. They are marked, so that they can be written down and read back as they were:

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

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import rfc8785

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
