"""Drafts a card for files that have none: columns, labels and splits are guessed and marked ``# CHECK``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from court.errors import BadRequest
from eval.datasets.card import FORMAT, FileKind, SplitRole
from eval.datasets.record_files import (
    TEXTS,
    Coded,
    RecordFile,
    class_names,
    delimiter_in,
    header_line,
    kind_of,
    picture_columns,
)
from eval.datasets.verbs import take
from retrieval.library.cells import BadCell, is_missing, word_of
from retrieval.library.picture_finder import PICTURE_ENDINGS
from retrieval.library.readers import classes_of, label_counts
from retrieval.library.tables import header_of, read_text

_SAMPLE = 5000
"""Pictures whose folders are counted."""
_DISTINCT = 1000
"""Different values that are counted of a column; one with more is no label."""
_LABELS = 24
"""Maximum number of different values in a column of labels."""
# Longer values are texts, even if a small file has only a few different ones.
_LONGEST_LABEL = 100
_DEPTH = 3
_ROLES = {
    SplitRole.TRAIN: ("train", "training"),
    SplitRole.VALIDATION: ("val", "valid", "validation", "dev"),
    SplitRole.TEST: ("test", "testing", "eval"),
}
_NAMED = {
    "id": ("id", "meme_id", "uid", "index", "name"),
    "picture": ("image", "img", "picture", "file_name", "filename", "image_name", "path", "image_path", "name"),
    "text": ("text", "caption", "sentence", "ocr", "transcription", "tweet_text", "text_corrected"),
    "language": ("language", "lang"),
    "group": ("group", "template", "template_name", "family", "source"),
}
_KEYS = frozenset((*_NAMED["id"], *_NAMED["picture"]))
"""Names of columns that may be ids; else only pictures are."""
_CHECK = "# CHECK"
_SHARDS = "-*"


@dataclass(slots=True)
class Column:
    """Statistics of a column over all rows."""

    rows: int = 0
    missing: int = 0
    values: Counter[str] = field(default_factory=Counter)
    """Number of rows by value, as long as there are few."""
    lists: int = 0
    length: int = 0
    pictures: int = 0
    cells: int = 0
    many: bool = False
    """True if there are more values than are counted."""
    _hashes: list[NDArray[np.int64]] | None = field(default_factory=list)

    def add(self, cells: Sequence[Any], name: str, *, texts: bool) -> None:
        """Counts the cells of some rows; ``name`` is that of the column, and ``texts`` is true if all are texts."""
        self.rows += len(cells)
        cells = cells if texts else self._words_of(cells, name)
        if not self.many or isinstance(cells, Coded):
            coded = Coded.of(cells)
            for cell, count in coded.counts():
                self._count(cell.strip(), count)
            words: Sequence[str] = coded.words
        else:
            words = list(filter(None, map(str.strip, cells)))
            self.missing += len(cells) - len(words)
            self.cells += len(words)
            joined = "\n".join(words)
            self.length += len(joined)
            # Most columns hold no name of a picture at all.
            if "." in joined and any(ending in joined.lower() for ending in PICTURE_ENDINGS):
                self.pictures += sum(map(_names_picture, words))
        if len(words) < len(cells):
            self._hashes = None
        # Hashes in place of values, and only of columns that may be ids: a file may have millions.
        if self._hashes is not None and (self.pictures or _plain(name) in _KEYS):
            self._hashes.append(np.fromiter(map(hash, words), np.int64, len(words)))

    def _count(self, word: str, count: int) -> None:
        if not word:
            self.missing += count
            return
        self.cells += count
        self.length += len(word) * count
        self.pictures += _names_picture(word) * count
        if word in self.values or len(self.values) < _DISTINCT:
            self.values[word] += count
        else:
            self.many = True

    def _words_of(self, values: Sequence[Any], name: str) -> list[str]:
        words = []
        for value in values:
            if isinstance(value, dict):
                self.rows -= 1
                continue
            self.lists += isinstance(value, list)
            # An empty element does not make a list missing.
            if not isinstance(value, list) and is_missing(value):
                self.missing += 1
                continue
            for cell in value if isinstance(value, list) else [value]:
                # Bytes and objects are no labels, but the column still counts as present.
                with suppress(BadCell):
                    words.append((word_of(cell, name) or "").strip())
        return list(filter(None, words))

    @property
    def is_key(self) -> bool:
        """True if every row has a value of its own."""
        if not self._hashes or not self.cells == self.rows > 0 or self.missing or self.lists:
            return False
        ordered = np.sort(np.concatenate(self._hashes))
        return len(ordered) == self.cells and not (ordered[1:] == ordered[:-1]).any()

    @property
    def is_label(self) -> bool:
        """True for few different values, each of them short."""
        short = all(len(value) <= _LONGEST_LABEL for value in self.values)
        # Requires fewer than half as many values as rows, so that texts of a small file do not count as labels; two
        # different values always qualify.
        few = not self.many and 2 <= len(self.values) <= _LABELS
        return few and short and len(self.values) < max(3, self.rows // 2)


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Files of one format, and their columns."""

    kind: FileKind
    paths: tuple[Path, ...]
    rows: Mapping[Path, int]
    columns: Mapping[str, Column]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the labels that numbers in a column stand for."""
    delimiter: str = ""
    """What its cells are parted by, if these are no commas: ``semicolons`` or ``tabs``."""


def draft_card(data: Path, id_: str = "") -> str:
    """Drafts a card of the files in a directory, or of one file.

    Args:
        id_: Id of the data set; derived from the name of the directory if empty.

    Returns:
        The card, as TOML with comments. It is valid, but a person has to check that it is right.

    Raises:
        BadRequest: There is no file of rows, or no column looks like a label.
    """
    folder = data if data.is_dir() else data.parent
    if not data.exists():
        raise BadRequest(f"{data} is not there.", reason="DATA_MISSING")
    found = inspect_files(_candidates(data))
    names = {role: named_column(found.columns, role) for role in ("picture", "text", "language", "group")}
    names["id"] = id_column(found.columns, names["picture"])
    split = split_column(found.columns)
    # The id, text and split columns are not offered as labels, even if they look like some.
    taken = {*names.values(), split}
    labels = [name for name, column in found.columns.items() if name not in taken and column.is_label]
    if not labels:
        raise BadRequest(
            f"No column of {found.paths[0].name} looks like a label (2 to {_LABELS} different values of at most "
            f"{_LONGEST_LABEL} characters); it has {', '.join(list(found.columns)[:8])}. Write the card by hand: "
            "docs/datasets.md has one of ten lines.",
            reason="CARD_NOT_DRAFTED",
        )
    id_ = re.sub(r"[^a-z0-9]+", "-", (id_ or folder.resolve().name).lower()).strip("-") or "mine"
    lines = [
        f"format = {FORMAT}",
        f"id = {quoted(id_)} {_CHECK}",
        f"title = {quoted(id_)} {_CHECK}",
        f'citation = "" {_CHECK} who made it',
        f'licence = "" {_CHECK} on what terms',
        f'source_url = "" {_CHECK} where its authors publish it',
        f'verified = "" {_CHECK} where published counts come from',
        "",
        *_layout(found, folder, names["picture"]),
        *_splits(found, folder, split),
        *_fields(found, names),
    ]
    for name in labels:
        lines += _task(name, found.columns[name], found.classes.get(name, ()))
    return "\n".join(lines) + "\n"


def _candidates(data: Path) -> list[Path]:
    if data.is_file():
        return [data]
    depth = len(data.parts)
    # Only a few levels deep: a folder of pictures may hold hundreds of thousands of files.
    files = (path for path in sorted(data.rglob("*")) if len(path.parts) - depth <= _DEPTH and path.is_file())
    # Links may lead out of the directory or form a cycle.
    found = [path for path in files if not path.is_symlink()]
    return [path for path in found if kind_of(path) is not None]


def inspect_files(paths: Sequence[Path]) -> TableColumns:
    """Inspects the files that share the columns of the largest file; others hold something else."""
    if not paths:
        raise BadRequest(
            "There is no file of rows (.jsonl, .json, .csv, .tsv, .parquet, .arrow). Name it, or write the card "
            "of a folder tree by hand: docs/datasets.md.",
            reason="DATA_MISSING",
        )
    # The largest file is usually the train split, which has all columns.
    largest = max(paths, key=lambda path: path.stat().st_size)
    kind = content_kind(largest)
    similar, rows, columns, wanted = [], {}, dict[str, Column](), set[str]()
    for path in (largest, *(path for path in paths if path != largest)):
        if content_kind(path) is not kind:
            continue
        file = RecordFile(path, kind)
        names = set(next((block.columns for block in file.blocks() if block.columns), ()))
        if not wanted:
            wanted = names
        # Test splits often lack the labels.
        if not names or len(names & wanted) * 2 < len(wanted):
            continue
        similar.append(path)
        rows[path] = 0
        pictures = set(picture_columns(path, kind))
        for block in file.blocks():
            rows[path] += 0 if block.fault else len(block.numbers)
            for name, cells in block.columns.items():
                # Nested values need a path, which a draft does not guess; pictures may be bytes.
                if name in pictures:
                    columns.setdefault(name, Column()).pictures += len(cells)
                elif (kinds := block.kinds(name)) != {dict}:
                    columns.setdefault(name, Column()).add(cells, name, texts=kinds == TEXTS)
    if not similar:
        raise BadRequest(f"{largest.name} has no row that can be read as {kind}.", reason="DATA_UNUSABLE")
    # Sorted by name again, since the largest file was inspected first.
    delimiter = "tabs" if kind is FileKind.TSV else ""
    if kind is FileKind.CSV and delimiter_in(header_line(largest)) == ";":
        delimiter = "semicolons"
    return TableColumns(
        kind, tuple(sorted(similar)), rows, columns, classes=class_names(largest, kind), delimiter=delimiter
    )


def _names_picture(word: str) -> bool:
    return word.lower().endswith(PICTURE_ENDINGS) or (
        "://" in word and take(word, "basename").lower().endswith(PICTURE_ENDINGS)
    )


def content_kind(path: Path) -> FileKind:
    """Format of a file, by its content if its name is not enough."""
    # A file that the user named explicitly may have any ending.
    kind = kind_of(path) or FileKind.CSV
    if kind in (FileKind.CSV, FileKind.TSV):
        line = header_line(path)
        return FileKind.TSV if len(header_of(line, "\t")) > len(header_of(line, delimiter_in(line))) else FileKind.CSV
    if kind is FileKind.JSON:
        text = read_text(path, "memes").lstrip()
        if text.startswith("["):
            return FileKind.JSON
        first = text.split("\n", 1)[0]
        try:
            # A JSON object followed by more lines is JSON Lines, whatever the file is called.
            return FileKind.JSONL if isinstance(json.loads(first), dict) and "\n" in text.strip() else FileKind.JSON_MAP
        except ValueError:
            return FileKind.JSON_MAP
    return kind


def named_column(columns: Mapping[str, Column], role: str) -> str:
    """The column that best fits a field; empty if none does."""
    known = [name for wanted in _NAMED[role] for name in columns if _plain(name) == wanted]
    if role == "picture":
        by_content = [name for name, one in columns.items() if one.pictures and one.pictures * 2 > one.cells]
        # Prefer a column with both a known name and picture names as values.
        return next((name for name in (*known, *by_content) if name in by_content), known[0] if known else "")
    if role == "text" and not known:
        # Texts have a minimum length: codes and names of a few letters do not qualify. Names of pictures may be long.
        words = {name: one.length for name, one in columns.items() if not one.pictures and one.length > 20 * one.rows}
        return max(words, key=words.__getitem__, default="")
    return next(iter(known), "")


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def id_column(columns: Mapping[str, Column], picture: str) -> str:
    """The column of ids, else of pictures, with a value of its own in every row; else the number of the row."""
    if "@key" in columns:
        return "@key"
    keys = [name for name, column in columns.items() if column.is_key]
    named = [name for wanted in _NAMED["id"] for name in keys if _plain(name) == wanted]
    return next(iter((*named, *(name for name in keys if name == picture))), "@row")


def split_column(columns: Mapping[str, Column]) -> str:
    """The column whose values name splits; empty if there is none."""
    every = {word for words in _ROLES.values() for word in words}
    for name, column in columns.items():
        # A column is a split column only if each of its values names a split.
        if not column.many and len(column.values) > 1 and {_plain(value) for value in column.values} <= every:
            return name
    return ""


def _layout(found: TableColumns, folder: Path, picture: str) -> list[str]:
    lines = ["[layout]", f"kind = {quoted(found.kind)}"]
    if picture:
        # The folder with most pictures in a sample; a folder with pictures directly in it is taken as it is.
        places = Counter(
            path.parent.relative_to(folder).as_posix()
            for path in islice((p for p in folder.rglob("*") if p.suffix.lower() in PICTURE_ENDINGS), _SAMPLE)
        )
        first = "" if not places or "." in places else places.most_common(1)[0][0]
        # A folder for each split, named like it; else, of several folders, the one where the names are found.
        for stem in (path.stem for path in found.paths):
            pattern = first.replace(stem, "{split}")
            if len(places) > 1 and all(pattern.replace("{split}", path.stem) in places for path in found.paths):
                first = pattern
        # Names of pictures may include their folder.
        inside = any(value.startswith(f"{first}/") for value in islice(found.columns[picture].values, 50))
        lines.append(f"pictures = {_list(['' if inside else first])} {_CHECK} folder that their names are below")
    return [*lines, f"never_read = [] {_CHECK} columns with names of people and the like", ""]


def _splits(found: TableColumns, folder: Path, column: str) -> list[str]:
    if column:
        lines = []
        for value, count in found.columns[column].values.items():
            lines += [
                *("[[splits]]", f"name = {quoted(value)}", f"role = {quoted(role_of(value))} {_CHECK}"),
                f"files = {_list(path.relative_to(folder).as_posix() for path in found.paths)}",
                f"where = {{ {_key(column)} = {quoted(value)} }}",
                f"# rows = {count}",
            ]
        return [*lines, ""]
    lines = []
    parts: dict[Path, list[Path]] = {}
    for path in found.paths:
        parts.setdefault(_whole_of(path.relative_to(folder)), []).append(path)
    for place, paths in parts.items():
        stem = place.stem.removesuffix(_SHARDS)
        # The datasets library saves each split in its own folder, with all files called data.
        stem = place.parent.name if stem == "data" and place.parent.name else stem
        # Parts of a data set that are stored side by side have files of the same name.
        same_stem = sum(one.stem == place.stem for one in parts) > 1 and stem != place.parent.name
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", place.with_suffix("").as_posix() if same_stem else stem)
        lines += [
            *("[[splits]]", f"name = {quoted(name)}"),
            f"role = {quoted(role_of(stem))} {_CHECK}",
            f"files = {_list([place.as_posix()])}",
            f"# rows = {sum(found.rows[path] for path in paths)}",
        ]
    return [*lines, ""]


def _whole_of(path: Path) -> Path:
    """Pattern for all shards that a file belongs to, such as ``train-*.parquet``; its own name if it stands alone."""
    # Numbers may also mean years or versions; they count as shard numbers only with "of".
    numbered = re.fullmatch(r"(.+)-\d+-of-\d+", path.stem)
    return path.with_name(f"{numbered[1]}{_SHARDS}{path.suffix}") if numbered else path


def role_of(name: str) -> SplitRole:
    """Role of a split, by its name."""
    words = re.split(r"[^a-z]+", name.lower())
    # In doubt it is a test split, so that nothing is trained or tuned on it by mistake.
    return next((role for role, known in _ROLES.items() if set(words) & set(known)), SplitRole.TEST)


def _fields(found: TableColumns, names: Mapping[str, str]) -> list[str]:
    lines = ["[fields]"]
    for name in ("id", "picture", "text", "language", "group"):
        if names[name]:
            lines.append(f"{name} = {quoted(names[name])} {_CHECK}")
    others = [name for name in found.columns if name not in names.values()]
    return [*lines, f"# other columns: {', '.join(quoted(name) for name in others)}", ""]


def _task(name: str, column: Column, classes: Sequence[str]) -> list[str]:
    values = sorted(column.values)
    words = {value: class_of(value, classes) or value for value in values}
    kind = "multi" if column.lists else "binary" if len(values) == 2 else "single"
    id_ = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "label"
    mapped = ", ".join(f"{quoted(value)} = {quoted(word)}" for value, word in words.items())
    lines = [
        "[[tasks]]",
        f"id = {quoted(id_)}",
        f"kind = {quoted(kind)} {_CHECK} binary, ordinal, single or multi",
        f"of = {quoted(name)}",
        f"map = {{ {mapped} }} {_CHECK} value = label",
    ]
    if column.missing:
        lines.append(f'missing = "none" {_CHECK} {column.missing:,} of {column.rows:,} rows have none')
    if kind != "multi":
        counts, _ = label_counts({words[value]: count for value, count in column.values.items()})
        sides = classes_of(counts)
        harmful, benign = (
            _list(label for label, is_harmful in (sides or {}).items() if is_harmful is one) for one in (True, False)
        )
        # A comment, as a person has to confirm it; blank where the words don't say which label is harmful.
        blank = "" if sides else " the words don't say which labels are harmful: fill it in"
        lines.append(f"# court = {{ harmful = {harmful}, benign = {benign} }} {_CHECK}{blank}")
    # Quoted in the comment too: a line break in a value would end the comment and inject into the card.
    shown_values = ", ".join(f"{count:,} {quoted(value)}" for value, count in sorted(column.values.items()))
    return [*lines, f"# seen: {shown_values}", ""]


def class_of(value: str, classes: Sequence[str]) -> str:
    """The label that a number of a ClassLabel stands for; empty for -1, which stands for none, as in a test split."""
    return classes[int(value)] if value.isdecimal() and int(value) < len(classes) else ""


def quoted(text: str) -> str:
    """Writes a text as a string of TOML."""
    # UTF-8 can't encode a lone surrogate: it is replaced here, and rows that contain it are reported.
    whole = str(text).encode("utf-8", "replace").decode()
    # A basic string in TOML is a JSON string, except for DEL.
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    # Bare key if TOML allows it, else quoted.
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(quoted(name) for name in dict.fromkeys(names))}]"
