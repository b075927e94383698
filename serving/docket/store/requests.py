"""Stores of what answers a request: leases by compare-and-set, server heartbeats, and verdicts to reuse.

Verdicts are reused by keys for the same meme and by fingerprints for near-duplicates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, or_, select, text, true, tuple_, update

from court.errors import CourtError
from court.events import ReviewOutcome
from court.in_force import ContentKey
from court.record import TrialState
from serving.docket.errors import RequestConflict
from serving.docket.store import tables as t
from serving.docket.store.tables import insert_into
from serving.docket.store.transactions import Batch, Rank, SqlStore


@dataclass(frozen=True, slots=True)
class RequestName:
    """Name of a request, unique within the docket."""

    namespace: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease on a request: the server that answers it, and with which trial.

    Attributes:
        trial_id: Id of the trial that answers the request; it may have ended, be running, or not have started.
    """

    name: RequestName
    payload: str
    trial_id: str
    owner: str
    content_id: str = ""


# Used by every request and built once: building a statement takes longer than running it.
_CLAIM_OF = select(t.requests).where(
    t.requests.c.namespace == bindparam("namespace"), t.requests.c.request_id == bindparam("request_id")
)


@dataclass(frozen=True, slots=True)
class _TakeOver:
    """Request to replace one lease by another."""

    current: Lease
    replacement: Lease


class LeaseStore(SqlStore):
    """Leases, in the table of requests, which is not part of the log."""

    async def claim(self, name: RequestName, *, payload: str, trial_id: str, owner: str, content_id: str = "") -> Lease:
        """Acquires the lease on a request unless there is one; returns the current lease.

        Of concurrent callers, in any process, one succeeds and all get its lease.

        Raises:
            RequestConflict: The name belongs to a different request.
            Unavailable: The lease can't be stored now.
        """
        return await self._transactions.write_unlogged(
            _CLAIM, Lease(name, payload, trial_id, owner=owner, content_id=content_id)
        )

    async def take_over(self, claim: Lease, *, owner: str, trial_id: str | None = None) -> Lease | None:
        """Replaces the owner, and optionally the trial, of a lease by compare-and-set.

        Returns:
            The new lease; None if owner or trial had changed, because somebody was quicker.
        """
        replacement = replace(claim, owner=owner, trial_id=claim.trial_id if trial_id is None else trial_id)
        return await self._transactions.write_unlogged(_TAKE_OVER, _TakeOver(claim, replacement))

    async def claim_of(self, name: RequestName) -> Lease | None:
        """Finds the lease on a request; None if nobody has claimed it."""
        parameters = {"namespace": name.namespace, "request_id": name.request_id}

        def find(connection: Connection) -> Lease | None:
            found = connection.execute(_CLAIM_OF, parameters).one_or_none()
            return None if found is None else _lease_in(found)

        return await self._transactions.read_batched(find)

    async def answered(
        self,
        content: ContentKey,
        until: datetime,
        *,
        limit: int,
        after: RequestName | None = None,
        namespaces: Collection[str] | None = None,
    ) -> Sequence[Lease]:
        """Returns requests that were given a verdict on content, by namespace and id.

        Args:
            until: Time from which on requests are left out.
        """
        row, trial = t.requests.c, t.trials.c
        query = select(t.requests).join(t.trials, trial.trial_id == row.trial_id)
        query = query.where(trial.content == content.meme, trial.wording == content.text)
        # Leases on memes, which have no payload, are nobody's requests.
        query = query.where(trial.state == TrialState.DECIDED, row.payload != "", row.at < t.stamp(until))
        if namespaces is not None:
            query = query.where(row.namespace.in_(sorted(namespaces)))
        if after is not None:
            same = and_(row.namespace == after.namespace, row.request_id > after.request_id)
            query = query.where(or_(row.namespace > after.namespace, same))
        query = query.order_by(row.namespace, row.request_id).limit(limit)
        return await self._transactions.read(
            lambda connection: [_lease_in(found) for found in connection.execute(query)]
        )

    async def open_claims(self) -> Sequence[Lease]:
        """Returns the lease of each open trial.

        Leases whose trial was never opened are not included: their request is unknown until it is repeated.
        """
        return await self._transactions.read(_open_claims)


class HeartbeatStore(SqlStore):
    """Counters, in the table of servers, which is not part of the log."""

    async def beat(self, owner: str) -> None:
        """Increments a server's counter."""
        await self._transactions.write_unlogged(_BEAT, owner)

    async def retire(self, owner: str, count: int | None = None) -> None:
        """Removes the counter of a server that is gone.

        Args:
            count: Counter when last read; if it has advanced since, it is not removed. None for a server that shuts
                down itself.
        """
        await self._transactions.write_unlogged(_RETIRE, (owner, count))

    async def heartbeats(self) -> Mapping[str, int]:
        """Returns the counters of all known servers, by server.

        Reading twice shows whether a counter advances, independently of clocks.
        """
        return await self._transactions.read(
            lambda connection: {owner: count for owner, count in connection.execute(select(t.servers))}
        )


