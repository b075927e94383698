"""What is written to a docket, many of a kind at a time. Whoever calls has opened a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from court.errors import CourtError
from court.events import (
    AnyEvent,
    ReviewOutcome,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from court.meme import Picture
from court.record import TrialState
from serving.docket import tables as t
from serving.docket.store import Claim, NotDecided, RequestConflict, RequestName, TrialUnknown
from serving.docket.writer import Batch


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Asks that one claim stands in the place of another."""

    seen: Claim
    wanted: Claim


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


def _append(connection: Connection, events: Sequence[AnyEvent]) -> Sequence[None]:
    rows = [
        {
            "trial_id": event.trial_id,
            "seq": event.seq,
            "kind": event.kind,
            "at": t.stamp(event.at),
            "body": event.model_dump_json(),
        }
        for event in events
    ]
    connection.execute(insert(t.events), rows)
    if opened := [trial_row(event) for event in events if isinstance(event, TrialOpened)]:
        connection.execute(insert(t.trials), opened)
    for event in sorted(events, key=lambda event: (event.trial_id, event.seq)):
        if change := trial_change(event):
            connection.execute(update(t.trials).where(t.trials.c.trial_id == event.trial_id).values(change))
        if isinstance(event, VerdictReviewed) and event.outcome is ReviewOutcome.OVERRULED:
            connection.execute(delete(t.known).where(t.known.c.trial_id == event.trial_id))
    return [None] * len(events)


def _keep_pictures(connection: Connection, pictures: Sequence[Picture]) -> Sequence[None]:
    rows = [
        {"pixels_sha256": picture.pixels_sha256, "place": place, "png": frame.png}
        for picture in sorted(pictures, key=lambda picture: picture.pixels_sha256)
        for place, frame in enumerate(picture.frames)
    ]
    connection.execute(_insert(connection, t.pictures).on_conflict_do_nothing(), rows)
    return [None] * len(pictures)


def _claim(connection: Connection, asked: Sequence[Claim]) -> Sequence[Claim | CourtError]:
    first: dict[tuple[str, str], Claim] = {}
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

    def answer(ask: Claim) -> Claim | CourtError:
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
        statement = _insert(connection, t.requests).on_conflict_do_nothing()
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


def _take_over(connection: Connection, asked: Sequence[TakeOver]) -> Sequence[Claim | None]:
    def one(ask: TakeOver) -> Claim | None:
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
    statement = _insert(connection, t.servers).on_conflict_do_update(
        index_elements=[t.servers.c.owner], set_={"beats": t.servers.c.beats + 1}
    )
    connection.execute(statement, [{"owner": owner, "beats": 1} for owner in sorted(owners)])
    return [None] * len(owners)


def _rest(connection: Connection, owners: Sequence[str]) -> Sequence[None]:
    statement = _insert(connection, t.servers).on_conflict_do_update(
        index_elements=[t.servers.c.owner], set_={"beats": -1}
    )
    connection.execute(statement, [{"owner": owner, "beats": -1} for owner in sorted(owners)])
    return [None] * len(owners)


def _know(connection: Connection, asked: Sequence[tuple[str, str]]) -> Sequence[None]:
    # The trials stay as they are until this is kept: an overruling comes wholly before it or wholly after.
    row = t.trials.c
    named = {trial_id for _, trial_id in asked}
    held = select(row.trial_id, row.outcome).where(row.trial_id.in_(named)).order_by(row.trial_id)
    outcomes = connection.execute(held.with_for_update(read=True)).all()
    overruled = {trial_id for trial_id, outcome in outcomes if outcome == ReviewOutcome.OVERRULED}
    rows = [{"key": key, "trial_id": trial_id} for key, trial_id in asked if trial_id not in overruled]
    if rows:
        rows.sort(key=lambda row: row["key"])  # the first of a key stays before the later ones
        connection.execute(_insert(connection, t.known).on_conflict_do_nothing(), rows)
    return [None] * len(asked)


def _review(connection: Connection, drafts: Sequence[VerdictReviewed]) -> Sequence[VerdictReviewed | CourtError]:
    return [_review_one(connection, draft) for draft in drafts]


def _review_one(connection: Connection, draft: VerdictReviewed) -> VerdictReviewed | CourtError:
    # Whoever else reviews it waits here.
    held = select(t.trials.c.state).where(t.trials.c.trial_id == draft.trial_id).with_for_update()
    state = connection.execute(held).scalar_one_or_none()
    if state is None:
        return unknown(draft.trial_id)
    if state != TrialState.DECIDED:
        return NotDecided(
            f"Trial {draft.trial_id} has no verdict that could be reviewed: it is running, was cut off, or failed.",
            field="trial_id",
        )
    seq = select(func.max(t.events.c.seq) + 1).where(t.events.c.trial_id == draft.trial_id)
    event = draft.model_copy(update={"seq": connection.execute(seq).scalar_one()})
    _append(connection, [event])
    return event


def _keep_looks(connection: Connection, asked: Sequence[tuple[str, bytes]]) -> Sequence[None]:
    if connection.dialect.name == "postgresql":
        # A sequence gives numbers before the commit, and commits may overtake each other: one after the other.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('memecourt.looks'))"))
    rows = [{"trial_id": trial_id, "look": look} for trial_id, look in asked]
    connection.execute(_insert(connection, t.looks).on_conflict_do_nothing(index_elements=[t.looks.c.trial_id]), rows)
    return [None] * len(asked)


def claim_in(row: Any) -> Claim:
    """The claim in a row of the requests."""
    return Claim(RequestName(row.namespace, row.request_id), row.payload, row.trial_id, row.owner)


def unknown(trial_id: str) -> TrialUnknown:
    """The error for a trial that is not there."""
    return TrialUnknown(
        f"There is no trial {trial_id} in this docket. `memecourt records list` shows those that are.",
    )


def taken_over(seen: Claim, owner: str, trial_id: str | None) -> TakeOver:
    """What is asked for by :meth:`serving.docket.store.Docket.take_over`."""
    return TakeOver(seen, replace(seen, owner=owner, trial_id=seen.trial_id if trial_id is None else trial_id))


def _insert(connection: Connection, table: Any) -> Any:
    """An insert that can say what happens where a row is there already: each database has its own."""
    return {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[connection.dialect.name](table)


CLAIM = Batch(1, _claim)
TAKE_OVER = Batch(2, _take_over)
PICTURE = Batch(3, _keep_pictures)
APPEND = Batch(4, _append)
REVIEW = Batch(5, _review)
KNOW = Batch(6, _know)
BEAT = Batch(7, _beat)
REST = Batch(8, _rest)
LOOK = Batch(9, _keep_looks)
