"""Drafts a card for files that have none: columns, labels and splits are guessed and marked ``# CHECK``."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from retrieval.library.cells import BadCell, is_missing, plain_word, word_of
from retrieval.library.picture_finder import PICTURE_ENDINGS
from retrieval.library.readers import classes_of, label_counts
from retrieval.library.tables import header_of, read_text

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
    # One with another name is taken if no other column could be one.
    "label": (
        "label",
        "labels",
        "gold",
        "gold_label",
        "class",
        "annotation",
        "harmful",
        "hateful",
        "toxic",
        "target_label",
    ),
}
_KEYS = frozenset((*_NAMED["id"], *_NAMED["picture"]))
"""Names of columns that may be ids; else only pictures are."""
_CHECK = "# CHECK"


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
    _hashes: set[int] = field(default_factory=set)

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
        # Hashes in place of values, and only of columns that may be ids: a file may have millions.
        if self.pictures or _plain(name) in _KEYS:
            self._hashes.update(map(hash, words))

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
        return len(self._hashes) == self.cells == self.rows > 0 and not self.missing and not self.lists

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
    columns: Mapping[str, Column]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the labels that numbers in a column stand for."""

    def task_of(self, name: str) -> tuple[dict[str, Any], dict[str, int], str]:
        """A column of labels as a card has it, the rows by label, and a note on ``none``."""
        column, classes = self.columns[name], self.classes.get(name, ())
        words = {value: value for value in column.values}
        if classes:
            # A number of a ClassLabel; -1 stands for none, as in a test split.
            words = {
                value: classes[int(value)] if value.isdecimal() and int(value) < len(classes) else "" for value in words
            }
        by_word = Counter[str]()
        for value, count in column.values.items():
            by_word[words[value]] += count
        counts, note = label_counts(by_word)
        by_plain = {plain_word(label): label for label in counts}
        task = {
            "id": re.sub(r"[^\w-]+", "_", name).strip("_") or "label",
            "kind": "multi" if column.lists else "binary" if len(counts) == 2 else "single",
            "of": name,
            "labels": list(counts),
            "map": {value: label for value, word in words.items() if (label := by_plain.get(plain_word(word)))},
            "missing": "none",
        }
        return task, counts, note


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
    fields = {role: named_column(found.columns, role) for role in ("picture", "text", "language", "group")}
    fields = {"id": id_column(found.columns, fields["picture"]), **fields}
    split = split_column(found.columns)
    # The id, text and split columns are not offered as labels, even if they look like some.
    taken = {*fields.values(), split}
    free = [name for name, column in found.columns.items() if name not in taken and column.is_label]
    # Two values of which one stands for none are a single label.
    tasks = [(name, task, counts) for name in free for task, counts, _ in [found.task_of(name)] if len(counts) > 1]
    if not tasks:
        raise BadRequest(
            f"No column of {found.paths[0].name} looks like a label (2 to {_LABELS} different values of at most "
            f"{_LONGEST_LABEL} characters); it has {', '.join(list(found.columns)[:8])}. Write the card by hand: "
            "docs/datasets.md has one of ten lines.",
            reason="CARD_NOT_DRAFTED",
        )
    id_ = re.sub(r"[^a-z0-9]+", "-", (id_ or folder.resolve().name).lower()).strip("-") or "mine"
    lines = [f"format = {FORMAT}"]
    lines += _guesses({"id": id_, "title": id_})
    for name, what in (
        ("citation", "who made it"),
        ("licence", "on what terms"),
        ("source_url", "where its authors publish it"),
        ("verified", "where published counts come from"),
    ):
        lines.append(f'{name} = "" {_CHECK} {what}')
    lines += ["", "[layout]", *_guesses({"kind": found.kind, "pictures": [""]})]
    lines.append(f"never_read = [] {_CHECK} columns with names of people and the like")
    names = [path.relative_to(folder) for path in found.paths]
    for one in splits_of(found.columns, split, list(map(Path.as_posix, names))) or map(_split_of, names):
        lines += ["", "[[splits]]", *_guesses(one)]
    lines += ["", "[fields]", *_guesses({role: name for role, name in fields.items() if name})]
    others = [name for name in found.columns if name not in fields.values()]
    lines.append(f"# other columns: {', '.join(map(toml_of, others))}")
    for name, task, counts in tasks:
        lines += ["", "[[tasks]]", *_task(found.columns[name], task, counts)]
    return "\n".join(lines) + "\n"


