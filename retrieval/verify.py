"""Reading a generation back, believing nothing: every byte is checked against the manifest, and that by ``CURRENT``.

FAISS and numpy read flipped bits without a word, so the digests come first; then what the files say is held against
what the manifest says, since a manifest can be written by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import ValidationError

from court.errors import BadLibrary
from retrieval.embedding import UNIT_TOLERANCE, EncoderIdentity
from retrieval.kept import PictureFile
from retrieval.manifest import FORMAT, MANIFEST, MEMES, PICTURES, VECTORS, Counts, FileEntry, LabelledMeme, Manifest
from retrieval.storage import Pointer, damaged, sha256_of

_BLOCK = 8192
"""Rows checked at once."""


def read_manifest(directory: Path, pointer: Pointer) -> Manifest:
    """The manifest that ``CURRENT`` vouches for. Raises BadLibrary if it is damaged or of another format."""
    try:
        raw = (directory / MANIFEST).read_bytes()
    except OSError as error:
        raise damaged(f"{MANIFEST} of generation {pointer.generation} can't be read") from error
    if hashlib.sha256(raw).hexdigest() != pointer.manifest_sha256:
        raise damaged(f"{MANIFEST} of generation {pointer.generation} is not what it was when written")
    try:
        said = json.loads(raw)
        stated = said.get("format") if isinstance(said, dict) else None
        if isinstance(stated, int) and stated != FORMAT:
            raise _other_format(stated)
        manifest = Manifest.model_validate_json(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{MANIFEST} can't be understood") from error
    if manifest.files.keys() != {VECTORS, MEMES, PICTURES}:
        raise damaged(f"{MANIFEST} does not list the files {MEMES}, {PICTURES} and {VECTORS}")
    return manifest


def _other_format(stated: int) -> BadLibrary:
    if stated > FORMAT:
        return BadLibrary(
            f"The precedent library has format {stated}; this version of MemeCourt reads format {FORMAT}. "
            "Upgrade MemeCourt, or build the library again with this version.",
            reason="LIBRARY_TOO_NEW",
        )
    return BadLibrary(
        f"The precedent library has format {stated}, which is older than format {FORMAT} that this version of "
        "MemeCourt reads. Build it again from its sources.",
        reason="LIBRARY_TOO_OLD",
    )


def read_content(
    directory: Path, manifest: Manifest
) -> tuple[tuple[LabelledMeme, ...], NDArray[np.float32], PictureFile]:
    """The memes, their rows, memory-mapped, and the file of their pictures.

    Of the pictures only the size and the places are checked: there are ten times as many bytes of them as of all else,
    and each is held against its own digest when it is read.

    Raises:
        BadLibrary: Anything else is not as it was written.
    """
    for name in (VECTORS, MEMES):
        _check_file(directory / name, manifest.files[name])
    memes = _read_memes(directory / MEMES)
    if Counts.of(memes) != manifest.counts:
        raise damaged(f"{MEMES} does not hold the memes that {MANIFEST} counts")
    rows = _read_rows(directory / VECTORS)
    problem = problem_of(rows, memes, manifest.encoder)
    if problem:
        raise damaged(problem)
    return memes, rows, _open_pictures(directory / PICTURES, manifest.files[PICTURES], memes)


def problem_of(rows: NDArray[np.float32], memes: Sequence[LabelledMeme], encoder: EncoderIdentity) -> str | None:
    """What keeps these rows from being those of these memes, in words; None if nothing does."""
    if rows.dtype != np.float32 or not rows.flags.c_contiguous or rows.shape != (len(memes), encoder.dim):
        return f"{VECTORS} is not {len(memes)} rows of {encoder.dim} values"
    has = np.array([(meme.has_text, meme.has_picture) for meme in memes], dtype=np.bool_).reshape(-1, 2)
    for start in range(0, len(memes), _BLOCK):
        block = rows[start : start + _BLOCK].astype(np.float64)
        for half, part in enumerate((block[:, : encoder.text_dim], block[:, encoder.text_dim :])):
            # A sum that is not finite compares as false, so that this finds NaN and infinity too.
            right = np.abs(np.linalg.norm(part, axis=1) - has[start : start + _BLOCK, half]) <= UNIT_TOLERANCE
            if not right.all():
                return (
                    f"row {start + int(np.argmin(right))} of {VECTORS} is not a vector of length 1 or 0 as it must be"
                )
    return None


def _open_pictures(path: Path, entry: FileEntry, memes: Sequence[LabelledMeme]) -> PictureFile:
    """The file of pictures, if it is as long as it must be and the memes share it out without gap or overlap."""
    try:
        pictures = PictureFile.open(path)
        size = pictures.size
    except OSError as error:
        raise damaged(f"{path.name} can't be read") from error
    if size != entry.size:
        raise damaged(f"{path.name} has {size:,} bytes instead of {entry.size:,}")
    end = 0
    for line, meme in enumerate(memes, start=1):
        if meme.kept is None:
            continue
        if meme.kept.offset != end:
            raise damaged(f"line {line} of {MEMES} does not say where its picture is")
        end += meme.kept.size
    if end != size:
        raise damaged(f"{path.name} does not hold the pictures that {MEMES} says it does")
    return pictures


def _check_file(path: Path, entry: FileEntry) -> None:
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise damaged(f"{path.name} has {size:,} bytes instead of {entry.size:,}")
        if sha256_of(path) != entry.sha256:
            raise damaged(f"{path.name} is not what it was when written")
    except OSError as error:
        raise damaged(f"{path.name} can't be read") from error


def _read_memes(path: Path) -> tuple[LabelledMeme, ...]:
    memes: list[LabelledMeme] = []
    try:
        with path.open("rb") as file:
            memes.extend(LabelledMeme.model_validate_json(line) for line in file)
    except ValidationError as error:
        raise damaged(f"line {len(memes) + 1} of {path.name} can't be understood") from error
    if not memes:
        raise damaged(f"{path.name} is empty")
    if len({meme.id for meme in memes}) != len(memes):
        raise damaged(f"an id stands twice in {path.name}")
    return tuple(memes)


def _read_rows(path: Path) -> NDArray[np.float32]:
    try:
        # open_memmap and not np.load: it reads nothing but .npy, and refuses arrays of objects, which are pickles.
        rows: NDArray[np.float32] = npy.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise damaged(f"{path.name} is no plain array") from error
    return rows
