"""Recognises the data set in a directory by file names, columns, numbers of rows, and numbers of labels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.card_split import CardReader, located
from eval.datasets.known import FUNCTIONAL_KEY, SYNTHETIC_KEY, find_card, fits, known_cards, mistaken_for, row_count_of

_SYNTHETIC = "synthetic"


def recognised(data: Path) -> tuple[DatasetCard, ...]:
    """The data sets found in a directory.

    A folder with the data set's own name identifies it; otherwise a split's published number of rows does, and if
    several data sets share that number, the numbers of its labels. A layout alone identifies none: many data sets use
    FHM's, for one.

    Raises:
        BadRequest: The path is no directory, contains no known data set, or its content matches several.
    """
    if not data.is_dir():
        raise BadRequest(f"{data} is no directory.")
    cards = {card.id: card for card in known_cards()}
    layouts = {id_: _found(card, data) for id_, card in cards.items()}
    # Checked first: synthetic data have the same layout as the published ones.
    if (data / SYNTHETIC_KEY).is_file():
        # Functional tests are synthetic data too, with one more file.
        if (data / FUNCTIONAL_KEY).is_file():
            return (cards["synthetic-functional"],)
        # FHM's split names decide, as both layouts have a train file.
        fhm = {"test_seen", "dev_seen"} & set(layouts["synthetic-fhm"])
        return (cards["synthetic-fhm" if fhm else "synthetic-harmeme"],)
    claims: dict[Path, dict[str, tuple[bool, bool]]] = {}
    for id_, found in layouts.items():
        card = cards[id_]
        # Synthetic data have a key file, checked above; without it their cards would claim the published files.
        if id_.startswith(_SYNTHETIC) or mistaken_for(card, data):
            continue
        for name, (paths, surely) in found.items():
            # A folder's own name outweighs a published size, and either outweighs none (see `_owners`).
            counted = row_count_of(card, paths) == card.split(name).rows
            # Many data sets share file names such as "train.jsonl", hence the columns are checked.
            if (surely or counted) and fits(card, paths[0]):
                claims.setdefault(paths[0], {})[id_] = (surely, counted)
    owners = [_owners(data, path, claim) for path, claim in claims.items()]
    # An ambiguous file stops everything, as one directory could otherwise be read as two data sets.
    doubtful = next((owner for owner in owners if len(owner) > 1), None)
    if doubtful:
        raise BadRequest(f"What lies in {data} could be {' or '.join(doubtful)}. Name it with --dataset.")
    # If two claim different files, both are present; each file has one owner.
    chosen = tuple(card for id_, card in cards.items() if [id_] in owners)
    if not chosen:
        _refuse(data, [id_ for id_, found in layouts.items() if found], ", ".join(cards))
    return chosen


def _refuse(data: Path, candidates: list[str], known: str) -> None:
    if not candidates:
        raise BadRequest(
            f"{data} holds no file of a data set that is known ({known}). memecourt-eval datasets says which are "
            "expected; memecourt-eval datasets card new drafts a card of another.",
            reason="DATA_MISSING",
        )
    raise BadRequest(
        f"What lies in {data} has the file names of {', '.join(candidates)}, and as many rows as "
        f"none of them. Name it with --dataset ({known}), or a card of your own.",
        reason="DATA_UNRECOGNISED",
    )


def _owners(data: Path, path: Path, claim: dict[str, tuple[bool, bool]]) -> list[str]:
    """The data sets with the strongest claim to a file."""
    # Tuples (own folder, row count) compare in order: the folder's name first, then the number of rows.
    best = max(claim.values())
    first = [id_ for id_, strength in claim.items() if strength == best]
    if len(first) < 2:
        return first
    # Reading all labels is slow, and done only for files that are otherwise indistinguishable (versions of one data
    # set).
    labelled = [id_ for id_ in first if _has_its_labels(find_card(id_), data, path)]
    return labelled or first


def _has_its_labels(card: DatasetCard, data: Path, path: Path) -> bool:
    """True if a file has the published number of labels of every kind for its split."""
    for split in card.splits:
        place = located(card, data, split.files)
        if place is not None and place[0][0] == path and split.classes:
            counts: dict[str, Counter[str]] = {task: Counter() for task in split.classes}
            try:
                for meme in CardReader(card, data, split.name):
                    for task, count in counts.items():
                        count.update(meme.tasks.get(task, ()))
            except BadRequest:
                # A file that this card can't read does not belong to this data set; whoever names it explicitly sees
                # the error.
                return False
            return counts == split.classes
    return False


def _found(card: DatasetCard, data: Path) -> dict[str, tuple[tuple[Path, ...], bool]]:
    """Files of the splits that exist, each with True if they are in a folder with the data set's own name."""
    # For a split with one file per language, the first: published row counts apply to each.
    files = {split.name: split.files_of(next(iter(split.languages), "")) for split in card.splits}
    places = {name: located(card, data, names) for name, names in files.items() if names}
    return {name: place for name, place in places.items() if place is not None}
