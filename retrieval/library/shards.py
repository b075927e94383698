"""Pictures inside tar files, such as WebDataset shards, read in place without unpacking.

A picture's path leads through the tar file: ``train-000.tar/1536/m1.jpg`` is the member ``m1.jpg`` whose header starts
at byte 1536 of the shard. Reading a picture therefore needs no index, and a picture that has moved is reported missing
and never confused with another. Callers read such paths through :mod:`retrieval.library.picture_files`.

Archives are untrusted. The standard library's :mod:`tarfile` parses their headers; this module adds the checks that it
lacks: it takes a damaged header for the end, grows with the number of members, and trusts the length in a header.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from court.errors import BadRequest
from court.meme import LIMITS

SCHEMES = ("s3:", "gs:", "az:", "file:")
"""Schemes of paths into object stores, which a card may use and a row may not."""
_ENDING = ".tar"
_HEADER_BYTES = 1 << 20
"""Maximum length of one header read: extended headers hold names, which are a few hundred bytes long."""
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"\x28\xb5": "unzstd"}
_FAULTS = (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError)
"""Errors that a hostile header makes :mod:`tarfile` raise; RecursionError comes from nested extended headers."""


@dataclass(frozen=True, slots=True)
class ShardMember:
    """A member of a tar file that is not a directory.

    Attributes:
        name: Its name, without a leading ``./``.
        offset: Byte of the file at which its header starts.
        start: Byte of the file at which its content starts.
        size: Size of its content, in bytes.
        fault: Reason not to read it; empty if there is none.
    """

    name: str
    offset: int
    start: int
    size: int
    fault: str


class ShardFile(io.FileIO):
    """A tar file opened for reading.

    Raises:
        OSError: The file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.path = path

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most as much as a header may hold, because the length comes from the untrusted file."""
        if size is None or not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError("a header of an impossible length")
        return super().read(size)

    def content(self, member: ShardMember) -> bytes:
        """Content of a member; the caller must check its size first."""
        # pread avoids both the limit of `read` and moving tarfile's position.
        return os.pread(self.fileno(), member.size, member.start)

    def members(self) -> Iterator[ShardMember]:
        """Reads the headers from first to last, keeping none of them in memory.

        Raises:
            BadRequest: The file is not a tar file, is damaged or is truncated; the message names the last member read.
        """
        end, last = os.fstat(self.fileno()).st_size, ""
        try:
            self.seek(0)
            if how := _COMPRESSED.get(self.read(2)):
                raise BadRequest(
                    f"{self.path.name} is compressed, and pictures are read in the middle of it. Unpack the tar file "
                    f"itself, and not its members ({how}).",
                    reason="SOURCE_UNREADABLE",
                )
            self.seek(0)
            # No decompression: a small file could expand to any size.
            with tarfile.open(fileobj=self, mode="r:") as tar:
                offset = -1
                while (info := tar.next()) is not None:
                    # tarfile keeps every member for lookups by name, which would fill memory.
                    tar.members.clear()  # type: ignore[attr-defined] # missing in typeshed
                    last = info.name
                    # A negative size would lead back to an earlier header, and so loop for ever.
                    if info.offset <= offset or info.size < 0 or tar.offset <= info.offset:
                        raise tarfile.ReadError("members overlap")
                    offset = info.offset
                    if info.isreg() and info.offset_data + info.size > end:
                        raise tarfile.ReadError("the content is cut short")
                    # Directories are skipped: the names of their members already contain them.
                    if not info.isdir():
                        yield _member(info)
                self._require_end(tar.offset, end)
        except _FAULTS as error:
            after = f", at or after its member {shown(last)}" if last else ""
            raise BadRequest(
                f"{self.path.name}{after}: it is no whole tar file ({error}). Get the file anew.",
                reason="SOURCE_UNREADABLE",
            ) from None

    def _require_end(self, at: int, end: int) -> None:
        """Raises ReadError unless only zeros follow, as tarfile also takes a damaged header for the end."""
        self.seek(at)
        if end - at < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the mark of its end is missing: it was cut short")
        # Writers pad the last record with zeros, ten kilobytes or more.
        first = True
        while block := self.read(_HEADER_BYTES):
            if block.count(0) < len(block):
                what = "a header is damaged" if first and any(block[: tarfile.BLOCKSIZE]) else "more follows its end"
                raise tarfile.ReadError(what)
            first = False


def open_shard(path: Path) -> ShardFile:
    """Opens a tar file. Raises BadRequest if it can't be opened."""
    try:
        return ShardFile(path)
    except OSError:
        raise BadRequest(f"The file {path.name} can't be read.", reason="SOURCE_UNREADABLE") from None


