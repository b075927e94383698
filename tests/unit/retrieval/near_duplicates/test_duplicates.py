"""Near-duplicate detection: hashes of normalised pictures, exact radius search, and the criteria for a match."""

import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from court.errors import NotLoaded
from retrieval.near_duplicates.comparer import PdqIndex
from retrieval.near_duplicates.match import (
    Agreement,
    MatchThresholds,
    MemeText,
    agreement_of,
    fingerprint,
    fingerprint_pixels,
    pictures_match,
)
from retrieval.near_duplicates.pdq import Position, distance, hashes_of, turned
from retrieval.near_duplicates.tiles import Tolerance, tiles_match
from tests.support.drawn_memes import CAPTIONS, COPIES, Caption, captioned_meme
from tests.support.pictures import decode, encode, exif, read_pictures

PHOTO = "chelsea.png"
CAPTION = Caption("My aunt told me", "Blueland", "bring soup to the neighbours", "in spring")
TEXT = CAPTION.words()


def pixels(picture):
    return np.asarray(picture.convert("RGB"))


def print_of(*pictures):
    return fingerprint_pixels([pixels(picture) for picture in pictures])


def bits(one, other):
    return distance(hashes_of(pixels(one))[0][0], hashes_of(pixels(other))[0][0])


@pytest.fixture(scope="module")
def meme():
    return captioned_meme(PHOTO, CAPTION)


# Hashes of normalised pictures.


async def test_copies_in_other_colour_modes_match_after_normalisation(meme):
    sideways = meme.transpose(Image.Transpose.ROTATE_90)
    tagged = encode(sideways, "JPEG", quality=90, exif=exif(6))
    palette = meme.convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    files = [encode(meme, "PNG"), encode(meme.convert("CMYK"), "JPEG", quality=90), encode(palette, "PNG"), tagged]
    upright, *copies = [decode(picture.frames[0].png) for picture in await read_pictures(*files)]
    assert [copy.size for copy in copies] == [meme.size] * 3
    assert all(bits(upright, copy) <= 4 for copy in copies)
    # Without normalisation they are different pictures.
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
def test_pdq_is_robust_to_mild_edits(edit, meme):
    assert bits(meme, COPIES[edit](meme)) <= 31


@pytest.mark.parametrize("edit", ["cropped by 2 % a side", "white border", "black bar above", "mirrored"])
def test_pdq_alone_misses_geometric_edits(edit, meme):
    assert bits(meme, COPIES[edit](meme)) > 31


@pytest.mark.parametrize("edit", ["white border", "black bar above", "mirrored", "turned by 90 degrees"])
def test_borders_mirroring_and_rotation_are_detected(edit, meme):
    (known,), (new,) = print_of(meme), print_of(COPIES[edit](meme))
    assert min(distance(known[0].hash, mark) for view in new for mark in view.hashes) <= 31


@pytest.mark.parametrize("position", Position)
def test_eight_hashes_equal_those_of_transformed_pictures(position, meme):
    marks, _ = hashes_of(pixels(meme))
    at_place = marks[list(Position).index(position)]
    again, _ = hashes_of(turned(pixels(meme), position))
    assert distance(at_place, again[0]) <= 31
    assert all(distance(at_place, other) > 80 for other in np.delete(marks, list(Position).index(position), axis=0))


def test_picture_with_too_little_detail_has_no_hash():
    plain = Image.new("RGB", (400, 300), "white")
    _, quality = hashes_of(pixels(plain))
    assert quality < 50
    plain_print = print_of(plain)
    assert plain_print == ((),)
    assert not pictures_match(plain_print, plain_print)


def test_missing_pdqhash_error_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pdqhash", None)
    with pytest.raises(NotLoaded, match="pip install") as caught:
        hashes_of(np.zeros((64, 64, 3), np.uint8))
    assert caught.value.reason == "PDQ_MISSING"


# The index.

hashes = st.lists(st.binary(min_size=32, max_size=32), max_size=12).map(
    lambda found: np.array([list(each) for each in found], dtype=np.uint8).reshape(-1, 32)
)


def brute_force(marks, rows, queries, radius):
    found = {}
    for each, row in zip(marks, rows, strict=True):
        bits = min((int(np.unpackbits(each ^ query).sum()) for query in queries), default=257)
        if bits <= radius:
            found[row] = min(bits, found.get(row, bits))
    return found


