"""Data-set cards: a few lines of TOML that describe a data set's files and what its labels mean.

A card holds no code and nothing is guessed: a value that no rule names is reported as a problem with its line, and
never becomes a label. :mod:`eval.datasets.card_split` reads memes by a card.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from court.errors import BadRequest
from eval.datasets.items import Protocol
from eval.datasets.verbs import CardModel, Expression
from retrieval.library.picture_finder import leads_out

FORMAT = 1
_IN_LEVELS = "mmae"
"""The only metric that is not a share: its unit is a level."""
OWN = "own"
"""Variant of a task whose labels come from annotators of the meme's own language."""
# The part after the colon is a variant: `with_variant` makes such ids.
_ID = re.compile(r"[a-z0-9][a-z0-9_.-]*(:\w+)?")
_NAME = re.compile(r"[\w.-]+")


class SplitRole(StrEnum):
    """Purpose of a split. Settings are never chosen on a test split."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class FileKind(StrEnum):
    """Format of the files of a data set."""

    JSONL = "jsonl"
    """One JSON object per line."""
    JSON = "json"
    """One list of objects."""
    JSON_MAP = "json-map"
    """One object whose values are the rows; ``@key`` holds a row's key."""
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow file or stream, as saved by the ``datasets`` library."""
    TREE = "tree"
    """A folder of pictures: one row per file, with ``@path``, ``@name``, ``@stem`` and ``@parent`` (name of its
    folder)."""


class TaskKind(StrEnum):
    """Shape of a task's gold label."""

    BINARY = "binary"
    ORDINAL = "ordinal"
    """Ordered labels, lowest first."""
    SINGLE = "single"
    """Exactly one of several labels."""
    MULTI = "multi"
    """Any number of labels, including none."""


class CardLayout(CardModel):
    """Locations of the files below the directory that the user names."""

    kind: FileKind
    folders: tuple[str, ...] = ("",)
    own: tuple[str, ...] = ()
    """Folders that can only belong to this data set; searched before the others."""
    pictures: tuple[str, ...] = ("",)
    """Folders of the pictures; a name may contain ``{field}`` or ``{split}``, and ``**`` at its end matches any folder
    below."""
    pictures_at: str = ""
    """Folder of the pictures wherever it is, in place of those. Set by the program, never by cards."""
    never_read: tuple[str, ...] = ()
    """Columns that are dropped before any other code sees the row, such as names of people."""


class LabelFile(CardModel):
    """A separate file with the labels of a split's rows: its columns are added to the rows."""

    files: tuple[str, ...] = Field(min_length=1)
    on: str
    """Column that both files have, or ``@row`` to match rows by position."""
    columns: tuple[str, ...] = ()
    """Names of its columns if the file has no header."""


class CardSplit(CardModel):
    """A split: a separate file, some rows of a common file, or the rows whose ids a file lists."""

    name: str
    role: SplitRole
    files: tuple[str, ...] = ()
    """Possible names of its file, the authors' own first; ``*`` matches any letters: ``train-*.parquet``. For a tree of
    pictures, the folder."""
    where: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    ids: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    """Ids of its rows, in place of files that list them; set by the program for a plain table."""
    pictures: tuple[str, ...] = ()
    """Folders of its pictures, in place of those of the layout."""
    labels: LabelFile | None = None
    languages: tuple[str, ...] = ()
    """Languages with one file each, named with ``{language}``; ids of memes are prefixed with the language."""
    # Counted per file, since authors publish the size of each language's part.
    rows: int | None = Field(default=None, ge=0)
    """Published number of rows; if there are languages, of each file."""
    classes: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Published number of rows per label, by task; if there are languages, of each file."""
    remark: str = ""

    def files_of(self, language: str) -> tuple[str, ...]:
        """Possible names of a language's file."""
        return tuple(name.replace("{language}", language) for name in self.files)

    @property
    def memes(self) -> int | None:
        """Published number of rows of all its files; None if unknown."""
        return None if self.rows is None else self.rows * max(1, len(self.languages))

    def labels_of(self, task: str) -> dict[str, int]:
        """Published number of rows per label of a task, over all its files; empty if unknown."""
        return {label: count * max(1, len(self.languages)) for label, count in self.classes.get(task, {}).items()}


