"""Building libraries: source formats, bad rows, pictures and thumbnails, interrupted builds."""

import asyncio
import contextlib
import io
import os
import sqlite3
import threading
import time

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from court.errors import BadRequest, Unavailable
from court.verdict import Label
from retrieval.build import STARTER_MEMES, add_to_library, build_library, build_starter
from retrieval.library.embedding_cache import EmbeddingCache
from retrieval.library.readers import read_source
from retrieval.library.sources import Provenance, Source
from retrieval.library.thumbnails import SIDE, ThumbnailWriter
from tests.support.build import ENCODER, harmeme, lines
from tests.support.encoders import PlainPictureReader, WordEncoder, picture_of, png_of

SECRET = "zebra quarrel"  # must never be quoted


def build(path, *sources, **kwargs):
    arguments = {"name": "n", "encoder": ENCODER} | kwargs
    return asyncio.run(build_library(path / "library", sources, **arguments))


def pictured(path):
    """A source of one meme with a picture."""
    (path / "a.png").write_bytes(png_of((1, 2, 3)))
    return Source(lines(path / "data", harmeme("a", "not harmful", "x")), pictures=path)


def reasons(report):
    return [(problem.line, problem.id, problem.reason) for problem in report.problems if not problem.kept]


def test_harmeme_source_is_built(tmp_path):
    source = lines(
        tmp_path / "train.jsonl",
        harmeme("a", "not harmful", "one"),
        harmeme("b", "somewhat harmful", "two", "individual"),
        harmeme("c", "very harmful", "three", "society", "community"),
    )
    library, report = build(tmp_path, Source(source, "Harm-X train"))
    assert [(m.label, m.source_label, m.categories) for m in library.memes] == [
        (Label.NOT_HARMFUL, "not harmful", ()),
        (Label.HARMFUL, "somewhat harmful", ("individual",)),
        (Label.HARMFUL, "very harmful", ("society", "community")),
    ]
    assert {meme.source for meme in library.memes} == {"Harm-X train"}
    assert (report.rows, report.added, report.without_picture, report.problems) == (3, 3, 3, ())
    assert "no folder of pictures was named" in report.notes[0]
    assert library.manifest.tuning.alpha == 1.0
    assert library.manifest.tuning.floors == ENCODER.floors
    assert library.manifest.name == "n"


def test_bad_rows_are_reported_by_line_id_and_reason_without_quotes(tmp_path):
    source = lines(
        tmp_path / "train.jsonl",
        harmeme("good", "not harmful", "fine"),
        harmeme("empty", None, SECRET),
        harmeme("blank", " ", SECRET),
        "{" + SECRET,
        "",
        f'["{SECRET}"]',
        harmeme("odd", SECRET, SECRET),
        harmeme("good", "not harmful", SECRET),
        {"image": "x", "labels": ["not harmful"], "text": SECRET},
        harmeme("nothing", "not harmful", " "),
        harmeme("number", "not harmful", "x") | {"text": 5},
        harmeme("long", "not harmful", SECRET * 1000),
        harmeme("x" * 300, "not harmful", SECRET),
        '{"id": "surrogate", "labels": ["not harmful"], "text": "\\ud800"}',
        "[" * 100_000,
    )
    library, report = build(tmp_path, Source(source))
    assert [meme.id for meme in library.memes] == ["good"]
    assert reasons(report) == [
        (2, "empty", "the label is empty"),
        (3, "blank", "the label is empty"),
        (4, "", "the line is no JSON object"),
        (6, "", "the line is no JSON object"),
        (7, "odd", "the label is none of HarMeme's"),
        (8, "good", "another meme before it has its id"),
        (9, "", "it has no id"),
        (10, "nothing", "it has neither a text nor a picture"),
        (11, "number", "the text is no text"),
        (12, "long", "its text is too long"),
        (13, "", "its id is longer than 200 characters"),
        (14, "surrogate", "it holds bytes that are not UTF-8"),
        (15, "", "the line is no JSON object"),
    ]
    assert report.rows == 14 and report.added == 1
    assert report.reasons["the line is no JSON object"] == 3
    assert SECRET not in repr(report)


