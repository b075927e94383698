"""What erasing a trial, or a precedent, takes out of a docket, and what it leaves.

Entries lose body and salt: what is left of them, numbers, times and kinds, is what the log is signed over, and tells
nothing of the meme. The trial stays in listings as erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, delete, select, update

from court.errors import CourtError
from court.record import TrialState
from serving.docket import desk_tables
from serving.docket import tables as t
from serving.docket.growing import Draft, growing
from serving.docket.log.entries import NO_SEQ, Erased, body_of, erased_of
from serving.docket.stored import unpacked
from serving.docket.writer import Batch
from serving.docket.writes import unknown

_AT_ONCE = 500  # entries in one statement


@dataclass(frozen=True, slots=True)
class Erasure:
    """Asks that something is erased.

    Attributes:
        trial_id: The trial; empty where only precedents are meant.
        who: Who wants it.
        why: Why.
        at: When.
        precedents: Precedents whose texts go from all records that quote them: those that this trial was made into.
    """

    trial_id: str
    who: str
    why: str
    at: datetime
    precedents: Sequence[str] = ()


def _erase(connection: Connection, asked: Sequence[Erasure]) -> Sequence[Erased | CourtError]:
    return [_erase_one(connection, ask) for ask in asked]


def _erase_one(connection: Connection, ask: Erasure) -> Erased | CourtError:
    log = growing(connection)
    row, entry, part = t.trials.c, t.entries.c, t.parts.c
    numbers: list[int] = []
    if ask.trial_id:
        held = select(row.erased).where(row.trial_id == ask.trial_id).with_for_update()
        state = connection.execute(held).scalar_one_or_none()
        if state is None:
            return unknown(ask.trial_id)
        if state and not ask.precedents:
            return _said(connection, ask.trial_id)
        own = select(entry.number).where(entry.trial_id == ask.trial_id, t.IS_EVENT, entry.body.is_not(None))
        numbers += connection.execute(own).scalars()
        _forget(connection, ask.trial_id)
    if ask.precedents:
        of = part.of.in_(ask.precedents)
        numbers += connection.execute(select(part.number).where(of)).scalars()
        connection.execute(delete(t.parts).where(of))
    numbers.sort()
    for first in range(0, len(numbers), _AT_ONCE):
        some = entry.number.in_(numbers[first : first + _AT_ONCE])
        connection.execute(update(t.entries).where(some).values(body=None, salt=None))
    # What the listing still says, its events can't vouch for any more: so that it can be checked, the erasure does.
    found = connection.execute(select(t.trials).where(row.trial_id == ask.trial_id)).one_or_none()
    left = {name: value for name, value in found._mapping.items() if name != "trial_id"} if found else {}
    erased = Erased(trial_id=ask.trial_id, at=ask.at, who=ask.who, why=ask.why, numbers=tuple(numbers), left=left)
    log.add([Draft(erased.kind, ask.trial_id, NO_SEQ, t.stamp(ask.at), body_of(erased).encode())])
    log.count_erased(len(numbers) + bool(ask.trial_id))
    log.want_checkpoint()
    return erased


def _forget(connection: Connection, trial_id: str) -> None:
    """All that other tables hold of a trial."""
    row = t.trials.c
    for table in (t.known, t.requests, t.looks):
        connection.execute(delete(table).where(table.c.trial_id == trial_id))
    own = row.trial_id == trial_id
    pixels = connection.execute(select(row.pixels_sha256).where(own)).scalar_one()
    blank = {"content_id": "", "request_id": "", "pixels_sha256": "", "review": None, "needs_review": False}
    connection.execute(update(t.trials).where(own).values(**blank, erased=True))
    # One that ran, or was cut off, is not taken up again.
    still = and_(own, row.state == TrialState.OPEN)
    connection.execute(update(t.trials).where(still).values(state=TrialState.FAILED, failure_reason="ERASED"))
    if not others(connection, pixels, trial_id):
        connection.execute(delete(t.pictures).where(t.pictures.c.pixels_sha256 == pixels))
    desk_tables.forget(connection, trial_id)


def others(connection: Connection, pixels_sha256: str, trial_id: str) -> bool:
    """Whether there is another trial of the same picture."""
    row = t.trials.c
    query = select(row.trial_id).where(row.pixels_sha256 == pixels_sha256, row.trial_id != trial_id)
    return connection.execute(query.limit(1)).first() is not None


def picture_of(connection: Connection, trial_id: str) -> str | None:
    """The picture that only this trial has; None where it has none, or others have it too. Raises TrialUnknown."""
    row = t.trials.c
    pixels = connection.execute(select(row.pixels_sha256).where(row.trial_id == trial_id)).scalar_one_or_none()
    if pixels is None:
        raise unknown(trial_id)
    return None if not pixels or others(connection, pixels, trial_id) else str(pixels)


def _said(connection: Connection, trial_id: str) -> Erased:
    """What was said when it was erased."""
    entry = t.entries.c
    own = select(entry.body).where(entry.trial_id == trial_id, t.IS_OTHER, entry.kind == "Erased")
    bodies = connection.execute(own.order_by(entry.number).limit(1)).scalars().all()
    return erased_of(unpacked(bodies[0]))


ERASE = Batch(12, _erase)
