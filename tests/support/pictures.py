"""Pictures for tests, drawn in code: tame, small, and with known colours."""

import io
import struct
import zlib
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadPicture
from court.meme import Frame, Picture, PictureFormat

RED, GREEN, BLUE, WHITE, BLACK = (220, 30, 40), (30, 160, 60), (40, 60, 200), (255, 255, 255), (0, 0, 0)
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def quarters(size: tuple[int, int] = (64, 48)) -> Image.Image:
    """Returns red, green above blue, white: every rotation and flip differs."""
    width, height = size
    picture = Image.new("RGB", size, RED)
    picture.paste(GREEN, (width // 2, 0, width, height // 2))
    picture.paste(BLUE, (0, height // 2, width // 2, height))
    picture.paste(WHITE, (width // 2, height // 2, width, height))
    return picture


def corners(picture: Image.Image) -> list[tuple[int, int, int]]:
    """Returns the colours in the middle of the four quarters, in reading order."""
    width, height = picture.size
    places = [(width // 4, height // 4), (3 * width // 4, height // 4)]
    places += [(x, 3 * height // 4) for x, _ in places]
    return [picture.getpixel(place) for place in places]


def captioned(*lines: str, size: tuple[int, int] = (640, 480), height: int = 56) -> Image.Image:
    """Returns dark text on a light background, one line below the other."""
    picture = Image.new("RGB", size, (225, 230, 240))
    draw = ImageDraw.Draw(picture)
    for row, line in enumerate(lines):
        draw.text((30, 30 + row * 2 * height), line, font=ImageFont.load_default(size=height), fill=(20, 20, 30))
    return picture


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """Returns a picture as an image file."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def decode(png: bytes) -> Image.Image:
    """Decodes a picture fully."""
    opened = Image.open(io.BytesIO(png))
    opened.load()
    return opened


def animation(kind: str, stills: Sequence[Image.Image], **options: Any) -> bytes:
    """Returns pictures as one animated file."""
    return encode(stills[0], kind, save_all=True, append_images=list(stills[1:]), **options)


def chunk(kind: bytes, body: bytes) -> bytes:
    """Returns a PNG chunk with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *more: bytes, interlace: int = 0) -> bytes:
    """Builds a PNG from ``rows`` with their filter bytes; ``more`` chunks precede the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace)
    parts = [chunk(b"IHDR", header), *more, chunk(b"IDAT", zlib.compress(rows, 9)), chunk(b"IEND", b"")]
    return PNG_MAGIC + b"".join(parts)


def segment(marker: int, body: bytes) -> bytes:
    """Returns a JPEG segment."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def exif(orientation: int, kind: int = 3) -> bytes:
    """Returns an EXIF block with an orientation only."""
    return b"Exif\0\0II*\0" + struct.pack("<IHHHIII", 8, 1, 0x0112, kind, 1, orientation & 0xFFFFFFFF, 0)


def profile_with_swapped_primaries() -> bytes:
    """Returns a valid RGB colour profile with red and blue swapped; applying it swaps these channels."""
    from PIL import ImageCms

    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return srgb.replace(b"rXYZ", b"####").replace(b"bXYZ", b"rXYZ").replace(b"####", b"bXYZ")


def decoded(*stills: Image.Image, step: int = 1, scale: int = 1) -> Picture:
    """Returns a picture with these frames, as if decoded; with a scale, each has a legible copy so much larger."""
    frames = tuple(
        Frame(
            png=encode(still, "PNG"),
            width=still.width,
            height=still.height,
            index=step * number,
            legible_png=encode(still.resize((still.width * scale, still.height * scale)), "PNG") if scale > 1 else None,
        )
        for number, still in enumerate(stills)
    )
    return Picture(PictureFormat.PNG, "0" * 64, "0" * 64, 1, 1, len(frames), frames)


async def read_pictures(*files: bytes) -> list[Picture]:
    """Reads files as the court does."""
    async with aclosing(GuardedPictureReader()) as reader:
        return [await reader.read(data) for data in files]


async def read_with_retry(reader: GuardedPictureReader, data: bytes) -> Picture:
    """Reads a picture, with one retry if it was too costly.

    On a busy machine the same work may take twice the CPU time, so a single refusal proves nothing.
    """
    try:
        return await reader.read(data)
    except BadPicture as refused:
        if refused.reason != "PICTURE_TOO_COSTLY":
            raise
    return await reader.read(data)