def test_fhm_source_is_built(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "01.png").write_bytes(png_of((9, 9, 9)))
    source = lines(
        tmp_path / "train.jsonl",
        {"id": 42953, "img": "img/01.png", "label": 1, "text": "one"},
        {"id": 7, "img": "img/02.png", "label": 0, "text": "two"},
        {"id": 8, "img": "img/03.png", "text": "three"},
        {"id": 9, "img": "img/04.png", "label": 2, "text": "four"},
        {"id": True, "img": "img/04.png", "label": 1, "text": "four"},
        {"id": 10, "img": "img/04.png", "label": "nan", "text": "five"},
    )
    library, report = build(tmp_path, Source(source, pictures=tmp_path), picture_reader=PlainPictureReader())
    assert [(m.id, m.label, m.source_label, m.has_picture) for m in library.memes] == [
        ("42953", Label.HARMFUL, "1", True),
        ("7", Label.NOT_HARMFUL, "0", False),
    ]
    assert reasons(report) == [
        (3, "8", "it has no label, as in a test split"),
        (4, "9", "the label is none that is known (1, 0, harmful, not_harmful, hateful, true, false)"),
        (5, "", "it has no id"),
        (6, "10", "the label is empty"),
    ]
    assert library.manifest.notes[0] == "1 rows were left out: it has no label, as in a test split."


def test_csv_source_is_built(tmp_path):
    source = tmp_path / "mine.csv"
    source.write_text(
        "\ufeffID, Label ,text,image,categories\n"
        'a,Harmful,"two\nlines, one cell",,insult; hate \n'
        "b,NOT_HARMFUL,x,,\n"
        "c,1,y,,\n"
        "d,0,z,,\n"
        "\n"
        "e,perhaps,z,,\n"
        "f,harmful,too,few\n"
        "g,,z,,\n"
    )
    library, report = build(tmp_path, Source(source))
    assert [(m.id, m.label, m.categories) for m in library.memes] == [
        ("a", Label.HARMFUL, ("insult", "hate")),
        ("b", Label.NOT_HARMFUL, ()),
        ("c", Label.HARMFUL, ()),
        ("d", Label.NOT_HARMFUL, ()),
    ]
    assert library.memes[0].text == "two\nlines, one cell"
    assert [(line, id_) for line, id_, _ in reasons(report)] == [(8, "e"), (9, ""), (10, "g")]


EMPTY, UNKNOWN = "data is empty", "no layout that is known"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", EMPTY),
        ("\n", EMPTY),
        ("\ufeff \r\n", EMPTY),
        ("a word\n", UNKNOWN),
        ("id|label\n", UNKNOWN),
        ("[1, 2]", UNKNOWN),
    ],
)
def test_file_that_is_empty_or_of_unknown_format_is_refused(tmp_path, content, why):
    (tmp_path / "data").write_text(content, "utf-8")
    with pytest.raises(BadRequest, match=why) as refusal:
        read_source(Source(tmp_path / "data"))
    assert refusal.value.reason == "SOURCE_FORMAT_UNKNOWN"


def test_missing_source_is_refused_without_its_path(tmp_path):
    with pytest.raises(BadRequest, match=r"gone\.jsonl, can't be read") as refusal:
        read_source(Source(tmp_path / "gone.jsonl"))
    assert str(tmp_path) not in refusal.value.message


def test_unicode_line_separator_in_a_text_does_not_end_the_line(tmp_path):
    (tmp_path / "data").write_text('{"id": "a", "labels": ["not harmful"], "text": "x\u2028y\x85z"}\n')
    assert read_source(Source(tmp_path / "data")).good[0].text == "x\u2028y\x85z"


def test_build_without_usable_rows_is_refused_with_the_reasons(tmp_path):
    source = lines(tmp_path / "data", harmeme("a", None, SECRET), harmeme("b", None, SECRET))
    with pytest.raises(BadRequest, match=r"None of the 2 rows can be used: the label is empty \(2\)") as refusal:
        build(tmp_path, Source(source))
    assert refusal.value.reason == "NOTHING_TO_BUILD"
    assert not (tmp_path / "library").exists()
    # A table with only a header.
    (tmp_path / "head.csv").write_text("id,label,text\n")
    with pytest.raises(BadRequest, match="There are no rows"):
        build(tmp_path, Source(tmp_path / "head.csv"))