class CardFields(CardModel):
    """Fields of a meme, besides its labels."""

    id: Expression = Expression(column="@row")
    picture: Expression | None = None
    text: Expression | None = None
    ocr: Expression | None = None
    caption: Expression | None = None
    language: Expression | None = None
    group: Expression | None = None
    """Template, family or source; confidence intervals resample whole groups."""


class VoteRule(CardModel):
    """Rule that makes one label of several annotators' votes."""

    rule: Literal["majority"] = "majority"
    least: int = Field(default=1, ge=1)
    """Minimum number of votes for the winning label; a tie yields no label."""
    keep: bool = True
    """True to store the share of votes per label beside the label."""


class CourtLabels(CardModel):
    """Mapping of a task's labels to the court's two classes."""

    harmful: tuple[str, ...] = Field(min_length=1)
    benign: tuple[str, ...] = Field(min_length=1)
    targets: str = ""
    """Task whose labels name a meme's target or kind of harm; they are stored with the meme."""


class CardTask(CardModel):
    """A question for which a data set has gold labels."""

    id: str
    title: str = ""
    kind: TaskKind
    of: Expression | None = None
    columns: dict[str, Expression] = Field(default_factory=dict)
    """For ``multi``: one column per label."""
    # A card with many labels need not list them twice: they are taken from the columns or the map, in the card's order.
    labels: tuple[str, ...] = ()
    """Labels in order; if absent, those of ``columns`` or ``map``."""
    define: dict[str, str] = Field(default_factory=dict)
    """One-sentence definition of each label."""
    map: dict[str, str | bool] = Field(default_factory=dict)
    """Label by value; if absent, every label stands for itself."""
    missing: Literal["problem", "none", "drop"] = "problem"
    """Handling of a row without a value: report a problem, give it no gold label, or drop and count it."""
    when: dict[str, str] = Field(default_factory=dict)
    """Restricts the task to rows where another task has this label; other rows get no label and are no problem."""
    votes: VoteRule | None = None
    court: CourtLabels | None = None
    protocols: tuple[Protocol, ...] = ()
    metrics: tuple[str, ...] = ()
    official: str = ""
    variants: tuple[str, ...] = ()
    """Names of the juries that labelled the same memes; ``{variant}`` in an expression is replaced with the chosen
    one."""
    variant_of: dict[str, str] = Field(default_factory=dict)
    """Jury by language, for the variant ``own``."""
    variant: str = ""
    """The chosen jury. Set by the program, never by cards."""

    @model_validator(mode="before")
    @classmethod
    def _with_labels(cls, value: Any) -> Any:
        # Runs before validation, because all checks below need `labels` and the model is frozen afterwards.
        if not isinstance(value, Mapping) or value.get("labels"):
            return value
        columns, mapped = value.get("columns"), value.get("map")
        found = columns if isinstance(columns, Mapping) and columns else None
        if found is None and isinstance(mapped, Mapping):
            # A dict serves as an ordered set: several values may map to the same label.
            found = dict.fromkeys(str(label) for label in mapped.values())
        return {**value, "labels": tuple(found or ())}

    def _faults(self) -> Iterator[str]:
        multi, known = self.kind is TaskKind.MULTI, set(self.labels)
        # Exactly one source of labels: with two, the reader would have to guess which one wins.
        if (self.of is None) == (not self.columns) or (self.columns and not multi):
            yield "needs of; or, of kind multi, a table of columns in its place"
        if len(self.labels) < 2 or len(known) < len(self.labels):
            named = ", ".join(self.labels) or "none"
            yield f"needs two labels or more, each once, named by labels, map or columns; it has {named}"
        if self.kind is TaskKind.BINARY and len(self.labels) != 2:
            yield f"has {len(self.labels)} labels, and a binary task has two"
        harmful, benign = (self.court.harmful, self.court.benign) if self.court else ((), ())
        tables: dict[str, Iterable[str]] = {
            "columns": self.columns,
            "define": self.define,
            # With columns, the map only translates cells (true or false), so its values are not labels.
            "map": () if self.columns else map(str, self.map.values()),
            "court": (*harmful, *benign),
        }
        for table, names in tables.items():
            # A misspelt label would have no memes and be reported as missing from the data set.
            if unknown := set(names) - known:
                yield f"{table} names {', '.join(sorted(unknown))}, which is no label"
        if self.columns and any(not isinstance(value, bool) for value in self.map.values()):
            yield "map gives true or false where there are columns"
        # The court decides between two classes: a meme with several labels could be in both.
        if self.court and (multi or set(harmful) & set(benign)):
            yield "court needs one label a meme, and each on one side"
        # A jury without a column would leave every row of that language unlabelled.
        if unknown := set(self.variant_of.values()) - set(self.variants):
            yield f"variant_of names {', '.join(sorted(unknown))}, which is no variant"
        if self.official and self.metrics and self.official not in self.metrics:
            yield "official is none of its metrics"
        if self.protocols and not self.court:
            yield "protocols go with a table court"
        if {Protocol.MERGED, Protocol.EXTREME} & set(self.protocols):
            # Levels are stored in runs as 0, 1 and 2, and code turns them into classes under either protocol.
            if self.kind is not TaskKind.ORDINAL or len(self.labels) != 3 or Protocol.PLAIN in self.protocols:
                yield "merged and extreme are for three labels, from least to most harmful"
            # With a card in another order, "extreme" would drop the wrong third.
            if (benign, harmful) != (self.labels[:1], self.labels[1:]):
                yield "merged and extreme need the first label benign, the others harmful"
        # A label in neither class would leave memes without a class.
        elif self.court and {*harmful, *benign} != known:
            yield "court has to name every label as harmful or benign"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for fault in self._faults():
            raise ValueError(f"task {self.id}: {fault}")
        return self

    @property
    def juries(self) -> tuple[str, ...]:
        """Variants that may be chosen; ``own`` only if the card assigns juries to languages."""
        return (*self.variants, OWN) if self.variant_of else self.variants

    def expressions(self) -> tuple[Expression, ...]:
        """All expressions that the label is computed from."""
        return (self.of,) if self.of else tuple(self.columns.values())


