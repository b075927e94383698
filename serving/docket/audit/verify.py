"""Verifies a docket: recomputes everything that follows from its rows, and compares it with what is signed.

Detected: any row of the entries, the tree, the checkpoints, the trials or the pictures that was altered, removed,
inserted or moved by somebody without the key. Not detected without an external checkpoint: a tail that was cut off
together with its checkpoints (such as by restoring an earlier state of the whole docket), and anything
rewritten and signed with the docket's own key. With an external checkpoint, both are detected for the entries that
it covers; the entries after the newest one are the unanchored tail.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson

from court.events import TrialOpened, VerdictReviewed
from court.in_force import CaseNotes, ContentKey, case_of, standing
from court.meme import is_text_digest
from serving.docket.log.anchors import Anchor
from serving.docket.log.entries import NO_SEQ, OWN_KINDS, Entry, Erased, check, erased_of, parse
from serving.docket.log.errors import BadEntry, BadNote
from serving.docket.log.merkle import TILE_HEIGHT, TILE_WIDTH, Frontier, Node, tile_widths
from serving.docket.log.notes import Checkpoint, VerifierKey, open_checkpoint, read_checkpoint, split_note
from serving.docket.log.rotation import KeyChain, read_rotation
from serving.docket.store.bodies import PART, event_in, part_key
from serving.docket.store.listing import finding_row
from serving.docket.store.trials import LISTED_KINDS, trial_change, trial_row

T = TypeVar("T")

Row = Mapping[str, Any]


class StoredDocket(Protocol):
    """Stored content of a docket, row by row, all of the same moment. Nothing in it is trusted."""

    def entries(self) -> Iterator[Entry]:
        """All entries by number. A body that can't be unpacked is an empty one."""

    def checkpoints(self) -> Iterator[tuple[int, str]]:
        """Size and note of the kept checkpoints, by size."""

    def tiles(self) -> Iterator[tuple[int, int, bytes]]:
        """Level, index and hashes of the kept tiles."""

    def trials(self) -> Iterator[tuple[str, Row]]:
        """Id and row of each trial in the listing."""

    def findings(self) -> Iterator[tuple[Any, Row]]:
        """Content key and row of each finding of people."""

    def parts(self) -> Iterator[tuple[bytes, int, str]]:
        """Yields the key, the entry and the precedent of each text that events quote."""

    def rotations(self) -> Iterator[Entry]:
        """All entries that change the key, by number; they are among the entries too."""

    def state(self) -> Mapping[str, Any]:
        """Statement of the docket about its log as a whole; empty where it has none."""


class FromEntries:
    """Listing, parts and pictures, recomputed from the entries."""

    def __init__(self) -> None:
        self._trials: dict[str, dict[str, Any]] = {}
        self._parts: dict[bytes, tuple[int, str]] = {}
        # As bodies, since a docket may have a million of them; with the policy of each one's trial.
        self._by_people: dict[ContentKey, list[tuple[str, str]]] = {}

    def add(self, entry: Entry) -> None:
        """Takes an entry, in the order of the log. Raises BadEntry where its body can't be read."""
        try:
            if entry.kind == "Erased" and entry.body is not None:
                self._erase(entry.body)
            elif entry.kind == PART and entry.body is not None:
                self._part(entry.number, entry.body)
            elif entry.kind in LISTED_KINDS and entry.body is not None:
                self._event(entry.body)
        # A body may be anything here: it becomes a finding of this entry, and the audit continues.
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadEntry(f"The body of entry {entry.number} can't be read as what its header says.") from None

    def trials(self) -> Mapping[str, Mapping[str, Any]]:
        """The row that each trial must have in the listing."""
        return self._trials

    def findings(self) -> Mapping[ContentKey, Mapping[str, Any]]:
        """The row that each finding must have, by content key, where its trials are there."""
        notes = ((content, _case(stored)) for content, stored in self._by_people.items())
        return {content: row for content, case in notes if (row := finding_row(content, case)) is not None}

    def parts(self) -> Mapping[bytes, tuple[int, str]]:
        """Entry and precedent of each text that events quote, by the key that it is found again by."""
        return self._parts

    def pictures(self) -> frozenset[str]:
        """Digests of the pictures that must be kept."""
        # Erased trials have an empty digest, and no picture.
        digests = {str(row.get("pixels_sha256", "")) for row in self._trials.values()} - {""}
        return frozenset(digest for digest in digests if not is_text_digest(digest))

    def _event(self, body: str) -> None:
        event = event_in(body, {})
        if isinstance(event, TrialOpened):
            self._trials[event.trial_id] = {**trial_row(event), "erased": False}
        else:
            # A KeyError, for a trial that was never opened, becomes a finding in add().
            row = self._trials[event.trial_id]
            stored = list[tuple[str, str]]()
            if event.by_person:
                stored = self._by_people.setdefault(ContentKey(row["content"], row["wording"]), stored)
                stored.append((body, row["policy"]))
            row |= trial_change(event, partial(_left, stored))

    def _part(self, number: int, body: str) -> None:
        value = parse(body)
        self._parts[part_key((value["of"], value["value"]))] = (number, value["of"])

    def _erase(self, body: str) -> None:
        erased = erased_of(body)
        if erased.trial_id:
            self._trials[erased.trial_id] = {"trial_id": erased.trial_id, **erased.left}


