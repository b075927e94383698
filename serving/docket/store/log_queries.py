"""Queries of the log: entries, checkpoints and proofs, each within one snapshot; and catching up with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Select, bindparam, select

from court.errors import CourtError
from serving.docket.errors import DocketError, NotDecided
from serving.docket.log.entries import Entry, KeyRotated
from serving.docket.log.merkle import TileNodes, inclusion_proof
from serving.docket.log.notes import SigningKey, VerifierKey
from serving.docket.log.rotation import read_rotation, sign_rotation
from serving.docket.store import tables as t
from serving.docket.store.bodies import part_value, parts_in, unpacked
from serving.docket.store.log_append import EntryDraft, LogAppender, open_appender
from serving.docket.store.tables import unknown
from serving.docket.store.transactions import Batch, Rank, SqlStore


@dataclass(frozen=True, slots=True)
class Receipt:
    """Inclusion proof of a log entry, which anybody with the docket's public key can check.

    Attributes:
        checkpoint: Signed note with the size of the log and the root hash of its tree.
        header: Header of the entry; its hash is a leaf of the tree.
        proof: Hashes from the leaf to the root (RFC 6962 §2.1.1).
    """

    checkpoint: str
    number: int
    header: bytes
    proof: Sequence[bytes]


_entry = t.entries.c
_AT_ONCE = 500  # numbers in one query
KEY_ROTATED: Final = KeyRotated.model_fields["kind"].default
_MOST_ROTATIONS: Final = 10_000

# Used by every verdict and built once: building a statement takes longer than running it.
_LAST_VERDICT = (
    select(_entry.number, _entry.kind, _entry.trial_id, _entry.seq, _entry.at, _entry.commitment)
    .where(_entry.trial_id == bindparam("trial_id"), t.IS_EVENT, _entry.kind == "VerdictGiven")
    .order_by(_entry.seq.desc())
    .limit(1)
)
_COVERS = (
    select(t.checkpoints).where(t.checkpoints.c.size > bindparam("number")).order_by(t.checkpoints.c.size).limit(1)
)
_TILE = select(t.tiles.c.hashes).where(t.tiles.c.level == bindparam("level"), t.tiles.c.place == bindparam("place"))


class TransparencyLog(SqlStore):
    """Reads the log, and signs it if it has grown since the last signature."""

    async def entries(self, first: int, most: int, kinds: Collection[str] | None = None) -> Sequence[Entry]:
        """Returns log entries from a number on, as stored, without verification."""
        query = select(t.entries).where(_entry.number >= first)
        if kinds is not None:
            query = query.where(_entry.kind.in_(sorted(kinds)))
        query = query.order_by(_entry.number).limit(most)
        return await self._transactions.read(lambda connection: _read(connection, query))

    async def size(self) -> int:
        """Returns the number of entries in the log, which is also the number of the next one."""
        return await self._transactions.read(_size)

    async def added(self, first: int) -> tuple[int, Collection[tuple[str, str]]]:
        """Returns the size of the log, and the distinct pairs of kind and trial among entries from a number on."""
        query = select(_entry.kind, _entry.trial_id).where(_entry.number >= first).distinct()

        def read(connection: Connection) -> tuple[int, Collection[tuple[str, str]]]:
            now = _size(connection)
            return now, [(kind, trial_id) for kind, trial_id in connection.execute(query)] if now > first else []

        return await self._transactions.read(read)

    async def checkpoint(self) -> str:
        """Returns the signed checkpoint of the current log (C2SP tlog-checkpoint).

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
        """
        # Others may append between the signature and the next read.
        while (found := await self._transactions.read(checkpoint)) is None:
            await self.sign()
        return found

    async def sign(self) -> None:
        """Signs the current log and stores the checkpoint, which also proves that the key works.

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
            Unavailable: The checkpoint can't be stored now.
        """
        await self._transactions.write(_SIGN, None)

    async def vkey(self) -> str:
        """Returns the public key that verifies checkpoints (C2SP signed-note). Raises DocketError as above."""
        while not (found := await self._transactions.read(key)):
            await self.sign()
        return found

    async def receipt(self, trial_id: str) -> Receipt:
        """Returns the inclusion proof of a verdict, which is the same each time.

        Raises:
            TrialUnknown: There is no trial of that id.
            NotDecided: The trial has no verdict.
            DocketError: The docket is damaged or can't be read, as above.
        """
        while (found := await self._transactions.read_batched(lambda c: _receipt(c, trial_id))) is None:
            await self.sign()
        return found


class LogKeys(SqlStore):
    """Reads the log's keys from its entries, and records a key rotation."""

    async def keys(self) -> Sequence[VerifierKey]:
        """Returns all public keys that ever signed checkpoints, the oldest first. Raises DocketError."""
        log = TransparencyLog(self._transactions)
        current = VerifierKey.parse(await log.vkey())
        entries = await log.entries(0, _MOST_ROTATIONS, {KEY_ROTATED})
        return [*(read_rotation(entry).old for entry in entries), current]

    async def rotate(
        self, old: SigningKey, new: SigningKey, *, who: str, why: str, compromised: bool, at: datetime
    ) -> int:
        """Signs checkpoints with another key from now on, which the signer must have; returns the entry's number.

        Raises:
            DocketError: The docket has another key by now, or the new key is not in the key file (``DOCKET_KEY``).
            Unavailable: The change can't be stored now.
        """
        rotation = _Rotation(old, new, who=who, why=why, compromised=compromised, at=at)
        return await self._transactions.write(_ROTATE, rotation)


