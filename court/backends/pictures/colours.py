"""Colour instructions of a picture file, applied as browsers apply them.

Browsers follow ICC profiles in every format, and in PNG also cICP, sRGB, gAMA and cHRM. Most of these barely change a
picture; some make content visible or invisible, so that people would see another picture than a decoder that ignores
them. All become one ICC profile here, which LittleCMS applies.

Runs only in a sandboxed worker.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from itertools import pairwise
from operator import mul

from PIL import Image, ImageChops, ImageCms

from court.backends.pictures.refusals import Refused

PROFILE_MOST = 16 * 1024 * 1024
"""Maximum size of a colour profile, in bytes; those of printers have up to 3 MiB."""
_SRGB = ImageCms.createProfile("sRGB")
_SPACES = {"GRAY": "L", "RGB ": "RGB", "CMYK": "CMYK"}
"""Mode of the pixels that a profile describes, by its colour space."""
_GREYS_MOST = 80
"""Largest change of a grey level that counts as usual; linear light (a gamma of 1) changes some by 73."""
_STEP_MOST = 32
"""Largest difference between two successive levels that counts as usual; linear light has 13."""
_LINE = bytes(range(256))
_ERRORS = (ImageCms.PyCMSError, OSError, ValueError, TypeError)

Point = tuple[float, float]
Primaries = tuple[Point, Point, Point, Point]
"""Chromaticities x and y of white, red, green and blue."""
Curve = Callable[[float], float]
"""Light for a level, both from 0 to 1."""

_D65, _C = (0.3127, 0.3290), (0.310, 0.316)
_BT_709: Primaries = (_D65, (0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
_SMPTE_170: Primaries = (_D65, (0.630, 0.340), (0.310, 0.595), (0.155, 0.070))
# By the code points of ITU-T H.273 that Chromium supports; files with others are shown as if there was no cICP.
_PRIMARIES: dict[int, Primaries] = {
    1: _BT_709,
    4: (_C, (0.67, 0.33), (0.21, 0.71), (0.14, 0.08)),
    5: (_D65, (0.64, 0.33), (0.29, 0.60), (0.15, 0.06)),
    6: _SMPTE_170,
    7: _SMPTE_170,
    8: (_C, (0.681, 0.319), (0.243, 0.692), (0.145, 0.049)),
    9: (_D65, (0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),
    10: ((1 / 3, 1 / 3), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)),
    11: ((0.314, 0.351), (0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
    12: (_D65, (0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
    22: (_D65, (0.630, 0.340), (0.295, 0.605), (0.155, 0.077)),
}


def _power(exponent: float) -> Curve:
    return lambda level: math.pow(level, exponent)


def _srgb(level: float) -> float:
    return level / 12.92 if level <= 0.04045 else math.pow((level + 0.055) / 1.055, 2.4)


def _smpte_240(level: float) -> float:
    return level / 4.0 if level < 0.0913 else math.pow((level + 0.1115) / 1.1115, 1 / 0.45)


def _smpte_428(level: float) -> float:
    return min(1.0, 52.37 / 48 * math.pow(level, 2.6))


def _pq(level: float) -> float:
    """Light of SMPTE 2084, mapped to the range of an ordinary screen as Chromium does for greys."""
    root = math.pow(level, 1 / 78.84375)
    ratio = max(0.0, root - 0.8359375) / (18.8515625 - 18.6875 * root)
    nits = 10_000 * math.pow(ratio, 1 / 0.1593017578125)
    light, most = nits / 203, 1000 / 203
    return min(1.0, light * (1 + light / most**2) / (1 + light))


def _hlg(level: float) -> float:
    return level * level / 3 if level <= 0.5 else (math.exp((level - 0.55991073) / 0.17883277) + 0.28466892) / 12


_CURVES: dict[int, Curve] = {
    **dict.fromkeys((1, 6, 11, 14, 15), _power(2.4)),  # as Chromium, by BT.1886, not by the camera's curve
    4: _power(2.2),
    5: _power(2.8),
    7: _smpte_240,
    8: _power(1.0),
    13: _srgb,
    16: _pq,
    17: _smpte_428,
    18: _hlg,
}
_HIGH_RANGE = frozenset({16, 18})
"""Curves with more light than a screen shows; each viewer maps them in its own way."""


class Colours:
    """Conversion of a picture's colours to sRGB."""

    def __init__(self, profile: bytes | None, *, unsure: bool = False) -> None:
        self._unsure = unsure
        self._source = None if profile is None else readable(profile)
        self._given = profile is not None
        self._transforms: dict[str, ImageCms.ImageCmsTransform | None] = {}
        self._strong: dict[str, bool] = {}

    def to_srgb(self, image: Image.Image) -> Image.Image:
        """Converts an image of mode L, RGB or CMYK to RGB; leaves its colours without a valid profile."""
        mode = self._mode(image.mode)
        transform = self._transform(mode)
        if transform is None:
            return image.convert("RGB")
        converted = ImageCms.applyTransform(image if image.mode == mode else image.convert(mode), transform)
        assert converted is not None, "not in place"
        return converted

    def are_strong(self, mode: str) -> bool:
        """True if pixels of this mode change so much that they must be converted before they are averaged."""
        # Averaging hides differences between levels that a steep curve would show, such as letters of level 255 on 247.
        if mode not in self._strong:
            self._strong[mode] = self._changes_much(mode)
        return self._strong[mode]

    @property
    def unusual(self) -> bool:
        """True if some viewers show another picture: they ignore the instructions, or read them differently."""
        return self._unsure or any(self._strong.values())

    def _mode(self, mode: str) -> str:
        # Browsers apply profiles for colours to grey pictures too.
        colours = self._source is not None and self._source.profile.xcolor_space == "RGB "
        return "RGB" if mode == "L" and colours else mode

    def _transform(self, mode: str) -> ImageCms.ImageCmsTransform | None:
        if mode not in self._transforms:
            transform = None
            # A profile for another colour space would be applied to the wrong channels.
            if self._source is not None and _SPACES.get(self._source.profile.xcolor_space) == mode:
                with suppress(*_ERRORS):
                    transform = ImageCms.buildTransform(self._source, _SRGB, mode, "RGB")
            # Browsers ignore broken profiles too, but not all agree which are broken.
            self._unsure |= self._given and transform is None
            self._transforms[mode] = transform
        return self._transforms[mode]

    def _changes_much(self, mode: str) -> bool:
        if self._transform(self._mode(mode)) is None:
            return False
        greys, *others = _probes(mode)
        plain, made = greys.convert("RGB"), self.to_srgb(greys)
        changes = ImageChops.difference(plain, made)
        if any(max(changes.getchannel(band).tobytes()) > _GREYS_MOST for band in range(3)):
            return True
        lines = (made, *(self.to_srgb(other) for other in others))
        return any(_longest_step(line.getchannel(band)) > _STEP_MOST for line in lines for band in range(3))


