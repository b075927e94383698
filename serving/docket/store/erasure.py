"""Erasure: removes a trial or a precedent from a docket, and keeps what the log needs.

An erased entry loses its body and salt. Its number, time and kind stay, because the log's signatures cover them; they
reveal nothing of the meme. The trial stays in listings as erased. A picture outside of the database is removed after
the record; the erasure stores that this is pending, so that after a crash the next start completes it.

An erased precedent leaves an empty part, its grave. Later quotes of it, by a running trial or by a server that has not
noticed the erasure yet, refer to that part, so that the precedent's texts don't come back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, delete, insert, select, update

from court.errors import CourtError, Unavailable
from court.meme import is_text_digest
from court.record import TrialState
from serving.docket.log.entries import Erased, erased_of
from serving.docket.store import review_tables
from serving.docket.store import tables as t
from serving.docket.store.bodies import part_key, unpacked
from serving.docket.store.listing import erase_finding
from serving.docket.store.log_append import EntryDraft, open_appender
from serving.docket.store.pictures import ObjectPictures
from serving.docket.store.tables import Database, insert_into, unknown
from serving.docket.store.transactions import Batch, Rank, SqlStore, Transactions
from serving.docket.store.trials import buried, part_draft

UNFINISHED = "ERASURE_UNFINISHED"
"""Error reason if something is erased, but a file or the picture storage still contains some of it."""

_log = logging.getLogger(__name__)

_AT_ONCE = 500  # entries in one statement
_READERS_S = 10.0
"""Seconds to wait for readers that still see the erased data."""


@dataclass(frozen=True, slots=True)
class _Erasure:
    """Request to erase a trial, precedents, or both.

    Attributes:
        precedents: Precedents to remove from all records that quote them, such as those made from this trial.
        outside: True if pictures are stored outside of the database.
        keep_days: Days for which the trial's finding stays, since the trial only expired; None to erase it too.
    """

    trial_id: str
    who: str
    why: str
    at: datetime
    precedents: Sequence[str] = ()
    outside: bool = False
    keep_days: int | None = None


class Eraser(SqlStore):
    """Erases in one transaction, and then in the picture storage and the database's files."""

    def __init__(self, transactions: Transactions, pictures: ObjectPictures | None) -> None:
        """``pictures`` is None if the database holds the pictures."""
        super().__init__(transactions)
        self._pictures = pictures
        self._removing = threading.Lock()

    async def erase(self, trial_id: str, *, who: str, why: str, at: datetime, precedents: Sequence[str] = ()) -> Erased:
        """Erases a trial's meme and records that in the log. Idempotent: returns the existing erasure.

        Deletes the bodies of its entries, its picture unless another trial has the same, and its data in other tables.
        The records of who viewed it and that it was erased remain, and so do earlier copies of the docket.

        Args:
            precedents: Ids of precedents made from the trial; their texts are erased from all records that quote them.

        Raises:
            TrialUnknown: There is none of that id.
            Unavailable: The erasure can't be done now; or it is done, but files or the picture storage still contain
                some of it (``ERASURE_UNFINISHED``): repeat it.
        """
        # An empty id stands for entries without a trial, such as erasures of precedents alone.
        if not trial_id:
            raise unknown(trial_id)
        (erased,) = await self.erase_all({trial_id: precedents}, who=who, why=why, at=at)
        return erased

    async def erase_all(
        self,
        trials: Mapping[str, Sequence[str]],
        *,
        who: str,
        why: str,
        at: datetime,
        keep_findings_days: int | None = None,
    ) -> Sequence[Erased]:
        """Erases several trials with the precedents made from them, as :meth:`erase` but with one clean-up.

        If one of them is unknown, the others are still erased before the error is raised.

        Args:
            keep_findings_days: Days for which a finding stays in force, with the content's key; None to erase it too.
        """
        outside = self._pictures is not None
        return await self._erase(
            *(
                _Erasure(
                    trial_id=trial_id,
                    who=who,
                    why=why,
                    at=at,
                    precedents=tuple(precedents),
                    outside=outside,
                    keep_days=keep_findings_days,
                )
                for trial_id, precedents in trials.items()
            )
        )

    async def erase_precedent(self, precedent_id: str, *, who: str, why: str, at: datetime) -> Erased:
        """Erases a precedent's texts and picture digests from all records that quote it; as above.

        Later quotes under its id are not stored either. Repeating it adds nothing to the log.
        """
        (erased,) = await self.erase_precedents([precedent_id], who=who, why=why, at=at)
        return erased

    async def erase_precedents(
        self, precedent_ids: Collection[str], *, who: str, why: str, at: datetime
    ) -> Sequence[Erased]:
        """Erases several precedents, or documents by their names in the docket, with one clean-up."""
        return await self._erase(
            *(_Erasure(trial_id="", who=who, why=why, at=at, precedents=(each,)) for each in precedent_ids)
        )

    async def _erase(self, *erasures: _Erasure) -> Sequence[Erased]:
        # Concurrently, so that they share commits. An error of one does not prevent the clean-up of the others.
        found = await asyncio.gather(
            *(self._transactions.write(_ERASE, erasure) for erasure in erasures), return_exceptions=True
        )
        erased = [each for each in found if isinstance(each, Erased)]
        error = next((each for each in found if isinstance(each, BaseException)), None)
        # If some were erased, clean up after these first, and raise the error of the others afterwards.
        if error is not None and not erased:
            raise error
        removed = await asyncio.to_thread(self._remove_pictures)
        if not await asyncio.to_thread(self._transactions.database.scrub, _READERS_S):
            raise Unavailable(
                "It is erased, but a file of the docket still holds it, because somebody has been reading for long. "
                "Ask once more, or close what reads the docket.",
                reason=UNFINISHED,
            )
        if not removed:
            raise Unavailable(
                "It is erased, but its picture could not be removed from where pictures lie. Ask once more when that "
                "place is there again; the next start removes it too.",
                reason=UNFINISHED,
            )
        if error is not None:
            raise error
        return erased

    def _remove_pictures(self) -> bool:
        with self._removing:  # concurrent runs would read what the other has half removed
            return self._pictures is None or remove_erased_pictures(self._transactions.database, self._pictures)


