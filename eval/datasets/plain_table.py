"""Reads a plain table of memes, one file with a header, by a card that is made of its columns and values."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.datasets.card import FORMAT, DatasetCard, SplitRole, card_of
from eval.datasets.card_draft import (
    Column,
    TableColumns,
    court_of,
    id_column,
    inspect_files,
    named_column,
    split_column,
    splits_of,
)
from retrieval.library.cells import plain_word
from retrieval.library.readers import classes_of, counted

TRAIN, TEST, ALL = "train", "test", "all"
_FIELDS = ("id", "picture", "text", "language", "group")
_ROLES = ("id", "picture", "text", "label", "split", "language", "group")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class PlainTable:
    """A plain table."""

    card: DatasetCard
    data: Path
    """Folder of the file."""
    notes: tuple[str, ...]
    """Sentences on columns, labels and splits as they were read."""

    @property
    def is_divided(self) -> bool:
        """True if a column says which rows are of which split."""
        return len(self.card.splits) > 1

    def with_test(self, ids: Collection[str], every: Sequence[str]) -> DatasetCard:
        """The card with these memes as its test split, and all others as its train split."""
        (whole,) = self.card.splits
        parts = {TRAIN: [id_ for id_ in every if id_ not in ids], TEST: [id_ for id_ in every if id_ in ids]}
        splits = tuple(
            whole.model_copy(update={"name": name, "role": SplitRole(name), "members": tuple(members)})
            for name, members in parts.items()
        )
        return self.card.model_copy(update={"splits": splits})


def read_plain_table(
    path: Path, columns: Sequence[str] = (), harmful: str = "", pictures: Path | None = None, *, two_sided: bool = True
) -> PlainTable:
    """Reads the columns and values of a table, and makes a card of them.

    Args:
        columns: Columns that are not known by their names, ``FIELD=COLUMN`` each.
        harmful: Labels that are harmful, separated by commas; all others are benign.
        pictures: Folder of the pictures; None for that of the table, and those below it.
        two_sided: True if each label has to be harmful or benign; else a meme may have any labels, and several.

    Raises:
        BadRequest: The file can't be read; no column has labels, pictures or texts; or the labels don't say which of
            them are harmful. The message names columns and values, and the option that maps them.
    """
    pairs = {name.strip(): column.strip() for name, _, column in (one.partition("=") for one in columns)}
    if not set(pairs) <= set(_ROLES) or not all(pairs.values()):
        raise BadRequest(
            f"--column maps a field to a column, as in --column label=toxicity; the fields are {', '.join(_ROLES)}.",
            field="column",
        )
    if not path.is_file():
        raise BadRequest(f"{path} is not there.", reason="DATA_MISSING", field="data")
    if pictures is not None and not pictures.is_dir():
        raise BadRequest(f"{pictures} is no folder of pictures.", reason="DATA_MISSING", field="pictures")
    found = inspect_files([path])
    of_field = _columns(path, found, pairs)
    task, counts, notes = _labels(path, found, of_field["label"], lists=not two_sided)
    sides = classes_of(counts, tuple(filter(None, map(str.strip, harmful.split(",")))))
    if sides is None and two_sided:
        raise BadRequest(
            f"{path.name}: the labels in column {of_field['label']} don't say which of them are harmful: "
            f"{counted(counts)}. Name those: --harmful LABEL,LABEL.",
            reason="LABEL_UNKNOWN",
            field="harmful",
        )
    if sides and task["kind"] != "multi":
        task["court"] = court_of(sides)
        words = (counted({label: counts[label] for label in labels}) for labels in task["court"].values())
        notes.insert(0, "harmful = {}, benign = {}.".format(*words))
    id_ = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "table"
    whole = {"name": ALL, "role": SplitRole.TEST, "files": [path.name]}
    card = card_of(
        {
            "format": FORMAT,
            "id": f"table-{id_}",
            "title": path.name,
            "layout": {"kind": found.kind, "pictures_at": str(pictures.resolve()) if pictures else ""},
            "fields": {name: of_field[name] for name in _FIELDS if of_field[name]},
            "splits": splits_of(found.columns, of_field["split"], [path.name]) or [whole],
            "tasks": [task],
        },
        path.name,
    )
    read = ", ".join(f"{name} from {column}" for name, column in of_field.items() if column)
    if unread := [name for name in found.columns if name not in of_field.values()]:
        read += f"; not read: {', '.join(unread[:_SHOWN])}{', …' if len(unread) > _SHOWN else ''}"
    return PlainTable(card, path.parent, (f"{path.name}: {read}.", *notes))


def _columns(path: Path, found: TableColumns, named: Mapping[str, str]) -> dict[str, str]:
    """Column of each field of a meme; empty if there is none."""
    every = found.columns
    by_plain = {plain_word(name): name for name in every}
    columns = {}
    for name, column in named.items():
        # As in labels, spelling is forgiven where it is clear which column is meant.
        if (seen := column if column in every else by_plain.get(plain_word(column))) is None:
            raise BadRequest(
                f"{path.name} has no column {column}; it has {_in_words(every)}. Name another: --column {name}=NAME.",
                reason="COLUMN_UNKNOWN",
                field="column",
            )
        columns[name] = seen
    free = {name: column for name, column in every.items() if name not in columns.values()}
    columns.setdefault("split", split_column(free))
    if "label" not in columns:
        columns["label"] = _label_column(path, {name: one for name, one in free.items() if name != columns["split"]})
    free = {name: column for name, column in free.items() if name not in (columns["label"], columns["split"])}
    for name in ("picture", "text", "language", "group"):
        columns.setdefault(name, named_column({one: every[one] for one in free}, name) if free else "")
    if not columns["picture"] and not columns["text"]:
        raise BadRequest(
            f"{path.name} has no column of pictures or texts that is known by its name; it has {_in_words(every)}. "
            "Name one: --column picture=NAME or --column text=NAME.",
            reason="COLUMN_UNKNOWN",
            field="column",
        )
    # A meme's own words are no other field of it.
    columns.setdefault("id", id_column(free, columns["picture"]))
    return {name: columns.get(name, "") for name in _ROLES}


def _label_column(path: Path, free: Mapping[str, Column]) -> str:
    known = named_column(free, "label")
    likely = [name for name, column in free.items() if column.is_label]
    if known or len(likely) == 1:
        return known or likely[0]
    raise BadRequest(
        f"{path.name} has no column that is known to hold the labels; it has {_in_words(free)}. Name it: --column "
        "label=NAME.",
        reason="COLUMN_UNKNOWN",
        field="column",
    )


def _in_words(columns: Mapping[str, Column]) -> str:
    """Columns, with their values where these are few."""
    shown = [
        f"{name} ({', '.join(sorted(column.values))})" if column.is_label else name for name, column in columns.items()
    ]
    return ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else "") or "none"


def _labels(
    path: Path, found: TableColumns, name: str, *, lists: bool
) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """The task of a column of labels, rows by label, and notes on missing values."""
    column = found.columns[name]
    if column.many or (column.lists and not lists):
        raise BadRequest(
            f"{path.name}: column {name} has {'lists' if column.lists else 'too many different values'}, and no "
            "labels. Name the column of labels: --column label=NAME; or describe the file by a card: docs/datasets.md.",
            reason="COLUMN_UNKNOWN",
            field="column",
        )
    task, counts, note = found.task_of(name)
    if len(counts) < 2:
        raise BadRequest(
            f"{path.name}: column {name} has {f'only the label {counted(counts)}' if counts else 'no label'}, and two "
            "are needed. Name another column of labels: --column label=NAME.",
            reason="LABEL_UNKNOWN",
            field="column",
        )
    missing = column.missing + sum(count for value, count in column.values.items() if value not in task["map"])
    notes = [note] if note else []
    if missing:
        notes.append(f"{missing:,} of {column.rows:,} rows have no label.")
    return task, counts, notes
