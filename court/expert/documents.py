"""Search results and documents in a form that a record can store: bounded, without lone surrogates, with digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from court.deadline import Deadline, run_within
from court.errors import Overrun, Unavailable
from court.events import RankedHit
from court.injection.detector import find_injection_signals
from court.ports import EvidenceDocument, EvidenceHit, EvidenceSource

RANKED = 10
MOST_CHARACTERS = 6000
_MOST_ID, _MOST_TITLE, _MOST_SOURCE, _MOST_DATE, _MOST_SNIPPET = 1000, 300, 200, 40, 1000
_FORGOTTEN_REASON = "EVIDENCE_MISSING"
"""Reason code of a source that no longer remembers a result."""
CLAIM_CHECKED: ContextVar[int] = ContextVar("claim_checked", default=0)
"""Number of the claim that a task checks. It is not sent; a replay uses it to find the recorded results of a claim."""
SOURCE_S = 20.0


@dataclass(frozen=True, slots=True)
class BoundedSource:
    """A source of evidence limited by a trial's deadline; each text is scanned for steering as it arrives."""

    source: EvidenceSource
    deadline: Deadline

    async def search(self, query: str) -> tuple[RankedHit, ...]:
        """Returns distinct search results. Raises CourtError if the source fails or times out."""
        within_s = self.deadline.at_most(SOURCE_S)
        found = await run_within(self.source.search(query, most=RANKED, within_s=within_s), within_s, _late)
        hits = hits_of(found)
        for hit in hits:
            find_injection_signals(hit.scanned)
        return hits

    async def read(self, hit: RankedHit) -> EvidenceDocument:
        """Reads the document of a result. Raises CourtError if this fails, times out or gives an altered document."""
        within_s = self.deadline.at_most(SOURCE_S)
        try:
            found = await run_within(self.source.read(hit.id, within_s=within_s), within_s, _late)
        except Unavailable as error:
            if error.reason != _FORGOTTEN_REASON or not hit.snippet:
                raise
            # An endpoint that serves snippets only remembers recent searches, and none from before a restart; a resumed
            # trial has the snippets on record.
            found = snippet_of(hit)
        document = readable(found, hit)
        find_injection_signals(document.text)
        return document


def _late() -> Overrun:
    return Overrun("The source of evidence did not answer in time.", reason="EVIDENCE_TOO_SLOW")


def hits_of(found: Sequence[EvidenceHit]) -> tuple[RankedHit, ...]:
    """Returns the distinct results of a search in their original order."""
    hits: dict[str, RankedHit] = {}
    for index, hit in enumerate(found[:RANKED], 1):
        # A document whose id can't be recorded verbatim could not be found again.
        if hit.id and len(hit.id) <= _MOST_ID and whole(hit.id) == hit.id and hit.id not in hits:
            hits[hit.id] = RankedHit(
                id=hit.id,
                title=whole(hit.title)[:_MOST_TITLE],
                source=whole(hit.source)[:_MOST_SOURCE],
                date=whole(hit.date)[:_MOST_DATE],
                snippet=whole(hit.snippet)[:_MOST_SNIPPET],
                rank_given=index,
            )
    return tuple(hits.values())


def snippet_of(hit: RankedHit) -> EvidenceDocument:
    """Returns a hit's snippet as a document."""
    text = hit.snippet
    return EvidenceDocument(
        id=hit.id, title=hit.title, source=hit.source, date=hit.date, text=text, sha256=text_sha256(text)
    )


def readable(document: EvidenceDocument, hit: RankedHit) -> EvidenceDocument:
    """Returns the document as shown to the witness: truncated if long, with the digest of the truncated text.

    Raises:
        Unavailable: The text does not match its digest, or is empty.
    """
    # The raw text: lone surrogates are replaced only after this check.
    if hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest() != document.sha256:
        raise Unavailable("The document is not the one that its digest is of.", reason="DOCUMENT_ALTERED")
    text = whole(document.text)[:MOST_CHARACTERS]
    if not text.strip():
        raise Unavailable("The document has no text.", reason="DOCUMENT_EMPTY")
    return EvidenceDocument(
        id=hit.id, title=hit.title, source=hit.source, date=hit.date, text=text, sha256=text_sha256(text)
    )


def text_sha256(text: str) -> str:
    """SHA-256 of a text in UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def whole(text: str) -> str:
    """Replaces lone surrogates, which a record can't store."""
    return text.encode("utf-8", "replace").decode()
