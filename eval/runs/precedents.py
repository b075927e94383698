"""The precedents of a run: the train split without memes that are too similar to a judged meme.

A precedent is excluded for the first of these reasons that applies (design, section 5: leakage):

==================  ===============================================================================================
``same id``         a judged meme has its id
``same file``       ... its picture file, byte for byte
``same picture``    ... its normalised pixels: another file of the same picture
``same text``       ... its text, ignoring case and spacing; blank texts are not compared
``near-duplicate``  ... both a near-duplicate picture and a near-duplicate text
``same template``   ... a near-duplicate picture; only if templates are separated
==================  ===============================================================================================

Thresholds: :class:`retrieval.audit.leakage.LeakThresholds`.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from court.digests import digest, sha256_of
from court.errors import BadRequest, Unavailable
from court.ports import PictureReader
from eval.datasets.items import JudgedMeme
from eval.datasets.read import row_of
from eval.runs.results import Excluded
from eval.session.directory import replace_file
from retrieval.audit.leakage import WHYS, LeakThresholds, find_leaks
from retrieval.build import Progress, build_library, tune
from retrieval.embed.encoder import Encoder
from retrieval.library.library import Library
from retrieval.library.manifest import FORMAT, USUAL, LabelledMeme
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from retrieval.library.storage import CURRENT
from retrieval.open import BUILTIN, load_encoder, name_of

SHUFFLED = "shuffled labels"
"""Part of the name of a library with permuted labels, and so of every record that cites it."""
LEAKS = "with leaks"
"""Part of the name of a library that keeps precedents too similar to a judged meme, and so of every such record."""


class PreparedCheck(BaseModel):
    """Outcome of the check for leaks, stored beside a prepared library, so that a resumed run finds the same one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    nearness: LeakThresholds
    dropped_labels: tuple[str, ...] = ()
    notes: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    templates: dict[str, str] = Field(default_factory=dict)
    """Template of each judged meme that shares one with another judged meme, by id; empty if templates are not
    separated."""

    @property
    def counts(self) -> str:
        """Number of precedents excluded, by reason, in words."""
        return _counts(self.excluded)


class Prepared(NamedTuple):
    """A library checked for leaks against the judged memes."""

    library: Library
    check: PreparedCheck


