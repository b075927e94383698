"""Known data sets by the names of their cards: shipped ones, those in the folder ``MEMECOURT_CARDS``, and files.

None of the data sets may be redistributed, and the program ships none. Figures that others published stand in the cards
and, for papers that measure something else than a card's tasks, in ``published/papers``.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.datasets.card import DatasetCard, SplitRole, read_card
from eval.datasets.card_split import located
from eval.datasets.record_files import RecordFile, row_count
from retrieval.library.tables import parse_object, read_text

CARDS_VARIABLE = "MEMECOURT_CARDS"
SYNTHETIC_KEY = "synthetic.json"
"""File beside synthetic data that records how they were generated."""
_PEEKED = 20
"""Rows sampled for the columns of a file."""
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
    folders = [_SHIPPED]
    if folder := os.environ.get(CARDS_VARIABLE):
        folders.append(Path(folder))
        if not folders[1].is_dir():
            raise BadRequest(f"{CARDS_VARIABLE} is {folder}, which is no directory.", reason="CARD_UNREADABLE")
    found: dict[str, Path] = {}
    for path in (path for one in folders for path in sorted(one.glob("*.toml"), key=lambda path: path.stem)):
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


def mistaken_for(card: DatasetCard, data: Path) -> DatasetCard | None:
    """Another data set whose train split has exactly the number of rows found here; None if the number is as published.

    HarMeme's parts and versions share file names, so a wrong directory would be read without any error.
    """
    train = next(iter(card.of_role(SplitRole.TRAIN)), None)
    # A user's own card is trusted, whatever its file looks like. With `where` or `ids` the file holds more than the
    # split, so its row count says nothing about the split.
    if train is None or train.rows is None or train.where or train.ids or is_own(card):
        return None
    place, kind = located(card, data, train.files), card.layout.kind
    if place is None or (count := row_count(place[0], kind)) == train.rows:
        return None
    others = [one for one in known_cards() if one.id != card.id and one.layout.kind is kind]
    same = (one for one in others if any(split.memes == count for split in one.of_role(SplitRole.TRAIN)))
    return next((one for one in same if fits(one, place[0][0])), None)


def fits(card: DatasetCard, path: Path) -> bool:
    """True if a file has the columns that a card requires in every row."""
    fields = (card.fields.id, card.fields.picture, card.fields.text)
    # Columns with a placeholder are only known per row, and those with @ are made by the reader.
    wanted = {name for one in fields if one for name in one.columns() if "{" not in name and not name.startswith("@")}
    try:
        rows = iter(RecordFile(path, card.layout.kind, frozenset(wanted)))
        records = (record for _, (_, record) in zip(range(_PEEKED), rows, strict=False) if isinstance(record, dict))
        # One complete row is enough: JSON often omits the keys of absent values.
        return any(wanted <= set(record) for record in records)
    except BadRequest:
        return False


_PUBLISHED = Path(__file__).parent / "published"


@cache
def published_file(name: str) -> Mapping[str, Any]:
    """Reads a file of published figures, such as ``papers/memearena``; empty if there is none."""
    file = _PUBLISHED / f"{name}.toml"
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def recognised(data: Path) -> tuple[DatasetCard, ...]:
    """The data sets found in a directory.

    A folder with the data set's own name identifies it; otherwise a split's published number of rows does. A layout
    alone identifies none: many data sets use FHM's, for one.

    Raises:
        BadRequest: The path is no directory, contains no known data set, or its content matches several.
    """
    if not data.is_dir():
        raise BadRequest(f"{data} is no directory.")
    cards = {card.id: card for card in known_cards()}
    # Checked first: synthetic data have the same layout as the published ones.
    if (key := data / SYNTHETIC_KEY).is_file():
        named = (parse_object(read_text(key, "synthetic data")) or {}).get("dataset")
        if named not in cards:
            raise BadRequest(f"{key} names no data set. Draw the data anew: memecourt-eval synthetic.")
        return (cards[named],)
    candidates: list[str] = []
    claims: dict[Path, dict[str, tuple[bool, bool]]] = {}
    for id_, card in cards.items():
        # For a split with one file per language, the first: published row counts apply to each.
        names = {split.name: split.files_of(next(iter(split.languages), "")) for split in card.splits}
        found = {name: place for name, files in names.items() if (place := located(card, data, files)) is not None}
        candidates += [id_] if found else []
        # Synthetic data have a key file, checked above; without it their cards would claim the published files.
        if id_.startswith("synthetic") or mistaken_for(card, data):
            continue
        for name, (paths, surely) in found.items():
            counted = row_count(paths, card.layout.kind) == card.split(name).rows
            # Many data sets share file names such as "train.jsonl", hence the columns are checked.
            if (surely or counted) and fits(card, paths[0]):
                claims.setdefault(paths[0], {})[id_] = (surely, counted)
    # A folder's own name outweighs a published size, and either outweighs none.
    owners = [[id_ for id_ in claim if claim[id_] == max(claim.values())] for claim in claims.values()]
    # An ambiguous file stops everything, as one directory could otherwise be read as two data sets.
    doubtful = next((owner for owner in owners if len(owner) > 1), None)
    if doubtful:
        raise BadRequest(f"What lies in {data} could be {' or '.join(doubtful)}. Name it with --dataset.")
    # If two claim different files, both are present; each file has one owner.
    chosen = tuple(card for id_, card in cards.items() if [id_] in owners)
    known = ", ".join(cards)
    if not chosen and candidates:
        raise BadRequest(
            f"What lies in {data} has the file names of {', '.join(candidates)}, and as many rows as "
            f"none of them. Name it with --dataset ({known}), or a card of your own.",
            reason="DATA_UNRECOGNISED",
        )
    if not chosen:
        raise BadRequest(
            f"{data} holds no file of a data set that is known ({known}). memecourt-eval datasets says which are "
            "expected; memecourt-eval datasets card new drafts a card of another.",
            reason="DATA_MISSING",
        )
    return chosen
