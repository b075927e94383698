"""What is written to a docket, many of a kind at a time. Whoever calls has opened a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text, true, tuple_, update

from court.errors import CourtError
from court.events import (
    AnyEvent,
    ReviewOutcome,
    SecondOpinionAsked,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from court.meme import Picture
from court.record import TrialState
from serving.docket.log.entries import NO_SEQ, PictureShown, body_of
from serving.docket.ports import Lease, NotDecided, RequestConflict, RequestName, TrialErased, TrialUnknown
from serving.docket.store import tables as t
from serving.docket.store.bodies import PART, Part, bodies, part_body, part_key
from serving.docket.store.database import insert_into
from serving.docket.store.group_commit import Batch
from serving.docket.store.log_append import EntryDraft, LogAppender, open_appender

_AT_ONCE = 500  # keys in one query


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Asks that one claim stands in the place of another."""

    seen: Lease
    wanted: Lease


def trial_row(opened: TrialOpened) -> dict[str, Any]:
    """The row of a trial that has just been opened."""
    return {
        "trial_id": opened.trial_id,
        "opened_at": t.stamp(opened.at),
        "procedure": str(opened.procedure),
        "namespace": opened.meme.namespace,
        "content_id": opened.meme.content_id,
        "request_id": opened.request_id,
        "pixels_sha256": opened.meme.pixels_sha256,
        "state": str(TrialState.OPEN),
        "label": "",
        "needs_review": False,
        "outcome": "",
        "review": None,
        "failure_reason": "",
    }


def trial_change(event: AnyEvent) -> dict[str, Any]:
    """What an event changes in the row of its trial; empty where it changes nothing."""
    match event:
        case VerdictGiven():
            return {
                "state": str(TrialState.DECIDED),
                "label": str(event.verdict.label),
                "needs_review": event.verdict.needs_human_review,
                "failure_reason": "",
            }
        case TrialFailed():
            return {"state": str(TrialState.FAILED), "failure_reason": event.reason}
        case TrialResumed():
            return {"state": str(TrialState.OPEN), "failure_reason": ""}
        case VerdictReviewed():
            return {"outcome": str(event.outcome), "review": event.model_dump_json()}
    return {}


def log_events(connection: Connection, log: LogAppender, events: Sequence[AnyEvent]) -> None:
    """Adds the entries of events to the log, and those of the parts that they quote."""

    def numbers(parts: Sequence[Part]) -> Mapping[Part, int]:
        graves = buried(connection, sorted({of for of, _ in parts})) if log.erased else {}
        found: dict[Part, int] = {part: graves[part[0]] for part in parts if part[0] in graves}
        keys = {part_key(part): part for part in parts if part not in found}
        for some in _some(list(keys)):
            query = select(t.parts.c.key, t.parts.c.number).where(t.parts.c.key.in_(some))
            found |= {keys[bytes(key)]: number for key, number in connection.execute(query)}
        if new := [part for part in parts if part not in found]:
            now = t.stamp(datetime.now(UTC))
            added = log.add([EntryDraft(PART, "", NO_SEQ, now, part_body(part)) for part in new])
            rows = [
                {"key": part_key(part), "number": number, "of": part[0]}
                for part, number in zip(new, added, strict=True)
            ]
            connection.execute(insert(t.parts), rows)
            found |= dict(zip(new, added, strict=True))
        return found

    told = bodies(events, numbers)
    log.add(
        [
            EntryDraft(event.kind, event.trial_id, event.seq, t.stamp(event.at), body)
            for event, body in zip(events, told, strict=True)
        ]
    )


def buried(connection: Connection, precedents: Sequence[str]) -> Mapping[str, int]:
    """Of these precedents those that were erased, and the entry that stands for all that is quoted of each."""
    keys = {part_key((of, "")): of for of in precedents}
    found: dict[str, int] = {}
    for some in _some(list(keys)):
        query = select(t.parts.c.key, t.parts.c.number).where(t.parts.c.key.in_(some))
        found |= {keys[bytes(key)]: number for key, number in connection.execute(query)}
    return found