def entries_of(connection: Connection, trial_id: str) -> Sequence[Entry]:
    """Returns all entries about a trial, in order: its events, accesses, and the parts that its events quote.

    Raises:
        TrialUnknown: There is none of that id.
    """
    # An empty id is that of entries without a trial, which include the texts that all trials quote.
    if not trial_id:
        raise unknown(trial_id)
    own = select(t.entries).where(_entry.trial_id == trial_id)
    # Two queries, since each kind of entry has its own index.
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
    """Returns the texts of parts by number, without erased ones. Raises ValueError if one is not a part."""
    return {entry.number: part_value(entry.body) for entry in _numbered(connection, numbers) if entry.body is not None}


def _size(connection: Connection) -> int:
    return int(_log(connection, t.log.c.size).size)


def checkpoint(connection: Connection) -> str | None:
    """Returns the checkpoint of the whole log; None if it has grown since the last signature."""
    # A checkpoint over fewer entries is valid, but not that of the whole log.
    row = _log(connection, t.log.c.size, t.log.c.signed, t.log.c.checkpoint)
    return str(row.checkpoint) if row.signed == row.size else None


def key(connection: Connection) -> str:
    """Returns the public key of the docket; empty if nothing has been signed."""
    return str(_log(connection, t.log.c.key).key)


def _receipt(connection: Connection, trial_id: str) -> Receipt | None:
    """Returns the receipt of a verdict; None if no stored checkpoint covers it."""
    found = connection.execute(_LAST_VERDICT, {"trial_id": trial_id}).one_or_none()
    if found is None:
        own = (_entry.trial_id == trial_id, t.IS_EVENT)
        # Only if there is no verdict: the common case needs a single query.
        if connection.execute(select(_entry.number).where(*own).limit(1)).first() is None:
            raise unknown(trial_id)
        raise NotDecided(f"Trial {trial_id} has no verdict to give a receipt of.", field="trial_id")
    # The smallest checkpoint that covers it, so that a verdict's receipt stays the same while the log grows.
    covering = connection.execute(_COVERS, {"number": found.number}).one_or_none()
    if covering is None:
        return None
    proof = inclusion_proof(found.number, covering.size, nodes(connection))
    entry = _entry_of(found, body=None, salt=None)
    return Receipt(covering.note, entry.number, entry.header(), tuple(proof))


def nodes(connection: Connection) -> TileNodes:
    """Returns a reader of the Merkle tree's nodes, valid as long as the connection."""

    def tile(level: int, index: int) -> bytes:
        # A missing tile is read as empty, which TileNodes reports as too short.
        return bytes(connection.execute(_TILE, {"level": level, "place": index}).scalar_one_or_none() or b"")

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
    """Converts a row to an entry. An unreadable body becomes an empty text, which no commitment matches."""
    body: str | None = None
    if row.body is not None:
        try:
            body = unpacked(bytes(row.body))
        except ValueError:
            body = ""
    salt = None if row.salt is None else bytes(row.salt)
    return _entry_of(row, body=body, salt=salt)


