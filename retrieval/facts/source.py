"""A corpus as a source of evidence for trials."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from court.deadline import run_within
from court.errors import Overrun, Unavailable
from court.ports import EvidenceDocument, EvidenceHit
from retrieval.facts.corpus import FactCorpus

SNIPPET = 300
"""Characters of a passage that a hit shows, at most."""


class CorpusEvidence:
    """An :class:`~court.ports.EvidenceSource` that searches a corpus on disk; nothing leaves the machine."""

    def __init__(self, corpus: FactCorpus) -> None:
        self._corpus = corpus

    @property
    def identity(self) -> str:
        """Name and digest of the corpus, marked if it is a demonstration."""
        manifest = self._corpus.manifest
        mark = " (demonstration)" if manifest.demonstration else ""
        return f"corpus {manifest.name}{mark} sha256:{self._corpus.digest}"

    @property
    def sends_elsewhere(self) -> bool:
        """False: the corpus is searched locally."""
        return False

    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        """The best passages for the query by fused rank, more trusted sources first."""
        hits = await run_within(asyncio.to_thread(self._corpus.search, query, most), within_s, _late)
        return [
            EvidenceHit(
                id=hit.id,
                title=hit.document.title,
                source=hit.document.source,
                snippet=snippet_of(hit.text),
                date=hit.document.date,
            )
            for hit in hits
        ]

    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        """The passage of a hit, with the preceding and following ones."""
        try:
            document, text = self._corpus.read(document_id)
        except KeyError:
            raise Unavailable("The corpus has no such passage.", reason="EVIDENCE_MISSING", retry_after=None) from None
        return evidence_document(document_id, text, title=document.title, source=document.source, date=document.date)


def _late() -> Overrun:
    return Overrun("The corpus could not be searched in time.", reason="EVIDENCE_TOO_SLOW")


def evidence_document(id_: str, text: str, *, title: str, source: str, date: str) -> EvidenceDocument:
    """A document with the digest of its text."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return EvidenceDocument(id=id_, title=title, source=source, date=date, text=text, sha256=sha256)


def snippet_of(text: str) -> str:
    """The beginning of a text on one line, cut at a word."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET else f"{line[:SNIPPET].rpartition(' ')[0] or line[:SNIPPET]} …"
