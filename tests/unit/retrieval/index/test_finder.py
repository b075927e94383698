import asyncio
import io
import threading
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from PIL import Image

from court.errors import BadLibrary, Unavailable
from court.meme import Frame
from court.ports import PrecedentFinder
from court.precedents import MinSimilarity, Relation, SureRange, VoteSettings
from court.verdict import Label
from retrieval.index.exact import FusedIndex
from retrieval.library.filters import Filter
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.library.thumbnails import SIDE, ThumbnailWriter, shrink
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.finder import LibraryFinder, follow
from tests.support.encoders import WordEncoder, picture_of, png_of
from tests.support.playing import until

RED, GREEN, BLUE = (250, 5, 5), (5, 250, 5), (5, 5, 250)
ENCODER = WordEncoder()

Spec = tuple[str, bool, str, bytes | None]
SPECS: list[Spec] = [
    ("cat", False, "my cat sleeps all day", png_of(RED, GREEN)),
    ("dog", False, "my dog sleeps all day", png_of(GREEN, BLUE)),
    ("pill", True, "throw away your pills", png_of(BLUE, RED)),
    ("text-only", True, "throw away your vaccines", None),
    ("picture-only", False, "", png_of(RED, BLUE)),
]


def library_of(path, specs, *, alpha=0.5, k=3, settles=None):
    memes, rows = [], np.zeros((len(specs), ENCODER.identity.dim), np.float32)
    path.mkdir(parents=True, exist_ok=True)
    thumbnails = ThumbnailWriter(path)
    for row, (id_, harmful, text, png) in zip(rows, specs, strict=True):
        row[:16] = ENCODER.embed_texts([text]).vectors[0]
        if png:
            row[16:] = ENCODER.embed_pictures([[png]])[0]
        memes.append(
            LabelledMeme(
                id=id_,
                label=Label.HARMFUL if harmful else Label.NOT_HARMFUL,
                text=text,
                categories=("c",),
                source="s",
                pixels_sha256=picture_of(png).pixels_sha256 if png else "",
                has_text=bool(text),
                has_picture=bool(png),
                kept=store_thumbnail(thumbnails, png) if png else None,
            )
        )
    tuning = Tuning(
        alpha=alpha,
        vote=VoteSettings(k=k, tau=0.1, prior=0.5),
        floors=MinSimilarity(text=0.3, picture=0.5),
        calibration=Calibration(method="defaults", n=0, majority=0.5),
        settles=settles,
    )
    return Library.create(
        path, name="n", encoder=ENCODER.identity, memes=memes, rows=rows, tuning=tuning, pictures=thumbnails
    )


def store_thumbnail(thumbnails, png):
    return thumbnails.append(shrink(picture_of(png).frames[0]))


@pytest.fixture
def finder(tmp_path):
    found = LibraryFinder(library_of(tmp_path / "library", SPECS), ENCODER)
    yield found
    found.close()


def find(finder, text="", png=None, **kwargs):
    picture = picture_of(png) if png else None
    options: dict[str, Any] = {"exhibits": 3, "tally": 4, "alpha": None} | kwargs
    port: PrecedentFinder = finder
    assert port.library.size == finder.library.size
    return asyncio.run(
        finder.find(
            text=text,
            frames=picture.frames if picture else (),
            pixels_sha256=picture.pixels_sha256 if picture else "",
            **options,
        )
    )


def test_precedents_are_ranked_by_the_weighted_sum_of_both_halves(finder):
    findings = find(finder, "my cat sleeps all day", png_of(RED, GREEN), alpha=0.3)
    first = findings.exhibits[0]
    assert (first.id, first.relation, first.source, first.categories) == ("cat", Relation.SAME_MEME, "s", ("c",))
    assert first.similarity == pytest.approx(1.0)
    for exhibit in findings.exhibits:
        halves = 0.3 * (exhibit.text_similarity or 0) + 0.7 * (exhibit.picture_similarity or 0)
        assert exhibit.similarity == pytest.approx(halves)
    similarities = [entry.similarity for entry in findings.tally]
    assert similarities == sorted(similarities, reverse=True)
    assert [entry.id for entry in findings.tally][:3] == [exhibit.id for exhibit in findings.exhibits]
    assert findings.search.alpha == findings.search.alpha_asked == 0.3
    assert findings.floors == MinSimilarity(text=0.3, picture=0.5)
    assert findings.vote_settings.k == 3


