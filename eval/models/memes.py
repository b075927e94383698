"""The memes that models are asked about: a split of a data set, decoded in guarded processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from court.errors import BadPicture
from court.meme import Frame
from eval.datasets.card import DatasetCard
from eval.datasets.items import JudgedMeme
from eval.datasets.read import read_split, sample
from retrieval.library.picture_finder import picture_path

_WORKERS = 2
"""Processes that decode pictures."""


@dataclass(frozen=True, slots=True)
class ShownMeme:
    """A meme as it is shown to models."""

    id: str
    text: str
    frames: tuple[Frame, ...]
    pixels_sha256: str
    harmful: bool
    source_label: str
    targets: tuple[str, ...] = ()
    dataset: str = ""


@dataclass(frozen=True, slots=True)
class ShownMemes:
    """Memes read for an arena or a probe."""

    memes: tuple[ShownMeme, ...]
    without_picture: dict[str, str]
    files: dict[str, str]


async def shown_memes(
    dataset: DatasetCard,
    data: Path,
    split: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    keep: Callable[[JudgedMeme], bool] = lambda _: True,
) -> ShownMemes:
    """Reads memes of a split with their pictures.

    Raises BadRequest: The split cannot be read; see :func:`eval.datasets.read.read_split`.
    """
    from court.backends.pictures.reader import GuardedPictureReader

    # Filtered before sampling, so that a limit counts memes that may be shown.
    def drawn(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
        return sample((meme for meme in memes if keep(meme)), limit, seed)

    read = await asyncio.to_thread(read_split, dataset, data, split, choose=drawn)
    reader = GuardedPictureReader(workers=_WORKERS)
    turn = asyncio.Semaphore(_WORKERS)
    missing: dict[str, str] = {}

    async def one(meme: JudgedMeme) -> ShownMeme | None:
        path = picture_path(read.pictures, meme.image) if read.pictures else None
        try:
            if path is None:
                raise FileNotFoundError
            # Read only in its turn, so that no more files are in memory than are being decoded.
            async with turn:
                picture = await reader.read(await asyncio.to_thread(path.read_bytes))
        except OSError:
            missing[meme.id] = "PICTURE_MISSING"
            return None
        except BadPicture as error:
            missing[meme.id] = error.reason
            return None
        assert meme.harmful is not None, "a split that is read for trials has a label of harm for each meme"
        return ShownMeme(
            id=meme.id,
            text=meme.text,
            frames=picture.frames,
            pixels_sha256=picture.pixels_sha256,
            harmful=meme.harmful,
            source_label=meme.source_label,
            targets=meme.targets,
            dataset=dataset.id,
        )

    try:
        shown = await asyncio.gather(*(one(meme) for meme in read.memes))
    finally:
        await reader.aclose()
    # Sorted: memes finish in no fixed order, and a manifest must be the same each time.
    return ShownMemes(
        tuple(meme for meme in shown if meme is not None), dict(sorted(missing.items())), dict(read.files)
    )
