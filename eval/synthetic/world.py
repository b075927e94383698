"""The invented world: groups with badges, claims about them, and the hidden rule that makes a meme harmful.

A meme is harmful exactly if its text says something bad about a group and its picture shows the badge of that group.
Neither is enough alone: the same text next to another badge is not about the group shown, and the same badge next to
kind words attacks no group.

Two tasks besides harm ask whom a meme attacks, and what it shows. Gold is a function of text and
badge, as for harm. A benchmark of :mod:`eval.synthetic.make` has the labels in separate files, with a card that
describes them.
"""

import io
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from court.errors import BadRequest
from eval.datasets.items import Level
from eval.synthetic.scenes import SCENES, draw_meme

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Badge:
    """A group's sign. Its colour alone distinguishes it from all others."""

    shape: str
    """``disc``, ``square``, or a name in :data:`_POLYGONS`."""
    colour: Colour


_WORDS: Mapping[str, Any] = tomllib.loads((files("eval.synthetic") / "world.toml").read_text("utf-8"))
GROUPS: Mapping[str, Badge] = {
    name: Badge(badge["shape"], tuple(badge["colour"])) for name, badge in _WORDS["groups"].items()
}
SAYINGS: Mapping[str, Level] = {
    saying: level
    for level in (Level.SOMEWHAT_HARMFUL, Level.VERY_HARMFUL, Level.NOT_HARMFUL)
    for saying in _WORDS[level.name.lower()]
}
"""What may be said of a group, and how harmful it is where that group is the one that is shown."""
BAD = tuple(saying for saying, level in SAYINGS.items() if level is not Level.NOT_HARMFUL)
KIND = tuple(_WORDS["not_harmful"])
OPENERS = tuple(_WORDS["openers"])
TIMES = tuple(_WORDS["times"])

# Any white space between words, because a text that was read from a picture has line breaks of its own.
_CLAIM = re.compile(rf"people from ({'|'.join(GROUPS)}) ({'|'.join(SAYINGS)})\b".replace(" ", r"\s+"), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a text."""

    group: str
    level: Level
    """Level of harm if the group is shown."""

    @property
    def bad(self) -> bool:
        """True if the claim is anything but kind."""
        return self.level is not Level.NOT_HARMFUL


def text_of(opener: str, group: str, saying: str, time: str) -> str:
    """Returns the text of a meme: one line for the top of the picture, one for the bottom."""
    return f"{opener}:\npeople from {group} {saying} {time}"


def claim_of(text: str) -> Claim | None:
    """Returns the claim of a text; None for a text that is not of this world."""
    found = _CLAIM.search(text)
    if found is None:
        return None
    # In the group's own spelling, because the text of a meme may be in capitals.
    group = next(name for name in GROUPS if name.lower() == found[1].lower())
    return Claim(group, SAYINGS[" ".join(found[2].lower().split())])


def level_of(text: str, badge: str | None) -> Level:
    """The hidden rule: gold of a meme with this text and the badge of this group. Raises ValueError for other texts."""
    claim = claim_of(text)
    if claim is None:
        raise ValueError("the text says nothing of any group")
    return claim.level if claim.group == badge else Level.NOT_HARMFUL


NOBODY = "nobody"
TARGETS = (*GROUPS, NOBODY)
"""Labels of the task ``target``: the group that a meme attacks. One a meme."""
ATTACK, STRONG, SHOWN = "attack", "strong words", "shown"
SIGNS = (ATTACK, STRONG, SHOWN)
"""Labels of the task ``signs``: something bad is said; it is very bad; the group that is named is shown. Any number."""


def target_of(text: str, badge: str | None) -> str:
    """Gold of the task ``target``: the group that the text says something bad about, if it is the group shown."""
    claim = claim_of(text)
    return claim.group if claim is not None and claim.bad and claim.group == badge else NOBODY


def signs_of(text: str, badge: str | None) -> tuple[str, ...]:
    """Gold of the task ``signs``."""
    claim = claim_of(text)
    if claim is None:
        return ()
    found = {ATTACK: claim.bad, STRONG: claim.level is Level.VERY_HARMFUL, SHOWN: claim.group == badge}
    return tuple(sign for sign in SIGNS if found[sign])


def caption_of(badge: str | None) -> str:
    """Returns a caption of a meme's picture, as people might write it."""
    return "A drawn scene." if badge is None else f"A drawn scene with the badge of {badge} in the middle."


__all__ = ["SCENES", "SIZE", "draw", "png_of", "read_badge"]

SIZE = (640, 480)
"""Width and height of a meme's picture, in pixels, where nothing else is asked for."""

_RADIUS = 0.16  # radius of the white disc behind a badge, in picture heights
_SIGN = 0.09  # size of the sign on it, likewise
_POLYGONS: Mapping[str, Sequence[tuple[float, float]]] = {
    "triangle": ((0, -1.3), (-1.2, 0.8), (1.2, 0.8)),
    "diamond": ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
}
"""Corners of signs, in sizes from the middle of the badge."""
_WHITE: Colour = (255, 255, 255)
_LOOKED_AT = 0.03  # half the side of the central square that is examined, in picture heights
_NEAR_COLOUR = 60.0  # maximum Euclidean distance between a colour and a badge's, with channels up to 255


def draw(scene: str, seed: int, badge: str, text: str, *, size: tuple[int, int] = SIZE) -> Image.Image:
    """Draws a meme: a scene of the starter library, a group's badge in the middle, the text above and below.

    The same arguments give the same pixels with the same version of Pillow.
    """
    image = draw_meme(scene, text, size=size, seed=seed)
    _show_badge(image, badge)
    return image


def _show_badge(image: Image.Image, badge: str) -> None:
    canvas = ImageDraw.Draw(image)
    width, height = image.size
    x, y, radius = width / 2, height / 2, _RADIUS * height
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_WHITE, outline=(25, 25, 30), width=3)
    _sign(canvas, GROUPS[badge], x=x, y=y, r=_SIGN * height)


