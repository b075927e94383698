"""What the matching of known memes is worth: how often it takes another meme for a known one, or misses a copy.

The set is drawn, the same for the same seed: photographs that scikit-image, scikit-learn and matplotlib ship, and the
scenes of the starter library; tame captions on each; copies, and other memes made of them. One half of the photographs
and scenes is for development (:class:`retrieval.near_duplicates.match.MatchThresholds` was chosen on it), the other is
held out.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import io
import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from court.backends.ocr.reader import OcrTextReader
from court.errors import NotLoaded
from court.meme import Frame, Picture, PictureFormat
from eval.studies.steering import Share
from eval.synthetic.world import GROUPS, KIND, OPENERS, TIMES, text_of
from retrieval.near_duplicates.match import (
    Agreement,
    Fingerprint,
    MatchThresholds,
    MemeText,
    agreement_of,
    fingerprint_pixels,
    pictures_differ,
    texts_agree,
)
from retrieval.near_duplicates.pdq import distance
from retrieval.starter.draw import SCENES, caption_lines, draw_caption, draw_meme

USUAL_RADIUS = 31
"""Bits within which PDQ's makers call two pictures alike."""
_SIDE = 640  # longest side of a meme that is drawn, in pixels
_PHOTOS = {
    "skimage": (
        "astronaut.png", "brick.png", "chelsea.png", "camera.png", "coffee.png", "coins.png", "grass.png",
        "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "retina.jpg", "rocket.jpg",
    ),
    "sklearn": ("china.jpg", "flower.jpg"),
    "matplotlib": ("grace_hopper.jpg",),
}  # fmt: skip
_DEVELOPMENT = frozenset({
    "astronaut.png", "chelsea.png", "coffee.png", "grass.png", "hubble_deep_field.jpg", "moon.png", "rocket.jpg",
    "flower.jpg", "cake", "cat", "classroom", "crowd", "dog", "landscape", "night", "screen",
})  # fmt: skip
"""Photographs and scenes that thresholds may be chosen on; whoever tries anything on another makes it one of these."""
_FOLDERS = {"skimage": "data", "sklearn": "datasets/images", "matplotlib": "mpl-data/sample_data"}
_PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}


class Part(StrEnum):
    """What a picture is for."""

    DEVELOPMENT = "development"
    HELD_OUT = "held out"


class Kind(StrEnum):
    """What was done to a known meme."""

    COPY = "copy"
    """A harmless edit: it should be known."""
    CAPTION = "other caption"
    """The same picture with other text: it must not be taken for the known one."""
    PICTURE = "other picture"
    """The same text with another picture: likewise."""


@dataclass(frozen=True, slots=True)
class Caption:
    """What is written on a meme, and whether on the picture or on a white bar above it."""

    opener: str
    group: str
    saying: str
    time: str
    bar: bool = False
    text: str = ""

    def words(self) -> str:
        """It."""
        return self.text or text_of(self.opener, self.group, self.saying, self.time)


@dataclass(frozen=True, slots=True)
class Pair:
    """A known meme and a new one.

    Attributes:
        part: Of the known one's picture.
        kind: What was done.
        name: The same in words.
        base: The known one's picture.
        bits: In how many bits the hashes differ at least; None where PDQ has too little to go by.
        text: Whether the texts agree.
        why_not: Why the pictures differ; None where they don't. Compared only where the hashes are near.
        near: Whether they are, by the radius of the matcher.
    """

    part: Part
    kind: Kind
    name: str
    base: str
    bits: int | None
    text: bool
    why_not: str | None
    near: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Pairs of one kind, and how many of them are taken for the same.

    Attributes:
        usual: With hashes within :data:`USUAL_RADIUS` bits.
        near: With hashes within the matcher's radius.
        by_text: Of these, those whose texts agree.
        by_tiles: Of these, those where no tile differs.
        reused: Those where both hold: what the matcher takes for the same meme.
        why_not: How many pictures differ, by the reason.
    """

    part: Part
    kind: Kind
    name: str
    bases: int
    usual: Share
    near: Share
    by_text: Share
    by_tiles: Share
    reused: Share
    why_not: dict[str, int]


@dataclass(frozen=True, slots=True)
class ReadRow:
    """Pairs whose texts were both read off the pictures.

    Attributes:
        agree: Whose texts agree, as the reader has them.
        exactly: Of these, without a letter that may have been misread.
        reused: Whose texts agree and where no tile differs.
    """

    kind: Kind
    name: str
    agree: Share
    exactly: Share
    reused: Share


@dataclass(frozen=True, slots=True)
class DuplicatesReport:
    """All of it.

    Attributes:
        nearness: What counted as the same.
        rows: By part, kind and name; a row named "all" sums up each kind.
        unrelated: Of all pairs of memes of two pictures, in any position, those within the matcher's radius.
        read: Where texts were read off pictures.
    """

    nearness: MatchThresholds
    rows: list[Row]
    unrelated: Share
    read: list[ReadRow] = field(default_factory=list)


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
_CARRIED = ("the same", "JPEG, quality 40", "half the size", "grey", "brighter by 20 %", "mirrored", "white border")
"""Edits that come on top of another caption: whoever saves a meme anew does not send the same pixels."""


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


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is measured on one picture.

    Attributes:
        captions: Known memes made of it.
        copied: Of how many of them copies are made.
        carried: How many edits go with each change of caption.
    """

    seed: int
    part: Part
    base: str
    other: str
    captions: int
    copied: int
    carried: int
    nearness: MatchThresholds


