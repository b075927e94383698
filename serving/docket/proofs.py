"""What is read of the log: entries, checkpoints, and what proofs are made of. Whoever calls sees one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select

from serving.docket import tables as t
from serving.docket.log.entries import Entry
from serving.docket.log.merkle import TileNodes, inclusion_proof
from serving.docket.store import DocketError, NotDecided, Receipt
from serving.docket.stored import part_value, parts_in, unpacked
from serving.docket.writes import unknown

_entry = t.entries.c
_AT_ONCE = 500  # numbers in one query


def entries(connection: Connection, first: int, most: int, kinds: Collection[str] | None) -> Sequence[Entry]:
    """See :meth:`serving.docket.store.Docket.entries`."""
    query = select(t.entries).where(_entry.number >= first)
    if kinds is not None:
        query = query.where(_entry.kind.in_(sorted(kinds)))
    return _read(connection, query.order_by(_entry.number).limit(most))


def entries_of(connection: Connection, trial_id: str) -> Sequence[Entry]:
    """See :meth:`serving.docket.store.Docket.entries_of`."""
    own = select(t.entries).where(_entry.trial_id == trial_id)
    found = [*_read(connection, own.where(t.IS_EVENT)), *_read(connection, own.where(t.IS_OTHER))]
    if not found:
        raise unknown(trial_id)
    quoted: set[int] = set()
    for entry in found:
        if entry.body is not None:
            quoted |= _parts_in(entry)
    found += _numbered(connection, quoted)
    return sorted(found, key=lambda entry: entry.number)


def parts(connection: Connection, numbers: Collection[int]) -> Mapping[int, str]:
    """What entries of parts hold, by number, without those that were erased. Raises ValueError if one is no part."""
    return {entry.number: part_value(entry.body) for entry in _numbered(connection, numbers) if entry.body is not None}


def size(connection: Connection) -> int:
    """See :meth:`serving.docket.store.Docket.size`."""
    return int(_log(connection, t.log.c.size).size)


def added(connection: Connection, first: int) -> tuple[int, Collection[tuple[str, str]]]:
    """See :meth:`serving.docket.store.Docket.added`."""
    now = size(connection)
    if now <= first:
        return now, ()
    query = select(_entry.kind, _entry.trial_id).where(_entry.number >= first).distinct()
    return now, [(kind, trial_id) for kind, trial_id in connection.execute(query)]


def checkpoint(connection: Connection) -> str | None:
    """The signed note of the whole log; None where nobody has signed it since it grew."""
    row = _log(connection, t.log.c.size, t.log.c.signed, t.log.c.checkpoint)
    return str(row.checkpoint) if row.signed == row.size else None


def key(connection: Connection) -> str:
    """The public key of the docket; empty where nothing has been signed."""
    return str(_log(connection, t.log.c.key).key)


def receipt(connection: Connection, trial_id: str) -> Receipt | None:
    """The receipt of a verdict; None where no checkpoint that covers it has been kept."""
    own = (_entry.trial_id == trial_id, t.IS_EVENT)
    query = select(t.entries).where(*own, _entry.kind == "VerdictGiven").order_by(_entry.seq.desc()).limit(1)
    given = _read(connection, query)
    if not given:
        if connection.execute(select(_entry.number).where(*own).limit(1)).first() is None:
            raise unknown(trial_id)
        raise NotDecided(f"Trial {trial_id} has no verdict to give a receipt of.", field="trial_id")
    entry = given[0]
    covers = select(t.checkpoints).where(t.checkpoints.c.size > entry.number).order_by(t.checkpoints.c.size).limit(1)
    kept = connection.execute(covers).one_or_none()
    if kept is None:
        return None
    proof = inclusion_proof(entry.number, kept.size, nodes(connection))
    return Receipt(kept.note, entry.number, entry.header(), tuple(proof))


def nodes(connection: Connection) -> TileNodes:
    """Reads nodes of the Merkle tree; of use while the connection is."""

    def tile(level: int, place: int) -> bytes:
        own = (t.tiles.c.level == level, t.tiles.c.place == place)
        return bytes(connection.execute(select(t.tiles.c.hashes).where(*own)).scalar_one_or_none() or b"")

    return TileNodes(tile)


def _log(connection: Connection, *columns: Any) -> Any:
    row = connection.execute(select(*columns)).one_or_none()
    if row is None:
        raise DocketError("The docket does not know how far its log is: it was altered. Restore it from a copy.")
    return row


def _numbered(connection: Connection, numbers: Collection[int]) -> list[Entry]:
    wanted = sorted(numbers)
    found: list[Entry] = []
    for first in range(0, len(wanted), _AT_ONCE):
        found += _read(connection, select(t.entries).where(_entry.number.in_(wanted[first : first + _AT_ONCE])))
    return found


def _read(connection: Connection, query: Select[Any]) -> list[Entry]:
    return [entry_in(row) for row in connection.execute(query)]


def entry_in(row: Any) -> Entry:
    """The entry in a row. A body that can't be read is an empty text, which no commitment fits."""
    body: str | None = None
    if row.body is not None:
        try:
            body = unpacked(bytes(row.body))
        except ValueError:
            body = ""
    salt = None if row.salt is None else bytes(row.salt)
    return Entry(row.number, row.kind, row.trial_id, row.seq, row.at, bytes(row.commitment), body, salt)


def _parts_in(entry: Entry) -> set[int]:
    try:
        return parts_in(entry.kind, entry.body or "")
    except ValueError:
        return set()
