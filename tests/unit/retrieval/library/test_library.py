import contextlib
import hashlib
import json
import os
import pickle
import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from court.errors import BadLibrary, BadRequest, Unavailable
from retrieval.library import storage
from retrieval.library.library import Library
from retrieval.library.thumbnails import ThumbnailWriter
from tests.support.encoders import WordEncoder
from tests.support.library import ENCODER, PICTURES, _break_at, content, create, files_of, ids_of, pictures_of
from tests.support.library import library as library


def forge(library, change):
    """Alters a generation as an attacker would who recomputes all digests."""
    generation = library.root / "generations" / library.generation
    manifest = json.loads((generation / "manifest.json").read_text())
    change(generation, manifest)
    for name, entry in manifest["files"].items():
        if (generation / name).exists():
            data = (generation / name).read_bytes()
            entry |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (generation / "manifest.json").write_text(json.dumps(manifest))
    digest = hashlib.sha256((generation / "manifest.json").read_bytes()).hexdigest()
    (library.root / "CURRENT").write_text(f"{library.generation} sha256:{digest}\n")


def test_library_reads_back_as_written(library):
    again = Library.open(library.root, ENCODER.identity)
    memes, rows = content("a", "b", "c")
    assert [meme.model_copy(update={"kept": None}) for meme in again.memes] == memes
    assert pictures_of(again) == PICTURES
    assert [meme.kept and meme.kept.offset for meme in again.memes] == [0, None, len(PICTURES["a"])]
    assert np.array_equal(again.rows, rows)
    assert (
        again.digest
        == library.digest
        == f"sha256:{hashlib.sha256(files_of(library)['manifest.json'].read_bytes()).hexdigest()}"
    )
    assert again.manifest.counts.model_dump() == {
        "memes": 3,
        "with_text": 3,
        "with_picture": 0,
        "harmful": 1,
        "not_harmful": 2,
        "kept_pictures": 2,
        "kept_bytes": sum(map(len, PICTURES.values())),
    }
    assert again.manifest.sources == {"test": 3}
    assert again.identity.size == 3
    assert again.identity.name == "n"
    with pytest.raises(ValueError, match="read-only"):
        again.rows[0, 0] = 1


def test_adding_makes_a_new_generation_and_leaves_the_old_object_unchanged(library):
    memes, rows = content("d", "e")
    larger = library.add(memes, rows)
    assert ids_of(larger) == ["a", "b", "c", "d", "e"]
    assert ids_of(library) == ["a", "b", "c"] and library.rows.shape[0] == 3
    assert larger.generation == "000002" and larger.digest != library.digest
    assert ids_of(Library.open(library.root, ENCODER.identity)) == ids_of(larger)


def test_duplicate_ids_are_refused_and_named(library):
    with pytest.raises(BadRequest, match="already in the library: b, c"):
        library.add(*content("b", "x", "c"))
    with pytest.raises(BadRequest, match="there twice: x"):
        library.add(*content("x", "x"))
    assert ids_of(Library.open(library.root, ENCODER.identity)) == ["a", "b", "c"]


def test_adding_to_an_outdated_library_object_is_refused(library):
    library.add(*content("d"))
    with pytest.raises(BadRequest, match="changed since it was opened"):
        library.add(*content("e"))


def test_library_is_overwritten_only_on_request(library):
    with pytest.raises(BadRequest, match="already"):
        create(library.root, "z")
    replaced = create(library.root, "z", replace=True)
    assert ids_of(Library.open(library.root, ENCODER.identity)) == ["z"]
    assert replaced.generation == "000002"


