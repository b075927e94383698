"""Attacks by somebody who can write to a docket's tables and pictures, with or without its key."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from court.backends.pictures.normalise import as_png, has_pixels, pixels_sha256
from court.events import TrialOpened
from court.meme import Frame, Picture, PictureFormat
from retrieval.library.postgres.address import Address
from serving.docket.audit.audit import Rows
from serving.docket.audit.verify import FromEntries, Report, verify, verify_pictures
from serving.docket.log.anchors import Anchor
from serving.docket.log.entries import Entry
from serving.docket.log.merkle import Frontier, Node, tile_updates
from serving.docket.log.notes import SigningKey, VerifierKey, read_checkpoint, sign_checkpoint, split_note
from serving.docket.open import Docket
from serving.docket.store import tables as t
from serving.docket.store.bodies import packed
from tests.support.dockets import NOON, append_all, random_records, review_trial
from tests.support.logs import make_entry

TABLES: tuple[Table, ...] = (t.entries, t.log, t.tiles, t.checkpoints, t.parts, t.trials, t.findings)
"""Tables that are checked."""


@dataclass(frozen=True, slots=True)
class Detectability:
    """Detectability of an alteration.

    Attributes:
        alone: True if the docket and its public key suffice to detect it.
        anchored: True if an external checkpoint in addition detects it.
    """

    alone: bool
    anchored: bool


FOUND, UNSEEN = Detectability(True, True), Detectability(False, False)


@dataclass(slots=True)
class TamperedDocket:
    """A docket to tamper with.

    Attributes:
        docket: Open docket without other writers.
        key: Public key of the docket, known from outside.
        secret: Private key of the docket, for attackers who stole it.
        anchor: External checkpoint from the middle of the docket's life.
        anchored: Number of entries that the anchor covers.
        early: Rows of the tables before the anchor.
        middle: Rows of the tables at the anchor.
        pictures: Folder of the pictures, for a docket on disk.
    """

    docket: Docket
    key: VerifierKey
    secret: SigningKey
    anchor: Anchor
    anchored: int
    early: Mapping[str, Sequence[Mapping[str, Any]]]
    middle: Mapping[str, Sequence[Mapping[str, Any]]]
    pictures: Path


def drawn(number: int) -> Picture:
    """Returns a small picture, distinct for each number up to 256, as the docket stores pictures."""
    still = Image.new("RGB", (3, 2), (number % 256, 40, 80))
    png = as_png(still)
    pixels = pixels_sha256([png])
    return Picture(PictureFormat.PNG, hashlib.sha256(png).hexdigest(), pixels, 3, 2, 1, (Frame(png, 3, 2),))


async def scene_of(docket: Docket, chance: random.Random, trials: int = 36, *, place: Path | Address) -> TamperedDocket:
    """Fills a docket with trials with all kinds of ends, logged views of pictures, reviews and erasures."""
    records = random_records(chance, trials, NOON)
    pictures = [drawn(number) for number in range(5)]
    states = []
    for number, events in enumerate(records):
        opened = events[0]
        assert isinstance(opened, TrialOpened)
        await docket.writer.keep_picture(pictures[number % 5])
        meme = opened.meme.model_copy(update={"pixels_sha256": pictures[number % 5].pixels_sha256})
        await append_all(docket, [opened.model_copy(update={"meme": meme}), *events[1:]])
        if number in (trials // 3, 2 * trials // 3):
            await docket.log.sign()
            states.append(await docket.auditor.read(rows_of))
            if number == trials // 3:
                # After the early state, so that rolling back to it undoes this erasure, and before the anchor.
                await docket.eraser.erase(records[1][0].trial_id, who="ada", why="asked to", at=NOON)
            else:
                note = await docket.log.checkpoint()
            await docket.reviews.record_access(records[number][0].trial_id, who="ada", what="frame 0", at=NOON)
    decided = [line for line in await docket.index.list(limit=trials) if line.label and not line.erased]
    await review_trial(docket, decided[0].trial_id)
    await docket.eraser.erase(decided[1].trial_id, who="ada", why="asked to", at=NOON)
    parts = await docket.auditor.read(lambda connection: connection.execute(select(t.parts.c.of)).scalars().all())
    await docket.eraser.erase_precedent(str(parts[0]), who="ada", why="asked to", at=NOON)
    key = VerifierKey.parse(await docket.log.vkey())
    size = read_checkpoint(split_note(note)[0]).size
    secret = docket.auditor._signer(str(key))
    folder = place.with_name(f"{place.name}-pictures") if isinstance(place, Path) else Path()
    return TamperedDocket(docket, key, secret, Anchor("anchor", (note,)), size, states[0], states[1], folder)


def rows_of(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Returns all rows of the checked tables."""
    return {table.name: [dict(row._mapping) for row in connection.execute(select(table))] for table in TABLES}