def test_library_s_alpha_is_used_by_default(finder):
    assert find(finder, "x", png_of(RED)).search.alpha_asked == 0.5


@pytest.mark.parametrize(
    ("text", "png", "id_", "relation"),
    [
        ("My  CAT sleeps all day", png_of(RED, GREEN), "cat", Relation.SAME_MEME),
        ("another caption", png_of(RED, GREEN), "cat", Relation.SAME_PICTURE),
        ("my cat\nsleeps all day", png_of(BLUE), "cat", Relation.SAME_TEXT),
        ("my cat sleeps", png_of(RED, GREEN, RED), "cat", Relation.SIMILAR),
        ("", png_of(RED, BLUE), "picture-only", Relation.SAME_MEME),
        ("", png_of(RED, BLUE, BLUE), "picture-only", Relation.SIMILAR),
        ("throw away your vaccines", None, "text-only", Relation.SAME_TEXT),
    ],
)
def test_precedents_carry_their_relation_to_the_meme(finder, text, png, id_, relation):
    exhibits = {exhibit.id: exhibit for exhibit in find(finder, text, png, exhibits=5).exhibits}
    assert exhibits[id_].relation is relation


def test_meme_without_text_is_compared_by_picture_alone_and_a_note_says_so(finder):
    findings = find(finder, "", png_of(RED, GREEN), alpha=0.9)
    assert (findings.search.alpha_asked, findings.search.alpha) == (0.9, 0.0)
    assert not findings.search.has_text and findings.search.has_picture
    assert any("has no text" in note for note in findings.notes)
    assert all(exhibit.text_similarity is None for exhibit in findings.exhibits)
    assert findings.exhibits[0].id == "cat"


def test_meme_without_picture_is_compared_by_text_alone_and_a_note_says_so(finder):
    findings = find(finder, "throw away your pills", None, alpha=0.1)
    assert findings.search.alpha == 1.0
    assert any("has no picture" in note for note in findings.notes)
    assert all(exhibit.picture_similarity is None for exhibit in findings.exhibits)
    assert findings.exhibits[0].id == "pill"


def test_library_without_pictures_is_searched_by_text_and_a_note_says_so(tmp_path):
    finder = LibraryFinder(library_of(tmp_path, [(i, h, t, None) for i, h, t, _ in SPECS if t], alpha=0.5), ENCODER)
    findings = find(finder, "throw away your pills", png_of(RED))
    assert findings.search.alpha == 1.0
    assert findings.search.has_picture
    assert any("No precedent in the library has a picture" in note for note in findings.notes)
    assert findings.library.with_picture == 0
    nothing = find(finder, "", png_of(RED))
    assert nothing.exhibits == nothing.tally == () and nothing.nearest_harmful is None is nothing.nearest_benign
    assert any("Nothing is left to compare" in note for note in nothing.notes)


def test_meme_without_text_and_picture_has_no_precedents(finder):
    findings = find(finder, " \n", None)
    assert findings.exhibits == () and findings.tally == ()
    assert any("Nothing is left to compare" in note for note in findings.notes)


def test_missing_half_of_a_precedent_scores_zero_and_is_counted_in_a_note(finder):
    findings = find(finder, "throw away your vaccines", png_of(RED, BLUE), exhibits=5)
    exhibits = {exhibit.id: exhibit for exhibit in findings.exhibits}
    assert exhibits["text-only"].picture_similarity is None
    assert exhibits["text-only"].similarity == pytest.approx(0.5)
    assert exhibits["picture-only"].text_similarity is None
    assert exhibits["picture-only"].similarity == pytest.approx(0.5)
    assert any("Of the 5 precedents shown, 1 without a picture" in note for note in findings.notes)
    assert any("Of the 5 precedents shown, 1 without a text" in note for note in findings.notes)
    assert not any("shown" in note for note in find(finder, "my cat sleeps", png_of(RED, GREEN), exhibits=1).notes)