def _case(stored: Sequence[tuple[str, str]]) -> CaseNotes:
    events = [event_in(body, {}) for body, _ in stored]
    return case_of(events, {event.trial_id: policy for event, (_, policy) in zip(events, stored, strict=True)})


def _left(stored: Sequence[tuple[str, str]], trial_id: str) -> VerdictReviewed | None:
    """Returns the last review of a trial that stands after a withdrawal."""
    events = standing(event_in(body, {}) for body, _ in stored)
    own = [e for e in events if isinstance(e, VerdictReviewed) and e.trial_id == trial_id]
    return own[-1] if own else None


_VERDICT = "VerdictGiven"
"""Kind of the entry that a receipt is about."""


class Fault(StrEnum):
    """Kind of fault in a docket."""

    ENTRY_MISSING = "ENTRY_MISSING"
    ENTRY_MISPLACED = "ENTRY_MISPLACED"
    BODY_ALTERED = "BODY_ALTERED"
    BODY_MISSING = "BODY_MISSING"
    """Body missing, although no entry records its erasure."""
    BODY_NOT_ERASED = "BODY_NOT_ERASED"
    """Body present, although an entry records its erasure."""
    BODY_DISAGREES = "BODY_DISAGREES"
    """Body about another event than its header."""
    SEQUENCE = "SEQUENCE"
    """Events of a trial not numbered from 0 without gaps."""
    CHECKPOINT_UNSIGNED = "CHECKPOINT_UNSIGNED"
    CHECKPOINT_DIFFERS = "CHECKPOINT_DIFFERS"
    """Checkpoint signed over other entries than those stored."""
    CHECKPOINT_MISSING = "CHECKPOINT_MISSING"
    """One that was kept outside, and which a verdict has as its receipt, is not among those of the docket any more."""
    TAIL_MISSING = "TAIL_MISSING"
    """Fewer entries than were signed."""
    TAIL_UNSIGNED = "TAIL_UNSIGNED"
    """More entries than were signed."""
    TILE_DIFFERS = "TILE_DIFFERS"
    TRIAL_DIFFERS = "TRIAL_DIFFERS"
    FINDING_DIFFERS = "FINDING_DIFFERS"
    """Finding of people that differs from the reviews, appeals and questions in the log."""
    PART_DIFFERS = "PART_DIFFERS"
    STATE_DIFFERS = "STATE_DIFFERS"
    """Wrong state of the log as a whole."""
    PICTURE_DIFFERS = "PICTURE_DIFFERS"
    INDEX_DIFFERS = "INDEX_DIFFERS"
    """An index leads elsewhere than to the rows of its table: lists and records leave some of them out."""
    KEY_DIFFERS = "KEY_DIFFERS"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    fault: Fault
    text: str
    entry: int | None = None


MOST_FINDINGS = 1000
"""Limit on findings that are described in words; all are counted."""


