"""IM-2, IM-3 and IM-4 of security.md, and other requirements of the picture reader."""

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import signal
import struct
import tarfile
import zipfile
import zlib
from functools import partial
from gzip import compress
from io import BytesIO

import cv2
import numpy as np
import pytest
from PIL import Image, ImageChops, ImageCms, ImageDraw, ImageFont, ImageOps, ImageStat
from PIL.PngImagePlugin import PngInfo

from court.backends.pictures.normalise import as_png, pixels_sha256
from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadPicture, Unavailable
from court.meme import LIMITS, Limits, PictureFormat
from tests.support.pictures import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    animation,
    captioned,
    chunk,
    corners,
    decode,
    encode,
    exif,
    png,
    profile_with_swapped_primaries,
    quarters,
    read_with_retry,
    segment,
)
from tests.support.sizes import FULL

QUARTERS = [RED, GREEN, BLUE, WHITE]


RUNNER = asyncio.Runner()
READERS = {}


@pytest.fixture(scope="module", autouse=True)
def closed_readers():
    """Closes the readers of this module, one for each set of limits: a process takes longer to start than to read."""
    yield
    with RUNNER:
        while READERS:
            RUNNER.run(READERS.popitem()[1].aclose())


def read_all(files, limits=LIMITS):
    """Returns a picture or the error for each file."""

    async def whole():
        # Seconds of CPU time differ between machines: what a picture looks like does not depend on them.
        reader = READERS.get(limits) or READERS.setdefault(limits, GuardedPictureReader(limits, cpu_s=20))
        return [await outcome(reader, data) for data in files]

    return RUNNER.run(whole())


async def outcome(reader, data):
    try:
        return await reader.read(data)
    except BadPicture as refused:
        return refused


def read(data, limits=LIMITS):
    (result,) = read_all([data], limits)
    if isinstance(result, BadPicture):
        raise result
    return result


def refusal(data, limits=LIMITS):
    (result,) = read_all([data], limits)
    assert isinstance(result, BadPicture)
    return result


def shown(data, limits=LIMITS):
    return decode(read(data, limits).frames[0].png)