def badge_swapped(picture: bytes, *, old: str, new: str) -> bytes:
    """Draws one group's badge over another's; returns a picture without that badge as it is."""
    if read_badge(picture) != old:
        return picture
    with Image.open(io.BytesIO(picture)) as image:
        changed = image.convert("RGB")
    _show_badge(changed, new)
    return png_of(changed)


def png_of(image: Image.Image, *, level: int = 6) -> bytes:
    """Encodes the picture as PNG. Another level of compression gives other bytes for the same pixels."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=level)
    return file.getvalue()


def refuse_full(root: Path) -> None:
    """Raises BadRequest if a directory to draw into is not empty."""
    if root.exists() and any(root.iterdir()):
        raise BadRequest(f"{root} is not empty. Name a new directory.")


def write_memes(
    root: Path,
    pictures: Mapping[str, bytes | Callable[[], Image.Image]],
    rows: Mapping[str, Iterable[str]],
    progress: Callable[[int, int], None],
) -> None:
    """Writes a data set: pictures, which are drawn one by one or given as files, and text files of lines."""
    for name in {str(Path(name).parent) for name in (*pictures, *rows)}:
        (root / name).mkdir(parents=True, exist_ok=True)
    for number, (name, picture) in enumerate(pictures.items(), 1):
        (root / name).write_bytes(picture if isinstance(picture, bytes) else png_of(picture()))
        progress(number, len(pictures))
    for name, lines in rows.items():
        (root / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


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
    if badge.shape in _POLYGONS:
        canvas.polygon([(x + dx * r, y + dy * r) for dx, dy in _POLYGONS[badge.shape]], fill=badge.colour)
    else:
        fill = canvas.ellipse if badge.shape == "disc" else canvas.rectangle
        fill((x - r, y - r, x + r, y + r), fill=badge.colour)


def _distance(one: object, other: Sequence[float]) -> float:
    assert isinstance(one, tuple)  # of an RGB picture
    return math.dist(one, other)
