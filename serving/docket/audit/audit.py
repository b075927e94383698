"""The audit: reads a docket's raw rows, recomputes derived data from its entries, and compares."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Boolean, Connection, Integer, Select, literal, select, type_coerce
from typing_extensions import override

from court.backends.pictures.normalise import has_pixels
from serving.docket.audit.verify import Fault, FromEntries, Progress, Report, StoredDocket, verify, verify_pictures
from serving.docket.log.anchors import Anchor
from serving.docket.log.entries import Entry
from serving.docket.log.errors import BadNote
from serving.docket.log.merkle import ReadNode, consistency_proof, inclusion_proof
from serving.docket.log.notes import (
    Checkpoint,
    SigningKey,
    VerifierKey,
    open_checkpoint,
    read_checkpoint,
    sign_note,
    split_note,
)
from serving.docket.ports import TrialReader
from serving.docket.store import log_queries
from serving.docket.store import tables as t
from serving.docket.store.bodies import PART
from serving.docket.store.log_append import Signer
from serving.docket.store.log_queries import KEY_ROTATED, LogKeys, TransparencyLog
from serving.docket.store.transactions import Transactions

FORMAT = "memecourt-bundle/1"
"""Format of bundles, included in each."""
COUNT = "memecourt-count/1"
"""First line of the signed count. A checkpoint has a number in its second line, so neither passes for the other."""
ACCESS = "PictureShown"
"""Kind of entries that say who viewed a picture: their bodies are withheld unless requested."""


def signed_count(key: SigningKey, checkpoint: Checkpoint, trial_id: str, entries: int) -> str:
    """Signs the number of entries that a trial has in the log of a checkpoint.

    Raises:
        BadNote: The id of the trial contains a line break.
    """
    # A line break would let an id add lines to the signed text.
    if "\n" in trial_id:
        raise BadNote("The id of a trial is one line.")
    root = base64.b64encode(checkpoint.root).decode()
    lines = (COUNT, f"log {checkpoint.origin}", f"trial {trial_id}", f"size {checkpoint.size}", f"root {root}")
    return sign_note("".join(f"{line}\n" for line in (*lines, f"entries {entries}")), [key])


def bundle(
    trial_id: str,
    entries: Sequence[Entry],
    parts: Sequence[Entry],
    *,
    checkpoint: str,
    size: int,
    count: str,
    read: ReadNode,
    known: Sequence[tuple[int, str]] = (),
    withheld: Collection[str] = (ACCESS,),
) -> str:
    """A bundle, as the text of a file.

    Args:
        known: Size and note of checkpoints that the receiver has from earlier: the log is shown to continue them.
        withheld: Kinds whose bodies stay here; that they were logged is shown all the same.
    """

    def shown(entry: Entry) -> dict[str, Any]:
        is_shown = entry.body is not None and entry.salt is not None and entry.kind not in withheld
        return {
            "number": entry.number,
            "header": entry.header().decode(),
            "proof": encoded(inclusion_proof(entry.number, size, read)),
            "body": entry.body if is_shown else None,
            # Withheld with the body: with the salt, guesses at the body could be verified.
            "salt": base64.b64encode(entry.salt or b"").decode() if is_shown else None,
        }

    value = {
        "format": FORMAT,
        "trial": trial_id,
        "checkpoint": checkpoint,
        "count": count,
        "entries": [shown(entry) for entry in entries],
        "parts": [shown(part) for part in parts],
        "known": [{"checkpoint": note, "proof": encoded(consistency_proof(old, size, read))} for old, note in known],
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def encoded(proof: Sequence[bytes]) -> list[str]:
    """Returns the digests of a proof for a file (base64)."""
    return [base64.b64encode(one).decode() for one in proof]


T = TypeVar("T")

_AT_ONCE = 1000  # rows in memory
# Raw truth values: SQLite accepts any value, which queries may interpret differently from its driver.
_TRUE_OR_FALSE = [column.name for column in t.trials.c if isinstance(column.type, Boolean)]
_TRUTHS: Mapping[Any, bool] = {0: False, 1: True}
_TRIALS, _FINDINGS = (
    [
        type_coerce(column, Integer).label(column.name) if isinstance(column.type, Boolean) else column
        for column in table.c
    ]
    for table in (t.trials, t.findings)
)


class Rows(StoredDocket):
    """Rows of the tables, valid while the connection is open."""

    def __init__(self, connection: Connection) -> None:
        """Reads from a connection with one consistent snapshot."""
        self._connection = connection

    @override
    def entries(self) -> Iterator[Entry]:
        return map(_entry_in, self._rows(select(t.entries).order_by(t.entries.c.number)))

    @override
    def checkpoints(self) -> Iterator[tuple[int, str]]:
        query = select(t.checkpoints).order_by(t.checkpoints.c.size)
        return ((row.size, _as(str, row.note, "")) for row in self._rows(query))

    @override
    def tiles(self) -> Iterator[tuple[int, int, bytes]]:
        return ((row.level, row.place, _as(bytes, row.hashes, b"")) for row in self._rows(select(t.tiles)))

    @override
    def trials(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for row in self._rows(select(*_TRIALS)):
            truths = {name: _TRUTHS.get(row._mapping[name], row._mapping[name]) for name in _TRUE_OR_FALSE}
            yield row.trial_id, {**row._mapping, **truths}

    @override
    def findings(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        for row in self._rows(select(*_FINDINGS)):
            contested = _TRUTHS.get(row.contested, row.contested)
            yield (row.content, row.wording), {**row._mapping, "contested": contested}

    @override
    def parts(self) -> Iterator[tuple[bytes, int, str]]:
        return ((_as(bytes, row.key, b""), row.number, row.of) for row in self._rows(select(t.parts)))

    @override
    def rotations(self) -> Iterator[Entry]:
        own = select(t.entries).where(t.entries.c.kind == KEY_ROTATED).order_by(t.entries.c.number)
        return map(_entry_in, self._rows(own))

    @override
    def state(self) -> Mapping[str, Any]:
        rows = self._connection.execute(select(t.log)).all()
        # With several rows it is undefined which one counts.
        if len(rows) != 1:
            return {}
        state = rows[0]._mapping
        # Not empty, which would look like a docket that has never signed anything.
        return {**state, "checkpoint": _as(str, state["checkpoint"], "?")}

    def _rows(self, query: Select[Any]) -> Iterator[Any]:
        # In chunks, since a large docket does not fit into memory.
        return iter(self._connection.execute(query, execution_options={"yield_per": _AT_ONCE}))


def _as(kind: type[T], value: Any, instead: T) -> T:
    """Returns a value if it has its column's type, which SQLite does not enforce."""
    return value if isinstance(value, kind) else instead


