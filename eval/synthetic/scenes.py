"""Draws simple scenes with a text as caption, among them the memes of the starter library.

Every pixel is determined by scene, text, size, seed and the version of Pillow. A scene never depends on a label.
``python -m eval.synthetic.scenes`` writes the pictures that the starter library ships.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from court.errors import BadRequest

_Colour = tuple[int, int, int]

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

    def __init__(self, image: Image.Image, rng: random.Random) -> None:
        # The number of draws matters: one more in a scene changes all pixels drawn later, and so the library's digest.
        self.rng = rng
        self._draw = ImageDraw.Draw(image)
        self._width, self._height = image.size
        self._unit = min(self._width / 100, self._height / 75)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return x * self._width / 100, y * self._height / 100

    def pick(self, *colours: _Colour) -> _Colour:
        """Picks one of the colours at random."""
        return self.rng.choice(colours)

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: _Colour, *, round_by: float = 0) -> None:
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

    def shape(self, *points: tuple[float, float], fill: _Colour) -> None:
        """A filled polygon."""
        self._draw.polygon([self._at(x, y) for x, y in points], fill=fill)

    def line(self, *points: tuple[float, float], fill: _Colour, width: float = 0.6) -> None:
        """A line through the points."""
        pixels = max(1, round(width * self._unit))
        self._draw.line([self._at(x, y) for x, y in points], fill=fill, width=pixels, joint="curve")

    def arc(
        self, x: float, y: float, radius: float, start: float, end: float, fill: _Colour, width: float = 0.6
    ) -> None:
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


_WHITE: _Colour = (255, 255, 255)
_BLACK: _Colour = (25, 25, 30)
_WOOD: _Colour = (150, 100, 60)
_SKINS: tuple[_Colour, ...] = (
    (96, 170, 190),
    (150, 120, 200),
    (120, 180, 110),
    (225, 150, 90),
)  # not real skin colours
_BRIGHT: tuple[_Colour, ...] = ((220, 70, 70), (60, 120, 210), (245, 180, 50), (70, 165, 95), (150, 90, 190))


def _cat(c: _Canvas) -> None:
    c.fade((250, 222, 190), (240, 195, 160))
    c.box(0, 72, x1=100, y1=100, fill=(176, 106, 82))
    fur, x = c.pick((90, 90, 100), (225, 140, 60), (60, 55, 60), (200, 190, 175)), 50 + c.rng.uniform(-12, 12)
    c.arc(x + 19, 66, radius=10, start=180, end=80, fill=fur, width=3)
    c.oval(x, 70, half_width=15, half_height=15, fill=fur)
    for side in (-1, 1):
        c.shape((x + side * 14, 22), (x + side * 2, 34), (x + side * 14, 44), fill=fur)
        c.shape((x + side * 12, 27), (x + side * 6, 34), (x + side * 12, 39), fill=(240, 160, 170))
    c.oval(x, 44, half_width=14, half_height=12, fill=fur)
    for side in (-1, 1):
        c.oval(x + side * 6, 42, half_width=3.4, half_height=3.6, fill=(225, 235, 120))
        c.oval(x + side * 6, 42, half_width=1, half_height=3.2, fill=_BLACK)
        for dy in (-2, 1, 4):
            c.line((x + side * 5, 50), (x + side * 20, 49 + dy), fill=_WHITE, width=0.4)
        c.oval(x + side * 6, 88, half_width=4.5, half_height=3, fill=fur)
    c.shape((x - 2, 47), (x + 2, 47), (x, 50), fill=(235, 120, 140))


def _dog(c: _Canvas) -> None:
    c.fade((170, 220, 245), (215, 240, 250))
    c.fade((125, 190, 90), (80, 150, 70), 62, 100)
    fur, x = c.pick((165, 110, 65), (235, 225, 205), (110, 85, 70), (215, 165, 95)), 46 + c.rng.uniform(-10, 10)
    dark = (fur[0] * 2 // 3, fur[1] * 2 // 3, fur[2] * 2 // 3)
    c.line((x + 22, 58), (x + 31, 42), fill=fur, width=3.5)
    c.box(x - 10, 54, x1=x + 25, y1=72, fill=fur, round_by=7)
    for leg in (-8, 0, 15, 21):
        c.box(x + leg, 66, x1=x + leg + 4.5, y1=88, fill=fur, round_by=1.5)
    c.oval(x - 12, 46, half_width=12, half_height=11, fill=fur)
    c.oval(x - 21, 51, half_width=8, half_height=6, fill=fur)
    c.oval(x - 4, 50, half_width=4.5, half_height=10, fill=dark)
    c.dot(x - 28, 48, 2.6, _BLACK)
    c.dot(x - 15, 42, 1.8, _BLACK)
    c.oval(x - 22, 61, half_width=2.4, half_height=4, fill=(235, 105, 120))
    c.box(x - 9, 56, x1=x - 3, y1=60, fill=c.pick(*_BRIGHT), round_by=1)
    c.dot(88, 84, 5, c.pick(*_BRIGHT))


def _desk(c: _Canvas) -> None:
    c.fade((225, 228, 235), (205, 210, 220))
    c.box(8, 18, x1=36, y1=50, fill=_WHITE)
    c.box(10, 20, x1=34, y1=48, fill=(150, 205, 240))
    c.line((22, 20), (22, 48), fill=_WHITE, width=1.4)
    c.box(0, 68, x1=100, y1=76, fill=_WOOD)
    c.box(6, 76, x1=12, y1=100, fill=(110, 72, 42))
    c.box(88, 76, x1=94, y1=100, fill=(110, 72, 42))
    c.box(44, 34, x1=76, y1=60, fill=(45, 48, 58), round_by=1.5)
    c.box(46, 36.5, x1=74, y1=57.5, fill=c.pick((70, 130, 190), (90, 160, 130), (170, 120, 180)))
    c.box(57, 60, x1=63, y1=67, fill=(45, 48, 58))
    c.box(52, 65.5, x1=68, y1=68, fill=(45, 48, 58))
    for i in range(c.rng.randint(5, 9)):
        c.box(
            18 + (i % 3),
            66 - i * 2,
            x1=36 + (i % 2),
            y1=67.6 - i * 2,
            fill=(250, 248, 235) if i % 2 else (230, 226, 205),
        )
    c.shape((84, 68), (93, 68), (95, 58), (82, 58), fill=(200, 105, 70))
    for angle in (-60, -25, 10, 45):
        tip = (88.5 + 11 * math.sin(math.radians(angle)), 58 - 22 * math.cos(math.radians(angle)))
        c.line((88.5, 58), tip, fill=(70, 150, 80), width=2)


def _coffee(c: _Canvas) -> None:
    c.fade((94, 62, 46), (140, 96, 66))
    c.box(0, 74, x1=100, y1=100, fill=(70, 44, 32))
    mug, x = c.pick(*_BRIGHT, (240, 235, 220)), 47 + c.rng.uniform(-10, 10)
    c.oval(x, 84, half_width=30, half_height=6, fill=(235, 228, 215))
    c.arc(x + 20, 60, radius=9, start=0, end=360, fill=mug, width=3)
    c.shape((x - 19, 46), (x + 19, 46), (x + 14, 83), (x - 14, 83), fill=mug)
    c.oval(x, 46, half_width=19, half_height=5, fill=(250, 245, 235))
    c.oval(x, 46, half_width=16.5, half_height=3.8, fill=(72, 40, 22))
    for dx in (-9, 0, 9):
        points = [(x + dx + 2.2 * math.sin(t * 0.9 + dx), 41 - t * 1.7) for t in range(11)]
        c.line(*points, fill=(225, 210, 200), width=1)
    for _ in range(9):
        c.oval(c.rng.uniform(3, 97), c.rng.uniform(90, 97), half_width=1.8, half_height=1.2, fill=(45, 25, 16))


def _landscape(c: _Canvas) -> None:
    c.fade((120, 190, 240), (250, 235, 200), 0, 65)
    c.dot(c.rng.uniform(15, 85), 30, 6.5, (255, 222, 90))
    shift = c.rng.uniform(-10, 10)
    for foot, top in ((12, 34), (45, 26), (82, 32)):
        peak = foot + shift
        c.shape((peak - 30, 70), (peak, top), (peak + 30, 70), fill=(120, 130, 160))
        c.shape((peak - 6, top + 9), (peak, top), (peak + 6, top + 9), (peak, top + 6), fill=_WHITE)
    c.oval(20, 88, half_width=52, half_height=24, fill=(110, 175, 85))
    c.oval(85, 90, half_width=48, half_height=22, fill=(85, 150, 75))
    c.shape((46, 70), (49, 70), (66, 100), (36, 100), fill=(90, 165, 215))
    for _ in range(7):
        x, y = c.rng.choice((c.rng.uniform(4, 32), c.rng.uniform(70, 96))), c.rng.uniform(74, 90)
        c.box(x - 0.8, y, x1=x + 0.8, y1=y + 5, fill=(105, 70, 45))
        c.shape((x - 4, y + 1), (x, y - 12), (x + 4, y + 1), fill=(40, 105, 65))


def _night(c: _Canvas) -> None:
    c.fade((10, 14, 48), (52, 42, 100))
    for _ in range(45):
        c.dot(c.rng.uniform(0, 100), c.rng.uniform(24, 70), c.rng.choice((0.2, 0.3)), (120, 120, 160))
    x, y = c.rng.uniform(20, 80), 40
    c.dot(x, y, 11, (248, 240, 190))
    c.dot(x + 4.5, y - 3, 9.5, (25, 24, 67))  # the sky at that height
    c.line((5, 60), (22, 48), fill=(200, 210, 255), width=0.5)
    left = 0.0
    while left < 100:
        width, top = c.rng.uniform(7, 13), c.rng.uniform(54, 72)
        c.box(left, top, x1=left + width, y1=100, fill=(14, 14, 26))
        glow = c.pick((64, 54, 44), (52, 44, 40), (44, 38, 40))
        c.box(left + 2, top + 4, x1=left + width - 2, y1=100, fill=glow)
        left += width


def _talk(c: _Canvas) -> None:
    c.fade((250, 240, 205), (245, 215, 180))
    c.box(0, 86, x1=100, y1=100, fill=(120, 160, 150))
    for x, side in ((25, 1), (75, -1)):
        shirt, skin = c.pick(*_BRIGHT), c.pick(*_SKINS)
        c.box(x - 11, 62, x1=x + 11, y1=92, fill=shirt, round_by=7)
        c.dot(x, 50, 9, skin)
        c.dot(x + side * 3, 48, 1.2, _BLACK)
        c.dot(x + side * 6.5, 48, 1.2, _BLACK)
        c.arc(x + side * 4.5, 52, radius=3.2, start=20, end=160, fill=_BLACK, width=0.7)
        c.line((x + side * 9, 68), (x + side * 19, 62), fill=skin, width=3)
    c.box(31, 22, x1=52, y1=38, fill=_WHITE, round_by=3)
    c.shape((34, 36), (40, 37), (32, 44), fill=_WHITE)
    c.box(54, 28, x1=72, y1=42, fill=_WHITE, round_by=3)
    c.shape((64, 41), (69, 41), (70, 47), fill=_WHITE)
    for i in range(3):
        c.dot(37 + i * 4.5, 30, 1.1, (120, 120, 130))
        c.dot(59 + i * 4, 35, 1.1, (120, 120, 130))


def _crowd(c: _Canvas) -> None:
    c.fade((185, 215, 235), (230, 235, 240))
    first, second = c.rng.sample(_BRIGHT, 2)
    c.box(48.5, 16, x1=50, y1=80, fill=(110, 110, 120))
    c.shape((50, 18), (80, 22), (80, 46), (50, 44), fill=first)
    c.shape((50, 18), (65, 31), (50, 44), fill=second)  # an invented flag: a wedge and a teapot-like spot
    c.dot(70, 34, 4, _WHITE)
    for row, y in enumerate((62, 71, 80, 89)):
        for i in range(9):
            x = i * 12.5 + (row % 2) * 6 + c.rng.uniform(-1.5, 1.5)
            c.oval(x, y + 12, half_width=6.4, half_height=9, fill=c.pick(*_BRIGHT))
            c.dot(x, y, 4.2, c.pick(*_SKINS))
            if c.rng.random() < 0.3:
                c.line((x + 4, y + 8), (x + 7, y - 5), fill=c.pick(*_SKINS), width=1.8)


def _medicine(c: _Canvas) -> None:
    c.fade((205, 240, 232), (170, 220, 214))
    c.box(0, 80, x1=100, y1=100, fill=(236, 244, 244))
    x, glass = 40 + c.rng.uniform(-10, 10), c.pick((200, 110, 40), (90, 150, 90), (70, 110, 170))
    c.box(x - 8, 26, x1=x + 8, y1=35, fill=_WHITE, round_by=1)
    c.box(x - 6, 34, x1=x + 6, y1=41, fill=glass)
    c.box(x - 14, 39, x1=x + 14, y1=86, fill=glass, round_by=4)
    c.box(x - 14, 50, x1=x + 14, y1=75, fill=(252, 250, 240))
    label = c.pick(*_BRIGHT)
    for side in (-1, 1):
        c.dot(x + side * 3, 59.5, 3.4, label)
    c.shape((x - 6.2, 60.8), (x + 6.2, 60.8), (x, 71), fill=label)
    for _ in range(6):
        px, py, colour = c.rng.uniform(x + 19, 94), c.rng.uniform(78, 90), c.pick(*_BRIGHT)
        c.box(px - 3.5, py - 1.7, x1=px, y1=py + 1.7, fill=colour, round_by=1.2)
        c.box(px - 0.5, py - 1.7, x1=px + 3, y1=py + 1.7, fill=_WHITE, round_by=1.2)
    c.line((72, 58), (92, 44), fill=(150, 160, 170), width=1.2)
    c.line((70, 59.5), (79, 53), fill=(235, 240, 245), width=3.6)


def _ballot(c: _Canvas) -> None:
    c.fade((228, 222, 240), (200, 190, 220))
    c.box(0, 82, x1=100, y1=100, fill=(130, 115, 150))
    front = c.pick((60, 90, 160), (80, 130, 120), (120, 80, 130), (160, 90, 70))
    c.box(36, 24, x1=62, y1=54, fill=_WHITE)
    for y, crossed in ((29, False), (36, True), (43, False)):
        c.box(40, y, x1=44, y1=y + 5, fill=(90, 90, 100))
        c.box(40.7, y + 0.9, x1=43.3, y1=y + 4.1, fill=_WHITE)
        c.box(46, y + 1.6, x1=58, y1=y + 3, fill=(150, 150, 160))
        if crossed:
            c.line((39.5, y - 1), (44.5, y + 6), fill=(210, 50, 60), width=0.9)
            c.line((44.5, y - 1), (39.5, y + 6), fill=(210, 50, 60), width=0.9)
    c.shape((22, 52), (78, 52), (84, 47), (16, 47), fill=(245, 240, 230))
    c.box(33, 48.5, x1=65, y1=50.5, fill=_BLACK)
    c.box(20, 52, x1=80, y1=88, fill=front, round_by=1)
    x = 50 + c.rng.uniform(-6, 6)
    c.line((x - 7, 69), (x - 2, 76), (x + 9, 60), fill=_WHITE, width=2.4)


def _football(c: _Canvas) -> None:
    for stripe in range(8):
        c.box(stripe * 12.5, 0, x1=stripe * 12.5 + 12.5, y1=100, fill=(62, 150, 72) if stripe % 2 else (78, 168, 84))
    for edge in ((3, 12, 97, 12), (3, 88, 97, 88), (3, 12, 3, 88), (97, 12, 97, 88), (50, 12, 50, 88)):
        c.line(edge[:2], edge[2:], fill=_WHITE, width=0.7)
    c.arc(50, 50, radius=12, start=0, end=360, fill=_WHITE, width=0.7)
    for x0, x1 in ((3, 17), (83, 97)):
        c.line((x0, 32), (x1, 32), (x1, 68), (x0, 68), (x0, 32), fill=_WHITE, width=0.7)
    home, away = c.rng.sample(_BRIGHT[:3] + _BRIGHT[4:], 2)
    for i in range(10):
        x, y = c.rng.uniform(8, 92), c.rng.uniform(28, 74)
        c.oval(x, y + 3, half_width=2.6, half_height=3.4, fill=home if i % 2 else away)
        c.dot(x, y - 1.5, 1.9, c.pick(*_SKINS))
    x, y = c.rng.uniform(30, 70), c.rng.uniform(40, 62)
    c.dot(x, y, 4, _WHITE)
    c.dot(x, y, 1.4, _BLACK)
    for angle in range(0, 360, 72):
        c.dot(x + 3 * math.cos(math.radians(angle)), y + 4 * math.sin(math.radians(angle)), 0.7, _BLACK)


def _classroom(c: _Canvas) -> None:
    c.fade((240, 226, 196), (226, 206, 168))
    c.box(10, 20, x1=90, y1=66, fill=_WOOD)
    c.box(12, 22.5, x1=88, y1=63.5, fill=c.pick((38, 84, 66), (44, 62, 70), (50, 76, 56)))
    chalk: _Colour = (226, 232, 224)
    c.line((20, 54), (34, 54), (27, 34), (20, 54), fill=chalk, width=0.7)
    c.arc(48, 45, radius=7.5, start=0, end=360, fill=chalk, width=0.7)
    c.line((62, 32), (62, 56), (82, 56), fill=chalk, width=0.7)
    c.line(*[(62 + t, 56 - 0.06 * t * t) for t in range(0, 20, 2)], fill=(245, 215, 120), width=0.7)
    c.box(10, 66, x1=90, y1=68.5, fill=(118, 76, 44))
    for x in (14, 40, 66):
        skin, shirt = c.pick(*_SKINS), c.pick(*_BRIGHT)
        c.oval(x + 10, 90, half_width=7, half_height=8, fill=shirt)
        c.dot(x + 10, 78, 5, skin)
        c.box(x, 89, x1=x + 20, y1=93, fill=(190, 140, 90))
        c.box(x + 2, 93, x1=x + 4, y1=100, fill=(120, 84, 52))
        c.box(x + 16, 93, x1=x + 18, y1=100, fill=(120, 84, 52))


def _screen(c: _Canvas) -> None:
    c.fade((30, 34, 50), (58, 62, 88))
    c.box(0, 86, x1=100, y1=100, fill=(88, 70, 62))
    c.box(14, 15, x1=86, y1=76, fill=(16, 17, 22), round_by=2)
    c.box(16.5, 18, x1=83.5, y1=73, fill=(28, 32, 46))
    c.box(16.5, 18, x1=83.5, y1=22, fill=(70, 76, 100))
    for i, colour in enumerate(((240, 95, 90), (245, 190, 70), (95, 200, 110))):
        c.dot(19.5 + i * 3.4, 20, 1, colour)
    code = ((125, 205, 255), (255, 170, 120), (160, 225, 140), (205, 160, 250), (160, 165, 185))
    for y in range(26, 70, 4):
        x = 21.0 + c.rng.choice((0, 4, 8))
        for _ in range(c.rng.randint(1, 4)):
            width = c.rng.uniform(4, 12)
            c.box(x, y, x1=x + width, y1=y + 1.7, fill=c.pick(*code), round_by=0.6)
            x += width + 2
    c.box(46, 76, x1=54, y1=84, fill=(22, 23, 30))
    c.box(36, 83, x1=64, y1=87, fill=(22, 23, 30), round_by=1)
    c.box(22, 91, x1=70, y1=97, fill=(205, 208, 215), round_by=1)
    c.oval(80, 94, half_width=3.2, half_height=2.6, fill=(205, 208, 215))


def _cake(c: _Canvas) -> None:
    c.fade((255, 214, 226), (250, 180, 205))
    for x in (3, 29, 71, 97):
        swing, colour = c.rng.uniform(0, 6), c.pick(*_BRIGHT)
        c.line(*[(x + 1.6 * math.sin(t / 3 + swing), 2 * t) for t in range(38)], fill=colour, width=0.7)
    for x in (9, 20, 82, 92):
        y, colour = c.rng.uniform(30, 44), c.pick(*_BRIGHT)
        c.line((x, y), (x + 2, 84), fill=(150, 110, 130), width=0.3)
        c.oval(x, y, half_width=5.5, half_height=7, fill=colour)
    c.oval(50, 87, half_width=34, half_height=5, fill=_WHITE)
    sponge = c.pick((235, 200, 140), (120, 75, 50), (250, 235, 200))
    c.box(26, 66, x1=74, y1=87, fill=sponge, round_by=1.5)
    c.box(34, 50, x1=66, y1=68, fill=sponge, round_by=1.5)
    icing = c.pick((255, 250, 245), (190, 230, 245), (255, 150, 180))
    for x0, x1, y in ((26, 74, 66), (34, 66, 50)):
        c.box(x0, y - 1.5, x1=x1, y1=y + 3, fill=icing, round_by=1)
        for x in range(x0 + 2, x1, 5):
            c.oval(x, y + 3.4, half_width=1.9, half_height=2.6, fill=icing)
    for x in range(39, 64, 5):
        c.box(x - 0.7, 37, x1=x + 0.7, y1=49, fill=c.pick(*_BRIGHT))
        c.oval(x, 34, half_width=1.2, half_height=2.4, fill=(255, 190, 40))


def _road(c: _Canvas) -> None:
    c.fade((250, 170, 110), (255, 226, 170), 0, 48)
    c.dot(50, 46, 9, (255, 240, 170))
    c.fade((196, 164, 96), (160, 128, 72), 48, 100)
    c.shape((46, 48), (54, 48), (92, 100), (8, 100), fill=(72, 74, 82))
    c.shape((49.8, 48), (50.2, 48), (51.5, 100), (48.5, 100), fill=(250, 240, 200))
    paint, x = c.pick(*_BRIGHT), c.rng.choice((37.0, 63.0))
    c.box(x - 6, 60, x1=x + 6, y1=69, fill=paint, round_by=3)
    c.box(x - 9, 66, x1=x + 9, y1=76, fill=paint, round_by=2)
    c.box(x - 4.5, 61.5, x1=x + 4.5, y1=66.5, fill=(190, 225, 240), round_by=1)
    for dx in (-6, 6):
        c.box(x + dx - 2, 75, x1=x + dx + 2, y1=79, fill=_BLACK, round_by=1)
        c.dot(x + dx, 70.5, 1.4, (255, 245, 170))
    for side, y in ((6, 62), (94, 62), (17, 54), (84, 54)):
        c.box(side - 0.7, y - 6, x1=side + 0.7, y1=y + 10, fill=(120, 90, 60))
        c.shape((side - 5, y - 16), (side + 5, y - 16), (side + 5, y - 6), (side - 5, y - 6), fill=(70, 140, 80))


_PAINTERS: Mapping[str, Callable[[_Canvas], None]] = {
    painter.__name__.removeprefix("_"): painter
    for painter in (
        *(_ballot, _cake, _cat, _classroom, _coffee, _crowd, _desk, _dog),
        *(_football, _landscape, _medicine, _night, _road, _screen, _talk),
    )
}
SCENES: tuple[str, ...] = tuple(_PAINTERS)
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
    if scene not in _PAINTERS:
        raise ValueError(f"There is no scene {scene!r}; there are {', '.join(SCENES)}.")
    image = Image.new("RGB", size, _WHITE)
    # Seeded by a string, which random maps to the same numbers in every process, unlike hash().
    _PAINTERS[scene](_Canvas(image, random.Random(f"{scene}:{seed}")))
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
            draw.text((x, y), word, font=font, fill=_WHITE, stroke_width=line.outline, stroke_fill=(0, 0, 0))
            x += font.getlength(word) + _gap(font)


def refuse_full(root: Path) -> None:
    """Raises BadRequest if a directory to draw into is not empty."""
    if root.exists() and any(root.iterdir()):
        raise BadRequest(f"{root} is not empty. Name a new directory.")


def write_starter(folder: Path, memes: Iterable[Mapping[str, str]]) -> None:
    """Writes the pictures of memes of the starter library, under the names that they have there."""
    for meme in memes:
        draw_meme(meme["scene"], meme["text"]).save(folder / meme["image"])


if __name__ == "__main__":
    from retrieval.build import STARTER_MEMES

    write_starter(STARTER_MEMES.with_name("pictures"), map(json.loads, STARTER_MEMES.read_text("utf-8").splitlines()))