def close_to(colours, expected, most=0):
    return all(
        abs(a - b) <= most
        for one, other in zip(colours, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def grey(picture):
    return [tuple([round(0.299 * r + 0.587 * g + 0.114 * b)] * 3) for r, g, b in picture]


def turned(orientation):
    """Returns the quarters as stored, so that they are upright under an EXIF orientation."""
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # of Image.Transpose
    picture = quarters()
    return picture.transpose(Image.Transpose(undo[orientation])) if orientation in undo else picture


def mpo():
    return animation("MPO", [quarters(), quarters().transpose(Image.Transpose.ROTATE_180)], quality=95, subsampling=0)


def see_through():
    """Returns the quarters, the red one transparent and the green one half transparent."""
    picture = quarters().convert("RGBA")
    alpha = Image.new("L", picture.size, 255)
    alpha.paste(0, (0, 0, 32, 24))
    alpha.paste(128, (32, 0, 64, 24))
    picture.putalpha(alpha)
    return picture


GROUND = (144, 144, 144)  # background for a picture with both light and dark parts
HALF_GREEN = tuple(round(value * 128 / 255 + 144 * 127 / 255) for value in GREEN)
THROUGH = [GROUND, HALF_GREEN, BLUE, WHITE]
SWAPPED_THROUGH = [(48, 48, 48), (54, 104, 39), BLUE[::-1], WHITE]  # with red and blue swapped, no part is dark


def two_greys(see_through=b""):
    """Returns a PNG file of 16 bits, its upper half darker, with the level that is to be transparent."""
    rows = b"".join(b"\0" + struct.pack(">H", value) * 8 for value in (0x1234, 0x8000) for _ in range(4))
    return png(8, 8, 16, 0, rows, *([chunk(b"tRNS", see_through)] if see_through else []))


def with_chunk(added):
    """Returns a PNG file of the quarters with a chunk behind its header."""
    data = encode(quarters(), "PNG")
    return data[:33] + added + data[33:]


def lossless_webp(picture, **options):
    return encode(picture, "WEBP", lossless=True, exact=True, **options)


def palette_with_alpha():
    rows = b"".join(b"\0" + (bytes([0] * 4 + [1] * 4) if y < 4 else bytes([2] * 4 + [3] * 4)) for y in range(8))
    plte = chunk(b"PLTE", bytes(value for colour in QUARTERS for value in colour))
    return png(8, 8, 8, 3, rows, plte, chunk(b"tRNS", bytes([0, 128])))


def stills(mode="RGB"):
    return [Image.new("RGB", (40, 30), colour).convert(mode) for colour in (RED, GREEN, BLUE)]


def bad_icc():
    return [b"no profile", profile_with_swapped_primaries()[:200], random.Random(5).randbytes(3000)]


def sgrey(*values):
    return [(value, value, value) for value in values]


def accepted():
    """IM-2: name, file, expected colours of the four quarters of the first frame, and tolerance."""
    rgb = quarters()
    swapped = profile_with_swapped_primaries()
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    flat = {"quality": 95, "subsampling": 0}
    deep = bytes.fromhex("ff0080007fff")
    black_and_white = rgb.convert("L").point(lambda level: 255 * (level > 100)).convert("1")
    cases = [
        ("png rgb", encode(rgb, "PNG"), QUARTERS, 0),
        ("png rgba", encode(see_through(), "PNG"), THROUGH, 1),
        ("png l", encode(rgb.convert("L"), "PNG"), grey(QUARTERS), 1),
        ("png la", encode(see_through().convert("LA"), "PNG"), grey(THROUGH), 2),
        ("png p", encode(rgb.quantize(16), "PNG"), QUARTERS, 1),
        ("png p alpha", palette_with_alpha(), THROUGH, 1),
        ("png 1", encode(black_and_white, "PNG"), sgrey(0, 255, 0, 255), 0),
        ("png 16-bit grey", two_greys(), sgrey(0x12, 0x12, 0x80, 0x80), 1),
        ("png 16-bit grey, see-through", two_greys(b"\x12\x34"), sgrey(255, 255, 0x80, 0x80), 1),
        ("png 16-bit grey, other low byte", two_greys(b"\x12\x35"), sgrey(0x12, 0x12, 0x80, 0x80), 1),
        ("png 16-bit rgb", png(1, 1, 16, 2, b"\0" + deep), [(255, 128, 127)] * 4, 1),
        ("png 16-bit rgb, see-through", png(1, 1, 16, 2, b"\0" + deep, chunk(b"tRNS", deep)), [WHITE] * 4, 0),
        ("png 16-bit la", png(1, 1, 16, 4, b"\0" + bytes.fromhex("20000000")), [WHITE] * 4, 0),
        ("png 16-bit rgba", png(1, 1, 16, 6, b"\0" + bytes.fromhex("ff0080007fffffff")), [(255, 128, 127)] * 4, 1),
        (
            "png 2-bit grey, see-through",
            png(4, 1, 2, 0, b"\0" + bytes([0b01011010]), chunk(b"tRNS", b"\0\1")),
            [WHITE, sgrey(170)[0]] * 2,
            0,
        ),
        ("png 4-bit grey", png(2, 1, 4, 0, b"\0" + bytes([0x3C])), sgrey(0x33, 0xCC) * 2, 0),
        (
            "png rgb, see-through",
            png(2, 1, 8, 2, b"\0" + bytes([*RED, *BLUE]), chunk(b"tRNS", struct.pack(">3H", *RED))),
            [WHITE, BLUE] * 2,
            0,
        ),
        ("png 1 pixel", png(1, 1, 8, 2, b"\0" + bytes(RED)), [RED] * 4, 0),
        ("png broken text", with_chunk(chunk(b"zTXt", b"x\0\0not zlib")), QUARTERS, 0),
        ("png long text", with_chunk(chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(5 << 20)))), QUARTERS, 0),
        ("png vast profile", with_chunk(chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(50 << 20)))), QUARTERS, 0),
        ("png unknown chunk with a wrong sum", with_chunk(b"\0\0\0\1prVt\1abcd"), QUARTERS, 0),
        ("png trailing bytes", encode(rgb, "PNG") + b"<script>" * 500, QUARTERS, 0),
        ("jpeg rgb", encode(rgb, "JPEG", **flat), QUARTERS, 6),
        ("jpeg grey", encode(rgb.convert("L"), "JPEG", **flat), grey(QUARTERS), 4),
        ("jpeg cmyk", encode(rgb.convert("CMYK"), "JPEG", **flat), QUARTERS, 6),
        ("jpeg progressive", encode(rgb, "JPEG", progressive=True, **flat), QUARTERS, 6),
        ("jpeg 4:2:0", encode(rgb, "JPEG", quality=95), QUARTERS, 6),
        ("jpeg restart markers", encode(rgb, "JPEG", restart_marker_rows=1, **flat), QUARTERS, 6),
        ("jpeg comment", encode(rgb, "JPEG", comment=b"a comment" * 1000, **flat), QUARTERS, 6),
        ("jpeg trailing bytes", encode(rgb, "JPEG", **flat) + b"PK\3\4" * 1000, QUARTERS, 6),
        ("mpo", mpo(), QUARTERS, 6),
        ("gif", encode(rgb.quantize(8), "GIF"), QUARTERS, 1),
        ("gif grey", encode(rgb.convert("L"), "GIF"), grey(QUARTERS), 1),
        ("gif interlaced", encode(rgb.quantize(8), "GIF", interlace=1), QUARTERS, 1),
        ("gif without trailer", encode(rgb.quantize(8), "GIF")[:-1], QUARTERS, 1),
        ("gif trailing bytes", encode(rgb.quantize(8), "GIF") + b"%PDF-1.7" * 99, QUARTERS, 1),
        ("gif see-through", encode(palette_still(), "GIF", transparency=0), [GROUND, GREEN, BLUE, WHITE], 1),
        ("gif animated", animation("GIF", stills()), [RED] * 4, 1),
        ("webp lossless", lossless_webp(rgb), QUARTERS, 0),
        ("webp lossy", encode(rgb, "WEBP", quality=95), QUARTERS, 8),
        ("webp alpha", lossless_webp(see_through()), THROUGH, 1),
        ("webp animated", animation("WEBP", stills(), lossless=True), [RED] * 4, 0),
        ("webp trailing bytes", lossless_webp(rgb) + b"trailing" * 99, QUARTERS, 0),
        ("apng", animation("PNG", stills()), [RED] * 4, 0),
        ("apng default image", animation("PNG", stills(), default_image=True), [RED] * 4, 0),
        ("icc swapped, png", encode(rgb, "PNG", icc_profile=swapped), [c[::-1] for c in QUARTERS], 2),
        ("icc swapped, jpeg", encode(rgb, "JPEG", icc_profile=swapped, **flat), [c[::-1] for c in QUARTERS], 8),
        ("icc swapped, webp", lossless_webp(rgb, icc_profile=swapped), [c[::-1] for c in QUARTERS], 2),
        ("icc swapped, alpha", encode(see_through(), "PNG", icc_profile=swapped), SWAPPED_THROUGH, 3),
        ("icc srgb", encode(rgb, "PNG", icc_profile=srgb), QUARTERS, 0),
        ("icc of rgb on cmyk", encode(rgb.convert("CMYK"), "JPEG", icc_profile=srgb, **flat), QUARTERS, 6),
        ("icc of rgb on grey", encode(rgb.convert("L"), "PNG", icc_profile=srgb), grey(QUARTERS), 1),
    ]
    for n, bad in enumerate(bad_icc()):
        cases.append((f"icc bad {n}, png", encode(rgb, "PNG", icc_profile=bad), QUARTERS, 0))
        cases.append((f"icc bad {n}, jpeg", encode(rgb, "JPEG", icc_profile=bad, **flat), QUARTERS, 6))
    for value in (*range(10), 255, 65535):
        cases.append((f"exif {value}, jpeg", encode(turned(value), "JPEG", exif=exif(value), **flat), QUARTERS, 6))
    for value in range(1, 9):
        cases.append((f"exif {value}, png", encode(turned(value), "PNG", exif=exif(value)), QUARTERS, 0))
        # Browsers ignore it in WebP.
        cases.append((f"exif {value}, webp", lossless_webp(rgb, exif=exif(value)), QUARTERS, 0))
    cases += [
        ("exif of another type", encode(rgb, "JPEG", exif=exif(6, kind=4), **flat), QUARTERS, 6),
        ("exif cut short", encode(rgb, "JPEG", exif=exif(6)[:20], **flat), QUARTERS, 6),
        ("exif that is none", encode(rgb, "JPEG", exif=b"Exif\0\0XX*\0 garbage", **flat), QUARTERS, 6),
    ]
    return cases