@contextmanager
def _whatever_stands(connection: Connection) -> Iterator[None]:
    """Reads invalid text as bytes: SQLite stores it, and its driver would otherwise abort the read."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    usual = driver.text_factory
    driver.text_factory = _text_or_bytes
    try:
        yield
    finally:
        # The connection returns to the pool, where others expect text.
        driver.text_factory = usual


def _faults_of_indexes(connection: Connection) -> Iterator[str]:
    """Finds corrupt indexes of the checked tables in a SQLite file.

    The audit itself reads whole tables and would not notice; but listings and reads use indexes, and would miss a row
    that was removed from one. PostgreSQL has an extension for this (amcheck).
    """
    if connection.dialect.name != "sqlite":
        return
    for table in (t.entries, t.log, t.tiles, t.checkpoints, t.parts, t.trials, t.findings):
        for (found,) in connection.exec_driver_sql(f"PRAGMA integrity_check({table.name})"):
            if found != "ok":
                yield f"The table {table.name} is damaged: {' '.join(str(found).split())}."


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _entry_in(row: Any) -> Entry:
    """Converts a row to an entry; a value of the wrong type gives an entry that never verifies."""
    kinds = {"number": int, "kind": str, "trial_id": str, "seq": int, "at": str, "commitment": bytes}
    whole = all(type(row._mapping[name]) is kind for name, kind in kinds.items())
    whole = whole and all(isinstance(value, bytes | None) for value in (row.body, row.salt))
    # Otherwise an error here would abort the whole audit and hide other findings.
    if whole:
        return log_queries.entry_in(row)
    return Entry(number=row.number, kind="", trial_id="", seq=-1, at="", commitment=b"", body="", salt=b"")


class Auditor:
    """Audits a whole docket, and builds proofs for single trials."""

    def __init__(
        self, transactions: Transactions, trials: TrialReader, *, log: TransparencyLog, keys: LogKeys, signer: Signer
    ) -> None:
        self._transactions = transactions
        self._trials = trials
        self._log = log
        self._keys = keys
        self._signer = signer

    async def read(self, read: Callable[[Connection], T]) -> T:
        """Reads the raw tables in one snapshot."""
        return await self._transactions.read(read)

    async def audit(
        self, keys: Sequence[VerifierKey], anchors: Sequence[Anchor] = (), *, progress: Progress = lambda entries: None
    ) -> Report:
        """Checks a whole docket; see :mod:`serving.docket.audit.verify` for what is found and what can't be.

        All rows are from one snapshot, while the docket may be written to. Pictures are checked afterwards.

        Raises:
            Unavailable: The docket can't be read now.
        """
        derived = FromEntries()

        def checked(connection: Connection) -> Report:
            with _whatever_stands(connection):
                report = verify(Rows(connection), keys, derived, anchors=anchors, progress=progress)
                for text in _faults_of_indexes(connection):
                    report.wrong(Fault.INDEX_DIFFERS, text)
                return report

        # One read for all tables: otherwise new entries would look like missing rows.
        report = await self.read(checked)

        async def still_wanted(digest: str) -> bool:
            one = select(literal(1)).select_from(t.trials).where(t.trials.c.pixels_sha256 == digest).limit(1)
            return await self.read(lambda connection: connection.execute(one).first() is not None)

        # Outside of the snapshot, since pictures may be stored elsewhere: a missing one is checked again
        # (still_wanted).
        await verify_pictures(
            derived.pictures(), frames=self._trials.frames, same=has_pixels, still_wanted=still_wanted, report=report
        )
        return report

    async def bundle(self, trial_id: str, *, with_access: bool = False, anchors: Sequence[Anchor] = ()) -> str:
        """Builds the bundle file of a trial, with its proofs and its signed count of entries.

        Args:
            anchors: Checkpoints that the receiver has: the bundle proves that the log continues them.

        Raises:
            BadNote: A checkpoint of the receiver is not of this docket, or covers a larger log.
            TrialUnknown: There is none of that id.
            DocketError: The docket's private key is missing.
            Unavailable: The docket can't be read or signed now.
        """
        public = await self._log.vkey()
        # Before anything is read: without the private key no count can be signed.
        key = self._signer(public)
        known = await self._keys.keys()
        checkpoints = {(open_checkpoint(note, known).size, note) for anchor in anchors for note in anchor.notes}
        withheld = () if with_access else (ACCESS,)

        def made(connection: Connection) -> str | None:
            note = log_queries.checkpoint(connection)
            if note is None:
                return None
            checkpoint = read_checkpoint(split_note(note)[0])
            # The receiver knows of entries that are missing here: a bundle would cover up a truncated log.
            if any(size > checkpoint.size for size, _ in checkpoints):
                raise BadNote(
                    "A checkpoint of the receiver's is of a larger log than this docket has: entries are missing here."
                )
            found = log_queries.entries_of(connection, trial_id)
            own = [entry for entry in found if entry.trial_id == trial_id]
            return bundle(
                trial_id,
                own,
                [entry for entry in found if entry.kind == PART],
                checkpoint=note,
                size=checkpoint.size,
                # In the same snapshot as the entries, so that the count matches.
                count=signed_count(key, checkpoint, trial_id, len(own)),
                read=log_queries.nodes(connection),
                known=sorted(checkpoints),
                withheld=withheld,
            )

        # Others may append between the signature and the next read.
        while (text := await self.read(made)) is None:
            await self._log.sign()
        return text