def _claim(connection: Connection, leases: Sequence[Lease]) -> Sequence[Lease | CourtError]:
    first: dict[tuple[str, str], Lease] = {}
    # Of equal requests in one commit, the first acquires the lease and the others find it (RE-3).
    for lease in leases:
        first.setdefault((lease.name.namespace, lease.name.request_id), lease)
    key, now = (t.requests.c.namespace, t.requests.c.request_id), t.stamp(datetime.now(UTC))
    rows = [
        {
            "namespace": namespace,
            "request_id": id_,
            "payload": lease.payload,
            "trial_id": lease.trial_id,
            "owner": lease.owner,
            "content_id": lease.content_id,
            "at": now,
        }
        # Sorted: two servers that insert the same names concurrently could otherwise deadlock.
        for (namespace, id_), lease in sorted(first.items())
    ]
    standing = {name: first[name] for name in _made(connection, rows)}
    # SQLite only tells whether all rows are new; if not, each is read back.
    if others := [name for name in first if name not in standing]:
        for row in connection.execute(select(t.requests).where(tuple_(*key).in_(others))):
            standing[row.namespace, row.request_id] = _lease_in(row)

    def answer(lease: Lease) -> Lease | CourtError:
        stands = standing[lease.name.namespace, lease.name.request_id]
        if stands.payload != lease.payload:
            return RequestConflict(
                "Another request was sent under this request_id before. Send a new request under a new one; to repeat "
                "the old one, send exactly what was sent then."
            )
        return stands

    return [answer(lease) for lease in leases]


def _made(connection: Connection, rows: Sequence[dict[str, str]]) -> Iterable[tuple[str, str]]:
    """Inserts missing leases; returns the names of new ones, or none if that is unknown.

    Every request for a known meme inserts such a row. In SQLite each step of a statement releases the interpreter lock,
    and each returned row is a step: so all rows are inserted in one step, and none is returned.
    """
    if connection.dialect.name != "sqlite":
        statement = insert_into(connection, t.requests).on_conflict_do_nothing()
        return [
            (n, id_)
            for n, id_ in connection.execute(statement.returning(*t.requests.c["namespace", "request_id"]), rows)
        ]
    columns = [t.requests.c[name] for name in rows[0]]
    # Convert values as the columns would, since names have a special encoding.
    written = [(column.name, column.type.bind_processor(connection.dialect) or str) for column in columns]
    marks = ", ".join(["(" + ", ".join("?" * len(columns)) + ")"] * len(rows))
    statement = f"INSERT INTO requests ({', '.join(rows[0])}) VALUES {marks} ON CONFLICT DO NOTHING"
    made = connection.exec_driver_sql(statement, tuple(form(row[name]) for row in rows for name, form in written))
    return [(row["namespace"], row["request_id"]) for row in rows] if made.rowcount == len(rows) else []


def _take_over(connection: Connection, claims: Sequence[_TakeOver]) -> Sequence[Lease | None]:
    def one(change: _TakeOver) -> Lease | None:
        row, lease = t.requests.c, change.current
        changed = connection.execute(
            # Compare-and-set: owner and trial must be unchanged, so that only one of several servers takes over.
            update(t.requests)
            .where(
                row.namespace == lease.name.namespace,
                row.request_id == lease.name.request_id,
                row.owner == lease.owner,
                row.trial_id == lease.trial_id,
            )
            .values(owner=change.replacement.owner, trial_id=change.replacement.trial_id)
        )
        return change.replacement if changed.rowcount == 1 else None

    return [one(change) for change in claims]


def _beat(connection: Connection, owners: Sequence[str]) -> Sequence[None]:
    statement = insert_into(connection, t.servers).on_conflict_do_update(
        index_elements=[t.servers.c.owner], set_={"beats": t.servers.c.beats + 1}
    )
    # Sorted for the same reason as leases: rows are locked in one order everywhere.
    connection.execute(statement, [{"owner": owner, "beats": 1} for owner in sorted(owners)])
    return [None] * len(owners)


def _retire(connection: Connection, gone: Sequence[tuple[str, int | None]]) -> Sequence[None]:
    for owner, count in sorted(gone, key=lambda each: each[0]):
        # Only if its counter is unchanged: a server that beats again is alive.
        still = true() if count is None else t.servers.c.beats == count
        connection.execute(delete(t.servers).where(t.servers.c.owner == owner, still))
    return [None] * len(gone)


def _open_claims(connection: Connection) -> Sequence[Lease]:
    # Start from the few open trials, since there may be many millions of leases.
    row, trial = t.requests.c, t.trials.c
    same = (row.namespace == trial.namespace, row.request_id == trial.request_id, row.trial_id == trial.trial_id)
    query = select(t.requests).select_from(t.trials).join(t.requests, and_(*same))
    query = query.where(trial.state == TrialState.OPEN).order_by(row.namespace, row.request_id)
    return [_lease_in(found) for found in connection.execute(query)]


