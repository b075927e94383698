"""Changes of a library, one meme at a time, and their history.

A change records who made it, why and when, and its effect. It can be revoked as long as the same meme has not been
changed since, which keeps the history readable: revocation is another change, and no change is ever deleted from the
history.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from court.errors import BadRequest
from court.values import Value
from retrieval.library.manifest import LabelledMeme


class NoSuchPrecedent(BadRequest):
    """Raised if the library has no precedent with that id."""

    default_reason = "PRECEDENT_UNKNOWN"


class PrecedentExists(BadRequest):
    """Raised if the library has, or had, a precedent with that id."""

    default_reason = "DUPLICATE_ID"


class CantChange(BadRequest):
    """Raised if the library's current state does not allow the change, as opposed to an invalid request."""

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
    HIDE = "hide"
    SHOW = "show"
    SET = "set"
    """The description of a row changed; its vectors are the same."""


class Change(Value):
    """One change of a library."""

    number: int = Field(ge=1)
    """Counted from 1 through all generations of a library."""
    kind: ChangeKind
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    at: AwareDatetime
    meme: str = Field(min_length=1, max_length=200)
    revokes: int | None = None
    effect: Effect
    row: int = Field(ge=0)
    """Row in the generation; meaningless in later ones."""
    before: LabelledMeme | None = None
    """Meme before the change; None if it did not exist, or was forgotten."""
    after: LabelledMeme | None = None
    """Meme after the change; None if it was removed, or forgotten."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.kind is ChangeKind.REVOKE) != (self.revokes is not None):
            raise ValueError("a change that revokes, and no other, says which")
        return self


class Recorded(Value):
    """A change in the history."""

    change: Change
    revoked_by: int | None = None


def with_revocations(changes: list[Change]) -> list[Recorded]:
    """Returns the changes, in order, each with its revocation, if any."""
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