def _probes(mode: str) -> Iterator[Image.Image]:
    line, none = Image.frombytes("L", (256, 1), _LINE), Image.new("L", (256, 1))
    if mode == "L":
        yield line
        return
    if mode == "CMYK":
        yield Image.merge(mode, (none, none, none, line))
    else:
        yield Image.merge(mode, (line, line, line))
    for channel in range(len(mode)):
        yield Image.merge(mode, [line if channel == at else none for at in range(len(mode))])


def _longest_step(line: Image.Image) -> int:
    return max(abs(one - other) for one, other in pairwise(line.tobytes()))


def profile_of_png(chunks: Mapping[bytes, bytes]) -> tuple[bytes | None, bool]:
    """Returns the ICC profile of a PNG by its chunks, and whether viewers disagree about it.

    Raises:
        Refused: Browsers don't show the picture, because its pixels are no RGB.
    """
    # The order is that of the PNG standard: cICP, iCCP, sRGB, and gAMA with cHRM.
    if cicp := chunks.get(b"cICP"):
        primaries, transfer, matrix, full = cicp
        if matrix or full > 1:
            raise Refused("PICTURE_DAMAGED")
        if full and primaries in _PRIMARIES and transfer in _CURVES:
            return _profile(_PRIMARIES[primaries], _CURVES[transfer]), transfer in _HIGH_RANGE
    # Browsers fall through to the other chunks if it is none.
    if (profile := chunks.get(b"iCCP")) is not None and readable(profile) is not None:
        return profile, False
    if profile is not None and len(profile) > PROFILE_MOST:
        return None, True
    if b"sRGB" in chunks or b"gAMA" not in chunks:
        return None, False
    (gamma,) = struct.unpack(">I", chunks[b"gAMA"])
    primaries_of_file = _BT_709
    if b"cHRM" in chunks:
        values = [value / 100_000 for value in struct.unpack(">8I", chunks[b"cHRM"])]
        white, red, green, blue = zip(values[::2], values[1::2], strict=True)
        primaries_of_file = white, red, green, blue
    # libpng's tolerance, within which a file counts as sRGB.
    elif 43182 <= gamma <= 47727:
        return None, False
    made = _profile(primaries_of_file, _power(100_000 / gamma))
    return made, made is None


