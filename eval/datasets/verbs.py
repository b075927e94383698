"""Expressions of a data-set card: how a value is made of the cells of a row, without any code in the card.

An expression names a column, or is a table of verbs, which apply in the order in which :class:`Expression` lists them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Record = Mapping[str, Any]
"""A row: cells by column. Names that begin with ``@`` are no columns: ``@row``, ``@key``, ``@name``, ``@language``."""
MADE_NAMES = ("@row", "@id", "@language", "@group", "@variant")
"""Those that are made of every row, whatever its format; columns of these names are not read."""
Compiled = Callable[[Record], Any]
JoinOf = Callable[["Join"], Callable[[Record], Record]]
"""Makes of a join what finds the joined row of a row; an empty one where there is none."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class BadCell(Exception):
    """A cell that can't be used.

    Attributes:
        column: Column of the cell; empty where it is the row as a whole.
        reason: Fault of the cell, without its content.
    """

    def __init__(self, reason: str, column: str = "") -> None:
        super().__init__(f"column {column}: {reason}" if column else reason)
        self.column = column
        self.reason = reason


class CardModel(BaseModel):
    """Base of all tables of a card: an unknown key is an error."""

    # A misspelt key that was ignored would change what is read without a word; a card has to fail instead.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Join(CardModel):
    """A value of another file, or of another row's."""

    file: str
    """Name of the file below a folder of the data set; ``{id}`` and other fields may stand in it."""
    on: str = ""
    """Column of the row that is looked up, or ``@row``: by the order of the rows. Empty where each row has a file."""
    key: str = ""
    """Column of the file that it is looked up in; the same name where it is empty."""
    column: str
    """Column of the file that is taken."""
    columns: tuple[str, ...] = ()
    """Names of the file's columns, where it has no header."""
    kind: str = ""
    """Its format; by the ending of its name where it is empty."""


class Expression(CardModel):
    """A value made of a row. The verbs apply in this order."""

    column: str = ""
    path: str = ""
    """Names of nested objects, and places in lists, joined by dots: ``labels.0``."""
    list_: tuple[str, ...] = Field(default=(), alias="list")
    """Columns whose values become a list."""
    join: Join | None = None
    const: str | None = None
    from_: int = Field(default=0, ge=0, alias="from")
    """Elements at the beginning of a list that are left out."""
    take: Literal["", "basename", "stem", "parent"] = ""
    """Part of a path; both kinds of slashes part it."""
    split: str = ""
    """Parts the text; all parts are a list where ``part`` is absent."""
    part: int | None = None
    char: int | None = None
    replace: dict[str, str] = Field(default_factory=dict)
    prefix: str = ""
    suffix: str = ""
    none: tuple[str, ...] = ()
    """Values that mean that there is none."""
    else_: Expression | None = Field(default=None, alias="else")
    """Taken where there is no value."""

    @model_validator(mode="before")
    @classmethod
    def _of_column(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_origin(self) -> Expression:
        # `const` is compared with None, as an empty text may be what a card means.
        origins = [self.column != "", self.path != "", bool(self.list_), self.join is not None, self.const is not None]
        if sum(origins) != 1:
            raise ValueError("an expression takes its value from one of column, path, list, join and const")
        if (self.part is not None and not self.split) or (self.take and self.split):
            raise ValueError("part goes with split, and take without it")
        return self

    @property
    def name(self) -> str:
        """Column that messages name."""
        return self.column or self.path or ", ".join(self.list_) or (self.join.column if self.join else "")

    def columns(self) -> set[str]:
        """Columns of the row that the value is made of; a placeholder in a name stands as it is."""
        own = {self.column, self.path.split(".")[0], *self.list_, self.join.on if self.join else ""}
        return {name for name in own if name} | (self.else_.columns() if self.else_ else set())


def compile_expression(expression: Expression, join_of: JoinOf) -> Compiled:
    """Makes a function of an expression, which raises BadCell for a cell that can't be used.

    It returns None where there is no value: the column is absent, its cell is empty, or it is no number.
    """
    origin = _origin(expression, join_of)
    steps = _steps(expression)
    none = frozenset(expression.none)
    otherwise = compile_expression(expression.else_, join_of) if expression.else_ else None
    # Most expressions name a column and nothing else, and are called once for each row: a wrapper around
    # the lookup would add a call to every one.
    if not steps and not none and otherwise is None:
        return origin

    def value(record: Record) -> Any:
        found = origin(record)
        # Verbs see no missing value, so that each of them can take a cell as it is; `else` comes after
        # them and gets the row.
        if not is_missing(found):
            for step in steps:
                found = step(found)
        # Only after the verbs: a card says `none` of the value that it makes ("unknown"), not of the
        # raw cell. A list is never "none", even where one of its elements is.
        if found is None or (none and not isinstance(found, list) and word_of(found, expression.name) in none):
            found = None
        return otherwise(record) if otherwise is not None and is_missing(found) else found

    return value


def is_missing(value: Any) -> bool:
    """True for a cell without a value: None, blank, or not a number."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, float) and math.isnan(value))


def word_of(value: Any, column: str) -> str | None:
    """The text of a cell; None where there is no value.

    A whole number has no fraction: pandas writes 1.0 where others in the column are missing.

    Raises:
        BadCell: The cell holds a list or an object.
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    # Before the numbers: bool is a subclass of int, and True would become "1".
    if isinstance(value, bool):
        # In lower case, as JSON writes it: cards name labels by text, and Python's "True" would match
        # none of them.
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes):
        # Bytes are pictures in Parquet files. Decoding them would put binary junk into a label or a text.
        raise BadCell("it holds bytes where a text is expected", column)
    raise BadCell("it holds a list or an object where one value is expected", column)