def test_nearest_precedent_of_each_label_is_found_at_any_distance(tmp_path):
    specs: list[Spec] = [(f"b{i}", False, f"sunny day number {i}", None) for i in range(200)]
    finder = LibraryFinder(library_of(tmp_path, [*specs, ("far", True, "unlike all else", None)]), ENCODER)
    findings = find(finder, "sunny day number 7", None, exhibits=2)
    assert findings.nearest_benign is not None and findings.nearest_benign.id == "b7"
    assert findings.nearest_harmful is not None and findings.nearest_harmful.id == "far"
    assert findings.nearest_harmful.text_similarity == pytest.approx(findings.nearest_harmful.similarity)
    assert "far" not in [entry.id for entry in findings.tally]


def test_library_of_one_label_has_no_nearest_precedent_of_the_other(tmp_path):
    finder = LibraryFinder(library_of(tmp_path, [("a", True, "one two", None)]), ENCODER)
    findings = find(finder, "one")
    assert findings.nearest_harmful is not None and findings.nearest_benign is None
    assert len(findings.exhibits) == 1


def test_at_least_the_library_s_k_nearest_precedents_are_counted(tmp_path):
    specs: list[Spec] = [(str(i), i % 2 == 0, f"word{i}", None) for i in range(40)]
    finder = LibraryFinder(library_of(tmp_path, specs, k=30), ENCODER)
    few = find(finder, "word1", tally=5)
    assert len(few.tally) == few.search.tally == 30
    assert len(find(finder, "word1", tally=35).tally) == 35
    assert len(find(finder, "word1", tally=500).tally) == 40
    assert len(find(finder, "word1", exhibits=38, tally=5).exhibits) == 38
    assert find(finder, "word1", exhibits=0).exhibits == ()


def test_excluded_precedents_are_neither_shown_nor_counted_and_a_note_says_so(finder):
    findings = find(finder, "throw away your pills", exclude=["pill", "text-only", "unheard of"], exhibits=5)
    assert findings.search.excluded == 2
    assert {"pill", "text-only"}.isdisjoint(entry.id for entry in findings.tally)
    assert findings.nearest_harmful is None
    assert any("2 precedents were left out" in note for note in findings.notes)


def test_truncated_text_is_reported(finder):
    assert find(finder, "word " * 51).text_cut
    assert not find(finder, "word " * 50).text_cut


def test_all_frames_of_an_animation_count(finder):
    frames = [Frame(png_of(RED, GREEN), 16, 8), Frame(png_of(BLUE, RED), 16, 8, index=1)]
    findings = asyncio.run(finder.find(text="", frames=frames, pixels_sha256="other", exhibits=5, tally=5, alpha=None))
    similarity = {exhibit.id: exhibit.picture_similarity for exhibit in findings.exhibits}
    assert similarity["cat"] == pytest.approx(similarity["pill"])


@pytest.mark.parametrize(
    "error", [RuntimeError("Error in faiss at 0x7f"), MemoryError(), OSError("/secret"), ValueError("x")]
)
def test_encoder_failures_are_reported_as_unavailable_without_details(finder, error):
    finder.encoder.broken = error  # type: ignore[attr-defined]
    try:
        with pytest.raises(Unavailable) as refusal:
            find(finder, "x")
    finally:
        finder.encoder.broken = None  # type: ignore[attr-defined]
    assert refusal.value.reason == "SEARCH_FAILED"
    assert "0x" not in refusal.value.message and "secret" not in refusal.value.message


