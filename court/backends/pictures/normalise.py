"""Normalises a decoded picture: upright, opaque, sRGB, bounded, without metadata.

Runs only in a sandboxed worker.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, ImageChops
from zlib_ng import zlib_ng

from court.backends.pictures.colours import Colours
from court.backends.pictures.refusals import Refused
from court.backends.pictures.structure import Structure, parse_structure
from court.meme import LIMITS, Limits, PictureFormat

PIXELS_VERSION = b"memecourt pixels 1\n"
"""Prefix of the data digested as ``pixels_sha256``; change it whenever any pixel would change."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = 5
"""Lowest orientation with width and height exchanged."""
_PART = 0.02
"""Share of the visible pixels from which a light or dark part counts in the choice of a background."""
_GLANCE = (48, 48)
"""Size at which frames of an animation are compared, in pixels: a word changes some pixels much, noise none."""
_UNLIKE = 20
"""Maximum difference at any pixel, in 0 to 255, from which two frames count as different."""
_SPARE = 1.5
"""Ratio of the decoding size of a large picture to its final size; the rest is resampled."""
_STRIP = 256
"""Lines of a picture that are converted at once."""
_UP = 2
"""PNG filter type of lines encoded as differences from the line above."""


def representative(
    opened: Image.Image, structure: Structure, colours: Colours, limits: Limits
) -> tuple[list[int], int]:
    """Selects representative frames, in order, and counts others that differ from all of them. Raises as Pillow."""
    # Starts with the first frame, and then adds the one that differs most from all chosen ones, until none differs.
    # With fixed positions, an attacker could hide content between them.
    # The usual case: nothing to compare, and the frame is decoded once.
    if structure.frames == 1:
        return [0], 0
    small = []
    for index in range(structure.frames):
        opened.seek(index)
        # One thumbnail per frame, as all frames at once would not fit into the worker's memory.
        shown = opened if structure.profile is None else _frame(opened, structure, colours)[0]
        small.append(_glance(shown))
    chosen, away = [0], [_change(small[0], other) for other in small]
    while len(chosen) < limits.representative_frames and max(away) >= _UNLIKE:
        farthest = away.index(max(away))
        chosen.append(farthest)
        away = [min(before, _change(small[farthest], other)) for before, other in zip(away, small, strict=True)]
    return sorted(chosen), sum(each >= _UNLIKE for each in away)


def _glance(frame: Image.Image) -> Image.Image:
    if frame.mode == "RGB" and not frame.has_transparency_data:
        # Bit-identical to the other way, without a full copy; applies to most frames of animations.
        return frame.resize(_GLANCE, Image.Resampling.BOX).convert("RGBA")
    return frame.convert("RGBA").resize(_GLANCE, Image.Resampling.BOX)


def _change(one: Image.Image, other: Image.Image) -> int:
    """Maximum difference of any colour or alpha channel at any pixel: 0 to 255."""
    extrema = ImageChops.difference(one, other).getextrema()
    return max(int(band[1]) for band in extrema if isinstance(band, tuple))


@dataclass(frozen=True, slots=True)
class Still:
    """A representative frame, with a larger copy for reading if the picture is long and was scaled down."""

    index: int
    image: Image.Image
    digest: bytes
    legible: Image.Image | None


def stills(
    opened: Image.Image, structure: Structure, colours: Colours, limits: Limits, indices: Sequence[int]
) -> Iterator[Still]:
    """Yields the frames with these indices, without duplicates. Raises as Pillow."""
    seen: set[bytes] = set()
    turn = _TURNS.get(structure.orientation)
    legible_side = _legible_side(opened.size, limits)
    for index in indices:
        opened.seek(index)
        opened.load()
        upright, rest = _frame(opened, structure, colours)
        if turn is not None:
            upright = upright.transpose(turn)
        # Both scaled from the upright frame, as scaling twice would blur letters.
        still = _normal(upright, rest, limits.outgoing_side)
        digest = digest_of(still)
        # Compared after normalising: frames that look equal to a model are used once.
        if digest not in seen:
            seen.add(digest)
            legible = _normal(upright, rest, legible_side) if legible_side else None
            yield Still(index, still, digest, legible)


def decoding_size(size: tuple[int, int], limits: Limits) -> tuple[int, int]:
    """Returns the minimum width and height at which a large picture is decoded."""
    wanted = _SPARE * (_legible_side(size, limits) or limits.outgoing_side)
    width, height = (max(1, math.ceil(side * min(1.0, wanted / max(size)))) for side in size)
    return width, height


