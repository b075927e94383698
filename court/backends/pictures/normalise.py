"""From a decoded picture to the one form that goes on: upright RGB in sRGB, opaque, bounded, bare of metadata.

Runs in a guarded worker only.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, ImageChops, ImageCms
from zlib_ng import zlib_ng

from court.backends.pictures.refusals import Refused
from court.backends.pictures.structure import Structure, parse_structure
from court.meme import LIMITS, Limits, PictureFormat

PIXELS_VERSION = b"memecourt pixels 1\n"
"""Stands before what ``pixels_sha256`` digests; to be changed together with anything that changes a pixel."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = frozenset(_TURNS[value] for value in (5, 6, 7, 8))
_PROFILE_MOST = 4 * 1024 * 1024
"""Size of a colour profile, in bytes; those of printers have up to 3 MiB."""
_PROFILE_SPACES = {"L": "GRAY", "RGB": "RGB ", "CMYK": "CMYK"}
_PART = 0.02
"""Share of what can be seen of a picture from which a light or dark part counts when a ground is chosen."""
_GLANCE = (48, 48)
"""Size at which frames of an animation are compared, in pixels: a word changes some of them much, grain none."""
_UNLIKE = 20
"""Difference at some place, in 0 to 255, from which two frames look unlike."""
_SPARE = 1.5
"""Size of a picture that is scaled down while it is decoded, over that at which it goes on: the rest is averaged."""
_UP = 2
"""PNG's mark of a line that is told by how it differs from the one above."""
_SRGB = ImageCms.createProfile("sRGB")


def representative(opened: Image.Image, structure: Structure, limits: Limits) -> tuple[list[int], int]:
    """Which frames go on, in order, and how many others look unlike all of them. Whatever Pillow raises comes through.

    The first, and then the one that differs most from all that were chosen, until none looks unlike them. Frames at
    fixed places would be seen by whoever makes the file, who could put what matters between them.
    """
    # Nearly every meme: nothing is compared, and the frame is decoded once.
    if structure.frames == 1:
        return [0], 0
    small = []
    for index in range(structure.frames):
        opened.seek(index)
        # One small picture a frame: all frames at once would not fit into the worker's memory.
        small.append(_glance(opened))
    chosen, away = [0], [_change(small[0], other) for other in small]
    while len(chosen) < limits.representative_frames and max(away) >= _UNLIKE:
        farthest = away.index(max(away))
        chosen.append(farthest)
        away = [min(before, _change(small[farthest], other)) for before, other in zip(away, small, strict=True)]
    return sorted(chosen), sum(each >= _UNLIKE for each in away)


def _glance(frame: Image.Image) -> Image.Image:
    if frame.mode == "RGB" and not frame.has_transparency_data:
        # To the bit the same as the other way, without a copy of the whole: most frames of animations are of this kind.
        return frame.resize(_GLANCE, Image.Resampling.BOX).convert("RGBA")
    return frame.convert("RGBA").resize(_GLANCE, Image.Resampling.BOX)


def _change(one: Image.Image, other: Image.Image) -> int:
    """Greatest difference of any colour, or of how much can be seen through, at any place: 0 to 255."""
    extrema = ImageChops.difference(one, other).getextrema()
    return max(int(band[1]) for band in extrema if isinstance(band, tuple))


@dataclass(frozen=True, slots=True)
class Still:
    """A representative frame.

    Attributes:
        index: Which frame of the file.
        image: Normalised.
        digest: SHA-256 of size and pixels.
        legible: The same larger, where the picture is long and was scaled down; else None.
    """

    index: int
    image: Image.Image
    digest: bytes
    legible: Image.Image | None


def stills(opened: Image.Image, structure: Structure, limits: Limits, indices: Sequence[int]) -> Iterator[Still]:
    """The frames with these indices, repeated ones left out. Whatever Pillow raises comes through."""
    seen: set[bytes] = set()
    turn = _turn(opened)
    legible_side = _legible_side(opened.size, limits)
    for index in indices:
        opened.seek(index)
        opened.load()
        profile = opened.info.get("icc_profile")
        upright = _resizable(opened, structure)
        if turn is not None:
            upright = upright.transpose(turn)
        # Each from the upright frame: scaled down twice, letters would lose their edges.
        still = _normal(upright, profile, limits.outgoing_side)
        digest = digest_of(still)
        # After normalising: frames that differ in nothing a model would see are shown once.
        if digest not in seen:
            seen.add(digest)
            legible = _normal(upright, profile, legible_side) if legible_side else None
            yield Still(index, still, digest, legible)


