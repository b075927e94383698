"""The precedents of a run: the train split without what is too near to any meme that is judged with them.

A precedent is left out for the first of these that holds (design, section 5: leakage):

==================  ===============================================================================================
``same id``         a judged meme has its id
``same file``       ... its picture file, byte for byte
``same picture``    ... its normalised pixels: another file of the same picture
``same text``       ... its text, case and spacing aside; blank texts are not compared
``near-duplicate``  ... a picture and a text that are both nearly its own (:class:`Nearness`)
==================  ===============================================================================================
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from court.digests import digest
from court.errors import BadRequest, Unavailable
from court.ports import PictureReader
from court.verdict import Label
from eval.runs.folder import Excluded, JudgedMeme
from retrieval.build import Progress, build_library
from retrieval.calibrate import calibrate
from retrieval.embedding import Encoder
from retrieval.floors import floors_of
from retrieval.kept import Spool
from retrieval.library import Library
from retrieval.manifest import FORMAT, LabelledMeme
from retrieval.pictures import Seen, Wanted, embed_pictures_of
from retrieval.readers import read_source
from retrieval.sources import Row, Source
from retrieval.storage import CURRENT, sha256_of
from retrieval.text import text_key

_WHYS = ("same id", "same file", "same picture", "same text", "near-duplicate")
_TEXTS = 256
"""Texts embedded at once."""
_BLOCK = 512
"""Precedents compared at once: bounds the matrix of similarities to 512 x judged."""
SHUFFLED = "shuffled labels"
"""Stands in the name of a library whose labels were permuted, and so in every record that it was cited in."""


class Nearness(BaseModel):
    """From where on a precedent is too near; kept in the manifest of every run.

    Both cosines must be reached, with the built-in encoder. ``python -m eval.near_duplicates`` measures what they catch
    of edited copies, and what of other memes, on drawn ones. A picture alone tells templates from each other and not
    memes: other captions on the same template reach .99. A text alone says as little where captions are repeated by
    design, as in FHM. So where one of the two memes lacks a half that the other has, nothing is a near-duplicate, and
    where both lack it, the other half decides only if it is the picture.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    picture: float = Field(default=0.70, ge=-1, le=1)
    text: float = Field(default=0.80, ge=-1, le=1)
    same_text: bool = True
    """Whether the same text is enough, with whatever picture. On FHM that takes out precedents by which the data set
    means to mislead (its captions stand on harmful and on harmless pictures), and it is asked for all the same: what
    was left out is counted, and who wants it otherwise says so."""


