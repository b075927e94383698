"""Kinds of harm by which memes are sorted: six to begin with, and what is admitted while they are sorted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

NAME = re.compile(r"[a-z]+( [a-z]+){0,2}")
"""A name: one to three words in small letters. A model writes some of them, and they stand in schemas and on pages."""


class Category(BaseModel):
    """A kind of harm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME.pattern}$", max_length=30)
    definition: str = Field(min_length=1, max_length=300)
    """Definition, in a sentence."""

    @property
    def line(self) -> str:
        """Line of the category in a list."""
        return f"{self.name}: {self.definition}"


BEGIN = (
    Category(name="race", definition="It puts people down for their skin colour, descent or ethnic group."),
    Category(name="gender", definition="It puts people down for their sex, gender or sexual orientation."),
    Category(name="religion", definition="It puts people down for their faith, or for having none."),
    Category(name="nationality", definition="It puts people down for the country they come from or belong to."),
    Category(name="disability", definition="It puts people down for an illness, or for what they can't do."),
    Category(name="animal", definition="It makes light of cruelty to animals, or takes pleasure in it."),
)
"""Those that the paper begins with (section 3.1); the definitions are ours."""


class Taxonomy:
    """Categories in the order in which they came; each name once."""

    def __init__(self, categories: Iterable[Category] = BEGIN) -> None:
        self._categories = {category.name: category for category in categories}

    @property
    def categories(self) -> tuple[Category, ...]:
        """All that there are."""
        return tuple(self._categories.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the categories."""
        return tuple(self._categories)

    @property
    def text(self) -> str:
        """A line for each."""
        return "\n".join(category.line for category in self.categories)

    def __contains__(self, name: object) -> bool:
        return name in self._categories

    def __getitem__(self, name: str) -> Category:
        return self._categories[name]

    def add(self, category: Category) -> Self:
        """Adds a category; an existing one of that name is kept unchanged."""
        self._categories.setdefault(category.name, category)
        return self
