"""A library of precedents on disk, and its in-memory form for search.

An open library is immutable: a change creates a new object that shares unchanged parts, so searches in the old one stay
consistent.

A row is the index of a meme's vectors in its generation; a place is its index among the visible memes. They differ
after a meme has been removed, until the next generation.
"""

from __future__ import annotations

import io
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from court.digests import sha256_of
from court.errors import BadLibrary, BadRequest
from court.precedents import LibraryIdentity
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library import journal, storage, verify
from retrieval.library.changes import Change, Effect, Recorded, with_revocations
from retrieval.library.filters import Filter
from retrieval.library.manifest import (
    FLAGS,
    FORMAT,
    HARMFUL,
    JOURNAL,
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
from retrieval.library.meme_table import Memes, MemeWriter, StoredChange, refuse_ids
from retrieval.library.overlay import Delta, DeltaBuilder
from retrieval.library.storage import Pointer, damaged
from retrieval.library.thumbnails import JoinedPictures, PictureFile, ThumbnailStore
from retrieval.library.verify import Base, Check, Progress

_BLOCK = 8192
"""Rows written per block."""

Shelved = tuple[LabelledMeme, ThumbnailStore | None]
"""A meme, and the current store of its picture."""


@dataclass(frozen=True, eq=False)
class Library:
    """An immutable snapshot of a library.

    Attributes:
        pointer: Generation and committed part of its journal.
        overlay: Changes after the generation was written.
    """

    root: Path
    pointer: Pointer
    manifest: Manifest
    base: Base
    overlay: Delta
    pictures: ThumbnailStore

    @property
    def generation(self) -> str:
        """Name of the generation."""
        return self.pointer.generation

    @property
    def directory(self) -> Path:
        """Directory of the generation."""
        return self.root / storage.GENERATIONS / self.generation

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest and of all changes since, as ``sha256:…``."""
        return f"sha256:{self.pointer.head}"

    @cached_property
    def identity(self) -> LibraryIdentity:
        """Identity for records."""
        return LibraryIdentity(
            name=self.manifest.name,
            digest=self.digest,
            size=self.counts.memes,
            encoder=str(self.manifest.encoder),
            with_picture=self.counts.with_picture,
        )

    @cached_property
    def counts(self) -> Counts:
        """Numbers of memes. Raises ValueError if none is left."""
        # Counted when the generation was written; recounting needs a pass over the flags of all rows.
        if not self.overlay.changes:
            return self.manifest.counts
        flags = self.flags if self.live is None else self.flags[self.live]
        return Counts.of(flags, self.manifest.counts.kept_bytes + self.overlay.bytes_added)

    @property
    def flags(self) -> NDArray[np.uint8]:
        """Flags of all rows, including hidden ones; see :mod:`retrieval.library.manifest`."""
        return self.base.flags if self.overlay.flags is None else self.overlay.flags

    @cached_property
    def live(self) -> NDArray[np.int64] | None:
        """Visible rows, in order; None if all are visible."""
        if not self.overlay.hidden:
            return None
        # Rows are hidden instead of removed, so that row numbers stay valid for concurrent searches.
        shown = np.ones(self.flags.size, dtype=np.bool_)
        shown[list(self.overlay.hidden)] = False
        return np.flatnonzero(shown)

    @property
    def memes(self) -> Sequence[LabelledMeme]:
        """Memes by place, read from disk on access; iterate instead of indexing one by one."""
        size = self.flags.size if self.live is None else self.live.size
        return Memes(size, lambda places: self._read_run(places))

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        """Rows ``[t|g]`` by place, float32, read-only; a full copy after a change: for tools, not for searches."""
        if not self.overlay.changes:
            return self.base.rows
        rows = np.concatenate(list(self._blocks()))
        rows.flags.writeable = False
        return rows

    def picture(self, place: int) -> bytes | None:
        """Returns the stored picture of the meme at a place, as a JPEG; None if there is none.

        Raises:
            BadLibrary: The picture was altered.
            IndexError: There is no such place.
            OSError: The picture can't be read.
        """
        if not 0 <= place < len(self.memes):
            raise IndexError(f"there is no place {place}")
        return self.picture_of(self.memes[place])

    def picture_of(self, meme: LabelledMeme) -> bytes | None:
        """Returns the stored picture of a meme of this library. Raises as :meth:`picture`."""
        return None if meme.kept is None else self.pictures.read(meme.kept)

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """Returns the memes in these rows, including hidden ones, in this order. Raises BadLibrary."""
        # Changed memes are in memory; only the others are read from the table.
        known = {row: meme for row in rows if (meme := self._described(row)) is not None}
        if len(known) == len(rows):
            return [known[row] for row in rows]
        missing = [row for row in rows if row not in known]
        known |= zip(missing, self.base.table.read(missing), strict=True)
        return [known[row] for row in rows]

    def row_of(self, id_: str) -> int | None:
        """Returns the row of a meme; None if there is none. Raises BadLibrary."""
        # Changes take precedence, as they may have replaced the description of a row.
        row = self.overlay.places.get(id_)
        if row is not None:
            return row
        row = self.base.table.row_of(id_)
        return None if row is None or row in self.overlay.hidden else row

    def ids(self) -> Iterator[str]:
        """Yields the ids of all memes, in order. Raises BadLibrary."""
        hidden = self.overlay.hidden
        yield from (id_ for row, id_ in self.base.table.ids() if row not in hidden)
        yield from (meme.id for row, meme in enumerate(self.overlay.memes, self.base.size) if row not in hidden)

    def binding(self, key: str) -> list[LabelledMeme]:
        """Returns the memes with this :attr:`LabelledMeme.copy_key`, in order. Raises BadLibrary."""
        gone = self.overlay.hidden | self.overlay.edited.keys()
        rows = [row for row in self.base.copies.get(key, ()) if row not in gone]
        return [*self.read(rows), *self._binding_since.get(key, ())]

    def binds_none(self, key: str) -> bool:
        """True if no meme is known to have this copy key, without reading anything."""
        read = "copies" in vars(self.base)
        return read and key not in self.base.copies and key not in self._binding_since

    @cached_property
    def _binding_since(self) -> Mapping[str, Sequence[LabelledMeme]]:
        """Binding memes that were added or changed since the generation was written, by copy key."""
        found = defaultdict[str, list[LabelledMeme]](list)
        for row, meme in (*sorted(self.overlay.edited.items()), *enumerate(self.overlay.memes, self.base.size)):
            if meme.copy_key and row not in self.overlay.hidden:
                found[meme.copy_key].append(meme)
        return dict(found)

    def choose(self, where: Filter) -> NDArray[np.bool_]:
        """Returns the mask of rows that a filter admits, shape (rows,); may include hidden ones. Raises BadLibrary."""
        # The table is as of the generation; memes relabelled since are filtered by their current state.
        base = self.base.table.choose(where, self.base.size)
        for row, meme in self.overlay.edited.items():
            base[row] = where.lets_through(meme)
        return np.concatenate([base, np.array([where.lets_through(m) for m in self.overlay.memes], dtype=np.bool_)])

    def history(self, meme: str | None = None) -> list[Recorded]:
        """Returns all recorded changes, of one meme or of all, in order. Raises BadLibrary."""
        since = self.overlay.changes if meme is None else self.overlay.by_meme.get(meme, ())
        return with_revocations([*self.base.table.changes(meme), *since])

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        name: str,
        encoder: EncoderIdentity,
        memes: Iterable[LabelledMeme],
        rows: NDArray[np.float32],
        tuning: Tuning,
        pictures: ThumbnailStore | None = None,
        replace: bool = False,
        notes: Sequence[str] = (),
    ) -> Self:
        """Writes a library and opens it.

        Args:
            rows: float32 of shape (memes, text_dim + picture_dim), each half of length 1, or 0 if missing.

        Raises:
            BadRequest: The directory has a library or other files already, or an id is duplicated.
            Unavailable: Another process is writing to it.
            OSError: The library can't be written.
            ValueError: Rows and memes do not fit each other.
        """
        refuse_place(root, replace)
        # Before the lock, which is a file in this directory.
        root.mkdir(parents=True, exist_ok=True)
        with storage.writing(root):
            # Checked again under the lock, as a library may have been written since the first check.
            refuse_place(root, replace)
            # The previous library stays for current readers until the next write.
            before = _generation_or_none(root)
            shelved = ((meme, pictures) for meme in memes)
            return cls._write(
                root, before, name=name, encoder=encoder, shelved=shelved, blocks=[rows], tuning=tuning, notes=notes
            )

    @classmethod
    def open(
        cls,
        root: Path,
        encoder: EncoderIdentity | None,
        *,
        check: Check = Check.WHOLE,
        progress: Progress | None = None,
    ) -> Self:
        """Opens the current library.

        All bytes except those of pictures are verified first, unless that is deferred; a picture is verified when it is
        read, all of them by :meth:`check_pictures`. Verification also loads the files into the page cache, so that the
        first search is as fast as later ones.

        Args:
            encoder: Encoder to search with; None to read the library only.
            check: ``LATER`` to return at once and call :meth:`check` later.

        Raises:
            BadLibrary: The library is missing, damaged, of another format, or was built with another encoder.
        """
        while True:
            pointer = storage.read_pointer(root)
            try:
                return cls._open(root, pointer, encoder=encoder, check=check, progress=progress)
            except BadLibrary:
                # Two writes since CURRENT was read would have removed the generation that it named.
                if storage.read_pointer(root) == pointer:
                    raise

    def newer(self) -> Self | None:
        """Returns the current library if it differs from this one, sharing unchanged parts; otherwise None.

        Raises:
            BadLibrary: The library is missing, damaged, of another format or another encoder. This object stays valid.
        """
        pointer = storage.read_pointer(self.root)
        if pointer == self.pointer:
            return None
        # The name alone is not enough: if the directory was deleted and rebuilt, another generation can have it.
        same = (pointer.generation, pointer.manifest_sha256) == (self.generation, self.pointer.manifest_sha256)
        # A journal only grows. A shorter one, such as a restored backup, does not continue this one.
        if same and pointer.journal_size >= self.pointer.journal_size:
            try:
                return self._with_journal(pointer)
            except BadLibrary:
                # As in open: it is damaged only if CURRENT still names it; otherwise it was replaced while being read.
                if storage.read_pointer(self.root) == pointer:
                    raise
        return self.open(self.root, self.manifest.encoder)

    def check(self, progress: Progress | None = None) -> None:
        """Runs the verification deferred by ``Check.LATER``; safe to call from another thread during searches.

        Raises:
            BadLibrary: The library was altered.
        """
        verify.check_digests(self.directory, self.manifest, progress)
        problem = verify.content_problem(self.base, self.manifest)
        if problem:
            raise damaged(problem)

    def check_pictures(self) -> None:
        """Verifies all pictures, which opening skips because there may be many.

        Raises:
            BadLibrary: A picture was altered.
        """
        try:
            sha256 = sha256_of(self.directory / PICTURES)
        except OSError as error:
            raise damaged(f"{PICTURES} can't be read") from error
        if sha256 != self.manifest.files[PICTURES].sha256:
            raise damaged(f"{PICTURES} is not what it was when written")

    def add(
        self,
        memes: Iterable[LabelledMeme],
        rows: NDArray[np.float32],
        tuning: Tuning | None = None,
        pictures: ThumbnailStore | None = None,
        *,
        notes: Sequence[str] = (),
    ) -> Self:
        """Writes and opens a new generation with memes appended. Everything is rewritten, so add many at once.

        Raises:
            BadLibrary: A stored picture was altered.
            BadRequest: An id is in use, or the library was changed since it was opened.
            Unavailable: Another process is writing to it.
            OSError: The new generation can't be written; the old one stays in use.
            ValueError: Rows and memes do not fit each other.
        """
        memes = list(memes)
        # Before taking the lock, as checking every id would keep other writers waiting.
        refuse_ids([meme.id for meme in memes if self.row_of(meme.id) is not None], "already in the library")
        if self.manifest.changes or self.overlay.changes:
            # Records of trials refer to precedents by id, so an id must never be reused for another meme.
            refuse_ids([meme.id for meme in memes if self.history(meme.id)], "in the library before, and then removed")
        with storage.writing(self.root):
            # This object is written plus the new memes, so changes by others since then would be lost.
            if storage.read_pointer(self.root) != self.pointer:
                raise BadRequest("The precedent library was changed since it was opened. Open it and add again.")
            return self.rewritten([(meme, pictures) for meme in memes], rows, tuning, notes=notes)

    def rewritten(
        self,
        more: Sequence[Shelved] = (),
        rows: NDArray[np.float32] | None = None,
        tuning: Tuning | None = None,
        *,
        forget: bool = False,
        notes: Sequence[str] = (),
    ) -> Self:
        """Writes a new generation of the visible memes and more; requires the lock and the current library.

        Args:
            forget: True to delete removed memes permanently; otherwise the history keeps them, so that they can be
                restored.

        Raises:
            As :meth:`add`.
        """
        if not len(self.memes) and not more:
            raise BadRequest("No precedent is left in the library. Add one first.", reason="LIBRARY_EMPTY")

        def shelved() -> Iterator[Shelved]:
            yield from ((meme, self.pictures) for meme in self.memes)
            yield from more

        # Views instead of copies, so that a library of gigabytes is not duplicated in memory.
        blocks = [*self._blocks(), *([] if rows is None else [rows])]
        return self._write(
            self.root,
            None if forget else self.generation,
            name=self.manifest.name,
            encoder=self.manifest.encoder,
            shelved=shelved(),
            blocks=blocks,
            tuning=tuning or self.manifest.tuning,
            history=self._stored_history(forget),
            changes=self.manifest.changes + len(self.overlay.changes),
            lineage=self.manifest.lineage,
            notes=tuple(dict.fromkeys((*self.manifest.notes, *notes))),
        )

    @classmethod
    def _write(
        cls,
        root: Path,
        before: str | None,
        name: str,
        encoder: EncoderIdentity,
        shelved: Iterable[Shelved],
        blocks: Sequence[NDArray[np.float32]],
        tuning: Tuning,
        history: Iterable[StoredChange] = (),
        changes: int = 0,
        lineage: str = "",
        notes: Sequence[str] = (),
    ) -> Self:
        def fill(directory: Path) -> None:
            # Pictures are written in a single pass, in the order of the memes, which also collects the data of the
            # other files.
            writer = MemeWriter(directory / MEMES)
            try:
                # First, as this also passes each meme to the writer, with the new location of its picture.
                files = {PICTURES: storage.write_synced(directory / PICTURES, _laid_out(shelved, writer))}
                writer.record(history)
                writer.finish()
            finally:
                writer.close()
            flags = np.frombuffer(bytes(writer.flags), dtype=np.uint8)
            files[MEMES] = storage.synced(directory / MEMES)
            files[VECTORS] = storage.write_synced(directory / VECTORS, _npy(blocks, flags, encoder))
            files[FLAGS] = storage.write_synced(directory / FLAGS, _npy([flags]))
            manifest = Manifest(
                format=FORMAT,
                name=name,
                created=datetime.now(UTC),
                software=software_version(),
                encoder=encoder,
                counts=Counts.of(flags, writer.kept_bytes),
                tuning=tuning,
                sources=dict(sorted(writer.sources.items())),
                notes=tuple(notes),
                files={file: FileEntry(sha256=sha256, size=size) for file, (sha256, size) in sorted(files.items())},
                lineage=lineage or uuid.uuid4().hex,
                changes=changes,
            )
            storage.write_synced(directory / MANIFEST, [f"{manifest.model_dump_json(indent=2)}\n".encode()])

        pointer = storage.publish(root, fill, MANIFEST)
        # Opened before former generations are pruned, in case this one is not readable.
        library = cls._open(root, pointer, encoder, Check.WHOLE)
        # Without ``before`` the previous generation is pruned too, as it still contains forgotten memes.
        storage.prune(root, pointer.generation, before)
        return library

    @classmethod
    def _open(
        cls,
        root: Path,
        pointer: Pointer,
        encoder: EncoderIdentity | None,
        check: Check,
        progress: Progress | None = None,
    ) -> Self:
        directory = root / storage.GENERATIONS / pointer.generation
        manifest = verify.read_manifest(directory, pointer)
        # Checked before gigabytes are read and hashed in vain.
        if encoder is not None and manifest.encoder != encoder:
            raise BadLibrary(
                f"The precedent library was made with the encoder {manifest.encoder}, but {encoder} is loaded: their "
                "similarities can't be compared. Load the former, or build the library again with the latter.",
                reason="LIBRARY_FOREIGN",
            )
        base = verify.read_base(directory, manifest, check, progress)
        # Opened without its journal first; its changes are then applied by the code that updates an open library.
        bare = Pointer(pointer.generation, pointer.manifest_sha256)
        library = cls(
            root=root,
            pointer=bare,
            manifest=manifest,
            base=base,
            overlay=Delta.none(manifest.encoder.dim),
            pictures=JoinedPictures(base.pictures),
        )
        return library if pointer == bare else library._with_journal(pointer)

    def _with_journal(self, pointer: Pointer) -> Self:
        """Returns this library with further journal entries applied, up to ``pointer``. Raises BadLibrary."""
        path = self.directory / JOURNAL
        draft = self.draft()
        entries = journal.read(
            path,
            self.pointer.journal_size,
            head=self.pointer.head,
            stop=pointer.journal_size,
            head_then=pointer.head,
            dim=self.manifest.encoder.dim,
            pictures_end=self.pictures_end,
        )
        for entry in entries:
            draft.apply(entry)
        return self.with_draft(draft, pointer)

    @property
    def pictures_end(self) -> int:
        """Offset at which the journal's pictures begin, after those of the generation."""
        return self.manifest.files[PICTURES].size

    def draft(self) -> DeltaBuilder:
        """Returns a builder for changes."""
        return DeltaBuilder(self.base, self.base.flags, self.overlay, self.manifest.encoder)

    def with_draft(self, draft: DeltaBuilder, pointer: Pointer) -> Self:
        """Returns the library after a draft has been written to disk. Raises BadLibrary."""
        try:
            pictures = JoinedPictures(self.base.pictures, PictureFile.open(self.directory / JOURNAL))
        except OSError as error:
            raise damaged(f"{JOURNAL} can't be read") from error
        return replace(self, pointer=pointer, overlay=draft.done(), pictures=pictures)

    def vector_of(self, row: int) -> NDArray[np.float32]:
        """Returns the vector of the meme in this row, shape (text_dim + picture_dim,)."""
        found = self.base.rows[row] if row < self.base.size else self.overlay.rows[row - self.base.size]
        # A copy, as a view would keep the whole mapped file open.
        return np.array(found)

    def _described(self, row: int) -> LabelledMeme | None:
        return self.overlay.memes[row - self.base.size] if row >= self.base.size else self.overlay.edited.get(row)

    def _read_run(self, places: range) -> list[LabelledMeme]:
        if self.live is not None:
            return self.read([int(row) for row in self.live[places.start : places.stop : places.step]])
        # Only a contiguous run of unchanged base rows can be read as one range of the table.
        if places.step != 1 or self.overlay.edited or places.stop > self.base.size:
            return self.read(places)
        return self.base.table.run(places.start, places.stop)

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        hidden = np.array(sorted(self.overlay.hidden), dtype=np.int64)
        first = 0
        for rows in (self.base.rows, self.overlay.rows):
            # Views between hidden rows, without copying.
            start = 0
            for row in hidden[(hidden >= first) & (hidden < first + len(rows))] - first:
                if start < row:
                    yield rows[start:row]
                start = int(row) + 1
            if start < len(rows):
                yield rows[start:]
            first += len(rows)

    def _stored_history(self, forget: bool) -> Iterator[StoredChange]:
        """Yields all changes, with the data needed to restore removed memes."""
        revoked: Mapping[int | None, int] = {
            one.change.number: one.revoked_by for one in self.history() if one.revoked_by is not None
        }

        def forgotten(change: Change) -> Change:
            # Memes that still exist are not forgotten.
            gone = self.row_of(change.meme) is None
            return change.model_copy(update={"before": None, "after": None}) if forget and gone else change

        for change, vector, picture in self.base.table.history():
            yield (forgotten(change), None, None) if forget else (change, vector, picture)
        for change in self.overlay.changes:
            # A revoked removal needs no data, as the meme is back in its row.
            if change.effect is not Effect.HIDE or forget or change.number in revoked:
                yield forgotten(change), None, None
            else:
                (meme,) = self.read([change.row])
                yield change, self.vector_of(change.row).astype("<f4").tobytes(), self.picture_of(meme)


def refuse_place(root: Path, replace: bool) -> None:
    """Raises BadRequest if the directory contains a library already, or other files."""
    # Also when replacing: no library is written next to unrelated files.
    if root.is_dir() and {path.name for path in root.iterdir()} - storage.OWN_NAMES:
        raise BadRequest("The directory for the library holds other things. Name a new or empty one.")
    if (root / storage.CURRENT).exists() and not replace:
        raise BadRequest(
            "There is a precedent library already. Add to it, or ask for it to be replaced.", reason="LIBRARY_EXISTS"
        )


def software_version() -> str:
    """Version of this package."""
    try:
        return version("memecourt")
    except PackageNotFoundError:
        return "unknown"


def harmful_rows(library: Library) -> NDArray[np.bool_]:
    """Returns the mask of rows of harmful memes, shape (rows,)."""
    harmful: NDArray[np.bool_] = (library.flags & HARMFUL) != 0
    return harmful


def _laid_out(shelved: Iterable[Shelved], writer: MemeWriter) -> Iterator[bytes]:
    """Yields the concatenated pictures, verifying each, and passes their memes to the writer.

    Raises:
        ValueError: A meme has a picture, but no store was given.
    """
    end = 0
    for meme, pictures in shelved:
        if meme.kept is None:
            writer.append(meme)
            continue
        if pictures is None:
            raise ValueError("memes that keep a picture were given without the file of pictures")
        moved = meme.kept.model_copy(update={"offset": end})
        writer.append(meme if moved == meme.kept else meme.model_copy(update={"kept": moved}))
        end += moved.size
        yield pictures.read(meme.kept)


def _generation_or_none(root: Path) -> str | None:
    try:
        return storage.read_pointer(root).generation
    except BadLibrary:
        return None


def _npy(
    blocks: Sequence[NDArray[np.float32] | NDArray[np.uint8]],
    flags: NDArray[np.uint8] | None = None,
    encoder: EncoderIdentity | None = None,
) -> Iterator[bytes | memoryview]:
    """Yields arrays as one .npy file without copying them; validates them as rows of memes if flags are given.

    Raises:
        ValueError: The rows do not fit the memes.
    """
    if flags is not None and encoder is not None:
        shapes = {block.shape[1:] for block in blocks}
        if sum(map(len, blocks)) != flags.size or shapes != {(encoder.dim,)}:
            raise ValueError(f"{VECTORS} is not {flags.size} rows of {encoder.dim} values")
    header = io.BytesIO()
    # Header of a single row with the total count inserted, as joining the blocks would copy them.
    described = npy.header_data_from_array_1_0(np.ascontiguousarray(blocks[0][:1]))
    described["shape"] = (sum(map(len, blocks)), *blocks[0].shape[1:])
    npy.write_array_header_1_0(header, described)
    yield header.getvalue()
    first = 0
    for rows in blocks:
        for start in range(0, len(rows), _BLOCK):
            part = np.ascontiguousarray(rows[start : start + _BLOCK], dtype=np.uint8 if encoder is None else np.float32)
            if flags is not None and encoder is not None:
                # The same checks as on opening, so that no library is written that could not be opened.
                problem = verify.problem_of(
                    np.asarray(part, np.float32), flags[first : first + len(part)], encoder, first
                )
                if problem:
                    raise ValueError(problem)
            yield part.data.cast("B")
            first += len(part)


__all__ = ["Check", "Library", "Shelved", "harmful_rows", "refuse_place", "software_version"]
