"""A library of precedents on disk, and as it is held to be searched.

An open library never changes: adding to it makes a new generation beside it and gives a new object, so that whoever
searches the old one searches it whole.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from court.errors import BadLibrary, BadRequest
from court.precedents import LibraryIdentity
from retrieval import storage, verify
from retrieval.embedding import EncoderIdentity
from retrieval.kept import PictureFile, lay_out
from retrieval.manifest import (
    FORMAT,
    MANIFEST,
    MEMES,
    PICTURES,
    VECTORS,
    Counts,
    FileEntry,
    LabelledMeme,
    Manifest,
    Tuning,
)

_BLOCK = 8192
"""Rows written at once."""


@dataclass(frozen=True, slots=True)
class Library:
    """A verified generation of a library.

    Attributes:
        root: Its directory.
        generation: Which generation of it.
        digest: SHA-256 of the manifest, as ``sha256:…``.
        manifest: What it says of itself.
        memes: In the order of the rows.
        rows: float32 of shape (memes, text_dim + picture_dim), ``[t|g]``, memory-mapped, read-only.
        pictures: The file of the pictures that are kept; :meth:`picture` reads it.
    """

    root: Path
    generation: str
    digest: str
    manifest: Manifest
    memes: tuple[LabelledMeme, ...]
    rows: NDArray[np.float32]
    pictures: PictureFile

    @property
    def identity(self) -> LibraryIdentity:
        """By what a record names it."""
        return LibraryIdentity(
            name=self.manifest.name,
            digest=self.digest,
            size=self.manifest.counts.memes,
            encoder=str(self.manifest.encoder),
            with_picture=self.manifest.counts.with_picture,
        )

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        name: str,
        encoder: EncoderIdentity,
        memes: Sequence[LabelledMeme],
        rows: NDArray[np.float32],
        tuning: Tuning,
        pictures: PictureFile | None = None,
        replace: bool = False,
    ) -> Self:
        """Writes a library and opens it.

        Args:
            root: Its directory; made where there is none.
            name: What people call it.
            encoder: What made the rows.
            memes: At least one.
            rows: float32 of shape (memes, text_dim + picture_dim), each half of length 1, or 0 where there is none.
            tuning: How it is searched and how it votes.
            pictures: Where the pictures are that the memes keep; None if they keep none.
            replace: Whether a library that is there already gives way, in one step.

        Raises:
            BadRequest: There is one already, or something else; or an id stands twice.
            Unavailable: Somebody else is writing to it.
            OSError: The disk will not have it.
            ValueError: Rows and memes do not fit each other.
        """
        root.mkdir(parents=True, exist_ok=True)
        strangers = {path.name for path in root.iterdir()} - {
            storage.CURRENT,
            f"{storage.CURRENT}.new",
            storage.GENERATIONS,
            ".lock",
        }
        if strangers:
            raise BadRequest("The directory for the library holds other things. Name a new or empty one.")
        with storage.writing(root):
            exists = (root / storage.CURRENT).exists()
            if exists and not replace:
                raise BadRequest(
                    "There is a precedent library already. Add to it, or ask for it to be replaced.",
                    reason="LIBRARY_EXISTS",
                )
            before = _generation_or_none(root)
            return cls._write(root, before, name, encoder, [(memes, pictures)], rows, tuning)

    @classmethod
    def open(cls, root: Path, encoder: EncoderIdentity | None) -> Self:
        """Opens the current generation after checking every byte of it but those of the pictures.

        A picture is checked when it is read, all of them by :meth:`check_pictures`.

        Args:
            root: Its directory.
            encoder: What it is to be searched with; None to look at it only.

        Raises:
            BadLibrary: It is missing, damaged, of another format, or was made by another encoder.
        """
        while True:
            pointer = storage.read_pointer(root)
            try:
                return cls._open(root, pointer, encoder)
            except BadLibrary:
                # Two writes since we read CURRENT would have removed what it named.
                if storage.read_pointer(root) == pointer:
                    raise

    def picture(self, row: int) -> bytes | None:
        """The picture that is kept of the meme in this row, as a JPEG; None where none is.

        Raises:
            BadLibrary: It is not what it was when written.
            IndexError: There is no such row.
            OSError: It can't be read.
        """
        if not 0 <= row < len(self.memes):
            raise IndexError(f"there is no row {row}")
        kept = self.memes[row].kept
        return None if kept is None else self.pictures.read(kept)

    def check_pictures(self) -> None:
        """Reads all pictures through, which opening leaves out: there may be many.

        Raises:
            BadLibrary: They are not what they were when written.
        """
        try:
            sha256 = self.pictures.sha256()
        except OSError as error:
            raise storage.damaged(f"{PICTURES} can't be read") from error
        if sha256 != self.manifest.files[PICTURES].sha256:
            raise storage.damaged(f"{PICTURES} is not what it was when written")

    def add(
        self,
        memes: Sequence[LabelledMeme],
        rows: NDArray[np.float32],
        tuning: Tuning | None = None,
        pictures: PictureFile | None = None,
    ) -> Self:
        """A new generation with these memes behind the old ones, opened.

        Args:
            memes: At least one, with ids that are new.
            rows: Theirs, as for :meth:`create`.
            tuning: As chosen with them; None to keep what there is.
            pictures: As for :meth:`create`.

        Raises:
            BadLibrary: A picture that was kept is not what it was when written.
            BadRequest: An id is taken, or the library was changed since it was opened.
            Unavailable: Somebody else is writing to it.
            OSError: The disk will not have it; the old generation holds.
            ValueError: Rows and memes do not fit each other.
        """
        taken = {meme.id for meme in self.memes}
        _refuse_ids([meme.id for meme in memes if meme.id in taken], "already in the library")
        with storage.writing(self.root):
            if storage.read_pointer(self.root).manifest_sha256 != self.digest.removeprefix("sha256:"):
                raise BadRequest("The precedent library was changed since it was opened. Open it and add again.")
            return self._write(
                self.root,
                self.generation,
                self.manifest.name,
                self.manifest.encoder,
                [(self.memes, self.pictures), (memes, pictures)],
                np.concatenate([self.rows, rows]),
                tuning or self.manifest.tuning,
            )

    @classmethod
    def _write(
        cls,
        root: Path,
        before: str | None,
        name: str,
        encoder: EncoderIdentity,
        shelves: Sequence[tuple[Sequence[LabelledMeme], PictureFile | None]],
        rows: NDArray[np.float32],
        tuning: Tuning,
    ) -> Self:
        memes, pictures = lay_out(shelves)
        _refuse_ids([id_ for id_, times in Counter(meme.id for meme in memes).items() if times > 1], "there twice")
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        problem = verify.problem_of(rows, memes, encoder)
        if problem:
            raise ValueError(problem)

        def fill(directory: Path) -> None:
            lines = (f"{meme.model_dump_json()}\n".encode() for meme in memes)
            chunks = {VECTORS: _npy(rows), MEMES: lines, PICTURES: pictures}
            files = {file: storage.write_synced(directory / file, content) for file, content in chunks.items()}
            manifest = Manifest(
                format=FORMAT,
                name=name,
                created=datetime.now(UTC),
                software=software_version(),
                encoder=encoder,
                counts=Counts.of(memes),
                tuning=tuning,
                sources=dict(sorted(Counter(meme.source for meme in memes).items())),
                files={file: FileEntry(sha256=sha256, size=size) for file, (sha256, size) in files.items()},
            )
            storage.write_synced(directory / MANIFEST, [f"{manifest.model_dump_json(indent=2)}\n".encode()])

        pointer = storage.publish(root, fill, MANIFEST)
        library = cls._open(root, pointer, encoder)
        storage.prune(root, pointer.generation, before)
        return library

    @classmethod
    def _open(cls, root: Path, pointer: storage.Pointer, encoder: EncoderIdentity | None) -> Self:
        directory = root / storage.GENERATIONS / pointer.generation
        manifest = verify.read_manifest(directory, pointer)
        if encoder is not None and manifest.encoder != encoder:
            raise BadLibrary(
                f"The precedent library was made with the encoder {manifest.encoder}, but {encoder} is loaded: their "
                "similarities can't be compared. Load the former, or build the library again with the latter.",
                reason="LIBRARY_FOREIGN",
            )
        memes, rows, pictures = verify.read_content(directory, manifest)
        return cls(root, pointer.generation, f"sha256:{pointer.manifest_sha256}", manifest, memes, rows, pictures)


def software_version() -> str:
    """Version of this package."""
    try:
        return version("memecourt")
    except PackageNotFoundError:
        return "unknown"


def _refuse_ids(ids: Sequence[str], what: str) -> None:
    if ids:
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise BadRequest(f"Each precedent needs an id of its own; {what}: {shown}.", reason="DUPLICATE_ID")


def _generation_or_none(root: Path) -> str | None:
    try:
        return storage.read_pointer(root).generation
    except BadLibrary:
        return None


def _npy(rows: NDArray[np.float32]) -> Iterator[bytes | memoryview]:
    """The rows as an .npy file, without a second copy of them in memory."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(rows))
    yield header.getvalue()
    for start in range(0, len(rows), _BLOCK):
        yield rows[start : start + _BLOCK].data.cast("B")
