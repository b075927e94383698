"""The drawn world, opened: its documents as a corpus on disk, and the stand-in that reads them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from court.ports import ChatModel, EvidenceSource
from eval.witness.stand_in import WorldReader
from eval.witness.world import documents_of, draw_world
from retrieval.facts.corpus import open_corpus
from retrieval.facts.source import CorpusEvidence
from retrieval.facts.writer import write_corpus


def open_drawn(stack: AsyncExitStack, seed: int = 0) -> tuple[EvidenceSource, ChatModel]:
    """Opens the corpus of a drawn world, searched by words, and its stand-in.

    Args:
        stack: Removes the corpus at the end.
        seed: Seed of the world.
    """
    facts = draw_world(seed)
    folder = Path(stack.enter_context(TemporaryDirectory())) / "facts"
    write_corpus(folder, documents_of(facts), name="drawn world", demonstration=True)
    return CorpusEvidence(open_corpus(folder)), WorldReader(facts).model()