@dataclass(slots=True)
class Report:
    """Result of a check.

    Attributes:
        findings: Faults, the first :data:`MOST_FINDINGS`.
        unchecked: Checks that could not be made, in sentences.
    """

    size: int = 0
    root: bytes = b""
    checkpoints: int = 0
    trials: int = 0
    pictures: int = 0
    bodies: int = 0
    erased: int = 0
    anchors: int = 0
    anchored: int = 0
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[Fault] = field(default_factory=Counter)
    unchecked: list[str] = field(default_factory=list)

    @property
    def violated(self) -> bool:
        """True if anything is wrong."""
        return bool(self.counts)

    @property
    def tail(self) -> int:
        """Entries that no agreeing checkpoint from outside speaks for."""
        return self.size - self.anchored

    def wrong(self, fault: Fault, text: str, entry: int | None = None) -> None:
        """Adds a finding."""
        self.counts[fault] += 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(fault, text, entry))


Progress = Callable[[int], None]
"""Callback that receives the number of entries checked so far."""


def verify(
    stored: StoredDocket,
    keys: Sequence[VerifierKey],
    derived: FromEntries,
    *,
    anchors: Sequence[Anchor] = (),
    progress: Progress = lambda entries: None,
) -> Report:
    """Checks all that is kept, pictures aside. Blocks for as long as it takes to read everything once.

    Args:
        keys: Keys that must have signed its checkpoints, from a place outside of the docket; of one whose key was
            changed, any of its keys vouches for the others.
    """
    report = Report()
    state = stored.state()
    # Before the checkpoints: which key must have signed one depends on where keys were changed.
    chain = _chain(stored, keys, report)
    signed = _Signed(chain, report)
    # Checkpoints before entries: the entries go by once, and each root is compared when the tree has that size.
    for size, note in _readable(stored.checkpoints(), Fault.CHECKPOINT_UNSIGNED, "checkpoints", report):
        signed.keep(size, note)
    if state.get("checkpoint") or state.get("key"):  # neither, before anything was signed
        signed.keep(state.get("signed"), str(state.get("checkpoint")), latest=True)
    for anchor in anchors:
        signed.anchor(anchor)
    frontier, tiles, erased = _entries(
        _readable(stored.entries(), Fault.ENTRY_MISSING, "entries", report),
        signed=signed,
        derived=derived,
        report=report,
        progress=progress,
    )
    signed.close()
    _state(state, frontier=frontier, erased=erased, keys=chain.current(), report=report)
    _tiles(_readable(stored.tiles(), Fault.TILE_DIFFERS, "tiles", report), tiles, report)
    _trials(_readable(stored.trials(), Fault.TRIAL_DIFFERS, "trials", report), derived.trials(), report)
    _findings(_readable(stored.findings(), Fault.FINDING_DIFFERS, "findings", report), derived, report)
    _parts(_readable(stored.parts(), Fault.PART_DIFFERS, "parts", report), derived.parts(), report)
    return report


async def verify_pictures(
    wanted: Iterable[str],
    *,
    frames: Callable[[str], Awaitable[Sequence[bytes]]],
    same: Callable[[Sequence[bytes], str], bool],
    still_wanted: Callable[[str], Awaitable[bool]],
    report: Report,
    patience_s: float = 3.0,
) -> None:
    """Checks pictures, which may be stored apart from the database.

    Args:
        same: True if frames are those of the picture with a digest; raises ValueError where they are no pictures.
        still_wanted: True if a trial of the picture exists now: all of them may have been erased meanwhile.
        patience_s: Seconds after which what is wrong is looked at again, once for all of them: what an erasure took
            away while a new trial of the same picture was opened is put back.
    """

    async def wrong(digest: str) -> str:
        stored = await frames(digest)
        if not stored:
            return f"The picture {digest[:16]}… of a trial is missing."
        try:
            unaltered = await asyncio.to_thread(same, stored, digest)
        except ValueError:
            unaltered = False
        return "" if unaltered else f"What is kept as picture {digest[:16]}… is another or none."

    doubtful = []
    for digest in sorted(wanted):
        report.pictures += 1
        # Rechecked together below: waiting for each separately would take hours if many are missing.
        if await wrong(digest):
            doubtful.append(digest)
    if doubtful:
        await asyncio.sleep(patience_s)
    for digest in doubtful:
        # Asked in this order: a picture goes frame by frame, after the last trial of it.
        if (text := await wrong(digest)) and await still_wanted(digest):
            report.wrong(Fault.PICTURE_DIFFERS, text)