def measure_duplicates(
    *,
    seed: int = 0,
    parts: Sequence[Part] = tuple(Part),
    captions: int = 8,
    carried: int = 3,
    jobs: int = 1,
    read: int = 0,
    nearness: MatchThresholds | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DuplicatesReport:
    """Draws the set and matches it.

    Args:
        seed: Another seed, other captions.
        parts: Which pictures.
        captions: Known memes made of each held-out picture; of those for development at most 2.
        carried: Edits that go with each change of a caption, a pair for each.
        jobs: Processes that measure.
        read: Of so many known memes, and what was made of each, the text is read off the picture as well.
        nearness: What counts as the same, instead of the default.
        progress: Told of the pictures done, and of all.

    Raises:
        NotLoaded: A package whose pictures are used, or pdqhash, is missing.
    """
    nearness = nearness or MatchThresholds()
    _photos()  # all there, before anything is drawn
    plans = []
    for part in parts:
        bases = bases_of(part)
        for place, base in enumerate(bases):
            held = part is Part.HELD_OUT
            many = captions if held else min(captions, 2)
            other = bases[(place + 1) % len(bases)]
            plans.append(_Plan(seed, part, base, other, many, min(many, 2), carried, nearness))
    pairs: list[Pair] = []
    hashes = []
    with _workers(jobs) as run:
        for done, (found, marks) in enumerate(run(_measured, plans), 1):
            pairs += found
            hashes.append(marks)
            progress(done, len(plans))
    apart = [
        min(distance(a[0], mark) for mark in b) <= nearness.radius
        for one, other in itertools.combinations(hashes, 2)
        for a in one
        for b in other
    ]
    unrelated = Share.of(sum(apart), len(apart))
    rows = _rows(pairs)
    return DuplicatesReport(nearness, rows, unrelated, asyncio.run(_read(plans, read, nearness)) if read else [])


class _workers:
    """Runs a function over plans, in order: here, or in processes that were started afresh."""

    def __init__(self, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, mp_context=context) if jobs > 1 else None

    def __enter__(self) -> Callable[..., Iterator[tuple[list[Pair], list[np.ndarray]]]]:
        return self._pool.map if self._pool else map

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


def bases_of(part: Part) -> list[str]:
    """The pictures of a part by name: photographs, and scenes drawn twice."""
    development = part is Part.DEVELOPMENT
    names = [name for package in _PHOTOS for name in _PHOTOS[package]]
    photos = [name for name in names if (name in _DEVELOPMENT) is development]
    return photos + [f"{scene}:{seed}" for scene in SCENES if (scene in _DEVELOPMENT) is development for seed in (0, 1)]


def _photos() -> dict[str, Path]:
    places = {}
    for package, names in _PHOTOS.items():
        spec = importlib.util.find_spec(package)
        folder = Path(spec.origin).parent / _FOLDERS[package] if spec and spec.origin else None
        for name in names:
            if folder is None or not (folder / name).is_file():
                raise NotLoaded(
                    f"The pictures to draw on come with {_PACKAGES[package]}, which is not there: "
                    "pip install 'memecourt[duplicates]'.",
                    reason="PHOTOS_MISSING",
                )
            places[name] = folder / name
    return places


def drawn(base: str, caption: Caption) -> Image.Image:
    """A meme: a picture by its name, under a caption."""
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
    with Image.open(_photos()[base]) as opened:
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


def _caption(rng: random.Random, bar: bool) -> Caption:
    return Caption(rng.choice(OPENERS), rng.choice(list(GROUPS)), rng.choice(KIND), rng.choice(TIMES), bar)


def _with_sign(picture: Image.Image, rng: random.Random) -> Image.Image:
    """With a disc in it that was not there, a twelfth as high as the picture."""
    picture, radius = picture.copy(), picture.height / 24
    x, y = rng.uniform(0.2, 0.8) * picture.width, rng.uniform(0.45, 0.6) * picture.height
    colour = GROUPS[rng.choice(list(GROUPS))].colour
    ImageDraw.Draw(picture).ellipse(
        (x - radius, y - radius, x + radius, y + radius), fill=colour, outline=(255, 255, 255), width=2
    )
    return picture


def _made(plan: _Plan, number: int) -> Iterator[tuple[Kind, str, Image.Image, str]]:
    """The known meme ``number`` of a plan (as a copy of itself), then what is made of it: kind, name, picture, text."""
    rng = random.Random(f"{plan.seed}:{plan.base}:{number}")
    caption = _caption(rng, bar=number % 3 == 2)
    picture, text = drawn(plan.base, caption), caption.words()
    for name, edit in COPIES.items():
        yield Kind.COPY, name, edit(picture), text
    for name, change in CAPTIONS.items():
        for carried in rng.sample(_CARRIED, plan.carried):
            words = change(caption, rng)
            new = Caption(caption.opener, caption.group, caption.saying, caption.time, caption.bar, words or " ")
            yield Kind.CAPTION, name, COPIES[carried](drawn(plan.base, new)), words
    yield Kind.PICTURE, "another picture", drawn(plan.other, caption), text
    for carried in rng.sample(_CARRIED, 2):
        yield Kind.PICTURE, "a sign painted in", COPIES[carried](_with_sign(picture, rng)), text


def _look(picture: Image.Image, text: str) -> Fingerprint:
    return fingerprint_pixels([np.asarray(picture)], MemeText(text, read=False))


def _measured(plan: _Plan) -> tuple[list[Pair], list[np.ndarray]]:
    """The pairs of one picture, and the hashes of its first known meme."""
    pairs: list[Pair] = []
    marks: list[np.ndarray] = []
    for number in range(plan.captions):
        known: Fingerprint | None = None
        for kind, name, picture, text in _made(plan, number):
            if known is None:
                known = _look(picture, text)
                if number == 0:
                    marks = [known.frames[0][0].hashes] if known.frames[0] else []
            if kind is Kind.COPY and number >= plan.copied:
                continue
            pairs.append(_pair(plan, kind, name, known, _look(picture, text)))
    return pairs, marks


def _pair(plan: _Plan, kind: Kind, name: str, known: Fingerprint, new: Fingerprint) -> Pair:
    bits = min(
        (distance(a.hash, mark) for a in known.frames[0] for b in new.frames[0] for mark in b.hashes), default=None
    )
    near = bits is not None and bits <= plan.nearness.radius
    why_not = pictures_differ(known, new, plan.nearness) if near else None
    agree = texts_agree(known.words, new.words, plan.nearness.misread)
    return Pair(plan.part, kind, name, plan.base, bits, agree, why_not, near)


def _rows(pairs: Sequence[Pair]) -> list[Row]:
    rows = []
    for part, kind in itertools.product(Part, Kind):
        of = [pair for pair in pairs if pair.part is part and pair.kind is kind]
        for name in [*dict.fromkeys(pair.name for pair in of), *["all"] * bool(of)]:
            some = [pair for pair in of if name in (pair.name, "all")]
            tiles = [pair for pair in some if pair.near and pair.why_not is None]
            reasons = sorted(pair.why_not for pair in some if pair.why_not)
            n = len(some)
            rows.append(
                Row(
                    part,
                    kind,
                    name,
                    len({pair.base for pair in some}),
                    Share.of(sum(pair.bits is not None and pair.bits <= USUAL_RADIUS for pair in some), n),
                    Share.of(sum(pair.near for pair in some), n),
                    Share.of(sum(pair.near and pair.text for pair in some), n),
                    Share.of(len(tiles), n),
                    Share.of(sum(pair.text for pair in tiles), n),
                    {str(reason): reasons.count(reason) for reason in dict.fromkeys(reasons)},
                )
            )
    return rows


async def _read(plans: Sequence[_Plan], memes: int, nearness: MatchThresholds) -> list[ReadRow]:
    """The same with texts that the real reader reads, for the first meme of so many pictures, spread over all."""
    reader = OcrTextReader()
    outcomes: dict[tuple[Kind, str], list[tuple[bool, bool, bool]]] = {}
    try:
        await reader.warm()
        step = max(1, len(plans) // memes)
        for place, plan in enumerate(plans[::step][:memes]):
            known: Fingerprint | None = None
            for kind, name, picture, _ in _made(plan, place % plan.captions):
                if known is not None and name not in _READ:
                    continue
                text = await _text_on(picture, reader)
                new = fingerprint_pixels([np.asarray(picture)], MemeText(text, read=True))
                known = known or new
                agreement = agreement_of(known.words, new.words, nearness.misread)
                agree, exactly = agreement is not Agreement.OTHER, agreement is Agreement.SAME
                same = agree and pictures_differ(known, new, nearness, agreement) is None
                outcomes.setdefault((kind, name), []).append((agree, exactly, same))
    finally:
        await reader.aclose()
    return [
        ReadRow(kind, name, *(Share.of(sum(each[i] for each in found), len(found)) for i in range(3)))
        for (kind, name), found in outcomes.items()
        if name != "the same"
    ]


_READ = ("JPEG, quality 40", "half the size", "white border", "grey", "one letter", "one word", "a word put in",
         "first line")  # fmt: skip


async def _text_on(picture: Image.Image, reader: OcrTextReader) -> str:
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=1)
    png = out.getvalue()
    digest = hashlib.sha256(png).hexdigest()
    frame = Frame(png=png, width=picture.width, height=picture.height)
    whole = Picture(PictureFormat.PNG, digest, digest, picture.width, picture.height, 1, (frame,))
    return " ".join(line.text for line in (await reader.read(whole)).lines)
