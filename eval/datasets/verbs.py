"""Expressions of a data-set card: compute a value from the cells of a row, without any code in the card.

An expression is a column name or a table of verbs, which apply in the order in which :class:`Expression` lists them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from retrieval.library.cells import BadCell, Record, fill, is_missing, placeholders_of, word_of

MADE_NAMES = ("@row", "@id", "@language", "@group", "@variant")
"""Names that are set for every row, whatever its format; columns with these names are not read."""
_FIELDS = frozenset({"id", "language", "group", "variant", "split"})
"""Names in braces that stand for fields of a meme, and for no column."""
_ORIGINS = frozenset({"column", "path", "list_", "join", "const"})
Compiled = Callable[[Record], Any]
JoinOf = Callable[["Join"], Callable[[Record], Record]]
"""Turns a join into a function that finds a row's joined row, or an empty one if there is none."""


class CardModel(BaseModel):
    """Base of all tables of a card: an unknown key is an error."""

    # Ignoring a misspelt key would silently change what is read, so a card has to fail instead.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Join(CardModel):
    """A value from another file, or from another row."""

    file: str
    """Name of the file below a folder of the data set; may contain ``{id}`` and other fields."""
    on: str = ""
    """Column of both with the lookup key, or ``@row`` for the position. Empty if each row has its own file."""
    column: str
    """Column of the file that holds the value."""


class Expression(CardModel):
    """A value computed from a row. The verbs apply in this order."""

    column: str = ""
    path: str = ""
    """Names of nested objects, and indices of lists, joined by dots: ``labels.0``."""
    list_: tuple[str, ...] = Field(default=(), alias="list")
    """Columns whose values form a list."""
    join: Join | None = None
    const: str | None = None
    from_: int = Field(default=0, ge=0, alias="from")
    """Number of elements to skip at the beginning of a list."""
    take: Literal["", "basename", "stem", "parent"] = ""
    """Part of a path; both kinds of slashes are separators."""
    split: str = ""
    """Separator that splits the text; without ``part``, all parts become a list."""
    part: int | None = None
    char: int | None = None
    replace: dict[str, str] = Field(default_factory=dict)
    prefix: str = ""
    suffix: str = ""
    none: tuple[str, ...] = ()
    """Values that stand for a missing value."""
    else_: "Expression | None" = Field(default=None, alias="else")
    """Fallback if there is no value."""

    @model_validator(mode="before")
    @classmethod
    def _of_column(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        # `const` is compared with None, as a card may mean an empty text.
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

    @property
    def is_named_by_row(self) -> bool:
        """True if other cells of a row complete the name of the column or file that the value is taken from."""
        named = self.column + (self.join.file + self.join.column if self.join else "")
        return bool(placeholders_of(named)) or (self.else_ is not None and self.else_.is_named_by_row)

    def columns(self) -> set[str]:
        """Columns of the row that the value is computed from; placeholders in names are left as they are."""
        own = {self.column, self.path.split(".")[0], *self.list_}
        if self.join:
            # The key may be a column that is called like a field, such as id.
            own |= {self.join.on} | (set(placeholders_of(self.join.file + self.join.column)) - _FIELDS)
        return {name for name in own if name} | (self.else_.columns() if self.else_ else set())


def compile_expression(expression: Expression, join_of: JoinOf) -> Compiled:
    """Compiles an expression into a function, which raises BadCell for an unusable cell.

    The function returns None if there is no value: the column is absent, or its cell is empty or NaN.
    """
    # Bound once, so that rows need no access to the card.
    const, names, path, none = expression.const, expression.list_, expression.path, frozenset(expression.none)
    joined = join_of(expression.join) if expression.join else None
    column = expression.join.column if expression.join else expression.column
    is_named_by_row = bool(placeholders_of(column))
    otherwise = compile_expression(expression.else_, join_of) if expression.else_ else None
    # Most expressions only name a column and are called for each row.
    is_plain = expression.model_fields_set <= _ORIGINS

    def value(record: Record) -> Any:
        found: Any = const
        if path:
            found = _nested(record, path)
        elif names:
            # Empty cells are left out, so that a list of annotators' votes has one element per vote.
            found = [cell for cell in map(record.get, names) if not is_missing(cell)]
        elif column:
            row = record if joined is None else joined(record)
            found = row.get(fill(column, record) if is_named_by_row else column)
        if is_plain:
            return found
        # Verbs never see a missing value, so that each can use its cell as is; `else` comes after them and gets the
        # row.
        if not is_missing(found):
            found = _changed(found, expression)
        # Checked after the verbs: `none` lists computed values ("unknown"), not raw cells. A list never counts as
        # missing, even if an element does.
        if found is None or (none and not isinstance(found, list) and word_of(found, expression.name) in none):
            found = None
        return otherwise(record) if otherwise is not None and is_missing(found) else found

    return value


def _nested(found: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        # Digits only: a negative index would take elements from the end, which no card means by a path.
        elif isinstance(found, list) and part.isdecimal():
            found = found[int(part)] if int(part) < len(found) else None
        # An absent object means no value; a value of another type means that the card does not fit the file, which must
        # not go unnoticed.
        elif is_missing(found):
            return None
        else:
            raise BadCell(f"there is no {part} in it", path)
    return found


def _changed(value: Any, verbs: Expression) -> Any:
    """The value after the verbs that change it."""
    # In the order of the fields of `Expression`, not of the keys in the card: TOML tables are unordered.
    name = verbs.name
    if verbs.from_:
        if not isinstance(value, list):
            raise BadCell("it is no list", name)
        value = value[verbs.from_ :]
    if verbs.take:
        value = take(_word(value, name), verbs.take)
    if verbs.split:
        parts = [part.strip() for part in _word(value, name).split(verbs.split)]
        value = list(filter(None, parts)) if verbs.part is None else _at(parts, verbs.part, "parts and no part", name)
    if verbs.char is not None:
        value = _at(_word(value, name), verbs.char, "characters and none at place", name)
    # In the card's order, each on the previous result.
    for old, new in verbs.replace.items():
        value = _word(value, name).replace(old, new)
    if verbs.prefix or verbs.suffix:
        value = f"{verbs.prefix}{_word(value, name).strip()}{verbs.suffix}"
    return value


def _at(parts: Sequence[str], place: int, what: str, column: str) -> str:
    # Checked before indexing, because indices may count from the end, and to report the number of parts.
    if not -len(parts) <= place < len(parts):
        raise BadCell(f"it has {len(parts)} {what} {place}", column)
    return parts[place]


def take(path: str, part: str) -> str:
    """A part of a path or URL: ``basename``, ``stem`` (without its ending) or ``parent`` (name of the folder)."""
    # Files from Windows contain backslashes; a query or fragment is not part of a URL's file name.
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
