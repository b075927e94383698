"""What the thresholds of :class:`retrieval.audit.leakage.LeakThresholds` catch.

As a command: ``python -m eval.studies.near_duplicates``.

The starter library's memes are drawn, edited as copies are on their way through the web, and compared with their
originals; beside that, every pair of different memes, with the same scene under another caption told apart.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from court.errors import CourtError
from retrieval.audit.leakage import LeakThresholds
from retrieval.build import STARTER_MEMES
from retrieval.embed.encoder import Encoder
from retrieval.open import BUILTIN, load_encoder
from retrieval.starter.draw import draw_meme

_Picture = Callable[[Image.Image], Image.Image]
_Text = Callable[[str, random.Random], str]


def _jpeg(picture: Image.Image) -> Image.Image:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=40)
    return Image.open(io.BytesIO(out.getvalue())).convert("RGB")


def _cropped(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    return picture.crop((width // 30, height // 30, width - width // 30, height - height // 30))


def _misread(text: str, rng: random.Random) -> str:
    letters = list(text)
    letters[rng.randrange(len(letters))] = rng.choice("abcdefghijklmnopqrstuvwxyz")
    return "".join(letters)


def _without_a_word(text: str, rng: random.Random) -> str:
    words = text.split()
    words.pop(rng.randrange(len(words)))
    return " ".join(words)


PICTURES: dict[str, _Picture] = {
    "the same": lambda picture: picture,
    "JPEG, quality 40": _jpeg,
    "half the size": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "white border": lambda picture: ImageOps.expand(picture, 30, "white"),
    "black bar on top": lambda picture: ImageOps.expand(picture, (0, 60, 0, 0), "black"),
    "cropped by 3 % a side": _cropped,
    "brighter by 15 %": lambda picture: ImageEnhance.Brightness(picture).enhance(1.15),
    "in grey": lambda picture: ImageOps.grayscale(picture).convert("RGB"),
    "mirrored": ImageOps.mirror,
}
TEXTS: dict[str, _Text] = {
    "the same": lambda text, _: text,
    "a letter misread": _misread,
    "a word missing": _without_a_word,
    "without punctuation": lambda text, _: "".join(c for c in text if c.isalnum() or c.isspace()),
    "words added": lambda text, _: f"{text} share this",
}


def caught(encoder: Encoder, nearness: LeakThresholds) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Share of edited copies that are caught, by edits of picture and text; and of other memes, by kind."""
    rows = [json.loads(line) for line in STARTER_MEMES.read_text("utf-8").splitlines()]
    drawn = [draw_meme(row["scene"], row["text"]) for row in rows]
    rng = random.Random(0)
    looks = {name: _looks(encoder, [edit(picture) for picture in drawn]) for name, edit in PICTURES.items()}
    texts = {
        name: encoder.embed_texts([edit(row["text"], rng) for row in rows]).vectors for name, edit in TEXTS.items()
    }
    copies = {
        (picture, text): float(
            np.mean(
                ((looks["the same"] * looks[picture]).sum(axis=1) >= nearness.picture)
                & ((texts["the same"] * texts[text]).sum(axis=1) >= nearness.text)
            )
        )
        for picture in looks
        for text in texts
    }
    first, second = np.triu_indices(len(rows), 1)
    scene = np.array([row["scene"] for row in rows])
    near = (looks["the same"] @ looks["the same"].T)[first, second] >= nearness.picture
    near_text = (texts["the same"] @ texts["the same"].T)[first, second] >= nearness.text
    same = scene[first] == scene[second]
    others = {
        f"same scene, other caption ({same.sum():,} pairs)": float(np.mean((near & near_text)[same])),
        f"other scene ({(~same).sum():,} pairs)": float(np.mean((near & near_text)[~same])),
        "by picture alone, same scene": float(np.mean(near[same])),
        "by text alone, all pairs": float(np.mean(near_text)),
    }
    return copies, others


def _looks(encoder: Encoder, pictures: list[Image.Image]) -> NDArray[np.float32]:
    frames = []
    for picture in pictures:
        out = io.BytesIO()
        picture.save(out, "PNG", compress_level=1)
        frames.append([out.getvalue()])
    return encoder.embed_pictures(frames)


@click.command()
@click.option(
    "--encoder", default=BUILTIN, show_default=True, metavar="NAME", help="As for memecourt precedents build."
)
@click.option("--picture", type=click.FloatRange(-1, 1), help="From which similarity on pictures are near.")
@click.option("--text", type=click.FloatRange(-1, 1), help="From which similarity on texts are near.")
def main(encoder: str, picture: float | None, text: float | None) -> None:
    """Prints which share of edited copies, and of other memes, thresholds catch."""
    known = LeakThresholds()
    if encoder != BUILTIN and (picture is None or text is None):
        raise click.UsageError(
            f"The thresholds {known.picture:g} and {known.text:g} are the built-in encoder's. "
            "For another give --picture and --text."
        )
    nearness = LeakThresholds(
        picture=known.picture if picture is None else picture, text=known.text if text is None else text
    )
    try:
        loaded = load_encoder(encoder)
    except CourtError as error:
        raise click.ClickException(error.message) from None
    copies, others = caught(loaded, nearness)
    click.echo(f"{'':<24}" + "".join(f"{words:>22}" for words in TEXTS))
    for edit in PICTURES:
        click.echo(f"{edit:<24}" + "".join(f"{copies[edit, words]:>22.3f}" for words in TEXTS))
    for kind, share in others.items():
        click.echo(f"{kind:<46} {share:.4f}")


if __name__ == "__main__":
    main()
