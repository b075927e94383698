"""Stores for reusing verdicts: keys for the same meme, and fingerprints for near-duplicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select, text

from court.events import ReviewOutcome
from serving.docket.store import tables as t
from serving.docket.store.database import insert_into
from serving.docket.store.group_commit import Batch
from serving.docket.store.transactions import Rank, SqlStore

# Used by every trial and built once: building a statement takes longer than running it.
_TRIAL_OF = select(t.known.c.trial_id).where(t.known.c.key == bindparam("key"))
_TRIALS_OF = select(t.known.c.key, t.known.c.trial_id).where(t.known.c.key.in_(bindparam("keys", expanding=True)))
_FINGERPRINTS = (
    select(t.looks).where(t.looks.c.number > bindparam("since")).order_by(t.looks.c.number).limit(bindparam("most"))
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

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Returns the trials for up to some hundred keys, by key; keys without one are missing."""
        return await self._transactions.read_batched(
            lambda connection: {key: trial_id for key, trial_id in connection.execute(_TRIALS_OF, {"keys": keys})}
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
        insert_into(connection, t.looks).on_conflict_do_nothing(index_elements=[t.looks.c.trial_id]), rows
    )
    return [None] * len(entries)


_PUT_KEY = Batch(Rank.VERDICT_KEY, _put_keys)
_PUT_FINGERPRINT = Batch(Rank.FINGERPRINT, _put_fingerprints)
