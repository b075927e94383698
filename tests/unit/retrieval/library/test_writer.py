import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from court.errors import BadLibrary, BadRequest, CourtError, Unavailable
from court.verdict import Label
from retrieval.library import storage
from retrieval.library.changes import ChangeKind, Effect
from retrieval.library.library import Library
from retrieval.library.manifest import LabelledMeme
from retrieval.library.writer import LibraryWriter
from tests.support.library import ENCODER, PICTURES, _break_at, content, create, files_of, ids_of, pictures_of
from tests.support.library import library as library

WHO = {"who": "ada", "why": "a test"}


def one(id_, harmful=False):
    (meme,), rows = content(id_)
    return meme.model_copy(update={"label": Label.HARMFUL if harmful else Label.NOT_HARMFUL}), rows[0]


@pytest.fixture
def writer(library):
    return LibraryWriter(library)


def reopen(writer):
    """The library as another process opens it, after checking that it equals the writer's."""
    again = Library.open(writer.library.root, ENCODER.identity)
    ours = writer.library
    assert again.digest == ours.digest and list(again.memes) == list(ours.memes) and again.counts == ours.counts
    assert np.array_equal(again.rows, ours.rows) and pictures_of(again) == pictures_of(ours)
    assert np.array_equal(again.flags, ours.flags) and again.history() == ours.history()
    assert [again.memes[place].id for place in range(len(again.memes))] == list(again.ids()) == ids_of(again)
    assert [meme.flags for meme in again.memes] == [int(again.flags[again.row_of(id_) or 0]) for id_ in again.ids()]
    return again


def test_added_precedent_is_stored_in_a_few_bytes_when_acknowledged(writer):
    before = {name: path.read_bytes() for name, path in files_of(writer.library).items()}
    meme, vector = one("d", harmful=True)
    change = writer.add(meme, vector, b"a picture of it", **WHO)
    known = (change.number, change.kind, change.meme, change.who, change.why)
    assert known == (1, ChangeKind.ADD, "d", "ada", "a test")
    now = reopen(writer)
    assert ids_of(now) == ["a", "b", "c", "d"] and now.generation == "000001"
    assert now.digest in (now.root / "CURRENT").read_text() and now.pointer.manifest_sha256 not in now.digest
    assert now.memes[3].who == "ada" and now.memes[3].added == change.at
    assert pictures_of(now) == PICTURES | {"d": b"a picture of it"}
    assert np.array_equal(now.rows[3], vector) and now.identity.size == 4 and now.counts.harmful == 2
    assert now.counts.kept_bytes == sum(map(len, PICTURES.values())) + len(b"a picture of it")
    after = {name: path.read_bytes() for name, path in files_of(now).items()}
    assert after.keys() - before.keys() == {"journal.bin"} and len(after["journal.bin"]) < 1000
    assert all(after[name] == before[name] for name in before if name != "CURRENT")


def test_open_library_is_unchanged_by_later_writes(library, writer):
    digest = library.digest
    writer.add(*one("d"), None, **WHO)
    writer.remove("a", **WHO)
    writer.relabel("b", Label.HARMFUL, **WHO)
    middle = writer.library
    writer.add(*one("e"), None, **WHO)
    assert ids_of(library) == ["a", "b", "c"] and library.digest == digest
    assert [meme.label for meme in library.memes] == [Label.NOT_HARMFUL, Label.HARMFUL, Label.NOT_HARMFUL]
    assert ids_of(middle) == ["b", "c", "d"] and middle.overlay.rows.shape[0] == 1
    assert ids_of(reopen(writer)) == ["b", "c", "d", "e"]


def test_two_copies_growing_from_one_library_do_not_overwrite_each_other(library, writer):
    writer.add(*one("d"), None, **WHO)
    fork = writer.library.draft()
    writer.add(*one("e"), None, **WHO)
    rows_before = np.array(writer.library.overlay.rows)
    # The same library grown a second way, as by a reader that lags behind: it must copy its rows first.
    from retrieval.library.changes import Change
    from retrieval.library.journal import JournalEntry

    meme, vector = one("other")
    values = {"number": 2, "kind": "add", "at": "2026-01-01T00:00:00Z", "meme": "other", "effect": "append", "row": 4}
    fork.apply(JournalEntry(Change.model_validate({**WHO, **values, "after": meme}), vector))
    grown = fork.done()
    assert np.array_equal(grown.rows[1], vector)
    assert np.array_equal(writer.library.overlay.rows, rows_before)


