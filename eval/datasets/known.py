"""Known data sets by the names of their cards: shipped ones, those in the folder ``MEMECOURT_CARDS``, and files.

None of the data sets may be redistributed, and the program ships none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import DatasetCard, read_card

CARDS_VARIABLE = "MEMECOURT_CARDS"
SYNTHETIC_KEY = "synthetic.json"
"""File beside synthetic data that records how they were generated."""
FUNCTIONAL_KEY = "functional.jsonl"
"""File beside functional tests with the functionality and contrast set of each meme; one line per meme."""
_SHIPPED = Path(__file__).parent / "cards"
_FILE = re.compile(r"(?P<path>.+\.toml)(?::(?P<variant>\w+))?")


# Cached: shipped cards do not change while the program runs.
@lru_cache(maxsize=1)
def shipped_ids() -> frozenset[str]:
    """Ids of the data sets whose cards are shipped with the program."""
    return frozenset(path.stem for path in _SHIPPED.glob("*.toml"))


def is_own(card: DatasetCard) -> bool:
    """True for a user's card, which no version of the program ships and whose file may change."""
    return card.id.partition(":")[0] not in shipped_ids()


def known_cards() -> tuple[DatasetCard, ...]:
    """All named cards: shipped ones, then those of the folder ``MEMECOURT_CARDS``."""
    return tuple(map(find_card, card_files()))


def card_files() -> Mapping[str, Path]:
    """Files of all named cards, by name. Raises BadRequest if two share a name or the folder does not exist."""
    found = {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"), key=lambda path: path.stem)}
    if folder := os.environ.get(CARDS_VARIABLE):
        if not Path(folder).is_dir():
            raise BadRequest(f"{CARDS_VARIABLE} is {folder}, which is no directory.", reason="CARD_UNREADABLE")
        for path in sorted(Path(folder).glob("*.toml"), key=lambda path: path.stem):
            # Runs refer to data sets by id, so a user's card must not shadow a shipped one.
            if path.stem in found:
                raise BadRequest(
                    f"{path} has the name of a data set that is known. Name the file, and the id in it, otherwise.",
                    reason="CARD_INVALID",
                )
            found[path.stem] = path
    return found


def card_file(name: str) -> Path:
    """File of the card with this name or path. Raises BadRequest if there is none."""
    if _FILE.fullmatch(name) and Path(name).is_file():
        return Path(name)
    find_card(name)
    return card_files()[name.partition(":")[0]]


def find_card(name: str) -> DatasetCard:
    """The card of a data set.

    Args:
        name: Id, or path of a card (``….toml``); if annotators of several countries labelled the same memes, a suffix
            ``:VARIANT`` chooses whose labels are read: ``multi3hate:US``.

    Raises:
        BadRequest: There is no card with this name, or it is invalid.
    """
    if file := _FILE.fullmatch(name):
        card, variant = read_card(Path(file["path"])), file["variant"] or ""
        # Runs store ids only: two data sets with one id could not be told apart.
        if card.id in shipped_ids() and Path(file["path"]).resolve().parent != _SHIPPED.resolve():
            raise BadRequest(
                f"{file['path']} has the id {card.id}, which is that of a data set that is known. Give it another.",
                reason="CARD_INVALID",
                field="dataset",
            )
    else:
        id_, _, variant = name.partition(":")
        files = card_files()
        if id_ not in files:
            raise BadRequest(
                f"There is no data set {name!r}. There are: {', '.join(files)}; or name a card of your own, FILE.toml.",
                reason="DATASET_UNKNOWN",
                field="dataset",
            )
        card = _read_once(files[id_], files[id_].stat().st_mtime_ns)
        if card.id != id_:
            raise BadRequest(f"{files[id_]} has the id {card.id}. Name the file {card.id}.toml.", reason="CARD_INVALID")
    return card.with_variant(variant) if variant else card


@lru_cache(maxsize=256)
def _read_once(path: Path, changed_ns: int) -> DatasetCard:
    """Reads a card, cached until its file changes."""
    return read_card(path)
