"""Rules for changing a library: validate a change and plan its effect. Writers store the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from court.errors import BadRequest
from court.precedents import PrecedentLabel
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library.changes import (
    CantChange,
    Change,
    ChangeKind,
    Effect,
    NoSuchPrecedent,
    PrecedentExists,
    last_effective,
    with_revocations,
)
from retrieval.library.manifest import LabelledMeme
from retrieval.library.overlay import fits


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A valid change, ready to be stored, with vector and picture of a meme that goes in."""

    change: Change
    vector: NDArray[np.float32] | None = None
    picture: bytes | None = None


@dataclass
class CurrentLibrary(ABC):
    """State of a library at the time of a change.

    Attributes:
        written: Number of the last change before rows were renumbered.
    """

    encoder: EncoderIdentity
    size: int
    next_number: int
    next_row: int
    written: int

    @abstractmethod
    def live(self, id_: str) -> tuple[int, LabelledMeme] | None:
        """Returns row and meme of a visible id; None if there is none."""

    @abstractmethod
    def changes_of(self, meme: str) -> list[Change]:
        """Returns all changes of one meme, in order."""

    @abstractmethod
    def change(self, number: int) -> tuple[Change, bytes | None, bytes | None] | None:
        """Returns a change, with vector and picture of the removed meme if the history stores them separately."""


def plan_add(
    now: CurrentLibrary, meme: LabelledMeme, vector: NDArray[np.float32], picture: bytes | None, *, who: str, why: str
) -> PlannedChange:
    """Plans to append a meme.

    Args:
        meme: Meme with an id that was never used in the library, as records of trials refer to precedents by id.

    Raises:
        PrecedentExists: The id is or was in use.
        BadRequest: Name or reason is missing.
        ValueError: The vector does not fit the meme.
    """
    if not fits(vector, meme, now.encoder):
        raise ValueError("the vector of a meme has halves of length 1, or 0 where it has none")
    if now.live(meme.id) is not None:
        raise PrecedentExists(f"There is a precedent with the id {meme.id} already.", field="id")
    # Forgotten memes are included: their history still has the id.
    if now.changes_of(meme.id):
        raise PrecedentExists(
            f"There was a precedent with the id {meme.id}, and records may name it. Take another id, or revoke its "
            "removal.",
            field="id",
        )
    # The same time for the change and the added meme.
    at = datetime.now(UTC)
    # Only the writer knows where its picture will be stored.
    after = meme.model_copy(update={"kept": None, "added": meme.added or at, "who": meme.who or who})
    change = _change(
        now,
        kind=ChangeKind.ADD,
        who=who,
        why=why,
        at=at,
        meme=meme.id,
        effect=Effect.APPEND,
        row=now.next_row,
        after=after,
    )
    return PlannedChange(change, vector, picture)


def plan_remove(now: CurrentLibrary, id_: str, *, who: str, why: str) -> PlannedChange:
    """Plans to remove a meme; it can be restored until the history forgets it.

    Raises:
        NoSuchPrecedent: The precedent does not exist.
        CantChange: The precedent is the only one.
        BadRequest: Name or reason is missing.
    """
    row, before = _known(now, id_)
    _refuse_to_empty(now)
    return PlannedChange(
        _change(now, kind=ChangeKind.REMOVE, who=who, why=why, meme=id_, effect=Effect.HIDE, row=row, before=before)
    )


def plan_relabel(
    now: CurrentLibrary, id_: str, label: PrecedentLabel, *, who: str, why: str, binding: bool = True
) -> PlannedChange:
    """Plans to relabel a meme; the label counts as verified, and the source's own label stays.

    Raises:
        NoSuchPrecedent: The precedent does not exist.
        CantChange: The precedent already has that label and is verified, and binds if it is to.
        BadRequest: Name or reason is missing.
    """
    row, before = _known(now, id_)
    # Setting the same label on an unverified precedent confirms it, which is a change.
    if before.label is label and before.verified and (before.binding or not binding):
        raise CantChange(f"The precedent {id_} has that label already, and it is verified.", field="label")
    at = datetime.now(UTC)
    confirmed = {"label": label, "verified": True, "who": who, "added": at, "binding": binding}
    after = before.model_copy(update=confirmed)
    return PlannedChange(
        _change(
            now,
            kind=ChangeKind.RELABEL,
            who=who,
            why=why,
            at=at,
            meme=id_,
            effect=Effect.SET,
            row=row,
            before=before,
            after=after,
        )
    )