def test_precedents_are_removed_and_relabelled(writer):
    writer.remove("a", **WHO)
    change = writer.relabel("c", Label.HARMFUL, **WHO)
    now = reopen(writer)
    assert ids_of(now) == ["b", "c"]
    assert (now.memes[1].label, now.memes[1].verified, now.memes[1].who) == (Label.HARMFUL, True, "ada")
    assert change.before is not None and change.before.label is Label.NOT_HARMFUL
    assert pictures_of(now) == {"c": PICTURES["c"]}
    assert (now.counts.memes, now.counts.harmful, now.counts.kept_pictures) == (2, 2, 1)
    assert now.counts.kept_bytes == len(PICTURES["c"])
    with pytest.raises(IndexError):
        now.picture(2)


def test_every_change_is_in_the_history_and_can_be_revoked(writer):
    before = list(writer.library.memes)
    writer.add(*one("d"), b"its picture", **WHO)
    writer.remove("a", **WHO)
    writer.relabel("b", Label.NOT_HARMFUL, who="bob", why="reviewed")
    for number in (1, 2, 3):
        assert writer.revoke(number, who="eve", why="a mistake").revokes == number
    now = reopen(writer)
    assert list(now.memes) == before and pictures_of(now) == PICTURES
    history = now.history()
    assert [entry.change.number for entry in history] == [1, 2, 3, 4, 5, 6]
    assert [entry.revoked_by for entry in history] == [4, 5, 6, None, None, None]
    assert [(entry.change.who, entry.change.why) for entry in now.history("b")] == [
        ("bob", "reviewed"),
        ("eve", "a mistake"),
    ]
    with pytest.raises(BadRequest, match="revoked already, by change 4"):
        writer.revoke(1, **WHO)
    with pytest.raises(BadRequest, match="a revocation itself"):
        writer.revoke(4, **WHO)


def test_only_the_last_change_of_a_precedent_can_be_revoked(writer):
    writer.add(*one("d"), None, **WHO)
    writer.relabel("d", Label.HARMFUL, **WHO)
    with pytest.raises(BadRequest, match=r"Change 2 was made to the same precedent since"):
        writer.revoke(1, **WHO)
    writer.revoke(2, **WHO)
    writer.revoke(1, **WHO)
    assert ids_of(reopen(writer)) == ["a", "b", "c"]


def test_id_of_a_removed_meme_is_never_reused(writer):
    writer.remove("a", **WHO)
    with pytest.raises(BadRequest, match="records may name it"):
        writer.add(*one("a"), None, **WHO)
    writer.compact()
    with pytest.raises(BadRequest, match="records may name it"):
        writer.add(*one("a"), None, **WHO)
    with pytest.raises(BadRequest, match="before, and then removed: a"):
        writer.library.add(*content("a"))
    replaced = create(writer.library.root, "a", replace=True)
    assert replaced.manifest.lineage != writer.library.manifest.lineage


def test_compacting_preserves_precedents_and_the_ability_to_revoke(writer):
    writer.add(*one("d"), b"a third picture", **WHO)
    writer.add(*one("e"), None, **WHO)
    writer.remove("d", **WHO)
    writer.remove("a", **WHO)
    writer.relabel("b", Label.NOT_HARMFUL, **WHO)
    found = [meme.model_copy(update={"kept": None}) for meme in writer.library.memes]
    rows, pictures, history = writer.library.rows, pictures_of(writer.library), writer.history()
    compact = writer.compact()
    assert compact.generation == "000002" and compact.overlay.changes == ()
    now = reopen(writer)
    assert [meme.model_copy(update={"kept": None}) for meme in now.memes] == found
    assert np.array_equal(now.rows, rows) and pictures_of(now) == pictures and now.history() == history
    assert now.manifest.lineage == compact.manifest.lineage

    assert writer.revoke(3, **WHO).effect is Effect.APPEND
    writer.revoke(4, **WHO)
    writer.revoke(5, **WHO)
    again = reopen(writer)
    assert ids_of(again) == ["b", "c", "e", "d", "a"]
    assert pictures_of(again) == PICTURES | {"d": b"a third picture"}
    assert next(iter(again.memes)).label is Label.HARMFUL
    assert np.array_equal(again.rows[4], content("a")[1][0])
    # Also after a second compaction, and for precedents restored in between.
    writer.compact()
    writer.revoke(2, **WHO)
    assert ids_of(reopen(writer)) == ["b", "c", "d", "a"]
    assert [change.change.number for change in writer.history()] == list(range(1, 10))