def test_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "holiday.txt").write_text("x")
    with pytest.raises(BadRequest, match="other things"):
        create(tmp_path, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.txt"]


def test_concurrent_writers_are_refused(library):
    with storage.writing(library.root):
        with pytest.raises(Unavailable, match="Somebody else") as refusal:
            library.add(*content("d"))
        assert refusal.value.reason == "LIBRARY_LOCKED"
        assert ids_of(Library.open(library.root, ENCODER.identity)) == ["a", "b", "c"]
    assert len(library.add(*content("d")).memes) == 4


def test_invalid_rows_are_not_written(library):
    memes, rows = content("d")
    for bad in (rows * 2, rows * np.nan, rows * 0):
        with pytest.raises(ValueError, match="row 3 of"):
            library.add(memes, bad)
    with pytest.raises(ValueError):
        library.add(memes, rows[:, :-1])
    assert ids_of(Library.open(library.root, ENCODER.identity)) == ["a", "b", "c"]


def test_flipped_bit_in_any_file_is_detected(library):
    for name, path in files_of(library).items():
        if name == "pictures.bin":
            continue  # damage there is detected when a picture is read: see below
        good = path.read_bytes()
        places = range(len(good)) if name == "CURRENT" else random.Random(name).sample(range(len(good)), 60)
        for place in places:
            bad = bytearray(good)
            bad[place] ^= 1 << (place % 8)
            path.write_bytes(bad)
            with pytest.raises(BadLibrary) as refusal:
                Library.open(library.root, ENCODER.identity)
            assert refusal.value.reason in ("LIBRARY_DAMAGED", "LIBRARY_MISSING")
        path.write_bytes(good)
    Library.open(library.root, ENCODER.identity)


def test_flipped_bit_in_a_picture_is_detected_on_reading_and_not_copied_on(library):
    path = files_of(library)["pictures.bin"]
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        opened = Library.open(library.root, ENCODER.identity)
        spoilt, whole = (0, 2) if place < len(PICTURES["a"]) else (2, 0)
        assert opened.picture(whole) == PICTURES[opened.memes[whole].id] and opened.picture(1) is None
        with pytest.raises(BadLibrary, match="a picture in it is not what it was") as refusal:
            opened.picture(spoilt)
        assert refusal.value.reason == "LIBRARY_DAMAGED"
        with pytest.raises(BadLibrary, match="a picture in it is not what it was"):
            opened.add(*content("d"))
        with pytest.raises(BadLibrary, match=r"pictures\.bin is not what it was"):
            opened.check_pictures()
    path.write_bytes(good)
    Library.open(library.root, None).check_pictures()
    assert pictures_of(Library.open(library.root, ENCODER.identity).add(*content("d"))) == PICTURES


def test_pictures_are_copied_to_new_generations_and_stay_readable_in_old_ones(library, tmp_path):
    thumbnails = ThumbnailWriter(tmp_path)
    thumbnails.append(b"dropped")
    memes, rows = content("d", "e", kept={"e": thumbnails.append(b"a third")})
    larger = library.add(memes, rows, pictures=thumbnails)
    assert pictures_of(larger) == PICTURES | {"e": b"a third"}
    assert (larger.manifest.counts.kept_pictures, larger.manifest.counts.kept_bytes) == (
        3,
        larger.manifest.files["pictures.bin"].size,
    )
    largest = larger.add(*content("f")).add(*content("g"))
    assert pictures_of(largest) == pictures_of(larger) and pictures_of(library) == PICTURES


def test_row_outside_the_library_has_no_picture(library):
    for row in (-1, 3):
        with pytest.raises(IndexError):
            library.picture(row)


def test_pictures_without_their_file_are_a_programming_error(library):
    stored = library.memes[0].kept
    assert stored is not None
    with pytest.raises(ValueError, match="without the file"):
        library.add(*content("d", kept={"d": stored}))


def test_thumbnail_writer_leaves_no_files_and_refuses_oversized_pictures(tmp_path):
    thumbnails = ThumbnailWriter(tmp_path / "not" / "there" / "yet")
    assert thumbnails.read(thumbnails.append(b"x" * 1000)) == b"x" * 1000
    with pytest.raises(ValueError, match="larger than any"):
        thumbnails.append(bytes(2 << 20))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["CURRENT", "manifest.json", "flags.npy", "memes.sqlite", "pictures.bin", "vectors.npy"]
)
def test_truncated_empty_extended_or_missing_files_are_named(library, name):
    path = files_of(library)[name]
    good = path.read_bytes()
    for bad in (good[:-1], good[: len(good) // 2], b"", good + b"\n"):
        path.write_bytes(bad)
        with pytest.raises(BadLibrary, match=name):
            Library.open(library.root, ENCODER.identity)
    path.unlink()
    with pytest.raises(BadLibrary) as refusal:
        Library.open(library.root, ENCODER.identity)
    assert ("Build one" if name == "CURRENT" else name) in refusal.value.message
    assert str(library.root) not in refusal.value.message


def test_missing_library_is_reported_with_the_command_to_build_one(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(BadLibrary, match="memecourt precedents build") as refusal:
            Library.open(path, None)
        assert refusal.value.reason == "LIBRARY_MISSING"


class _ExitsOnUnpickling:
    def __reduce__(self):
        return (os._exit, (1,))


def test_pickle_is_not_loaded_even_with_valid_digests(library):
    def as_objects(generation, _):
        np.save(generation / "vectors.npy", np.array([_ExitsOnUnpickling()] * 3, dtype=object), allow_pickle=True)

    def as_bare_pickle(generation, _):
        (generation / "vectors.npy").write_bytes(pickle.dumps(_ExitsOnUnpickling()))

    for change in (as_objects, as_bare_pickle):
        forge(library, change)
        with pytest.raises(BadLibrary, match=r"vectors\.npy is no plain array"):
            Library.open(library.root, ENCODER.identity)


def _save(array):
    return lambda generation, _: np.save(generation / "vectors.npy", array)


def _with_row(change):
    rows = content("a", "b", "c")[1].copy()
    change(rows)
    return rows


def _sql(*statements):
    def change(directory, _):
        with contextlib.closing(sqlite3.connect(directory / "memes.sqlite")) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    return change


def _flags(*flags, **counts):
    def change(directory, manifest):
        np.save(directory / "flags.npy", np.array(flags, dtype=np.uint8))
        manifest["counts"] |= counts

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_save(np.zeros((3, 28))), "not 3 rows of 28"),
        (_save(np.zeros((2, 28), np.float32)), "not 3 rows of 28"),
        (_save(np.asfortranarray(content("a", "b", "c")[1])), "not 3 rows of 28"),
        (_save(_with_row(lambda rows: rows.__setitem__((1, 2), np.nan))), "row 1 of"),
        (_save(_with_row(lambda rows: rows.__setitem__((2, 2), np.inf))), "row 2 of"),
        (_save(_with_row(lambda rows: rows.__setitem__(0, rows[0] * 1.1))), "row 0 of"),
        (_save(_with_row(lambda rows: rows.__setitem__((0, 20), 1))), "row 0 of"),
        (_sql("DELETE FROM memes WHERE row = 1"), "not of the same memes"),
        (_sql("DELETE FROM memes WHERE row = 2"), "not of the same memes"),
        (_sql("DELETE FROM memes"), "not of the same memes"),
        (_sql("UPDATE memes SET row = 7 WHERE row = 2"), "not of the same memes"),
        (_sql("UPDATE memes SET flags = flags + 16 WHERE row = 0"), "not of the same memes"),
        (_sql("DROP TABLE memes"), r"memes\.sqlite can't be read"),
        (_sql("ALTER TABLE memes DROP COLUMN kept_size"), r"memes\.sqlite can't be read"),
        (
            lambda directory, _: (directory / "memes.sqlite").write_bytes(b"no table " * 500),
            r"memes\.sqlite can't be read",
        ),
        (lambda directory, _: (directory / "pictures.bin").write_bytes(b"short"), "pictures"),
        (
            _sql("UPDATE memes SET kept_offset = 1 WHERE row = 0"),
            "row 0 of memes.sqlite does not say where its picture is",
        ),
        (
            _sql("UPDATE memes SET kept_offset = 0 WHERE row = 2"),
            "row 2 of memes.sqlite does not say where its picture is",
        ),
        (_sql("UPDATE memes SET kept_size = 5 WHERE row = 2"), "pictures that memes.sqlite says"),
        (_sql("UPDATE memes SET kept_size = 1 << 40 WHERE row = 2"), "row 2 of memes.sqlite does not say where"),
        (_sql("UPDATE memes SET kept_offset = -1 WHERE row = 0"), "row 0 of memes.sqlite does not say where"),
        (_flags(10, 3, 0, with_text=2, kept_pictures=1), "without text and picture"),
        (_flags(), r"flags\.npy is empty"),
        (lambda directory, _: np.save(directory / "flags.npy", np.zeros(3)), r"flags\.npy is not a row of flags"),
        (lambda _, manifest: manifest["files"].pop("pictures.bin"), "does not list"),
        (lambda _, manifest: manifest["counts"].update(harmful=2, not_harmful=1), "counts"),
        (lambda _, manifest: manifest.update(surprise=1), "manifest.json can't be understood"),
        (lambda _, manifest: manifest["files"].pop("memes.sqlite"), "does not list"),
        (lambda _, manifest: manifest["files"].update({"../../x": {"sha256": "0" * 64, "size": 1}}), "does not list"),
    ],
)
def test_contradictions_of_the_manifest_are_named(library, change, message):
    forge(library, change)
    with pytest.raises(BadLibrary, match=message):
        Library.open(library.root, ENCODER.identity)