def palette_still():
    picture = quarters().quantize(4)
    order = sorted(range(4), key=lambda index: picture.getpixel((1, 1)) != index)
    return picture.remap_palette(order)


def test_im_2_accepted_pictures_have_the_right_colours():
    cases = accepted()
    assert len(cases) >= 40
    wrong = []
    for (name, _, expected, most), result in zip(cases, read_all([data for _, data, _, _ in cases]), strict=True):
        if isinstance(result, BadPicture):
            wrong.append((name, result.reason))
            continue
        colours = corners(decode(result.frames[0].png))
        if not close_to(colours, expected, most):
            wrong.append((name, colours, expected))
    assert wrong == []


def test_width_and_height_are_those_of_the_upright_upload():
    picture = read(encode(quarters((3000, 1500)), "JPEG", exif=exif(6)))
    assert (picture.width, picture.height, picture.frame_count) == (1500, 3000, 1)
    assert (picture.frames[0].width, picture.frames[0].height) == (640, 1280)


def test_format_and_digest_are_those_of_the_upload():
    for kind in PictureFormat:
        data = encode(quarters(), kind)
        picture = read(data)
        assert picture.format is kind
        assert picture.bytes_sha256 == hashlib.sha256(data).hexdigest()
    assert read(mpo()).format is PictureFormat.JPEG


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "turned"),
    [((8160, 6120), 1), ((8160, 6120), 6), ((5210, 5057), 1), ((16_384, 6100), 1), ((2000, 16_384), 1)],
)
def test_large_jpeg_photographs_are_scaled_down_while_decoding(size, turned):
    still = captioned("A QUIET DAY", size=(640, 480)).resize(size)
    data = encode(still, "JPEG", quality=80, exif=exif(turned))
    picture = read(data)
    assert (picture.width, picture.height) == (size if turned == 1 else size[::-1])
    shown = decode(picture.frames[0].png)
    usual = still.transpose(Image.Transpose.ROTATE_270) if turned == 6 else still
    assert max(shown.size) == 1280 and abs(shown.width / shown.height - usual.width / usual.height) < 0.02
    difference = ImageChops.difference(shown, usual.resize(shown.size, Image.Resampling.LANCZOS))
    assert max(ImageStat.Stat(difference).mean) < 3, "the content is the same"


