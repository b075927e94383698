"""Functional tests for memes: what a classifier must be able to tell, one functionality at a time.

Modelled on HateCheck (Röttger et al. 2021) for texts, with contrast sets (Gardner et al. 2020) that swap captions and
pictures: the same words over two pictures that differ in a sign, one of which names a group of people. Written as a
data set in the layout of FHM, so that everything that judges, scores and reports data sets can use it; its train split
is the starter library's memes.
"""

import json
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from court.errors import BadRequest
from eval.datasets.known import SYNTHETIC_KEY
from eval.synthetic.scenes import SCENES, draw_meme
from eval.synthetic.world import GROUPS, SIZE, refuse_full, write_memes
from retrieval.build import STARTER_MEMES

DATASET = "synthetic-functional"
FUNCTIONAL_KEY = "functional.jsonl"
"""File beside functional tests with the functionality and contrast set of each meme; one line per meme."""
_WORDS: Mapping[str, Any] = tomllib.loads((files("eval.synthetic") / "functional.1.toml").read_text("utf-8"))
CONTRAST = tuple(_WORDS["contrast"])
"""Functionalities of the four memes of a contrast set; the first is harmful."""
TITLES: Mapping[str, str] = {**_WORDS["contrast"], **{one["id"]: one["title"] for one in _WORDS["functionality"]}}
"""Title of each functionality, those of contrast sets first."""

_PLATE = (0.16, 0.44, 0.84, 0.58)  # position of the sign: left, top, right and bottom, as shares of the picture


@dataclass(frozen=True, slots=True)
class FunctionalCase:
    """A meme of a functional test; one line of the key."""

    id: str
    functionality: str
    harmful: bool
    """Label that a classifier must give."""
    caption: str
    sign: str
    """Words on the sign in the picture; empty for none."""
    scene: str
    seed: int
    contrast: int | None = None
    """Number of its contrast set; None if it belongs to none."""


def cases(count: int, seed: int) -> tuple[FunctionalCase, ...]:
    """Returns cases of all functionalities, the same for the same arguments."""
    return tuple(FunctionalCase(str(number), *fields) for number, fields in enumerate(_drawn(count, seed), 1))


def _drawn(count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    rng = random.Random(f"functional {_WORDS['version']} {seed}")
    things = _WORDS["things"]
    for number in range(count):
        captions = _WORDS["pairs"][number % len(_WORDS["pairs"])]
        group, thing = rng.choice(list(GROUPS)), rng.choice(things)
        scene, picture = rng.choice(SCENES), rng.randrange(1_000_000)
        # In the order of CONTRAST: the attack over both signs, then the kind words over both.
        shown = product(captions, (f"people from {group}", thing))
        for name, (caption, sign) in zip(CONTRAST, shown, strict=True):
            yield name, name == CONTRAST[0], caption, sign, scene, picture, number
    for one in _WORDS["functionality"]:
        for number in range(count):
            caption = one["captions"][number % len(one["captions"])]
            # Both are always drawn, whichever the caption has, so that later draws stay the same.
            filled = caption.format(group=rng.choice(list(GROUPS)), thing=rng.choice(things))
            yield one["id"], one["harmful"], filled, "", rng.choice(SCENES), rng.randrange(1_000_000)


def write_functional(
    root: Path, *, count: int = 12, seed: int = 0, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[FunctionalCase, ...]:
    """Draws and writes the functional tests: the same files for the same arguments.

    Raises:
        BadRequest: The directory is not empty.
        OSError: The disk cannot be written.
    """
    refuse_full(root)
    made = cases(count, seed)
    starter = [json.loads(line) for line in STARTER_MEMES.read_text("utf-8").splitlines()]
    pictures: dict[str, Callable[[], Image.Image]] = {}
    train, test = [], []
    for number, meme in enumerate(starter, 1):
        image = f"img/train-{number:03d}.png"
        pictures[image] = partial(draw_meme, meme["scene"], meme["text"], seed=number)
        # A separate number range: an id in both splits would be a leak.
        train.append(_line(100_000 + number, image, meme["label"] == "HARMFUL", meme["text"]))
    for number, case in enumerate(made, 1):
        image = f"img/test-{number:05d}.png"
        pictures[image] = partial(draw_case, case)
        test.append(_line(number, image, case.harmful, case.caption))
    key = [json.dumps(asdict(case)) for case in made]
    write_memes(root, pictures, {"train.jsonl": train, "test.jsonl": test, FUNCTIONAL_KEY: key}, progress)
    about = {"made_by": "memecourt-eval synthetic", "dataset": DATASET, "seed": seed, "cases": count}
    # Written last, because the directory is recognised by this file.
    (root / SYNTHETIC_KEY).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return made


def read_key(root: Path) -> tuple[FunctionalCase, ...]:
    """Reads the key of the functional tests in a directory. Raises BadRequest: The key is missing or cannot be read."""
    try:
        return tuple(
            FunctionalCase(**json.loads(line)) for line in (root / FUNCTIONAL_KEY).read_text("utf-8").splitlines()
        )
    except (OSError, ValueError, TypeError):
        raise BadRequest(
            f"{root} holds no functional tests: {FUNCTIONAL_KEY} is missing or can't be read. `memecourt-eval "
            "synthetic DIR --layout functional` writes them.",
            reason="DATA_MISSING",
        ) from None


def draw_case(case: FunctionalCase) -> Image.Image:
    """Draws the picture of a case: a scene with its caption, and a sign in the middle if it has one."""
    image = draw_meme(case.scene, case.caption, size=SIZE, seed=case.seed)
    if case.sign:
        _draw_sign(image, case.sign.upper())
    return image


def _draw_sign(image: Image.Image, words: str) -> None:
    canvas = ImageDraw.Draw(image)
    left, top, right, bottom = (share * side for share, side in zip(_PLATE, image.size * 2, strict=True))
    canvas.rounded_rectangle((left, top, right, bottom), 10, fill=(250, 248, 235), outline=(25, 25, 30), width=4)
    size = int((bottom - top) * 0.6)
    # The largest letters that fit the plate.
    while canvas.textlength(words, ImageFont.load_default(size)) > (right - left) * 0.92:
        size -= 1
    middle = ((left + right) / 2, (top + bottom) / 2)
    canvas.text(middle, words, fill=(25, 25, 30), font=ImageFont.load_default(size), anchor="mm")


def _line(id_: int, image: str, harmful: bool, text: str) -> str:
    return json.dumps({"id": id_, "img": image, "label": int(harmful), "text": text})
