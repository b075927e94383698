"""Tests of checking a docket against alterations signed with its own key, without a database.

Alterations by others, in a real database, are in tests/contract/test_docket_verify.py.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serving.docket.audit import verify as checking
from serving.docket.audit.verify import Fault, FromEntries, Report, verify
from serving.docket.log.anchors import Anchor
from serving.docket.log.entries import Erased, body_of
from serving.docket.log.merkle import tile_widths
from serving.docket.log.notes import SigningKey, sign_checkpoint
from tests.support.dockets import NOON, events_of
from tests.support.logs import MemoryLog


class Rows:
    """The rows of a docket that stores this log correctly; tests alter them."""

    def __init__(self, log):
        derived, erased = FromEntries(), 0
        for entry in log.entries:
            try:
                derived.add(entry)
            except checking.BadEntry:
                continue
            if entry.kind == "Erased" and entry.body is not None:
                erasure = json.loads(entry.body)
                erased += len(erasure["numbers"]) + erasure["buried"] + bool(erasure["trial_id"])
        self.all_entries = list(log.entries)
        self.all_checkpoints = [(len(log.entries), log.checkpoint())]
        self.all_tiles = [(level, index, log.tiles[level, index]) for level, index, _ in tile_widths(len(log.entries))]
        self.all_trials = {trial_id: dict(row) for trial_id, row in derived.trials().items()}
        self.all_parts = [(key, number, of) for key, (number, of) in derived.parts().items()]
        size, note = self.all_checkpoints[0]
        self.log_row: dict[str, Any] = {"size": size, "frontier": log.frontier(), "key": str(log.key.verifier)}
        self.log_row |= {"checkpoint": note, "signed": size, "erased": erased}

    def entries(self):
        return iter(self.all_entries)

    def checkpoints(self):
        return iter(self.all_checkpoints)

    def tiles(self):
        return iter(self.all_tiles)

    def trials(self):
        return iter(self.all_trials.items())

    def findings(self):
        return iter(())

    def parts(self):
        return iter(self.all_parts)

    def rotations(self):
        return iter([entry for entry in self.all_entries if entry.kind == "KeyRotated"])

    def state(self):
        return self.log_row


@pytest.fixture
def log():
    log = MemoryLog()
    log.add_events(events_of("a"))
    log.add_picture_view("a", "ada")
    return log


def check(log, rows=None, anchors=()):
    return verify(rows or Rows(log), [log.key.verifier], FromEntries(), anchors=anchors)


def faults(report):
    return {str(fault): count for fault, count in report.counts.items()}


def test_sound_docket_passes_the_check(log):
    progress: list[int] = []
    report = verify(Rows(log), [log.key.verifier], FromEntries(), progress=progress.append)
    assert not report.violated and not report.findings and not report.unchecked and progress == []
    assert (report.size, report.bodies, report.checkpoints, report.trials) == (len(log.entries), len(log.entries), 2, 1)
    assert report.root == log.opened().root and report.tail == report.size
    empty = MemoryLog()
    rows = Rows(empty)
    rows.all_checkpoints, rows.log_row = [], {**rows.log_row, "key": "", "checkpoint": "", "signed": 0}
    assert not check(empty, rows).violated  # an empty docket, before anything was signed


def body(**values):
    return json.dumps({"trial_id": "b", "at": "2026-01-02T12:00:00Z", **values})


@pytest.mark.parametrize("seqs", [[1], [0, 2], [0, 0], [0, 1, 1, 2], [0, 10**18], [0, -5], [1, 0, 3]])
def test_event_numbers_of_a_trial_must_be_without_gaps(log, seqs):
    """Faults that the docket itself made and signed: a missing or repeated number."""
    for seq in seqs:
        log.add("Described", body(kind="Described", seq=seq), "b", seq)
    report = check(log)
    assert set(report.counts) == {Fault.SEQUENCE}, report.findings
    assert all("b" in finding.text or "entry" in finding.text.lower() for finding in report.findings)


def test_events_of_concurrent_sides_may_be_out_of_order(log):
    for seq in (0, 2, 1, 3):
        log.add("Described", body(kind="Described", seq=seq), "b", seq)
    assert not check(log).violated


def test_other_entries_do_not_count_as_events(log):
    log.add("PictureShown", body(kind="PictureShown", trial_id="a", who="ada", what="frame 0"), "a", 99)
    assert faults(check(log)) == {"SEQUENCE": 1}


@pytest.mark.parametrize(
    "entry_body",
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
def test_body_must_agree_with_its_header(log, entry_body):
    log.add("Described", entry_body, "b", 0)
    assert faults(check(log)) == {"BODY_DISAGREES": 1}


def test_events_behind_the_listing_must_be_readable(log):
    log.add("TrialOpened", body(kind="TrialOpened", seq=0), "b", 0)
    log.add("VerdictGiven", body(kind="VerdictGiven", seq=1), "b", 1)
    log.add("Part", '{"kind":"Part","value":"of nothing"}')
    log.add("Erased", body(kind="Erased", trial_id="a"), "a")
    report = check(log)
    assert faults(report) == {"BODY_DISAGREES": 5}  # an erasure is read for two purposes


def erased_by(*numbers, trial_id=""):
    return body_of(Erased(trial_id=trial_id, at=NOON, who="ada", why="asked to", numbers=numbers))


def without(log, *numbers):
    for number in numbers:
        log.entries[number] = replace(log.entries[number], body=None, salt=None)
    return Rows(log)


def test_missing_bodies_need_an_erasure_and_erased_bodies_must_be_missing(log):
    incomplete = without(log, 2, 3)
    assert faults(check(log, incomplete)) == {"BODY_MISSING": 2}
    log.add("Erased", erased_by(2, 3))
    report = check(log)
    assert not report.violated and report.erased == 2
    log.add("Erased", erased_by(4))
    report = check(log)
    assert faults(report) == {"BODY_NOT_ERASED": 1} and report.findings[0].entry == 4


def test_erasure_covers_neither_itself_nor_later_entries(log):
    number = len(log.entries)
    log.add("Erased", erased_by(number, number + 1))
    log.add_picture_view("a", "ada")
    assert faults(check(log, without(log, number + 1))) == {"BODY_MISSING": 1}
    # If the erasure itself is gone too, no entry explains either loss.
    assert faults(check(log, without(log, number))) == {"BODY_MISSING": 2}


def test_missing_entries_are_named(log):
    rows = Rows(log)
    del rows.all_entries[2:4]
    report = check(log, rows)
    assert "entries 2 to 3 are missing" in next(f.text for f in report.findings if f.fault is Fault.ENTRY_MISSING)
    rows = Rows(log)
    rows.all_entries.insert(3, replace(rows.all_entries[1]))
    assert Fault.ENTRY_MISPLACED in check(log, rows).counts


def test_tail_must_be_signed_and_signed_entries_must_exist(log):
    before = Rows(log)
    log.add_picture_view("a", "eve")
    rows = Rows(log)
    rows.all_checkpoints = before.all_checkpoints
    rows.log_row |= {"checkpoint": before.log_row["checkpoint"], "signed": before.log_row["signed"]}
    report = check(log, rows)
    assert faults(report) == {"TAIL_UNSIGNED": 1} and report.findings[0].text == "The last 1 entries are not signed."
    rows = before
    rows.all_checkpoints = Rows(log).all_checkpoints
    assert Fault.TAIL_MISSING in check(log, rows).counts


def test_checkpoints_must_match_this_log_and_their_own_size(log):
    size, key = len(log.entries), log.key
    rows = Rows(log)
    rows.all_checkpoints = [(size - 1, rows.all_checkpoints[0][1])]
    assert faults(check(log, rows)) == {"CHECKPOINT_DIFFERS": 1}
    rows = Rows(log)
    rows.all_checkpoints.append((size, sign_checkpoint(key, key.name, size, bytes(32))))
    assert faults(check(log, rows)) == {"CHECKPOINT_DIFFERS": 1}
    rows = Rows(log)
    rows.all_checkpoints.append((3, sign_checkpoint(key, "another.example", 3, bytes(32))))
    assert faults(check(log, rows)) == {"CHECKPOINT_UNSIGNED": 1}


def test_key_stored_in_the_docket_must_be_the_expected_one(log):
    rows = Rows(log)
    rows.log_row["key"] = str(SigningKey.create(log.key.name).verifier)
    assert faults(check(log, rows)) == {"KEY_DIFFERS": 1}
    rows.log_row = {}
    assert faults(check(log, rows)) == {"KEY_DIFFERS": 1, "STATE_DIFFERS": 3}
    # Two keys are expected after a deliberate rotation.
    both = [SigningKey.create("old.example").verifier, log.key.verifier]
    assert not verify(Rows(log), both, FromEntries()).violated


def test_anchors_vouch_for_the_entries_before_them(log):
    early = log.checkpoint()
    log.add_events(events_of("b"))
    anchors = [Anchor("one", (early,)), Anchor("two", (early, "no note", log.checkpoint().replace("\n", "\n\n", 1)))]
    report = check(log, anchors=anchors)
    assert not report.violated and (report.anchors, report.anchored) == (2, len(log.entries) - len(events_of("b")))
    assert report.tail == len(events_of("b"))
    assert len(report.unchecked) == 1 and "2 of 3 checkpoints in the anchor two" in report.unchecked[0]
    key = log.key
    other = Anchor(
        "lies", (sign_checkpoint(key, key.name, 2, bytes(32)), sign_checkpoint(key, key.name, 999, bytes(32)))
    )
    report = check(log, anchors=[other])
    assert faults(report) == {"CHECKPOINT_DIFFERS": 1, "TAIL_MISSING": 1} and not report.unchecked
    assert all("anchor lies" in finding.text for finding in report.findings)


def test_anchor_reveals_a_removed_receipt_but_no_other_removed_checkpoint():
    """A docket stores the receipts of its verdicts and, of all other checkpoints, only the newest."""
    log = MemoryLog()
    log.add_events(events_of("a"))
    receipt, size = log.checkpoint(), len(log.entries)
    log.add_picture_view("a", "ada")
    between = log.checkpoint()
    log.add_picture_view("a", "ada")
    assert log.entries[size - 1].kind == "VerdictGiven"
    anchor = Anchor("outside", (receipt, between))
    report = check(log, anchors=[anchor])
    assert faults(report) == {"CHECKPOINT_MISSING": 1} and f"over {size} entries" in report.findings[0].text
    rows = Rows(log)
    rows.all_checkpoints.insert(0, (size, receipt))
    assert not check(log, rows, anchors=[anchor]).violated


def test_unreadable_rows_are_reported_and_do_not_end_the_check(log):
    class Torn(Rows):
        def trials(self):
            raise TypeError("bytes where text has to be")
            yield

        def tiles(self):
            yield from self.all_tiles
            raise ValueError("no number")

    report = check(log, Torn(log))
    assert report.counts[Fault.TRIAL_DIFFERS] == 2 and report.counts[Fault.TILE_DIFFERS] == 1
    assert sum("can't be read at all" in finding.text for finding in report.findings) == 2


def test_pictures_erased_during_the_check_are_no_fault():
    """Frames of a picture are erased from the last to the first, all of them after the last trial of the picture."""
    frames_by_digest = {"gone": [b"1", b"2"], "going": [b"1", b"2"], "back": [b"1", b"2"], "cut": [b"1"], "none": []}
    trials = {"back", "cut", "none"}
    queried: list[str] = []

    async def frames(digest):
        queried.append(digest)
        found = frames_by_digest[digest]
        if digest in ("gone", "going"):
            del found[-1:]  # the erasure continues
        return [] if digest == "back" and queried.count(digest) == 1 else list(found)

    async def still_wanted(digest):
        return digest in trials

    def pixels(stored_frames):
        return next(
            (name for name in ("gone", "going", "back") if len(stored_frames) == 2 and name == queried[-1]), "another"
        )

    report = Report()
    asyncio.run(
        checking.verify_pictures(
            sorted(frames_by_digest),
            frames=frames,
            same=lambda stored, digest: pixels(stored) == digest,
            still_wanted=still_wanted,
            report=report,
            patience_s=0,
        )
    )
    assert report.pictures == 5 and report.counts == {Fault.PICTURE_DIFFERS: 2}
    assert ["cut" in f.text or "none" in f.text for f in report.findings] == [True, True]


def test_all_faults_are_counted_and_the_first_are_listed(log, monkeypatch):
    monkeypatch.setattr(checking, "MOST_FINDINGS", 3)
    report = check(log, without(log, 1, 2, 3, 4, 5))
    assert report.counts == {Fault.BODY_MISSING: 5} and len(report.findings) == 3


def test_long_checks_report_their_progress(log):
    for number in range(2_000):
        log.add("Part", json.dumps({"kind": "Part", "of": "p", "value": str(number)}))
    progress: list[int] = []
    report = verify(Rows(log), [log.key.verifier], FromEntries(), progress=progress.append)
    assert not report.violated and progress == [1000, 2000]
