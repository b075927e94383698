"""Trials in the database: their events, written to the log and to the listing at once, and read back as records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, insert, select, update
from typing_extensions import override

from court.events import EVENT_KINDS, AnyEvent, ReviewWithdrawn, TrialFailed, TrialOpened, VerdictGiven, VerdictReviewed
from court.in_force import DEFAULT_RULES, FindingRules, content_key, sent_text_key
from court.meme import Picture
from court.record import TrialRecord, TrialState
from serving.docket.log.entries import NO_SEQ
from serving.docket.ports import TrialReader, TrialWriter
from serving.docket.store import log_queries
from serving.docket.store import tables as t
from serving.docket.store.bodies import (
    PART,
    Part,
    bodies,
    event_in,
    is_document,
    part_body,
    part_key,
    parts_in,
    unpacked,
)
from serving.docket.store.listing import finding_about, standing_review, update_finding
from serving.docket.store.log_append import EntryDraft, LogAppender, open_appender
from serving.docket.store.pictures import WRITE_PICTURE, ObjectPictures, frames_in_table
from serving.docket.store.tables import erased, insert_into, no_record, unknown
from serving.docket.store.transactions import Batch, Rank, SqlStore, Transactions

_row, _entry = t.trials.c, t.entries.c
_AT_ONCE = 500  # keys in one query
LISTED_KINDS = frozenset(kind.__name__ for kind in EVENT_KINDS if kind.listed)
"""Kinds of events that the listing is derived from (:func:`trial_change`); others don't affect it."""
N = TypeVar("N")

# Every trial and every watcher asks for them. Made once: to put a statement together takes longer than to run it.
_EVENTS = (
    select(_entry.kind, _entry.body)
    .where(_entry.trial_id == bindparam("trial_id"), t.IS_EVENT, _entry.seq >= bindparam("from_seq"))
    .order_by(_entry.seq)
)


class _StoreWithPictures(SqlStore):
    """A store of trials whose pictures lie in a table, or outside of the database."""

    def __init__(self, transactions: Transactions, pictures: ObjectPictures | None) -> None:
        """Reads nothing yet; ``pictures`` is None where they lie in the database."""
        super().__init__(transactions)
        self._pictures = pictures


class SqlTrialWriter(_StoreWithPictures, TrialWriter):
    """Appends events to the log, and stores pictures."""

    @override
    async def append(self, *events: AnyEvent) -> None:
        await self._transactions.write(_APPEND, events)

    @override
    async def keep_picture(self, picture: Picture) -> None:
        if self._pictures is None:
            await self._transactions.write_unlogged(WRITE_PICTURE, picture)
            return
        self._transactions.check_open()
        await self._pictures.keep(picture.pixels_sha256, [frame.png for frame in picture.frames])


class SqlTrialReader(_StoreWithPictures, TrialReader):
    """Reads records from the log, and the pictures that belong to them."""

    def __init__(
        self, transactions: Transactions, pictures: ObjectPictures | None, rules: FindingRules = DEFAULT_RULES
    ) -> None:
        """Reads nothing yet; ``rules`` say what follows from the findings of people."""
        super().__init__(transactions, pictures)
        self._rules = rules

    @override
    async def record(self, trial_id: str) -> TrialRecord:
        events, found = await self._transactions.read(
            lambda connection: (_events(connection, trial_id, 0), finding_about(connection, trial_id))
        )
        try:
            return TrialRecord(tuple(events), found=found, rules=self._rules)
        except ValueError as error:
            raise no_record(trial_id) from error

    @override
    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        return await self._transactions.read(lambda connection: _events(connection, trial_id, from_seq))

    @override
    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        if self._pictures is None:
            return await self._transactions.read(lambda connection: frames_in_table(connection, pixels_sha256))
        self._transactions.check_open()
        return await self._pictures.frames(pixels_sha256)


def trial_row(opened: TrialOpened) -> dict[str, Any]:
    """The row of a trial that has just been opened."""
    return {
        "trial_id": opened.trial_id,
        "opened_at": t.stamp(opened.at),
        "procedure": str(opened.procedure),
        "namespace": opened.meme.namespace,
        "content_id": opened.meme.content_id,
        "request_id": opened.request_id,
        "pixels_sha256": opened.meme.digest,
        "state": str(TrialState.OPEN),
        "label": "",
        "needs_review": False,
        "block_stands": False,
        "outcome": "",
        "review": None,
        "failure_reason": "",
        "content": content_key(opened.meme.namespace, opened.policy.id, opened.meme.digest, None).meme,
        "wording": "",
        "policy": opened.policy.digest,
        "precedent": "",
        "heard": False,
    }


def trial_change(event: AnyEvent, standing: Callable[[str], VerdictReviewed | None] = lambda _: None) -> dict[str, Any]:
    """Changes that an event makes to the row of its trial, by column; empty where it makes none.

    Args:
        standing: Returns the review of a trial that stands after a withdrawal, by the trial's id.
    """
    change: dict[str, Any] = {}
    if event.by_person:
        change["heard"] = True
    if event.sent_text is not None:
        change["wording"] = sent_text_key(event.sent_text)
    # The row of a trial that is opened has its state already. One that failed and was resumed has no failure from then.
    if event.state is not None and not isinstance(event, TrialOpened):
        change |= {"state": str(event.state), "failure_reason": event.reason if isinstance(event, TrialFailed) else ""}
    match event:
        case VerdictGiven():
            change |= {
                "label": str(event.verdict.label),
                "needs_review": event.verdict.needs_human_review,
                "block_stands": event.verdict.block_stands,
                "precedent": event.precedent,
            }
        case VerdictReviewed() | ReviewWithdrawn():
            left = event if isinstance(event, VerdictReviewed) else standing(event.trial_id)
            change |= {"outcome": str(left.outcome) if left else "", "review": left and left.model_dump_json()}
    return change


