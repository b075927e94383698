"""Messages to the expert witness, rebuilt from a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from court.events import ClaimEvent, ClaimSettled, DocumentWeighed, EvidenceSearched, QueriesPlanned
from court.expert.findings import ClaimRecord, document_of
from court.expert.messages import ClaimBrief, find_claims
from court.expert.replies import MOST_NEXT, MOST_QUERIES
from court.messages import Messages
from court.prompts import PromptSet
from court.prompts.sets import packaged
from court.record import TrialRecord
from court.settings import TrialSettings
from court.untrusted import Fence


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMessages:
    """Rebuilds the messages of one trial's expert witness.

    Attributes:
        fence: Around what strangers wrote, with the mark of the time of the call.
    """

    record: TrialRecord
    fence: Fence
    settings: TrialSettings
    prompts: PromptSet = field(default_factory=packaged)

    def claims(self, text: str, description: str | None) -> Messages[Any]:
        """Rebuilds the question for the claims of a meme."""
        return find_claims(
            self.fence,
            text=text,
            description=description,
            most=self.settings.expert_claims,
            chars=self.settings.reply_chars,
            prompts=self.prompts,
        )

    def about(self, event: ClaimEvent, task: str) -> Messages[Any] | None:
        """The question of a call about one claim; None where the record does not hold the claim."""
        found = self.record.claims_found
        claim = next((each for each in found.claims if each.number == event.claim), None) if found else None
        if claim is None:
            return None
        # Events recorded after the call were not part of its question.
        before: Sequence[Any] = self.record.events[: event.seq]
        brief = ClaimBrief(
            fence=self.fence,
            claim=claim.text,
            evidence=ClaimRecord.of(before, event.claim).evidence,
            chars=self.settings.reply_chars,
            prompts=self.prompts,
        )
        match event:
            case QueriesPlanned():
                return brief.queries(min(MOST_QUERIES, self.settings.expert_queries))
            case EvidenceSearched():
                # In the source's order: that on record is the one which this call came to.
                return brief.rank(event.query, sorted(event.hits, key=lambda hit: hit.rank_given))
            case ClaimSettled():
                return brief.classify()
            case DocumentWeighed():
                document = document_of(event)
                if task not in ("sufficient", "more_queries"):
                    return brief.ask_about(task, document)
                # These two questions count the new document as evidence already.
                grown = replace(brief, evidence=(*brief.evidence, document))
                return grown.sufficient() if task == "sufficient" else grown.more_queries(MOST_NEXT)
            case _:
                return None