def _lease_in(row: Any) -> Lease:
    """Converts a row of the table of requests to a lease."""
    return Lease(
        RequestName(row.namespace, row.request_id),
        row.payload,
        row.trial_id,
        owner=row.owner,
        content_id=row.content_id,
    )


_CLAIM = Batch(Rank.CLAIM, _claim)
_TAKE_OVER = Batch(Rank.TAKE_OVER, _take_over)
_BEAT = Batch(Rank.BEAT, _beat)
_RETIRE = Batch(Rank.RETIRE, _retire)


# Used by every trial and built once: building a statement takes longer than running it.
_OVERRULED = t.trials.c.outcome == ReviewOutcome.OVERRULED
# An overruled verdict is not given again for the same meme, unless the review is withdrawn.
_TRIAL_OF = (
    select(t.known.c.trial_id)
    .outerjoin(t.trials, t.trials.c.trial_id == t.known.c.trial_id)
    .where(t.known.c.key == bindparam("key"), func.coalesce(t.trials.c.outcome, "") != ReviewOutcome.OVERRULED)
)
_FINGERPRINTS = (
    select(t.fingerprints)
    .where(t.fingerprints.c.number > bindparam("since"))
    .order_by(t.fingerprints.c.number)
    .limit(bindparam("most"))
)


class VerdictKeys(SqlStore):
    """Keys and their trials, which are not part of the log."""

    async def put(self, key: str, trial_id: str) -> None:
        """Maps a key to a trial, unless it is mapped already or the trial's verdict was overruled."""
        await self._transactions.write_unlogged(_PUT_KEY, (key, trial_id))

    async def get(self, key: str) -> str | None:
        """Returns the trial that answers a key, or None."""
        return await self._transactions.read_batched(
            lambda connection: connection.execute(_TRIAL_OF, {"key": key}).scalar_one_or_none()
        )


class FingerprintStore(SqlStore):
    """Fingerprints by the numbers assigned when they were stored."""

    async def put_fingerprint(self, trial_id: str, fingerprint: bytes) -> None:
        """Stores the fingerprint of a trial's picture; idempotent."""
        await self._transactions.write_fingerprint(_PUT_FINGERPRINT, (trial_id, fingerprint))

    async def fingerprints(self, since: int, *, most: int = 10_000) -> Sequence[tuple[int, str, bytes]]:
        """Returns number, trial and fingerprint of entries above a number, in order, at most ``most``.

        A number only becomes visible after all lower ones, so a reader that continues from the last one misses none.
        """
        parameters = {"since": since, "most": most}
        return await self._transactions.read_batched(
            lambda connection: [
                (number, trial_id, bytes(fingerprint))
                for number, trial_id, fingerprint in connection.execute(_FINGERPRINTS, parameters)
            ]
        )


def _put_keys(connection: Connection, entries: Sequence[tuple[str, str]]) -> Sequence[None]:
    # Lock the trials until this is stored, so that an overruling comes entirely before or after.
    row = t.trials.c
    named = {trial_id for _, trial_id in entries}
    query = select(row.trial_id, row.outcome, row.erased).where(row.trial_id.in_(named)).order_by(row.trial_id)
    outcomes = connection.execute(query.with_for_update(read=True)).all()
    unfit = {trial_id for trial_id, outcome, gone in outcomes if gone or outcome == ReviewOutcome.OVERRULED}
    rows = [{"key": key, "trial_id": trial_id} for key, trial_id in entries if trial_id not in unfit]
    if rows:
        rows.sort(key=lambda row: row["key"])  # stable: the first entry of a key wins
        overruled = t.known.c.trial_id.in_(select(row.trial_id).where(_OVERRULED))
        connection.execute(delete(t.known).where(t.known.c.key.in_([each["key"] for each in rows]), overruled))
        connection.execute(insert_into(connection, t.known).on_conflict_do_nothing(), rows)
    return [None] * len(entries)


def _put_fingerprints(connection: Connection, entries: Sequence[tuple[str, bytes]]) -> Sequence[None]:
    if connection.dialect.name == "postgresql":
        # A sequence assigns numbers before the commit, and commits may overtake each other: serialise them.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('memecourt.looks'))"))
    # Locks the trials, so that concurrent erasures come entirely before or after.
    row = t.trials.c
    query = select(row.trial_id, row.erased).where(row.trial_id.in_({trial_id for trial_id, _ in entries}))
    # Rows are locked in order of their ids, so that two transactions can't deadlock.
    states = connection.execute(query.order_by(row.trial_id).with_for_update(read=True)).all()
    gone = {trial_id for trial_id, is_gone in states if is_gone}
    rows = [{"trial_id": trial_id, "look": fingerprint} for trial_id, fingerprint in entries if trial_id not in gone]
    if not rows:
        return [None] * len(entries)
    connection.execute(
        insert_into(connection, t.fingerprints).on_conflict_do_nothing(index_elements=[t.fingerprints.c.trial_id]), rows
    )
    return [None] * len(entries)


_PUT_KEY = Batch(Rank.VERDICT_KEY, _put_keys)
_PUT_FINGERPRINT = Batch(Rank.FINGERPRINT, _put_fingerprints)
