"""Stand-ins for the expert witness's model and evidence source that play back a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from court.backends.chat.recorded import NotRecorded, RecordedModel
from court.errors import Unavailable
from court.events import ClaimSettled, ClaimsFound, DocumentWeighed, Event, EvidenceSearched, QueriesPlanned
from court.expert.documents import CLAIM_CHECKED
from court.expert.findings import document_of
from court.expert.witness import TIME, WitnessOutOfTime
from court.ports import (
    ChatModel,
    ChatReply,
    ChatRequest,
    EvidenceDocument,
    EvidenceHit,
    EvidenceSource,
    Odds,
)
from court.record import TrialRecord
from serving.docket.store.bodies import GONE

Place = tuple[int, int]
"""Number of a claim, and of the search or document for it; 0 where there is none."""

_KINDS = {"claims": "claims", "queries": "queries", "rank": "rank", "classify": "classify"}


def place_of(event: Event) -> Place:
    """The place of an event's calls among those of the expert witness; zeros for events of others."""
    match event:
        case EvidenceSearched() | DocumentWeighed():
            return event.claim, event.number
        case QueriesPlanned() | ClaimSettled():
            return event.claim, 0
        case _:
            return 0, 0


class RecordedExpert(ChatModel):
    """Plays back the replies and failures of the witness's model, and stops where the record stops."""

    def __init__(self, recorded: RecordedModel, record: TrialRecord) -> None:
        """Takes the model with the replies on record, and the record for the failures."""
        self._recorded = recorded
        self._failures = {(kind, place): reason for kind, place, reason in _failures(record) if reason}

    @property
    @override
    def name(self) -> str:
        return self._recorded.name

    @override
    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        try:
            # Replies first: what was answered then is on record, and what was not has failed or was never asked.
            return await self._recorded.reply(request, within_s=within_s)
        except NotRecorded:
            place = request.place
            assert place is not None, "a recorded model is asked within a trial alone"
            kind = _KINDS.get(place.task, "document")
            reason = self._failures.get((kind, (place.claim, place.step)))
            # Neither a reply nor a failure: the time was up there, so that it is up here at the same place.
            if reason is None:
                raise WitnessOutOfTime("The record goes no further.") from None
            raise Unavailable("The witness gave no answer.", reason=reason) from None

    @override
    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        return None


def _failures(record: TrialRecord) -> list[tuple[str, Place, str]]:
    found: list[tuple[str, Place, str]] = []
    for event in record.events:
        match event:
            # TIME is no answer of the model: in a replay, the work ends there by itself.
            case ClaimsFound() if event.failure != TIME:
                found.append(("claims", (0, 0), event.failure))
            case QueriesPlanned():
                found.append(("queries", place_of(event), event.failure))
            case EvidenceSearched():
                found.append(("rank", place_of(event), event.rank_failure))
            case DocumentWeighed() if event.sha256:  # without a text, nobody was asked about it
                found.append(("document", place_of(event), event.failure))
            case ClaimSettled():
                found.append(("classify", place_of(event), event.failure))
            case _:
                pass
    return found


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
        """Takes the record of the trial, and the source that it searched."""
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