@pytest.mark.parametrize(
    ("stated", "message", "reason"),
    [
        (4, "Upgrade MemeCourt", "LIBRARY_TOO_NEW"),
        *((old, r"older than format 3.*Build it again", "LIBRARY_TOO_OLD") for old in (1, 2)),
    ],
)
def test_other_formats_are_refused_with_a_remedy(library, stated, message, reason):
    forge(library, lambda _, manifest: manifest.update(format=stated, surprise=1))
    with pytest.raises(BadLibrary, match=message) as refusal:
        Library.open(library.root, ENCODER.identity)
    assert refusal.value.reason == reason


def test_library_of_another_encoder_is_refused_and_both_are_named(library):
    other = WordEncoder("other")
    with pytest.raises(BadLibrary, match=r"made with the encoder words \(sha256:.*but other \(sha256:") as refusal:
        Library.open(library.root, other.identity)
    assert refusal.value.reason == "LIBRARY_FOREIGN"


def test_disk_error_at_any_step_leaves_the_old_or_the_new_generation(tmp_path):
    outcomes, nth = set(), 0
    while True:
        nth += 1
        library = create(tmp_path / f"at{nth}", "a", "b").add(*content("c"))
        with pytest.MonkeyPatch.context() as patch:
            calls = _break_at(patch, nth)
            with contextlib.suppress(OSError):
                library.add(*content("d"))
        now = ids_of(Library.open(library.root, ENCODER.identity))
        assert now in (["a", "b", "c"], ["a", "b", "c", "d"])
        outcomes.add(len(now))
        # And the library stays writable.
        again = Library.open(library.root, ENCODER.identity)
        assert ids_of(again.add(*content("e")))[-1] == "e"
        names = sorted(path.name for path in (library.root / "generations").iterdir())
        assert len(names) == 2 and not any(name.startswith(".") for name in names)
        if calls[0] < nth:
            break
    assert outcomes == {3, 4} and nth > 8


def test_disk_error_during_the_first_write_leaves_the_folder_usable(tmp_path):
    for nth in range(1, 12):
        root = tmp_path / f"at{nth}"
        with pytest.MonkeyPatch.context() as patch:
            _break_at(patch, nth)
            with contextlib.suppress(OSError):
                create(root, "a")
        with contextlib.suppress(BadRequest):
            create(root, "a")
        assert ids_of(Library.open(root, ENCODER.identity)) == ["a"]


def test_reader_survives_two_writes_while_it_opens_the_library(library, monkeypatch):
    real, writes = storage.read_pointer, []

    def slow(root):
        pointer = real(root)
        if not writes:
            writes.append(1)
            library.add(*content("d")).add(*content("e"))
        return pointer

    monkeypatch.setattr(storage, "read_pointer", slow)
    assert ids_of(Library.open(library.root, ENCODER.identity)) == ["a", "b", "c", "d", "e"]
