"""Known memes: hashes of normalised pictures, exact search by radius, and what counts as the same."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import NotLoaded
from retrieval.near_duplicates.match import (
    Agreement,
    Difference,
    Fingerprint,
    MatchThresholds,
    MemeText,
    agreement_of,
    fingerprint,
    fingerprint_pixels,
    pictures_differ,
)
from retrieval.near_duplicates.pdq import Position, distance, hashes_of, turned
from retrieval.near_duplicates.pdq_index import PdqIndex
from retrieval.near_duplicates.tiles import TileOutcome, Tolerance, compare
from tests.support.drawn_memes import CAPTIONS, COPIES, Caption, drawn
from tests.support.pictures import decode, encode, exif

PHOTO = "chelsea.png"
CAPTION = Caption("My aunt told me", "Blueland", "bring soup to the neighbours", "in spring")
TEXT = CAPTION.words()


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"))


def look(picture: Image.Image, text: str = TEXT, *, read: bool = False) -> Fingerprint:
    return fingerprint_pixels([pixels(picture)], MemeText(text, read))


def bits(one: Image.Image, other: Image.Image) -> int:
    return distance(hashes_of(pixels(one))[0][0], hashes_of(pixels(other))[0][0])


@pytest.fixture(scope="module")
def meme() -> Image.Image:
    return drawn(PHOTO, CAPTION)


# Hashes of what the court normalised


@pytest.fixture(scope="module")
def read() -> Callable[..., list[Image.Image]]:
    """Decodes files as the court does."""

    def all_of(*files: bytes) -> list[Image.Image]:
        async def run() -> list[Image.Image]:
            reader = GuardedPictureReader()
            try:
                pictures = [await reader.read(file) for file in files]
            finally:
                await reader.aclose()
            return [decode(picture.frames[0].png) for picture in pictures]

        return asyncio.run(run())

    return all_of


def test_copies_in_other_modes_are_alike_once_they_are_normalised(meme, read):
    sideways = meme.transpose(Image.Transpose.ROTATE_90)
    tagged = encode(sideways, "JPEG", quality=90, exif=exif(6))
    palette = meme.convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    files = [
        encode(meme, "PNG"),
        encode(meme.convert("CMYK"), "JPEG", quality=90),
        encode(palette, "PNG"),
        tagged,
    ]
    upright, *copies = read(*files)
    assert [copy.size for copy in copies] == [meme.size] * 3
    assert all(bits(upright, copy) <= 4 for copy in copies)
    # As they come out of a decoder they are other pictures.
    raw = [
        np.asarray(decode(files[1]))[..., :3],
        np.repeat(np.asarray(decode(files[2]))[..., None], 3, axis=2),
        np.asarray(decode(files[3])),
    ]
    upright_hash = hashes_of(pixels(upright))[0][0]
    assert all(distance(upright_hash, hashes_of(each)[0][0]) > 80 for each in raw)


@pytest.mark.parametrize(
    "edit", ["JPEG, quality 70", "JPEG, quality 40", "half the size", "half as large again", "blurred", "grey"]
)
def test_pdq_hardly_moves_under(edit, meme):
    assert bits(meme, COPIES[edit](meme)) <= 31


@pytest.mark.parametrize("edit", ["cropped by 2 % a side", "white border", "black bar above", "mirrored"])
def test_pdq_alone_loses(edit, meme):
    assert bits(meme, COPIES[edit](meme)) > 31


@pytest.mark.parametrize("edit", ["white border", "black bar above", "mirrored", "turned by 90 degrees"])
def test_borders_and_turns_are_seen_through(edit, meme):
    known, new = look(meme), look(COPIES[edit](meme))
    assert min(distance(known.frames[0][0].hash, mark) for view in new.frames[0] for mark in view.hashes) <= 31


@pytest.mark.parametrize("position", Position)
def test_the_eight_hashes_are_those_of_the_turned_pictures(position, meme):
    marks, _ = hashes_of(pixels(meme))
    at_place = marks[list(Position).index(position)]
    again, _ = hashes_of(turned(pixels(meme), position))
    assert distance(at_place, again[0]) <= 31
    assert all(distance(at_place, other) > 80 for other in np.delete(marks, list(Position).index(position), axis=0))


def test_a_picture_with_too_little_in_it_has_no_hash():
    plain = Image.new("RGB", (400, 300), "white")
    _, quality = hashes_of(pixels(plain))
    assert quality < 50
    nothing = look(plain)
    assert nothing.frames == ((),)
    assert pictures_differ(nothing, nothing) is Difference.FRAMES_DIFFER


def test_without_pdqhash_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pdqhash", None)
    with pytest.raises(NotLoaded, match="pip install") as told:
        hashes_of(np.zeros((64, 64, 3), np.uint8))
    assert told.value.reason == "PDQ_MISSING"


# The index

hashes = st.lists(st.binary(min_size=32, max_size=32), max_size=12).map(
    lambda found: np.array([list(each) for each in found], dtype=np.uint8).reshape(-1, 32)
)


def brute_force(marks, rows, queries, radius):
    near = {}
    for each, row in zip(marks, rows, strict=True):
        bits = min((int(np.unpackbits(each ^ query).sum()) for query in queries), default=257)
        if bits <= radius:
            near[row] = min(bits, near.get(row, bits))
    return near


@settings(deadline=None)
@given(blocks=st.lists(hashes, max_size=6), seed=st.integers(0, 2**32 - 1), radius=st.integers(0, 256))
def test_the_index_finds_what_brute_force_finds(blocks, seed, radius):
    rng = np.random.default_rng(seed)
    index, marks, rows = PdqIndex(np.empty((0, 32), np.uint8), []), np.empty((0, 32), np.uint8), []
    for block in blocks:
        more = rng.integers(0, 9, len(block)).tolist()
        index, marks, rows = index.with_more(block, more), np.concatenate([marks, block]), rows + more
    assert len(index) == len(marks)
    queries = [rng.integers(0, 256, 32, dtype=np.uint8)]
    for mark in marks[:3]:
        flipped = np.unpackbits(mark)
        flipped[rng.choice(256, min(radius, 40), replace=False)] ^= 1
        queries += [mark, np.packbits(flipped)]
    for some in ([], queries[:1], queries):
        assert index.within(np.array(some, np.uint8).reshape(-1, 32), radius) == brute_force(marks, rows, some, radius)


def test_the_radius_counts_itself_in():
    mark = np.zeros((1, 32), np.uint8)
    at = {n: np.packbits(np.arange(256) < n) for n in (0, 30, 31, 32, 256)}
    index = PdqIndex(np.stack(list(at.values())), list(at))
    assert index.within(mark, 31) == {0: 0, 30: 30, 31: 31}
    assert index.within(mark, 0) == {0: 0}
    assert len(index.within(mark, 256)) == 5


def test_an_index_does_not_change_when_another_is_made_of_it():
    rng = np.random.default_rng(0)
    marks = rng.integers(0, 256, (40, 32), dtype=np.uint8)
    index = PdqIndex(marks[:3], [0, 1, 2])
    olds = []
    for row in range(3, 40):
        olds.append((index, len(index)))
        index = index.with_more(marks[row : row + 1], [row])
    assert all(len(old) == n for old, n in olds)
    assert olds[0][0].within(marks[20:21], 0) == {} and index.within(marks[20:21], 0) == {20: 0}
    assert len(index._blocks) <= 7  # merged as it grows, or each search would ask forty


def test_what_is_no_hash_is_refused():
    index = PdqIndex(np.zeros((1, 32), np.uint8), [0])
    with pytest.raises(ValueError, match="uint8 of shape"):
        index.within(np.zeros(32, np.uint8), 31)
    with pytest.raises(ValueError, match="radius"):
        index.within(np.zeros((1, 32), np.uint8), 257)
    with pytest.raises(ValueError, match="2 rows need"):
        PdqIndex(np.zeros((1, 32), np.uint8), [0, 1])
    with pytest.raises(ValueError, match="1 rows need"):
        index.with_more(np.zeros((1, 32), np.int64), [0])


# Tiles


@pytest.mark.parametrize("base", [PHOTO, "screen:0", "cat:1"])
@pytest.mark.parametrize("bar", [False, True])
def test_tiles_tell_one_word_from_another(base, bar):
    caption = Caption("My aunt told me", "Blueland", "bring soup to the neighbours", "in spring", bar)
    known = drawn(base, caption)
    other = Caption("My aunt told me", "Blueland", "bring soap to the neighbours", "in spring", bar)
    changed = drawn(base, other)
    for edit in ("the same", "JPEG, quality 40", "half the size", "grey"):
        assert compare(pixels(known), pixels(COPIES[edit](known))).outcome is TileOutcome.SAME
        found = compare(pixels(known), pixels(COPIES[edit](changed)))
        assert found.outcome is TileOutcome.TILE_DIFFERS and found.worst > Tolerance().tile
        assert found == compare(pixels(known), pixels(COPIES[edit](changed)))


def test_what_is_too_small_or_blurred_to_be_read_is_not_the_same(meme):
    small = meme.resize((150, 100))
    assert compare(pixels(meme), pixels(small)).outcome is TileOutcome.TOO_SMALL
    assert compare(pixels(meme), pixels(meme.filter(ImageFilter.GaussianBlur(6)))).outcome in (
        TileOutcome.TOO_SMALL,
        TileOutcome.TILE_DIFFERS,
    )


def test_a_caption_that_is_cut_off_is_missed(meme):
    below = meme.crop((0, meme.height // 8, meme.width, meme.height))
    assert compare(pixels(meme), pixels(below)).outcome is TileOutcome.CUT_OFF
    assert compare(pixels(below), pixels(meme)).outcome is TileOutcome.CUT_OFF


def test_what_has_nothing_to_hold_on_to_can_t_be_laid():
    blank = np.full((300, 400, 3), 200, np.uint8)
    assert compare(blank, blank).outcome is TileOutcome.CANT_BE_LAID
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    assert compare(noise, noise[::-1]).outcome is not TileOutcome.SAME


def test_a_word_in_the_border_is_not_trimmed_away(meme):
    framed = ImageOps.expand(meme, 60, "white")
    with_word = framed.copy()
    ImageDraw.Draw(with_word).text((300, 15), "no", fill="black")
    assert len(look(framed).frames[0]) > len(look(with_word).frames[0])
    assert pictures_differ(look(meme), look(framed)) is None
    assert pictures_differ(look(meme), look(with_word), MatchThresholds(radius=256)) is not None
    assert pictures_differ(look(framed), look(with_word)) is Difference.TILE_DIFFERS


# Texts


@pytest.mark.parametrize(
    ("one", "other", "given", "read"),
    [
        ("Bring soup", "bring  SOUP ", True, True),
        ("", "", True, True),
        ("People from Blueland bring soup", "People from B1ueland brlng soup", False, True),
        ("People from Blueland bring soup", "Peoplefrom Blueland bring soup.", False, True),
        ("People from Blueland bring soup", "People from Redhill bring soup", False, False),
        ("Bring soup", "Bring soap", False, False),
        ("soup", "", False, False),
        ("we do like them", "we do not like them", False, False),
    ],
)
def test_texts_agree(one, other, given, read):
    assert (agreement_of(MemeText(one, False), MemeText(other, False)) is not Agreement.OTHER) is given
    for pair in ((True, False), (False, True), (True, True)):
        for a, b in ((one, other), (other, one)):
            assert (agreement_of(MemeText(a, pair[0]), MemeText(b, pair[1])) is not Agreement.OTHER) is read


@settings(deadline=None)
@given(a=st.text("ab", max_size=8), b=st.text("ab", max_size=8), misread=st.sampled_from([0.0, 0.2, 0.5, 0.9]))
def test_misread_letters_are_counted_as_levenshtein_has_it(a, b, misread):
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i, j in np.ndindex(len(a), len(b)):
        table[i + 1, j + 1] = min(table[i, j] + (a[i] != b[j]), table[i, j + 1] + 1, table[i + 1, j] + 1)
    agreement = agreement_of(MemeText(a, True), MemeText(b, False), misread)
    assert (agreement is Agreement.OTHER) == (table[-1, -1] > int(misread * max(len(a), len(b))))


def test_one_character_that_stands_for_many_letters_counts_as_many():
    """Three hundred of them are 5,400 letters: by characters alone, they would be compared for minutes."""
    phrase = "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}"
    assert agreement_of(MemeText(phrase * 20 + "a", True), MemeText(phrase * 20 + "b", True)) is Agreement.MISREAD
    assert agreement_of(MemeText(phrase * 300 + "a", True), MemeText(phrase * 300 + "b", True)) is Agreement.OTHER


def test_what_may_be_misread_is_told_from_what_is_the_same():
    read = MemeText("People from Blueland bring soup to the neighbours", True)
    assert agreement_of(read, MemeText("people from B1ueland bring soup, to the neighbours", True)) is Agreement.SAME
    assert agreement_of(read, MemeText("people from Blueland bring soap to the neighbours", True)) is Agreement.MISREAD
    assert agreement_of(read, MemeText("people from Redhill bring soup to the neighbours", True)) is Agreement.OTHER


def test_a_text_that_may_be_misread_needs_a_closer_picture(meme):
    known = look(meme, read=True)
    edited = [look(ImageEnhance.Brightness(meme).enhance(by), read=True) for by in np.arange(1.1, 1.6, 0.05)]
    tight = MatchThresholds(tiles=MatchThresholds().tiles_if_misread)
    new = next(e for e in edited if not pictures_differ(known, e) and pictures_differ(known, e, tight))
    assert pictures_differ(known, new, agreement=Agreement.MISREAD) is Difference.TILE_DIFFERS


# Whole memes


def test_the_same_meme_is_known(meme):
    known = look(meme)
    for edit in ("the same", "JPEG, quality 40", "grey", "mirrored", "turned by 90 degrees", "white border"):
        assert pictures_differ(known, look(COPIES[edit](meme))) is None
    for photo in ("rocket.jpg", "coffee.png"):
        assert pictures_differ(known, look(drawn(photo, CAPTION))) is not None


@pytest.mark.parametrize("change", CAPTIONS)
def test_another_caption_is_another_text_and_another_picture(change, meme):
    text = CAPTIONS[change](CAPTION, random.Random(0))
    other = drawn(PHOTO, Caption("", "", "", "", text=text or " "))
    assert agreement_of(look(meme).words, look(other, text).words) is Agreement.OTHER
    # A caller who sends the known text with it gains nothing.
    assert pictures_differ(look(meme), look(other)) is Difference.TILE_DIFFERS


def test_every_frame_must_be_the_same(meme):
    second = COPIES["mirrored"](drawn("rocket.jpg", CAPTION))
    words = MemeText(TEXT, False)
    both = fingerprint_pixels([pixels(meme), pixels(second)], words)
    assert pictures_differ(both, fingerprint_pixels([pixels(meme), pixels(second)], words)) is None
    assert pictures_differ(both, look(meme)) is Difference.FRAMES_DIFFER
    assert pictures_differ(both, fingerprint_pixels([pixels(meme), pixels(meme)], words)) is Difference.FRAMES_DIFFER
    turned_apart = fingerprint_pixels([pixels(meme), pixels(COPIES["mirrored"](second))], words)
    assert pictures_differ(both, turned_apart) is Difference.FRAMES_DIFFER


def test_a_meme_of_the_court_s_own_is_looked_at(meme):
    async def run():
        reader = GuardedPictureReader()
        try:
            return await reader.read(encode(meme, "PNG"))
        finally:
            await reader.aclose()

    seen = fingerprint([frame.png for frame in asyncio.run(run()).frames], MemeText(TEXT, False))
    (view, *_), (same, *_) = seen.frames[0], look(meme).frames[0]
    assert np.array_equal(view.hashes, same.hashes)


def test_what_can_t_be_is_refused():
    with pytest.raises(ValueError, match="radius"):
        MatchThresholds(radius=257)
    with pytest.raises(ValueError, match="misread"):
        MatchThresholds(misread=1.0)
    with pytest.raises(ValueError, match="at least one frame"):
        fingerprint_pixels([], MemeText("", False))
