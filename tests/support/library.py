"""Helpers of tests of library."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from court.precedents import MinSimilarity, VoteSettings
from court.verdict import Label
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, StoredPicture, Tuning
from retrieval.library.thumbnails import ThumbnailWriter
from tests.support.encoders import WordEncoder

ENCODER = WordEncoder()
TUNING = Tuning(
    alpha=0.5,
    vote=VoteSettings(k=3, tau=0.1, prior=0.5),
    floors=MinSimilarity(text=0.3, picture=0.5),
    calibration=Calibration(method="defaults", n=0, majority=0.5),
)


def content(*ids: str, **fields: Mapping[str, StoredPicture]) -> tuple[list[LabelledMeme], NDArray[np.float32]]:
    """Returns memes with these ids and their rows; ``fields`` maps ids to values of further fields of the memes."""
    memes = [
        LabelledMeme(
            id=id_,
            label=Label.HARMFUL if number % 2 else Label.NOT_HARMFUL,
            text=f"words of {id_}",
            categories=("one",),
            source="test",
            has_text=True,
            has_picture=False,
            **{name: values.get(id_) for name, values in fields.items()},
        )
        for number, id_ in enumerate(ids)
    ]
    texts = ENCODER.embed_texts([meme.text for meme in memes]).vectors
    return memes, np.hstack([texts, np.zeros((len(memes), 12), np.float32)])


def create(root: Path, *ids: str, **kwargs: object) -> Library:
    memes, rows = content(*ids)
    return Library.create(root, name="n", encoder=ENCODER.identity, memes=memes, rows=rows, tuning=TUNING, **kwargs)


PICTURES = {"a": b"first picture", "c": b"another picture, longer"}


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """A library of three memes, two of which have a picture."""
    thumbnails = ThumbnailWriter(tmp_path)
    thumbnails.append(b"of a meme that was dropped on the way")
    memes, rows = content("a", "b", "c", kept={id_: thumbnails.append(data) for id_, data in PICTURES.items()})
    return Library.create(
        tmp_path / "library",
        name="n",
        encoder=ENCODER.identity,
        memes=memes,
        rows=rows,
        tuning=TUNING,
        pictures=thumbnails,
    )


def pictures_of(library: Library) -> dict[str, bytes]:
    found = {meme.id: library.picture(row) for row, meme in enumerate(library.memes)}
    return {id_: data for id_, data in found.items() if data is not None}


def ids_of(library: Library) -> list[str]:
    return [meme.id for meme in library.memes]


def files_of(library: Library) -> dict[str, Path]:
    generation = library.root / "generations" / library.generation
    return {path.name: path for path in [library.root / "CURRENT", *sorted(generation.iterdir())]}


# Disk operations of a write; each of them may fail, or be the last before a crash.
CALLS = [(os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (shutil, "rmtree")]


def _break_at(monkeypatch: pytest.MonkeyPatch, nth: int) -> list[int]:
    """Makes the n-th disk operation fail; returns a list with the number of operations so far."""
    calls = [0]

    def breaking(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            calls[0] += 1
            if calls[0] == nth:
                raise OSError(28, "No space left on device")
            return real(*args, **kwargs)

        return call

    for owner, name in CALLS:
        monkeypatch.setattr(owner, name, breaking(getattr(owner, name)))
    return calls