def plan_revoke(now: CurrentLibrary, number: int, *, who: str, why: str) -> PlannedChange:
    """Plans to revoke a change by another change.

    Raises:
        BadRequest: There is no such change; it is already revoked; the same meme was changed since; it is itself a
            revocation; or the required data was forgotten.
    """
    undone, stored_vector, picture = _to_revoke(now, number)
    # Stored little-endian, whatever the machine.
    vector = None if stored_vector is None else np.frombuffer(stored_vector, dtype="<f4").astype(np.float32)
    live = now.live(undone.meme)
    after: LabelledMeme | None = None
    if undone.kind is ChangeKind.REMOVE:
        # Restored to its row, if rows have not been renumbered since.
        back = undone.number > now.written
        effect, row = (Effect.SHOW, undone.row) if back else (Effect.APPEND, now.next_row)
        if undone.before is None or (vector is None and not back):
            raise BadRequest(f"What change {number} took out was forgotten on purpose. Add it anew.")
        # If appended, its picture gets a new location, which only the writer knows.
        after = undone.before if back else undone.before.model_copy(update={"kept": None})
    else:
        row, meme = _known(now, undone.meme)
        if undone.kind is ChangeKind.ADD:
            effect = Effect.HIDE
            _refuse_to_empty(now)
        else:
            effect = Effect.SET
            if undone.before is None:
                raise BadRequest(f"What change {number} did was forgotten on purpose.")
            # The location of its picture may have changed with the generation; only the label is restored.
            after = undone.before.model_copy(update={"kept": meme.kept})
    change = _change(
        now,
        kind=ChangeKind.REVOKE,
        who=who,
        why=why,
        meme=undone.meme,
        revokes=number,
        effect=effect,
        row=row,
        before=None if live is None else live[1],
        after=after,
    )
    return PlannedChange(change, vector, picture) if undone.kind is ChangeKind.REMOVE else PlannedChange(change)


def _to_revoke(now: CurrentLibrary, number: int) -> tuple[Change, bytes | None, bytes | None]:
    found = now.change(number)
    if found is None:
        raise BadRequest(f"There is no change {number} in the history.", reason="CHANGE_UNKNOWN")
    change = found[0]
    if change.revokes is not None:
        raise BadRequest(f"Change {number} is a revocation itself. Make the change that you want anew.")
    others = now.changes_of(change.meme)
    by = next((one.revoked_by for one in with_revocations(others) if one.change.number == number), None)
    if by is not None:
        raise BadRequest(f"Change {number} was revoked already, by change {by}.")
    # Only the last change of a meme can be revoked, as ``before`` would otherwise undo later changes too.
    last = last_effective(others)
    if last is not None and last.number != number:
        raise BadRequest(f"Change {last.number} was made to the same precedent since. Revoke that first.")
    return found


def _known(now: CurrentLibrary, id_: str) -> tuple[int, LabelledMeme]:
    found = now.live(id_)
    if found is None:
        raise NoSuchPrecedent(f"There is no precedent with the id {id_}.", field="id")
    return found


def _refuse_to_empty(now: CurrentLibrary) -> None:
    # A library has at least one meme (Counts); an empty one can't be searched or rewritten.
    if now.size <= 1:
        raise CantChange("It is the only precedent in the library. Add another first.", reason="LIBRARY_EMPTY")


def _change(now: CurrentLibrary, **values: object) -> Change:
    try:
        return Change.model_validate({"number": now.next_number, "at": datetime.now(UTC), **values})
    except ValidationError:
        raise BadRequest(
            "A change needs the name of who makes it (1 to 200 characters), a reason (1 to 2,000) and the id of a "
            "precedent."
        ) from None
