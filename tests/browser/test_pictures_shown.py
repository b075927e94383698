"""TF-1 of security.md: pictures are judged as Chromium shows them."""

import asyncio
import base64
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from court.backends.pictures.colours import _BT_709, _D65, _power, _profile, _srgb
from court.backends.pictures.reader import GuardedPictureReader
from court.meme import Limits
from tests.support.pictures import animation, chunk, decode, encode, exif, profile_with_swapped_primaries, segment

FRAMES = """async ([file, type]) => {
  const data = Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0));
  const images = [];
  const decoder = new ImageDecoder({data, type});
  await decoder.tracks.ready;
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([data], {type}));
  await image.decode();
  // Only an image on a page is turned; only the decoder shows later frames.
  images.push(image);
  for (let at = 1; at < decoder.tracks.selectedTrack.frameCount; at++)
    images.push((await decoder.decode({frameIndex: at})).image);
  return images.map((one) => {
    const width = one.naturalWidth ?? one.displayWidth, height = one.naturalHeight ?? one.displayHeight;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(one, 0, 0);
    const pixels = context.getImageData(0, 0, width, height).data;
    let letters = "";
    for (let at = 0; at < pixels.length; at += 8192) letters += String.fromCharCode(...pixels.subarray(at, at + 8192));
    return [width, height, btoa(letters)];
  });
}"""
DISPLAY_P3 = (_D65, (0.68, 0.32), (0.265, 0.69), (0.15, 0.06))
ADOBE_RGB = (_D65, (0.64, 0.33), (0.21, 0.71), (0.15, 0.06))


def adobe_rgb_profile():
    """Returns a profile with the gamma as a number, 563 / 256, as Adobe's; browsers approximate one in a table."""
    table = _profile(ADOBE_RGB, _power(1))
    head = b"curv" + bytes(4)
    return table.replace(head + struct.pack(">IHH", 256, 0, 257), head + struct.pack(">IHH", 1, 563, 0))


def ramp():
    """Returns a picture with all levels of red and green, and 16 of blue."""
    across, down = np.meshgrid(np.arange(256), np.arange(64) * 4)
    return Image.fromarray(np.stack([across, 255 - across, down], -1).astype(np.uint8))


def with_chunks(picture, *chunks, **options):
    data = encode(picture, "PNG", **options)
    return data[:33] + b"".join(chunks) + data[33:]


def gama(value):
    return chunk(b"gAMA", struct.pack(">I", value))


def chrm(primaries):
    return chunk(b"cHRM", struct.pack(">8I", *(round(100_000 * value) for point in primaries for value in point)))


def cicp(*codes):
    return chunk(b"cICP", bytes(codes))


def iccp(profile):
    return chunk(b"iCCP", b"icc\0\0" + zlib.compress(profile))


def jpeg(picture, *segments, **options):
    data = encode(picture, "JPEG", quality=97, subsampling=0, **options)
    return data[:2] + b"".join(segments) + data[2:]


def icc_part(number, count, content):
    return segment(0xE2, b"ICC_PROFILE\0" + bytes([number, count]) + content)


def adobe(transform):
    return segment(0xEE, b"Adobe" + struct.pack(">3HB", 100, 0, 0, transform))


def letters(ground, level, kind="RGB"):
    picture = Image.new("RGB", (256, 64), (ground,) * 3)
    ImageDraw.Draw(picture).text((8, 20), "GOOD MORNING", fill=(level,) * 3, font_size=24)
    return picture.convert(kind)


def moving(kind, **options):
    """Returns an animation with transparent frames, each laid on the last or after its removal."""
    stills = []
    for number in range(4):
        still = Image.new("RGBA", (96, 64), (0, 0, 0, 0) if number else (200, 60, 30, 255))
        ImageDraw.Draw(still).rectangle((20 * number, 8, 20 * number + 30, 50), fill=(20, 50 * number + 40, 220, 255))
        stills.append(still)
    return animation(kind, stills, **options)