def _legible_side(size: tuple[int, int], limits: Limits) -> int | None:
    """Returns the longest side at which the text of a long picture is read; None for other pictures."""
    longer, shorter = max(size), min(size)
    if longer <= limits.outgoing_side or longer < limits.long_ratio * shorter:
        return None
    # The side at which a picture of this shape has as many pixels as a square of outgoing_side.
    return min(longer, int(limits.outgoing_side * math.sqrt(longer / shorter)))


def digest_of(still: Image.Image) -> bytes:
    """SHA-256 of size and pixels."""
    # Includes the size, as the same bytes in another shape are another picture.
    return hashlib.sha256(struct.pack(">II", *still.size) + still.tobytes()).digest()


def is_flat(image: Image.Image) -> bool:
    """True if all pixels have the same colour."""
    return image.getcolors(maxcolors=1) is not None


def as_png(still: Image.Image) -> bytes:
    """Encodes RGB pixels as a PNG without metadata; equal pixels give equal bytes."""
    # All lines use the "up" filter. Pillow tries five filters for each, and takes two to three times as long to save a
    # thirtieth for photographs and a sixth for drawings.
    width, height = still.size
    # As rows of bytes, three per pixel, which avoids converting between pixels and channels.
    row = (3 * width, height)
    bare = Image.frombuffer("L", row, still.tobytes())
    # For the first line PNG assumes zeros above, as in this image.
    above = Image.new("L", row)
    above.paste(bare, (0, 1))
    lines = Image.new("L", (3 * width + 1, height), _UP)
    lines.paste(ImageChops.subtract_modulo(bare, above), (1, 0))
    # Takes half the time of zlib at level 1 and compresses better. Its output depends on its version, as zlib's does,
    # but not on the CPU.
    data = zlib_ng.compress(lines.tobytes(), 2)
    eight_bit_rgb = (8, 2, 0, 0, 0)
    header = struct.pack(">II5B", width, height, *eight_bit_rgb)
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (header, data, b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))))


def upright_size(structure: Structure) -> tuple[int, int]:
    """Returns width and height of the upright canvas, in pixels."""
    if structure.orientation >= _SIDEWAYS:
        return structure.height, structure.width
    return structure.width, structure.height


def _frame(opened: Image.Image, structure: Structure, colours: Colours) -> tuple[Image.Image, Colours]:
    """Returns the current frame in a mode that can be averaged, and the conversion that it still needs."""
    frame = _resizable(opened, structure)
    if not colours.are_strong(frame.mode.removesuffix("A")):
        return frame, colours
    made = Image.new("RGBA" if frame.mode.endswith("A") else "RGB", frame.size)
    # In strips, as there is no memory for another copy of a large picture.
    for top in range(0, frame.height, _STRIP):
        box = (0, top, frame.width, min(frame.height, top + _STRIP))
        bare, alpha = _parted(frame.crop(box))
        strip = colours.to_srgb(bare)
        if alpha is not None:
            strip.putalpha(alpha)
        made.paste(strip, box)
    return made, Colours(None)