async def prepare_precedents(
    place: Path,
    *,
    train: Sequence[Source],
    judged: Sequence[JudgedMeme],
    pictures: Path | None,
    encoder: Encoder,
    reader: PictureReader,
    shuffled_labels: int | None = None,
    dropped_labels: Sequence[str] = (),
    keep_leaks: bool = False,
    nearness: LeakThresholds | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    compared_by: Encoder | None = None,
) -> Prepared:
    """Builds the library in ``place`` from the train split without leaks, or reads it if it was built before.

    Args:
        place: Directory of the library; ``place``.json beside it records how it was built and what was excluded.
        cache: Directory of libraries of whole train splits, shared by runs; ``train-libraries`` beside ``place`` if
            None.

    Raises:
        BadRequest: A source can't be read, nothing is left of it, or ``place`` holds a library for another purpose.
        BadLibrary: An existing library is damaged.
        Unavailable: Another process is writing to it.
        OSError: The library can't be written to disk.
    """
    tell: Progress = progress or (lambda step, done, total: None)
    nearness = nearness or LeakThresholds()
    by = encoder if compared_by is None or compared_by.identity == encoder.identity else compared_by
    # In threads: all pictures are read for hashing.
    sources, rows_read = await asyncio.to_thread(_sources, train)
    looked_at: dict[str, JsonValue] = {"memes": [[meme.id, meme.image, meme.text] for meme in judged]}
    looked_at["pictures"] = await asyncio.to_thread(_digests, [meme.image for meme in judged], pictures)
    key = digest(
        {
            "train": _made_of(sources, encoder),
            "judged": digest(looked_at),
            "nearness": nearness.model_dump(mode="json"),
            "shuffled": shuffled_labels,
            "dropped": list(dropped_labels),
            "leaks kept": keep_leaks,
            "compared by": by.identity.digest,
        }
    )
    # The file beside the library is written last: without it, the library is a leftover of a crash and is rebuilt.
    if (place / CURRENT).exists() and _prepared_file(place).exists():
        # Precedents checked against other memes may contain copies of those judged now.
        if _read(place).key != key:
            raise BadRequest(
                f"{place} holds precedents that were prepared for other memes, another train split or other "
                "thresholds. Name another directory for the run, or remove the library.",
                reason="LIBRARY_FOR_OTHERS",
            )
        return await asyncio.to_thread(read_prepared, place, encoder)

    cache = cache or place.parent / "train-libraries"
    whole = compared = await _whole(cache, _made_of(sources, encoder), train, encoder, reader=reader, tell=tell)
    if by is not encoder:
        compared = await _whole(cache, _made_of(sources, by), train, by, reader=reader, tell=tell)
    found = await find_leaks(
        compared,
        [row_of(meme) for meme in judged],
        pictures=pictures,
        encoder=by,
        reader=reader,
        scratch=place.parent,
        nearness=nearness,
        tell=tell,
    )
    near = [Excluded(**{name: getattr(leak, name) for name in Excluded.model_fields}) for leak in found.leaks]
    leaks, excluded = (near, []) if keep_leaks else ([], near)
    # By id: near-duplicates may have been found in a library of another encoder with other row numbers.
    excluded_ids = {one.precedent for one in excluded}
    # Labels are dropped after the check, so that leaks are reported for the whole train split.
    left = [
        row
        for row, meme in enumerate(whole.memes)
        if meme.id not in excluded_ids and meme.source_label not in dropped_labels
    ]
    if not left:
        raise BadRequest(
            "Every precedent of the train split is too near to a judged meme. Are the two splits the same file?",
            reason="NOTHING_TO_CITE",
        )
    memes: Sequence[LabelledMeme] = [whole.memes[row] for row in left]
    called = " + ".join(source.label for source in train)
    if dropped_labels:
        called += f", without {' and '.join(dropped_labels)}"
    if keep_leaks:
        called += f", {LEAKS}"
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
        # Tuned again: settings chosen with the excluded memes would leak information about the judged ones.
        tuning=await asyncio.to_thread(
            tune, rows, memes, encoder=encoder, safeguards=whole.manifest.tuning.safeguards, progress=tell
        ),
        pictures=whole.pictures,
        # Replaces a leftover of a crash.
        replace=True,
    )
    notes = _notes(rows_read, whole, judged, unseen=found.unseen, text_alone=found.text_alone)
    if by is not encoder:
        notes += (f"What is too near was told by {by.identity}, the precedents are searched by {encoder.identity}.",)
    if dropped_labels:
        number = sum(meme.source_label in dropped_labels for meme in whole.memes)
        notes += (f"{number:,} memes of the train split that are {' or '.join(dropped_labels)} are no precedents.",)
    if keep_leaks:
        why = f": {_counts(leaks)}" if leaks else ""
        notes += (f"{len(leaks):,} precedents too near to a judged meme were kept (a control){why}.",)
    check = PreparedCheck(
        key=key,
        nearness=nearness,
        dropped_labels=tuple(dropped_labels),
        notes=notes,
        excluded=tuple(excluded),
        templates=dict(found.templates),
    )
    # Atomic, and after the library: see above.
    replace_file(_prepared_file(place), check.model_dump_json(indent=1) + "\n")
    return Prepared(library, check)


def read_prepared(place: Path, encoder: Encoder) -> Prepared:
    """Reads a library that was prepared earlier.

    Raises:
        BadLibrary: The library is missing, damaged or built with another encoder.
        BadRequest: The library was not built by :func:`prepare_precedents`, so that its check is unknown.
    """
    return Prepared(Library.open(place, encoder.identity), _read(place))


def comparing(encoder: Encoder) -> Encoder:
    """Returns the encoder for detecting near-duplicates: the built-in one, for which the thresholds were measured.

    So the same precedents are excluded whatever encoder searches them, and runs with different encoders are comparable.
    """
    return encoder if encoder.identity.name == name_of(BUILTIN) else load_encoder(BUILTIN)


def shuffle_labels(memes: Sequence[LabelledMeme], seed: int) -> list[LabelledMeme]:
    """The memes with their labels permuted: as many of each label, but on other memes.

    Categories and the source's own label move with the label, since they reveal it (only harmful memes have targets in
    HarMeme).
    """
    order = np.random.default_rng(seed).permutation(len(memes))
    return [
        meme.model_copy(
            update={"label": other.label, "source_label": other.source_label, "categories": other.categories}
        )
        for meme, other in ((meme, memes[int(place)]) for meme, place in zip(memes, order, strict=True))
    ]