def files():
    """Returns the files by name, each with its media type."""
    picture, grey = ramp(), ramp().convert("L")
    indexed = picture.convert("P", palette=Image.Palette.ADAPTIVE)
    p3, adobe_rgb = _profile(DISPLAY_P3, _srgb), adobe_rgb_profile()
    linear, steep = _profile(_BT_709, _power(1)), _profile(_BT_709, _power(20))
    swapped = profile_with_swapped_primaries()
    half = len(linear) // 2
    cmyk = picture.convert("CMYK")
    pngs = {
        "plain": with_chunks(picture),
        "gamma 45455": with_chunks(picture, gama(45455)),
        "gamma 47800": with_chunks(picture, gama(47800)),
        "gamma 55556 of grey": with_chunks(grey, gama(55556)),
        "gamma 100000 of a palette": with_chunks(indexed, gama(100_000)),
        "gamma 5000 on pale letters": with_chunks(letters(247, 255), gama(5000)),
        "gamma 180000 on dark letters of grey": with_chunks(letters(0, 5, "L"), gama(180_000)),
        "gamma beside sRGB": with_chunks(picture, gama(100_000), chunk(b"sRGB", b"\1")),
        "gamma beside an invalid sRGB": with_chunks(picture, gama(80_000), chunk(b"sRGB", b"\4")),
        "two gammas": with_chunks(picture, gama(70_000), gama(45455)),
        "gamma with primaries": with_chunks(picture, gama(45455), chrm(DISPLAY_P3)),
        "primaries alone": with_chunks(picture, chrm(DISPLAY_P3)),
        "cICP linear": with_chunks(picture, cicp(1, 8, 0, 1)),
        "cICP Display P3": with_chunks(picture, cicp(12, 13, 0, 1), gama(100_000)),
        "cICP BT.2020": with_chunks(picture, cicp(9, 14, 0, 1)),
        "cICP unsupported beside gamma": with_chunks(picture, cicp(2, 2, 0, 1), gama(90_000)),
        "cICP high range": with_chunks(picture, cicp(9, 16, 0, 1)),
        "profile Display P3": with_chunks(picture, iccp(p3)),
        "profile Adobe RGB": with_chunks(picture, iccp(adobe_rgb)),
        "profile on grey": with_chunks(grey, iccp(linear)),
        "two profiles": with_chunks(picture, iccp(swapped), iccp(p3)),
        "broken profile beside gamma": with_chunks(picture, iccp(b"none" * 99), gama(100_000)),
        "sixteen bits with gamma": with_chunks(Image.fromarray(np.array(grey).astype(np.uint16) * 257), gama(60_000)),
        "turned PNG": with_chunks(picture, exif=exif(6)),
        "animated PNG": moving("PNG", disposal=[0, 1, 2, 0], blend=1),
        "animated PNG with gamma": with_animation(gama(60_000)),
    }
    jpegs = {
        "JPEG": jpeg(picture),
        "JPEG Adobe RGB": jpeg(picture, icc_profile=adobe_rgb),
        "JPEG grey with a profile": jpeg(grey, icc_profile=linear),
        "JPEG profile in parts": jpeg(picture, icc_part(2, 2, linear[half:]), icc_part(1, 2, linear[:half])),
        "JPEG profile twice": jpeg(picture, icc_part(1, 1, linear), icc_part(1, 1, swapped)),
        "JPEG of RGB": jpeg(picture, keep_rgb=True),
        "JPEG Adobe's transform 0": jpeg(picture, adobe(0)),
        "JPEG CMYK": jpeg(cmyk),
        **{f"JPEG turned {turn}": jpeg(picture, exif=exif(turn)) for turn in (3, 5, 8)},
    }
    webps = {
        "WebP": encode(picture, "WEBP", lossless=True),
        "WebP Display P3": encode(picture, "WEBP", lossless=True, icc_profile=p3),
        "WebP steep on pale letters": encode(letters(245, 254), "WEBP", lossless=True, icc_profile=steep),
        "WebP turned": encode(picture, "WEBP", lossless=True, exif=exif(6)),
        "animated WebP": moving("WEBP", lossless=True, background=(0, 0, 0, 0)),
    }
    gifs = {f"animated GIF {disposal}": moving("GIF", disposal=disposal) for disposal in (1, 2, 3)}
    return {
        name: (kind, data)
        for kind, named in (("png", pngs), ("jpeg", jpegs), ("webp", webps), ("gif", gifs))
        for name, data in named.items()
    }


def with_animation(*chunks):
    data = moving("PNG", disposal=1, blend=0)
    return data[:33] + b"".join(chunks) + data[33:]


def read_all(datas):
    async def whole():
        # No picture is reduced, and none is long enough for a second copy.
        reader = GuardedPictureReader(Limits(outgoing_side=4096, long_ratio=1e9))
        try:
            return [await reader.read(data) for data in datas]
        finally:
            await reader.aclose()

    return asyncio.run(whole())


@pytest.fixture(scope="module")
def page(chromium):
    context = chromium.new_context()
    page = context.new_page()
    # A decoder of single frames exists only on pages with a secure origin.
    page.route("https://pictures.test/", lambda route: route.fulfill(body="<html></html>", content_type="text/html"))
    page.goto("https://pictures.test/")
    yield page
    context.close()


@pytest.fixture(scope="module")
def read():
    """Pictures by name, decoded before a browser starts its event loop in this thread."""
    named = files()
    return {
        name: (*named[name], picture)
        for name, picture in zip(named, read_all([d for _, d in named.values()]), strict=True)
    }


@pytest.mark.promise("TF-1", "45 files: within 2 of 255 of Chromium's pixels, at most 5 by review")
def test_tf_1_pictures_are_judged_as_chromium_shows_them(read, page):
    assert len(read) == 45
    by_review, differing = [], {}
    for name, (kind, data, picture) in read.items():
        shown = page.evaluate(FRAMES, [base64.b64encode(data).decode(), f"image/{kind}"])
        most = 0
        for frame in picture.frames:
            width, height, pixels = shown[frame.index]
            expected = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, width, 4)
            judged = np.array(decode(frame.png)).astype(int)
            assert judged.shape[:2] == expected.shape[:2], name
            opaque = expected[..., 3] == 255
            most = max(most, int(np.abs(judged - expected[..., :3])[opaque].max(initial=0)))
        if picture.shown_otherwise:
            by_review.append(name)
        if most > 2 and not picture.shown_otherwise:
            differing[name] = most
    assert not differing
    assert len(by_review) <= 5, by_review


def test_digests_cover_the_colours_that_are_applied(read):
    plain = read["plain"][2].pixels_sha256
    same = {name for name, (kind, _, picture) in read.items() if picture.pixels_sha256 == plain and kind != "jpeg"}
    assert same == {"plain", "gamma 45455", "gamma beside sRGB", "primaries alone", "WebP", "WebP turned"}
