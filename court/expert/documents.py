"""Search results and documents as a record can hold them: bounded, without half characters, by their digests."""

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
"""Results of a search that are ranked."""
MOST_CHARACTERS = 6000
"""Characters of a document that are read."""
_MOST_ID, _MOST_TITLE, _MOST_SOURCE, _MOST_DATE, _MOST_SNIPPET = 1000, 300, 200, 40, 1000
_FORGOTTEN = "EVIDENCE_MISSING"
"""Reason for which a source can't read a result that it does not remember."""
CLAIM_CHECKED: ContextVar[int] = ContextVar("claim_checked", default=0)
"""Number of the claim that a task checks. It is no part of a search; a replay finds by it what each claim was given."""
SOURCE_S = 20.0
"""Seconds that a search may take, and as many that reading a document may."""


@dataclass(frozen=True, slots=True)
class BoundedSource:
    """A source of evidence within the deadline of a trial, which gives what a record can hold.

    Signs of steering are looked for in each text as it comes, about 10 ms for the longest, and are remembered: the
    verdict asks for those of all texts at once, and nothing else would run on the event loop until it has them.

    Attributes:
        source: The source.
        deadline: Time that is left of the trial.
    """

    source: EvidenceSource
    deadline: Deadline

    async def search(self, query: str) -> tuple[RankedHit, ...]:
        """The results of a search, each document once. Raises CourtError where the source gives none in time."""
        within_s = self.deadline.at_most(SOURCE_S)
        found = await run_within(self.source.search(query, most=RANKED, within_s=within_s), within_s, _late)
        hits = hits_of(found)
        for hit in hits:
            find_injection_signals(words_of(hit))
        return hits

    async def read(self, hit: RankedHit) -> EvidenceDocument:
        """The document of a result. Raises CourtError where it can't be read in time, or is not what it should be."""
        within_s = self.deadline.at_most(SOURCE_S)
        try:
            found = await run_within(self.source.read(hit.id, within_s=within_s), within_s, _late)
        except Unavailable as error:
            if error.reason != _FORGOTTEN or not hit.snippet:
                raise
            # A search endpoint of which snippets are read knows those of its last searches alone, and of none before it
            # was started: a trial that is resumed has them on record.
            found = EvidenceDocument(
                id=hit.id,
                title=hit.title,
                source=hit.source,
                date=hit.date,
                text=hit.snippet,
                sha256=text_sha256(hit.snippet),
            )
        document = readable(found, hit)
        find_injection_signals(document.text)
        return document


def _late() -> Overrun:
    return Overrun("The source of evidence did not answer in time.", reason="EVIDENCE_TOO_SLOW")


def words_of(hit: RankedHit) -> str:
    """All words of a result in which signs of steering are looked for."""
    # The snippet first, so that places in it are right.
    return "\n".join((hit.snippet, hit.title, hit.source))


def hits_of(found: Sequence[EvidenceHit]) -> tuple[RankedHit, ...]:
    """The results of a search in the order in which it gave them, each document once."""
    hits: dict[str, RankedHit] = {}
    for place, hit in enumerate(found[:RANKED], 1):
        # A document whose name can't be recorded as it is could not be found again.
        if hit.id and len(hit.id) <= _MOST_ID and whole(hit.id) == hit.id and hit.id not in hits:
            hits[hit.id] = RankedHit(
                id=hit.id,
                title=whole(hit.title)[:_MOST_TITLE],
                source=whole(hit.source)[:_MOST_SOURCE],
                date=whole(hit.date)[:_MOST_DATE],
                snippet=whole(hit.snippet)[:_MOST_SNIPPET],
                rank_given=place,
            )
    return tuple(hits.values())


def readable(document: EvidenceDocument, hit: RankedHit) -> EvidenceDocument:
    """The document as the witness is shown it: of a long text the beginning, with the digest of that.

    Args:
        document: Document as its source gave it.
        hit: Result by which it was found, whose title, publisher and date are recorded.

    Raises:
        Unavailable: Its text is not the one that its digest is of, or it has none.
    """
    # As the text came: lone surrogates are replaced only after it is checked.
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
    """A text without lone surrogates, which no record could hold."""
    return text.encode("utf-8", "replace").decode()
