"""Finds leakage: memes that are both precedents and judged, which inflates every metric.

A precedent leaks for the first of these reasons that holds (design, section 5):

==================  ===============================================================================================
``same id``         a judged meme has its id
``same file``       ... its picture file, byte for byte
``same picture``    ... its normalised pixels: another file of the same picture
``same text``       ... its text, ignoring case and spacing; blank texts are not compared
``near-duplicate``  ... nearly its picture and nearly its text (:class:`LeakThresholds`)
``same template``   ... nearly its picture, whatever the text; only if requested
==================  ===============================================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from court.ports import PictureReader
from court.values import Value
from retrieval.embed.encoder import Encoder
from retrieval.library.library import Library
from retrieval.library.manifest import LabelledMeme
from retrieval.library.picture_import import ImportedPicture, Wanted, embed_pictures_of
from retrieval.library.sources import Row
from retrieval.library.thumbnails import ThumbnailWriter
from retrieval.text import text_key


def number_linked(n: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Returns the component number of each of n items, from 0 in the order of first occurrence."""
    root = list(range(n))

    def root_of(index: int) -> int:
        while root[index] != index:
            # Path halving, which speeds up later look-ups.
            root[index] = index = root[root[index]]
        return index

    for one, other in pairs:
        # The earlier item stays the root, so that numbers follow the order of the items.
        first, second = sorted((root_of(one), root_of(other)))
        root[second] = first
    known: dict[int, int] = {}
    return np.array([known.setdefault(root_of(index), len(known)) for index in range(n)], dtype=np.int64)


Progress: TypeAlias = Callable[[str, int, int], None]

WHYS = ("same id", "same file", "same picture", "same text", "near-duplicate", "same template")
TEMPLATE = 0.70
"""Cosine of two pictures, by the built-in encoder, from which on they count as one template (docs/studies.md)."""
_TEXTS = 256
"""Texts embedded at once."""
_BLOCK = 512
"""Precedents compared at once: bounds the matrix of similarities to 512 x judged."""


class LeakThresholds(Value):
    """Similarities from which a precedent is too near; stored in the manifest of every run.

    Both cosines must be reached; they are for the built-in encoder. docs/studies.md gives their hit rates for edited
    copies and for other memes, measured on drawn ones. A picture alone identifies a template, not a meme: other
    captions on the same template reach .99. A text alone says as little if captions are repeated by design, as in FHM.
    So if only one of the two memes lacks a half, they are never near-duplicates; if both lack it, the other half
    decides only if it is the picture.
    """

    picture: float = Field(default=0.70, ge=-1, le=1)
    text: float = Field(default=0.80, ge=-1, le=1)
    template: float | None = Field(default=None, ge=-1, le=1)
    """From where on a picture alone is too near, so that train and test share no template (:data:`TEMPLATE`). None to
    let them share some, as the splits do that data sets are published with."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A precedent that is too near to a judged meme, for one of :data:`WHYS`."""

    precedent: str
    meme: str
    why: str
    text_similarity: float | None
    picture_similarity: float | None


@dataclass(frozen=True, slots=True)
class Leaks:
    """Result of a search for leaks.

    Attributes:
        templates: Template of each judged meme that shares one with another, by id, named by the id of the first of
            them; empty if templates are not separated.
    """

    leaks: tuple[Leak, ...]
    text_alone: int
    unseen: int
    templates: Mapping[str, str] = field(default_factory=dict)


async def find_leaks(
    library: Library,
    judged: Sequence[Row],
    pictures: Path | None,
    encoder: Encoder,
    reader: PictureReader,
    scratch: Path,
    nearness: LeakThresholds,
    tell: Progress,
) -> Leaks:
    """Every precedent beside every judged meme.

    Raises:
        OSError: The disk is full or can't be written to.
    """
    imported, vectors = await embed_rows(judged, pictures, encoder=encoder, reader=reader, scratch=scratch, tell=tell)
    return await asyncio.to_thread(_find_copies, library, judged, pictures=imported, vectors=vectors, nearness=nearness)


