"""Draws simple scenes with a text as caption, among them the memes of the starter library.

Every pixel is determined by scene, text, size, seed and the version of Pillow. A scene never depends on a label.
``shapes`` has a template for each: a shape a line, which is a method of the canvas and its arguments.
``python -m eval.synthetic.scenes`` writes the pictures that the starter library ships.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image, ImageDraw, ImageFont

_Colour = tuple[int, int, int]
_Point = tuple[float, float]

_LARGEST, _SMALLEST = 40, 8  # caption size on a picture 640 pixels wide, in pixels
_LINE = 1.22  # line height, in font sizes
_BAND = 0.42  # maximum height of a caption block, as a share of the picture's height
_MARGIN = 0.03  # margin on every side, as a share of the picture's width
_SPACE = 1.45  # gap between two words, in spaces of the font
_SHADE = 0.5  # opacity of the black behind a caption


@dataclass(frozen=True, slots=True)
class CaptionLine:
    """One line of a caption and its position."""

    text: str
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of the drawn line with its outline, in pixels."""
    origin: tuple[float, float]
    """Start position for Pillow, in pixels."""
    font_size: int
    outline: int


class _Canvas:
    """A picture addressed in hundredths of its width and height, so that every scene fits every size."""

    def __init__(self, image: Image.Image) -> None:
        self._draw = ImageDraw.Draw(image)
        self._width, self._height = image.size
        self._unit = min(self._width / 100, self._height / 75)

    def _at(self, x: float, y: float) -> _Point:
        return x * self._width / 100, y * self._height / 100

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: _Colour, round_by: float = 0) -> None:
        """A rectangle, its corners rounded by ``round_by`` units."""
        self._draw.rounded_rectangle((*self._at(x0, y0), *self._at(x1, y1)), round_by * self._unit, fill=fill)

    def dot(self, x: float, y: float, radius: float, fill: _Colour) -> None:
        """A circle; the radius is in hundredths of the width of a 4:3 picture."""
        self.oval(x, y, half_width=radius, half_height=radius, fill=fill)

    def oval(self, x: float, y: float, half_width: float, half_height: float, fill: _Colour) -> None:
        """An ellipse around a point, with half axes in the same units as a dot's radius."""
        cx, cy = self._at(x, y)
        dx, dy = half_width * self._unit, half_height * self._unit
        self._draw.ellipse((cx - dx, cy - dy, cx + dx, cy + dy), fill=fill)

    def shape(self, fill: _Colour, *points: _Point) -> None:
        """A filled polygon."""
        self._draw.polygon([self._at(x, y) for x, y in points], fill=fill)

    def line(self, fill: _Colour, width: float, *points: _Point) -> None:
        """A line through the points."""
        pixels = max(1, round(width * self._unit))
        self._draw.line([self._at(x, y) for x, y in points], fill=fill, width=pixels, joint="curve")

    def arc(self, x: float, y: float, radius: float, start: float, end: float, fill: _Colour, width: float) -> None:
        """A part of a circle, from one angle to another, in degrees clockwise from three o'clock."""
        cx, cy = self._at(x, y)
        r = radius * self._unit
        pixels = max(1, round(width * self._unit))
        self._draw.arc((cx - r, cy - r, cx + r, cy + r), start, end, fill=fill, width=pixels)

    def fade(self, top: _Colour, bottom: _Colour, y0: float = 0, y1: float = 100) -> None:
        """A vertical gradient over the whole width."""
        first, last = round(y0 * self._height / 100), round(y1 * self._height / 100)
        for y in range(first, last):
            share = (y - first) / max(1, last - first - 1)
            red, green, blue = (round(a + (b - a) * share) for a, b in zip(top, bottom, strict=True))
            self._draw.line(((0, y), (self._width, y)), fill=(red, green, blue))


