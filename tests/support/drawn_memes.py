"""Drawn, tame memes: captioned photographs and scenes, edited copies of them, and changed captions."""

import importlib.util
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from eval.synthetic.scenes import SCENES, caption_lines, draw_caption, draw_meme
from eval.synthetic.world import GROUPS, KIND, OPENERS, TIMES, text_of

_SIDE = 640  # longest side of a drawn meme, in pixels
_FOLDERS = {"skimage": "data", "sklearn": "datasets/images", "matplotlib": "mpl-data/sample_data"}
_PHOTOS = {
    "astronaut.png": "skimage", "chelsea.png": "skimage", "coffee.png": "skimage", "grass.png": "skimage",
    "hubble_deep_field.jpg": "skimage", "moon.png": "skimage", "brick.png": "skimage", "camera.png": "skimage",
    "coins.png": "skimage", "gravel.png": "skimage", "ihc.png": "skimage", "retina.jpg": "skimage",
    "rocket.jpg": "skimage", "china.jpg": "sklearn", "flower.jpg": "sklearn", "grace_hopper.jpg": "matplotlib",
}  # fmt: skip
"""Photographs by file name, with the package that ships each."""
BACKGROUNDS = [*_PHOTOS, *(f"{scene}:{seed}" for scene in SCENES for seed in (0, 1))]
"""The 46 background pictures: photographs, and each scene of the starter library with two seeds."""


@dataclass(frozen=True, slots=True)
class Caption:
    """The parts of a caption, which is written on the picture, or on a white bar above it."""

    opener: str
    group: str
    saying: str
    time: str
    bar: bool = False
    text: str = ""

    def words(self) -> str:
        """Returns the text of the caption."""
        return self.text or text_of(self.opener, self.group, self.saying, self.time)


_Edit = Callable[[Image.Image], Image.Image]


def _jpeg(picture: Image.Image, quality: int) -> Image.Image:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return Image.open(io.BytesIO(out.getvalue())).convert("RGB")


def _resized(picture: Image.Image, by: float) -> Image.Image:
    return picture.resize((round(picture.width * by), round(picture.height * by)), Image.Resampling.LANCZOS)


def _cropped(picture: Image.Image, by: float) -> Image.Image:
    x, y = round(picture.width * by), round(picture.height * by)
    return picture.crop((x, y, picture.width - x, picture.height - y))


def _watermarked(picture: Image.Image, opacity: int) -> Image.Image:
    over = Image.new("RGBA", picture.size)
    font = ImageFont.load_default(size=picture.width // 36)
    place = (picture.width * 0.72, picture.height * 0.5)
    ImageDraw.Draw(over).text(place, "shared by a friend", font=font, fill=(255, 255, 255, opacity))
    return Image.alpha_composite(picture.convert("RGBA"), over).convert("RGB")


def _sepia(picture: Image.Image) -> Image.Image:
    return ImageOps.colorize(ImageOps.grayscale(picture), "#201008", "#fff0d0")


COPIES: dict[str, _Edit] = {
    "the same": lambda picture: picture,
    "JPEG, quality 70": partial(_jpeg, quality=70),
    "JPEG, quality 40": partial(_jpeg, quality=40),
    "half the size": partial(_resized, by=0.5),
    "half as large again": partial(_resized, by=1.5),
    "cropped by 1 % a side": partial(_cropped, by=0.01),
    "cropped by 2 % a side": partial(_cropped, by=0.02),
    "cropped by 5 % a side": partial(_cropped, by=0.05),
    "faint watermark": partial(_watermarked, opacity=60),
    "watermark": partial(_watermarked, opacity=230),
    "mirrored": ImageOps.mirror,
    "turned by 90 degrees": lambda picture: picture.transpose(Image.Transpose.ROTATE_90),
    "white border": lambda picture: ImageOps.expand(picture, 24, "white"),
    "black bar above": lambda picture: ImageOps.expand(picture, (0, 60, 0, 0), "black"),
    "brighter by 20 %": lambda picture: ImageEnhance.Brightness(picture).enhance(1.2),
    "contrast up by 30 %": lambda picture: ImageEnhance.Contrast(picture).enhance(1.3),
    "sepia": _sepia,
    "grey": lambda picture: ImageOps.grayscale(picture).convert("RGB"),
    "blurred": lambda picture: picture.filter(ImageFilter.GaussianBlur(1)),
}


def _another(of: Sequence[str], than: str, rng: random.Random) -> str:
    return rng.choice([each for each in of if each != than])


def _one_letter(caption: Caption, rng: random.Random) -> str:
    text = caption.words()
    place = rng.choice([i for i, letter in enumerate(text) if letter.isalpha()])
    letter = _another("abcdefghijklmnopqrstuvwxyz", text[place].lower(), rng)
    return text[:place] + letter + text[place + 1 :]


CAPTIONS: dict[str, Callable[[Caption, random.Random], str]] = {
    "one letter": _one_letter,
    "one word": lambda c, rng: text_of(c.opener, _another(list(GROUPS), c.group, rng), c.saying, c.time),
    "a word put in": lambda c, rng: c.words().replace("people from", rng.choice(("no", "few", "old")) + " people from"),
    "first line": lambda c, rng: text_of(_another(OPENERS, c.opener, rng), c.group, c.saying, c.time),
    "second line": lambda c, rng: text_of(
        c.opener, _another(list(GROUPS), c.group, rng), _another(KIND, c.saying, rng), _another(TIMES, c.time, rng)
    ),
    "all of it": lambda c, rng: text_of(
        _another(OPENERS, c.opener, rng), rng.choice(list(GROUPS)), _another(KIND, c.saying, rng), rng.choice(TIMES)
    ),
    "no caption": lambda _, __: "",
}


def captioned_meme(base: str, caption: Caption) -> Image.Image:
    """Returns a meme: a background picture with a caption."""
    words = caption.words()
    picture = _bare(base).copy()
    if caption.bar:
        return _with_bar(picture, words)
    draw_caption(picture, words)
    return picture


@cache
def _bare(base: str) -> Image.Image:
    if ":" in base:
        scene, seed = base.split(":")
        return draw_meme(scene, "", seed=int(seed))
    spec = importlib.util.find_spec(_PHOTOS[base])
    assert spec is not None and spec.origin is not None
    with Image.open(Path(spec.origin).parent / _FOLDERS[_PHOTOS[base]] / base) as opened:
        picture = opened.convert("RGB")
    return _resized(picture, _SIDE / max(picture.size))


def _with_bar(picture: Image.Image, words: str) -> Image.Image:
    bar = Image.new("RGB", (picture.width, picture.width // 4), "white")
    draw = ImageDraw.Draw(bar)
    for line in caption_lines(words, bar.size):
        draw.text(line.origin, line.text, font=ImageFont.load_default(size=line.font_size), fill="black")
    whole = Image.new("RGB", (picture.width, picture.height + bar.height))
    whole.paste(bar, (0, 0))
    whole.paste(picture, (0, bar.height))
    return whole