def test_forgotten_precedents_are_gone_from_the_disk(writer):
    root = writer.library.root
    secret = LabelledMeme(id="x", label=Label.HARMFUL, text="erasable words", has_text=True, has_picture=False)
    writer.add(secret, one("x")[1], b"erasable picture", **WHO)
    writer.remove("x", who="ada", why="asked to")
    writer.relabel("b", Label.NOT_HARMFUL, **WHO)
    writer.compact(forget=True)
    for path in root.rglob("*"):
        assert not path.is_file() or b"erasable" not in path.read_bytes()
    history = reopen(writer).history()
    assert [(entry.change.meme, entry.change.why) for entry in history][:2] == [("x", "a test"), ("x", "asked to")]
    with pytest.raises(BadRequest, match="forgotten on purpose"):
        writer.revoke(2, **WHO)
    writer.revoke(3, **WHO)


def test_flipped_bits_in_journal_or_pointer_are_detected(writer):
    writer.add(*one("d"), b"picture", **WHO)
    writer.remove("a", **WHO)
    writer.relabel("b", Label.NOT_HARMFUL, **WHO)
    for name in ("journal.bin", "CURRENT"):
        path = files_of(writer.library)[name]
        good = path.read_bytes()
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 1 << (place % 8)
            path.write_bytes(bad)
            with pytest.raises(BadLibrary):
                Library.open(writer.library.root, ENCODER.identity)
        for cut in (good[:-1], good[: len(good) // 2], b""):
            path.write_bytes(cut)
            with pytest.raises(BadLibrary):
                Library.open(writer.library.root, ENCODER.identity)
        path.write_bytes(good)
    reopen(writer)


def test_journal_with_valid_digests_but_invalid_changes_is_refused(library):
    from retrieval.library import journal
    from retrieval.library.changes import Change

    values = {**WHO, "number": 1, "at": "2026-01-01T00:00:00Z", "meme": "d"}
    meme, vector = one("d")
    taken, wrong = one("a")[0], vector * 2
    for update, after, row_vector in [
        ({"kind": "add", "effect": "append", "row": 9}, meme, vector),
        ({"kind": "add", "effect": "append", "row": 3}, meme, wrong),
        ({"kind": "add", "effect": "append", "row": 3}, taken, vector),
        ({"kind": "add", "effect": "append", "row": 3}, None, vector),
        ({"kind": "remove", "effect": "hide", "row": 1, "meme": "a", "before": taken}, None, None),
        ({"kind": "remove", "effect": "hide", "row": 9, "meme": "a", "before": taken}, None, None),
        ({"kind": "relabel", "effect": "set", "row": 0, "meme": "a"}, meme, None),
        ({"kind": "remove", "effect": "show", "row": 0, "meme": "a"}, taken, None),
    ]:
        frame = journal.frame_of(Change.model_validate({**values, **update, "after": after}), row_vector, None)
        pointer = library.pointer
        journal.append(library.root / "generations" / library.generation / "journal.bin", 0, frame)
        forged = storage.Pointer(
            pointer.generation, pointer.manifest_sha256, len(frame), journal.next_head(pointer.head, frame)
        )
        storage.announce(library.root, forged)
        with pytest.raises(BadLibrary, match="does not fit"):
            Library.open(library.root, ENCODER.identity)


def test_unacknowledged_journal_entries_are_cut_off(writer):
    writer.add(*one("d"), None, **WHO)
    path = files_of(writer.library)["journal.bin"]
    path.write_bytes(path.read_bytes() + b"half an entry of somebody who was killed")
    assert ids_of(reopen(writer)) == ["a", "b", "c", "d"]
    writer.add(*one("e"), None, **WHO)
    assert ids_of(reopen(writer)) == ["a", "b", "c", "d", "e"]


def test_concurrent_changes_are_batched_and_each_gets_its_own_result(writer, monkeypatch):
    announced = []
    real = storage.announce

    def recording_announce(root, pointer):
        announced.append(pointer)
        real(root, pointer)

    monkeypatch.setattr(storage, "announce", recording_announce)

    def add(number):
        try:
            # Every tenth id is added twice, and one of the two must be refused.
            return writer.add(*one(f"n{number - number % 10 // 9}"), None, **WHO).number
        except BadRequest as error:
            return error.reason

    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(add, range(100)))
    numbers = sorted(outcome for outcome in outcomes if isinstance(outcome, int))
    assert numbers == list(range(1, 91)) and outcomes.count("DUPLICATE_ID") == 10
    assert len(announced) < 90
    assert len(reopen(writer).memes) == 93


def test_two_writers_of_one_library_see_each_others_changes(writer):
    other = LibraryWriter.open(writer.library.root)
    barrier = threading.Barrier(2)

    def work(mine, name):
        barrier.wait()
        for number in range(25):
            mine.add(*one(f"{name}{number}"), None, **WHO)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, (writer, other), ("x", "y")))
    with pytest.raises(BadRequest, match="already"):
        writer.add(*one("y3"), None, **WHO)
    assert len(writer.history()) == 50 and len(reopen(writer).memes) == 53
    other.compact()
    writer.remove("y3", **WHO)
    assert "y3" not in ids_of(Library.open(writer.library.root, None))


