"""Memes as models are shown them, and samples of one or several data sets, for an arena or a probe."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadPicture, BadRequest
from court.meme import Frame, Picture
from court.ports import PictureReader
from eval.datasets.card import DatasetCard
from eval.datasets.items import JudgedMeme, Protocol
from eval.datasets.known import find_card, is_own
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
    """Memes that were drawn and can't be shown, and why."""
    described: dict[str, Any]
    """Fields of a :class:`eval.session.sampled.SampledManifest`."""


Only = Literal["all", "harmful"]
TABLE_KEYS = ("sample", "only")
"""Settings of ``[arena]`` and ``[probe]`` that select the memes."""


class Sample(BaseModel):
    """A data set that memes are sampled from; an entry of ``sample = [...]`` in the models file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[DatasetCard, BeforeValidator(lambda name: find_card(name) if isinstance(name, str) else name)]
    data: Path
    """Directory that it was unpacked into; relative to the models file."""
    split: str = Field(default_factory=lambda values: values["dataset"].first_test())
    """The first test split if absent."""
    memes: int | None = Field(default=None, ge=1)
    """Maximum number of memes, sampled by label; all if absent."""
    protocol: Protocol | None = None
    """Rule that makes two classes of the labels, and drops some memes; the data set's default if absent."""

    @model_validator(mode="after")
    def _known_protocol(self) -> Self:
        known = self.dataset.protocols
        if self.protocol is not None and self.protocol not in known:
            raise ValueError(f"{self.dataset.id} has no protocol {self.protocol}. It has: {', '.join(known)}")
        return self


class _SampleTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sample: tuple[Sample, ...] = ()
    only: Only = "all"


class SampledSet(BaseModel):
    """A data set of an arena or a probe, as its manifest describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    split: str
    protocol: Protocol
    only: Only
    limit: int | None
    memes: int
    """Number of sampled memes that can be shown."""
    files: dict[str, str]
    """SHA-256 of its annotation files, by name."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of an arena or a probe."""

    sets: tuple[Sample, ...]
    only: Only = "all"
    """``harmful``: memes that are not harmful by the protocol are left out before sampling."""
    mixed: bool = False
    """True if ids of memes begin with their data set's, so that ids of several data sets are unique."""

    @property
    def dataset(self) -> str:
        """Ids of the data sets."""
        return " + ".join(one.dataset.id for one in self.sets)

    @property
    def split(self) -> str:
        """Names of the splits, in the same order."""
        return " + ".join(one.split for one in self.sets)


def one_set(dataset: DatasetCard, data: Path, split: str, *, limit: int | None, only: Only = "all") -> Samples:
    """Returns the samples of one data set, under their own ids."""
    return Samples((Sample(dataset=dataset, data=data, split=split, memes=limit),), only)


def read_samples(table: Mapping[str, Any], where: str, base: Path) -> Samples | Only:
    """Reads ``sample`` and ``only`` of a table of the models file.

    Returns:
        The samples; if the table names no data set, only the value of ``only``.

    Raises BadRequest: A setting is invalid.
    """
    try:
        read = _SampleTable.model_validate({name: table[name] for name in TABLE_KEYS if name in table})
    except BadRequest as error:  # of a card
        raise BadRequest(f"{where}: {error.message}", reason="SAMPLE_SETTINGS") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise BadRequest(f"{where}: {faults}.", reason="SAMPLE_SETTINGS") from None
    if not read.sample:
        return read.only
    counts = Counter(one.dataset.id for one in read.sample)
    # Ids begin with the data set's: two samples of one data set could have the same ids.
    if twice := [id_ for id_, count in counts.items() if count > 1]:
        raise BadRequest(f"{where}: sample names {', '.join(twice)} twice.", reason="SAMPLE_SETTINGS")
    sets = (one.model_copy(update={"data": base / one.data}) for one in read.sample)
    return Samples(tuple(sets), read.only, mixed=True)


async def read_memes(samples: Samples, *, seed: int, keep: Callable[[str], bool] = lambda _: True) -> ShownMemes:
    """Reads the memes with their pictures, in the order of the data sets.

    Raises BadRequest: A split cannot be read; see :func:`eval.datasets.read.read_split`.
    """
    memes: list[ShownMeme] = []
    missing, files, described = dict[str, str](), dict[str, str](), list[SampledSet]()
    reader, turn = GuardedPictureReader(workers=_WORKERS), asyncio.Semaphore(_WORKERS)
    try:
        for one in samples.sets:
            before, protocol = len(memes), one.protocol or one.dataset.protocols[0]
            # Ids are unique only within one data set.
            prefix = f"{one.dataset.id}/" if samples.mixed else ""

            def drawn(
                every: Iterable[JudgedMeme], one: Sample = one, prefix: str = prefix, protocol: Protocol = protocol
            ) -> tuple[JudgedMeme, ...]:
                # Without a protocol of its own a set is used as released: no meme is silently dropped from it.
                as_released = samples.only == "all" and one.protocol is None
                scored = ((meme, meme.gold(protocol)) for meme in every)
                # Filtered before sampling, so that a limit counts memes that may be shown.
                wanted = (
                    meme
                    for meme, gold in scored
                    if as_released or gold is True or (samples.only == "all" and gold is not None)
                )
                return sample((meme for meme in wanted if keep(prefix + meme.id)), one.memes, seed)

            read = await asyncio.to_thread(read_split, one.dataset, one.data, one.split, choose=drawn)
            pictures = await asyncio.gather(*(_picture_of(meme, read.pictures, reader, turn) for meme in read.memes))
            for meme, picture in zip(read.memes, pictures, strict=True):
                if isinstance(picture, str):
                    missing[prefix + meme.id] = picture
                    continue
                assert meme.harmful is not None, "a split that is read for trials has a label of harm for each meme"
                shown = ShownMeme(
                    id=prefix + meme.id,
                    text=meme.text,
                    frames=picture.frames,
                    pixels_sha256=picture.pixels_sha256,
                    harmful=meme.harmful,
                    source_label=meme.source_label,
                    targets=meme.targets,
                    dataset=one.dataset.id,
                )
                memes.append(shown)
            files |= {prefix + name: digest for name, digest in read.files.items()}
            described.append(
                SampledSet(
                    dataset=one.dataset.id,
                    split=one.split,
                    protocol=protocol,
                    only=samples.only,
                    limit=one.memes,
                    memes=len(memes) - before,
                    files=dict(read.files),
                )
            )
    finally:
        await reader.aclose()
    without_picture = dict(sorted(missing.items()))
    fields = {
        "dataset": samples.dataset,
        "split": samples.split,
        "data": files,
        "without_picture": without_picture,
        # Several data sets have their own limits.
        "limit": None if samples.mixed else samples.sets[0].memes,
        "samples": tuple(described),
        "cards": {one.dataset.id: one.dataset.to_json() for one in samples.sets if is_own(one.dataset)},
    }
    return ShownMemes(tuple(memes), without_picture, fields)


async def _picture_of(
    meme: JudgedMeme, folder: Path | None, reader: PictureReader, turn: asyncio.Semaphore
) -> Picture | str:
    """The picture of a meme, or the reason why it can't be shown."""
    path = picture_path(folder, meme.image) if folder else None
    if path is None:
        return "PICTURE_MISSING"
    try:
        # Read only in its turn, so that no more files are in memory than are being decoded.
        async with turn:
            return await reader.read(await asyncio.to_thread(path.read_bytes))
    except OSError:
        return "PICTURE_MISSING"
    except BadPicture as error:
        return error.reason