def decoding_size(size: tuple[int, int], limits: Limits) -> tuple[int, int]:
    """Width and height at which a picture of this size is decoded at least, where it is scaled down on the way."""
    wanted = _SPARE * (_legible_side(size, limits) or limits.outgoing_side)
    width, height = (max(1, math.ceil(side * min(1.0, wanted / max(size)))) for side in size)
    return width, height


def _legible_side(size: tuple[int, int], limits: Limits) -> int | None:
    """Longest side at which the text of a long picture is read; None for other pictures."""
    longer, shorter = max(size), min(size)
    if longer <= limits.outgoing_side or longer < limits.long_ratio * shorter:
        return None
    # The side at which a picture of this shape has as many pixels as a square of outgoing_side.
    return min(longer, int(limits.outgoing_side * math.sqrt(longer / shorter)))


def digest_of(still: Image.Image) -> bytes:
    """SHA-256 of size and pixels."""
    # With the size: the same bytes in another shape are another picture.
    return hashlib.sha256(struct.pack(">II", *still.size) + still.tobytes()).digest()


def is_flat(image: Image.Image) -> bool:
    """True if all pixels have the same colour, so that there is nothing to see."""
    return image.getcolors(maxcolors=1) is not None


def as_png(still: Image.Image) -> bytes:
    """Encodes RGB pixels as a PNG without metadata; equal pixels give equal bytes.

    Every line is told by how it differs from the one above. Pillow tries five ways for each, and takes two to three
    times as long to save a thirtieth in photographs and a sixth in drawings.
    """
    width, height = still.size
    # As bytes in a row, three a pixel: so nothing is taken apart into pixels and put together again on the way.
    row = (3 * width, height)
    bare = Image.frombuffer("L", row, still.tobytes())
    # Above the first line PNG takes zeros, as this picture has them.
    above = Image.new("L", row)
    above.paste(bare, (0, 1))
    lines = Image.new("L", (3 * width + 1, height), _UP)
    lines.paste(ImageChops.subtract_modulo(bare, above), (1, 0))
    # In half the time of zlib at its first level, and smaller. What it writes depends on its version, as zlib's does,
    # and not on the processor.
    data = zlib_ng.compress(lines.tobytes(), 2)
    eight_bit_rgb = (8, 2, 0, 0, 0)
    header = struct.pack(">II5B", width, height, *eight_bit_rgb)
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (header, data, b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))))


def upright_size(opened: Image.Image, structure: Structure) -> tuple[int, int]:
    """Width and height of the whole canvas when it has been put upright, in pixels."""
    if _turn(opened) in _SIDEWAYS:
        return structure.height, structure.width
    return structure.width, structure.height


def _normal(upright: Image.Image, profile: bytes | None, side: int) -> Image.Image:
    # Colours are converted after scaling down: the same to the eye, and a tenth of the time where it matters.
    still = _fit(upright, side)
    # Taken off before colours are converted: profiles know nothing of it.
    alpha = still.getchannel("A") if still.mode in ("LA", "RGBA") else None
    if still.mode in ("LA", "RGBA"):
        still = still.convert(still.mode.removesuffix("A"))
    still = _in_srgb(still, profile)
    if alpha is None:
        return still
    ground = Image.new("RGB", still.size, (_ground(still, alpha),) * 3)
    ground.paste(still, mask=alpha)
    return ground


def _ground(still: Image.Image, alpha: Image.Image) -> int:
    """The grey that a picture is laid on where it can be seen through, so that what it shows stands out.

    White, as almost everything shows it; where parts of the picture are nearly white themselves, such as the letters of
    a sticker, dark, and where others are dark too, in between. Letters would be lost, and two stickers with different
    words would be one picture.
    """
    # Thin letters cover little of a picture: what counts is their share of what can be seen at all.
    opaque = alpha.point([255 if level >= 128 else 0 for level in range(256)])
    levels = still.convert("L").histogram(mask=opaque)
    total = sum(levels)
    if not total or opaque.getextrema()[0] == 255:
        return 255
    light, dark = sum(levels[224:]) / total, sum(levels[:96]) / total
    if light < _PART:
        return 255
    return 48 if dark < _PART else 144