def _readable(rows: Iterator[T], fault: Fault, what: str, report: Report) -> Iterator[T]:
    """Yields rows until one is malformed."""
    try:
        yield from rows
    # Raised by conversions of altered values. This is a finding and does not end the check of other tables.
    except (TypeError, ValueError, LookupError, ArithmeticError):
        text = f"A row of the {what} can't be read at all; what stands after it was not looked at."
        report.wrong(fault, text)


def _chain(stored: StoredDocket, keys: Sequence[VerifierKey], report: Report) -> KeyChain:
    """The keys of the docket, as far as its own entries name them."""
    rotations = []
    for entry in _readable(stored.rotations(), Fault.KEY_DIFFERS, "changes of the key", report):
        try:
            rotations.append(read_rotation(entry))
        except BadEntry as bad:
            report.wrong(Fault.KEY_DIFFERS, bad.message, entry.number)
    chain = KeyChain(keys, rotations)
    for number in chain.broken:
        text = f"Entry {number} changes the docket's key, and the key that it retires is not the one before."
        report.wrong(Fault.KEY_DIFFERS, text, number)
    if chain.rotations and not chain.is_trusted:
        text = "The keys that the docket went over to are not those that were given: somebody else may have named them."
        report.wrong(Fault.KEY_DIFFERS, text)
    return chain


class _Signed:
    """Checkpoints, in the docket and outside, to be held against the tree as it grows to their sizes."""

    def __init__(self, chain: KeyChain, report: Report) -> None:
        self._chain = chain
        self._report = report
        self._rotations = {rotation.number: rotation.root for rotation in chain.rotations}
        self._checkpoints: dict[int, list[bytes]] = {}
        self._anchors: dict[int, list[tuple[str, bytes]]] = {}
        self._last = 0  # largest size that is signed in the docket

    def keep(self, size: Any, note: str, *, latest: bool = False) -> None:
        """Takes a checkpoint of the docket itself; the latest, after all others."""
        try:
            checkpoint = self._opened(note)
        except BadNote as bad:
            self._report.wrong(Fault.CHECKPOINT_UNSIGNED, f"The checkpoint over {size} entries: {bad.message}")
            return
        if checkpoint.size != size:
            text = f"A checkpoint over {checkpoint.size} entries is kept as one over {size}."
            self._report.wrong(Fault.CHECKPOINT_DIFFERS, text)
        # An older checkpoint put in the place of the latest would hide that entries were cut off.
        if latest and checkpoint.size < self._last:
            text = f"The latest checkpoint is over {checkpoint.size} entries; there is one over {self._last}."
            self._report.wrong(Fault.STATE_DIFFERS, text)
        # By the size that was signed: the one in the row can be altered by anybody.
        self._checkpoints.setdefault(checkpoint.size, []).append(checkpoint.root)
        self._last = max(self._last, checkpoint.size)

    def anchor(self, anchor: Anchor) -> None:
        """Takes checkpoints from outside."""
        bad = 0
        for note in anchor.notes:
            try:
                checkpoint = self._opened(note)
            except BadNote:
                # No finding: a note that the docket's key did not sign says nothing about the docket.
                bad += 1
                continue
            self._anchors.setdefault(checkpoint.size, []).append((anchor.name, checkpoint.root))
        if bad:
            self._report.unchecked.append(
                f"{bad} of {len(anchor.notes)} checkpoints in the anchor {anchor.name} are not signed with the given "
                "key, were altered, or are signed with a key that was retired before: they show nothing. Give an "
                "anchor of this docket."
            )

    def _opened(self, note: str) -> Checkpoint:
        # By the size that the note states: one over more entries than a key speaks for is not signed with that key.
        size = read_checkpoint(split_note(note)[0]).size
        return open_checkpoint(note, self._chain.keys_for(size))

    def hold_against(self, size: int, root: Callable[[], bytes], *, is_receipt: bool = False) -> None:
        """Compares what was signed over so many entries with the tree over them.

        Args:
            root: Gives the root of the tree over them.
            is_receipt: True if a verdict is the last of them, so that its receipt is the checkpoint over them: that one
                is kept in the docket. Of others, such as those that only an anchor asked for, the newest alone is.
        """
        if size in self._rotations and self._rotations[size] != root():
            text = f"Entry {size} changes the docket's key, and was signed over others than are before it."
            self._report.wrong(Fault.KEY_DIFFERS, text, size)
        # Taken out: what is left at the end was signed over more entries than there are.
        roots = self._checkpoints.pop(size, ())
        for signed in roots:
            if signed == root():
                self._report.checkpoints += 1
            else:
                text = f"The checkpoint over {size} entries was signed over others than are there."
                self._report.wrong(Fault.CHECKPOINT_DIFFERS, text)
        for name, signed in self._anchors.pop(size, ()):
            if signed == root():
                self._report.anchors += 1
                self._report.anchored = max(self._report.anchored, size)
                if is_receipt and not roots:
                    text = f"The checkpoint over {size} entries in the anchor {name} was taken out of the docket."
                    self._report.wrong(Fault.CHECKPOINT_MISSING, text)
            else:
                text = f"The checkpoint over {size} entries in the anchor {name} was signed over others than are there."
                self._report.wrong(Fault.CHECKPOINT_DIFFERS, text)

    def close(self) -> None:
        """Reports checkpoints left over, which were signed over more entries than there are."""
        size = self._report.size
        for larger in sorted(self._checkpoints):
            text = f"{larger} entries were signed, and {size} are there."
            self._report.wrong(Fault.TAIL_MISSING, text)
        for larger in sorted(self._anchors):
            for name, _ in self._anchors[larger]:
                text = f"A checkpoint in the anchor {name} is over {larger} entries, and {size} are there."
                self._report.wrong(Fault.TAIL_MISSING, text)
        if size > self._last:
            text = f"The last {size - self._last} entries are not signed."
            self._report.wrong(Fault.TAIL_UNSIGNED, text)