def log_events(connection: Connection, log: LogAppender, events: Sequence[AnyEvent]) -> None:
    """Appends to the log the entries of events and of the parts that they quote."""
    documents: dict[int, list[Part]] = {}

    def numbers(parts: Sequence[Part]) -> Mapping[Part, int]:
        # Most dockets have erased nothing and skip this query.
        graves = buried(connection, sorted({of for of, _ in parts})) if log.erased else {}
        found: dict[Part, int] = {part: graves[part[0]] for part in parts if part[0] in graves}
        found |= _numbers_of(connection, {part_key(part): part for part in parts if part not in found})
        if new := [part for part in parts if part not in found]:
            now = t.stamp(datetime.now(UTC))
            added = log.add([part_draft(part, now) for part in new])
            rows = [
                {"key": part_key(part), "number": number, "of": part[0]}
                for part, number in zip(new, added, strict=True)
            ]
            # The log is locked, so no other writer adds the same parts.
            connection.execute(insert(t.parts), rows)
            found |= dict(zip(new, added, strict=True))
        for part in parts:
            if is_document(part[0]):
                documents.setdefault(found[part], []).append(part)
        return found

    stored = bodies(events, numbers)
    if documents:
        # Read back from the bodies, which are what counts: who else quotes a text decides whether it goes with a trial.
        uses = {
            (part_key(part), event.trial_id)
            for event, body in zip(events, stored, strict=True)
            for number in parts_in(event.kind, body.decode())
            for part in documents.get(number, ())
        }
        rows = [{"part": key, "trial_id": trial_id} for key, trial_id in sorted(uses)]
        connection.execute(insert_into(connection, t.document_uses).on_conflict_do_nothing(), rows)
    log.add(
        [
            EntryDraft(kind=event.kind, trial_id=event.trial_id, seq=event.seq, at=t.stamp(event.at), body=body)
            for event, body in zip(events, stored, strict=True)
        ]
    )


def part_draft(part: Part, at: str) -> EntryDraft:
    """The entry of a part that events quote, as yet without a number."""
    return EntryDraft(kind=PART, trial_id="", seq=NO_SEQ, at=at, body=part_body(part))


def buried(connection: Connection, precedents: Sequence[str]) -> Mapping[str, int]:
    """Erased ones among these precedents, each with the entry that stands for all that is quoted of it."""
    return _numbers_of(connection, {part_key((of, "")): of for of in precedents})


def append_events(connection: Connection, batches: Sequence[Sequence[AnyEvent]]) -> Sequence[None]:
    """Appends events to the log and to the listing, in a transaction that is signed at its end."""
    events = [event for together in batches for event in together]
    log = open_appender(connection)
    if log.erased:
        _refuse_erased(connection, {event.trial_id for event in events})
    log_events(connection, log, events)
    if opened := [trial_row(event) for event in events if isinstance(event, TrialOpened)]:
        connection.execute(insert(t.trials), opened)
    # By trial and number: several events of a trial may be in one commit, and its row has to follow the last of them.
    for event in sorted(events, key=lambda event: (event.trial_id, event.seq)):
        if change := trial_change(event, partial(standing_review, connection)):
            connection.execute(update(t.trials).where(t.trials.c.trial_id == event.trial_id).values(change))
        if event.state is TrialState.DECIDED:
            log.want_checkpoint()  # as the verdict's receipt
    # In the order of the log, since trials of the same content share a finding.
    for event in events:
        if event.by_person:
            update_finding(connection, event)
    return [None] * len(batches)


def _numbers_of(connection: Connection, named: Mapping[bytes, N]) -> dict[N, int]:
    """Returns the entries of parts, by the names that are given for their keys; unknown ones are missing."""
    keys, found = list(named), dict[N, int]()
    # In batches: databases limit the number of parameters of a statement.
    for first in range(0, len(keys), _AT_ONCE):
        query = select(t.parts.c.key, t.parts.c.number).where(t.parts.c.key.in_(keys[first : first + _AT_ONCE]))
        found |= {named[bytes(key)]: number for key, number in connection.execute(query)}
    return found


def _refuse_erased(connection: Connection, trial_ids: Collection[str]) -> None:
    """Raises TrialErased for erased trials: one erased while a process still worked on it must not come back."""
    query = select(t.trials.c.trial_id).where(t.trials.c.trial_id.in_(trial_ids), t.trials.c.erased).limit(1)
    if (found := connection.execute(query).scalar_one_or_none()) is not None:
        raise erased(found)


def _events(connection: Connection, trial_id: str, from_seq: int) -> Sequence[AnyEvent]:
    rows = connection.execute(_EVENTS, {"trial_id": trial_id, "from_seq": from_seq}).all()
    if not rows or any(body is None for _, body in rows):
        gone = connection.execute(select(_row.erased).where(_row.trial_id == trial_id)).scalar_one_or_none()
        if gone:
            raise erased(trial_id)
        # Where the trial is known, having no events from that number on is no error.
        own = (_entry.trial_id == trial_id, t.IS_EVENT)
        if not rows and connection.execute(select(_entry.seq).where(*own).limit(1)).first() is None:
            raise unknown(trial_id)
    try:
        # A body that is gone without an erasure is read as an empty one, which makes this no record.
        bodies = [(kind, unpacked(bytes(body or b""))) for kind, body in rows]
        quoted = set[int]().union(*(parts_in(kind, body) for kind, body in bodies))
        found = log_queries.parts(connection, quoted) if quoted else {}
        return [event_in(body, found) for _, body in bodies]
    except ValueError as error:
        raise no_record(trial_id) from error


_APPEND = Batch(Rank.APPEND, append_events)
