"""The picture descriptor, and detection of borders and caption bars."""

import io
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps

from eval.synthetic.scenes import SCENES, draw_meme
from retrieval.borders import boxes, peeled
from retrieval.embed.descriptor import DIM, describe
from retrieval.text import normalise_text, text_key


def test_descriptor_is_a_unit_vector_for_any_size_and_colour():
    random = np.random.default_rng(0)
    for size in [(1, 1), (1, 2), (3, 900), (900, 3), (15, 15), (16, 16), (17, 700), (1280, 1280)]:
        noise = Image.fromarray(random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        for picture in (noise, *(Image.new("RGB", size, colour) for colour in ("black", "white", "red", "grey"))):
            vector = describe(picture)
            assert vector.shape == (DIM,) and vector.dtype == np.float32
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
            assert np.array_equal(vector, describe(picture.copy()))


def jpeg(picture):
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=60)
    return Image.open(out).convert("RGB")


@pytest.mark.parametrize("scene", SCENES)
def test_similarity_falls_from_copies_to_other_captions_to_other_scenes(scene):
    picture = draw_meme(scene, "when the lights go out\nnobody moves")
    vector = describe(picture)
    for copy in (
        jpeg(picture),
        picture.resize((320, 240)),
        picture.resize((1280, 960)),
        ImageOps.expand(picture, border=30, fill="white"),
        ImageOps.expand(picture, border=(0, 60, 0, 0), fill="black"),
    ):
        assert vector @ describe(copy) > 0.8
    assert vector @ describe(draw_meme(scene, "another caption of about this length")) > 0.6
    others = [describe(draw_meme(other, "when the lights go out\nnobody moves")) for other in SCENES if other != scene]
    assert max(float(vector @ other) for other in others) < 0.6


def test_borders_and_caption_bars_are_found():
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    bare = Image.fromarray(noise)
    assert boxes(np.asarray(bare, np.int16)) == ((0, 0, 100, 100), (0, 0, 100, 100))
    framed = ImageOps.expand(bare, border=(10, 20, 5, 0), fill="navy")
    assert boxes(np.asarray(framed, np.int16))[0] == (10, 20, 110, 120)
    barred = ImageOps.expand(bare, border=(0, 40, 0, 0), fill="white")
    ImageDraw.Draw(barred).text((10, 12), "a caption", fill="black")
    outer, inner = boxes(np.asarray(barred, np.int16))
    assert outer[1] <= 20 and inner == (0, 40, 100, 140)


SIDES = st.one_of(st.integers(1, 8), st.sampled_from([12, 13, 900]))


@given(SIDES, SIDES, st.booleans())
def test_borders_lie_within_pictures_of_any_size(width, height, plain):
    levels = np.random.default_rng(0).integers(0, 1 if plain else 256, (height, width, 3)).astype(np.int16)
    box = (0, 0, width, height)
    for _ in range(3):
        x0, y0, x1, y1 = box = peeled(levels, box)
        assert 0 <= x0 <= x1 <= width and 0 <= y0 <= y1 <= height
    assert not plain or box == (0, 0, width, height)  # a plain picture has no border


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Two\n words ", "two words"),
        ("see https://example.org/a?b=c now", "see now"),
        ("see WWW.Example.ORG now", "see now"),
        ("laugh made with imgflip.com", "laugh"),
        ("laugh memes.example.co.uk/page", "laugh"),
        ("laugh quickmeme . com", "laugh"),
        ("by @some_body and friends", "by and friends"),
        ("from r/jokes", "from"),
        ("write to me@work today", "write to me@work today"),
        ("what???? no!!!", "what? no!"),
        ("“it’s”", '"it\'s"'),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER A}bc", "abc"),
        ("at 3.5 percent", "at 3.5 percent"),
        ("end.Next sentence", "end.next sentence"),
        ("@only_a_handle", "@only_a_handle"),
        ("", ""),
        (" \n\t", ""),
    ],
)
def test_normalised_text(text, expected):
    assert normalise_text(text) == expected


@given(st.text(max_size=200))
def test_normalising_never_empties_a_text_and_ignores_case_and_spacing(text):
    normal = normalise_text(text)
    assert bool(normal) == bool(text_key(text))
    assert normal == " ".join(normal.split())
    assert text_key(f" {text}\n") == text_key(text)


@pytest.mark.parametrize("piece", ["a", "a-", "a.", "@ ", ". ", "www ", "made with ", "made ", "ab.", "- ", "_", "/r/"])
def test_normalising_repetitive_text_is_fast(piece):
    began = time.process_time()
    normalise_text(piece * (10_000 // len(piece)))
    assert time.process_time() - began < 1
