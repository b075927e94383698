"""What a check of a docket finds that its own key has signed, and how it tells of it; without a database.

Alterations by others, in a real database, are in tests/contract/test_docket_verify.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from serving.docket.audit.audit import FromEntries
from serving.docket.log import verify as checking
from serving.docket.log.anchors import Anchor
from serving.docket.log.entries import Entry, Erased, body_of
from serving.docket.log.merkle import tile_widths
from serving.docket.log.notes import SigningKey, sign_checkpoint
from serving.docket.log.verify import Fault, Report, verify
from tests.support.dockets import NOON, events_of
from tests.support.logs import MemoryLog


class Rows:
    """The rows of a docket that would hold such a log, everything as it has to be; a test spoils them."""

    def __init__(self, log: MemoryLog) -> None:
        derived, erased = FromEntries(), 0
        for entry in log.entries:
            try:
                derived.add(entry)
            except checking.BadEntry:
                continue
            if entry.kind == "Erased" and entry.body is not None:
                told = json.loads(entry.body)
                erased += len(told["numbers"]) + told["buried"] + bool(told["trial_id"])
        self.all_entries = list(log.entries)
        self.all_checkpoints = [(len(log.entries), log.checkpoint())]
        self.all_tiles = [(level, index, log.tiles[level, index]) for level, index, _ in tile_widths(len(log.entries))]
        self.all_trials = {trial_id: dict(row) for trial_id, row in derived.trials().items()}
        self.all_parts = [(key, number, of) for key, (number, of) in derived.parts().items()]
        size, note = self.all_checkpoints[0]
        self.log_row: dict[str, Any] = {"size": size, "frontier": log.frontier(), "key": str(log.key.verifier)}
        self.log_row |= {"checkpoint": note, "signed": size, "erased": erased}

    def entries(self) -> Iterator[Entry]:
        return iter(self.all_entries)

    def checkpoints(self) -> Iterator[tuple[int, str]]:
        return iter(self.all_checkpoints)

    def tiles(self) -> Iterator[tuple[int, int, bytes]]:
        return iter(self.all_tiles)

    def trials(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return iter(self.all_trials.items())

    def parts(self) -> Iterator[tuple[bytes, int, str]]:
        return iter(self.all_parts)

    def rotations(self) -> Iterator[Entry]:
        return iter([entry for entry in self.all_entries if entry.kind == "KeyRotated"])

    def state(self) -> Mapping[str, Any]:
        return self.log_row


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.add_events(events_of("a"))
    log.add_look("a", "ada")
    return log


def checked(log: MemoryLog, rows: Rows | None = None, anchors: Sequence[Anchor] = ()) -> Report:
    return verify(rows or Rows(log), [log.key.verifier], FromEntries(), anchors=anchors)


def faults(report: Report) -> dict[str, int]:
    return {str(fault): count for fault, count in report.counts.items()}


def test_what_is_right_is_found_to_be_so(log: MemoryLog) -> None:
    told: list[int] = []
    report = verify(Rows(log), [log.key.verifier], FromEntries(), progress=told.append)
    assert not report.violated and not report.findings and not report.unchecked and told == []
    assert (report.size, report.bodies, report.checkpoints, report.trials) == (len(log.entries), len(log.entries), 2, 1)
    assert report.root == log.opened().root and report.tail == report.size
    empty = MemoryLog()
    rows = Rows(empty)
    rows.all_checkpoints, rows.log_row = [], {**rows.log_row, "key": "", "checkpoint": "", "signed": 0}
    assert not checked(empty, rows).violated  # before anything was signed


def body(**values: Any) -> str:
    return json.dumps({"trial_id": "b", "at": "2026-01-02T12:00:00Z", **values})


@pytest.mark.parametrize("seqs", [[1], [0, 2], [0, 0], [0, 1, 1, 2], [0, 10**18], [0, -5], [1, 0, 3]])
def test_events_of_a_trial_are_counted_without_gaps(log: MemoryLog, seqs: list[int]) -> None:
    """Also where the docket itself has left one out, or given a number twice, and signed that."""
    for seq in seqs:
        log.add("Described", body(kind="Described", seq=seq), "b", seq)
    report = checked(log)
    assert set(report.counts) == {Fault.SEQUENCE}, report.findings
    assert all("b" in finding.text or "entry" in finding.text.lower() for finding in report.findings)


def test_sides_may_have_written_in_each_other_s_way(log: MemoryLog) -> None:
    for seq in (0, 2, 1, 3):
        log.add("Described", body(kind="Described", seq=seq), "b", seq)
    assert not checked(log).violated


def test_what_is_no_event_is_not_counted_as_one(log: MemoryLog) -> None:
    log.add("PictureShown", body(kind="PictureShown", trial_id="a", who="ada", what="frame 0"), "a", 99)
    assert faults(checked(log)) == {"SEQUENCE": 1}


@pytest.mark.parametrize(
    "told",
    [
        body(kind="TextRead", seq=0),
        body(kind="Described", seq=1),
        body(kind="Described", seq=0, trial_id="a"),
        body(kind="Described", seq=0, at="2026-01-02T12:00:01Z"),
        body(kind="Described", seq=0, at="noon"),
        "[]",
        "null",
        "no json",
        "",
        "{" * 100_000,
    ],
)
def test_a_body_tells_of_what_its_header_says(log: MemoryLog, told: str) -> None:
    log.add("Described", told, "b", 0)
    assert faults(checked(log)) == {"BODY_DISAGREES": 1}


def test_an_event_that_the_listing_is_made_of_can_be_read(log: MemoryLog) -> None:
    log.add("TrialOpened", body(kind="TrialOpened", seq=0), "b", 0)
    log.add("VerdictGiven", body(kind="VerdictGiven", seq=1), "b", 1)
    log.add("Part", '{"kind":"Part","value":"of nothing"}')
    log.add("Erased", body(kind="Erased", trial_id="a"), "a")
    report = checked(log)
    assert faults(report) == {"BODY_DISAGREES": 5}  # an erasure is read for two reasons


def erased_by(*numbers: int, trial_id: str = "") -> str:
    return body_of(Erased(trial_id=trial_id, at=NOON, who="ada", why="asked to", numbers=numbers))


def without(log: MemoryLog, *numbers: int) -> Rows:
    for number in numbers:
        log.entries[number] = replace(log.entries[number], body=None, salt=None)
    return Rows(log)


def test_what_is_gone_was_erased_and_what_was_erased_is_gone(log: MemoryLog) -> None:
    gone = without(log, 2, 3)
    assert faults(checked(log, gone)) == {"BODY_MISSING": 2}
    log.add("Erased", erased_by(2, 3))
    report = checked(log)
    assert not report.violated and report.erased == 2
    log.add("Erased", erased_by(4))
    report = checked(log)
    assert faults(report) == {"BODY_NOT_ERASED": 1} and report.findings[0].entry == 4


def test_nothing_is_erased_before_it_is_there_nor_an_erasure_with_it(log: MemoryLog) -> None:
    number = len(log.entries)
    log.add("Erased", erased_by(number, number + 1))
    log.add_look("a", "ada")
    assert faults(checked(log, without(log, number + 1))) == {"BODY_MISSING": 1}
    # Where the erasure itself is gone too, nothing says so of either.
    assert faults(checked(log, without(log, number))) == {"BODY_MISSING": 2}


def test_entries_that_are_missing_are_named(log: MemoryLog) -> None:
    rows = Rows(log)
    del rows.all_entries[2:4]
    report = checked(log, rows)
    assert "entries 2 to 3 are missing" in next(f.text for f in report.findings if f.fault is Fault.ENTRY_MISSING)
    rows = Rows(log)
    rows.all_entries.insert(3, replace(rows.all_entries[1]))
    assert Fault.ENTRY_MISPLACED in checked(log, rows).counts


def test_the_tail_is_signed_and_what_was_signed_is_there(log: MemoryLog) -> None:
    before = Rows(log)
    log.add_look("a", "eve")
    rows = Rows(log)
    rows.all_checkpoints = before.all_checkpoints
    rows.log_row |= {"checkpoint": before.log_row["checkpoint"], "signed": before.log_row["signed"]}
    report = checked(log, rows)
    assert faults(report) == {"TAIL_UNSIGNED": 1} and report.findings[0].text == "The last 1 entries are not signed."
    rows = before
    rows.all_checkpoints = Rows(log).all_checkpoints
    assert Fault.TAIL_MISSING in checked(log, rows).counts


def test_checkpoints_are_of_this_log_and_under_their_own_size(log: MemoryLog) -> None:
    size, key = len(log.entries), log.key
    rows = Rows(log)
    rows.all_checkpoints = [(size - 1, rows.all_checkpoints[0][1])]
    assert faults(checked(log, rows)) == {"CHECKPOINT_DIFFERS": 1}
    rows = Rows(log)
    rows.all_checkpoints.append((size, sign_checkpoint(key, key.name, size, bytes(32))))
    assert faults(checked(log, rows)) == {"CHECKPOINT_DIFFERS": 1}
    rows = Rows(log)
    rows.all_checkpoints.append((3, sign_checkpoint(key, "another.example", 3, bytes(32))))
    assert faults(checked(log, rows)) == {"CHECKPOINT_UNSIGNED": 1}


def test_the_docket_s_own_word_for_its_key_is_the_given_one(log: MemoryLog) -> None:
    rows = Rows(log)
    rows.log_row["key"] = str(SigningKey.create(log.key.name).verifier)
    assert faults(checked(log, rows)) == {"KEY_DIFFERS": 1}
    rows.log_row = {}
    assert faults(checked(log, rows)) == {"KEY_DIFFERS": 1, "STATE_DIFFERS": 3}
    # Two keys are given where it was changed on purpose.
    both = [SigningKey.create("old.example").verifier, log.key.verifier]
    assert not verify(Rows(log), both, FromEntries()).violated


def test_anchors_speak_for_what_was_before_them(log: MemoryLog) -> None:
    early = log.checkpoint()
    log.add_events(events_of("b"))
    anchors = [Anchor("one", (early,)), Anchor("two", (early, "no note", log.checkpoint().replace("\n", "\n\n", 1)))]
    report = checked(log, anchors=anchors)
    assert not report.violated and (report.anchors, report.anchored) == (2, len(log.entries) - len(events_of("b")))
    assert report.tail == len(events_of("b"))
    assert len(report.unchecked) == 1 and "2 of 3 checkpoints in the anchor two" in report.unchecked[0]
    key = log.key
    other = Anchor(
        "lies", (sign_checkpoint(key, key.name, 2, bytes(32)), sign_checkpoint(key, key.name, 999, bytes(32)))
    )
    report = checked(log, anchors=[other])
    assert faults(report) == {"CHECKPOINT_DIFFERS": 1, "TAIL_MISSING": 1} and not report.unchecked
    assert all("anchor lies" in finding.text for finding in report.findings)


def test_a_receipt_that_was_taken_out_is_missed_against_an_anchor_and_no_other_checkpoint_is() -> None:
    """A docket keeps the receipts of its verdicts, and of all other checkpoints the newest."""
    log = MemoryLog()
    log.add_events(events_of("a"))
    receipt, size = log.checkpoint(), len(log.entries)
    log.add_look("a", "ada")
    between = log.checkpoint()
    log.add_look("a", "ada")
    assert log.entries[size - 1].kind == "VerdictGiven"
    anchor = Anchor("outside", (receipt, between))
    report = checked(log, anchors=[anchor])
    assert faults(report) == {"CHECKPOINT_MISSING": 1} and f"over {size} entries" in report.findings[0].text
    rows = Rows(log)
    rows.all_checkpoints.insert(0, (size, receipt))
    assert not checked(log, rows, anchors=[anchor]).violated


def test_rows_that_can_not_be_read_are_told_of_and_end_no_check(log: MemoryLog) -> None:
    class Torn(Rows):
        def trials(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
            raise TypeError("bytes where text has to be")
            yield

        def tiles(self) -> Iterator[tuple[int, int, bytes]]:
            yield from self.all_tiles
            raise ValueError("no number")

    report = checked(log, Torn(log))
    assert report.counts[Fault.TRIAL_DIFFERS] == 2 and report.counts[Fault.TILE_DIFFERS] == 1
    assert sum("can't be read at all" in finding.text for finding in report.findings) == 2


def test_pictures_that_are_erased_while_they_are_looked_at_are_no_fault() -> None:
    """Of a picture of several frames the last go first, and all of them after the last trial of it."""
    whole = {"gone": [b"1", b"2"], "going": [b"1", b"2"], "back": [b"1", b"2"], "cut": [b"1"], "none": []}
    trials = {"back", "cut", "none"}
    asked: list[str] = []

    async def frames(digest: str) -> Sequence[bytes]:
        asked.append(digest)
        found = whole[digest]
        if digest in ("gone", "going"):
            del found[-1:]  # and so it goes on
        return [] if digest == "back" and asked.count(digest) == 1 else list(found)

    async def still_wanted(digest: str) -> bool:
        return digest in trials

    def pixels(kept: Sequence[bytes]) -> str:
        return next((name for name in ("gone", "going", "back") if len(kept) == 2 and name == asked[-1]), "another")

    report = Report()
    asyncio.run(
        checking.verify_pictures(
            sorted(whole), frames=frames, pixels=pixels, still_wanted=still_wanted, report=report, patience_s=0
        )
    )
    assert report.pictures == 5 and report.counts == {Fault.PICTURE_DIFFERS: 2}
    assert ["cut" in f.text or "none" in f.text for f in report.findings] == [True, True]


def test_all_faults_are_counted_and_the_first_are_told(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MOST_FINDINGS", 3)
    report = checked(log, without(log, 1, 2, 3, 4, 5))
    assert report.counts == {Fault.BODY_MISSING: 5} and len(report.findings) == 3


def test_long_checks_say_how_far_they_are(log: MemoryLog) -> None:
    for number in range(2_000):
        log.add("Part", json.dumps({"kind": "Part", "of": "p", "value": str(number)}))
    told: list[int] = []
    report = verify(Rows(log), [log.key.verifier], FromEntries(), progress=told.append)
    assert not report.violated and told == [1000, 2000]
