"""Findings of people by content key: a table that is folded from the log in the transaction that appends the event."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update

from court.events import AnyEvent, AppealOpened, SecondOpinionAsked, VerdictReviewed
from court.in_force import CaseNotes, ContentKey, PersonFinding
from court.verdict import Label
from serving.docket.store import tables as t
from serving.docket.store.bodies import event_in, unpacked
from serving.docket.store.transactions import SqlStore

HEARD: Final = frozenset({kind.__name__ for kind in (VerdictReviewed, SecondOpinionAsked, AppealOpened)})
"""Kinds of the events that change a finding."""

_row, _found, _entry = t.trials.c, t.findings.c, t.entries.c
COLUMNS: Final = tuple(
    column.label(f"found_{column.name}")
    for column in t.findings.c
    if column.name not in ("content", "wording", "notes")
)
"""Columns of a finding, for a query that joins it."""
SAME_CONTENT: Final = and_(_row.content == _found.content, _row.wording == _found.wording)
_ABOUT = select(*COLUMNS).select_from(t.trials.join(t.findings, SAME_CONTENT))
_SOME = (*HEARD, "Erased")


@dataclass(frozen=True, slots=True)
class FindingChanges:
    """Changes of findings since an entry of the log.

    Attributes:
        size: Number of entries of the log that were taken into account.
        trials: Trials that were reviewed, contested or erased.
        contents: Content of those that are still there.
    """

    size: int
    trials: frozenset[str]
    contents: frozenset[ContentKey]


class FindingStore(SqlStore):
    """Reads the table of findings."""

    async def get(self, content: ContentKey) -> PersonFinding | None:
        """Returns the finding about content, or None."""
        query = select(*COLUMNS).where(_at(content))
        return await self._transactions.read_batched(lambda connection: _one(connection.execute(query).one_or_none()))

    async def expire(self, now: datetime) -> None:
        """Deletes findings of expired trials that rule no longer."""
        ended = delete(t.findings).where(_found.until != "", _found.until <= t.stamp(now))
        await self._transactions.write_alone(lambda connection: connection.execute(ended))

    async def changes(self, since: int | None) -> FindingChanges:
        """Returns the changes by entries from the number ``since`` on; None for the log's size alone."""

        def read(connection: Connection) -> FindingChanges:
            # First: an entry that comes meanwhile is read again, and none is missed.
            size = connection.execute(select(t.log.c.size)).scalar_one()
            if since is None:
                return FindingChanges(size, frozenset(), frozenset())
            # By kind, so that both databases use the index, whatever else was appended.
            query = select(_entry.trial_id, _row.content, _row.wording).outerjoin(
                t.trials, _row.trial_id == _entry.trial_id
            )
            rows = [
                row
                for kind in _SOME
                for row in connection.execute(query.where(_entry.kind == kind, _entry.number >= since))
            ]
            contents = frozenset(ContentKey(row.content, row.wording) for row in rows if row.content)
            return FindingChanges(size, frozenset(row.trial_id for row in rows), contents)

        return await self._transactions.read_batched(read)


def found_in(row: Any) -> PersonFinding | None:
    """Returns the finding in a row of a query with :data:`COLUMNS`; None if there is none, or it has ended."""
    if row.found_trial_id is None:
        return None
    until = datetime.fromisoformat(row.found_until) if row.found_until else None
    if until is not None and until <= datetime.now(UTC):
        return None
    return PersonFinding(
        label=Label(row.found_label) if row.found_label else None,
        at=datetime.fromisoformat(row.found_at),
        trial_id=row.found_trial_id,
        contested=row.found_contested,
        acquitters=row.found_acquitters,
        policy=row.found_policy,
        until=until,
    )


def finding_about(connection: Connection, trial_id: str) -> PersonFinding | None:
    """Returns the finding about the content of a trial, or None."""
    return _one(connection.execute(_ABOUT.where(_row.trial_id == trial_id)).one_or_none())


def update_finding(connection: Connection, event: AnyEvent) -> None:
    """Goes on with the case about the content of a trial, whose row has been updated."""
    query = select(_row.content, _row.wording, _row.policy).where(_row.trial_id == event.trial_id, _row.content != "")
    for meme, text, policy in connection.execute(query).all():
        content = ContentKey(meme, text)
        rules = or_(_found.until == "", _found.until > t.stamp(datetime.now(UTC)))
        stored = connection.execute(select(_found.notes).where(_at(content), rules)).scalar_one_or_none()
        notes = CaseNotes.model_validate_json(stored) if stored else CaseNotes()
        _put(connection, content, notes.then(event, policy))


def erase_finding(connection: Connection, trial_id: str, *, days: int | None = None) -> None:
    """Removes what a trial says about its content, before its row is blanked.

    Args:
        days: Days for which a finding stays whose trial has expired; None for an erasure, after which none does.
    """
    own = _found.trial_id == trial_id
    before = _one(connection.execute(select(*COLUMNS).where(own)).one_or_none()) if days is not None else None
    if before is not None and days is not None and (until := before.at + timedelta(days=days)) > datetime.now(UTC):
        # Without the names of its reviewers.
        notes = CaseNotes(
            label=before.label, at=before.at, trial_id=trial_id, contested=before.contested, policy=before.policy
        ).model_dump_json()
        connection.execute(update(t.findings).where(own).values(until=t.stamp(until), notes=notes))
        return
    connection.execute(delete(t.findings).where(own))
    query = select(_row.content, _row.wording).where(_row.trial_id == trial_id, _row.content != "", _row.heard)
    for content in connection.execute(query).all():
        # Without this trial: an earlier finding about another trial of the same content is in force again.
        _fold(connection, ContentKey(*content), without=trial_id)


def _fold(connection: Connection, content: ContentKey, *, without: str) -> None:
    """Folds anew the finding about content from all trials but one."""
    before = _one(connection.execute(select(*COLUMNS).where(_at(content))).one_or_none())
    same = (_row.content == content.meme, _row.wording == content.text, _row.trial_id != without, _row.heard)
    query = select(_entry.body, _row.policy).join(t.trials, _row.trial_id == _entry.trial_id)
    query = query.where(*same, t.IS_EVENT, _entry.kind.in_(HEARD), _entry.body.is_not(None)).order_by(_entry.number)
    notes = CaseNotes()
    for body, policy in connection.execute(query):
        with suppress(ValueError):  # somebody altered it, which `memecourt docket verify` reports
            notes = notes.then(event_in(unpacked(bytes(body)), {}), policy)
    # That of an expired trial is replaced only by a later one.
    if before is None or before.until is None or (notes.at and notes.at > before.at):
        _put(connection, content, notes)


def _put(connection: Connection, content: ContentKey, notes: CaseNotes) -> None:
    connection.execute(delete(t.findings).where(_at(content)))
    if (found := notes.finding) is None:
        return
    row = {
        "content": content.meme,
        "wording": content.text,
        "trial_id": found.trial_id,
        "label": str(found.label or ""),
        "at": t.stamp(found.at),
        "contested": found.contested,
        "acquitters": found.acquitters,
        "policy": found.policy,
        "notes": notes.model_dump_json(),
        "until": "",
    }
    connection.execute(insert(t.findings), row)


def _at(content: ContentKey) -> ColumnElement[bool]:
    return and_(_found.content == content.meme, _found.wording == content.text)


def _one(row: Any) -> PersonFinding | None:
    return None if row is None else found_in(row)