def test_reader_finds_new_changes_and_reads_only_those(library, writer, monkeypatch):
    assert library.newer() is None
    writer.add(*one("d"), None, **WHO)
    first = library.newer()
    assert first is not None and ids_of(first) == ["a", "b", "c", "d"] and first.base is library.base
    writer.remove("d", **WHO)
    second = first.newer()
    assert second is not None and ids_of(second) == ["a", "b", "c"] and second.newer() is None
    compact = writer.compact()
    third = second.newer()
    assert third is not None and third.digest == compact.digest and third.base is not library.base
    files_of(compact)["vectors.npy"].write_bytes(b"gone")
    writer.remove("c", **WHO)
    assert third.newer() is not None  # its vectors are open already
    with pytest.raises(BadLibrary):
        first.newer()


def test_error_at_any_step_leaves_the_old_or_the_new_library(tmp_path):
    outcomes, nth = set(), 0
    while True:
        nth += 1
        writer = LibraryWriter(create(tmp_path / f"at{nth}", "a", "b"))
        writer.add(*one("c"), None, **WHO)
        with pytest.MonkeyPatch.context() as patch:
            calls = _break_at(patch, nth)
            with contextlib.suppress(OSError, CourtError):
                writer.add(*one("d"), None, **WHO)
                writer.compact()
        now = ids_of(Library.open(writer.library.root, ENCODER.identity))
        assert now in (["a", "b", "c"], ["a", "b", "c", "d"])
        outcomes.add(len(now))
        writer.add(*one("e"), None, **WHO)
        assert ids_of(reopen(writer)) == [*now, "e"]
        if calls[0] < nth:
            break
    assert outcomes == {3, 4} and nth > 10


def test_waiting_too_long_for_the_lock_is_an_error(writer, monkeypatch):
    monkeypatch.setattr("retrieval.library.writer._WAIT_S", 0.05)
    with storage.writing(writer.library.root), pytest.raises(Unavailable, match="Somebody else"):
        writer.remove("a", **WHO)
    writer.remove("a", **WHO)


def test_full_journal_must_be_compacted_first(writer, monkeypatch):
    monkeypatch.setattr("retrieval.library.writer.MOST", 2)
    writer.remove("a", **WHO)
    writer.revoke(1, **WHO)
    with pytest.raises(BadRequest, match="precedents compact"):
        writer.remove("a", **WHO)
    writer.compact()
    writer.remove("a", **WHO)


def test_random_changes_have_the_same_effect_as_on_a_plain_dict(tmp_path):
    chance = random.Random(5)
    writer = LibraryWriter(create(tmp_path / "library", "a", "b", "c"))
    plain = {"a": False, "b": True, "c": False}
    last: dict[str, tuple[int, str, bool]] = {}
    for step in range(150):
        act = chance.choice(
            ["add", "remove", "relabel", "revoke", "compact"]
            if step % 10 == 0
            else ["add", "remove", "relabel", "revoke"]
        )
        id_ = chance.choice(list(plain))
        if act == "add":
            change = writer.add(*one(f"n{step}"), None, **WHO)
            plain[f"n{step}"], last = False, {f"n{step}": (change.number, act, False)}
        elif act == "remove" and len(plain) > 1:
            was = plain.pop(id_)
            last = {id_: (writer.remove(id_, **WHO).number, act, was)}
        elif act == "relabel":
            was = plain[id_]
            with contextlib.suppress(BadRequest):
                change = writer.relabel(id_, Label.NOT_HARMFUL if was else Label.HARMFUL, **WHO)
                plain[id_], last = not was, {id_: (change.number, act, was)}
        elif act == "revoke" and last:
            ((id_, (number, done, was)),) = last.items()
            writer.revoke(number, **WHO)
            last = {}
            if done == "add":
                plain.pop(id_)
            else:
                plain[id_] = was
        elif act == "compact":
            writer.compact()
        assert {meme.id: meme.harmful for meme in writer.library.memes} == plain
    reopen(writer)
