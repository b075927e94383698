"""The field's data sets: how many memes each split has, where they are had from, and the card that they are read by.

None of them may be handed on, and none is downloaded by us. What a figure rests on stands beside it: a figure that
could be read nowhere is absent, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from court.errors import BadRequest
from eval.datasets.card import CardSplit, DatasetCard
from eval.datasets.card import SplitRole as SplitRole
from eval.datasets.card_index import card_files, find_card, shipped_ids
from eval.datasets.protocol import LEVELS, Protocol

HARMEME_LABELS = tuple(LEVELS)
SYNTHETIC_KEY = "synthetic.json"
"""Stands beside synthetic data and says how they were made."""
FUNCTIONAL_KEY = "functional.jsonl"
"""Stands beside functional tests: the functionality of each meme, and the contrast set that it is of; a line a meme."""


@dataclass(frozen=True, slots=True)
class Split:
    """One split as its authors released it.

    Attributes:
        name: Ours: the name of the first file without its ending.
        role: Purpose of the split.
        files: Names its file may have, the authors' own first.
        memes: Rows of the released file; None where that is not known.
        classes: Rows per label, in the data set's own words; empty where that is not known.
        labels: Names that the file of its labels may have, where they stand apart.
        remark: Remark on the split.
    """

    name: str
    role: SplitRole
    files: tuple[str, ...]
    memes: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A data set.

    Attributes:
        id: Id of the data set in commands and runs.
        title: Title of the data set.
        protocols: Under which its labels become two classes, the usual one first; none where no trial can be scored.
        splits: Splits by name.
        labels: Labels of the task that trials are scored on, in its own words.
        pictures: Folders that picture names may be relative to.
        source_url: Address at which its authors publish it.
        citation: Citation of the data set.
        licence: On what terms.
        verified: Origin of the figures that the splits were checked against.
        card: Card that it is read by.
    """

    id: str
    title: str
    protocols: tuple[Protocol, ...]
    splits: Mapping[str, Split]
    labels: tuple[str, ...]
    pictures: tuple[str, ...]
    source_url: str
    citation: str
    licence: str
    verified: str
    card: DatasetCard

    @property
    def own_card(self) -> DatasetCard | None:
        """The card, where it is the user's own and no version of the program knows it."""
        return None if self.id.partition(":")[0] in shipped_ids() else self.card

    def of_role(self, role: SplitRole) -> tuple[Split, ...]:
        """The splits that are for this, in order, without their parts of one language each."""
        # A part stands beside its whole under a name with a colon: read with it, its rows would be there twice.
        return tuple(split for name, split in self.splits.items() if split.role is role and ":" not in name)

    def first_test(self) -> str:
        """Name of the split that is judged where none is named. Raises BadRequest where the card has none to test."""
        for split in self.of_role(SplitRole.TEST):
            return split.name
        raise BadRequest(
            f"{self.title} has no split of the role test. Name the split to judge: {', '.join(self.splits)}.",
            reason="NO_TEST_SPLIT",
            field="split",
        )


def dataset_of_card(card: DatasetCard) -> Dataset:
    """The data set that a card describes."""
    task = card.court_task
    return Dataset(
        id=card.id,
        title=card.title,
        protocols=() if task is None else tuple(task.protocols) or (Protocol.PLAIN,),
        splits={split.name: _split(split, task.id if task else "") for split in card.all_splits()},
        labels=task.labels if task else (),
        pictures=card.layout.pictures,
        source_url=card.source_url,
        citation=card.citation,
        licence=card.licence,
        verified=card.verified,
        card=card,
    )


def _split(split: CardSplit, task: str) -> Split:
    # Published numbers are those of each language's file.
    files = max(1, len(split.languages))
    counted = split.classes.get(task, {})
    return Split(
        name=split.name,
        role=split.role,
        files=split.files,
        memes=None if split.rows is None else split.rows * files,
        classes={label: count * files for label, count in counted.items()},
        labels=split.labels.files if split.labels else (),
        remark=split.remark,
    )


class _Datasets(Mapping[str, Dataset]):
    """Data sets by id, each made of its card when it is first needed."""

    def __init__(self) -> None:
        self._made: dict[str, Dataset] = {}

    def __getitem__(self, id_: str) -> Dataset:
        if id_ not in card_files():
            raise KeyError(id_)
        card = find_card(id_)
        made = self._made.get(id_)
        # Of a folder of cards, one may have been changed meanwhile.
        if made is None or made.card is not card:
            made = self._made[id_] = dataset_of_card(card)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(card_files())

    def __len__(self) -> int:
        return len(card_files())


DATASETS: Mapping[str, Dataset] = _Datasets()
"""All that have a name, by id: those that come with the program, then those of the folder ``MEMECOURT_CARDS``."""


def find_dataset(name: str) -> Dataset:
    """The data set of this name.

    Args:
        name: Its id, with ``:VARIANT`` where the card has several juries; or the path of a card.

    Raises:
        BadRequest: There is none of this name, or its card can't be used.
    """
    return DATASETS[name] if name in DATASETS else dataset_of_card(find_card(name))