class _Sequences:
    """The sequence numbers of each trial, as a set of bits: some trials' sides write at the same time."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._numbers: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        if entry.kind in OWN_KINDS:
            if entry.seq != NO_SEQ:
                text = f"Entry {entry.number} is no event of a trial, and is counted as one."
                self._report.wrong(Fault.SEQUENCE, text, entry.number)
            return
        if not 0 <= entry.seq <= self._report.size:  # nor is more memory taken than there are entries
            text = f"Entry {entry.number} can't be event {entry.seq} of its trial."
            self._report.wrong(Fault.SEQUENCE, text, entry.number)
            return
        bits, bit = self._numbers.get(entry.trial_id, 0), 1 << entry.seq
        if bits & bit:
            text = f"Trial {entry.trial_id} has two events {entry.seq}; the second is entry {entry.number}."
            self._report.wrong(Fault.SEQUENCE, text, entry.number)
        self._numbers[entry.trial_id] = bits | bit

    def close(self) -> None:
        for trial_id, bits in self._numbers.items():
            # A sequence without gaps is all ones from bit 0 upwards, and only then has no bit in common with its
            # successor.
            if bits & (bits + 1):
                first = (~bits & (bits + 1)).bit_length() - 1
                self._report.wrong(Fault.SEQUENCE, f"Trial {trial_id} has later events, and no event {first}.")


def _entries(
    entries: Iterable[Entry], *, signed: _Signed, derived: FromEntries, report: Report, progress: Progress
) -> tuple[Frontier, dict[tuple[int, int], tuple[int, bytes]], int]:
    """Goes through all entries once; gives the tree, width and digest of each tile, and how much was erased."""
    frontier, edge, sequences = Frontier(), _Tiles(), _Sequences(report)
    gone: set[int] = set()
    erasures: list[tuple[int, Erased]] = []
    # Also an empty log may have been signed.
    signed.hold_against(0, frontier.root)
    expected = 0
    for entry in entries:
        if entry.number != expected:
            _misplaced(entry.number, expected, report)
            # Counting goes on from what is there: one missing entry is one finding, and not one for each entry after
            # it.
            expected = max(expected, entry.number)
        expected += 1
        _body(entry, derived, report)
        sequences.add(entry)
        if entry.erased:
            gone.add(entry.number)
        if entry.kind == "Erased" and entry.body is not None:
            erasures += _erased(entry, entry.body, report)
        # Also of entries that are wrong: the tree is over what is there, and shows by its root what does not belong.
        edge.add(frontier.append(entry.leaf()))
        report.size = frontier.size
        # The root is passed as a function: it is only computed for sizes that something was signed over.
        signed.hold_against(frontier.size, frontier.root, is_receipt=entry.kind == _VERDICT)
        if not frontier.size % 1000:
            progress(frontier.size)
    report.root = frontier.root()
    report.erased = len(gone)
    sequences.close()
    _checked_against_erasures(gone, erasures, report)
    # Counted as the docket counts when it erases, so that the two figures can be compared.
    return (
        frontier,
        edge.all(frontier.size),
        sum(len(one.numbers) + one.buried + bool(one.trial_id) for _, one in erasures),
    )


def _misplaced(number: int, expected: int, report: Report) -> None:
    if number > expected:
        missing = f"entry {expected} is" if number == expected + 1 else f"entries {expected} to {number - 1} are"
        report.wrong(Fault.ENTRY_MISSING, f"Of the log's entries, {missing} missing.", expected)
    else:
        report.wrong(Fault.ENTRY_MISPLACED, f"An entry numbered {number} stands where {expected} should.", number)


def _body(entry: Entry, derived: FromEntries, report: Report) -> None:
    try:
        check(entry)
        if entry.body is not None:
            report.bodies += 1
            _check_agreement(entry, entry.body)
    except BadEntry as bad:
        fault = Fault.BODY_DISAGREES if bad.reason == "BODY_DISAGREES" else Fault.BODY_ALTERED
        report.wrong(fault, bad.message, entry.number)
        # Nothing is derived from a body that is not the one that was logged.
        return
    try:
        derived.add(entry)
    except BadEntry as bad:
        report.wrong(Fault.BODY_DISAGREES, bad.message, entry.number)


def _check_agreement(entry: Entry, body: str) -> None:
    """Checks that a body tells of the event that the header names."""
    try:
        value = orjson.loads(body)
        agrees = value["kind"] == entry.kind
        if entry.kind not in OWN_KINDS:
            agrees = agrees and value["seq"] == entry.seq
        # A part belongs to no trial, and its body has no time.
        if entry.kind != "Part":
            agrees = agrees and value["trial_id"] == entry.trial_id and _same_moment(value["at"], entry.at)
    except (ValueError, KeyError, TypeError):
        agrees = False
    if not agrees:
        raise BadEntry(
            f"The body of entry {entry.number} tells of something else than its header.", reason="BODY_DISAGREES"
        )


def _same_moment(one: str, other: str) -> bool:
    # The same time can be written in more than one way.
    return one == other or datetime.fromisoformat(one) == datetime.fromisoformat(other)


def _erased(entry: Entry, body: str, report: Report) -> list[tuple[int, Erased]]:
    try:
        return [(entry.number, erased_of(body))]
    except BadEntry as bad:
        report.wrong(Fault.BODY_DISAGREES, bad.message, entry.number)
        return []


def _checked_against_erasures(gone: set[int], erasures: Sequence[tuple[int, Erased]], report: Report) -> None:
    """Checks that every missing body has an erasure entry, and that no erased body is present."""
    # What was erased was there before.
    by = {one for number, erased in erasures for one in erased.numbers if one < number}
    for number in sorted(gone - by):
        text = f"The body of entry {number} is gone, and no entry says that it was erased."
        report.wrong(Fault.BODY_MISSING, text, number)
    for number in sorted(by - gone):
        text = f"Entry {number} was erased according to the log, and its body is there."
        report.wrong(Fault.BODY_NOT_ERASED, text, number)


class _Tiles:
    """The tiles that follow from the entries: of full ones the digest, so that a large log fits into memory."""

    def __init__(self) -> None:
        self._full: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._open: dict[int, list[bytes]] = {}

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            # Only these levels are stored (tile_updates).
            if node.level % TILE_HEIGHT == 0:
                level = node.level // TILE_HEIGHT
                tile = self._open.setdefault(level, [])
                tile.append(node.hash)
                if len(tile) == TILE_WIDTH:
                    self._full[level, node.index // TILE_WIDTH] = (TILE_WIDTH, _digest(b"".join(tile)))
                    tile.clear()

    def all(self, size: int) -> dict[tuple[int, int], tuple[int, bytes]]:
        """Width and digest of each, by level and index."""
        remaining = {
            (level, index): (width, _digest(b"".join(self._open[level])))
            for level, index, width in tile_widths(size)
            if width < TILE_WIDTH
        }
        return self._full | remaining


def _tiles(
    stored: Iterable[tuple[int, int, bytes]], expected: dict[tuple[int, int], tuple[int, bytes]], report: Report
) -> None:
    missing = set(expected)
    for level, index, hashes in stored:
        width, digest = expected.get((level, index), (0, b""))
        missing.discard((level, index))
        if width == 0:
            report.wrong(Fault.TILE_DIFFERS, f"Tile {index} of level {level} belongs to no tree of this size.")
        elif _digest(hashes) != digest:
            text = f"Tile {index} of level {level} does not hold the hashes of the entries."
            report.wrong(Fault.TILE_DIFFERS, text)
    for level, index in sorted(missing):
        report.wrong(Fault.TILE_DIFFERS, f"Tile {index} of level {level} is missing.")


def _trials(stored: Iterable[tuple[str, Row]], expected: Mapping[str, Row], report: Report) -> None:
    missing = set(expected)
    for trial_id, row in stored:
        report.trials += 1
        missing.discard(trial_id)
        wanted = expected.get(trial_id)
        if wanted is None:
            report.wrong(Fault.TRIAL_DIFFERS, f"Trial {trial_id} is listed, and the log has no entry of it.")
        # The columns of both: one that is missing in either differs, too.
        elif odd := sorted(name for name in row.keys() | wanted.keys() if row.get(name) != wanted.get(name)):
            text = f"Trial {trial_id} is listed with another {', '.join(odd)} than its entries give it."
            report.wrong(Fault.TRIAL_DIFFERS, text)
    for trial_id in sorted(missing):
        report.wrong(Fault.TRIAL_DIFFERS, f"Trial {trial_id} is in the log and is not listed.")


def _findings(stored: Iterable[tuple[Any, Row]], derived: FromEntries, report: Report) -> None:
    expected, trials = derived.findings(), derived.trials()
    missing = set(expected)
    for content, row in stored:
        missing.discard(content)
        wanted, about = expected.get(content), f"The finding about the content of trial {row.get('trial_id')}"
        if row.get("until"):
            # Kept for a trial that has expired: no entry is left that says more of it.
            if not trials.get(str(row.get("trial_id")), {}).get("erased"):
                report.wrong(Fault.FINDING_DIFFERS, f"{about} is kept as that of an expired trial, which has not.")
            elif wanted is not None and str(row.get("at")) < wanted["at"]:
                report.wrong(Fault.FINDING_DIFFERS, f"{about} is kept although there is a later one.")
        elif wanted is None:
            report.wrong(Fault.FINDING_DIFFERS, f"{about} follows from no entry.")
        elif odd := sorted(name for name in row.keys() | wanted.keys() if row.get(name) != wanted.get(name)):
            text = f"{about} has another {', '.join(odd)} than the entries give it."
            report.wrong(Fault.FINDING_DIFFERS, text)
    for content in missing:
        text = f"The finding about the content of trial {expected[content]['trial_id']} is in the log and not kept."
        report.wrong(Fault.FINDING_DIFFERS, text)


def _parts(stored: Iterable[tuple[bytes, int, str]], expected: Mapping[bytes, tuple[int, str]], report: Report) -> None:
    missing = set(expected)
    for key, number, of in stored:
        missing.discard(key)
        if expected.get(key) != (number, of):
            report.wrong(Fault.PART_DIFFERS, f"Entry {number} is not the text that it is found by.", number)
    for key in missing:
        number, _ = expected[key]
        report.wrong(Fault.PART_DIFFERS, f"The text of entry {number} can't be found by what it says.", number)


def _state(state: Mapping[str, Any], *, frontier: Frontier, erased: int, keys: frozenset[str], report: Report) -> None:
    """Checks the state from which the docket extends its log."""
    # A docket without entries has signed nothing yet, and may have no key.
    if state.get("key") not in (keys if report.size else keys | {""}):
        report.wrong(Fault.KEY_DIFFERS, "The docket names another key as its own than the one that was given.")
    found = {"size": frontier.size, "frontier": frontier.to_bytes(), "erased": erased}
    for name, value in found.items():
        if state.get(name) != value:
            text = f"What the docket notes as its log's {name} is not what follows from its entries."
            report.wrong(Fault.STATE_DIFFERS, text)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
