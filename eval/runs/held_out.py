"""Draws the test split of a plain table that has none: whole groups of near-duplicates, in proportion to the labels."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.plain_table import ALL, PlainTable
from eval.datasets.read import read_split, row_of
from eval.session.engine import Progress
from retrieval.audit.leakage import duplicate_numbers, embed_rows
from retrieval.library.sources import Row
from retrieval.open import load_encoder


async def _duplicate_groups(rows: Sequence[Row], folder: Path | None, progress: Progress) -> list[list[int]]:
    """Indices of the rows in each group of near-duplicates, in the order of their first rows."""
    # The built-in one: the thresholds of leaks were measured with it.
    encoder, reader = await asyncio.to_thread(load_encoder), GuardedPictureReader()
    try:
        with TemporaryDirectory() as scratch:
            pictures, vectors = await embed_rows(
                rows, folder, encoder=encoder, reader=reader, scratch=Path(scratch), tell=progress.step
            )
            groups: defaultdict[int, list[int]] = defaultdict(list)
            for index, number in enumerate(duplicate_numbers(rows, pictures, vectors, encoder.identity.text_dim)):
                groups[int(number)].append(index)
    finally:
        await reader.aclose()
    return list(groups.values())


async def with_test_share(table: PlainTable, share: float, seed: int, progress: Progress) -> DatasetCard:
    """The card of a table with a test split of this share of its memes, and the others to train on.

    Raises BadRequest: A column says which rows are of which split, or near-duplicates leave too few groups.
    """
    if table.is_divided:
        names = ", ".join(split.name for split in table.card.splits)
        raise BadRequest(f"{table.card.title} has a column of splits ({names}): leave --test-share out.")
    read = await asyncio.to_thread(read_split, table.card, table.data, ALL)
    rows = [row_of(meme) for meme in read.memes]
    progress.tell("Looking for near-duplicates, which stay in one split …")
    order = await _duplicate_groups(rows, read.pictures, progress)
    labels = [meme.source_label for meme in read.memes]
    wanted = {label: round(share * count) for label, count in Counter(labels).items()}
    random.Random(seed).shuffle(order)
    test: set[int] = set()
    for group in order:
        counts = Counter(labels[index] for index in group)
        # A group that is larger than what is wanted stays with the train split, whole.
        if all(count <= wanted[label] for label, count in counts.items()):
            test.update(group)
            wanted = {label: count - counts[label] for label, count in wanted.items()}
    if len({labels[index] for index in test}) < len(set(labels)):
        raise BadRequest(
            f"{table.card.title}: of {len(rows):,} memes there are {len(order):,} that are no near-duplicates of each "
            f"other; {share:g} of them are too few for a test split with every label. Give a larger --test-share, or a "
            "column that says which row is of which split: --column split=NAME.",
            reason="NO_TEST_SPLIT",
            field="test_share",
        )
    ids = [meme.id for meme in read.memes]
    progress.tell(
        f"{len(test):,} of {len(rows):,} memes are the test split; no near-duplicate of them is in the other."
    )
    return table.with_test({ids[index] for index in test}, ids)
