"""Reads rows from tar shards in WebDataset's layout: adjacent members of one key, such as ``KEY.jpg``, ``KEY.json``.

Uses the standard library's ``tarfile`` (:mod:`retrieval.library.shards`) rather than the ``webdataset`` package, which
only reads sequentially, so that a picture can't be read by its offset; silently skips members that are not plain files;
and decodes by ending, pickles included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from eval.datasets.card import PICTURE_ENDINGS
from eval.datasets.json_lines import parse_object
from eval.datasets.name_set import NameSet
from retrieval.library.shards import ShardFile, ShardMember, open_shard, picture_name, shown

_OBJECTS = ("json", "jsn")
_TEXTS = ("txt", "text", "transcript", "cls", "cls2", "class", "count", "index", "inx", "id")
"""Endings of texts by WebDataset's convention; members with other endings are not read."""
_LONGEST_TEXT = 1 << 20
_MOST = 64
"""Maximum number of members per key: else a file with a single key would be loaded as a whole."""


def tar_rows(path: Path, shard: str, columns: Collection[str] | None) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields one row per key with its number, counted from 1, or a description of its fault.

    A row has ``@key``, the object of ``KEY.json`` as columns, a column for each text by its ending (``txt``, ``cls``),
    and ``@picture``, by which its picture is found.

    Args:
        shard: Its name relative to the folder that contains the pictures.
        columns: Columns that are read; None for all. If empty, no content is read.

    Raises:
        BadRequest: The file can't be read, is no tar file, or is cut short.
    """
    # Per shard: each may number its keys from the beginning.
    keys = NameSet()
    with open_shard(path) as file:
        for number, (key, members) in enumerate(_by_key(file), 1):
            # A key that reappears later would split one meme into two incomplete rows.
            if key in keys:
                yield number, f"the key of {shown(members[0].name)} stood before: members of one key go side by side"
                continue
            keys.add(key)
            row = _row(file, shard, members, with_content=columns is None or bool(columns))
            # Our key, even if a column has the same name.
            yield number, row if isinstance(row, str) else {**row, "@key": key}


def _by_key(file: ShardFile) -> Iterator[tuple[str, list[ShardMember]]]:
    """Groups adjacent members with the same name up to the first dot."""
    key, members = "", list[ShardMember]()
    for member in file.members():
        found = _key_of(member.name)
        # Files added by operating systems and programs; WebDataset skips them too.
        if found is None:
            continue
        if members and (found != key or len(members) == _MOST):
            yield key, members
            members = []
        key = found
        members.append(member)
    if members:
        yield key, members


def _key_of(name: str) -> str | None:
    """The name of a member up to the first dot of its last part; None for a hidden file."""
    folder, _, last = name.rpartition("/")
    if last.startswith((".", "__")):
        return None
    return f"{folder}/{last.partition('.')[0]}" if folder else last.partition(".")[0]


def _row(file: ShardFile, shard: str, members: Sequence[ShardMember], *, with_content: bool) -> dict[str, Any] | str:
    row: dict[str, Any] = {}
    picture: str | None = None
    endings: set[str] = set()
    # Only the first fault is reported: a faulty row is not used, however many it has.
    for member in members:
        name = shown(member.name)
        ending = PurePosixPath(member.name).name.partition(".")[2].lower()
        if member.fault:
            return f"its member {name} {member.fault}"
        if not ending:
            return f"its member {name} has no ending to say what it is"
        if ending in endings:
            return f"its member {name} stands in the archive twice"
        endings.add(ending)
        # "a.caption.txt" is the text "caption".
        column, _, kind = ending.rpartition(".")
        if f".{kind}" in PICTURE_ENDINGS:
            if picture is not None:
                return f"its member {name} is a second picture"
            picture = picture_name(shard, member)
        elif with_content and kind in (*_OBJECTS, *_TEXTS):
            # Checked before any of it is loaded.
            if member.size > _LONGEST_TEXT:
                return f"its member {name} is larger than {_LONGEST_TEXT // 1024} KiB"
            try:
                text = file.content(member).decode("utf-8-sig")
            except UnicodeDecodeError:
                return f"its member {name} is not UTF-8"
            if kind in _TEXTS:
                row[column or kind] = text
                continue
            found = parse_object(text)
            if found is None:
                return f"its member {name} is no JSON object"
            # A separate file takes precedence over a column of the same name.
            row = {**row, column: found} if column else {**found, **row}
    # Also drops a column of this name: it could show another row's picture.
    row.pop("@picture", None)
    return row if picture is None else {**row, "@picture": picture}