def test_unusable_pictures_are_reported_and_valid_ones_embedded(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    red = png_of((255, 0, 0))
    (folder / "red.png").write_bytes(red)
    (folder / "text.png").write_bytes(b"not a picture")
    (folder / "huge.png").touch()
    os.truncate(folder / "huge.png", 33 * 1024 * 1024)
    (tmp_path / "outside.png").write_bytes(red)
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    source = lines(
        tmp_path / "data",
        harmeme("red", "not harmful", "", image="red.png"),
        harmeme("gone", "not harmful", "words", image="gone.png"),
        harmeme("text", "not harmful", "words", image="text.png"),
        harmeme("huge", "not harmful", "words", image="huge.png"),
        harmeme("out", "not harmful", "words", image="../outside.png"),
        harmeme("link", "not harmful", "words", image="link.png"),
        harmeme("abs", "not harmful", "words", image=str(tmp_path / "outside.png")),
        harmeme("nul", "not harmful", "words", image="a\0b"),
        harmeme("dir", "not harmful", "words", image="."),
        harmeme("mute", "not harmful", "", image="gone.png"),
    )
    library, report = build(tmp_path, Source(source, pictures=folder), picture_reader=PlainPictureReader())
    assert library.memes[0].has_picture and not library.memes[0].has_text
    assert library.memes[0].pixels_sha256 == picture_of(red).pixels_sha256
    assert library.memes[0].bytes_sha256 == picture_of(red).bytes_sha256
    assert np.array_equal(library.rows[0, 16:], ENCODER.embed_pictures([[red]])[0])
    by_id = {problem.id: (problem.reason, problem.kept) for problem in report.problems}
    assert by_id == {
        "gone": ("its picture is missing", True),
        "text": ("its picture can't be used (NOT_A_PICTURE)", True),
        "huge": ("its picture is larger than can be read", True),
        "out": ("its picture is missing", True),
        "link": ("its picture is missing", True),
        "abs": ("its picture is missing", True),
        "nul": ("its picture can't be opened", True),
        "dir": ("its picture is missing", True),
        "mute": ("its picture is missing", False),
    }
    assert [meme.has_picture for meme in library.memes] == [True] + [False] * 8
    assert report.without_picture == 8
    assert [meme.kept is not None for meme in library.memes] == [True] + [False] * 8


def test_missing_picture_folder_is_reported_once(tmp_path):
    source = lines(tmp_path / "data", *(harmeme(str(i), "not harmful", f"w{i}") for i in range(30)))
    library, report = build(tmp_path, Source(source, pictures=tmp_path / "none"), picture_reader=PlainPictureReader())
    assert report.problems == () and len(report.notes) == 1 and "folder of pictures is not there" in report.notes[0]
    assert library.manifest.counts.with_picture == 0


class BusyReader:
    def __init__(self, times):
        self.left = times

    async def read(self, data):
        if self.left:
            self.left -= 1
            raise Unavailable("No time.", reason="DECODER_BUSY")
        return picture_of(data)


def test_reading_a_picture_is_retried_when_the_decoder_is_busy(tmp_path):
    source = pictured(tmp_path)
    assert build(tmp_path, source, picture_reader=BusyReader(2))[0].memes[0].has_picture
    library, report = build(tmp_path, source, picture_reader=BusyReader(3), replace=True)
    assert not library.memes[0].has_picture
    assert report.problems[0].reason == "its picture could not be read in time (DECODER_BUSY)"


def test_duplicate_ids_in_later_sources_are_refused(tmp_path):
    one = lines(tmp_path / "one", harmeme("a", "not harmful", "x"), harmeme("b", "not harmful", "y"))
    two = lines(tmp_path / "two", harmeme("b", "very harmful", "z"), harmeme("c", "very harmful", "z"))
    library, report = build(tmp_path, Source(one), Source(two))
    assert library.manifest.sources == {"one": 2, "two": 1}
    assert [(p.source, p.line, p.id) for p in report.problems] == [("two", 1, "b")]


def test_truncated_texts_are_reported(tmp_path):
    source = lines(tmp_path / "data", harmeme("a", "not harmful", "w " * 60), harmeme("b", "not harmful", "w"))
    assert build(tmp_path, Source(source))[1].text_cut == ("a",)
    # Also if the build is resumed from its cache.
    cache, texts = EmbeddingCache(tmp_path, ENCODER.identity), ["w " * 60, "w"]
    cache.keep_texts(texts, ENCODER.embed_texts(texts))
    assert [cut for _, cut in filter(None, cache.texts(texts))] == [True, False]
    cache.close()


def words_of_two_kinds():
    """Memes enough to calibrate a library, their labels plain from their words."""
    kinds = (("not harmful", "good"), ("very harmful", "bad"))
    return [harmeme(f"m{i}", kinds[i % 2][0], f"word{i} {kinds[i % 2][1]}") for i in range(120)]


def test_adding_recalibrates_and_skips_existing_ids(tmp_path):
    first = lines(tmp_path / "one", harmeme("a", "not harmful", "x"))
    library, _ = build(tmp_path, Source(first))
    more = lines(tmp_path / "two", harmeme("a", "very harmful", "again"), *words_of_two_kinds())
    larger, report = asyncio.run(add_to_library(library, [Source(more)], encoder=ENCODER))
    assert report.added == 120 and reasons(report) == [(1, "a", "its id is taken")]
    assert larger.generation == "000002"
    assert library.manifest.tuning.calibration.method == "defaults"
    assert larger.manifest.tuning.calibration.method == "leave-one-out"
    with pytest.raises(BadRequest, match=r"its id is taken \(1\)"):
        asyncio.run(add_to_library(larger, [Source(first)], encoder=ENCODER))


def test_settle_error_is_stored_and_reused_when_memes_are_added(tmp_path):
    usual, _ = build(tmp_path / "usual", Source(lines(tmp_path / "one", *words_of_two_kinds())), settle_error=0.01)
    library, _ = build(tmp_path / "wide", Source(tmp_path / "one"), settle_error=0.2)
    assert (usual.manifest.tuning.settle_error, library.manifest.tuning.settle_error) == (0.01, 0.2)
    # 120 memes are too few to guarantee 1 %, and enough for 20 %.
    assert usual.manifest.tuning.settles is None
    settles = library.manifest.tuning.settles
    assert settles is not None and settles.error == 0.2
    more = lines(tmp_path / "two", harmeme("x", "not harmful", "another good one"))
    larger, _ = asyncio.run(add_to_library(library, [Source(more)], encoder=ENCODER))
    assert larger.manifest.tuning.settle_error == 0.2
    assert larger.manifest.tuning.settles is not None and larger.manifest.tuning.settles.error == 0.2


@pytest.mark.slow
def test_starter_library_is_built_without_problems(tmp_path):
    library, report = asyncio.run(build_starter(tmp_path / "starter", ENCODER, PlainPictureReader()))
    assert report.problems == () and report.notes == ()
    counts = library.manifest.counts
    assert library.manifest.name == "starter"
    assert counts.memes >= 60 and counts.with_text == counts.with_picture == counts.memes
    assert min(counts.harmful, counts.not_harmful) >= counts.memes / 3
    assert library.manifest.tuning.calibration.method == "leave-one-out"
    assert counts.kept_pictures == counts.memes and max(thumbnail_of(library, 0).size) <= SIDE
    assert all(meme.verified and meme.who and meme.added for meme in library.memes)
    # A stranger's file may name anybody, so its rows are believed only where the caller says so.
    source = Source(STARTER_MEMES, name="copied")
    copied, _ = asyncio.run(build_library(tmp_path / "copied", [source], name="copied", encoder=ENCODER))
    assert not any(meme.verified or meme.who for meme in copied.memes)


def test_unexpected_reader_errors_are_raised(tmp_path):
    class Broken:
        async def read(self, data):
            raise KeyError("a bug of ours")

    with pytest.raises(KeyError):
        build(tmp_path, pictured(tmp_path), picture_reader=Broken())


JFIF = {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def thumbnail_of(library, row):
    data = library.picture(row)
    assert data is not None
    with Image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
        picture.load()
        return picture


def test_thumbnails_are_small_and_without_metadata(tmp_path):
    wide = Image.effect_noise((1280, 300), 90).convert("RGB")
    metadata = PngImagePlugin.PngInfo()
    metadata.add_text("Comment", SECRET)
    wide.save(tmp_path / "wide.png", pnginfo=metadata, dpi=(300, 300), exif=b"Exif\0\0" + SECRET.encode())
    (tmp_path / "small.png").write_bytes(png_of((250, 5, 5), (5, 5, 250)))
    Image.new("RGB", (1280, 1)).save(tmp_path / "line.png")
    source = lines(
        tmp_path / "data",
        *(harmeme(name, "not harmful", f"text of {name}") for name in ("wide", "gone", "small", "line")),
    )
    library, _ = build(tmp_path, Source(source, pictures=tmp_path), picture_reader=PlainPictureReader())

    shown = thumbnail_of(library, 0)
    assert (shown.mode, shown.size) == ("RGB", (SIDE, 120))
    assert SECRET.encode() not in (library.picture(0) or b"") and shown.info.keys() == JFIF
    smooth = np.asarray(wide.resize(shown.size, Image.Resampling.LANCZOS), dtype=float)
    assert np.abs(np.asarray(shown, dtype=float) - smooth).mean() < 4
    assert library.picture(1) is None
    assert thumbnail_of(library, 2).size == (16, 8) and thumbnail_of(library, 3).size == (SIDE, 1)
    counts = library.manifest.counts
    assert (counts.kept_pictures, counts.kept_bytes) == (3, library.manifest.files["pictures.bin"].size)


def test_thumbnail_is_stored_for_a_picture_without_embedding(tmp_path):
    class Blind(WordEncoder):
        def embed_pictures(self, pictures):
            return np.zeros((len(pictures), 12), np.float32)

    (tmp_path / "a.png").write_bytes(png_of((1, 2, 3)))
    source = lines(tmp_path / "data", harmeme("b", "not harmful", "", image="a.png"), harmeme("a", "not harmful", "x"))
    library, report = build(
        tmp_path, Source(source, pictures=tmp_path), encoder=Blind(), picture_reader=PlainPictureReader()
    )
    # The first meme has nothing to compare, so it is left out, and its picture too.
    assert [meme.id for meme in library.memes] == ["a"] and reasons(report)[0][1] == "b"
    assert not library.memes[0].has_picture and thumbnail_of(library, 0).size == (8, 8)
    assert library.manifest.counts.kept_bytes == len(library.picture(0) or b"")


def test_adding_keeps_existing_thumbnails(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png_of((80 * number, 0, 9)))
    one, two = (
        Source(lines(tmp_path / name, *(harmeme(str(i), "not harmful", f"w{i}") for i in ids)), pictures=tmp_path)
        for name, ids in (("one", [0, 1]), ("two", [2]))
    )
    library, _ = build(tmp_path, one, picture_reader=PlainPictureReader())
    larger, _ = asyncio.run(add_to_library(library, [two], encoder=ENCODER, picture_reader=PlainPictureReader()))
    assert [larger.picture(row) for row in (0, 1)] == [library.picture(row) for row in (0, 1)]
    assert [round(thumbnail_of(larger, row).getpixel((4, 4))[0] / 80) for row in range(3)] == [0, 1, 2]
    assert larger.manifest.counts.kept_pictures == 3
    without, _ = build(tmp_path, one, replace=True)
    assert without.manifest.counts.kept_pictures == without.manifest.files["pictures.bin"].size == 0


def test_pictures_are_read_and_written_batch_by_batch(tmp_path, monkeypatch):
    colours = np.random.default_rng(0).integers(256, size=(110, 2, 3)).tolist()
    for i, (one, other) in enumerate(colours):
        (tmp_path / f"{i}.png").write_bytes(png_of(tuple(one), tuple(other)))
    labels = ("not harmful", "very harmful")
    source = lines(tmp_path / "data", *(harmeme(str(i), labels[i % 2], f"w{i}") for i in range(110)))
    written: list[int] = []
    real = ThumbnailWriter.append
    monkeypatch.setattr(ThumbnailWriter, "append", lambda spool, data: (written.append(1), real(spool, data))[1])
    after: list[int] = []
    steps: list[tuple[str, int, int]] = []

    def progress(step, done, total):
        steps.append((step, done, total))
        after.append(len(written))

    build(tmp_path, Source(source, pictures=tmp_path), picture_reader=PlainPictureReader(), progress=progress)
    batches = [32, 64, 96, 110]
    assert steps[:4] == [("pictures", done, 110) for done in batches] and after[:4] == batches
    assert steps[-1][0] == "calibration" and steps[-1][1] == steps[-1][2]


def test_full_disk_while_writing_thumbnails_leaves_no_library(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    source = pictured(tmp_path)
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            build(tmp_path, source, picture_reader=PlainPictureReader())
    # Only the cached embeddings remain, for the next attempt.
    library = tmp_path / "library"
    assert sorted(tmp_path.iterdir()) == sorted([*before, library])
    assert [path.name for path in library.iterdir()] == [".building"]
    assert build(tmp_path, source, picture_reader=PlainPictureReader())[0].picture(0) is not None


class CountingEncoder(WordEncoder):
    """Counts what it embeds, and fails after ``most`` texts and pictures."""

    def __init__(self, *, most=10**9, name="words"):
        super().__init__(name)
        self.texts, self.pictures, self.most = 0, 0, most
        self._lock = threading.Lock()

    def _count(self, texts, pictures):
        with self._lock:
            self.texts, self.pictures = self.texts + texts, self.pictures + pictures
            if self.texts + self.pictures > self.most:
                raise RuntimeError("cut off")

    def embed_texts(self, texts):
        self._count(len(texts), 0)
        return super().embed_texts(texts)

    def embed_pictures(self, pictures):
        self._count(0, len(pictures))
        return super().embed_pictures(pictures)


def illustrated(root, count):
    (root / "img").mkdir()
    rows = []
    for number in range(count):
        (root / "img" / f"{number}.png").write_bytes(png_of((number, 5, 5), (5, 250 - number, 5)))
        rows.append({"id": f"m{number}", "label": "1" if number % 2 else "0", "text": f"words {number}"})
        rows[-1]["image"] = f"{number}.png"
    return Source(lines(root / "memes.jsonl", *rows), pictures=root / "img")


@pytest.mark.parametrize(("most", "left"), [(0, 100), (40, 68), (100, 0), (150, 0)])
def test_interrupted_build_resumes_from_cached_embeddings(tmp_path, most, left):
    source = illustrated(tmp_path, 100)

    def attempt(encoder, place):
        building = build_library(
            tmp_path / place, [source], name="n", encoder=encoder, picture_reader=PlainPictureReader()
        )
        return asyncio.run(building)[0]

    with pytest.raises(RuntimeError, match="cut off"):
        attempt(CountingEncoder(most=most), "library")
    again, whole = CountingEncoder(), CountingEncoder()
    library = attempt(again, "library")
    assert (again.texts, again.pictures) == (100, left)
    other = attempt(whole, "other")
    assert (whole.texts, whole.pictures) == (100, 100)
    for name in ("vectors.npy", "flags.npy", "pictures.bin"):
        assert library.manifest.files[name] == other.manifest.files[name]
    assert library.manifest.tuning == other.manifest.tuning
    strip = {"added": None}
    assert [m.model_copy(update=strip) for m in library.memes] == [m.model_copy(update=strip) for m in other.memes]
    assert not (tmp_path / "library" / ".building").exists()


def test_cached_embeddings_of_other_encoders_or_altered_ones_are_ignored(tmp_path):
    source = illustrated(tmp_path, 40)
    place = tmp_path / "library"

    def attempt(encoder):
        reader = PlainPictureReader()
        return asyncio.run(build_library(place, [source], name="n", encoder=encoder, picture_reader=reader))[0]

    with pytest.raises(RuntimeError):
        attempt(CountingEncoder(most=60))
    (spool,) = (place / ".building").glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(spool)) as connection:
        connection.execute("UPDATE entries SET vector = zeroblob(length(vector))")
        connection.commit()
    with pytest.raises(RuntimeError):
        attempt(CountingEncoder(most=0, name="other"))
    again = CountingEncoder(most=79)
    with pytest.raises(RuntimeError):
        attempt(again)
    assert again.pictures == 40
    spool.write_bytes(b"no table at all" * 100)
    attempt(CountingEncoder())


def test_build_into_a_folder_of_other_things_embeds_nothing(tmp_path):
    source, place = illustrated(tmp_path, 3), tmp_path / "img"
    with pytest.raises(BadRequest, match="holds other things"):
        asyncio.run(build_library(place, [source], name="n", encoder=CountingEncoder(most=0)))
    assert sorted(path.name for path in place.iterdir()) == ["0.png", "1.png", "2.png"]


def test_provenance_is_stored_with_memes(tmp_path):
    known = Provenance(split="train", namespace="shop", language="en", policy="p", verified=True)
    source = Source(lines(tmp_path / "x.jsonl", harmeme("a", "not harmful", "words")), provenance=known)
    (meme,) = build(tmp_path, source)[0].memes
    assert Provenance(meme.split, meme.namespace, meme.language, meme.policy, meme.verified) == known
    assert meme.added is not None and abs(meme.added.timestamp() - time.time()) < 600