def remove_erased_pictures(database: Database, pictures: ObjectPictures) -> bool:
    """Removes pictures whose last trial was erased; returns False if that has to be tried again later."""
    try:
        with database.reading() as connection:
            leaving = connection.execute(select(t.leaving.c.pixels_sha256)).scalars().all()
        for pixels in leaving:
            if not _has_trial(database, pixels):
                # Read before it is removed, so that it can be restored if a trial of it is opened in between.
                frames = pictures.frames_now(pixels)
                pictures.forget_now(pixels)
                if frames and _has_trial(database, pixels):
                    pictures.keep_now([(pixels, frames)])  # a trial was opened meanwhile, and found it present
            # Only now, so that after a crash before this line the next start removes the picture again.
            with database.writing() as connection:
                connection.execute(delete(t.leaving).where(t.leaving.c.pixels_sha256 == pixels))
        # The list contains digests of erased pictures: what was deleted from it must leave the file too.
        if leaving:
            database.scrub(0.0)
    except Exception as error:
        # Messages of a database or a store may name hosts and pictures, so only the type is logged.
        _log.warning("A picture of an erased trial can't be removed now (%s).", type(error).__name__)
        return False
    return True


def _has_trial(database: Database, pixels_sha256: str) -> bool:
    with database.reading() as connection:
        return _others(connection, pixels_sha256)


def _erase(connection: Connection, erasures: Sequence[_Erasure]) -> Sequence[Erased | CourtError]:
    return [_erase_one(connection, erasure) for erasure in erasures]


def _erase_one(connection: Connection, erasure: _Erasure) -> Erased | CourtError:
    log = open_appender(connection)
    row, entry = t.trials.c, t.entries.c
    numbers: list[int] = []
    if erasure.trial_id:
        # Locked, so that concurrent writes of keys and fingerprints for this trial come entirely before or after.
        query = select(row.erased).where(row.trial_id == erasure.trial_id).with_for_update()
        state = connection.execute(query).scalar_one_or_none()
        if state is None:
            return unknown(erasure.trial_id)
        if state and erasure.keep_days is None:
            erase_finding(connection, erasure.trial_id)  # kept when the trial expired
        # Already erased with all these precedents: repeating the call returns the same and adds no entry.
        if state and set(erasure.precedents) <= buried(connection, erasure.precedents).keys():
            return _erasure_of(connection, erasure.trial_id)
        own = select(entry.number).where(entry.trial_id == erasure.trial_id, t.IS_EVENT, entry.body.is_not(None))
        numbers += connection.execute(own).scalars()
        if not state:
            numbers += _unquoted(connection, erasure.trial_id)
            _forget(connection, erasure.trial_id, outside=erasure.outside, keep_days=erasure.keep_days)
    texts, graves = _bury(connection, erasure)
    numbers = sorted([*numbers, *texts])
    if not (erasure.trial_id or numbers or graves):
        # Already erased: only clean up again what files still contain.
        return Erased(trial_id="", at=erasure.at, who=erasure.who, why=erasure.why, numbers=())
    for first in range(0, len(numbers), _AT_ONCE):
        some = entry.number.in_(numbers[first : first + _AT_ONCE])
        connection.execute(update(t.entries).where(some).values(body=None, salt=None))
    # The remaining listing row can no longer be checked against events, so the erasure's entry repeats it.
    found = connection.execute(select(t.trials).where(row.trial_id == erasure.trial_id)).one_or_none()
    left = {name: value for name, value in found._mapping.items() if name != "trial_id"} if found else {}
    erased = Erased(
        trial_id=erasure.trial_id,
        at=erasure.at,
        who=erasure.who,
        why=erasure.why,
        numbers=tuple(numbers),
        buried=graves,
        left=left,
    )
    # Directly after the graves: readers of erasures find them by counting back from here.
    log.add([EntryDraft.of(erased)])
    log.erased += len(numbers) + graves + bool(erasure.trial_id)
    log.want_checkpoint()
    return erased