def _counts(leaks: Iterable[Excluded]) -> str:
    """Number of leaks by reason, in the order of the reasons."""
    found = Counter(one.why for one in leaks)
    return ", ".join(f"{found[why]:,} {why}" for why in WHYS if found[why])


def _prepared_file(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _read(place: Path) -> PreparedCheck:
    try:
        return PreparedCheck.model_validate_json(_prepared_file(place).read_bytes())
    except (OSError, ValidationError):
        raise BadRequest(
            f"{_prepared_file(place)} is missing or can't be read, so that it is not known whether the library beside "
            "it was checked against what is judged. Remove both; they are made again.",
            reason="LIBRARY_UNCHECKED",
        ) from None


def _sources(train: Sequence[Source]) -> tuple[list[JsonValue], int]:
    """Names, files and pictures of the train split with their digests, and the number of its rows."""
    sources, number = list[JsonValue](), 0
    for source in train:
        rows = read_source(source)
        number += len(rows.good) + len(rows.problems)
        pictures = _digests([row.image for row in rows.good], source.pictures)
        # A tree of pictures has no file: its recipe identifies it, and its pictures are hashed above.
        files: list[JsonValue] = [sha256_of(path) for path in source.files or (source.path,) if not path.is_dir()]
        sources.append({"files": files, "name": source.label, "pictures": pictures, "recipe": source.recipe})
    return sources, number


def _made_of(sources: list[JsonValue], encoder: Encoder) -> str:
    """Digest of everything the library of the whole train split is built from: files, pictures, encoder, format."""
    built: dict[str, JsonValue] = {"format": FORMAT, "safeguards": USUAL.model_dump(mode="json")}
    return digest({"sources": sources, "encoder": encoder.identity.digest, **built})


def _digests(names: Iterable[str], folder: Path | None) -> str:
    """Digest of the content of these pictures, by name; one that is missing or unreadable counts as empty."""
    if folder is None:
        return ""
    whole = hashlib.sha256()
    for name in names:
        found = ""
        # Tried as in retrieval.library.picture_import: with and without the directory in the name. Read without
        # checking first: in a tar file, each check parses the picture's header.
        for path in (folder / name, folder / Path(name).name) if name else ():
            with suppress(OSError, ValueError):  # ValueError: the name is invalid for any file
                found = sha256_of(path)
                break
        whole.update(f"{name}\0{found}\n".encode())
    return whole.hexdigest()


async def _whole(
    cache: Path, made_of: str, train: Sequence[Source], encoder: Encoder, reader: PictureReader, tell: Progress
) -> Library:
    """The library of the whole train split, built if it does not exist yet."""
    path = cache / made_of.removeprefix("sha256:")[:16]
    # Waits up to ten minutes for another run that is writing the same library.
    name = " + ".join(source.label for source in train)
    for _ in range(1200):
        if (path / CURRENT).exists():
            return await asyncio.to_thread(Library.open, path, encoder.identity)
        try:
            built = await build_library(path, train, name=name, encoder=encoder, picture_reader=reader, progress=tell)
            return built[0]
        except (BadRequest, Unavailable) as error:
            # Another run has built it meanwhile, or is writing it now.
            if error.reason not in ("LIBRARY_EXISTS", "LIBRARY_LOCKED"):
                raise
            await asyncio.sleep(0.5)
    raise Unavailable("Another run is still writing the library of the train split. Try again later.")


def _notes(rows: int, whole: Library, judged: Sequence[JudgedMeme], unseen: int, text_alone: int) -> tuple[str, ...]:
    counts = whole.manifest.counts
    lost, bare = rows - counts.memes, counts.memes - counts.with_picture
    sentences = {
        f"{lost:,} of the {rows:,} rows of the train split can't be used as precedents.": lost,
        f"{bare:,} of {counts.memes:,} precedents have no picture.": bare,
        f"{unseen:,} of {len(judged):,} judged memes were compared with the precedents without their picture: the same "
        "or a similar picture would not have been noticed.": unseen,
        f"{text_alone:,} precedents are near a judged meme by their text, and there is no picture on one side to tell "
        "whether they are copies; they were kept, since a near text alone is not a copy.": text_alone,
    }
    return tuple(sentence for sentence, number in sentences.items() if number)
