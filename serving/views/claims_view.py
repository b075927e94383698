"""Claims of fact as pages show them: searches, documents and the witness's findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from court.events import CheckableClaim, ClaimSettled, DocumentWeighed, EvidenceSearched
from court.expert.findings import ClaimRecord
from court.record import TrialRecord


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim, with everything that is on record about it.

    Attributes:
        documents: Documents that were read or could not be, each once, as they were weighed last.
    """

    claim: CheckableClaim
    searches: Sequence[EvidenceSearched]
    documents: Sequence[DocumentWeighed]
    settled: ClaimSettled | None


def claims_of(record: TrialRecord) -> tuple[ClaimView, ...]:
    """The claims of a trial, in the order in which they were found."""
    found = record.claims_found
    settled = {event.claim: event for event in record.all(ClaimSettled)}
    views = []
    for claim in found.claims if found else ():
        known = ClaimRecord.of(record.events, claim.number)
        documents = {event.document: event for event in known.weighed}
        views.append(ClaimView(claim, known.searches, tuple(documents.values()), settled.get(claim.number)))
    return tuple(views)
