"""Turns a row of a file into a meme by the rules of a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from eval.datasets.card import OWN, DatasetCard
from eval.datasets.card_columns import CellRule, RowGold, column_rule
from eval.datasets.label_rules import GoldRule, compile_task
from eval.datasets.protocol import Level, Protocol
from eval.datasets.record_files import Block
from eval.datasets.verbs import MADE_NAMES, Compiled, Expression, JoinOf, compile_expression
from retrieval.library.cells import BadCell, text_of
from retrieval.library.picture_finder import ADDRESS, leads_out

TEXT_FIELDS = ("text", "ocr", "caption", "group")
_LONGEST_ID = 200
_LONGEST_NAME = 250
"""Bytes of a file name, leaving room for an ending; file systems allow 255."""
_LONGEST_PATH = 500
"""Characters of a picture's name including its folders."""


@dataclass(frozen=True, slots=True)
class _TaskRule:
    """Gold of a task as a function of a row."""

    id: str
    gold: GoldRule
    when: tuple[tuple[str, tuple[str, ...]], ...]
    variant: Callable[[str], str] | None


class RowRules:
    """The rules of a card, compiled once into functions that are applied to each row.

    Args:
        join_of: Factory of functions that find joined rows.
    """

    def __init__(self, card: DatasetCard, join_of: JoinOf) -> None:
        fields = card.fields

        def compiled(expression: Expression | None) -> Compiled | None:
            return compile_expression(expression, join_of) if expression else None

        self._id, self.id_column = compile_expression(fields.id, join_of), fields.id.name
        self._is_plain = bool(fields.id.column)
        self._language, self._picture = compiled(fields.language), compiled(fields.picture)
        self._picture_column = fields.picture.name if fields.picture else ""
        self._language_column = fields.language.name if fields.language else ""
        self._texts = [
            (name, compile_expression(expression, join_of), expression.name)
            for name in TEXT_FIELDS
            if (expression := getattr(fields, name)) is not None
        ]
        self._tasks = [
            _TaskRule(
                task.id,
                compile_task(task, join_of),
                tuple((other, (label,)) for other, label in task.when.items()),
                # A label depends on the row's language only if there are several juries.
                _variant_of(task.variant, task.variant_of) if task.variants else None,
            )
            for task in card.all_tasks()
        ]
        self._harm = card.court_task
        self.names = (*(name for name, _, _ in self._texts), *(["image"] if fields.picture else []), "language")
        """Fields of a meme that the card fills."""
        self._id_rule = column_rule(fields.id, self._id)
        self._column_rules = {name: column_rule(getattr(fields, name), value) for name, value, _ in self._texts}
        if fields.picture is not None and self._picture is not None:
            self._column_rules["image"] = column_rule(fields.picture, self._picture)
        if fields.language is not None and self._language is not None:
            self._column_rules["language"] = column_rule(fields.language, self._language)
        expressions = [one for task in card.all_tasks() for one in task.expressions()]
        columns = {name for one in expressions for name in one.columns()}
        is_own = not any(one.join for one in card.expressions()) and not any(task.variants for task in card.tasks)
        is_own = is_own and not any(name in MADE_NAMES or "{" in name for name in columns)
        self._gold_rule = CellRule(sorted(columns), lambda cells: self._gold_of(dict(cells))) if is_own else None

    def id_of(self, record: dict[str, Any], language: str) -> str:
        """The id of a row; also sets ``@language``, if known, and the row's own id as ``@id``.

        Args:
            language: Language of its file; empty if the split has one file.

        Raises:
            BadCell: The id is missing or unusable.
        """
        if language:
            record["@language"] = language
        # The file's language takes precedence over a column, since it is part of the id.
        elif self._language is not None:
            record["@language"] = text_of(self._language(record), self._language_column).strip()
        found = self._id(record)
        # bool is a subclass of int in Python, but true is not a valid id.
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            absent = self._is_plain and self.id_column not in record
            raise BadCell("it has no id" + ": the row has no such column" * absent, self.id_column)
        id_ = text_of(found, self.id_column).strip()
        if not id_:
            raise BadCell("it has no id", self.id_column)
        record["@id"] = id_
        # Ids repeat across language files; `@id` stays the row's own id, which joins use.
        if language:
            id_ = f"{language}-{id_}"
        if len(id_) > _LONGEST_ID:
            raise BadCell(f"its id is longer than {_LONGEST_ID} characters", self.id_column)
        return id_

    def row_of(self, record: dict[str, Any]) -> tuple[tuple[str, ...], RowGold] | None:
        """The fields of a row, in the order of ``names``, and its gold labels; None if a task drops it.

        Args:
            record: The row, already passed to :meth:`id_of`.

        Raises:
            BadCell: A cell is unusable.
        """
        values = {name: text_of(value(record), column) for name, value, column in self._texts}
        # Set after the texts are computed, since the group is one of them.
        record["@group"] = values.get("group", "")
        gold = self._gold_of(record)
        if gold is None:
            return None
        if self._picture is not None:
            values["image"] = self._image(text_of(self._picture(record), self._picture_column).strip())
        values["language"] = record.get("@language", "")
        return tuple(values[name] for name in self.names), gold

    def columns_of(self, block: Block) -> tuple[tuple[Sequence[str], ...], Sequence[RowGold]]:
        """Returns what :meth:`row_of` does, for many rows at once.

        Raises:
            BadCell: They have to be read row by row: a cell is unusable, or the card is none of single columns.
        """
        if not all(self._column_rules.values()) or self._gold_rule is None:
            raise BadCell("its card takes values of several columns")
        values: dict[str, Sequence[str]] = {
            # A column that the rows don't have is no value, and reported by the reader.
            name: rule(block)
            for name, rule in self._column_rules.items()
            if rule is not None
        }
        values["language"] = list(map(str.strip, values.get("language", ()))) or [""] * len(block)
        if "image" in values:
            values["image"] = [self._image(word.strip()) for word in values["image"]]
        golds = self._gold_rule.of(block)
        if None in golds.words:
            raise BadCell("it is dropped")
        return tuple(values[name] for name in self.names), cast(Sequence[RowGold], golds)

    def ids_of(self, block: Block) -> list[str]:
        """The ids of many rows of a file without a language. Raises BadCell as :meth:`columns_of`."""
        if self._id_rule is None:
            raise BadCell("its id is none of a single column", self.id_column)
        ids = list(map(str.strip, self._id_rule(block)))
        if not all(ids) or max(map(len, ids)) > _LONGEST_ID:
            raise BadCell("an id is unusable", self.id_column)
        return ids

    def _gold_of(self, record: dict[str, Any]) -> RowGold | None:
        gold: dict[str, tuple[str, ...]] = {}
        shares: dict[str, dict[str, float]] = {}
        annotators: dict[str, int] = {}
        for task in self._tasks:
            # Gold is filled in the card's order, so a task that others depend on comes before them.
            if task.when and any(gold.get(other) != label for other, label in task.when):
                continue
            if task.variant is not None:
                record["@variant"] = task.variant(record.get("@language", ""))
            found = task.gold(record)
            if found.labels is not None:
                gold[task.id] = found.labels
            elif found.drop:
                return None
            # Stored even without a label: the disagreement of annotators is known all the same.
            if found.shares:
                shares[task.id] = dict(found.shares)
                annotators[task.id] = found.annotators
        return RowGold(gold, shares, annotators, **self._harm_of(gold))

    def _harm_of(self, gold: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        """Fields of a meme that the task on harm fills; none if the meme has no gold label of it."""
        task = self._harm
        if task is None or task.court is None or task.id not in gold:
            return {}
        (label,) = gold[task.id]
        return {
            "harmful": label in task.court.harmful,
            # Cards with this protocol list their labels in ascending order; validation enforces it.
            "level": Level(task.labels.index(label)) if Protocol.MERGED in task.protocols else None,
            "source_label": label,
            "targets": gold.get(task.court.targets, ()),
        }

    def _image(self, image: str) -> str:
        if "://" in image:
            raise BadCell(ADDRESS, self._picture_column)
        # The picture's name comes from an untrusted row: it must not open anything outside the data set.
        if leads_out(image):
            raise BadCell(
                'the name of its picture leads out of the data set; take = "basename" in the card takes the last part '
                "of a path",
                self._picture_column,
            )
        # Too long: a path, an address, or a text in the wrong column, for which the system would raise an error. Files
        # from Windows use backslashes as separators.
        parts = image.replace("\\", "/").split("/")
        if len(image) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
            raise BadCell("the name of its picture is longer than that of a file can be", self._picture_column)
        return image


def _variant_of(variant: str, by_language: dict[str, str]) -> Callable[[str], str]:
    if variant != OWN:
        return lambda _: variant

    def own(language: str) -> str:
        if language not in by_language:
            raise BadCell("no jury of the card is its language's", "language")
        return by_language[language]

    return own
