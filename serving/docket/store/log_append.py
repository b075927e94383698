"""Appends to the log: assigns numbers, adds leaves, and signs once for everything that a transaction adds.

The appender locks the log's row until the transaction ends, so that numbers have no gaps across processes.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, LargeBinary, bindparam, cast, insert, select, update

from serving.docket.errors import DocketError
from serving.docket.log.entries import (
    NO_SEQ,
    Entry,
    Erased,
    KeyRotated,
    PictureShown,
    PrecedentChanged,
    SampleCommitted,
    body_of,
)
from serving.docket.log.errors import BadNote
from serving.docket.log.merkle import Frontier, Node, tile_updates
from serving.docket.log.notes import SigningKey, sign_checkpoint
from serving.docket.store import tables as t
from serving.docket.store.bodies import seal_bodies
from serving.docket.store.tables import insert_into, insert_rows

Signer = Callable[[str], SigningKey]
"""Returns the signing key for the docket's public key, which is empty if there is none yet."""


@dataclass(frozen=True, slots=True)
class EntryDraft:
    """Draft of an entry: like :class:`serving.docket.log.entries.Entry`, with the body in UTF-8."""

    kind: str
    trial_id: str
    seq: int
    at: str
    body: bytes

    @classmethod
    def of(cls, own: PictureShown | Erased | PrecedentChanged | KeyRotated | SampleCommitted) -> EntryDraft:
        """Drafts an entry that is no event of a trial."""
        return cls(own.kind, own.trial_id, seq=NO_SEQ, at=t.stamp(own.at), body=body_of(own).encode())


class LogAppender:
    """The log within a transaction that has locked it.

    Attributes:
        key: Public key that the end of this transaction, and all later ones, are signed with.
        erased: Number of erased entries.
    """

    def __init__(self, connection: Connection) -> None:
        """Locks the log, waiting for other appenders."""
        self._connection = connection
        row = connection.execute(_HOLD).one_or_none()
        if row is None:
            raise DocketError("The docket does not know how far its log is: it was altered. Restore it from a copy.")
        self._frontier = Frontier.from_bytes(row.frontier)
        self._nodes: list[Node] = []
        self.key: str = row.key
        self._wanted = False
        self.erased: int = row.erased

    @property
    def size(self) -> int:
        """Number of entries so far."""
        return self._frontier.size

    def add(self, drafts: Sequence[EntryDraft]) -> range:
        """Adds entries; returns their numbers."""
        numbers = range(self.size, self.size + len(drafts))
        rows = []
        for number, draft, seal in zip(numbers, drafts, seal_bodies([draft.body for draft in drafts]), strict=True):
            # The leaf covers the commitment rather than the body, so that the tree still verifies after a body is
            # erased (PR-1).
            header = Entry(
                number=number,
                kind=draft.kind,
                trial_id=draft.trial_id,
                seq=draft.seq,
                at=draft.at,
                commitment=seal.commitment,
                body=None,
                salt=None,
            )
            self._nodes += self._frontier.append(header.leaf())
            rows.append(
                (number, draft.trial_id, draft.seq, draft.kind, draft.at, seal.commitment, seal.salt, seal.stored)
            )
        if rows:
            insert_rows(self._connection, t.entries, _COLUMNS, rows)
        return numbers

    def root(self) -> bytes:
        """Returns the root hash of the tree over the entries so far."""
        return self._frontier.root()

    def want_checkpoint(self) -> None:
        """Requests that the checkpoint of this transaction is stored, because it is handed out."""
        self._wanted = True

    def write_tiles(self) -> None:
        """Stores the new tiles of the tree, without updating the log's row."""
        begun: list[dict[str, object]] = []
        more: list[dict[str, object]] = []
        for piece in tile_updates(self._nodes):
            row = {"level_": piece.level, "place_": piece.index, "more": piece.hashes}
            (more if piece.first else begun).append(row)
        # A new tile is a new row; others only grow at their end, which is all that the triggers allow.
        if begun:
            named = [{"level": row["level_"], "place": row["place_"], "hashes": row["more"]} for row in begun]
            self._connection.execute(_BEGIN, named)
        if more:
            self._connection.execute(_LONGER, more)
        self._nodes.clear()

    def end(self, signer: Signer | None) -> None:
        """Stores the new size of the log.

        Args:
            signer: Signer of the checkpoint; None leaves it unsigned for the next writer.
        """
        self.write_tiles()
        values = {"size": self.size, "frontier": self._frontier.to_bytes(), "erased": self.erased}
        if signer is not None:
            key = signer(self.key)
            note = sign_checkpoint(key, key.name, self.size, self._frontier.root())
            values |= {"key": str(key.verifier), "checkpoint": note, "signed": self.size}
            if self._wanted:
                # There may be a checkpoint of this size already: the first one stays, as it may be part of a receipt.
                keep = insert_into(self._connection, t.checkpoints).on_conflict_do_nothing()
                self._connection.execute(keep, {"size": self.size, "note": note})
        self._connection.execute(_GO_ON, values)