@given(blocks=st.lists(hashes, max_size=6), seed=st.integers(0, 2**32 - 1), radius=st.integers(0, 256))
def test_index_matches_brute_force(blocks, seed, radius):
    rng = np.random.default_rng(seed)
    index, marks, rows = PdqIndex(np.empty((0, 32), np.uint8), []), np.empty((0, 32), np.uint8), []
    for block in blocks:
        more = rng.integers(0, 9, len(block)).tolist()
        index, marks, rows = index.with_more(block, more), np.concatenate([marks, block]), rows + more
    assert len(index) == len(marks)
    queries = [rng.integers(0, 256, 32, dtype=np.uint8)]
    for mark in marks[:3]:
        queries.append(mark)
        for bits in (radius, min(radius + 1, 256)):  # the last that is found, and the first that is not
            flipped = np.unpackbits(mark)
            flipped[rng.choice(256, bits, replace=False)] ^= 1
            queries.append(np.packbits(flipped))
    for some in ([], queries[:1], queries):
        assert index.within(np.array(some, np.uint8).reshape(-1, 32), radius) == brute_force(marks, rows, some, radius)


def test_index_is_immutable_and_merges_its_blocks():
    rng = np.random.default_rng(0)
    marks = rng.integers(0, 256, (40, 32), dtype=np.uint8)
    index = PdqIndex(marks[:3], [0, 1, 2])
    olds = []
    for row in range(3, 40):
        olds.append((index, len(index)))
        index = index.with_more(marks[row : row + 1], [row])
    assert all(len(old) == n for old, n in olds)
    assert olds[0][0].within(marks[20:21], 0) == {} and index.within(marks[20:21], 0) == {20: 0}
    assert len(index._blocks) <= 7  # blocks are merged; otherwise each search would visit forty


def test_malformed_hashes_are_refused():
    index = PdqIndex(np.zeros((1, 32), np.uint8), [0])
    with pytest.raises(ValueError, match="uint8 of shape"):
        index.within(np.zeros(32, np.uint8), 31)
    with pytest.raises(ValueError, match="radius"):
        index.within(np.zeros((1, 32), np.uint8), 257)
    with pytest.raises(ValueError, match="2 rows need"):
        PdqIndex(np.zeros((1, 32), np.uint8), [0, 1])
    with pytest.raises(ValueError, match="1 rows need"):
        index.with_more(np.zeros((1, 32), np.int64), [0])


# Tiles.


@pytest.mark.parametrize("base", [PHOTO, "screen:0", "cat:1"])
@pytest.mark.parametrize("bar", [False, True])
def test_tiles_distinguish_a_single_word(base, bar):
    caption = Caption("My aunt told me", "Blueland", "bring soup to the neighbours", "in spring", bar)
    known = captioned_meme(base, caption)
    other = Caption("My aunt told me", "Blueland", "bring soap to the neighbours", "in spring", bar)
    changed = captioned_meme(base, other)
    for edit in ("the same", "JPEG, quality 40", "half the size", "grey"):
        assert tiles_match(pixels(known), pixels(COPIES[edit](known)))
        assert not tiles_match(pixels(known), pixels(COPIES[edit](changed)))
        # Because of a tile, and of nothing else.
        assert tiles_match(pixels(known), pixels(COPIES[edit](changed)), Tolerance(tile=255))