async def embed_rows(
    judged: Sequence[Row], pictures: Path | None, encoder: Encoder, reader: PictureReader, scratch: Path, tell: Progress
) -> tuple[Mapping[int, ImportedPicture], NDArray[np.float32]]:
    """Embeds memes to compare them: pictures by index, without unusable ones, and rows as in a library."""
    await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
    imported, _ = await embed_pictures_of(
        [Wanted(row, pictures) for row in judged],
        reader,
        encoder=encoder,
        spool=await asyncio.to_thread(ThumbnailWriter, scratch),
        progress=lambda done, total: tell("judged pictures", done, total),
    )
    vectors = np.zeros((len(judged), encoder.identity.dim), dtype=np.float32)
    for start in range(0, len(judged), _TEXTS):
        part = [meme.text for meme in judged[start : start + _TEXTS]]
        vectors[start : start + len(part), : encoder.identity.text_dim] = (
            await asyncio.to_thread(encoder.embed_texts, part)
        ).vectors
        tell("judged texts", start + len(part), len(judged))
    for index, one in imported.items():
        vectors[index, encoder.identity.text_dim :] = one.vector
    return imported, vectors


def duplicate_numbers(
    rows: Sequence[Row], pictures: Mapping[int, ImportedPicture], vectors: NDArray[np.float32], text_dim: int
) -> NDArray[np.int64]:
    """Numbers groups of memes from 0, such that none is a leak of one in another group."""
    nearness = LeakThresholds()
    has_text, has_picture = (np.asarray(half.any(axis=1)) for half in (vectors[:, :text_dim], vectors[:, text_dim:]))

    def pairs() -> Iterator[tuple[int, int]]:
        for keys in (
            ((text_key(row.text), index) for index, row in enumerate(rows)),
            ((one.bytes_sha256, index) for index, one in pictures.items()),
            ((one.pixels_sha256, index) for index, one in pictures.items()),
        ):
            first: dict[str, int] = {}
            yield from ((first.setdefault(key, index), index) for key, index in keys if key)
        for start in range(0, len(rows), _BLOCK):
            here = slice(start, start + _BLOCK)
            # Each pair once: earlier blocks were already compared with this one.
            near = vectors[here, text_dim:] @ vectors[start:, text_dim:].T >= nearness.picture
            textless = ~has_text[here, None] & ~has_text[None, start:]
            near &= (vectors[here, :text_dim] @ vectors[start:, :text_dim].T >= nearness.text) | textless
            near &= has_picture[here, None] & has_picture[None, start:]
            found, others = np.nonzero(near)
            yield from zip((found + start).tolist(), (others + start).tolist(), strict=True)

    return number_linked(len(rows), pairs())