def _guesses(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml_of(value)} {_CHECK}" for key, value in table.items()]


def _split_of(path: Path) -> dict[str, Any]:
    name = re.sub(r"[^\w.-]+", "_", path.with_suffix("").as_posix())
    return {"name": name, "role": role_of(path.stem), "files": [path.as_posix()]}


def _task(column: Column, task: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    lines = _guesses(task)
    if not column.lists:
        sides = classes_of(counts)
        # A comment, as a person has to confirm it; blank where the words don't say which label is harmful.
        blank = "" if sides else " the words don't say which labels are harmful: fill it in"
        lines.append(f"# court = {toml_of(court_of(sides or {}))} {_CHECK}{blank}")
    # Quoted in the comment too: a line break in a value would end the comment and inject into the card.
    values = ", ".join(f"{count:,} {toml_of(value)}" for value, count in sorted(column.values.items()))
    return [*lines, f"# seen: {values}; {column.missing:,} of {column.rows:,} rows have none"]


def court_of(sides: Mapping[str, bool]) -> dict[str, list[str]]:
    """The harmful and the benign labels, as a card has them; ``sides`` has true for harmful ones."""
    parts = (("harmful", True), ("benign", False))
    return {side: [label for label, is_harmful in sides.items() if is_harmful is one] for side, one in parts}


def splits_of(columns: Mapping[str, Column], name: str, files: Sequence[str]) -> list[dict[str, Any]]:
    """The splits that the values of a column name, as a card has them; none without a column."""
    spellings: dict[str, list[str]] = {}
    for value in columns[name].values if name else ():
        spellings.setdefault(plain_word(value) or value, []).append(value)
    return [
        {
            "name": re.sub(r"[^\w.-]+", "_", words[0]),
            "role": role_of(plain),
            "files": list(files),
            "where": {name: words},
        }
        for plain, words in spellings.items()
    ]


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
    similar, columns, wanted = list[Path](), dict[str, Column](), set[str]()
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
        pictures = set(picture_columns(path, kind))
        for block in file.blocks():
            for name, cells in block.columns.items():
                # Nested values need a path, which a draft does not guess; pictures may be bytes.
                if name in pictures:
                    columns.setdefault(name, Column()).pictures += len(cells)
                elif (kinds := block.kinds(name)) != {dict}:
                    columns.setdefault(name, Column()).add(cells, name, texts=kinds == TEXTS)
    if not similar:
        raise BadRequest(f"{largest.name} has no row that can be read as {kind}.", reason="DATA_UNUSABLE")
    # Sorted by name again, since the largest file was inspected first.
    return TableColumns(kind, tuple(sorted(similar)), columns, class_names(largest, kind))


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


def role_of(name: str) -> SplitRole:
    """Role of a split, by its name."""
    words = re.split(r"[^a-z]+", name.lower())
    # In doubt it is a test split, so that nothing is trained or tuned on it by mistake.
    return next((role for role, known in _ROLES.items() if set(words) & set(known)), SplitRole.TEST)


def toml_of(value: Any) -> str:
    """A value in TOML, in one line."""
    match value:
        case str():
            # UTF-8 can't encode a lone surrogate: it is replaced here, and rows that contain it are reported.
            whole = value.encode("utf-8", "replace").decode()
            # A basic string in TOML is a JSON string, except for DEL.
            return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            # Keys are bare if TOML allows it, else quoted.
            keys = {key: key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_of(key) for key in value}
            return f"{{ {', '.join(f'{keys[key]} = {toml_of(one)}' for key, one in value.items())} }}"
        case int() | float():
            return json.dumps(value)
    return f"[{', '.join(map(toml_of, value))}]"
