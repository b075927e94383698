"""Cells of rows that strangers wrote: the text of a cell, and its place in the name of a file."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Mapping
from typing import Any

from court.errors import BadText
from court.meme import LIMITS, check_text

Record = Mapping[str, Any]
"""A row: cells by column. Names that begin with ``@`` are made by a reader: ``@row``, ``@key``, ``@language``."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_JOINED = re.compile(r"(?<=[^\W_])[-_]+(?=[^\W_])")
"""Hyphens and underscores between words, but not the minus sign of a number."""
_WHOLE = re.compile(r"(-?\d+)(?:\.0*|,00?)")
"""A whole number written with a fraction, as by pandas or, with a decimal comma, by spreadsheets in many locales."""
MISSING_WORDS = frozenset({"", "nan", "none", "na", "null", "-"})
"""Words that tools write for a missing value, in lower case; a label that is named is one all the same."""


class BadCell(Exception):
    """An unusable cell.

    Attributes:
        column: Column of the cell; empty for the row as a whole.
        reason: Fault of the cell, without its content.
    """

    def __init__(self, reason: str, column: str = "") -> None:
        super().__init__(f"column {column}: {reason}" if column else reason)
        self.column = column
        self.reason = reason


def is_missing(value: Any) -> bool:
    """True for a cell without a value: None, blank, or NaN."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, float) and math.isnan(value))


def word_of(value: Any, column: str) -> str | None:
    """The text of a cell; None if there is no value.

    Whole numbers are written without a fraction: pandas writes 1.0 if the column has missing values.

    Raises:
        BadCell: The cell holds a list or an object.
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    # Before the numbers: bool is a subclass of int, and True would become "1".
    if isinstance(value, bool):
        # Lower case, as in JSON: cards name labels by text, and Python's "True" would match none of them.
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes):
        # Bytes are pictures in Parquet files: decoded, they would put binary junk into a label or text.
        raise BadCell("it holds bytes where a text is expected", column)
    raise BadCell("it holds a list or an object where one value is expected", column)


def plain_word(value: Any) -> str | None:
    """A label in lower case with single spaces, whole numbers without a fraction; None for other types.

    pandas writes whole numbers as 1.0 if others in the column are missing. The sign of a negative number is kept.
    """
    if value is None:
        return ""
    # Checked before numbers, because a bool is an int.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        return None
    word = " ".join(_JOINED.sub(" ", str(value)).lower().split())
    return whole[1] if (whole := _WHOLE.fullmatch(word)) else word


def label_of(value: Any, named: Container[str] = ()) -> str | None:
    """A label as labels are compared, without regard to case, spaces, ``_`` and ``-``; None for a missing value.

    Args:
        named: Labels, in plain words, that a card or an option names: they are labels even if they look like a missing
            value, such as ``none``.

    Raises:
        BadCell: The cell holds a list, an object or bytes.
    """
    if is_missing(value):
        return None
    word = plain_word(value)
    if word is None:
        word = plain_word(word_of(value, "")) or ""
    return None if word in MISSING_WORDS and word not in named else word


def text_of(value: Any, column: str) -> str:
    """The text of a cell, empty if missing. Raises BadCell for text that can't be stored and displayed."""
    if not isinstance(value, str):
        if isinstance(value, bool):
            raise BadCell("it is no text", column)
        value = word_of(value, column) or ""
    require_text(value, column)
    return str(value)


def require_text(value: str, column: str = "") -> None:
    """Raises BadCell for text that can't be stored and displayed."""
    # Fast path for nearly all texts: ASCII contains no surrogates.
    if value.isascii() and len(value) <= LIMITS.max_text:
        return
    try:
        check_text(value)
    except BadText as error:
        reason = "it holds bytes that are not UTF-8" if error.reason == "TEXT_NOT_UNICODE" else "its text is too long"
        raise BadCell(reason, column) from None


def placeholders_of(text: str) -> tuple[str, ...]:
    """Names in braces."""
    return tuple(_PLACEHOLDER.findall(text))


def fill(text: str, record: Record, names: Collection[str] = ()) -> str:
    """Inserts fields of a row into the name of a file or column.

    Args:
        record: The row; ``{id}`` is its ``@id``, and a name that is no field is a column.
        names: Placeholders that are left as they are.

    Raises:
        BadCell: A value is missing or unsafe in a name: no row may lead out of a folder.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in names:
            return match[0]
        # Made names (`@id`) take precedence over columns of the same name, so that no file can redefine them.
        word = word_of(record.get(f"@{name}", record.get(name)), name)
        if not word or not word.strip():
            raise BadCell("it is empty, and part of the name of a file or column", name)
        # Rows are untrusted: a value must not name another folder, a drive, a stream, or a glob pattern.
        if word in (".", "..") or any(sign in word for sign in "/\\\0:*?[]"):
            raise BadCell("its value can't stand in the name of a file", name)
        return word

    return _PLACEHOLDER.sub(value, text)