# Metric names are not checked here, as this module sits below the scoring code: reports give an unknown metric its own
# column.
class CardPublished(CardModel):
    """One system's published results on one task of one split, in one setup."""

    system: str = Field(min_length=1)
    year: int | None = None
    task: str
    """Task of the card, with variants as ``ID:VARIANT``: results by one jury say nothing about another's labels."""
    split: str = ""
    """Split of the card; empty if the publication does not say which."""
    protocol: Protocol = Protocol.PLAIN
    """Protocol by which levels became two classes; ``plain`` for unchanged labels."""
    setup: str = ""
    """Input shown to the system, and number of examples."""
    figures: dict[str, float] = Field(min_length=1)
    """Shares in [0, 1], not percent, by metric names as in a task's ``metrics``."""
    n: int | None = Field(default=None, ge=1)
    """Number of memes it was measured on; None if unknown."""
    source: str = ""
    """The paper and its table; the card's ``citation`` if empty."""
    read_in: str = ""
    """Publication in which the figure was read, if not in its source."""
    remark: str = ""
    """Reason why a comparison may be unfair."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        for metric, value in self.figures.items():
            # Percentages would look a hundred times better beside shares.
            if value < 0 or (value > 1 and metric != _IN_LEVELS):
                raise ValueError(f"{metric} of {self.system} is {value:g}: give a share between 0 and 1, not percent")
        return self


class DatasetCard(CardModel):
    """Description of a data set."""

    format: Literal[1]
    id: str
    title: str
    citation: str = ""
    licence: str = ""
    source_url: str = ""
    verified: str = ""
    """Origin of the published counts."""
    caveats: tuple[str, ...] = ()
    layout: CardLayout
    splits: tuple[CardSplit, ...] = Field(min_length=1)
    fields: CardFields = CardFields()
    tasks: tuple[CardTask, ...] = Field(min_length=1)
    published: tuple[CardPublished, ...] = ()
    """Published results of other systems, shown beside runs of the same task, split and protocol."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        # `fullmatch`, as everywhere for names: `match` would ignore trailing characters.
        if not _ID.fullmatch(self.id):
            yield "id: letters a to z, digits, and - _ . between them"
        for what, names in (("splits", [one.name for one in self.splits]), ("tasks", [one.id for one in self.tasks])):
            # No name may contain a colon: it separates task and variant, and split and language.
            if len(set(names)) < len(names) or not all(map(_NAME.fullmatch, names)):
                yield f"{what}: every one needs a name of its own, of letters, digits, and - _ ."
        labels_of = {task.id: task.labels for task in self.tasks}
        for split in self.splits:
            if not split.files:
                yield f"split {split.name}: name its files"
            if any("{language}" in name for name in split.files) != bool(split.languages):
                yield f"split {split.name}: languages go with {{language}} in the name of its file"
            # A task with variants may have counts for each jury.
            if unknown := split.classes.keys() - labels_of - self._variants().keys():
                yield f"split {split.name}: classes of {', '.join(sorted(unknown))}, which is no task"
        for place, task in enumerate(self.tasks):
            for other, label in task.when.items():
                if label not in labels_of.get(other, ()):
                    yield f"task {task.id}: when names {other} = {label}, which is no label of a task"
                # Labels are read in the card's order, so a condition may only refer to an earlier task.
                if other not in {one.id for one in self.tasks[:place]}:
                    yield f"task {task.id}: when names {other}, which has to stand before it in the card"
            if task.court and task.court.targets not in ("", *labels_of):
                yield f"task {task.id}: court names the targets {task.court.targets}, which is no task"
        # A run's verdict has one gold label; with two tasks on harm it would be ambiguous.
        if sum(task.court is not None for task in self.tasks) > 1:
            yield "tasks: one at most has a table court: the one that trials are scored on"
        # An error rather than a silent drop: a label computed from a dropped column would be empty in all rows, and the
        # reason would be hard to find.
        if hidden := self.columns() & set(self.layout.never_read):
            yield f"{', '.join(sorted(hidden))}: a column that is never read, and read"
        # Published results that no run can match. A task with variants only counts together with a variant: results by
        # one jury do not describe the task as a whole.
        tasks = {task.id: task for task in self.tasks if not task.variants} | self._variants()
        splits = {split.name for split in self.all_splits()}
        for one in self.published:
            if one.task not in tasks:
                yield f"published: {one.system} has the task {one.task!r}; name one of {', '.join(tasks)}"
            elif one.split and one.split not in splits:
                yield f"published: {one.system} has the split {one.split!r}, which is none"
            # Plain is allowed for any task: it means the labels as they are, whichever protocols trials use.
            elif one.protocol not in (Protocol.PLAIN, *tasks[one.task].protocols):
                yield f"published: {one.system} has the protocol {one.protocol}, which {one.task} has not"
            elif not one.source and not self.citation:
                yield f"published: {one.system} needs a source, as the card has no citation"
        # Before any file is touched.
        names = [*self.layout.folders, *self.layout.own, *self.layout.pictures]
        for split in self.splits:
            names += [*split.files, *split.ids, *split.pictures, *(split.labels.files if split.labels else ())]
        for name in (*names, *(one.join.file for one in self.expressions() if one.join)):
            # A home directory leads out just as `..` does.
            if leads_out(name) or name.startswith("~"):
                yield f"{name!r} leads out of the directory of the data set"

    def expressions(self) -> list[Expression]:
        """All expressions of the card, including nested ones."""
        fields = (getattr(self.fields, name) for name in CardFields.model_fields)
        found = [one for one in fields if one] + [one for task in self.tasks for one in task.expressions()]
        for one in found:  # the list grows while it is walked
            if one.else_:
                found.append(one.else_)
        return found

    def count_differences(self, split: CardSplit, rows: int, labels: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Describes counts that differ from the published ones, in a sentence without an end each.

        Args:
            labels: Memes by label, of each task that is to be compared.
        """
        remark = f" ({split.remark})" if split.remark else ""
        found = []
        if split.memes is not None and rows != split.memes:
            other = next((one.name for one in self.splits if one.memes == rows), "")
            hint = f", which is the number of the split {other}" if other else ""
            found.append(f"{rows:,} rows{hint}; {split.memes:,} were published{remark}")
        # Covers unpublished counts: an empty split means a truncated file or a `where` value that no row has.
        elif split.memes is None and not rows:
            found.append("no row is of this split")
        # If a variant was chosen, the task has its bare id, and the labels of other juries are not read.
        ids = {name: one.id for one in self.all_tasks() for name in (one.id, f"{one.id}:{one.variant}")}
        for task in split.classes:
            if ids.get(task) not in labels:
                continue
            # Labels without memes are dropped on both sides: cards need not list them.
            ours = {label: count for label, count in labels[ids[task]].items() if count}
            theirs = {label: count for label, count in split.labels_of(task).items() if count}
            if ours != theirs:
                prefix = f"{task}: " if len(labels) > 1 else ""
                found.append(f"{prefix}{_counts_in_words(ours)}; published: {_counts_in_words(theirs)}{remark}")
        return found

    def _variants(self) -> dict[str, CardTask]:
        # Includes all tasks and both kinds of names, because published counts may be those of any jury.
        return {f"{task.id}:{variant}": task for task in self.tasks for variant in task.juries}

    def columns(self) -> set[str]:
        """Columns that are read, except those with a placeholder in their name."""
        found = {name for one in self.expressions() for name in one.columns()}
        found |= {name for split in self.splits for name in split.where}
        found |= {split.labels.on for split in self.splits if split.labels}
        # Names beginning with @ are made by the reader; placeholders are only resolved per row.
        return {name for name in found if not name.startswith("@") and "{" not in name}

    @property
    def court_task(self) -> CardTask | None:
        """The task that trials are scored on; None if there is none or its variant was not chosen."""
        # Until a variant is chosen, a task with several juries has no single gold label to score trials on.
        return next((task for task in self.tasks if task.court and (task.variant or not task.variants)), None)

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Protocols that trials are scored under, the usual one first; empty if no trial can be scored."""
        task = self.court_task
        return () if task is None else task.protocols or (Protocol.PLAIN,)

    def of_role(self, role: SplitRole) -> tuple[CardSplit, ...]:
        """The splits with this role, in order, without their parts per language."""
        # Reading the parts with the whole would duplicate their rows.
        return tuple(split for split in self.splits if split.role is role)

    def first_test(self) -> str:
        """Name of the split that is judged by default. Raises BadRequest if the card has no test split."""
        for split in self.of_role(SplitRole.TEST):
            return split.name
        raise BadRequest(
            f"{self.title} has no split of the role test. Name the split to judge: "
            f"{', '.join(split.name for split in self.all_splits())}.",
            reason="NO_TEST_SPLIT",
            field="split",
        )

    def task(self, id_: str) -> CardTask:
        """The task with this id (``ID:VARIANT`` for a task with variants). Raises BadRequest, which lists all tasks."""
        tasks = {task.id: task for task in self.all_tasks()}
        if id_ not in tasks:
            message = f"{self.id} has no task {id_!r}; it has {', '.join(tasks)}."
            raise BadRequest(message, reason="TASK_UNKNOWN", field="task")
        return tasks[id_]

    def split(self, name: str) -> CardSplit:
        """The split with this name (``NAME:LANGUAGE`` for one language). Raises BadRequest, which lists all splits."""
        splits = {split.name: split for split in self.all_splits()}
        if name not in splits:
            raise BadRequest(f"{self.title} has no split {name!r}; it has {', '.join(splits)}.")
        return splits[name]

    def published_on(self, task: str, split: str, protocol: Protocol = Protocol.PLAIN) -> tuple[CardPublished, ...]:
        """Published results on this task, split (or on one that they don't name) and protocol, each with its source.

        Args:
            task: Id of the task; if a variant was chosen, with or without it.
            protocol: Protocol by which levels became two classes; ``plain`` for unchanged labels.
        """
        known = next((one for one in self.all_tasks() if one.id == task), None)
        if known is None:
            return ()
        # Runs on a card with a chosen jury refer to the task by its bare id.
        names = {task, *([f"{task}:{known.variant}"] if known.variant else [])}
        return tuple(
            one if one.source else one.model_copy(update={"source": self.citation})
            for one in self.published
            if one.task in names and one.split in ("", split) and one.protocol is protocol
        )

    def all_tasks(self) -> tuple[CardTask, ...]:
        """The tasks for which memes have gold labels; a task without a chosen variant counts once per variant."""
        return tuple(
            task.model_copy(update={"id": f"{task.id}:{one}", "variant": one}) if one else task
            for task in self.tasks
            for one in (task.juries if task.juries and not task.variant else ("",))
        )

    def all_splits(self) -> tuple[CardSplit, ...]:
        """The splits, each followed by its parts per language."""
        # Parts come after the whole, so that lists and messages name the split before its languages.
        return tuple(
            split.model_copy(update={"name": f"{split.name}:{one}", "languages": (one,)}) if one else split
            for split in self.splits
            for one in ("", *split.languages)
        )

    def with_variant(self, variant: str) -> Self:
        """The card with the labels of one jury. Raises BadRequest if it has no jury of this name."""
        offered = {one for task in self.tasks for one in task.juries}
        if variant not in offered:
            raise BadRequest(
                f"{self.id} has no variant {variant!r}; it has {', '.join(sorted(offered)) or 'none'}.",
                reason="DATASET_UNKNOWN",
                field="dataset",
            )
        tasks = tuple(
            # Tasks without variants stay unchanged: their labels do not depend on the jury.
            task.model_copy(update={"variant": variant}) if variant in task.juries else task
            for task in self.tasks
        )
        return self.model_copy(update={"id": f"{self.id}:{variant}", "tasks": tasks})

    def to_json(self) -> dict[str, Any]:
        """The card as JSON; :func:`card_of` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def read_card(path: Path) -> DatasetCard:
    """Reads a card. Raises BadRequest, which names the file and every invalid key."""
    try:
        # Editors on Windows write a byte order mark, which TOML would not parse.
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError:
        raise BadRequest(f"The card {path} can't be read.", reason="CARD_UNREADABLE", field="dataset") from None
    except ValueError as error:  # from TOML, with the line, or from UTF-8
        how = " Save it as UTF-8." if isinstance(error, UnicodeDecodeError) else ""
        raise BadRequest(f"{path.name} is no TOML: {error}.{how}", reason="CARD_UNREADABLE", field="dataset") from None
    layout = content.get("layout")
    # A stranger's card must not open folders outside the data set.
    if isinstance(layout, dict) and "pictures_at" in layout:
        message = f"{path.name}: layout.pictures_at: there is no such key."
        raise BadRequest(message, reason="CARD_INVALID", field="dataset")
    return card_of(content, path.name)


def card_of(content: Mapping[str, Any], name: str) -> DatasetCard:
    """Validates the content of a card. Raises BadRequest like :func:`read_card`."""
    try:
        return DatasetCard.model_validate(content)
    except ValidationError as error:
        found = error.errors()
        faults = "; ".join(
            # Pydantic prefixes its own words to our validators' messages; an error of the whole card has no location.
            f"{'.'.join(map(str, fault['loc']))}: {_in_words(fault['type'], fault['msg'])}".removeprefix(": ")
            for fault in found
            # A list whose only item is invalid counts as empty for pydantic.
            if fault["type"] != "too_short"
            or not any(one["loc"] != fault["loc"] == one["loc"][: len(fault["loc"])] for one in found)
        )
        raise BadRequest(f"{name}: {faults}.", reason="CARD_INVALID", field="dataset") from None


def _in_words(kind: str, message: str) -> str:
    known = {"missing": "it is missing", "extra_forbidden": "there is no such key; docs/datasets.md lists them"}
    return known.get(kind, message.removeprefix("Value error, "))


def _counts_in_words(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {label}" for label, count in classes.items()) or "no labels"