# Built once: building a statement takes longer than running it. SQLite omits FOR UPDATE and does not need it, since
# BEGIN IMMEDIATE allows only one writer.
_HOLD = select(t.log).with_for_update()
_BEGIN, _GO_ON = insert(t.tiles), update(t.log)
_COLUMNS = ("number", "trial_id", "seq", "kind", "at", "commitment", "salt", "body")
_LONGER = (
    update(t.tiles)
    .where(t.tiles.c.level == bindparam("level_"), t.tiles.c.place == bindparam("place_"))
    .values(hashes=cast(t.tiles.c.hashes.op("||")(bindparam("more", type_=LargeBinary)), LargeBinary))
)


# All batches of a transaction share one appender, so that numbers are consecutive and one signature covers all.
_appenders: WeakKeyDictionary[Connection, LogAppender] = WeakKeyDictionary()


def open_appender(connection: Connection) -> LogAppender:
    """Returns this transaction's appender, locking the log for others."""
    if connection not in _appenders:
        _appenders[connection] = LogAppender(connection)
    return _appenders[connection]


@contextmanager
def signing(connection: Connection, signer: Signer) -> Iterator[None]:
    """Wraps a transaction: signs once everything that it has added to the log, if anything."""
    try:
        yield
        if connection in _appenders:
            _appenders[connection].end(signer)
    finally:
        # Also after an error: the appender's state was rolled back with the transaction.
        _appenders.pop(connection, None)


class KeyFile:
    """File of the signing key, which is read, or created for a new docket, at the first signature."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: SigningKey | None = None

    def __call__(self, known: str) -> SigningKey:
        """Returns the key.

        Args:
            known: Public key of the docket; empty if no checkpoint has been signed.

        Raises:
            DocketError: The key is missing, can't be read, or is not the docket's.
        """
        if self._key is None or (known and str(self._key.verifier) != known):
            self._key = self._find(known)
        return self._key

    def _find(self, known: str) -> SigningKey:
        # Only a docket that has signed nothing gets a new key; any other needs its own key.
        if not known:
            return self._made()
        # During a key rotation, or after a crash in it, the new key is next to the old one.
        for path in (self._path, next_key(self._path)):
            if path.exists() and str((key := self._read(path)).verifier) == known:
                return key
        self._read(self._path)  # raises if it is missing or invalid
        raise DocketError(
            "The key file is not that of this docket: its checkpoints are signed with another key. All servers of "
            "a docket need the same one: name a copy of its file with MEMECOURT_DOCKET_KEY.",
            reason="DOCKET_KEY",
        )

    def _made(self) -> SigningKey:
        try:
            make_key(self._path)
        except OSError:
            raise _unreadable() from None
        return self._read(self._path)

    def _read(self, path: Path) -> SigningKey:
        try:
            return read_key(path)
        except FileNotFoundError:
            raise DocketError(
                "The key that this docket's checkpoints are signed with is not there. Put its file back beside the "
                "docket, or name it with MEMECOURT_DOCKET_KEY.",
                reason="DOCKET_KEY",
            ) from None
        except (OSError, ValueError, BadNote):
            raise _unreadable() from None


def _unreadable() -> DocketError:
    return DocketError(
        "The docket's key file can't be read, or holds no key. Put the right one back, or name it with "
        "MEMECOURT_DOCKET_KEY.",
        reason="DOCKET_KEY",
    )


def read_key(path: Path) -> SigningKey:
    """Reads a key file; raises OSError, ValueError or BadNote if it can't be read or is invalid."""
    return SigningKey.parse(path.read_text("ascii"))


def next_key(path: Path) -> Path:
    """Returns the file of the new key during a rotation, next to the current one."""
    return path.with_name(f"{path.name}.next")


def settle_keys(path: Path) -> Path | None:
    """Completes a rotation: moves the new key into place, and keeps the retired one next to it.

    Returns:
        The file of the retired key; None if that is gone.
    """
    retired = None
    if path.exists():
        retired = path.with_name(f"{path.name}.retired-{read_key(path).verifier.id.hex()}")
        path.replace(retired)
    next_key(path).replace(path)
    return retired


def make_key(path: Path, name: str = "") -> None:
    """Creates a key file if there is none; of several concurrent processes, one succeeds."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    key = SigningKey.create(name or f"memecourt-docket-{secrets.token_hex(8)}")
    # Completely written and flushed before it gets its name: nobody reads half a key, and no key in use is lost.
    handle, unnamed = tempfile.mkstemp(dir=path.parent, prefix=".docket-key-")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key.secret() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # link() fails if the name is taken, unlike rename(), which would replace a key that has already signed.
            os.link(unnamed, path)
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        Path(unnamed).unlink()