class _Undone(Exception):
    pass


@contextmanager
def tampering(scene: TamperedDocket) -> Iterator[Connection]:
    """Opens a transaction without triggers or constraints, which is rolled back at its end."""
    try:
        with scene.docket.transactions.database.writing() as connection:
            if connection.dialect.name == "sqlite":
                names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars()
                for name in names.all():
                    connection.exec_driver_sql(f"DROP TRIGGER {name}")
                connection.exec_driver_sql("DROP INDEX entries_of_trial")
            else:
                connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
                connection.exec_driver_sql("DROP INDEX memecourt_docket.entries_of_trial")
            yield connection
            raise _Undone
    except _Undone:
        pass


async def check_docket(scene: TamperedDocket, connection: Connection, anchors: Sequence[Anchor] = ()) -> Report:
    """Checks the docket as this transaction sees it; returns the report."""
    derived = FromEntries()
    report = verify(Rows(connection), [scene.key], derived, anchors=anchors)

    async def frames(digest: str) -> Sequence[bytes]:
        if connection.dialect.name == "sqlite":
            return await scene.docket.trials.frames(digest)
        query = select(t.pictures.c.png).where(t.pictures.c.pixels_sha256 == digest).order_by(t.pictures.c.place)
        return [bytes(png) for png in connection.execute(query).scalars()]

    async def still_wanted(_: str) -> bool:
        return True

    await verify_pictures(
        derived.pictures(), frames=frames, same=has_pixels, still_wanted=still_wanted, report=report, patience_s=0
    )
    return report