def placeholders_of(text: str) -> tuple[str, ...]:
    """Names that stand in braces."""
    return tuple(_PLACEHOLDER.findall(text))


def fill(text: str, record: Record, names: Collection[str] = ()) -> str:
    """Puts the fields of a row into a file's or column's name.

    Args:
        text: Text with names in braces.
        record: The row; ``{id}`` is its ``@id``, and a name that is no field is a column.
        names: Names that stay as they are.

    Raises:
        BadCell: A value is missing, or is no plain part of a name: nothing in a row may lead out of a folder.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in names:
            return match[0]
        # A meta column (`@id`) goes before a data column of the same name, so that no file can redefine it.
        word = word_of(record.get(f"@{name}", record.get(name)), name)
        if not word or not word.strip():
            raise BadCell("it is empty, and part of the name of a file or column", name)
        # A row is a stranger's: its value must not name another folder, a drive, a stream, or a pattern
        # that a search expands.
        if word in (".", "..") or any(sign in word for sign in "/\\\0:*?[]"):
            raise BadCell("its value can't stand in the name of a file", name)
        return word

    return _PLACEHOLDER.sub(value, text)


def _origin(expression: Expression, join_of: JoinOf) -> Compiled:
    if expression.const is not None:
        constant = expression.const
        return lambda _: constant
    # A compiled expression binds its parts here, once, so that a row costs no look at the card.
    if expression.join is not None:
        join, joined = expression.join, join_of(expression.join)
        if placeholders_of(join.column):
            return lambda record: joined(record).get(fill(join.column, record))
        return lambda record: joined(record).get(join.column)
    if expression.list_:
        names = expression.list_
        # Empty cells are left out, not kept as empty texts: a list of annotators' votes has as many
        # elements as there are votes.
        return lambda record: [cell for cell in map(record.get, names) if not is_missing(cell)]
    if expression.path:
        return _nested(expression.path)
    column = expression.column
    if placeholders_of(column):
        return lambda record: record.get(fill(column, record))
    return lambda record: record.get(column)


def _nested(path: str) -> Compiled:
    parts = path.split(".")

    def value(record: Record) -> Any:
        found: Any = record
        for part in parts:
            if isinstance(found, Mapping):
                found = found.get(part)
            # Only plain digits: a negative place would take elements from the end, which no card means
            # by a path.
            elif isinstance(found, list) and part.isdecimal():
                found = found[int(part)] if int(part) < len(found) else None
            # Where an object above is absent there is no value; where it is of another shape, the card
            # does not fit the file, and silence would hide that.
            elif is_missing(found):
                return None
            else:
                raise BadCell(f"there is no {part} in it", path)
        return found

    return value


def _steps(expression: Expression) -> list[Callable[[Any], Any]]:
    """The verbs that change a value, in their order."""
    name = expression.name
    # The order is that of the fields in `Expression`, not that of the keys in the card: TOML tables
    # have no order to rely on.
    steps: list[Callable[[Any], Any]] = []
    if expression.from_:
        steps.append(lambda value: _from_position(value, expression.from_, name))
    if expression.take:
        steps.append(lambda value: take(_word(value, name), expression.take))
    if expression.split:
        steps.append(lambda value: _split(_word(value, name), expression, name))
    if expression.char is not None:
        steps.append(lambda value: _char(_word(value, name), expression.char or 0, name))
    if expression.replace:
        steps.append(lambda value: _replace(_word(value, name), expression.replace))
    if expression.prefix or expression.suffix:
        steps.append(lambda value: f"{expression.prefix}{_word(value, name).strip()}{expression.suffix}")
    return steps


def take(path: str, part: str) -> str:
    """A part of a path or an address: ``basename``, ``stem`` (without its ending) or ``parent`` (the folder's name)."""
    # Paths of Windows stand in files that were made there; a query or fragment is no part of an address's name.
    plain = path.strip().replace("\\", "/")
    if "://" in plain:
        plain = re.split(r"[?#]", plain, maxsplit=1)[0]
    found = PurePosixPath(plain)
    return {"basename": found.name, "stem": found.stem, "parent": found.parent.name}[part]


def _word(value: Any, column: str) -> str:
    word = word_of(value, column)
    if word is None:
        raise BadCell("it is empty", column)
    return word


def _from_position(value: Any, count: int, column: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadCell("it is no list", column)
    return value[count:]


def _split(word: str, expression: Expression, column: str) -> Any:
    parts = [part.strip() for part in word.split(expression.split)]
    if expression.part is None:
        return [part for part in parts if part]
    # Checked before indexing, as places may count from the end, and so that the reason names the number
    # of parts.
    if not -len(parts) <= expression.part < len(parts):
        raise BadCell(f"it has {len(parts)} parts and no part {expression.part}", column)
    return parts[expression.part]


def _char(word: str, place: int, column: str) -> str:
    if not -len(word) <= place < len(word):
        raise BadCell(f"it has {len(word)} characters and none at place {place}", column)
    return word[place]


def _replace(word: str, replace: Mapping[str, str]) -> str:
    # In the card's order, each on the result of the one before.
    for old, new in replace.items():
        word = word.replace(old, new)
    return word