def _append(connection: Connection, asked: Sequence[Sequence[AnyEvent]]) -> Sequence[None]:
    events = [event for together in asked for event in together]
    log = open_appender(connection)
    if log.erased:
        _refuse_erased(connection, {event.trial_id for event in events})
    log_events(connection, log, events)
    if opened := [trial_row(event) for event in events if isinstance(event, TrialOpened)]:
        connection.execute(insert(t.trials), opened)
    for event in sorted(events, key=lambda event: (event.trial_id, event.seq)):
        if change := trial_change(event):
            connection.execute(update(t.trials).where(t.trials.c.trial_id == event.trial_id).values(change))
        if isinstance(event, VerdictReviewed) and event.outcome is ReviewOutcome.OVERRULED:
            connection.execute(delete(t.known).where(t.known.c.trial_id == event.trial_id))
        if isinstance(event, VerdictGiven):
            log.want_checkpoint()  # as its receipt
    return [None] * len(asked)


def _some(keys: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (keys[first : first + _AT_ONCE] for first in range(0, len(keys), _AT_ONCE))


def _refuse_erased(connection: Connection, trial_ids: Collection[str]) -> None:
    """What was erased while a process still worked on it must not come back."""
    query = select(t.trials.c.trial_id).where(t.trials.c.trial_id.in_(trial_ids), t.trials.c.erased).limit(1)
    if (found := connection.execute(query).scalar_one_or_none()) is not None:
        raise erased(found)


def _note(connection: Connection, accesses: Sequence[PictureShown]) -> Sequence[CourtError | None]:
    log = open_appender(connection)
    named = {access.trial_id for access in accesses}
    query = select(t.trials.c.trial_id, t.trials.c.erased).where(t.trials.c.trial_id.in_(named))
    there = {trial_id: gone for trial_id, gone in connection.execute(query)}
    log.add(
        [
            EntryDraft(access.kind, access.trial_id, NO_SEQ, t.stamp(access.at), body_of(access).encode())
            for access in accesses
            if there.get(access.trial_id) is False
        ]
    )
    errors = {trial_id: erased(trial_id) if trial_id in there else unknown(trial_id) for trial_id in named}
    return [None if there.get(access.trial_id) is False else errors[access.trial_id] for access in accesses]


def _seal(connection: Connection, asked: Sequence[None]) -> Sequence[None]:
    open_appender(connection).want_checkpoint()
    return [None] * len(asked)


def _keep_pictures(connection: Connection, pictures: Sequence[Picture]) -> Sequence[None]:
    rows = [
        {"pixels_sha256": picture.pixels_sha256, "place": place, "png": frame.png}
        for picture in sorted(pictures, key=lambda picture: picture.pixels_sha256)
        for place, frame in enumerate(picture.frames)
    ]
    connection.execute(insert_into(connection, t.pictures).on_conflict_do_nothing(), rows)
    return [None] * len(pictures)


def drop_pictures(connection: Connection, pixels: Sequence[str]) -> None:
    """Takes pictures out that are kept elsewhere."""
    connection.execute(delete(t.pictures).where(t.pictures.c.pixels_sha256.in_(pixels)))


def _claim(connection: Connection, asked: Sequence[Lease]) -> Sequence[Lease | CourtError]:
    first: dict[tuple[str, str], Lease] = {}
    for ask in asked:
        first.setdefault((ask.name.namespace, ask.name.request_id), ask)
    key = (t.requests.c.namespace, t.requests.c.request_id)
    rows = [
        {
            "namespace": namespace,
            "request_id": id_,
            "payload": ask.payload,
            "trial_id": ask.trial_id,
            "owner": ask.owner,
        }
        for (namespace, id_), ask in sorted(first.items())
    ]
    standing = {name: first[name] for name in _made(connection, rows)}
    if others := [name for name in first if name not in standing]:
        for row in connection.execute(select(t.requests).where(tuple_(*key).in_(others))):
            standing[row.namespace, row.request_id] = claim_in(row)

    def answer(ask: Lease) -> Lease | CourtError:
        stands = standing[ask.name.namespace, ask.name.request_id]
        if stands.payload != ask.payload:
            return RequestConflict(
                "Another request was sent under this request_id before. Send a new request under a new one; to repeat "
                "the old one, send exactly what was sent then.",
            )
        return stands

    return [answer(ask) for ask in asked]


def _made(connection: Connection, rows: Sequence[dict[str, str]]) -> Iterable[tuple[str, str]]:
    """Inserts claims where there are none; those of the names that were not there before, or none where it is not sure.

    Every known meme that is asked for is one such row. In SQLite each step of a statement gives up the interpreter, and
    each row that comes back is a step: so all rows are one step, and none comes back.
    """
    if connection.dialect.name != "sqlite":
        statement = insert_into(connection, t.requests).on_conflict_do_nothing()
        return [
            (n, id_)
            for n, id_ in connection.execute(statement.returning(*t.requests.c["namespace", "request_id"]), rows)
        ]
    columns = [t.requests.c[name] for name in rows[0]]
    # As the columns would have it: names are written in a form of their own.
    written = [(column.name, column.type.bind_processor(connection.dialect) or str) for column in columns]
    places = ", ".join(["(" + ", ".join("?" * len(columns)) + ")"] * len(rows))
    statement = f"INSERT INTO requests ({', '.join(rows[0])}) VALUES {places} ON CONFLICT DO NOTHING"
    made = connection.exec_driver_sql(statement, tuple(form(row[name]) for row in rows for name, form in written))
    return [(row["namespace"], row["request_id"]) for row in rows] if made.rowcount == len(rows) else []


def _take_over(connection: Connection, asked: Sequence[TakeOver]) -> Sequence[Lease | None]:
    def one(ask: TakeOver) -> Lease | None:
        row, seen = t.requests.c, ask.seen
        changed = connection.execute(
            update(t.requests)
            .where(
                row.namespace == seen.name.namespace,
                row.request_id == seen.name.request_id,
                row.owner == seen.owner,
                row.trial_id == seen.trial_id,
            )
            .values(owner=ask.wanted.owner, trial_id=ask.wanted.trial_id)
        )
        return ask.wanted if changed.rowcount == 1 else None

    return [one(ask) for ask in asked]


def _beat(connection: Connection, owners: Sequence[str]) -> Sequence[None]:
    statement = insert_into(connection, t.servers).on_conflict_do_update(
        index_elements=[t.servers.c.owner], set_={"beats": t.servers.c.beats + 1}
    )
    connection.execute(statement, [{"owner": owner, "beats": 1} for owner in sorted(owners)])
    return [None] * len(owners)


def _rest(connection: Connection, gone: Sequence[tuple[str, int | None]]) -> Sequence[None]:
    for owner, count in sorted(gone, key=lambda each: each[0]):
        still = true() if count is None else t.servers.c.beats == count
        connection.execute(delete(t.servers).where(t.servers.c.owner == owner, still))
    return [None] * len(gone)


def _know(connection: Connection, asked: Sequence[tuple[str, str]]) -> Sequence[None]:
    # The trials stay as they are until this is kept: an overruling comes wholly before it or wholly after.
    row = t.trials.c
    named = {trial_id for _, trial_id in asked}
    held = select(row.trial_id, row.outcome, row.erased).where(row.trial_id.in_(named)).order_by(row.trial_id)
    outcomes = connection.execute(held.with_for_update(read=True)).all()
    unfit = {trial_id for trial_id, outcome, gone in outcomes if gone or outcome == ReviewOutcome.OVERRULED}
    rows = [{"key": key, "trial_id": trial_id} for key, trial_id in asked if trial_id not in unfit]
    if rows:
        rows.sort(key=lambda row: row["key"])  # the first of a key stays before the later ones
        connection.execute(insert_into(connection, t.known).on_conflict_do_nothing(), rows)
    return [None] * len(asked)


Said = VerdictReviewed | SecondOpinionAsked
"""By people, once there is a verdict; its number is given here."""


def _review(connection: Connection, drafts: Sequence[Said]) -> Sequence[Said | CourtError]:
    open_appender(connection)  # before any trial is held: whoever appends holds the log first, and a trial after it
    return [keep_said(connection, draft) for draft in drafts]


def keep_said(connection: Connection, draft: Said) -> Said | CourtError:
    """Keeps what somebody says of a verdict, in a transaction that holds the log; the event with its number."""
    # Whoever else reviews it waits here.
    held = select(t.trials.c.state, t.trials.c.erased).where(t.trials.c.trial_id == draft.trial_id).with_for_update()
    row = connection.execute(held).one_or_none()
    if row is None:
        return unknown(draft.trial_id)
    if row.erased:
        return erased(draft.trial_id)
    if row.state != TrialState.DECIDED:
        return NotDecided(
            f"Trial {draft.trial_id} has no verdict that could be reviewed: it is running, was cut off, or failed.",
            field="trial_id",
        )
    own = (t.entries.c.trial_id == draft.trial_id, t.IS_EVENT)
    seq = select(func.max(t.entries.c.seq) + 1).where(*own)
    event = draft.model_copy(update={"seq": connection.execute(seq).scalar_one()})
    _append(connection, [[event]])
    return event


def _keep_looks(connection: Connection, asked: Sequence[tuple[str, bytes]]) -> Sequence[None]:
    if connection.dialect.name == "postgresql":
        # A sequence gives numbers before the commit, and commits may overtake each other: one after the other.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('memecourt.looks'))"))
    # Those of trials that are being erased now wait until that is done, or the other way round.
    row = t.trials.c
    held = select(row.trial_id, row.erased).where(row.trial_id.in_({trial_id for trial_id, _ in asked}))
    states = connection.execute(held.order_by(row.trial_id).with_for_update(read=True)).all()
    gone = {trial_id for trial_id, is_gone in states if is_gone}
    rows = [{"trial_id": trial_id, "look": look} for trial_id, look in asked if trial_id not in gone]
    if not rows:
        return [None] * len(asked)
    connection.execute(
        insert_into(connection, t.looks).on_conflict_do_nothing(index_elements=[t.looks.c.trial_id]), rows
    )
    return [None] * len(asked)


def claim_in(row: Any) -> Lease:
    """The claim in a row of the requests."""
    return Lease(RequestName(row.namespace, row.request_id), row.payload, row.trial_id, row.owner)


def unknown(trial_id: str) -> TrialUnknown:
    """The error for a trial that is not there."""
    return TrialUnknown(
        f"There is no trial {trial_id} in this docket. `memecourt records list` shows those that are.",
    )


def erased(trial_id: str) -> TrialErased:
    """The error for a trial whose record was erased."""
    return TrialErased(f"The record of trial {trial_id} was erased; its entries in the log say when, by whom and why.")


def taken_over(seen: Lease, owner: str, trial_id: str | None) -> TakeOver:
    """What is asked for by :meth:`serving.docket.ports.Docket.take_over`."""
    return TakeOver(seen, replace(seen, owner=owner, trial_id=seen.trial_id if trial_id is None else trial_id))


CLAIM = Batch(1, _claim)
TAKE_OVER = Batch(2, _take_over)
PICTURE = Batch(3, _keep_pictures)
APPEND = Batch(4, _append)
REVIEW = Batch(5, _review)
KNOW = Batch(6, _know)
BEAT = Batch(7, _beat)
REST = Batch(8, _rest)
LOOK = Batch(9, _keep_looks)
NOTE = Batch(10, _note)
SEAL = Batch(11, _seal)