_SKINS = ("#60aabe", "#9678c8", "#78b46e", "#e1965a")  # not real skin colours
_BRIGHT = ("#dc4646", "#3c78d2", "#f5b432", "#46a55f", "#965abe")
_SHAPES = PackageLoader("eval.synthetic", "shapes")
_SCENES = Environment(loader=_SHAPES, line_statement_prefix="%", undefined=StrictUndefined)
_SCENES.globals |= {"bright": _BRIGHT, "skins": _SKINS, "sin": math.sin, "cos": math.cos, "radians": math.radians}


def _paint(image: Image.Image, scene: str, rng: random.Random) -> None:
    # The number of draws matters: one more in a scene changes all that is drawn later, and so the library's digest.
    draws = {name: getattr(rng, name) for name in ("choice", "randint", "random", "sample", "uniform")}
    canvas = _Canvas(image)
    for line in _SCENES.get_template(f"{scene}.jinja").render(draws).splitlines():
        if words := line.split():
            getattr(canvas, words[0])(*map(_value, words[1:]))


def _value(word: str) -> _Colour | _Point | float:
    if word.startswith("#"):
        red, green, blue = bytes.fromhex(word[1:])
        return red, green, blue
    x, comma, y = word.partition(",")
    return (float(x), float(y)) if comma else float(x)


SCENES: tuple[str, ...] = tuple(sorted(name.removesuffix(".jinja") for name in _SCENES.list_templates()))
"""The names of the scenes, sorted."""


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size=size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("Pillow was built without FreeType, so captions can't be drawn. Install a wheel from PyPI.")
    return font


def _pieces(word: str, fits: Callable[[str], bool]) -> list[str]:
    """Splits a word that is wider than a line into pieces that fit; other words stay whole."""
    if fits(word):
        return [word]
    pieces, piece = [], ""
    for character in word:
        # A single character always counts as fitting, so that splitting terminates.
        if piece and not fits(piece + character):
            pieces.append(piece)
            piece = ""
        piece += character
    return [*pieces, piece]


def _wrap(text: str, fits: Callable[[str], bool]) -> list[str]:
    lines, line = [], ""
    for word in [piece for whole in text.split() for piece in _pieces(whole, fits)]:
        longer = f"{line} {word}" if line else word
        if line and not fits(longer):
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line] if line else lines


def _length(line: str, font: ImageFont.FreeTypeFont) -> float:
    """Width of a drawn line, in pixels, without its outline."""
    words = line.split()
    return sum(font.getlength(word) for word in words) + _gap(font) * (len(words) - 1)


def _gap(font: ImageFont.FreeTypeFont) -> float:
    """Gap between two words, in pixels: outlines narrow the font's own space, so that OCR would join the words."""
    return _SPACE * font.getlength(" ")


def _even(text: str, font: ImageFont.FreeTypeFont, widest: float, most: int) -> list[str] | None:
    """The text in as few lines as the width allows, of similar length; None if it needs more than ``most`` lines."""

    def within(limit: float) -> list[str]:
        return _wrap(text, lambda line: _length(line, font) <= limit)

    fewest = within(widest)
    if len(fewest) > most:
        return None
    # Narrow to wide: the narrowest width with the same number of lines makes them most even.
    tries = (within(share * widest) for share in (0.5, 0.6, 0.7, 0.8, 0.9))
    return next((lines for lines in tries if len(lines) == len(fewest)), fewest)


def _blocks(text: str) -> tuple[str, str]:
    """Splits a caption into top and bottom: at the first line break, or at the middle of a long text."""
    top, break_, bottom = text.strip().partition("\n")
    if break_:
        return top, bottom
    words = top.split()
    if len(words) < 9:
        return top, ""
    middle = len(words) // 2
    # At least three words on either side, so that no block is a single word.
    ends = [i for i in range(3, len(words) - 2) if words[i - 1][-1] in ".,:?!;"]
    cut = min(ends, key=lambda i: abs(i - middle)) if ends else middle + len(words) % 2
    return " ".join(words[:cut]), " ".join(words[cut:])


