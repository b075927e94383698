"""A library of precedents on disk, and as it is held to be searched.

An open library never changes: changing it gives a new object beside it, which shares with the old one all that is the
same, so that whoever searches the old one searches it whole.

A row is where a meme's vectors stand in its generation; a place is where it stands among those that are found. They
differ once a meme has been removed, until the next generation.
"""

from __future__ import annotations

import io
import uuid
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
"""Rows written at once."""

Shelved = tuple[LabelledMeme, ThumbnailStore | None]
"""A meme, and where its picture is now."""


@dataclass(frozen=True, eq=False)
class Library:
    """A library as it was at one moment.

    Attributes:
        root: Its directory.
        pointer: Which generation of it, and how much of its journal.
        manifest: Manifest of the generation; changes since are not in it.
        base: The files of the generation.
        overlay: Changes since the generation was written.
        pictures: Store of the pictures.
    """

    root: Path
    pointer: Pointer
    manifest: Manifest
    base: Base
    overlay: Delta
    pictures: ThumbnailStore

    @property
    def generation(self) -> str:
        """Which generation of it."""
        return self.pointer.generation

    @property
    def directory(self) -> Path:
        """Directory of its generation."""
        return self.root / storage.GENERATIONS / self.generation

    @property
    def digest(self) -> str:
        """Stands for all of it: SHA-256 of the manifest and of all changes since, as ``sha256:…``."""
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
        """Counts the memes. Raises ValueError if none is left."""
        # Counted when the generation was written; to count anew is a pass over the flags of all rows.
        if not self.overlay.changes:
            return self.manifest.counts
        flags = self.flags if self.live is None else self.flags[self.live]
        return Counts.of(flags, self.manifest.counts.kept_bytes + self.overlay.bytes_added)

    @property
    def flags(self) -> NDArray[np.uint8]:
        """Flags of all rows, hidden ones too; see :mod:`retrieval.library.manifest`."""
        return self.base.flags if self.overlay.flags is None else self.overlay.flags

    @cached_property
    def live(self) -> NDArray[np.int64] | None:
        """The rows that are found, in order; None where all are."""
        if not self.overlay.hidden:
            return None
        # Rows are hidden and not taken out, so that numbers of rows stay good for whoever searches meanwhile.
        shown = np.ones(self.flags.size, dtype=np.bool_)
        shown[list(self.overlay.hidden)] = False
        return np.flatnonzero(shown)

    @property
    def memes(self) -> Sequence[LabelledMeme]:
        """Memes by place, read from disk on access: iterate once rather than by number."""
        size = self.flags.size if self.live is None else self.live.size
        return Memes(size, lambda places: self._read_run(places))

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        """Rows by place: float32 of shape (memes, text_dim + picture_dim), ``[t|g]``, read-only.

        Memory-mapped, but after a change a copy of all of it: for tools, not for searches.
        """
        if not self.overlay.changes:
            return self.base.rows
        rows = np.concatenate(list(self._blocks()))
        rows.flags.writeable = False
        return rows

    def picture(self, place: int) -> bytes | None:
        """The picture that is kept of the meme in this place, as a JPEG; None where none is.

        Raises:
            BadLibrary: The picture was altered.
            IndexError: There is no such place.
            OSError: The picture can't be read.
        """
        if not 0 <= place < len(self.memes):
            raise IndexError(f"there is no place {place}")
        return self.picture_of(self.memes[place])

    def picture_of(self, meme: LabelledMeme) -> bytes | None:
        """The picture of a meme of this library. Raises as :meth:`picture`."""
        return None if meme.kept is None else self.pictures.read(meme.kept)

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """The memes in these rows, hidden ones too, in this order. Raises BadLibrary."""
        # What was changed since is in memory: only the others cost a look into the table.
        known = {row: meme for row in rows if (meme := self._described(row)) is not None}
        if len(known) == len(rows):
            return [known[row] for row in rows]
        missing = [row for row in rows if row not in known]
        known |= zip(missing, self.base.table.read(missing), strict=True)
        return [known[row] for row in rows]

    def row_of(self, id_: str) -> int | None:
        """Returns the row of a meme; None if there is none. Raises BadLibrary."""
        # What was changed since goes first: it may have described a row of the generation anew.
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

    def choose(self, where: Filter) -> NDArray[np.bool_]:
        """Which rows the filter lets through, shape (rows,); hidden ones may be among them. Raises BadLibrary."""
        # The table is as old as the generation; a meme that was relabelled since is judged as it is now.
        base = self.base.table.choose(where, self.base.size)
        for row, meme in self.overlay.edited.items():
            base[row] = where.lets_through(meme)
        return np.concatenate([base, np.array([where.lets_through(m) for m in self.overlay.memes], dtype=np.bool_)])

    def history(self, meme: str | None = None) -> list[Recorded]:
        """Every change that is recorded, of one meme or of all, in order. Raises BadLibrary."""
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
    ) -> Self:
        """Writes a library and opens it.

        Args:
            root: Its directory; made where there is none.
            name: Name of the library.
            encoder: Encoder that made the rows.
            memes: At least one; gone through once.
            rows: float32 of shape (memes, text_dim + picture_dim), each half of length 1, or 0 where there is none.
            tuning: Settings of search and vote.
            pictures: Store of the memes' pictures; None if they have none.
            replace: True to replace an existing library in one step; its history goes with it.

        Raises:
            BadRequest: There is one already, or something else; or an id stands twice.
            Unavailable: Somebody else is writing to it.
            OSError: The disk will not have it.
            ValueError: Rows and memes do not fit each other.
        """
        refuse_place(root, replace)
        # Before the lock, which is a file in it.
        root.mkdir(parents=True, exist_ok=True)
        with storage.writing(root):
            # Once more under the lock: somebody else may have written a library since the first look.
            refuse_place(root, replace)
            # The former library stays for who reads it now, and goes with the next write.
            before = _generation_or_none(root)
            shelved = ((meme, pictures) for meme in memes)
            return cls._write(root, before, name=name, encoder=encoder, shelved=shelved, blocks=[rows], tuning=tuning)

    @classmethod
    def open(
        cls,
        root: Path,
        encoder: EncoderIdentity | None,
        *,
        check: Check = Check.WHOLE,
        progress: Progress | None = None,
    ) -> Self:
        """Opens the library as it is now.

        Every byte of it but those of the pictures is checked first, unless that is put off: a picture is checked when
        it is read, all of them by :meth:`check_pictures`. Reading it through also brings it into the system's cache,
        so that the first search is as quick as the next.

        Args:
            root: Its directory.
            encoder: Encoder to search with; None to read the library only.
            check: ``LATER`` to answer at once, and to call :meth:`check` when there is time.
            progress: Told how many bytes of how many were checked.

        Raises:
            BadLibrary: The library is missing, damaged, of another format, or was made by another encoder.
        """
        while True:
            pointer = storage.read_pointer(root)
            try:
                return cls._open(root, pointer, encoder=encoder, check=check, progress=progress)
            except BadLibrary:
                # Two writes since we read CURRENT would have removed what it named.
                if storage.read_pointer(root) == pointer:
                    raise

    def newer(self, *, progress: Progress | None = None) -> Self | None:
        """The library as it is now, if that is another than this; what is the same is shared.

        Raises:
            BadLibrary: The library is missing or damaged, of another format, or made by another encoder. This one is
                unchanged.
        """
        pointer = storage.read_pointer(self.root)
        if pointer == self.pointer:
            return None
        # The name alone does not do: where the directory was removed and built anew, another generation has it.
        same = (pointer.generation, pointer.manifest_sha256) == (self.generation, self.pointer.manifest_sha256)
        # A journal only grows. A shorter one (a backup was put in its place) does not continue this one.
        if same and pointer.journal_size >= self.pointer.journal_size:
            try:
                return self._with_journal(pointer)
            except BadLibrary:
                # As in open: only if it is still named is it damaged; else it was replaced while it was read.
                if storage.read_pointer(self.root) == pointer:
                    raise
        return self.open(self.root, self.manifest.encoder, progress=progress)

    def check(self, progress: Progress | None = None) -> None:
        """Does what opening it with ``Check.LATER`` put off; safe to call from another thread while it is searched.

        Raises:
            BadLibrary: The library was altered.
        """
        verify.check_digests(self.directory, self.manifest, progress)
        problem = verify.content_problem(self.base, self.manifest)
        if problem:
            raise damaged(problem)

    def check_pictures(self) -> None:
        """Reads all pictures through, which opening leaves out: there may be many.

        Raises:
            BadLibrary: They are not what they were when written.
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
    ) -> Self:
        """A new generation with these memes behind the old ones, opened. All is written anew: for many at once.

        Args:
            memes: At least one, with ids that are new.
            rows: Rows of the memes, as for :meth:`create`.
            tuning: Settings chosen with them; None to keep the present ones.
            pictures: Store of the pictures, as for :meth:`create`.

        Raises:
            BadLibrary: A picture that was kept is not what it was when written.
            BadRequest: An id is taken, or the library was changed since it was opened.
            Unavailable: Somebody else is writing to it.
            OSError: The disk will not have it; the old generation holds.
            ValueError: Rows and memes do not fit each other.
        """
        memes = list(memes)
        # Before the lock is taken: this looks at every id, and keeps no other writer waiting.
        refuse_ids([meme.id for meme in memes if self.row_of(meme.id) is not None], "already in the library")
        if self.manifest.changes or self.overlay.changes:
            # Records of trials name precedents by id, so that an id never comes to mean a second meme.
            refuse_ids([meme.id for meme in memes if self.history(meme.id)], "in the library before, and then removed")
        with storage.writing(self.root):
            # What is written is this object and more: what somebody else has changed since would be lost.
            if storage.read_pointer(self.root) != self.pointer:
                raise BadRequest("The precedent library was changed since it was opened. Open it and add again.")
            return self.rewritten([(meme, pictures) for meme in memes], rows, tuning)

    def rewritten(
        self,
        more: Sequence[Shelved] = (),
        rows: NDArray[np.float32] | None = None,
        tuning: Tuning | None = None,
        *,
        forget: bool = False,
    ) -> Self:
        """A new generation of what is found in this one, and more; the lock must be held, and this be the current one.

        Args:
            more: Memes to put behind.
            rows: Rows of the memes.
            tuning: None to keep what there is.
            forget: True to delete removed memes for good; otherwise the history keeps them, so that they can come back.

        Raises:
            As :meth:`add`.
        """
        if not len(self.memes) and not more:
            raise BadRequest("No precedent is left in the library. Add one first.", reason="LIBRARY_EMPTY")

        def shelved() -> Iterator[Shelved]:
            yield from ((meme, self.pictures) for meme in self.memes)
            yield from more

        # Views and no copies: a library of gigabytes is written without a second one in memory.
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
    ) -> Self:
        def fill(directory: Path) -> None:
            # The pictures come through it once, in the order of the memes; the other files follow from what it has
            # counted.
            writer = MemeWriter(directory / MEMES)
            try:
                # First, as this also hands each meme to the writer, with the new place of its picture.
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
                files={file: FileEntry(sha256=sha256, size=size) for file, (sha256, size) in sorted(files.items())},
                lineage=lineage or uuid.uuid4().hex,
                changes=changes,
            )
            storage.write_synced(directory / MANIFEST, [f"{manifest.model_dump_json(indent=2)}\n".encode()])

        pointer = storage.publish(root, fill, MANIFEST)
        # Before the former generations go: should this one not be readable, they are still there.
        library = cls._open(root, pointer, encoder, Check.WHOLE)
        # Without ``before`` the former one goes too: what is to be forgotten is still in it.
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
        # Before gigabytes are read and hashed for nothing.
        if encoder is not None and manifest.encoder != encoder:
            raise BadLibrary(
                f"The precedent library was made with the encoder {manifest.encoder}, but {encoder} is loaded: their "
                "similarities can't be compared. Load the former, or build the library again with the latter.",
                reason="LIBRARY_FOREIGN",
            )
        base = verify.read_base(directory, manifest, check, progress)
        # First without its journal, whose changes then come on top by the same code that catches up an open library.
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
        """This one with what its journal says beyond it, up to ``pointer``. Raises BadLibrary."""
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
        """Offset at which the journal's pictures begin: behind those of the generation."""
        return self.manifest.files[PICTURES].size

    def draft(self) -> DeltaBuilder:
        """To change it."""
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
        # A copy: a view would hold the whole mapped file for as long as somebody has it.
        return np.array(found)

    def _described(self, row: int) -> LabelledMeme | None:
        return self.overlay.memes[row - self.base.size] if row >= self.base.size else self.overlay.edited.get(row)

    def _read_run(self, places: range) -> list[LabelledMeme]:
        if self.live is not None:
            return self.read([int(row) for row in self.live[places.start : places.stop : places.step]])
        # Only an unbroken run of the base's rows, none of them described anew, is one range of the table.
        if places.step != 1 or self.overlay.edited or places.stop > self.base.size:
            return self.read(places)
        return self.base.table.run(places.start, places.stop)

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        """All rows that are found, in order, a part at a time."""
        hidden = np.array(sorted(self.overlay.hidden), dtype=np.int64)
        first = 0
        for rows in (self.base.rows, self.overlay.rows):
            # Between two hidden rows a view; nothing is copied.
            start = 0
            for row in hidden[(hidden >= first) & (hidden < first + len(rows))] - first:
                if start < row:
                    yield rows[start:row]
                start = int(row) + 1
            if start < len(rows):
                yield rows[start:]
            first += len(rows)

    def _stored_history(self, forget: bool) -> Iterator[StoredChange]:
        """The record of all changes, with what is needed to bring back what was removed."""
        revoked: Mapping[int | None, int] = {
            one.change.number: one.revoked_by for one in self.history() if one.revoked_by is not None
        }

        def forgotten(change: Change) -> Change:
            # Of a meme that is still here, nothing has to be forgotten.
            gone = self.row_of(change.meme) is None
            return change.model_copy(update={"before": None, "after": None}) if forget and gone else change

        for change, vector, picture in self.base.table.history():
            yield (forgotten(change), None, None) if forget else (change, vector, picture)
        for change in self.overlay.changes:
            # Of a removal that was revoked nothing needs to be stored: the meme is back in its row.
            if change.effect is not Effect.HIDE or forget or change.number in revoked:
                yield forgotten(change), None, None
            else:
                (meme,) = self.read([change.row])
                yield change, self.vector_of(change.row).astype("<f4").tobytes(), self.picture_of(meme)


