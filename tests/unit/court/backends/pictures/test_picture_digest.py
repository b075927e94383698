"""The digest of a picture, recomputed from its stored frames and refused for anything else."""

import zlib

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from court.backends.pictures.normalise import has_pixels, pixels_sha256
from tests.support.pictures import animation, chunk, encode, exif, quarters, read_pictures


async def test_digest_is_recomputed_from_the_stored_frames():
    """Uploads are in several modes, rotated, animated, and scaled down."""
    stills = [quarters().rotate(angle) for angle in (0, 90, 180)]
    files = [
        encode(quarters(), "PNG"),
        encode(quarters().convert("RGBA"), "PNG"),
        encode(quarters().convert("L"), "PNG"),
        encode(quarters((2000, 1500)), "JPEG"),
        encode(quarters(), "JPEG", exif=exif(6)),
        encode(quarters(), "WEBP"),
        animation("GIF", stills),
    ]
    pictures = await read_pictures(*files)
    assert len(pictures[-1].frames) == 3 and max(pictures[3].frames[0].width, 0) == 1280
    for picture in pictures:
        frames = [frame.png for frame in picture.frames]
        assert pixels_sha256(frames) == picture.pixels_sha256
        if len(frames) > 1:
            assert pixels_sha256(frames[::-1]) != picture.pixels_sha256
            assert pixels_sha256(frames[:-1]) != picture.pixels_sha256


def test_data_that_is_not_a_stored_frame_is_refused():
    good = encode(quarters(), "PNG")
    about = PngInfo()
    about.add_text("Comment", "people from Blueland")
    place = good.index(b"IDAT") + 6
    for bad in (
        b"",
        b"no picture",
        good[:-3],
        good + b"more",
        good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :],
        encode(quarters(), "PNG", pnginfo=about),
        encode(quarters().convert("RGBA"), "PNG"),
        encode(quarters((1281, 3)), "PNG"),
        encode(quarters(), "JPEG"),
        animation("PNG", [quarters(), quarters().rotate(90)]),
        good.replace(b"IEND", b"IENT"),
        # Few bytes with a very large canvas.
        good[:8]
        + chunk(b"IHDR", (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00")
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b""),
    ):
        with pytest.raises(ValueError, match="a frame"):
            pixels_sha256([bad])
    assert pixels_sha256([good]) != pixels_sha256([encode(quarters().rotate(90), "PNG")])


@pytest.mark.parametrize("gamma", [2000, 130_000, 400_000])
async def test_unusual_colours_change_the_digest_even_where_they_change_no_pixel(gamma):
    """Black and white are the same at every gamma."""
    plain = encode(Image.new("RGB", (8, 8), "white"), "PNG")
    instructed = plain[:33] + chunk(b"gAMA", gamma.to_bytes(4, "big")) + plain[33:]
    one, other = await read_pictures(plain, instructed)
    assert one.frames == other.frames and other.shown_otherwise and not one.shown_otherwise
    assert one.pixels_sha256 != other.pixels_sha256
    frames = [frame.png for frame in other.frames]
    assert has_pixels(frames, other.pixels_sha256) and has_pixels(frames, one.pixels_sha256)
    assert not has_pixels(frames, "0" * 64)
