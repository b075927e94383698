"""Stand-ins for the expert witness's evidence source that play back a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from court.errors import Unavailable
from court.events import DocumentWeighed, EvidenceSearched
from court.expert.documents import CLAIM_CHECKED
from court.expert.findings import document_of
from court.expert.witness import WitnessOutOfTime
from court.ports import EvidenceDocument, EvidenceHit, EvidenceSource
from court.record import TrialRecord
from serving.docket.store.bodies import GONE


class RecordedEvidence(EvidenceSource):
    """Plays back the recorded searches and documents."""

    def __init__(self, record: TrialRecord, *, by_claim: bool = True) -> None:
        """Takes searches and documents of a record.

        Args:
            by_claim: True to give each claim what it was given then; False for claims that may be others.
        """
        self._by_claim = by_claim
        # Reversed, so that of several the first stays: it is the one that the witness went by.
        self._searches = {
            (event.claim if by_claim else 0, event.query): event for event in reversed(record.all(EvidenceSearched))
        }
        self._documents = {
            (event.claim if by_claim else 0, event.document): event for event in reversed(record.all(DocumentWeighed))
        }

    @property
    @override
    def identity(self) -> str:
        return next((search.source_identity for search in self._searches.values()), "recorded")

    @property
    @override
    def sends_elsewhere(self) -> bool:
        # Where nothing was held back there was nothing to be, or the source was here: either way, queries stay as they
        # were.
        return any(search.held_back for search in self._searches.values())

    @override
    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        search = self._searches.get((self._claim, query))
        if search is None:
            raise WitnessOutOfTime("The record has no such search.")
        if search.failure:
            raise Unavailable("The source gave no answer.", reason=search.failure)
        # In the order of the source: the record has them as the model ranked them, which the replay does anew.
        hits = sorted(search.hits, key=lambda hit: hit.rank_given)
        return [
            EvidenceHit(id=hit.id, title=hit.title, source=hit.source, snippet=hit.snippet, date=hit.date)
            for hit in hits
        ]

    @override
    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        read = self._documents.get((self._claim, document_id))
        if read is None:
            raise WitnessOutOfTime("The record has no such document.")
        # Without a text there is no digest: then it could not be read, and failure says why.
        if not read.sha256:
            raise Unavailable("The document could not be read.", reason=read.failure)
        return document_of(read)

    @property
    def _claim(self) -> int:
        return CLAIM_CHECKED.get() if self._by_claim else 0


class EvidenceOnRecord(EvidenceSource):
    """Plays back what a trial's record has of a source, and asks the source only for the rest.

    A document that was erased since is still found, without its words, and can't be read: so the record says why it is
    no evidence.
    """

    def __init__(self, record: TrialRecord, source: EvidenceSource) -> None:
        self._recorded = RecordedEvidence(record, by_claim=False)
        self._source = source
        hits = (hit for search in record.all(EvidenceSearched) for hit in search.hits)
        self._erased = {read.document for read in record.all(DocumentWeighed) if read.text == GONE}
        self._erased |= {hit.id for hit in hits if hit.snippet == GONE}

    @property
    @override
    def identity(self) -> str:
        return self._source.identity

    @property
    @override
    def sends_elsewhere(self) -> bool:
        return self._source.sends_elsewhere

    @override
    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        try:
            found = await self._recorded.search(query, most=most, within_s=within_s)
        except WitnessOutOfTime:
            found = await self._source.search(query, most=most, within_s=within_s)
        # Also of what the source finds now: it need not know of the erasure.
        return [replace(hit, snippet="") if hit.id in self._erased else hit for hit in found]

    @override
    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        if document_id in self._erased:
            raise Unavailable("The document was erased.", reason="DOCUMENT_ERASED")
        try:
            return await self._recorded.read(document_id, within_s=within_s)
        except WitnessOutOfTime:
            return await self._source.read(document_id, within_s=within_s)