def _find_copies(
    whole: Library,
    judged: Sequence[Row],
    pictures: Mapping[int, ImportedPicture],
    vectors: NDArray[np.float32],
    nearness: LeakThresholds,
) -> Leaks:
    """Every precedent beside every judged meme."""
    dim = whole.manifest.encoder.text_dim
    same: tuple[tuple[dict[str, int], Callable[[LabelledMeme], str]], ...] = (
        (_first((meme.id, index) for index, meme in enumerate(judged)), lambda meme: meme.id),
        (_first((one.bytes_sha256, index) for index, one in pictures.items()), lambda meme: meme.bytes_sha256),
        (_first((one.pixels_sha256, index) for index, one in pictures.items()), lambda meme: meme.pixels_sha256),
        (_first((text_key(meme.text), index) for index, meme in enumerate(judged)), lambda meme: text_key(meme.text)),
    )
    # By the vectors: a text that the encoder can't read counts as missing.
    has_text: NDArray[np.bool_] = np.asarray(vectors[:, :dim].any(axis=1))
    has_picture: NDArray[np.bool_] = np.asarray(vectors[:, dim:].any(axis=1))
    leaks: list[Leak] = []
    text_alone = 0
    for start in range(0, len(whole.memes), _BLOCK):
        # Rows are memory-mapped, so that only one block is in memory at a time.
        block = np.asarray(whole.rows[start : start + _BLOCK])
        texts, picture_cosines = block[:, :dim] @ vectors[:, :dim].T, block[:, dim:] @ vectors[:, dim:].T
        for row, meme in enumerate(whole.memes[start : start + _BLOCK]):
            close_text: NDArray[np.bool_] = np.greater_equal(texts[row], nearness.text)
            close_picture: NDArray[np.bool_] = np.greater_equal(picture_cosines[row], nearness.picture)
            # Only if both lack a text; a meme with a text differs from one without.
            textless = ~has_text & (not meme.has_text)
            why, index = next(
                (
                    (why, indices[key(meme)])
                    # The last two reasons are checked below.
                    for why, (indices, key) in zip(WHYS, same, strict=False)
                    if key(meme) in indices
                ),
                ("", -1),
            )
            if not why:
                pictured = has_picture & meme.has_picture
                both = np.flatnonzero(close_picture & (close_text | textless) & pictured)
                similar = np.flatnonzero(_on_one_template(picture_cosines[row], nearness) & pictured)
                if both.size:
                    # The nearest of several: a copy's original rather than another meme on the same template.
                    why, index = "near-duplicate", int(both[np.argmax(texts[row, both] + picture_cosines[row, both])])
                elif similar.size:
                    why, index = "same template", int(similar[np.argmax(picture_cosines[row, similar])])
                else:
                    # Counted, so that the report says how much could not be compared.
                    text_alone += bool((close_text & ~pictured).any())
                    continue
            leaks.append(
                Leak(
                    precedent=meme.id,
                    meme=judged[index].id,
                    why=why,
                    text_similarity=_figure(texts[row, index], meme.has_text and bool(has_text[index])),
                    picture_similarity=_figure(
                        picture_cosines[row, index], meme.has_picture and bool(has_picture[index])
                    ),
                )
            )
    shared = _shared_templates(judged, vectors[:, dim:], nearness)
    return Leaks(tuple(leaks), text_alone, len(judged) - len(pictures), shared)


def _shared_templates(judged: Sequence[Row], pictures: NDArray[np.float32], nearness: LeakThresholds) -> dict[str, str]:
    if nearness.template is None:
        return {}
    numbers = template_numbers(pictures, nearness.template)
    first: dict[int, int] = {}
    for index, number in enumerate(numbers.tolist()):
        first.setdefault(number, index)
    # Templates of a single meme are not stored: most memes have their own.
    sizes = np.bincount(numbers)
    return {
        meme.id: judged[first[number]].id
        for meme, number in zip(judged, numbers.tolist(), strict=True)
        if sizes[number] > 1
    }


def template_numbers(pictures: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """Numbers the template of each meme from 0; memes connected by a chain of near pictures share one."""

    def pairs_on_one_template() -> Iterator[tuple[int, int]]:
        for start in range(0, len(pictures), _BLOCK):
            # Each pair once: earlier blocks were already compared with this one.
            rows, columns = np.nonzero(pictures[start : start + _BLOCK] @ pictures[start:].T >= threshold)
            yield from zip((rows + start).tolist(), (columns + start).tolist(), strict=True)

    return number_linked(len(pictures), pairs_on_one_template())


def _on_one_template(picture_cosines: NDArray[np.float32], nearness: LeakThresholds) -> NDArray[np.bool_]:
    if nearness.template is None:
        return np.zeros(len(picture_cosines), dtype=np.bool_)
    return np.greater_equal(picture_cosines, nearness.template)


def _first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Maps each key to the index of its first occurrence; empty keys match nothing."""
    indices: dict[str, int] = {}
    for key, index in pairs:
        if key:
            indices.setdefault(key, index)
    return indices


def _figure(similarity: np.float32, compared: bool) -> float | None:
    return round(float(np.clip(similarity, -1, 1)), 4) if compared else None