def _entry_of(row: Any, *, body: str | None, salt: bytes | None) -> Entry:
    return Entry(
        number=row.number,
        kind=row.kind,
        trial_id=row.trial_id,
        seq=row.seq,
        at=row.at,
        commitment=bytes(row.commitment),
        body=body,
        salt=salt,
    )


def _parts_in(entry: Entry) -> set[int]:
    try:
        return parts_in(entry.kind, entry.body or "")
    except ValueError:
        # An altered body quotes nothing; the audit reports the alteration.
        return set()


@dataclass(frozen=True, slots=True)
class _Rotation:
    """Request to rotate the key, with its author and reason."""

    old: SigningKey
    new: SigningKey
    who: str
    why: str
    compromised: bool
    at: datetime


def _rotate(connection: Connection, rotations: Sequence[_Rotation]) -> Sequence[int | CourtError]:
    return [_rotate_one(open_appender(connection), rotation) for rotation in rotations]


def _rotate_one(log: LogAppender, rotation: _Rotation) -> int | CourtError:
    # Within the transaction: of two concurrent rotations, the second finds another key and changes nothing.
    if log.key != str(rotation.old.verifier):
        return DocketError(
            "The docket's key was changed meanwhile. Look which one it has now (`memecourt docket key`).",
            reason="DOCKET_KEY",
        )
    entry = KeyRotated(
        at=rotation.at,
        who=rotation.who,
        why=rotation.why,
        compromised=rotation.compromised,
        note=sign_rotation(rotation.old, rotation.new, number=log.size, root=log.root()),
    )
    (number,) = log.add([EntryDraft.of(entry)])
    # After the entry, which is the last that the old key covers, and before the next checkpoint is signed.
    log.key = str(rotation.new.verifier)
    log.want_checkpoint()
    return number


_ROTATE = Batch(Rank.SIGN, _rotate)


def _sign(connection: Connection, requests: Sequence[None]) -> Sequence[None]:
    open_appender(connection).want_checkpoint()
    return [None] * len(requests)


_SIGN = Batch(Rank.SIGN, _sign)


T = TypeVar("T")


class LogFollower(Generic[T]):
    """Runs a read of the docket for all concurrent callers.

    A caller gets the outcome of a run that began after its call: an earlier one may miss the latest entries.

    Attributes:
        running: The last run, which may have ended; None before the first.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, T]], *, fresh_s: float = 0.0) -> None:
        """Reads nothing yet. Runs that began up to ``fresh_s`` seconds before a call are good enough for it."""
        self._read = read
        self._fresh_s = fresh_s
        self._began = -math.inf
        self.running: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Returns what the docket holds. Raises what the read raises, such as Unavailable."""
        run = await self._wait(math.inf)
        assert run is not None
        return run.result()

    async def catch_up(self, patience_s: float) -> bool:
        """Waits at most ``patience_s`` seconds; returns False if the run takes longer, and goes on. Raises as get."""
        run = await self._wait(patience_s)
        if run is not None:
            run.result()
        return run is not None

    def forget(self) -> None:
        """Has the next call read again, after a change."""
        self._began = -math.inf

    async def _run(self) -> T:
        self._began = asyncio.get_running_loop().time()
        return await self._read()

    async def _wait(self, patience_s: float) -> asyncio.Task[T] | None:
        now = asyncio.get_running_loop().time
        called = now()
        while True:
            run, fresh = self.running, self._began >= called - self._fresh_s
            if run is None or (run.done() and (not fresh or run.cancelled() or run.exception())):
                # A separate task, so that a cancelled caller does not cancel it for the others.
                run = self.running = asyncio.create_task(self._run())
                run.add_done_callback(_retrieve_error)
                self._began, fresh = math.inf, True
            left = max(0.0, called + patience_s - now())
            # wait() does not cancel the task on timeout, as wait_for() would for all callers.
            await asyncio.wait([run], timeout=None if math.isinf(left) else left)
            if not run.done():
                return None
            if fresh and not run.cancelled():
                return run


def _retrieve_error(run: asyncio.Task[Any]) -> None:
    """Retrieves the error of a run without waiters, so that it is not reported as lost: the next call reads again."""
    if not run.cancelled():
        run.exception()
