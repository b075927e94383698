"""Pictures inside tar files, such as WebDataset's shards: read where they stand, and never unpacked.

A picture's path leads through the tar file: ``train-000.tar/1536/m1.jpg`` is the member ``m1.jpg`` whose header stands
at byte 1536 of the shard. So a picture is read without an index, and one that is not there any more is missing and
never another one. Whatever has a path of a picture reads it by :mod:`retrieval.library.picture_files`.

The archive is a stranger's. The standard library's :mod:`tarfile` parses its headers; what it lets pass is checked
here: it takes a damaged header for the end, grows with the number of members, and believes the length of a header.
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
"""Beginnings of paths into object stores, which a card may name and a row may not."""
_ENDING = ".tar"
_HEADER_BYTES = 1 << 20
"""The most that is read of a header at once: extended ones hold names, which are some hundred bytes long."""
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"\x28\xb5": "unzstd"}
_FAULTS = (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError)
"""Errors that a hostile header makes :mod:`tarfile` raise; recursion is that of extended headers about each other."""


@dataclass(frozen=True, slots=True)
class ShardMember:
    """A member of a tar file that is no folder.

    Attributes:
        name: Its name, without a leading ``./``.
        offset: Byte of the file that its header begins at.
        start: Byte that its content begins at.
        size: Size of its content, in bytes.
        fault: Reason not to read it; empty where there is none.
    """

    name: str
    offset: int
    start: int
    size: int
    fault: str


class ShardFile(io.FileIO):
    """A tar file that is open for reading.

    Args:
        path: The file.

    Raises:
        OSError: The file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.path = path

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads what is at most as long as a header may be: the length comes from the file."""
        if size is None or not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError("a header of an impossible length")
        return super().read(size)

    def content(self, member: ShardMember) -> bytes:
        """Content of a member; the size is for the caller to look at first."""
        # Past the limit of `read`, and without moving the place that tarfile is at.
        return os.pread(self.fileno(), member.size, member.start)

    def members(self) -> Iterator[ShardMember]:
        """Reads the headers from the first to the last; none of them stays in memory.

        Raises:
            BadRequest: The file is no tar file, is damaged or was cut short: the message names the last member that was
                read.
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
            # Without decompression: a small file could be blown up to any size.
            with tarfile.open(fileobj=self, mode="r:") as tar:
                offset = -1
                while (info := tar.next()) is not None:
                    # tarfile remembers every member for those who ask for one by its name.
                    tar.members.clear()  # type: ignore[attr-defined] # of which typeshed knows nothing
                    last = info.name
                    # A negative size would lead back to a header that was read, and so on for ever.
                    if info.offset <= offset or info.size < 0 or tar.offset <= info.offset:
                        raise tarfile.ReadError("members overlap")
                    offset = info.offset
                    if info.isreg() and info.offset_data + info.size > end:
                        raise tarfile.ReadError("the content is cut short")
                    # Folders say nothing that the names below them do not.
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
        """Raises ReadError unless zeros follow to the end: tarfile takes a damaged header for the end, too."""
        self.seek(at)
        if end - at < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the mark of its end is missing: it was cut short")
        # Writers fill the last record with zeros, ten kilobytes or more.
        first = True
        while block := self.read(_HEADER_BYTES):
            if block.count(0) < len(block):
                what = "a header is damaged" if first and any(block[: tarfile.BLOCKSIZE]) else "more follows its end"
                raise tarfile.ReadError(what)
            first = False


def open_shard(path: Path) -> ShardFile:
    """Opens a tar file. Raises BadRequest where it can't be."""
    try:
        return ShardFile(path)
    except OSError:
        raise BadRequest(f"The file {path.name} can't be read.", reason="SOURCE_UNREADABLE") from None


def shard_of(path: Path) -> Path | None:
    """The tar file that the path of a picture leads through; None where the picture is a file of its own."""
    place = _place(path)
    return None if place is None else place[0]


def picture_name(shard: str, member: ShardMember) -> str:
    """Name by which a member is found again below the folder of its shard.

    Args:
        shard: Name of the shard below that folder.
        member: The member.
    """
    return f"{shard}/{member.offset}/{member.name}"


def read_member(path: Path) -> bytes:
    """Reads the member of a tar file that a path leads to. Raises OSError as :func:`find_member`."""
    with _opened_at(path) as (file, member):
        return file.content(member)


def leads_out(name: str) -> bool:
    """True for the name of a file that is absolute, on this system or on Windows, goes up, or is in an object store."""
    # Checked by the words of the name: nothing outside is touched to find out. First what nearly all names are.
    if name.isprintable() and ".." not in name and "\\" not in name and ":" not in name and name[:1] != "/":
        return False
    windows = PureWindowsPath(name)
    away = bool(windows.drive or windows.root) or ".." in windows.parts or name.partition("/")[0] in SCHEMES
    return "\0" in name or name.startswith("/") or away


def shown(name: str) -> str:
    """A stranger's name of a file as messages have it: on one line, and not for ever."""
    # A stranger's name could fill the screen, or steer a terminal.
    name = name if len(name) <= 100 else f"{name[:97]}…"
    return name if name.isprintable() else ascii(name)


def _place(path: Path) -> tuple[Path, int, str] | None:
    """Shard, offset and name of a member by the path of a picture; None where it is a file of its own."""
    parts = path.parts
    for at, part in enumerate(parts[:-2], 1):
        number = parts[at]
        if not part.lower().endswith(_ENDING) or not (number.isascii() and number.isdecimal() and len(number) < 16):
            continue
        # A folder may have such a name.
        if (shard := Path(*parts[:at])).is_file():
            return shard, int(number), "/".join(parts[at + 1 :])
    return None


def find_member(path: Path) -> ShardMember:
    """Reads the header that a path leads to. Raises OSError where it is not of that member, or it can't be used."""
    with _opened_at(path) as (_, member):
        return member


@contextmanager
def _opened_at(path: Path) -> Iterator[tuple[ShardFile, ShardMember]]:
    """Opens the tar file that a path leads through, with the header that it leads to; raises as :func:`find_member`."""
    place = _place(path)
    if place is None:
        raise FileNotFoundError(f"{path.name} is in no tar file")
    shard, offset, name = place
    # Open until the content is read, so that header and content are of the same file.
    with ShardFile(shard) as file:
        try:
            # tarfile begins where the file stands: it takes this header for the first.
            file.seek(offset)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                info = tar.next()
        except _FAULTS:
            info = None
        member = _member(info) if info is not None and info.size >= 0 else None
        # Its path has been through a Path since, which leaves out doubled slashes.
        if member is None or str(Path(member.name)) != str(Path(name)) or member.fault:
            raise FileNotFoundError(f"{shard.name} has no such picture at byte {offset}")
        # Cut short since its row was read.
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
