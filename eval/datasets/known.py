"""The known data sets: size of each split, source, licence, and the card by which they are read.

None of them may be redistributed, and the program downloads none. Figures are listed with their origin; a figure
without a source is left out rather than guessed.
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
"""File beside synthetic data that records how they were generated."""
FUNCTIONAL_KEY = "functional.jsonl"
"""File beside functional tests with the functionality and contrast set of each meme; one line per meme."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split as released by its authors.

    Attributes:
        name: Our name for it: that of the first file without its ending.
        files: Possible names of its file, the authors' own first.
        memes: Rows of the released file; None if unknown.
        classes: Rows per label, in the data set's own words; empty if unknown.
        labels: Possible names of the file with its labels, if separate.
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
        protocols: Protocols that turn its labels into two classes, the usual one first; empty if no trial can be
            scored.
        labels: Labels of the task that trials are scored on, in its own words.
        pictures: Folders that picture names may be relative to.
        source_url: Address at which its authors publish it.
        verified: Origin of the figures that the splits were checked against.
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
        """The card, if it is a user's own that no version of the program ships."""
        return None if self.id.partition(":")[0] in shipped_ids() else self.card

    def of_role(self, role: SplitRole) -> tuple[Split, ...]:
        """The splits with this role, in order, without their parts per language."""
        # Language parts are listed under a name with a colon; reading them with the whole would duplicate their rows.
        return tuple(split for name, split in self.splits.items() if split.role is role and ":" not in name)

    def first_test(self) -> str:
        """Name of the split that is judged by default. Raises BadRequest if the card has no test split."""
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
    # Published counts apply to each language's file.
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
    """Data sets by id, each built from its card when first needed."""

    def __init__(self) -> None:
        self._made: dict[str, Dataset] = {}

    def __getitem__(self, id_: str) -> Dataset:
        if id_ not in card_files():
            raise KeyError(id_)
        card = find_card(id_)
        made = self._made.get(id_)
        # A card in a user's folder may have changed meanwhile.
        if made is None or made.card is not card:
            made = self._made[id_] = dataset_of_card(card)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(card_files())

    def __len__(self) -> int:
        return len(card_files())


DATASETS: Mapping[str, Dataset] = _Datasets()
"""All named data sets by id: shipped ones, then those of the folder ``MEMECOURT_CARDS``."""


def find_dataset(name: str) -> Dataset:
    """The data set with this name.

    Args:
        name: Id, with ``:VARIANT`` if the card has several juries; or the path of a card.

    Raises:
        BadRequest: There is none with this name, or its card is invalid.
    """
    return DATASETS[name] if name in DATASETS else dataset_of_card(find_card(name))
