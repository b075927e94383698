"""Draws the pictures of synthetic memes, and reads the badge from a picture's pixels."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

from eval.synthetic.scenes import SCENES, draw_meme
from eval.synthetic.world import GROUPS, Badge, Colour, Shape

__all__ = ["SCENES", "SIZE", "draw", "png_of", "read_badge"]

SIZE = (640, 480)
"""Width and height of a meme's picture, in pixels, where nothing else is asked for."""

_RADIUS = 0.16  # radius of the white disc behind a badge, in picture heights
_SIGN = 0.09  # size of the sign on it, likewise
_WHITE: Colour = (255, 255, 255)
_LOOKED_AT = 0.03  # half the side of the central square that is examined, in picture heights
_NEAR_COLOUR = 60.0  # maximum Euclidean distance between a colour and a badge's, with channels up to 255


def draw(scene: str, seed: int, badge: str, text: str, *, size: tuple[int, int] = SIZE) -> Image.Image:
    """Draws a meme: a scene of the starter library, a group's badge in the middle, the text above and below.

    The same arguments give the same pixels with the same version of Pillow.
    """
    image = draw_meme(scene, text, size=size, seed=seed)
    canvas = ImageDraw.Draw(image)
    width, height = image.size
    x, y, radius = width / 2, height / 2, _RADIUS * height
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_WHITE, outline=(25, 25, 30), width=3)
    _sign(canvas, GROUPS[badge], x=x, y=y, r=_SIGN * height)
    return image


def png_of(image: Image.Image, *, level: int = 6) -> bytes:
    """Encodes the picture as PNG. Another level of compression gives other bytes for the same pixels."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=level)
    return file.getvalue()


def read_badge(picture: bytes) -> str | None:
    """Reads the badge on a picture; None if it shows none.

    It examines the pixels: a patch in the middle must have approximately the colour of one badge, and the disc around
    it must be approximately white. So it works for scaled or compressed pictures, and not for other changes.
    """
    with Image.open(io.BytesIO(picture)) as image:
        pixels = image.convert("RGB")
    width, height = pixels.size
    half = _LOOKED_AT * height
    patch = pixels.crop((round(width / 2 - half), round(height / 2 - half), round(width / 2 + half) + 1,
                         round(height / 2 + half) + 1))  # fmt: skip
    # The mean of the patch, so that single pixels changed by compression do not matter.
    colour = patch.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    # On the white ring: outside the largest sign (1.3 x _SIGN), inside the disc and its outline.
    around = [
        pixels.getpixel(
            (round(width / 2 + dx * 0.86 * _RADIUS * height), round(height / 2 + dy * 0.86 * _RADIUS * height))
        )
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    if any(_distance(each, _WHITE) > _NEAR_COLOUR for each in around):
        return None
    nearest = min(GROUPS, key=lambda group: _distance(colour, GROUPS[group].colour))
    return nearest if _distance(colour, GROUPS[nearest].colour) <= _NEAR_COLOUR else None


def _sign(canvas: ImageDraw.ImageDraw, badge: Badge, x: float, y: float, r: float) -> None:
    match badge.shape:
        case Shape.DISC:
            canvas.ellipse((x - r, y - r, x + r, y + r), fill=badge.colour)
        case Shape.SQUARE:
            canvas.rectangle((x - r, y - r, x + r, y + r), fill=badge.colour)
        case Shape.TRIANGLE:
            canvas.polygon(
                [(x, y - 1.3 * r), (x - 1.2 * r, y + 0.8 * r), (x + 1.2 * r, y + 0.8 * r)], fill=badge.colour
            )
        case Shape.DIAMOND:
            canvas.polygon([(x, y - 1.2 * r), (x + 1.2 * r, y), (x, y + 1.2 * r), (x - 1.2 * r, y)], fill=badge.colour)


def _distance(one: object, other: Sequence[float]) -> float:
    assert isinstance(one, tuple)  # of an RGB picture
    return math.dist(one, other)
