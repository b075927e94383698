"""Libraries of few words and colours with many ties in similarity, which make the order of results hard."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from court.precedents import MinSimilarity, VoteSettings
from court.verdict import Label
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Safeguards, Tuning
from retrieval.library.thumbnails import ThumbnailWriter, shrink
from tests.support.encoders import WordEncoder, picture_of, png_of

ENCODER = WordEncoder()
WORDS = ("", "cat", "dog", "cat dog", "dog cat bird", "bird bird", "cat bird", "my bird sings")
PICTURES = (
    None,
    *(png_of(a, b) for a in ((250, 5, 5), (5, 250, 5)) for b in ((5, 5, 250), (200, 200, 9), (5, 250, 5))),
)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TUNING = Tuning(
    alpha=0.4,
    vote=VoteSettings(k=7, tau=0.1, prior=0.5),
    floors=MinSimilarity(text=0.3, picture=0.5),
    calibration=Calibration(method="defaults", n=0, majority=0.5),
)


def drawn_meme(draw: random.Random, id_: str, *, harm: float = 0.4) -> tuple[LabelledMeme, np.ndarray, bytes | None]:
    """Returns a random meme, its vector, and its picture as a PNG; None if it has none."""
    text, png = "", None
    while not text and png is None:
        text, png = draw.choice(WORDS), draw.choice(PICTURES)
    vector = np.zeros(ENCODER.identity.dim, dtype=np.float32)
    vector[:16] = ENCODER.embed_texts([text]).vectors[0]
    if png:
        vector[16:] = ENCODER.embed_pictures([[png]])[0]
    meme = LabelledMeme(
        id=id_,
        label=Label.HARMFUL if draw.random() < harm else Label.NOT_HARMFUL,
        text=text,
        categories=("one",),
        source=draw.choice(("first", "second")),
        split=draw.choice(("", "train")),
        language=draw.choice(("", "en", "de")),
        pixels_sha256=picture_of(png).pixels_sha256 if png else "",
        added=draw.choice((None, EPOCH + timedelta(days=draw.randrange(30)))),
        verified=draw.random() < 0.3,
        has_text=bool(text),
        has_picture=png is not None,
    )
    return meme, vector, png


def drawn_library(
    root: Path, seed: int, size: int, *, name: str = "drawn", harm: float = 0.4, safeguards: Safeguards | None = None
) -> Library:
    """Creates a library of random memes ``{name}-0`` and so on, some with a thumbnail."""
    draw = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    thumbnails = ThumbnailWriter(root)
    memes, rows = [], []
    for number in range(size):
        meme, vector, png = drawn_meme(draw, f"{name}-{number}", harm=harm)
        if png and draw.random() < 0.5:
            meme = meme.model_copy(update={"kept": thumbnails.append(shrink(picture_of(png).frames[0]))})
        memes.append(meme)
        rows.append(vector)
    return Library.create(
        root,
        name=name,
        encoder=ENCODER.identity,
        memes=memes,
        rows=np.stack(rows),
        tuning=TUNING.model_copy(update={"safeguards": safeguards or Safeguards()}),
        pictures=thumbnails,
        replace=True,
    )