def large(mode, size=(5000, 5000)):
    """Returns a still that compresses well, with words on it, in one of Pillow's modes."""
    still = captioned("A QUIET DAY", size=(640, 480)).resize(size, Image.Resampling.NEAREST)
    if mode.endswith("A"):
        half = Image.new("L", (1, 2), 255)
        half.putpixel((0, 1), 100)
        still.putalpha(half.resize(size, Image.Resampling.NEAREST))
    return still.convert(mode)


def sixteen_bits(size):
    """Returns a PNG file with 16 bits per channel."""
    still = np.asarray(large("RGB", size))[:, :, ::-1].astype(np.uint16) * 257
    return cv2.imencode(".png", still)[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        *(partial(lambda mode: encode(large(mode), "PNG"), mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")),
        lambda: encode(large("RGB"), "WEBP", method=0),
        partial(sixteen_bits, (6000, 4000)),
        partial(lambda: encode(large("RGB", (16_384, 3000)), "PNG", exif=exif(6))),
        partial(lambda: encode(large("RGB", (3000, 16_383)), "WEBP", method=0, exif=exif(6))),
    ],
    ids=["RGB", "RGBA", "L", "LA", "P", "1", "WebP", "16 bits", "turned", "WebP, turned"],
)
def test_large_png_and_webp_are_scaled_down_while_decoding(make):
    data = make()
    picture = read(data)
    with Image.open(BytesIO(data)) as opened:
        # Browsers ignore the orientation in WebP.
        usual = opened.copy() if opened.format == "WEBP" else ImageOps.exif_transpose(opened)
    assert (picture.width, picture.height) == usual.size
    if usual.mode in ("P", "1"):
        usual = usual.convert("RGB")
    usual.thumbnail((2600, 2600))
    expected = decode(read(encode(usual, "PNG")).frames[0].png)
    difference = ImageChops.difference(decode(picture.frames[0].png).resize(expected.size), expected)
    assert max(ImageStat.Stat(difference).mean) < 3, "the content is the same"
    assert bool(picture.frames[0].legible_png) == (max(usual.size) > 2.5 * min(usual.size))


MEGAPIXELS = {12: (4000, 3000), 24: (6000, 4000), 48: (8000, 6000), 50: (8160, 6120), 64: (9248, 6936)}
"""Picture sizes of phones and cameras, by megapixels."""


@pytest.mark.slow
@pytest.mark.promise("BO-9", "60 photographs of 12 to 64 megapixels: all judged, <= 2 CPU s, <= 256 MiB each")
def test_bo_9_ordinary_photographs_are_read_within_the_limits_of_any_picture():
    costs, noise = [], Image.effect_noise((512, 512), 60).point([level & 0xF0 for level in range(256)])
    photograph = Image.merge("RGB", (noise, noise.transpose(Image.Transpose.ROTATE_90), noise))

    async def whole():
        reader = GuardedPictureReader(watch=costs.append)
        try:
            for number, (megapixels, kind, turned) in enumerate(cases):
                size = MEGAPIXELS[megapixels]
                how = {"PNG": {"compress_level": 1}, "WEBP": {"quality": 75, "method": 0}}.get(kind, {"quality": 90})
                data = encode(photograph.resize(size, Image.Resampling.NEAREST), kind, exif=exif(turned), **how)
                picture = await read_with_retry(reader, data)
                sideways = turned >= 5 and kind != "WEBP"
                assert (picture.width, picture.height) == (size[::-1] if sideways else size), number
        finally:
            await reader.aclose()

    kinds = itertools.product(MEGAPIXELS, ("JPEG", "PNG", "WEBP"), (1, 3, 6, 8))
    cases = [case for number, case in enumerate(kinds) if FULL or number % 9 == 8]
    asyncio.run(whole())
    assert len(costs) == len(cases) == (60 if FULL else 6)
    assert max(cost.cpu_s for cost in costs) <= 2
    assert max(cost.peak_bytes for cost in costs) <= 256 * 1024 * 1024


def test_large_png_is_converted_with_its_colour_profile():
    still = Image.new("RGB", (8000, 4000), RED)
    picture = read(encode(still, "PNG", icc_profile=profile_with_swapped_primaries()))
    assert close_to([decode(picture.frames[0].png).getpixel((9, 9))], [RED[::-1]], 2)


def test_truncated_large_png_is_judged_by_the_part_present():
    data = encode(large("RGB", (6000, 4000)), "PNG")
    picture = read(data[: len(data) * 3 // 4])
    assert picture.incomplete and picture.width == 6000
    flat = encode(Image.new("RGB", (6000, 4000), RED), "PNG")
    assert refusal(flat[: len(flat) // 2] + b"junk").reason == "PICTURE_DAMAGED"


def test_large_webp_smaller_than_its_header_claims_is_refused():
    data = bytearray(encode(quarters(), "WEBP", exif=exif(1)))
    canvas = data.index(b"VP8X") + 8 + 4
    data[canvas : canvas + 6] = 2 * (8000 - 1).to_bytes(3, "little")
    assert refusal(bytes(data)).reason == "PICTURE_DAMAGED"


@pytest.mark.slow
def test_large_pictures_that_cannot_be_scaled_while_decoding_are_refused():
    still = Image.new("RGB", (5210, 5057), RED)
    stored_whole = [
        encode(still, "JPEG", progressive=True),
        interlaced(still.size),
        encode(still, "WEBP", lossless=True, method=0),
    ]
    for data in stored_whole:
        refused = refusal(data)
        assert refused.reason == "PICTURE_PROGRESSIVE_TOO_LARGE" and "26,346,970 pixels" in refused.message
    see_through_webp = encode(large("RGBA", (3000, 3000)), "WEBP", method=0)
    assert refusal(see_through_webp).reason == "PICTURE_PROGRESSIVE_TOO_LARGE"
    assert refusal(encode(Image.new("RGB", (8300, 8300), RED), "PNG")).reason == "PICTURE_TOO_MANY_PIXELS"
    assert not isinstance(read_all([encode(still.resize((4096, 4096)), "JPEG", progressive=True)])[0], BadPicture)


def interlaced(size):
    """Returns an interlaced PNG file with a valid header and no pixel data."""
    width, height = size
    header = struct.pack(">II5B", width, height, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("height", [870, 1055, 1092, 1166])
def test_legible_copy_of_a_long_picture_may_exceed_the_limit_by_one_line(height):
    """Rounding once made such pictures count as having killed their reader."""
    picture = read(encode(Image.linear_gradient("L").resize((4096, height)), "PNG"))
    width, tall = decode(picture.frames[0].legible_png).size
    assert 0.99 * 1280**2 < width * tall <= 1280**2 + width


@pytest.mark.parametrize("size", [(8192, 1), (1, 8192), (1281, 1280), (1280, 1281), (4000, 3), (1280, 1280), (7, 5)])
def test_no_side_exceeds_1280_or_vanishes(size):
    still = shown(encode(Image.new("RGB", size, RED), "PNG"))
    assert max(still.size) == min(1280, max(size))
    assert min(still.size) >= 1
    assert still.getextrema() == tuple((value, value) for value in RED)


@pytest.mark.parametrize(
    ("size", "legible"),
    [
        ((400, 6000), (330, 4957)),
        ((6000, 60), (6000, 60)),
        ((3200, 1280), (2023, 809)),
        *((size, None) for size in [(60, 1280), (3000, 2000), (1280, 1280), (2000, 1000), (700, 100)]),
    ],
)
def test_long_picture_is_also_passed_on_at_a_legible_size(size, legible):
    still = captioned("A QUIET DAY", size=size, height=20)
    (frame,) = read(encode(still, "PNG")).frames
    assert max(frame.width, frame.height) <= 1280
    if legible is None:
        assert frame.legible_png is None
    else:
        assert decode(frame.legible_png).size == legible
        assert decode(frame.legible_png).convert("L").getextrema()[0] < 80, "the letters are black"
    assert read(encode(still, "PNG")).pixels_sha256 == pixels_sha256([frame.png]), "the digest ignores the larger copy"


@pytest.mark.parametrize(
    ("letters", "ground"),
    [((255, 255, 255), 48), ((20, 20, 20), 255), ((200, 30, 40), 255), ((240, 240, 200), 48), (None, 255)],
)
def test_letters_on_transparency_stand_out(letters, ground):
    sticker = Image.new("RGBA", (320, 120), (0, 0, 0, 0))
    if letters:
        ImageDraw.Draw(sticker).text((20, 30), "HELLO", font=ImageFont.load_default(size=50), fill=letters)
    still = shown(encode(sticker, "PNG"))
    assert still.getpixel((2, 2)) == (ground,) * 3
    low, high = still.convert("L").getextrema()
    assert high - low > (80 if letters else -1)


@pytest.mark.parametrize(("odd", "count"), [(3, 12), (8, 60), (29, 30), (1, 2), (40, 64)])
@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_single_differing_frame_is_selected_at_any_position(kind, odd, count):
    usual = captioned("A QUIET DAY", size=(320, 200), height=20)
    other = captioned("A QUIET DAY", "and a word", size=(320, 200), height=20)
    # Three colours of one pixel, so that no format drops a frame as a mere repetition.
    frames = [(other if number == odd else usual).copy() for number in range(count)]
    for number, frame in enumerate(frames):
        frame.putpixel((319, 199), (200 + number % 3, 0, 0))
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = read(animation(kind, frames, **options))
    assert [frame.index for frame in picture.frames] == [0, odd] and picture.frames_unlike == 0


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize(
    ("kind", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("PNG", {"compress_level": 0})]
)
def test_truncated_still_is_judged_by_the_part_present_and_marked_incomplete(kind, options, share):
    still = captioned("A QUIET DAY", size=(640, 480))
    whole = encode(still, kind, **options)
    picture = read(whole[: int(share * len(whole))])
    assert picture.incomplete and (picture.width, picture.height) == (640, 480)
    assert not read(whole).incomplete
    upper = decode(picture.frames[0].png).crop((0, 0, 640, 60))
    assert upper.tobytes() != Image.new("RGB", upper.size).tobytes(), "the upper part is present"


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_truncated_animation_is_refused(kind):
    stills = [captioned(f"WORD {number}", size=(320, 200), height=30) for number in range(4)]
    data = animation(kind, stills)
    for share in (0.3, 0.9):
        assert refusal(data[: int(share * len(data))]).reason == "PICTURE_DAMAGED"


def test_still_without_an_end_marker_is_complete_only_if_its_format_can_tell():
    assert not read(encode(quarters(), "PNG")[:-12]).incomplete
    # A JPEG does not state how long its last scan should be.
    assert read(encode(quarters(), "JPEG").removesuffix(b"\xff\xd9")).incomplete


def test_unlike_frames_beyond_the_limit_are_counted():
    stills = [captioned(f"WORD {number}" * 2, size=(320, 200), height=30) for number in range(9)]
    picture = read(animation("PNG", stills))
    assert len(picture.frames) == 4 and picture.frames_unlike == 5
    assert read(encode(stills[0], "PNG")).frames_unlike == 0


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_frames_that_differ_most_are_selected(kind):
    colours = [(20 * number, 255 - 20 * number, 90) for number in range(10)]
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = read(animation(kind, [Image.new("RGB", (30, 20), colour) for colour in colours], **options))
    assert picture.frame_count == 10
    assert [frame.index for frame in picture.frames] == [0, 2, 4, 9], "those that differ most from the earlier ones"
    assert picture.frames_unlike == 6
    for frame in picture.frames:
        assert close_to([decode(frame.png).getpixel((3, 3))], [colours[frame.index]], 1)


def test_repeated_frames_are_left_out():
    frames = [Image.new("RGB", (30, 20), colour) for colour in (RED, GREEN, RED, RED, GREEN, BLUE)]
    picture = read(animation("PNG", frames, duration=[10, 20, 30, 40, 50, 60]), Limits(representative_frames=6))
    assert [frame.index for frame in picture.frames] == [0, 1, len({*range(picture.frame_count)}) - 1]
    assert picture.frames_unlike == 0


def hidden(name):
    """Returns a file with a marker text in every metadata field of its format."""
    marker = b"MARKER-OF-THE-TEST"
    info = PngInfo()
    info.add_text("Comment", marker.decode())
    info.add_itxt("XML:com.adobe.xmp", marker.decode())
    block = exif(1) + marker
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes() + marker
    options = {
        "PNG": {"pnginfo": info, "exif": block, "icc_profile": srgb},
        "JPEG": {"comment": marker, "exif": block, "xmp": marker, "icc_profile": srgb, "quality": 95},
        "WEBP": {"exif": block, "xmp": marker, "icc_profile": srgb, "lossless": True},
        "GIF": {"comment": marker},
    }
    return encode(quarters(), name, **options[name]) + marker


def test_im_4_output_has_no_metadata_and_is_deterministic():
    files = [data for _, data, _, _ in accepted()] + [hidden(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF")]
    another_process = Limits(max_bytes=LIMITS.max_bytes - 1)
    for first, second in zip(read_all(files), read_all(files, another_process), strict=True):
        assert first == second
        for frame in first.frames:
            kinds, at = [], 8
            while at < len(frame.png):
                length, kind = struct.unpack_from(">I4s", frame.png, at)
                kinds.append(kind)
                at += 12 + length
            assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}
            assert at == len(frame.png)
            assert b"MARKER" not in frame.png
            still = decode(frame.png)
            assert still.mode == "RGB"
            assert still.info == {}
            assert (frame.width, frame.height) == still.size
            assert max(still.size) <= 1280


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (64, 48)])
def test_im_4_output_png_has_exactly_the_same_pixels(size):
    still = Image.frombytes("RGB", size, random.Random(0).randbytes(3 * size[0] * size[1]))
    written = as_png(still)
    with Image.open(io.BytesIO(written), formats=["PNG"]) as opened:
        assert (opened.mode, opened.size, opened.tobytes()) == ("RGB", size, still.tobytes())
    with Image.open(io.BytesIO(written)) as opened:
        opened.verify()  # the checksums too


def test_im_4_lossless_copies_have_the_same_pixel_digest():
    still = captioned("A QUIET DAY", size=(1500, 700))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    copies = [
        encode(still, "PNG"),
        encode(still, "PNG", compress_level=1, optimize=True),
        encode(still.convert("RGBA"), "PNG"),
        encode(still, "PNG", exif=exif(1), icc_profile=srgb),
        encode(still, "PNG") + b"trailing",
        encode(still.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif(6)),
        lossless_webp(still),
        lossless_webp(still, exif=exif(1), xmp=b"<x/>"),
    ]
    assert len({picture.pixels_sha256 for picture in read_all(copies)}) == 1
    jpeg = encode(still, "JPEG", quality=90)
    tagged = jpeg[:2] + segment(0xFE, b"a comment") + segment(0xE1, exif(1)) + jpeg[2:] + b"trailing"
    assert len({picture.pixels_sha256 for picture in read_all([jpeg, tagged, encode(decode(jpeg), "PNG")])}) == 1
    other = still.copy()
    other.paste(RED, (700, 300, 704, 304))
    assert read(encode(other, "PNG")).pixels_sha256 != read(copies[0]).pixels_sha256


def archive(kind):
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as archived:
            archived.writestr("picture.png", encode(quarters(), "PNG"))
    else:
        with tarfile.open(fileobj=out, mode="w") as archived:
            archived.addfile(tarfile.TarInfo("picture.png"))
    return out.getvalue()


def foreign():
    """IM-3: files of other formats."""
    rgb = quarters()
    return {
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "svg with declaration": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
        **{
            kind: encode(rgb, kind)
            for kind in ("EPS", "PDF", "TIFF", "BMP", "ICO", "PPM", "TGA", "PCX", "JPEG2000", "AVIF")
        },
        "heic": b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(200),
        "mvg": b"push graphic-context\nviewbox 0 0 9 9\nimage over 0,0 9,9 'x'\npop graphic-context\n",
        "psd": b"8BPS\0\1" + bytes(300),
        "pickle": pickle.dumps({"picture": [1, 2, 3]}),
        "html": b"<!doctype html><img src=x>",
        "zip": archive("zip"),
        "gzip": compress(encode(rgb, "PNG")),
        "tar": archive("tar"),
        "elf": b"\x7fELF\2\1\1" + bytes(300),
        "json": json.dumps({"image": "none"}).encode(),
        "empty": b"",
        "one byte": b"\xff",
        "text": b"Just a few words.\n" * 20,
        "riff that is no webp": b"RIFF\x24\0\0\0WAVEfmt " + bytes(100),
        "base64 of a png": b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
        "data uri": b"data:image/png;base64,iVBORw0KGgo=",
        "png behind a space": b" " + encode(rgb, "PNG"),
        "mp4": b"\0\0\0\x18ftypmp42" + bytes(300),
        "jpeg xl": b"\xff\x0a" + bytes(300),
        "mng": b"\x8aMNG\r\n\x1a\n" + bytes(300),
    }


def test_im_3_other_formats_are_refused():
    files = foreign()
    assert len(files) >= 28
    reasons = dict(zip(files, (result.reason for result in read_all(files.values())), strict=True))
    assert reasons.pop("empty") == "PICTURE_EMPTY"
    assert set(reasons.values()) == {"PICTURE_FORMAT_NOT_READ"}


def flicker(kind, frames, side):
    return animation(kind, [Image.new("RGB", (side, side), (number * 40, 0, 0)) for number in range(frames)])


SMALL = Limits(
    max_bytes=20_000,
    max_pixels=10_000,
    max_jpeg_pixels=10_000,
    max_scaled_pixels=10_000,
    max_side=200,
    max_frames=5,
    max_total_pixels=20_000,
    max_png_chunks=30,
    max_jpeg_scans=4,
)


@pytest.mark.parametrize(
    ("data", "reason", "figures"),
    [
        (bytes(20_001), "PICTURE_TOO_LARGE_BYTES", ["20,001", "20,000"]),
        *(
            (encode(Image.new("RGB", (101, 100)), kind), "PICTURE_TOO_MANY_PIXELS", ["10,100", "10,000"])
            for kind in PictureFormat
        ),
        (
            encode(Image.new("RGB", (101, 50)), "WEBP", lossless=True),
            "PICTURE_PROGRESSIVE_TOO_LARGE",
            ["5,050", "5,000"],
        ),
        (encode(Image.new("RGB", (201, 1)), "PNG"), "PICTURE_SIDE_TOO_LONG", ["201", "200"]),
        (png(0, 5, 8, 2, b""), "PICTURE_NO_PIXELS", ["0", "5"]),
        *((flicker(kind, 6, 9), "PICTURE_TOO_MANY_FRAMES", ["6", "5"]) for kind in ("GIF", "WEBP", "PNG")),
        (flicker("GIF", 5, 70), "PICTURE_ANIMATION_TOO_LARGE", ["24,500", "20,000"]),
        (png(1, 1, 8, 0, b"\0\0", *[chunk(b"prVt", b"")] * 28), "PICTURE_TOO_MANY_CHUNKS", ["31", "30"]),
        (encode(quarters(), "JPEG", progressive=True), "PICTURE_TOO_MANY_SCANS", ["5", "4"]),
        *(
            (damaged, "PICTURE_DAMAGED", [])
            for damaged in (
                encode(quarters(), "GIF")[:-200],
                encode(quarters(), "WEBP")[:-20],
                encode(quarters(), "PNG")[:60],  # before any pixel
                b"\x89PNG\r\n\x1a\n",
                b"\xff\xd8\xff",
                b"GIF89a",
                b"RIFF\4\0\0\0WEBP",
            )
        ),
    ],
)
def test_refusals_state_the_figure_and_the_limit(data, reason, figures):
    refused = refusal(data, SMALL)
    assert refused.reason == reason
    assert refused.field == "image"
    for figure in figures:
        assert figure in refused.message


def test_limits_are_exact_to_the_pixel():
    exact = dataclasses.replace(SMALL, max_bytes=10**6)
    assert shown(encode(Image.new("RGB", (100, 100)), "PNG"), exact).size == (100, 100)
    data = encode(quarters(), "PNG")
    assert read(data, Limits(max_bytes=len(data)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
async def test_process_killed_from_outside_is_not_blamed_on_the_picture(number):
    reader = GuardedPictureReader()
    try:
        data = png(8, 8, 8, 2, b"".join(b"\0" + bytes(24) for _ in range(8)))
        await reader.read(data)
        (process,) = reader._workers._alive
        pid = process._process.pid
        os.kill(pid, signal.SIGSTOP)
        reading = asyncio.create_task(reader.read(data))
        while process._jobs != 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        os.kill(pid, number)
        with contextlib.suppress(ProcessLookupError):  # SIGKILL ends even a stopped process
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(Unavailable, match="Ask again") as caught:
            await reading
        assert await reader.read(data)
        error = caught.value
    finally:
        await reader.aclose()
    assert error.reason == "PICTURE_READER_KILLED" and error.retry_after


@pytest.mark.slow
async def test_largest_allowed_pictures_are_read():
    """At the pixel limit, every format must fit into the memory of one picture, and into a multiple of a PNG's time."""
    costs = []
    noise = Image.effect_noise((1024, 1024), 60).resize((4096, 4096), Image.Resampling.NEAREST)
    colours = Image.merge("RGB", (noise, noise.transpose(Image.Transpose.ROTATE_90), noise))
    files = [
        encode(noise.convert("RGBA"), "PNG", compress_level=1),
        encode(colours, "JPEG", quality=60, progressive=True, subsampling=0),
        encode(colours.convert("CMYK"), "JPEG", quality=30),
        encode(noise, "GIF"),
        encode(colours.crop((0, 0, 4096, 2048)), "WEBP", quality=30, method=0),
        animation("GIF", [Image.new("RGB", (4096, 2048), colour) for colour in (RED, GREEN, BLUE, WHITE)]),
    ]
    # Seconds of CPU time differ between machines, so the limit of a service does not apply here.
    async with contextlib.aclosing(GuardedPictureReader(watch=costs.append, cpu_s=20)) as reader:
        for data in files:
            assert (await read_with_retry(reader, data)).frames[0].width == 1280
    png, *others = (cost.cpu_s for cost in costs)
    assert max(others) <= 3 * png, (png, others)
    assert max(cost.peak_bytes for cost in costs) <= 256 * 1024 * 1024
