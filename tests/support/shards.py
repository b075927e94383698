"""Tar files with arbitrary members, valid and hostile."""

import io
import tarfile
from pathlib import Path


def write_shard(path: Path, members, *, end=True, **changes) -> None:
    """Writes members, each ``(name, content)`` or a ``TarInfo``; omits the end-of-archive marker unless ``end``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **changes) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member, io.BytesIO(b"\0" * member.size))
                continue
            name, content = member
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        size = tar.offset
    if not end:
        with path.open("r+b") as file:
            file.truncate(size)


def member_of(name: str, **fields) -> tarfile.TarInfo:
    """Returns a member without content, with fields such as ``type`` and ``linkname``."""
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info
