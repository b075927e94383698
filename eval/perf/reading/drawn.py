"""Generated pictures with known text, in groups that are each hard to read in one way.

Backgrounds are colour gradients or photographs that come with scikit-learn; nothing is downloaded and no photograph is
stored here.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images

_Colour = tuple[int, int, int]

WHITE, BLACK = (255, 255, 255), (0, 0, 0)
_SIZES = ((500, 500), (640, 480), (800, 600), (600, 800), (1080, 1080), (1280, 960), (1200, 628))
"""Usual sizes of memes, width and height in pixels."""
# All come with matplotlib: no system font is needed.
_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "STIXGeneral",
    "STIXGeneralBolIta",
    "cmss10",
    "cmtt10",
)
_TEXT = """
    when the cat sees first snow and runs back inside people from Blueland drink their coffee cold my plan for this
    week was to sleep until Monday nobody told me that soup is a meal for breakfast neighbours who sing at night
    should bring cake to all of us why does every train wait until you are on the stairs
"""
_WORDS = _TEXT.split()
_ACCENTED = (
    "Grüße aus dem Süden: schöner Käse für müde Bären",
    "Où est passé le café de l'élève fatigué ?",
    "El niño soñó con un pingüino en el jardín",
    "Żółty płaszcz leży pod łóżkiem w środę",
    "Bir köpek üşüdüğü için şemsiye istedi",
)
"""Sentences with letters that English has not."""


@dataclass(frozen=True, slots=True)
class DrawnMeme:
    """A picture and the text on it.

    Attributes:
        group: One of :data:`GROUPS`.
        file: JPEG or PNG.
        text: Its lines in reading order, one space between words and lines; empty for none.
    """

    group: str
    file: bytes
    text: str


def draw(group: str, number: int) -> DrawnMeme:
    """Draws the meme of a group with that number, the same on every machine with the same version of Pillow.

    Raises:
        KeyError: There is no such group.
    """
    # Seeded by name, so that a meme stays the same whatever other groups exist.
    picture, lines, file = GROUPS[group](random.Random(f"{group} {number}"))
    return DrawnMeme(group, file or _encoded(picture, "PNG"), " ".join(" ".join(lines).split()))


_Drawn = tuple[Image.Image, list[str], bytes | None]
"""A picture, its lines, and its file where it is to be another one than a PNG."""


def _outlined(choose: random.Random, *, share: tuple[int, int] = (14, 22)) -> _Drawn:
    """White capitals with a black outline at the top and bottom of a picture."""
    picture = _background(choose)
    width, height = picture.size
    size = width // choose.randint(*share)
    top, bottom = (_line(choose, 3, 5).upper() for _ in range(2))
    _put(picture, top, (width // 25, height // 30), size, outline=max(1, size // 12))
    _put(picture, bottom, (width // 25, height - height // 30 - size - size // 4), size, outline=max(1, size // 12))
    return picture, [top, bottom], None


def _fonts(choose: random.Random) -> _Drawn:
    picture = _gradient(choose, choose.choice(_SIZES), light=True)
    width, height = picture.size
    lines = [_line(choose, 3, 5) for _ in range(3)]
    font = choose.choice(_FONTS)
    for number, line in enumerate(lines):
        _put(picture, line, (width // 20, height * (number + 1) // 5), width // 24, fill=(20, 20, 40), font=font)
    return picture, lines, None


def _colours(choose: random.Random) -> _Drawn:
    fill, ground = choose.choice(
        [
            ((255, 230, 0), (200, 30, 60)),
            ((120, 120, 120), (225, 225, 225)),
            ((250, 120, 20), (20, 60, 90)),
            ((60, 90, 40), (170, 190, 140)),
            ((200, 60, 160), (250, 220, 235)),
            ((90, 160, 255), (15, 15, 40)),
        ]
    )
    picture = Image.new("RGB", choose.choice(_SIZES), ground)
    width, height = picture.size
    lines = [_line(choose, 3, 5) for _ in range(2)]
    for number, line in enumerate(lines):
        _put(picture, line, (width // 20, height * (number + 1) // 4), width // 22, fill=fill)
    return picture, lines, None


def _jpeg(choose: random.Random) -> _Drawn:
    picture, lines, _ = _outlined(choose)
    return picture, lines, _encoded(picture, "JPEG", quality=choose.choice([15, 20, 30, 40]))


def _two_blocks(choose: random.Random) -> _Drawn:
    """A caption above the picture, black on white, and a label inside it."""
    below, lines, _ = _outlined(choose, share=(18, 26))
    width, height = below.size
    size = width // 26
    caption = [_line(choose, 4, 6) for _ in range(2)]
    picture = Image.new("RGB", (width, height + 4 * size), WHITE)
    picture.paste(below, (0, 4 * size))
    for number, line in enumerate(caption):
        _put(picture, line, (size, size // 2 + number * 3 * size // 2), size, fill=BLACK, font="DejaVuSans")
    return picture, [*caption, *lines], None


def _small(choose: random.Random) -> _Drawn:
    """Letters of 10 to 14 pixels only."""
    picture = Image.new("RGB", choose.choice(_SIZES), WHITE)
    width, height = picture.size
    size = choose.randint(10, 14)
    lines = [_line(choose, 5, 7) for _ in range(4)]
    for number, line in enumerate(lines):
        _put(picture, line, (width // 12, height * (number + 1) // 6), size, fill=BLACK, font="DejaVuSans")
    return picture, lines, None


def _small_beside_large(choose: random.Random) -> _Drawn:
    picture = _background(choose)
    width, height = picture.size
    large, small = _line(choose, 3, 4).upper(), _line(choose, 5, 7)
    _put(picture, large, (width // 25, height // 30), width // 16, outline=4)
    size = choose.randint(11, 15)
    place = (width // 10, height * 4 // 5)
    # A white background for the small letters, which have no outline.
    ImageDraw.Draw(picture).rectangle((place[0] - 8, place[1] - 8, width - 20, place[1] + 2 * size), fill=WHITE)
    _put(picture, small, place, size, fill=BLACK, font="DejaVuSans")
    return picture, [large, small], None


def _turned(choose: random.Random) -> _Drawn:
    """Rotates a whole picture by one, two or three quarter turns."""
    picture, lines, _ = _outlined(choose)
    return picture.rotate(choose.choice([90, 180, 270]), expand=True), lines, None


def _tilted(choose: random.Random) -> _Drawn:
    picture = _gradient(choose, choose.choice(_SIZES), light=True)
    width, height = picture.size
    line = _line(choose, 3, 4)
    # Only the letters are rotated: on a separate layer, which is pasted onto the picture.
    patch = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    _put(patch, line, (width // 6, height // 2), width // 26, fill=(120, 10, 10))
    tilted = patch.rotate(choose.choice([-25, -15, -8, 8, 15, 25]), resample=Image.Resampling.BICUBIC)
    picture.paste(tilted, mask=tilted)
    return picture, [line], None


def _transparent(choose: random.Random) -> _Drawn:
    """Light letters with an outline on a transparent background, which is shown as white."""
    picture = Image.new("RGBA", choose.choice(_SIZES), (0, 0, 0, 0))
    width, height = picture.size
    lines = [_line(choose, 3, 4) for _ in range(2)]
    for number, line in enumerate(lines):
        _put(picture, line, (width // 20, height * (number + 1) // 4), width // 20, fill=(240, 240, 200), outline=3)
    return picture, lines, None


def _tall(choose: random.Random) -> _Drawn:
    picture = _gradient(choose, (400, 6000), light=True)
    lines = [_line(choose, 3, 4) for _ in range(8)]
    for number, line in enumerate(lines):
        _put(picture, line, (20, 200 + number * 720), 20, fill=BLACK, font="DejaVuSans")
    return picture, lines, None


def _wide(choose: random.Random) -> _Drawn:
    picture = _gradient(choose, (6000, 60), light=True)
    line = _line(choose, 12, 20)
    _put(picture, line, (60, 14), 28, fill=BLACK, font="DejaVuSans")
    return picture, [line], None


def _dense(choose: random.Random) -> _Drawn:
    """A conversation: many short lines, left and right."""
    picture = Image.new("RGB", (720, 1280), (235, 240, 245))
    pen = ImageDraw.Draw(picture)
    lines = [_line(choose, 3, 5) for _ in range(12)]
    for number, line in enumerate(lines):
        left, top = choose.choice([20, 240]), 30 + number * 102
        pen.rounded_rectangle((left, top, left + 450, top + 70), 18, fill=choose.choice([WHITE, (210, 245, 200)]))
        _put(picture, line, (left + 18, top + 20), 24, fill=(30, 30, 30), font="DejaVuSans")
    return picture, lines, None


def _accented(choose: random.Random) -> _Drawn:
    picture = _gradient(choose, choose.choice(_SIZES), light=True)
    width, height = picture.size
    lines = choose.sample(_ACCENTED, 2)
    for number, line in enumerate(lines):
        _put(picture, line, (width // 20, height * (number + 1) // 4), width // 34, fill=BLACK, font="DejaVuSans")
    return picture, lines, None


def _wordless(choose: random.Random) -> _Drawn:
    return _photo(choose, choose.choice(_SIZES)), [], None


GROUPS: Mapping[str, Callable[[random.Random], _Drawn]] = {
    "outlined": _outlined,
    "fonts": _fonts,
    "colours": _colours,
    "jpeg": _jpeg,
    "two_blocks": _two_blocks,
    "small": _small,
    "small_beside_large": _small_beside_large,
    "turned": _turned,
    "tilted": _tilted,
    "transparent": _transparent,
    "tall": _tall,
    "wide": _wide,
    "dense": _dense,
    "accented": _accented,
    "wordless": _wordless,
}
"""How the pictures of each group are drawn."""


def _line(choose: random.Random, least: int, most: int) -> str:
    return " ".join(choose.choice(_WORDS) for _ in range(choose.randint(least, most)))


# Cached, because a font is read from its file.
@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(mpl.get_data_path(), "fonts", "ttf", f"{name}.ttf"), size)


def _put(
    picture: Image.Image,
    text: str,
    place: tuple[float, float],
    size: int,
    *,
    fill: _Colour = WHITE,
    outline: int = 0,
    font: str = "DejaVuSans-Bold",
) -> None:
    """Draws a line of text; smaller if it would not fit into the picture."""
    letters = _font(font, size)
    # Letters beyond the edge cannot be read, and would count as errors.
    while size > 6 and place[0] + letters.getlength(text) > picture.width - 10:
        size -= 1
        letters = _font(font, size)
    ImageDraw.Draw(picture).text(place, text, font=letters, fill=fill, stroke_width=outline, stroke_fill=BLACK)


def _background(choose: random.Random) -> Image.Image:
    size = choose.choice(_SIZES)
    return _photo(choose, size) if choose.random() < 0.5 else _gradient(choose, size)


def _gradient(choose: random.Random, size: tuple[int, int], *, light: bool = False) -> Image.Image:
    """Draws patches of colour that blend into each other."""
    width, height = size
    # numpy's generator is seeded by ours, so that a meme stays the same. Light values are for dark letters, the others
    # for white ones.
    values = np.random.default_rng(choose.randrange(10**9)).integers(
        190 if light else 20, 256 if light else 200, (max(2, height // 160), max(2, width // 160), 3), dtype=np.uint8
    )
    return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)


@cache
def _photos() -> tuple[Image.Image, ...]:
    # They come with scikit-learn: nothing is downloaded.
    return tuple(map(Image.fromarray, load_sample_images().images))


def _photo(choose: random.Random, size: tuple[int, int]) -> Image.Image:
    """Returns a section of a photograph."""
    photo = choose.choice(_photos())
    share = choose.uniform(0.5, 1.0)
    wide, high = int(photo.width * share), int(photo.height * share)
    left, top = choose.randint(0, photo.width - wide), choose.randint(0, photo.height - high)
    return photo.crop((left, top, left + wide, top + high)).resize(size, Image.Resampling.LANCZOS)


def _encoded(picture: Image.Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()
