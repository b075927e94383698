"""Findings about claims, derived from the events of a trial, for the Judge and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from court.events import AnyEvent, ClaimSettled, ClaimsFound, DocumentWeighed, EvidenceSearched
from court.ports import EvidenceDocument
from court.verdict import ClaimBasis, ClaimFinding, ClaimLabel, Label, QuotedPassage, Review, ReviewReason


@dataclass(frozen=True, slots=True)
class Testimony:
    """Testimony of the expert witness."""

    findings: tuple[ClaimFinding, ...] = ()
    failure: str = ""


def testimony_of(events: Iterable[AnyEvent]) -> Testimony:
    """Returns the testimony in a trial's events; empty if the witness was not called."""
    relevant = [event for event in events if isinstance(event, ClaimsFound | ClaimSettled)]
    found = next((event for event in relevant if isinstance(event, ClaimsFound)), None)
    if found is None:
        return Testimony()
    settled = {event.claim: event for event in relevant if isinstance(event, ClaimSettled)}
    findings = tuple(
        ClaimFinding(
            claim=claim.text,
            span=claim.span,
            label=end.label,
            because=end.because,
            documents=end.documents,
            evidence=end.evidence,
            checked=end.checked,
        )
        for claim in found.claims
        # In an interrupted trial, some claims are not settled yet.
        if (end := settled.get(claim.number)) is not None
    )
    return Testimony(findings, found.failure)


def review_of(testimony: Testimony, label: Label, *, facts: bool) -> list[Review]:
    """Returns reasons for review that follow from the witness's findings and failures."""
    reasons = []
    refuted = [finding for finding in testimony.findings if finding.label is ClaimLabel.REFUTED]
    # Only if evidence and label point in different directions; a refuted claim in a harmful meme is no surprise.
    if refuted and label is not Label.HARMFUL:
        more = f", and {len(refuted) - 1} more" if len(refuted) > 1 else ""
        detail = f"Evidence refutes a claim of the meme{more}, and its label is {label}: “{refuted[0].claim}”"
        reasons.append(Review(reason=ReviewReason.CLAIM_REFUTED, detail=detail))
    unchecked = [finding for finding in testimony.findings if not finding.checked]
    # Under other policies it doesn't matter whether a claim is true.
    if facts and (testimony.failure or unchecked):
        if testimony.failure:
            detail = f"Whether the meme puts forward claims of fact could not be found out: {testimony.failure}."
        else:
            number = f"{len(unchecked)} of {len(testimony.findings)}"
            detail = (
                f"No evidence could be read about {number} claims of fact, and the policy has a clause about facts."
            )
        reasons.append(Review(reason=ReviewReason.CLAIM_UNCHECKED, detail=detail))
    return reasons


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """The recorded events about one claim; a document that was weighed twice is listed twice."""

    searches: tuple[EvidenceSearched, ...]
    weighed: tuple[DocumentWeighed, ...]

    @classmethod
    def of(cls, events: Iterable[AnyEvent], claim: int) -> ClaimRecord:
        """Collects the events about the claim with this number."""
        own = [event for event in events if isinstance(event, EvidenceSearched | DocumentWeighed)]
        own = [event for event in own if event.claim == claim]
        return cls(
            tuple(event for event in own if isinstance(event, EvidenceSearched)),
            tuple(event for event in own if isinstance(event, DocumentWeighed)),
        )

    @property
    def helpful(self) -> tuple[DocumentWeighed, ...]:
        """Documents that are evidence."""
        return tuple(event for event in self.weighed if event.helpful)

    @property
    def evidence(self) -> tuple[EvidenceDocument, ...]:
        """The texts of these documents."""
        return tuple(map(document_of, self.helpful))

    @property
    def documents(self) -> int:
        """Number of documents that were read."""
        # By id, since a document weighed twice was read once; one without a digest could not be read.
        return len({event.document for event in self.weighed if event.sha256})

    @property
    def checked(self) -> bool:
        """True if a source answered, and something of what it found could be read and weighed."""
        # A search without results counts as an answer. A failed search, or results that could not be read, do not.
        answered = [search for search in self.searches if not search.failure]
        found = any(search.hits for search in answered)
        return bool(answered) and (not found or any(not event.failure for event in self.weighed))

    def settled(
        self,
        because: ClaimBasis,
        *,
        label: ClaimLabel | None = None,
        quotes: Sequence[tuple[int, str]] | None = None,
        dropped: int = 0,
        failure: str = "",
    ) -> dict[str, object]:
        """Returns the fields of the event that settles the claim; without ``quotes``, all found while weighing."""
        helpful = self.helpful
        if label is None:
            # The latest label, which took all evidence so far into account.
            label = next((each.leaning for each in reversed(helpful) if each.leaning), ClaimLabel.NOT_ENOUGH)
        if quotes is None:
            quotes = [(index, quote) for index, event in enumerate(helpful) for quote in event.quotes]
        evidence = tuple(passage_of(document_of(helpful[index]), quote) for index, quote in quotes)
        return {
            # A label without any verified passage does not count.
            "label": label if evidence else ClaimLabel.NOT_ENOUGH,
            "because": because,
            "evidence": evidence,
            "documents": self.documents,
            "checked": self.checked,
            "quotes_dropped": dropped,
            "failure": failure,
        }


def document_of(event: DocumentWeighed) -> EvidenceDocument:
    """The document of an event."""
    return EvidenceDocument(
        id=event.document, title=event.title, source=event.source, date=event.date, text=event.text, sha256=event.sha256
    )


def passage_of(document: EvidenceDocument, quote: str) -> QuotedPassage:
    """A passage of a document."""
    return QuotedPassage(
        document=document.id,
        title=document.title,
        source=document.source,
        date=document.date,
        sha256=document.sha256,
        quote=quote,
    )