def _parted(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Parts an image into colours and alpha, as colour profiles do not cover alpha."""
    if not image.mode.endswith("A"):
        return image, None
    return image.convert(image.mode.removesuffix("A")), image.getchannel("A")


def _normal(upright: Image.Image, colours: Colours, side: int) -> Image.Image:
    # Ordinary colours are converted after scaling, which looks the same and takes a tenth of the time for large
    # pictures.
    bare, alpha = _parted(_fit(upright, side))
    still = colours.to_srgb(bare)
    if alpha is None:
        return still
    ground = Image.new("RGB", still.size, (_ground(still, alpha),) * 3)
    ground.paste(still, mask=alpha)
    return ground


def _ground(still: Image.Image, alpha: Image.Image) -> int:
    """Chooses the grey background of a transparent picture, so that its content stands out."""
    # White, as in most viewers; dark if parts of the picture are nearly white, such as the letters of a sticker; in
    # between if others are dark too. Otherwise letters would be invisible, and stickers with different words would be
    # equal.
    # Relative to the visible pixels, as thin letters cover only a small part of a picture.
    opaque = alpha.point([255 if level >= 128 else 0 for level in range(256)])
    levels = still.convert("L").histogram(mask=opaque)
    total = sum(levels)
    if not total or opaque.getextrema()[0] == 255:
        return 255
    light, dark = sum(levels[224:]) / total, sum(levels[:96]) / total
    if light < _PART:
        return 255
    return 48 if dark < _PART else 144


def _resizable(opened: Image.Image, structure: Structure) -> Image.Image:
    """Converts to a mode that supports averaging of pixels: L, LA, RGB, RGBA or CMYK."""
    if structure.format is PictureFormat.PNG:
        _scale_transparency(opened, structure.bits)
    if opened.mode.startswith("I;16"):
        return _eight_bits(opened)
    see_through = opened.has_transparency_data
    if opened.mode in ("1", "L", "LA"):
        mode = "LA" if see_through else "L"
    elif opened.mode == "CMYK":
        mode = "CMYK"
    else:
        mode = "RGBA" if see_through else "RGB"
    # Avoids a copy by Pillow, for which there may be no memory.
    return opened if opened.mode == mode else opened.convert(mode)


def _scale_transparency(opened: Image.Image, bits: int) -> None:
    """Scales the transparent colour of a PNG to the 8 bits of its pixels, which Pillow does not do."""
    colour = opened.info.get("transparency")
    # Frames can be read twice.
    if opened.info.setdefault("scaled", colour) != colour:
        return
    if opened.mode == "L" and isinstance(colour, int) and bits < 8:
        opened.info["transparency"] = colour * 255 // ((1 << bits) - 1)
    elif opened.mode == "RGB" and isinstance(colour, tuple) and bits == 16:
        opened.info["transparency"] = tuple(value >> 8 for value in colour)


def _eight_bits(opened: Image.Image) -> Image.Image:
    """Takes the upper byte of 16-bit grey values, as Pillow does for colours; its own conversion clips them."""
    values = opened.tobytes()
    upper = Image.frombytes("L", opened.size, values[1::2])
    colour = opened.info.get("transparency")
    if not isinstance(colour, int):
        return upper
    lower = Image.frombytes("L", opened.size, values[::2])
    same = ImageChops.multiply(_where(upper, colour >> 8), _where(lower, colour & 0xFF))
    return Image.merge("LA", (upper, ImageChops.invert(same)))


def _where(channel: Image.Image, value: int) -> Image.Image:
    return channel.point([255 if level == value else 0 for level in range(256)])


def _fit(still: Image.Image, side: int) -> Image.Image:
    longest = max(still.size)
    if longest <= side:
        return still
    # At least one pixel remains of thin pictures.
    width, height = (max(1, round(length * side / longest)) for length in still.size)
    return still.resize((width, height), Image.Resampling.LANCZOS)


def digest_of_frames(digests: Iterable[bytes], *, shown_otherwise: bool) -> str:
    """Returns the digest of a picture, in hex, from those of its frames."""
    pixels = hashlib.sha256(PIXELS_VERSION)
    # Never the digest of a file that all viewers show alike, whose verdict would be reused.
    if shown_otherwise:
        pixels.update(b"shown otherwise\n")
    for digest in digests:
        pixels.update(digest)
    return pixels.hexdigest()


def has_pixels(frames: Sequence[bytes], digest: str) -> bool:
    """True if PNG files, in order, are the frames of the picture with this digest. Raises ValueError."""
    return any(pixels_sha256(frames, shown_otherwise=otherwise) == digest for otherwise in (False, True))


def pixels_sha256(frames: Sequence[bytes], *, shown_otherwise: bool = False) -> str:
    """Returns the digest of the pixels of all frames, in hex, as in :class:`court.meme.Picture`.

    Raises:
        ValueError: The files are not frames of a picture.
    """
    digests = []
    for frame in frames:
        try:
            # Validated although it is our own file, as the storage of pictures may have been tampered with.
            if parse_structure(frame, LIMITS).format is not PictureFormat.PNG or not _bare(frame):
                raise ValueError("a frame is no PNG file of ours")
            with Image.open(BytesIO(frame), formats=["PNG"]) as still:
                if still.mode != "RGB" or max(still.size) > LIMITS.outgoing_side:
                    raise ValueError("a frame is none of ours")
                digests.append(digest_of(still))
        except Refused as refused:
            raise ValueError("a frame is no picture") from refused
        except Exception as error:  # decoders raise many kinds of exception
            raise ValueError("a frame can't be read") from error
    return digest_of_frames(digests, shown_otherwise=shown_otherwise)


def _bare(png: bytes) -> bool:
    """True if a PNG file contains only pixels, as ours do."""
    place, kinds = len(b"\x89PNG\r\n\x1a\n"), []
    while place + 12 <= len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        kinds.append(png[place + 4 : place + 8])
        place += 12 + length
    pixels = kinds[1:-1]
    return place == len(png) and kinds == [b"IHDR", *[b"IDAT"] * len(pixels), b"IEND"] and bool(pixels)