def refuse_place(root: Path, replace: bool) -> None:
    """Raises BadRequest if no library may be written there: there is one already, or something else."""
    # Also where a library is replaced: nothing is written beside files that are not a library's.
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
    """Which rows are of harmful memes, shape (rows,)."""
    harmful: NDArray[np.bool_] = (library.flags & HARMFUL) != 0
    return harmful


def _laid_out(shelved: Iterable[Shelved], writer: MemeWriter) -> Iterator[bytes]:
    """The pictures one behind the other, each checked when its turn comes; their memes go to the writer.

    Raises:
        ValueError: A meme says where its picture is, but of which file is not said.
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
    """Arrays as one .npy file, without a second copy of them in memory; as rows of memes if their flags are given.

    Raises:
        ValueError: They are not rows of these memes.
    """
    if flags is not None and encoder is not None:
        shapes = {block.shape[1:] for block in blocks}
        if sum(map(len, blocks)) != flags.size or shapes != {(encoder.dim,)}:
            raise ValueError(f"{VECTORS} is not {flags.size} rows of {encoder.dim} values")
    header = io.BytesIO()
    # The header of a single row with the number of all put in: to join the blocks for it would copy them.
    described = npy.header_data_from_array_1_0(np.ascontiguousarray(blocks[0][:1]))
    described["shape"] = (sum(map(len, blocks)), *blocks[0].shape[1:])
    npy.write_array_header_1_0(header, described)
    yield header.getvalue()
    first = 0
    for rows in blocks:
        for start in range(0, len(rows), _BLOCK):
            part = np.ascontiguousarray(rows[start : start + _BLOCK], dtype=np.uint8 if encoder is None else np.float32)
            if flags is not None and encoder is not None:
                # By the rules of reading: no library is written that could not be opened again.
                problem = verify.problem_of(
                    np.asarray(part, np.float32), flags[first : first + len(part)], encoder, first
                )
                if problem:
                    raise ValueError(problem)
            yield part.data.cast("B")
            first += len(part)


__all__ = ["Check", "Library", "Shelved", "harmful_rows", "refuse_place", "software_version"]
