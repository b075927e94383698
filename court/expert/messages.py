"""Messages to the expert witness, built from exactly what it may see: claims and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from court.events import RankedHit
from court.expert import replies
from court.messages import Messages, apart
from court.ports import EvidenceDocument
from court.prompts import Fence, Prompt, PromptSet, load
from court.prompts.sets import packaged
from court.verdict import ClaimFinding, ClaimLabel, QuotedPassage

IN_WORDS = {
    ClaimLabel.SUPPORTED: "supported by the evidence",
    ClaimLabel.REFUTED: "refuted by the evidence",
    ClaimLabel.NOT_ENOUGH: "not settled: there is not enough evidence",
}
"""Labels of claims as shown to people and the Judge."""


def find_claims(
    fence: Fence, *, text: str, description: str | None, most: int, chars: int, prompts: PromptSet | None = None
) -> Messages[Any]:
    """Builds the request for the meme's claims of fact."""
    prompt = load("claim_finder")
    described = prompt.task("no_description") if description is None else fence.around(description)
    return Messages(
        prompt=prompt,
        task="claims",
        system=prompt.system(),
        parts=apart([prompt.task("claims", text=fence.around(text), description=described)]),
        schema=replies.statements_schema(most, chars),
        prompts=prompts or packaged(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBrief:
    """Everything shown to the witness about one claim."""

    fence: Fence
    claim: str
    evidence: tuple[EvidenceDocument, ...] = ()
    chars: int
    prompts: PromptSet = field(default_factory=packaged)

    def queries(self, most: int) -> Messages[Any]:
        """Builds the request for search queries."""
        return self._messages("queries", replies.queries_schema(most), most=str(most))

    def rank(self, query: str, hits: Sequence[RankedHit]) -> Messages[Any]:
        """Builds the request to rank search results."""
        shown = [
            self._prompt.task("hit", number=str(number), hit=self.fence.around(hit_text(hit)))
            for number, hit in enumerate(hits, 1)
        ]
        return self._messages("rank", replies.order_schema(len(hits)), *shown, query=self.fence.around(query))

    def ask_about(self, task: str, document: EvidenceDocument) -> Messages[Any]:
        """Builds the request to weigh a new document: ``weigh``, ``comprehensible`` or ``helpful``."""
        words = self._prompt.task("document", document=self.fence.around(document_text(document)))
        return self._messages(task, replies.weighing_schema(task, self.chars), *self._evidence(), words)

    def sufficient(self) -> Messages[Any]:
        """Builds the request to judge whether the evidence is sufficient."""
        return self._messages("sufficient", replies.weighing_schema("sufficient", self.chars), *self._evidence())

    def more_queries(self, most: int) -> Messages[Any]:
        """Builds the request for further queries."""
        return self._messages("more_queries", replies.queries_schema(most), *self._evidence(), most=str(most))

    def classify(self) -> Messages[Any]:
        """Builds the request for the final finding."""
        schema = replies.classification_schema(len(self.evidence), self.chars)
        return self._messages("classify", schema, *self._evidence())

    @property
    def _prompt(self) -> Prompt:
        return load("expert")

    def _evidence(self) -> list[str]:
        return [
            self._prompt.task("evidence", number=str(number), document=self.fence.around(document_text(document)))
            for number, document in enumerate(self.evidence, 1)
        ]

    def _messages(self, task: str, schema: dict[str, Any], *shown: str, **values: str) -> Messages[Any]:
        # The claim first and the evidence in chronological order, for the longest common prefix.
        claim = self._prompt.task("claim", claim=self.fence.around(self.claim))
        return Messages(
            prompt=self._prompt,
            task=task,
            system=self._prompt.system(),
            parts=apart([claim, *shown, self._prompt.task(task, **values)]),
            schema=schema,
            prompts=self.prompts,
        )


def hit_text(hit: RankedHit) -> str:
    """Formats a search result for the witness; all of it is untrusted."""
    return "\n".join(filter(None, (hit.title, hit.source, hit.date, hit.snippet)))


def document_text(document: EvidenceDocument) -> str:
    """Formats a document for the witness, with its publisher and date."""
    return "\n".join(filter(None, (document.title, document.source, document.date, "", document.text)))


def findings_words(findings: Sequence[ClaimFinding]) -> str:
    """Formats findings for the Judge; empty if there are none."""
    lines: list[str] = []
    for number, finding in enumerate(findings, 1):
        read = "1 document" if finding.documents == 1 else f"{finding.documents} documents"
        # "Not enough evidence" would suggest that some had been weighed.
        label = IN_WORDS[finding.label] if finding.checked else "not checked: no evidence could be read"
        lines.append(f"Claim {number}: {finding.claim}\nFinding: {label} ({read} read)")
        lines += [f"{quoted_source(passage)}: “{passage.quote}”" for passage in finding.evidence]
    return "\n".join(lines)


def quoted_source(passage: QuotedPassage) -> str:
    """Publisher, title and date of a quoted passage, as far as they are known."""
    return ", ".join(filter(None, (passage.source, passage.title, passage.date))) or passage.document