def caption_lines(text: str, size: tuple[int, int] = (640, 480)) -> list[CaptionLine]:
    """Lays out each line of a caption inside a picture, as large as possible.

    Args:
        text: The caption. Its first line goes to the top and the rest to the bottom; one long line is split in two.

    Raises ValueError: The text does not fit the picture even at the smallest size.
    """
    width, height = size
    margin = _MARGIN * width
    blocks = _blocks(text)
    # In pixels of a picture 640 wide, so that the caption scales with the picture.
    for nominal in range(_LARGEST, _SMALLEST - 1, -1):
        pixels = max(6, round(nominal * width / 640))
        outline = max(1, round(pixels / 11))
        font = _font(pixels)

        step = _LINE * pixels
        most = int(_BAND * height / step)
        top, bottom = (_even(block, font, width - 2 * (margin + outline), most) for block in blocks)
        if top is None or bottom is None:
            continue
        starts = [margin / 2 + i * step for i in range(len(top))]
        starts += [height - margin / 2 - (len(bottom) - i) * step for i in range(len(bottom))]
        placed = []
        for line, y in zip([*top, *bottom], starts, strict=True):
            x = (width - _length(line, font)) / 2
            _, upper, _, lower = font.getbbox(line, stroke_width=outline)
            box = (x - outline, y + upper, x + _length(line, font) + outline, y + lower)
            placed.append(CaptionLine(text=line, box=box, origin=(x, y), font_size=pixels, outline=outline))
        if all(b[0] >= 0 and b[1] >= 0 and b[2] <= width and b[3] <= height for b in (line.box for line in placed)):
            return placed
    raise ValueError(f"A caption of {len(text)} characters does not fit a picture of {width} x {height} pixels.")


def _shade(image: Image.Image, lines: list[CaptionLine]) -> None:
    """Darkens a strip behind the top and the bottom caption, so that white words stand out from any scene."""
    width, height = image.size
    tops = [line.box for line in lines if line.box[3] <= height / 2]
    bottoms = [line.box for line in lines if line.box[3] > height / 2]
    strips = [(0, round(tops[-1][3] + _MARGIN * width / 2))] if tops else []
    strips += [(round(bottoms[0][1] - _MARGIN * width / 2), height)] if bottoms else []
    for upper, lower in strips:
        behind = image.crop((0, upper, width, lower))
        image.paste(Image.blend(behind, Image.new("RGB", behind.size), _SHADE), (0, upper))


def draw_meme(scene: str, text: str, *, size: tuple[int, int] = (640, 480), seed: int = 0) -> Image.Image:
    """Draws a meme as an RGB picture; deterministic for the same arguments.

    Raises ValueError: There is no such scene, or the text does not fit the picture.
    """
    if scene not in SCENES:
        raise ValueError(f"There is no scene {scene!r}; there are {', '.join(SCENES)}.")
    image = Image.new("RGB", size, "white")
    # Seeded by a string, which random maps to the same numbers in every process, unlike hash().
    _paint(image, scene, random.Random(f"{scene}:{seed}"))
    draw_caption(image, text)
    return image


def draw_caption(image: Image.Image, text: str) -> None:
    """Writes a caption on an RGB picture, laid out by :func:`caption_lines`.

    Raises ValueError: The text does not fit the picture.
    """
    lines = caption_lines(text, image.size)
    _shade(image, lines)
    draw = ImageDraw.Draw(image)
    for line in lines:
        font = _font(line.font_size)
        x, y = line.origin
        # Word by word, since the gaps between them are custom (_gap).
        for word in line.text.split():
            draw.text((x, y), word, font=font, fill="white", stroke_width=line.outline, stroke_fill=(0, 0, 0))
            x += font.getlength(word) + _gap(font)


def write_starter(folder: Path, memes: Iterable[Mapping[str, str]]) -> None:
    """Writes the pictures of memes of the starter library, under the names that they have there."""
    for meme in memes:
        draw_meme(meme["scene"], meme["text"]).save(folder / meme["image"])


if __name__ == "__main__":
    from retrieval.build import STARTER_MEMES

    write_starter(STARTER_MEMES.with_name("pictures"), map(json.loads, STARTER_MEMES.read_text("utf-8").splitlines()))