def _bury(connection: Connection, erasure: _Erasure) -> tuple[Sequence[int], int]:
    """Unlinks the texts of precedents; returns the numbers of their entries, and how many graves were added."""
    if not erasure.precedents:
        return (), 0
    part, log = t.parts.c, open_appender(connection)
    have = buried(connection, erasure.precedents)
    own = and_(part.of.in_(erasure.precedents), part.number.not_in(have.values()))
    numbers = connection.execute(select(part.number).where(own)).scalars().all()
    connection.execute(delete(t.parts).where(own))
    graves = [(of, "") for of in dict.fromkeys(erasure.precedents) if of not in have]
    # A grave is added even if nothing was quoted, so that later quotes of the precedent refer to it.
    added = log.add([part_draft(grave, t.stamp(erasure.at)) for grave in graves])
    rows = [
        {"key": part_key(grave), "number": number, "of": grave[0]} for grave, number in zip(graves, added, strict=True)
    ]
    if rows:
        connection.execute(insert(t.parts), rows)
    return numbers, len(graves)


def _unquoted(connection: Connection, trial_id: str) -> Sequence[int]:
    """Unlinks the texts of documents that only this trial quotes; returns the numbers of their entries.

    They leave no grave, since another trial may legitimately read the same document.
    """
    use, part, others = t.document_uses.c, t.parts.c, t.document_uses.alias("others")
    by_others = select(others.c.part).where(others.c.part == use.part, others.c.trial_id != trial_id).exists()
    query = select(part.key, part.number).join(t.document_uses, use.part == part.key)
    unshared = connection.execute(query.where(use.trial_id == trial_id, ~by_others)).all()
    for first in range(0, len(unshared), _AT_ONCE):
        keys = [bytes(key) for key, _ in unshared[first : first + _AT_ONCE]]
        connection.execute(delete(t.parts).where(part.key.in_(keys)))
    connection.execute(delete(t.document_uses).where(use.trial_id == trial_id))
    return [number for _, number in unshared]


def _forget(connection: Connection, trial_id: str, *, outside: bool, keep_days: int | None) -> None:
    """Deletes a trial's data from other tables."""
    row = t.trials.c
    for table in (t.known, t.requests, t.fingerprints):
        connection.execute(delete(table).where(table.c.trial_id == trial_id))
    own = row.trial_id == trial_id
    pixels = connection.execute(select(row.pixels_sha256).where(own)).scalar_one()
    erase_finding(connection, trial_id, days=keep_days)
    blank: dict[str, object] = {"review": None, "needs_review": False, "block_stands": False, "heard": False}
    blank |= dict.fromkeys(("content_id", "request_id", "pixels_sha256", "content", "wording", "precedent"), "")
    connection.execute(update(t.trials).where(own).values(**blank, erased=True))
    # A running or interrupted trial must not be resumed.
    still = and_(own, row.state == TrialState.OPEN)
    connection.execute(update(t.trials).where(still).values(state=TrialState.FAILED, failure_reason="ERASED"))
    # For a text without picture, the column contains the text's digest.
    if not is_text_digest(pixels) and not _others(connection, pixels, trial_id):
        connection.execute(delete(t.pictures).where(t.pictures.c.pixels_sha256 == pixels))
        if outside:
            connection.execute(insert_into(connection, t.leaving).on_conflict_do_nothing(), {"pixels_sha256": pixels})
    review_tables.forget(connection, trial_id)


def _others(connection: Connection, pixels_sha256: str, trial_id: str = "") -> bool:
    """True if there is a trial (other than ``trial_id``) of a picture."""
    row = t.trials.c
    query = select(row.trial_id).where(row.pixels_sha256 == pixels_sha256, row.trial_id != trial_id)
    return connection.execute(query.limit(1)).first() is not None


def _erasure_of(connection: Connection, trial_id: str) -> Erased:
    """Reads the log entry of a trial's erasure."""
    entry = t.entries.c
    own = select(entry.body).where(entry.trial_id == trial_id, t.IS_OTHER, entry.kind == "Erased")
    bodies = connection.execute(own.order_by(entry.number).limit(1)).scalars().all()
    return erased_of(unpacked(bodies[0]))


_ERASE = Batch(Rank.ERASE, _erase)
