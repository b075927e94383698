"""Memes as models are shown them, and samples of one or several data sets, for an arena or a probe."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

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
    files: dict[str, str]


Only = Literal["all", "harmful"]
TABLE_KEYS = ("sample", "only")
"""Settings of ``[arena]`` and ``[probe]`` that select the memes."""


class SampleEntry(BaseModel):
    """One data set of ``sample = [...]`` in the models file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    data: Path
    """Directory that it was unpacked into; relative to the models file."""
    split: str = ""
    """The first test split if empty."""
    memes: int | None = Field(default=None, ge=1)
    """Number of memes to sample, by label; all if absent."""
    protocol: Protocol | None = None
    """Rule that makes two classes of the labels; the data set's default if absent."""


class _SampleTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sample: tuple[SampleEntry, ...] = ()
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
class Sample:
    """A data set that memes are sampled from."""

    dataset: DatasetCard
    data: Path
    split: str
    limit: int | None = None
    protocol: Protocol | None = None
    """Rule that makes two classes of its labels; memes that it drops are not sampled."""


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

    @property
    def limit(self) -> int | None:
        """Maximum number of memes if there is one data set; several have their own limits."""
        return None if self.mixed else self.sets[0].limit

    @property
    def own_cards(self) -> dict[str, dict[str, JsonValue]]:
        """Cards of the user's own data sets, by id."""
        return {one.dataset.id: one.dataset.to_json() for one in self.sets if is_own(one.dataset)}

    @property
    def plain(self) -> bool:
        """True if this is one unchanged data set, described fully by the name and split of its data set."""
        return not self.mixed and self.only == "all" and self.sets[0].protocol is None


def one_set(dataset: DatasetCard, data: Path, split: str, *, limit: int | None, only: Only = "all") -> Samples:
    """Returns the samples of one data set, under their own ids."""
    return Samples((Sample(dataset, data, split, limit),), only)


def read_samples(table: Mapping[str, Any], where: str, base: Path) -> Samples | Only:
    """Reads ``sample`` and ``only`` of a table of the models file.

    Returns:
        The samples; if the table names no data set, only the value of ``only``.

    Raises BadRequest: A setting is invalid.
    """
    try:
        read = _SampleTable.model_validate({name: table[name] for name in TABLE_KEYS if name in table})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise BadRequest(f"{where}: {faults}.", reason="SAMPLE_SETTINGS") from None
    if not read.sample:
        return read.only
    sets: list[Sample] = []
    for entry in read.sample:
        try:
            dataset = find_card(entry.dataset)
        except BadRequest as error:
            raise BadRequest(f"{where}: {error.message}", reason="SAMPLE_SETTINGS") from None
        # Ids begin with the data set's: two samples of one data set could have the same ids.
        if any(one.dataset.id == dataset.id for one in sets):
            raise BadRequest(f"{where}: sample names {entry.dataset} twice.", reason="SAMPLE_SETTINGS")
        if entry.protocol is not None and entry.protocol not in dataset.protocols:
            raise BadRequest(
                f"{where}: {entry.dataset} has no protocol {entry.protocol}. It has: {', '.join(dataset.protocols)}.",
                reason="SAMPLE_SETTINGS",
            )
        split = entry.split or dataset.first_test()
        sets.append(Sample(dataset, base / entry.data, split, limit=entry.memes, protocol=entry.protocol))
    return Samples(tuple(sets), read.only, mixed=True)


async def read_memes(
    samples: Samples, *, seed: int, keep: Callable[[str], bool] = lambda _: True
) -> tuple[ShownMemes, tuple[SampledSet, ...]]:
    """Reads the memes with their pictures, in the order of the data sets.

    Returns them and a description of each set, none if all is as released.

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
                return sample((meme for meme in wanted if keep(prefix + meme.id)), one.limit, seed)

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
                    limit=one.limit,
                    memes=len(memes) - before,
                    files=dict(read.files),
                )
            )
    finally:
        await reader.aclose()
    return ShownMemes(tuple(memes), dict(sorted(missing.items())), files), () if samples.plain else tuple(described)


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