def shard_of(path: Path) -> Path | None:
    """The tar file that the path of a picture leads through; None if the picture is a separate file."""
    place = _place(path)
    return None if place is None else place[0]


def picture_name(shard: str, member: ShardMember) -> str:
    """Name of a member relative to the directory of its shard.

    Args:
        shard: Name of the shard relative to that directory.
    """
    return f"{shard}/{member.offset}/{member.name}"


def read_member(path: Path) -> bytes:
    """Reads the member of a tar file that a path leads to. Raises OSError as :func:`find_member`."""
    with _opened_at(path) as (file, member):
        return file.content(member)


def leads_out(name: str) -> bool:
    """True if a file name is absolute (here or on Windows), contains ``..``, or names an object store."""
    # Checked lexically, so that nothing outside is touched. The fast path comes first: nearly all names take it.
    if name.isprintable() and ".." not in name and "\\" not in name and ":" not in name and name[:1] != "/":
        return False
    windows = PureWindowsPath(name)
    away = bool(windows.drive or windows.root) or ".." in windows.parts or name.partition("/")[0] in SCHEMES
    return "\0" in name or name.startswith("/") or away


def shown(name: str) -> str:
    """An untrusted file name as shown in messages: on one line and shortened."""
    # An untrusted name could fill the screen or contain terminal control sequences.
    name = name if len(name) <= 100 else f"{name[:97]}…"
    return name if name.isprintable() else ascii(name)


def _place(path: Path) -> tuple[Path, int, str] | None:
    """Shard, offset and name of the member that a picture's path leads to; None if the picture is a separate file."""
    parts = path.parts
    for at, part in enumerate(parts[:-2], 1):
        number = parts[at]
        if not part.lower().endswith(_ENDING) or not (number.isascii() and number.isdecimal() and len(number) < 16):
            continue
        # A directory may have such a name too.
        if (shard := Path(*parts[:at])).is_file():
            return shard, int(number), "/".join(parts[at + 1 :])
    return None


def find_member(path: Path) -> ShardMember:
    """Reads the header that a path leads to. Raises OSError if it belongs to another member or can't be used."""
    with _opened_at(path) as (_, member):
        return member


@contextmanager
def _opened_at(path: Path) -> Iterator[tuple[ShardFile, ShardMember]]:
    """Opens the tar file on a path and reads the header that the path leads to. Raises as :func:`find_member`."""
    place = _place(path)
    if place is None:
        raise FileNotFoundError(f"{path.name} is in no tar file")
    shard, offset, name = place
    # Kept open until the content is read, so that header and content come from the same file.
    with ShardFile(shard) as file:
        try:
            # tarfile starts at the current position and takes this header for the first one.
            file.seek(offset)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                info = tar.next()
        except _FAULTS:
            info = None
        member = _member(info) if info is not None and info.size >= 0 else None
        # The path was normalised by Path, which collapses double slashes, so the name is too.
        if member is None or str(Path(member.name)) != str(Path(name)) or member.fault:
            raise FileNotFoundError(f"{shard.name} has no such picture at byte {offset}")
        # The file may have been truncated since its row was read.
        if member.start + member.size > os.fstat(file.fileno()).st_size:
            raise OSError(f"{shard.name} was cut short")
        yield file, member


def _member(info: tarfile.TarInfo) -> ShardMember:
    name = info.name
    while name.startswith("./"):
        name = name[2:]
    fault = ""
    if info.issym() or info.islnk():
        fault = "is a link"
    elif not info.isreg() or info.issparse():
        fault = "is no plain file"
    elif leads_out(name) or not name:
        fault = "has a name that leads out of the archive"
    elif info.size > LIMITS.max_bytes:
        fault = f"is larger than {LIMITS.max_bytes // (1 << 20)} MiB"
    return ShardMember(name=name, offset=info.offset, start=info.offset_data, size=info.size, fault=fault)