def _turn(opened: Image.Image) -> Image.Transpose | None:
    """Reads the orientation from the EXIF block alone, as browsers do.

    Orientation in other metadata turns no picture for people either.
    """
    exif = opened.info.get("exif")
    return _TURNS.get(_orientation(exif)) if isinstance(exif, bytes) else None


def _orientation(exif: bytes) -> int:
    """The orientation in an EXIF block, 1 to 8; 1 where it says none or is broken.

    By hand, for Pillow would unpack every other tag as well.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    # Bytes of a stranger: whatever is no valid tag at a valid place counts as none, and the picture stays as it is.
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
            # The orientation; type 3 is a number of 16 bits, which stands in the entry itself.
            if tag == 0x0112:
                return value if kind == 3 and count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _resizable(opened: Image.Image, structure: Structure) -> Image.Image:
    """In a mode in which neighbouring pixels can be averaged: L, LA, RGB, RGBA or CMYK."""
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
    # Pillow would copy it, and there may be no memory for a copy.
    return opened if opened.mode == mode else opened.convert(mode)


def _scale_transparency(opened: Image.Image, bits: int) -> None:
    """Brings the transparent colour of a PNG to the 8 bits of its pixels; Pillow leaves it as it stands in the file."""
    colour = opened.info.get("transparency")
    if opened.mode == "L" and isinstance(colour, int) and bits < 8:
        opened.info["transparency"] = colour * 255 // ((1 << bits) - 1)
    elif opened.mode == "RGB" and isinstance(colour, tuple) and bits == 16:
        opened.info["transparency"] = tuple(value >> 8 for value in colour)


def _eight_bits(opened: Image.Image) -> Image.Image:
    """The upper byte of each 16-bit grey value, as Pillow itself does for colours; its own conversion clips."""
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
    # However thin a picture gets, a line of it stays.
    width, height = (max(1, round(length * side / longest)) for length in still.size)
    return still.resize((width, height), Image.Resampling.LANCZOS)


def _in_srgb(still: Image.Image, profile: bytes | None) -> Image.Image:
    """Converts to sRGB by the picture's colour profile where that is valid and of its kind.

    Else leaves colours as they are.
    """
    # A bound for LittleCMS, which parses it in C: a profile is a stranger's as well.
    if profile and len(profile) <= _PROFILE_MOST:
        try:
            source = ImageCms.ImageCmsProfile(BytesIO(profile))
            # A profile of another kind of colours would be applied to the wrong channels.
            if source.profile.xcolor_space == _PROFILE_SPACES.get(still.mode):
                converted = ImageCms.profileToProfile(still, source, _SRGB, outputMode="RGB")
                if converted is not None:
                    return converted
        except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
            pass  # a broken profile is no reason to refuse a picture that is shown without it everywhere else
    return still.convert("RGB")


def pixels_sha256(frames: Sequence[bytes]) -> str:
    """The digest of the pixels of all frames, in hex, as :class:`court.meme.Picture` has it.

    Args:
        frames: PNG files, in order.

    Raises:
        ValueError: These are no frames of a picture.
    """
    pixels = hashlib.sha256(PIXELS_VERSION)
    for frame in frames:
        try:
            # Checked before it is opened, though it is a file of ours: the place where pictures lie may have been
            # written to.
            if parse_structure(frame, LIMITS).format is not PictureFormat.PNG or not _bare(frame):
                raise ValueError("a frame is no PNG file of ours")
            with Image.open(BytesIO(frame), formats=["PNG"]) as still:
                if still.mode != "RGB" or max(still.size) > LIMITS.outgoing_side:
                    raise ValueError("a frame is none of ours")
                pixels.update(digest_of(still))
        except Refused as refused:
            raise ValueError("a frame is no picture") from refused
        except Exception as error:  # decoders throw whatever they stumble over
            raise ValueError("a frame can't be read") from error
    return pixels.hexdigest()


def _bare(png: bytes) -> bool:
    """True if a PNG file holds pixels and nothing else, as ours do."""
    place, kinds = len(b"\x89PNG\r\n\x1a\n"), []
    while place + 12 <= len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        kinds.append(png[place + 4 : place + 8])
        place += 12 + length
    pixels = kinds[1:-1]
    return place == len(png) and kinds == [b"IHDR", *[b"IDAT"] * len(pixels), b"IEND"] and bool(pixels)