@dataclass(slots=True)
class Tamperer:
    """Random alterations of a docket; each returns its detectability, or None if it changed nothing.

    Attributes:
        scene: Docket to alter.
        connection: Transaction that is rolled back later.
        chance: Random generator.
        files: Functions that undo changes outside of the database.
    """

    scene: TamperedDocket
    connection: Connection
    chance: random.Random
    files: list[Callable[[], None]] = field(default_factory=list)

    # Alterations of entries, without the key.

    def alter_entry(self) -> Detectability | None:
        """Changes the value of one column of an entry."""
        entry, row = self._entry(with_body=True)
        column = self.chance.choice(["number", "trial_id", "seq", "kind", "at", "commitment", "salt", "body"])
        value = getattr(row, column)
        if column == "number":
            other = self._size() + self.chance.randrange(5)
        elif column == "seq":
            other = self.chance.choice([value + 1, value + 100, -1, 2**31 - 1])
        elif column == "kind":
            other = self.chance.choice(["VerdictGiven", "Part", "Erased", "PictureShown", "Described", "Other"])
        elif column == "trial_id":
            other = self.chance.choice(["", "t0", self._entry()[1].trial_id])
        elif column == "at":
            other = value.replace("2026", "2025") if self.chance.random() < 0.5 else ""
        else:
            other = self._damaged(bytes(value))
        if other == value:
            return None
        self._update(t.entries, t.entries.c.number == entry.number, {column: other})
        if column in ("body", "salt"):
            (now,) = (one for one in Rows(self.connection).entries() if one.number == entry.number)
            return None if now == entry else FOUND
        return FOUND

    def alter_words(self) -> Detectability | None:
        """Changes words in a body, correctly packed."""
        entry, _ = self._entry(with_body=True)
        altered = self._reworded(entry.body or "")
        self._update(t.entries, t.entries.c.number == entry.number, {"body": packed(altered)})
        return FOUND

    def take_body(self) -> Detectability:
        """Removes a body, its salt, or both, as if erased."""
        entry, _ = self._entry(with_body=True)
        values = self.chance.choice([{"body": None}, {"salt": None}, {"body": None, "salt": None}])
        self._update(t.entries, t.entries.c.number == entry.number, values)
        return FOUND

    def put_back_a_body(self) -> Detectability | None:
        """Restores an erased body from an old copy."""
        now = {
            row.number for row in self.connection.execute(select(t.entries.c.number).where(t.entries.c.body.is_(None)))
        }
        old = [row for row in self.scene.early["entries"] if row["number"] in now and row["body"] is not None]
        if not old:
            return None
        row = self.chance.choice(old)
        self._update(t.entries, t.entries.c.number == row["number"], {"body": row["body"], "salt": row["salt"]})
        return FOUND

    def remove_entry(self) -> Detectability:
        """Removes one entry, or the last ones, without their checkpoints."""
        first = self.chance.randrange(self._size())
        last = first if self.chance.random() < 0.5 else self._size()
        self.connection.execute(delete(t.entries).where(t.entries.c.number >= first, t.entries.c.number <= last))
        return FOUND

    def add_entry(self) -> Detectability:
        """Appends an entry without a signature."""
        entry, row = self._entry(with_body=True)
        forged = make_entry(
            self._size(), kind=row.kind, trial_id=row.trial_id, seq=row.seq, at=row.at, body=entry.body or ""
        )
        self.connection.execute(insert(t.entries), [_row(forged)])
        return FOUND

    def swap_entries(self) -> Detectability | None:
        """Swaps two entries, or only their bodies and salts."""
        (one, a), (other, b) = self._entry(), self._entry()
        if one.number == other.number:
            return None
        columns = ["trial_id", "seq", "kind", "at", "commitment", "salt", "body"]
        if self.chance.random() < 0.5:
            columns = ["salt", "body"]
        if all(getattr(a, name) == getattr(b, name) for name in columns):
            return None
        for entry, values in ((one, b), (other, a)):
            changed = {name: getattr(values, name) for name in columns}
            self._update(t.entries, t.entries.c.number == entry.number, changed)
        return FOUND

    # Alterations of data derived from entries, without the key.

    def alter_tile(self) -> Detectability:
        """Alters, truncates or extends the hashes of a tile, or removes or adds a tile."""
        row = self.chance.choice(self.connection.execute(select(t.tiles)).all())
        own = (t.tiles.c.level == row.level) & (t.tiles.c.place == row.place)
        change = self.chance.randrange(4)
        if change == 0:
            self.connection.execute(delete(t.tiles).where(own))
        elif change == 1:
            self.connection.execute(
                insert(t.tiles), [{"level": row.level, "place": row.place + 7, "hashes": row.hashes}]
            )
        else:
            hashes = self._damaged(row.hashes) if change == 2 else bytes(row.hashes) + bytes(32)
            self._update(t.tiles, own, {"hashes": hashes})
        return FOUND

    def alter_state(self) -> Detectability | None:
        """Alters the state from which the log continues."""
        row = self.connection.execute(select(t.log)).one()
        column = self.chance.choice(["size", "frontier", "key", "checkpoint", "signed", "erased", "all"])
        other: dict[str, Any] = {
            "size": {"size": row.size + self.chance.choice([-1, 1, 1000])},
            "frontier": {"frontier": self._damaged(bytes(row.frontier))},
            "key": {"key": str(SigningKey.create(self.scene.key.name).verifier)},
            "checkpoint": {"checkpoint": self._damaged_note(row.checkpoint)},
            "signed": {"signed": row.signed + self.chance.choice([-1, 1])},
            "erased": {"erased": row.erased + 1},
        }
        if column == "all":
            self.connection.execute(delete(t.log))
        else:
            self._update(t.log, t.log.c.id == row.id, other[column])
        return FOUND

    def alter_checkpoint(self) -> Detectability | None:
        """Alters a stored checkpoint, moves it, signs it with another key, or makes an old one the latest."""
        row = self.chance.choice(self.connection.execute(select(t.checkpoints)).all())
        own = t.checkpoints.c.size == row.size
        change = self.chance.randrange(4)
        if change == 0:
            self._update(t.checkpoints, own, {"note": self._damaged_note(row.note)})
        elif change == 1:
            self._update(t.checkpoints, own, {"size": row.size + 100_000})
        elif change == 2:
            other = SigningKey.create(self.scene.key.name)
            root = self.chance.randbytes(32)
            self._update(t.checkpoints, own, {"note": sign_checkpoint(other, other.name, row.size, root)})
        else:
            # A genuine but older checkpoint as the latest.
            self._update(t.log, t.log.c.id >= 0, {"checkpoint": row.note, "signed": row.size})
            return None if row.size == self._size() else FOUND
        return FOUND

    def thin_out(self) -> Detectability:
        """Removes a checkpoint; detected if it is the anchor's and a verdict's receipt."""
        row = self.chance.choice(self.connection.execute(select(t.checkpoints)).all())
        self.connection.execute(delete(t.checkpoints).where(t.checkpoints.c.size == row.size))
        latest = self.connection.execute(select(t.log)).one().signed  # the log's state has it, too
        last = self.connection.execute(select(t.entries.c.kind).where(t.entries.c.number == row.size - 1)).scalar()
        missed = last == "VerdictGiven" and row.size == self.scene.anchored and row.size != latest
        return Detectability(alone=False, anchored=missed)

    def alter_trial(self) -> Detectability | None:
        """Changes a value in the listing of trials, or removes or adds a trial."""
        row = self.chance.choice(self.connection.execute(select(t.trials)).all())
        own = t.trials.c.trial_id == row.trial_id
        change = self.chance.randrange(8)
        if change == 0:
            self.connection.execute(delete(t.trials).where(own))
        elif change == 1:
            self.connection.execute(insert(t.trials), [{**row._mapping, "trial_id": "another"}])
        else:
            column = self.chance.choice([column.name for column in t.trials.c if column.name != "trial_id"])
            value = row._mapping[column]
            labels = ["HARMFUL", "NOT_HARMFUL", "UNDECIDED"]
            other = not value if isinstance(value, bool) else self.chance.choice([*labels, "", "OPEN", "north", "2026"])
            if other == value:
                return None
            self._update(t.trials, own, {column: other})
        return FOUND

    def alter_finding(self) -> Detectability | None:
        """Changes a value of a finding, or removes it or adds one."""
        row = self.chance.choice(self.connection.execute(select(t.findings)).all())
        own = (t.findings.c.content == row.content) & (t.findings.c.wording == row.wording)
        change = self.chance.randrange(5)
        if change == 0:
            self.connection.execute(delete(t.findings).where(own))
        elif change == 1:
            self.connection.execute(insert(t.findings), [{**row._mapping, "content": "another"}])
        else:
            column = self.chance.choice([column.name for column in t.findings.c])
            value = row._mapping[column]
            if isinstance(value, bool):
                other: object = not value
            else:
                other = value + 1 if isinstance(value, int) else self.chance.choice(["HARMFUL", "", "2999", "{}"])
            if other == value:
                return None
            self._update(t.findings, own, {column: other})
        return FOUND

    def alter_part(self) -> Detectability:
        """Alters the index of texts of precedents."""
        row = self.chance.choice(self.connection.execute(select(t.parts)).all())
        own = t.parts.c.key == row.key
        change = self.chance.randrange(4)
        if change == 0:
            self.connection.execute(delete(t.parts).where(own))
        elif change == 1:
            self.connection.execute(insert(t.parts), [{**row._mapping, "key": self._damaged(bytes(row.key))}])
        else:
            self._update(t.parts, own, {"number": row.number + 1} if change == 2 else {"of": "another"})
        return FOUND

    async def alter_picture(self) -> Detectability:
        """Replaces a stored picture by damaged bytes, another picture, more bytes, or nothing."""
        digests = sorted({row["pixels_sha256"] for row in rows_of(self.connection)["trials"] if row["pixels_sha256"]})
        digest, other = self.chance.sample(digests, 2)
        (png,), (elsewhere,) = (
            await self.scene.docket.trials.frames(digest),
            await self.scene.docket.trials.frames(other),
        )
        bare = BytesIO()
        Image.open(BytesIO(png)).transpose(Image.Transpose.ROTATE_90).save(bare, "PNG")
        put = self.chance.choice([elsewhere, png + b"more", bare.getvalue(), self._damaged(png), b"", None])
        self._put_picture(digest, put)
        return FOUND

    def alter_type(self) -> Detectability | None:
        """Stores a value of another type, which SQLite accepts in any column."""
        if self.connection.dialect.name != "sqlite":
            return None
        table = self.chance.choice(TABLES)
        column = self.chance.choice([column.name for column in table.c if not column.primary_key])
        value = self.chance.choice([b"\x01\xff", "x", 1.5, None])
        chosen = f"rowid = (SELECT rowid FROM {table.name} ORDER BY random() LIMIT 1)"
        before = self.connection.exec_driver_sql(f'SELECT * FROM "{table.name}"').all()
        self.connection.exec_driver_sql("PRAGMA ignore_check_constraints = 1")
        try:
            self.connection.exec_driver_sql(f'UPDATE "{table.name}" SET "{column}" = ? WHERE {chosen}', (value,))
        except IntegrityError:
            return None  # a NOT NULL column
        return FOUND if self.connection.exec_driver_sql(f'SELECT * FROM "{table.name}"').all() != before else None

    # Attacks by somebody who controls the whole docket.

    def roll_back(self) -> Detectability:
        """Restores an earlier state of the whole docket."""
        early = self.chance.random() < 0.6
        for table in TABLES:
            self.connection.execute(delete(table))
            if rows := (self.scene.early if early else self.scene.middle)[table.name]:
                self.connection.execute(insert(table), list(rows))
        return Detectability(alone=False, anchored=early)

    def forge_with_the_key(self) -> Detectability:
        """Rewrites the docket with its own key, one body altered or the tail cut: only an anchor detects it.

        Checkpoints over the unchanged part are kept, so that none of them is missing.
        """
        before = rows_of(self.connection)["checkpoints"]
        first = self._forge(self.scene.secret)
        now = {row.size for row in self.connection.execute(select(t.checkpoints)).all()}
        if still := [row for row in before if row["size"] <= first and row["size"] not in now]:
            self.connection.execute(insert(t.checkpoints), still)
        return Detectability(alone=False, anchored=first < self.scene.anchored)

    def forge_with_another_key(self) -> Detectability:
        """Rewrites the docket with another key of the same name, and stores that key as the docket's own."""
        self._forge(SigningKey.create(self.scene.key.name))
        return FOUND

    def forge_without_a_key(self) -> Detectability:
        """Rewrites the docket, but leaves the checkpoints as they were."""
        checkpoints, log = rows_of(self.connection)["checkpoints"], self.connection.execute(select(t.log)).one()
        self._forge(SigningKey.create(self.scene.key.name))
        self.connection.execute(delete(t.checkpoints))
        self.connection.execute(insert(t.checkpoints), checkpoints)
        self._update(t.log, t.log.c.id >= 0, {"key": log.key, "checkpoint": log.checkpoint, "signed": log.signed})
        return FOUND

    def _forge(self, key: SigningKey) -> int:
        """Alters one entry or cuts the tail, and makes the rest agree; returns the first number that differs."""
        entries = list(Rows(self.connection).entries())
        if self.chance.random() < 0.3:
            first = self.chance.randrange(self.scene.anchored // 2, len(entries))
            # Without their cut-off entries, erasures would be detected; then one entry is altered instead.
            remaining = {entry.number for entry in entries[:first]}
            entries = [entry for entry in entries if entry.number in remaining]
            if any(entry.erased for entry in entries):
                first, entries = len(entries), list(Rows(self.connection).entries())
                first = self._alter_one(entries)
        else:
            first = self._alter_one(entries)
        self._write_anew(entries, key)
        return first

    def _alter_one(self, entries: list[Entry]) -> int:
        at = [place for place, entry in enumerate(entries) if entry.kind in ("Described", "TextRead") and entry.body]
        place = self.chance.choice(at)
        entry = entries[place]
        body = self._reworded(entry.body or "")
        entries[place] = make_entry(
            entry.number, kind=entry.kind, trial_id=entry.trial_id, seq=entry.seq, at=entry.at, body=body
        )
        return entry.number

    def _write_anew(self, entries: Sequence[Entry], key: SigningKey) -> None:
        frontier, nodes, derived, erased = Frontier(), list[Node](), FromEntries(), 0
        for entry in entries:
            nodes += frontier.append(entry.leaf())
            derived.add(entry)
            if entry.kind == "Erased":
                erasure = json.loads(entry.body or "")
                erased += len(erasure["numbers"]) + erasure["buried"] + bool(erasure["trial_id"])
        note = sign_checkpoint(key, key.name, frontier.size, frontier.root())
        for table in (t.entries, t.tiles, t.checkpoints, t.trials, t.findings, t.parts):
            self.connection.execute(delete(table))
        self.connection.execute(insert(t.entries), [_row(entry) for entry in entries])
        tiles = [{"level": piece.level, "place": piece.index, "hashes": piece.hashes} for piece in tile_updates(nodes)]
        self.connection.execute(insert(t.tiles), tiles)
        self.connection.execute(insert(t.checkpoints), [{"size": frontier.size, "note": note}])
        self.connection.execute(insert(t.trials), [dict(row) for row in derived.trials().values()])
        if findings := [dict(row) for row in derived.findings().values()]:
            self.connection.execute(insert(t.findings), findings)
        if parts := derived.parts():
            rows = [{"key": part, "number": number, "of": of} for part, (number, of) in parts.items()]
            self.connection.execute(insert(t.parts), rows)
        state = {"size": frontier.size, "frontier": frontier.to_bytes(), "key": str(key.verifier), "erased": erased}
        self._update(t.log, t.log.c.id >= 0, {**state, "checkpoint": note, "signed": frontier.size})

    def _entry(self, *, with_body: bool = False) -> tuple[Entry, Any]:
        rows = self.connection.execute(select(t.entries)).all()
        row = self.chance.choice([row for row in rows if row.body is not None or not with_body])
        (entry,) = (one for one in Rows(self.connection).entries() if one.number == row.number)
        return entry, row

    def _size(self) -> int:
        return int(self.connection.execute(select(t.log.c.size)).scalar_one())

    def _update(self, table: Table, where: Any, values: Mapping[str, Any]) -> None:
        self.connection.execute(update(table).where(where).values(values))

    def _damaged(self, data: bytes) -> bytes:
        """Flips a bit, truncates the data, or appends a byte."""
        draw = self.chance.random()
        if draw < 0.1:
            return data[: self.chance.randrange(len(data))]
        if draw < 0.2:
            return data + self.chance.randbytes(1)
        place = self.chance.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << self.chance.randrange(8))]) + data[place + 1 :]

    def _damaged_note(self, note: str) -> str:
        place = self.chance.randrange(len(note))
        other = self.chance.choice([letter for letter in "Aa0\n=—+ " if letter != note[place]])
        return note[:place] + other + note[place + 1 :]

    def _reworded(self, body: str) -> str:
        value = json.loads(body)
        for name in ("description", "text", "question", "summary", "message"):
            if name in value:
                value[name] += " or not"
                break
        else:
            value["at"] = value["at"].replace("2026", "2025") if "at" in value else "2025"
        return json.dumps(value)

    def _put_picture(self, digest: str, png: bytes | None) -> None:
        if self.connection.dialect.name != "sqlite":
            own = t.pictures.c.pixels_sha256 == digest
            if png is None:
                self.connection.execute(delete(t.pictures).where(own))
            else:
                self._update(t.pictures, own, {"png": png})
            return
        path = next(self.scene.pictures.rglob(f"{digest}.0.png"))
        before = path.read_bytes()
        path.unlink()
        if png is not None:
            path.write_bytes(png)
        self.files.append(lambda: (path.unlink(missing_ok=True), path.write_bytes(before), None)[-1])


def _row(entry: Entry) -> dict[str, Any]:
    """Returns the row of an entry."""
    return {
        "number": entry.number,
        "trial_id": entry.trial_id,
        "seq": entry.seq,
        "kind": entry.kind,
        "at": entry.at,
        "commitment": entry.commitment,
        "salt": entry.salt,
        "body": None if entry.body is None else packed(entry.body),
    }


ALTERATIONS = (
    *("alter_entry", "alter_words", "take_body", "put_back_a_body", "remove_entry", "add_entry", "swap_entries"),
    *("alter_tile", "alter_state", "alter_checkpoint", "thin_out", "alter_trial", "alter_finding", "alter_part"),
    *("alter_picture", "alter_type"),
    *("roll_back", "forge_with_the_key", "forge_with_another_key", "forge_without_a_key"),
)