class _Prepared(BaseModel):
    """What lies beside a prepared library, so that a run that is taken up again finds the same one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    nearness: Nearness
    shuffled_labels: int | None
    notes: tuple[str, ...]
    excluded: tuple[Excluded, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A library that may be used for what is judged.

    Attributes:
        library: The precedents that are left.
        excluded: The others, in the order of the train split.
        nearness: From where on they were too near.
        notes: What else should be known of the library, in sentences without any of the memes.
    """

    library: Library
    excluded: tuple[Excluded, ...]
    nearness: Nearness
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Precedents left out, by why."""
        found = Counter(one.why for one in self.excluded)
        return {why: found[why] for why in _WHYS if found[why]}

    @property
    def checked(self) -> dict[str, JsonValue]:
        """How it was checked, for the manifest."""
        return self.nearness.model_dump(mode="json")


async def prepare_precedents(
    place: Path,
    *,
    train: Sequence[Source],
    judged: Sequence[JudgedMeme],
    pictures: Path | None,
    encoder: Encoder,
    reader: PictureReader,
    shuffled_labels: int | None = None,
    nearness: Nearness | None = None,
    cache: Path | None = None,
    name: str = "",
    progress: Progress | None = None,
) -> Prepared:
    """The library in ``place``: made of the train split without what is too near, or found there as it was made.

    Args:
        place: Directory of the library; ``place``.json beside it says how it was made and what was left out.
        train: The train split.
        judged: What it will be used for.
        pictures: Folder of the judged memes' pictures; None where there are none.
        encoder: What it is searched with.
        reader: Decodes pictures.
        shuffled_labels: Seed by which the labels are permuted among the precedents (a control); None to leave them.
        nearness: From where on a precedent is too near; the defaults if not given.
        cache: Directory of libraries of whole train splits, which runs share; ``train-libraries`` beside ``place``.
        name: What people call the library; the sources' names if not given.
        progress: Told the step and how far it is.

    Raises:
        BadRequest: A source can't be read, nothing is left of it, or ``place`` holds a library for something else.
        BadLibrary: A library that was made before is damaged.
        Unavailable: Somebody else is writing to it.
        OSError: The disk will not have it.
    """
    tell: Progress = progress or (lambda step, done, total: None)
    nearness = nearness or Nearness()
    made_of = await asyncio.to_thread(_made_of, train, encoder)
    looked_at = await asyncio.to_thread(_looked_at, judged, pictures)
    key = digest(
        {
            "train": made_of,
            "judged": looked_at,
            "nearness": nearness.model_dump(mode="json"),
            "shuffled": shuffled_labels,
        }
    )
    if (place / CURRENT).exists() and _beside(place).exists():
        return await asyncio.to_thread(_as_it_was, place, key, encoder)

    whole = await _whole(cache or place.parent / "train-libraries", made_of, train, encoder, reader, tell)
    near, unseen = await _compare(whole, judged, pictures, encoder, reader, place.parent, nearness, tell)
    left = [row for row, meme in enumerate(whole.memes) if meme.id not in {one.precedent for one in near.excluded}]
    if not left:
        raise BadRequest(
            "Every precedent of the train split is too near to a judged meme. Are the two splits the same file?",
            reason="NOTHING_TO_CITE",
        )
    memes: Sequence[LabelledMeme] = [whole.memes[row] for row in left]
    called = name or " + ".join(source.label for source in train)
    if shuffled_labels is not None:
        memes, called = shuffle_labels(memes, shuffled_labels), f"{called}, {SHUFFLED} (seed {shuffled_labels})"
    rows = np.ascontiguousarray(whole.rows[left])
    library = await asyncio.to_thread(
        Library.create,
        place,
        name=called,
        encoder=encoder.identity,
        memes=memes,
        rows=rows,
        # Anew: what was chosen with the excluded ones would know of what is judged.
        tuning=await asyncio.to_thread(
            calibrate,
            rows,
            memes,
            encoder.identity.text_dim,
            floors_of(rows, memes, encoder.identity.text_dim, encoder.floors),
            progress=lambda done, total: tell("calibration", done, total),
        ),
        pictures=whole.pictures,
        # What a crash left before it was said how it was made.
        replace=True,
    )
    notes = await asyncio.to_thread(_notes, train, whole, judged, unseen, near.text_alone)
    kept = _Prepared(
        key=key, nearness=nearness, shuffled_labels=shuffled_labels, notes=notes, excluded=tuple(near.excluded)
    )
    new = _beside(place).with_suffix(".json.new")
    new.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    new.replace(_beside(place))
    return Prepared(library, kept.excluded, nearness, notes)


def read_prepared(place: Path, encoder: Encoder) -> Prepared:
    """A library that was prepared before.

    Raises:
        BadLibrary: It is missing, damaged or made with another encoder.
        BadRequest: It was not made by :func:`prepare_precedents`: nobody knows whether it was checked.
    """
    library = Library.open(place, encoder.identity)
    kept = _read(place)
    return Prepared(library, kept.excluded, kept.nearness, kept.notes)


def shuffle_labels(memes: Sequence[LabelledMeme], seed: int) -> list[LabelledMeme]:
    """The memes with their labels permuted: as many of each, but of other memes.

    Categories and the source's own label go with the label: they tell it (only harmful memes have targets in HarMeme).
    """
    order = np.random.default_rng(seed).permutation(len(memes))
    return [
        meme.model_copy(
            update={"label": other.label, "source_label": other.source_label, "categories": other.categories}
        )
        for meme, other in ((meme, memes[int(place)]) for meme, place in zip(memes, order, strict=True))
    ]


def _beside(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _read(place: Path) -> _Prepared:
    try:
        return _Prepared.model_validate_json(_beside(place).read_bytes())
    except (OSError, ValidationError):
        raise BadRequest(
            f"{_beside(place)} is missing or can't be read, so that it is not known whether the library beside it was "
            "checked against what is judged. Remove both; they are made again.",
            reason="LIBRARY_UNCHECKED",
        ) from None


def _as_it_was(place: Path, key: str, encoder: Encoder) -> Prepared:
    kept = _read(place)
    if kept.key != key:
        raise BadRequest(
            f"{place} holds precedents that were prepared for other memes, another train split or other thresholds. "
            "Name another directory for the run, or remove the library.",
            reason="LIBRARY_FOR_OTHERS",
        )
    return read_prepared(place, encoder)


def _made_of(train: Sequence[Source], encoder: Encoder) -> str:
    """Digest of all that the library of the whole train split is made of: files, their pictures, encoder, format."""
    sources: list[JsonValue] = []
    for source in train:
        rows = read_source(source)
        pictures = _digests([row.image for row in rows.good], source.pictures)
        files: list[JsonValue] = [sha256_of(path) for path in (source.path, source.labels) if path is not None]
        sources.append({"files": files, "name": source.label, "pictures": pictures})
    return digest({"sources": sources, "encoder": encoder.identity.digest, "format": FORMAT})


def _looked_at(judged: Sequence[JudgedMeme], pictures: Path | None) -> str:
    memes: list[JsonValue] = [[meme.id, meme.image, meme.text] for meme in judged]
    return digest({"memes": memes, "pictures": _digests([meme.image for meme in judged], pictures)})


def _digests(names: Iterable[str], folder: Path | None) -> str:
    """Digest of the content of these pictures, by name; empty for one that is not there."""
    if folder is None:
        return ""
    whole = hashlib.sha256()
    for name in names:
        # As retrieval.pictures looks for them: with and without a directory of their own.
        found = next((path for path in (folder / name, folder / Path(name).name) if name and path.is_file()), None)
        whole.update(f"{name}\0{sha256_of(found) if found else ''}\n".encode())
    return whole.hexdigest()


async def _whole(
    cache: Path, made_of: str, train: Sequence[Source], encoder: Encoder, reader: PictureReader, tell: Progress
) -> Library:
    """The library of the whole train split, made where it is not there yet."""
    path = cache / made_of.removeprefix("sha256:")[:16]
    for _ in range(1200):
        if (path / CURRENT).exists():
            return await asyncio.to_thread(Library.open, path, encoder.identity)
        name = " + ".join(source.label for source in train)
        try:
            return (await build_library(path, train, name=name, encoder=encoder, picture_reader=reader, progress=tell))[
                0
            ]
        except (BadRequest, Unavailable) as error:
            # Another run has made it meanwhile, or is writing it just now.
            if error.reason not in ("LIBRARY_EXISTS", "LIBRARY_LOCKED"):
                raise
            await asyncio.sleep(0.5)
    raise Unavailable("Another run is still writing the library of the train split. Try again later.")


@dataclass(frozen=True, slots=True)
class _Near:
    """What was found.

    Attributes:
        excluded: In the order of the precedents.
        text_alone: Precedents that only a missing picture keeps from being near-duplicates.
    """

    excluded: list[Excluded]
    text_alone: int


async def _compare(
    whole: Library,
    judged: Sequence[JudgedMeme],
    pictures: Path | None,
    encoder: Encoder,
    reader: PictureReader,
    beside: Path,
    nearness: Nearness,
    tell: Progress,
) -> tuple[_Near, int]:
    """What is too near, and how many judged memes were compared without their picture."""
    await asyncio.to_thread(beside.mkdir, parents=True, exist_ok=True)
    # The label plays no part here: it only makes a row complete.
    rows = [
        Row(
            line=meme.line,
            id=meme.id,
            label=Label.HARMFUL if meme.harmful else Label.NOT_HARMFUL,
            source_label=meme.source_label,
            text=meme.text,
            image=meme.image,
        )
        for meme in judged
    ]
    seen, _ = await embed_pictures_of(
        [Wanted(row, pictures) for row in rows],
        reader,
        encoder,
        await asyncio.to_thread(Spool, beside),
        lambda done, total: tell("judged pictures", done, total),
    )
    vectors = np.zeros((len(judged), encoder.identity.dim), dtype=np.float32)
    for start in range(0, len(judged), _TEXTS):
        part = [meme.text for meme in judged[start : start + _TEXTS]]
        vectors[start : start + len(part), : encoder.identity.text_dim] = (
            await asyncio.to_thread(encoder.embed_texts, part)
        ).vectors
        tell("judged texts", start + len(part), len(judged))
    for place, one in seen.items():
        vectors[place, encoder.identity.text_dim :] = one.vector
    found = await asyncio.to_thread(_near, whole, judged, seen, vectors, nearness)
    return found, len(judged) - len(seen)


def _near(
    whole: Library,
    judged: Sequence[JudgedMeme],
    seen: Mapping[int, Seen],
    vectors: NDArray[np.float32],
    nearness: Nearness,
) -> _Near:
    """Every precedent beside every judged meme.

    Args:
        whole: All precedents.
        judged: What is judged.
        seen: Their pictures, by place; without those that can't be had.
        vectors: float32 of shape (judged, text_dim + picture_dim).
        nearness: From where on a precedent is too near.
    """
    dim = whole.manifest.encoder.text_dim
    same: tuple[tuple[dict[str, int], Callable[[LabelledMeme], str]], ...] = (
        (_first((meme.id, place) for place, meme in enumerate(judged)), lambda meme: meme.id),
        (_first((one.bytes_sha256, place) for place, one in seen.items()), lambda meme: meme.bytes_sha256),
        (_first((one.pixels_sha256, place) for place, one in seen.items()), lambda meme: meme.pixels_sha256),
        (
            _first((text_key(meme.text), place) for place, meme in enumerate(judged) if nearness.same_text),
            lambda meme: text_key(meme.text),
        ),
    )
    has_text: NDArray[np.bool_] = np.asarray(vectors[:, :dim].any(axis=1))
    has_picture: NDArray[np.bool_] = np.asarray(vectors[:, dim:].any(axis=1))
    excluded: list[Excluded] = []
    text_alone = 0
    for start in range(0, len(whole.memes), _BLOCK):
        block = np.asarray(whole.rows[start : start + _BLOCK])
        texts, looks = block[:, :dim] @ vectors[:, :dim].T, block[:, dim:] @ vectors[:, dim:].T
        for row, meme in enumerate(whole.memes[start : start + _BLOCK]):
            close_text: NDArray[np.bool_] = np.greater_equal(texts[row], nearness.text)
            close_picture: NDArray[np.bool_] = np.greater_equal(looks[row], nearness.picture)
            textless = ~has_text & (not meme.has_text)
            why, place = next(
                (
                    (why, places[key(meme)])
                    for why, (places, key) in zip(_WHYS, same, strict=False)
                    if key(meme) in places
                ),
                ("", -1),
            )
            if not why:
                both = np.flatnonzero(close_picture & (close_text | textless) & has_picture & meme.has_picture)
                if not both.size:
                    text_alone += bool((close_text & ~(has_picture & meme.has_picture)).any())
                    continue
                # Of several, the nearest: a copy's original rather than another meme on the same template.
                why, place = "near-duplicate", int(both[np.argmax(texts[row, both] + looks[row, both])])
            excluded.append(
                Excluded(
                    precedent=meme.id,
                    meme=judged[place].id,
                    why=why,
                    text_similarity=_figure(texts[row, place], meme.has_text and bool(has_text[place])),
                    picture_similarity=_figure(looks[row, place], meme.has_picture and bool(has_picture[place])),
                )
            )
    return _Near(excluded, text_alone)


def _first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Where each key stands first; an empty key is equal to none."""
    places: dict[str, int] = {}
    for key, place in pairs:
        if key:
            places.setdefault(key, place)
    return places


def _figure(similarity: np.float32, compared: bool) -> float | None:
    return round(float(np.clip(similarity, -1, 1)), 4) if compared else None


def _notes(
    train: Sequence[Source], whole: Library, judged: Sequence[JudgedMeme], unseen: int, text_alone: int
) -> tuple[str, ...]:
    rows = 0
    for source in train:
        read = read_source(source)
        rows += len(read.good) + len(read.problems)
    counts = whole.manifest.counts
    said = {
        f"{rows - counts.memes:,} of the {rows:,} rows of the train split can't be used as precedents.": rows
        - counts.memes,
        f"{counts.memes - counts.with_picture:,} of {counts.memes:,} precedents have no picture.": counts.memes
        - counts.with_picture,
        f"{unseen:,} of {len(judged):,} judged memes were compared with the precedents without their picture: the same "
        "or a similar picture would not have been noticed.": unseen,
        f"{text_alone:,} precedents are near a judged meme by their text, and there is no picture on one side to tell "
        "whether they are copies; they were kept, since a near text alone is not a copy.": text_alone,
    }
    return tuple(sentence for sentence, number in said.items() if number)
