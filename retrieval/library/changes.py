"""Changes of a library, one meme at a time, and their history.

A change says who made it, why and when, and what it did. It can be revoked as long as nothing else has been done to the
same meme since, which keeps the record a story that can be read: what is revoked is undone by another change, and no
change is ever taken out of the record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from court.errors import BadRequest
from retrieval.library.manifest import LabelledMeme


class NoSuchPrecedent(BadRequest):
    """Raised where the library has no precedent of that id."""

    default_reason = "PRECEDENT_UNKNOWN"


class PrecedentExists(BadRequest):
    """Raised where the library has, or had, a precedent of that id."""

    default_reason = "DUPLICATE_ID"


class CantChange(BadRequest):
    """Raised where the library's present state does not allow the change; after another change it may."""

    default_reason = "CANT_CHANGE"


class ChangeKind(StrEnum):
    """Kind of the requested change."""

    ADD = "add"
    REMOVE = "remove"
    RELABEL = "relabel"
    REVOKE = "revoke"


class Effect(StrEnum):
    """Effect on the rows."""

    APPEND = "append"
    """A meme went in behind the others."""
    HIDE = "hide"
    """A row is found no longer."""
    SHOW = "show"
    """A row that was hidden is found again."""
    SET = "set"
    """What is said of a row is now something else; its vectors are the same."""


class Change(BaseModel):
    """One change of a library."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1)
    """Counted from 1 through all generations of a library."""
    kind: ChangeKind
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    at: AwareDatetime
    meme: str = Field(min_length=1, max_length=200)
    """Its id."""
    revokes: int | None = None
    """The number of the change that this one undoes."""
    effect: Effect
    row: int = Field(ge=0)
    """Which row of the generation; of no meaning in a later one."""
    before: LabelledMeme | None = None
    """The meme as it was; None where it was not there, or was to be forgotten."""
    after: LabelledMeme | None = None
    """The meme as it is now; None where it is no longer there, or was to be forgotten."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.kind is ChangeKind.REVOKE) != (self.revokes is not None):
            raise ValueError("a change that revokes, and no other, says which")
        return self


class Recorded(BaseModel):
    """A change as the history tells it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    change: Change
    revoked_by: int | None = None
    """The number of the change that undid it."""


def with_revocations(changes: list[Change]) -> list[Recorded]:
    """The changes, in order, each with what became of it."""
    revoked = {change.revokes: change.number for change in changes if change.revokes is not None}
    return [Recorded(change=change, revoked_by=revoked.get(change.number)) for change in changes]


def last_effective(changes: list[Change]) -> Change | None:
    """Returns the last change of one meme that is neither revoked nor revokes; None if there is none."""
    return next(
        (
            one.change
            for one in reversed(with_revocations(changes))
            if one.revoked_by is None and one.change.revokes is None
        ),
        None,
    )