def unpack_profile(body: bytes) -> bytes | None:
    """Decompresses the profile of an iCCP chunk, up to one byte more than PROFILE_MOST; None if it is damaged."""
    name, _, packed = body.partition(b"\0")
    unpacker = zlib.decompressobj()
    try:
        # Bounded, as a few bytes may decompress to gigabytes.
        profile = unpacker.decompress(packed[1:], PROFILE_MOST + 1)
    except zlib.error:
        return None
    whole = unpacker.eof or len(profile) > PROFILE_MOST
    return profile if 1 <= len(name) <= 79 and packed[:1] == b"\0" and whole else None


def readable(profile: bytes) -> ImageCms.ImageCmsProfile | None:
    """Opens an ICC profile; None if it is broken or too large."""
    if len(profile) > PROFILE_MOST:
        return None
    with suppress(*_ERRORS):
        return ImageCms.ImageCmsProfile(BytesIO(profile))
    return None


Matrix = list[list[float]]
_D50 = (0.9642, 1.0, 0.8249)
_BRADFORD: Matrix = [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]


def _profile(primaries: Primaries, curve: Curve) -> bytes | None:
    """Writes an ICC profile (version 2.4) of an RGB space; None if the primaries span none."""
    try:
        columns = [_number("XYZ ", column) for column in zip(*_to_d50(primaries), strict=True)]
    except (ZeroDivisionError, struct.error):
        return None
    # One entry for each level of a pixel, so that nothing is interpolated.
    levels = struct.pack(">I256H", 256, *(round(65535 * curve(level / 255)) for level in range(256)))
    tags = dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns, strict=True))
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), b"curv\0\0\0\0" + levels) | {b"wtpt": _number("XYZ ", _D50)}
    at = 132 + 12 * len(tags)
    table, bodies = struct.pack(">I", len(tags)), b""
    for name, body in tags.items():
        table += struct.pack(">4sII", name, at + len(bodies), len(body))
        bodies += body
    head = struct.pack(">I4xI4s4s4s12x4s28x", at + len(bodies), 0x02400000, b"mntr", b"RGB ", b"XYZ ", b"acsp")
    return (head + _number("", _D50)).ljust(128, b"\0") + table + bodies


def _number(kind: str, values: tuple[float, ...]) -> bytes:
    head = kind.encode() + bytes(4) if kind else b""
    return head + struct.pack(f">{len(values)}i", *(round(65536 * value) for value in values))


def _to_d50(primaries: Primaries) -> Matrix:
    """Returns the matrix from linear RGB to XYZ under D50, adapted by Bradford's method."""
    if not all(0 <= value <= 1 for point in primaries for value in point):
        raise ZeroDivisionError
    # As XYZ of any brightness, so that primaries with y = 0 are possible.
    white, *three = ([x, y, 1 - x - y] for x, y in primaries)
    white = [value / white[1] for value in white]
    unscaled = [list(row) for row in zip(*three, strict=True)]
    scales = _times(_inverse(unscaled), [[value] for value in white])
    matrix = [[value * scale for value, (scale,) in zip(row, scales, strict=True)] for row in unscaled]
    seen, wanted = (_times(_BRADFORD, [[value] for value in point]) for point in (white, _D50))
    ratios = [[wanted[row][0] / seen[row][0] if row == column else 0.0 for column in range(3)] for row in range(3)]
    return _times(_times(_times(_inverse(_BRADFORD), ratios), _BRADFORD), matrix)


def _times(one: Matrix, other: Matrix) -> Matrix:
    columns = list(zip(*other, strict=True))
    return [[sum(map(mul, row, column)) for column in columns] for row in one]


def _inverse(matrix: Matrix) -> Matrix:
    """Inverts a 3 x 3 matrix by its cofactors. Raises ZeroDivisionError."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    adjugate = [
        [e * i - f * h, c * h - b * i, b * f - c * e],
        [f * g - d * i, a * i - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ]
    determinant = a * adjugate[0][0] + b * adjugate[1][0] + c * adjugate[2][0]
    return [[value / determinant for value in row] for row in adjugate]