def test_failure_of_the_scan_is_reported_as_unavailable(finder, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(FusedIndex, "_rough_scores", fail)
    with pytest.raises(Unavailable):
        find(finder, "x")


def test_closed_finder_is_unavailable(finder):
    finder.close()
    with pytest.raises(Unavailable):
        find(finder, "x")


def test_library_of_another_encoder_is_refused(tmp_path, finder):
    library = library_of(tmp_path / "other", SPECS)
    with pytest.raises(BadLibrary, match="other"):
        LibraryFinder(library, WordEncoder("other"))


async def test_concurrent_searches_see_either_the_old_or_the_new_library(tmp_path, finder):
    old = finder._snapshot.library
    new = library_of(tmp_path / "new", [(f"n-{i}", h, t, p) for i, h, t, p in SPECS])

    async def search():
        return await finder.find(text="my cat sleeps", frames=(), pixels_sha256="", exhibits=3, tally=5, alpha=None)

    tasks = []
    for number in range(60):
        tasks.append(asyncio.create_task(search()))
        await asyncio.sleep(0)
        finder.swap(new if number % 2 else old)
    results = await asyncio.gather(*tasks)
    for findings in results:
        is_new = findings.library.digest == new.digest
        assert all(entry.id.startswith("n-") == is_new for entry in findings.tally)
    assert {findings.library.digest for findings in results} == {old.digest, new.digest}


def pictures(finder, *ids):
    port: PrecedentFinder = finder
    return asyncio.run(port.pictures(ids))


def test_pictures_of_precedents_are_png_frames_of_their_stated_size(finder):
    cat, unknown, text_only, again = pictures(finder, "cat", "nobody", "text-only", "cat")
    assert unknown is None and text_only is None and again == cat
    assert cat is not None and (cat.width, cat.height) == (16, 8)
    with Image.open(io.BytesIO(cat.png), formats=["PNG"]) as shown:
        assert shown.mode == "RGB" and shown.size == (16, 8)
        left_half, right_half = shown.getpixel((2, 4)), shown.getpixel((13, 4))
    assert np.allclose(left_half, RED, atol=12) and np.allclose(right_half, GREEN, atol=12)
    assert pictures(finder) == []


def test_pictures_are_read_outside_the_event_loop(finder, monkeypatch):
    real, threads = Library.picture_of, []

    def recording(library, meme):
        threads.append(threading.current_thread().name)
        return real(library, meme)

    monkeypatch.setattr(Library, "picture_of", recording)
    assert pictures(finder, "cat")[0] is not None
    assert threads[0].startswith("precedents")


def test_pictures_outlive_the_generation_that_they_were_found_in(tmp_path):
    old = library_of(tmp_path, SPECS[:1])
    finder, thumbnails, bare = LibraryFinder(old, ENCODER), ThumbnailWriter(tmp_path), old.memes[0]
    grown = old
    for number in range(3):
        meme = bare.model_copy(update={"id": f"new{number}", "kept": store_thumbnail(thumbnails, png_of(BLUE))})
        grown = grown.add([meme], np.array(old.rows), pictures=thumbnails)
    assert not (tmp_path / "generations" / old.generation).exists()
    assert pictures(finder, "cat", "new0") == [pictures(LibraryFinder(grown, ENCODER), "cat")[0], None]
    finder.swap(grown)
    assert all(pictures(finder, "cat", "new0", "new2"))


def test_damaged_picture_raises_an_error(tmp_path):
    library = library_of(tmp_path, SPECS)
    finder, stored = LibraryFinder(library, ENCODER), library.memes[1].kept
    assert stored is not None
    with (tmp_path / "generations" / library.generation / "pictures.bin").open("r+b") as file:
        file.seek(stored.offset + stored.size // 2)
        file.write(b"?!")
    assert pictures(finder, "cat")[0] is not None
    with pytest.raises(BadLibrary, match="a picture in it is not what it was when written") as refusal:
        pictures(finder, "cat", "dog")
    assert refusal.value.reason == "LIBRARY_DAMAGED"


@pytest.mark.parametrize("what", ["no picture", "png", "large", "cut"])
def test_thumbnail_in_another_form_is_refused_despite_a_valid_digest(tmp_path, what):
    good = shrink(Frame(png_of(*[RED, GREEN] * 40), 640, 8))
    out = io.BytesIO()
    Image.new("RGB", (SIDE + 1, 1)).save(out, "JPEG")
    bytes_of = {"no picture": b"x", "png": png_of(RED), "large": out.getvalue(), "cut": good[: len(good) // 2]}
    thumbnails = ThumbnailWriter(tmp_path)
    whole = library_of(tmp_path / "library", SPECS[:1])
    forged = whole.memes[0].model_copy(update={"id": "forged", "kept": thumbnails.append(bytes_of[what])})
    finder = LibraryFinder(whole.add([forged], np.array(whole.rows), pictures=thumbnails), ENCODER)
    with pytest.raises(BadLibrary) as refusal:
        pictures(finder, "forged")
    assert refusal.value.reason == "LIBRARY_DAMAGED"


def test_unreadable_pictures_are_reported_as_unavailable(finder, monkeypatch):
    def fail(*_):
        raise OSError("/secret/place")

    monkeypatch.setattr(Library, "picture_of", fail)
    with pytest.raises(Unavailable) as refusal:
        pictures(finder, "cat")
    assert "secret" not in refusal.value.message
    finder.close()
    with pytest.raises(Unavailable):
        pictures(finder, "cat")


def test_sure_range_of_the_library_is_passed_on(tmp_path, finder):
    assert find(finder, "x").settles is None
    settles = SureRange(error=0.05, below=0.1, above=2, share=0.2, n=500)
    other = LibraryFinder(library_of(tmp_path / "other", SPECS, settles=settles), ENCODER)
    assert find(other, "x", png_of(RED)).settles == settles


RICH: list[Spec] = [*SPECS, ("cat-2", True, "my cat sleeps all day", png_of(BLUE, BLUE))]
MARKS: dict[str, dict[str, Any]] = {
    "cat": {"source": "one", "split": "train", "language": "en", "added": datetime(2025, 1, 1, tzinfo=UTC)},
    "dog": {"source": "one", "split": "val", "language": "de", "added": datetime(2025, 6, 1, tzinfo=UTC)},
    "pill": {"source": "two", "namespace": "shop", "policy": "p1", "verified": True},
}


def marked(path):
    """Returns a finder over the memes marked as in MARKS; of the last two, one was added live and one relabelled."""
    plain = library_of(path / "plain", RICH)
    memes = [meme.model_copy(update=MARKS.get(meme.id, {})) for meme in plain.memes]
    library = Library.create(
        path / "library",
        name="n",
        encoder=ENCODER.identity,
        memes=memes[:-1],
        rows=np.array(plain.rows[:-1]),
        tuning=plain.manifest.tuning,
        pictures=plain.pictures,
    )
    writer = LibraryWriter(library)
    writer.add(memes[-1], plain.rows[-1], None, who="ada", why="new")
    writer.relabel("text-only", Label.NOT_HARMFUL, who="ada", why="seen")
    return LibraryFinder(writer.library, ENCODER)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (Filter(), {"cat", "dog", "pill", "text-only", "picture-only", "cat-2"}),
        (Filter(sources=("one",)), {"cat", "dog"}),
        (Filter(sources=("one", "two")), {"cat", "dog", "pill"}),
        (Filter(sources=("one",), splits=("val", "test")), {"dog"}),
        (Filter(namespaces=("shop",)), {"pill"}),
        (Filter(languages=("en",)), {"cat"}),
        (Filter(policies=("p1",)), {"pill"}),
        # A label counts from the day on which a person confirmed it.
        (Filter(since=datetime(2025, 3, 1, tzinfo=UTC)), {"dog", "cat-2", "text-only"}),
        (Filter(since=datetime(2025, 1, 1, tzinfo=UTC), until=datetime(2025, 6, 1, tzinfo=UTC)), {"cat"}),
        (Filter(verified=True), {"pill", "text-only"}),
        (Filter(sources=("nowhere",)), set()),
    ],
)
def test_search_finds_only_precedents_that_pass_the_filter(tmp_path, where, ids):
    finder = marked(tmp_path)
    for _ in range(2):  # the second search uses the cached filter
        findings = find(finder, "my cat sleeps all day", png_of(RED, GREEN), where=where, tally=10)
        assert {entry.id for entry in findings.tally} == ids
        assert {one.id for one in (findings.nearest_harmful, findings.nearest_benign) if one} <= ids
    assert len(ids) == 6 or f"Only {len(ids)} of 6 precedents were searched, as was asked for." in findings.notes
    finder.close()


def test_filter_by_a_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        Filter(since=datetime(2025, 1, 1))  # noqa: DTZ001 - that is what is refused


def test_the_meme_itself_and_near_duplicates_can_be_left_out(tmp_path):
    similar_png = png_of((250, 5, 5), (5, 240, 15))
    specs = [
        *RICH,
        ("near", True, "my cat sleeps all day long", similar_png),
        ("other", True, "quite another thing", similar_png),
    ]
    finder = LibraryFinder(library_of(tmp_path, specs), ENCODER)
    findings = find(finder, "my cat sleeps all day", png_of(RED, GREEN), leave_out_duplicates=True, tally=10)
    # Left out: the meme itself, its text on another picture, and one similar in both halves. One half isn't enough.
    remaining = {entry.id for entry in findings.tally}
    assert remaining == {"dog", "pill", "text-only", "picture-only", "other"}
    assert findings.nearest_benign is not None and findings.nearest_benign.id in remaining
    assert "3 precedents were left out as the same meme or nearly the same." in findings.notes
    bare = find(finder, "", png_of(RED, GREEN), leave_out_duplicates=True, tally=10)
    assert "cat" not in {entry.id for entry in bare.tally}
    finder.close()


def test_changed_library_finds_the_same_as_one_written_in_full(tmp_path):
    changed = marked(tmp_path).searched
    memes = [meme.model_copy(update={"kept": None}) for meme in changed.memes]
    whole = Library.create(
        tmp_path / "whole",
        name="n",
        encoder=ENCODER.identity,
        memes=memes,
        rows=changed.rows,
        tuning=changed.manifest.tuning,
    )
    for text in ("my cat sleeps", "throw away", "pills", ""):
        for png in (png_of(RED, GREEN), png_of(BLUE), None):
            for where in (None, Filter(sources=("one", "s"))):
                one, other = (
                    find(LibraryFinder(library, ENCODER), text, png, where=where) for library in (changed, whole)
                )
                assert one.model_copy(update={"library": other.library}) == other


def test_after_a_replacement_a_picture_comes_from_the_library_it_was_found_in(tmp_path):
    red, blue = ("a", True, "same words", png_of(RED)), ("a", True, "same words", png_of(BLUE))
    old, new = library_of(tmp_path / "old", [red]), library_of(tmp_path / "new", [blue])
    finder = LibraryFinder(old, ENCODER)
    shown = pictures(finder, "a")[0]
    find(finder, "same words")
    finder.swap(new)
    assert pictures(finder, "a") == [shown]
    # The id was now found in both libraries, so it is ambiguous.
    find(finder, "same words")
    assert pictures(finder, "a") == [None]
    fresh = LibraryFinder(old, ENCODER)
    fresh.swap(new)
    assert pictures(fresh, "a") not in ([shown], [None])


async def test_follower_searches_new_generations_and_keeps_the_old_if_the_new_is_damaged(tmp_path):
    library = library_of(tmp_path, SPECS)
    finder, writer, messages = LibraryFinder(library, ENCODER), LibraryWriter(library), []
    extra = library.memes[0].model_copy(update={"id": "extra", "kept": None})

    task = asyncio.create_task(follow(finder, messages.append, every_s=0.005))
    await asyncio.to_thread(writer.add, extra, library.rows[0], None, who="ada", why="new")
    await until(lambda: "extra" in finder.ids)
    await asyncio.to_thread(writer.compact)
    await until(lambda: finder.searched.generation == "000002")
    digest = finder.library.digest
    current, new = tmp_path / "CURRENT", tmp_path / "CURRENT.new"
    good = current.read_bytes()
    # Replaced as a writer does: the follower could otherwise read it half written, or take two writes for one.
    new.write_bytes(good.replace(b"sha256:", b"sha255:"))
    new.replace(current)
    await until(lambda: "searched on" in messages[-1])
    count = len(messages)
    await asyncio.sleep(0.05)
    assert len(messages) == count and finder.library.digest == digest
    new.write_bytes(good)
    new.replace(current)
    await asyncio.to_thread(writer.remove, "extra", who="ada", why="old")
    await until(lambda: "extra" not in finder.ids)
    assert not task.done()
    task.cancel()
    finder.close()
    assert messages[0] == "The precedent library was changed: 6 memes are searched now."
