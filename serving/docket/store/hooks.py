"""Stores of webhook receivers and deliveries, in the docket's database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from court.events import ReviewWithdrawn
from court.in_force import DEFAULT_RULES, FindingRules, InForce
from serving.docket.store import tables as t
from serving.docket.store.bodies import event_in, unpacked
from serving.docket.store.listing import LISTED, line_in
from serving.docket.store.tables import insert_into
from serving.docket.store.transactions import Batch, Rank, SqlStore, Transactions


@dataclass(frozen=True, slots=True)
class Hook:
    """Shared state of a webhook receiver.

    Attributes:
        paused_until: Time until which the receiver has asked for a pause; None if it has not.
        failing_since: Time of the first attempt in the current run of failures; None if the last one succeeded.
        disabled_at: Time since when nothing is sent; None if the receiver is enabled.
    """

    name: str
    next_entry: int
    owner: str = ""
    paused_until: datetime | None = None
    failing_since: datetime | None = None
    disabled_at: datetime | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook message that is not delivered yet."""

    entry: int
    event: str
    since: datetime
    attempts: int
    due_at: datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Counts of undelivered messages."""

    waiting: int
    given_up: int
    oldest: datetime | None


NOTHING = Backlog(waiting=0, given_up=0, oldest=None)


@dataclass(frozen=True, slots=True)
class HookStates:
    """Snapshot of the state of all receivers.

    Attributes:
        backlogs: Undelivered messages by receiver; receivers without any may be missing.
    """

    log_size: int
    hooks: Mapping[str, Hook]
    backlogs: Mapping[str, Backlog]


@dataclass(frozen=True, slots=True)
class Subject:
    """Fields of a trial that messages contain."""

    namespace: str
    content_id: str
    request_id: str
    erased: bool
    in_force: InForce | None = None
    withdrawn: frozenset[int] = frozenset()


T = TypeVar("T")

_hook, _row = t.hooks.c, t.deliveries.c
_WAITS = _row.due_at != ""
_COLUMNS = [_row[field.name] for field in fields(Delivery)]


def _write(connection: Connection, works: Sequence[Callable[[Connection], Any]]) -> Sequence[Any]:
    return [work(connection) for work in works]


_WRITE: Batch[Callable[[Connection], Any], Any] = Batch(Rank.HOOK, _write)


class _HookTables(SqlStore):
    async def _change(self, statement: Any) -> bool:
        return await self._write(lambda connection: bool(connection.execute(statement).rowcount))

    async def _write(self, work: Callable[[Connection], T]) -> T:
        done: T = await self._transactions.write_unlogged(_WRITE, work)
        return done


class HookStore(_HookTables):
    """Receivers, in a table that is not part of the log."""

    async def register(self, names: Collection[str]) -> None:
        """Adds receivers that are missing; they start with the next log entry."""

        def write(connection: Connection) -> None:
            # From the current end of the log: a new receiver is not sent the whole history.
            size = connection.execute(select(t.log.c.size)).scalar_one()
            rows = [asdict(Hook(name, size)) for name in sorted(names)]
            if rows:
                connection.execute(insert_into(connection, t.hooks).on_conflict_do_nothing(), rows)

        await self._write(write)

    async def take(self, hook: Hook, owner: str) -> bool:
        """Makes a server the owner by compare-and-set; False if another was quicker."""
        # Compare-and-set on the owner: of several concurrent servers, one gets the receiver.
        unchanged = (_hook.name == hook.name, _hook.owner == hook.owner)
        return await self._change(update(t.hooks).where(*unchanged).values(owner=owner))

    async def release(self, owner: str) -> None:
        """Releases all receivers owned by a server."""
        await self._change(update(t.hooks).where(_hook.owner == owner).values(owner=""))

    async def replay(self, name: str, entry: int) -> bool:
        """Resends everything from an entry on; False if there is no such receiver."""

        def write(connection: Connection) -> bool:
            own = update(t.hooks).where(_hook.name == name).values(next_entry=entry)
            # Waiting messages are created again with their entries, and would otherwise be sent twice.
            connection.execute(delete(t.deliveries).where(_row.hook == name, _row.entry >= entry))
            return bool(connection.execute(own).rowcount)

        return await self._write(write)

    async def enable(self, name: str) -> bool:
        """Enables a receiver, which continues where it stopped; False if there is no such receiver."""

        def write(connection: Connection) -> bool:
            # All messages are due again for a first attempt, including those that were given up.
            reset = {"attempts": 0, "due_at": _row.since}
            connection.execute(update(t.deliveries).where(_row.hook == name).values(reset))
            own = update(t.hooks).where(_hook.name == name)
            return bool(
                connection.execute(own.values(disabled_at="", why="", paused_until="", failing_since="")).rowcount
            )

        return await self._write(write)


class DeliveryStore(_HookTables):
    """Messages, in a table that is not part of the log."""

    def __init__(self, transactions: Transactions, rules: FindingRules = DEFAULT_RULES) -> None:
        """Reads nothing yet; ``rules`` say what follows from the findings of people."""
        super().__init__(transactions)
        self._rules = rules

    async def due(self, name: str, now: datetime, *, most: int) -> Sequence[Delivery]:
        """Returns messages that are due for another attempt, the longest waiting first."""
        query = select(*_COLUMNS).where(_row.hook == name, _WAITS, _row.due_at <= now)
        query = query.order_by(_row.due_at, _row.entry, _row.event).limit(most)
        return await self._transactions.read(
            lambda connection: [Delivery(**row) for row in connection.execute(query).mappings()]
        )

    async def states(self) -> HookStates:
        """Reads the positions and backlogs of all receivers in one snapshot."""
        waiting = select(_row.hook, func.count(), func.min(_row.since)).where(_WAITS).group_by(_row.hook)
        given_up = select(_row.hook, func.count()).where(~_WAITS).group_by(_row.hook)

        def read(connection: Connection) -> HookStates:
            hooks = {row["name"]: Hook(**row) for row in connection.execute(select(t.hooks)).mappings()}
            size: int = connection.execute(select(t.log.c.size)).scalar_one()
            lost = {name: count for name, count in connection.execute(given_up)}
            backlogs = {name: Backlog(0, count, None) for name, count in lost.items()}
            for name, count, oldest in connection.execute(waiting):
                backlogs[name] = Backlog(count, lost.get(name, 0), oldest)
            return HookStates(size, hooks, backlogs)

        return await self._transactions.read(read)

    async def settle(
        self, before: Hook, after: Hook, *, gone: Collection[Delivery], remaining: Collection[Delivery]
    ) -> bool:
        """Stores the outcome of some attempts atomically.

        Args:
            before: State of the receiver as it was read.

        Returns:
            False if another server has taken over or the position was reset: then nothing is stored.
        """
        # A concurrent change of the owner or of the position must not be overwritten.
        unchanged = (_hook.name == before.name, _hook.owner == before.owner, _hook.next_entry == before.next_entry)
        values = asdict(after)
        del values["name"], values["owner"]
        if after.disabled_at == before.disabled_at:
            # It may have been disabled or enabled meanwhile.
            del values["disabled_at"], values["why"]

        def write(connection: Connection) -> bool:
            if connection.execute(update(t.hooks).where(*unchanged).values(values)).rowcount == 0:
                return False
            for each in gone:
                connection.execute(delete(t.deliveries).where(*_is(before.name, each)))
            for each in remaining:
                row = asdict(each)
                key = {"hook": before.name, "entry": row.pop("entry"), "event": row.pop("event")}
                stands = insert_into(connection, t.deliveries).values(**key, **row)
                # Upsert: a retried message exists already, one of a new entry does not.
                connection.execute(stands.on_conflict_do_update(index_elements=[*key], set_=row))
            return True

        return await self._write(write)

    async def subjects(self, trial_ids: Collection[str]) -> Mapping[str, Subject]:
        """Returns trials by id; unknown ones are missing."""
        query = LISTED.where(t.trials.c.trial_id.in_(sorted(trial_ids)))
        entry = t.entries.c
        withdrawals = select(entry.body).where(entry.trial_id.in_(sorted(trial_ids)), t.IS_EVENT)
        withdrawals = withdrawals.where(entry.kind == ReviewWithdrawn.__name__, entry.body.is_not(None))

        def read(connection: Connection) -> Mapping[str, Subject]:
            withdrawn = dict[str, set[int]]()
            for body in connection.execute(withdrawals).scalars():
                event = event_in(unpacked(bytes(body)), {})
                if isinstance(event, ReviewWithdrawn):
                    withdrawn.setdefault(event.trial_id, set()).add(event.of)
            return {
                line.trial_id: Subject(
                    namespace=line.namespace,
                    content_id=line.content_id,
                    request_id=line.request_id,
                    erased=line.erased,
                    in_force=line.in_force,
                    withdrawn=frozenset(withdrawn.get(line.trial_id, ())),
                )
                for line in (line_in(row, self._rules) for row in connection.execute(query))
            }

        return await self._transactions.read(read)


def _is(name: str, delivery: Delivery) -> tuple[ColumnElement[bool], ...]:
    return _row.hook == name, _row.entry == delivery.entry, _row.event == delivery.event