def test_too_small_blurred_or_cropped_pictures_do_not_match(meme):
    below = meme.crop((0, meme.height // 8, meme.width, meme.height))
    blurred, lenient = meme.filter(ImageFilter.GaussianBlur(6)), {"tile": 255, "blur": 99}
    for other, excused in (
        (meme.resize((150, 100)), None),
        (blurred, Tolerance(**lenient)),
        (below, Tolerance(**lenient, cut=0.2)),
    ):
        for one, two in ((meme, other), (other, meme)):
            assert not tiles_match(pixels(one), pixels(two))
            assert tiles_match(pixels(one), pixels(two), excused or Tolerance(**lenient, cut=1)) is bool(excused)


def test_pictures_without_features_cannot_be_aligned():
    blank = np.full((300, 400, 3), 200, np.uint8)
    assert not tiles_match(blank, blank)
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    assert not tiles_match(noise, noise[::-1])


def test_word_in_the_border_is_not_trimmed(meme):
    framed = ImageOps.expand(meme, 60, "white")
    with_word = framed.copy()
    ImageDraw.Draw(with_word).text((300, 15), "no", fill="black")
    assert len(print_of(framed)[0]) > len(print_of(with_word)[0])
    assert pictures_match(print_of(meme), print_of(framed))
    assert not pictures_match(print_of(meme), print_of(with_word), MatchThresholds(radius=256))
    assert not pictures_match(print_of(framed), print_of(with_word))


# Texts.


@pytest.mark.parametrize(
    ("one", "other", "agree_given", "agree_read"),
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
def test_texts_read_from_pictures_may_have_misread_letters(one, other, agree_given, agree_read):
    assert (agreement_of(MemeText(one, False), MemeText(other, False)) is not Agreement.OTHER) is agree_given
    for pair in ((True, False), (False, True), (True, True)):
        for a, b in ((one, other), (other, one)):
            assert (agreement_of(MemeText(a, pair[0]), MemeText(b, pair[1])) is not Agreement.OTHER) is agree_read


@given(a=st.text("ab", max_size=8), b=st.text("ab", max_size=8), misread=st.sampled_from([0.0, 0.2, 0.5, 0.9]))
def test_misread_letters_are_counted_by_levenshtein_distance(a, b, misread):
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i, j in np.ndindex(len(a), len(b)):
        table[i + 1, j + 1] = min(table[i, j] + (a[i] != b[j]), table[i, j + 1] + 1, table[i + 1, j] + 1)
    agreement = agreement_of(MemeText(a, True), MemeText(b, False), misread)
    assert (agreement is Agreement.OTHER) == (table[-1, -1] > int(misread * max(len(a), len(b))))


def test_ligature_counts_as_all_its_letters():
    """300 of them are 5,400 letters: with a limit by characters alone, a comparison would take minutes."""
    phrase = "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}"
    assert agreement_of(MemeText(phrase * 20 + "a", True), MemeText(phrase * 20 + "b", True)) is Agreement.MISREAD
    assert agreement_of(MemeText(phrase * 300 + "a", True), MemeText(phrase * 300 + "b", True)) is Agreement.OTHER


def test_misread_texts_are_distinguished_from_equal_ones():
    read = MemeText("People from Blueland bring soup to the neighbours", True)
    assert agreement_of(read, MemeText("people from B1ueland bring soup, to the neighbours", True)) is Agreement.SAME
    assert agreement_of(read, MemeText("people from Blueland bring soap to the neighbours", True)) is Agreement.MISREAD
    assert agreement_of(read, MemeText("people from Redhill bring soup to the neighbours", True)) is Agreement.OTHER


def test_possibly_misread_text_needs_a_closer_picture_match(meme):
    known = print_of(meme)
    edited = [print_of(ImageEnhance.Brightness(meme).enhance(by)) for by in np.arange(1.1, 1.6, 0.05)]
    tight = MatchThresholds(tiles=MatchThresholds().tiles_if_misread)
    new = next(e for e in edited if pictures_match(known, e) and not pictures_match(known, e, tight))
    assert not pictures_match(known, new, agreement=Agreement.MISREAD)


# Whole memes.


def test_edited_copies_match_and_other_pictures_do_not(meme):
    known = print_of(meme)
    for edit in ("the same", "JPEG, quality 40", "grey", "mirrored", "turned by 90 degrees", "white border"):
        assert pictures_match(known, print_of(COPIES[edit](meme)))
    for photo in ("rocket.jpg", "coffee.png"):
        assert not pictures_match(known, print_of(captioned_meme(photo, CAPTION)))


@pytest.mark.parametrize("change", CAPTIONS)
def test_changed_caption_differs_in_text_and_picture(change, meme):
    text = CAPTIONS[change](CAPTION, random.Random(0))
    other = captioned_meme(PHOTO, Caption("", "", "", "", text=text or " "))
    assert agreement_of(MemeText(TEXT, False), MemeText(text, False)) is Agreement.OTHER
    # Sending the known text with it does not help the caller.
    assert not pictures_match(print_of(meme), print_of(other))


def test_every_frame_must_match(meme):
    second = COPIES["mirrored"](captioned_meme("rocket.jpg", CAPTION))
    both = print_of(meme, second)
    assert pictures_match(both, print_of(meme, second))
    # The last is turned otherwise than the first frame.
    for other in ((meme,), (meme, meme), (meme, COPIES["mirrored"](second))):
        assert not pictures_match(both, print_of(*other))


async def test_fingerprint_of_decoded_frames_equals_that_of_pixels(meme):
    (picture,) = await read_pictures(encode(meme, "PNG"))
    ((view, *_),), ((same, *_),) = fingerprint([picture.frames[0].png]), print_of(meme)
    assert np.array_equal(view.hashes, same.hashes)


def test_invalid_thresholds_and_empty_memes_are_refused():
    with pytest.raises(ValueError, match="radius"):
        MatchThresholds(radius=257)
    with pytest.raises(ValueError, match="misread"):
        MatchThresholds(misread=1.0)
    with pytest.raises(ValueError, match="at least one frame"):
        fingerprint_pixels([])
