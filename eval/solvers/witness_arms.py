"""Arms of the evaluation: the full witness, the witness without one of its steps, and simpler ways to check a claim.

A step is ablated by answering in the model's place: the witness itself is the one used in trials.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from court.errors import Unavailable
from court.ports import (
    ChatModel,
    ChatReply,
    ChatRequest,
    EvidenceDocument,
    EvidenceHit,
    EvidenceSource,
    FinishReason,
    Odds,
)
from eval.models.metered import BudgetSpent


class Arm(StrEnum):
    """A way to check a claim."""

    WITNESS = "witness"
    """As in a trial."""
    NO_RANK = "no-rank"
    """Search results are read in the order of the source."""
    NO_SELF_CONTAINED = "no-self-contained"
    """Each document passes for one that can be understood."""
    NO_SECOND_LOOK = "no-second-look"
    """Documents that were put aside are not looked at again."""
    ONE_SHOT = "one-shot"
    """One query, its first results, one finding."""
    CLOSED_BOOK = "closed-book"
    """No documents at all: what the model remembers."""


SOURCE_AWAY = frozenset({"EVIDENCE_UNAVAILABLE", "EVIDENCE_TOO_SLOW", "EVIDENCE_REFUSED"})
"""Reasons of searches that failed for want of the source, and not for the claim."""


class ArmModel:
    """A :class:`~court.ports.ChatModel` for one claim in one arm: answers ablated steps itself and counts other calls.

    Attributes:
        failure: First transient error of a call; the witness records it and continues, the evaluation must not.
    """

    def __init__(self, inner: ChatModel, arm: Arm) -> None:
        self._inner = inner
        self._arm = arm
        self._documents: set[str] = set()
        self.calls = self.tokens_in = self.tokens_out = 0
        self.failure: Unavailable | BudgetSpent | None = None

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._inner.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the reply of the model or of the arm."""
        task = request.call_id.task if request.call_id else ""
        fixed = self._fixed(task, request)
        if fixed is not None:
            return ChatReply(
                text=json.dumps(fixed),
                finish=FinishReason.STOP,
                model=self.name,
                tokens_in=0,
                tokens_out=0,
                tokens_cached=0,
                latency_s=0.0,
            )
        try:
            reply = await self._inner.reply(request, within_s=within_s)
        except (Unavailable, BudgetSpent) as error:
            # The first one counts: the witness records an error and continues, so later ones may follow from it.
            self.failure = self.failure or error
            raise
        self.calls += 1
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        if self._arm is Arm.NO_SELF_CONTAINED and task == "weigh":
            return dataclasses.replace(reply, text=_comprehensible(reply.text))
        return reply

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the model's odds; the witness never requests them."""
        return await self._inner.odds(request, options, within_s=within_s)

    def _fixed(self, task: str, request: ChatRequest) -> Mapping[str, Any] | None:
        """Returns the arm's answer; None if the model is to be called."""
        if self._arm is Arm.NO_RANK and task == "rank":
            return {"order": []}  # results not listed stay in the source's order
        if self._arm is Arm.NO_SELF_CONTAINED and task == "comprehensible":
            return {"comprehensible": True}
        if self._arm is Arm.NO_SECOND_LOOK and task in ("weigh", "comprehensible"):
            # The document is the last part before the question; the evidence may have grown, but the fence is the same.
            document = request.parts[-2]
            attempt = request.call_id.attempt if request.call_id else 1
            # A call repeated because of an unusable reply is not a second look.
            if isinstance(document, str) and document in self._documents and attempt == 1:
                return _NOT_UNDERSTOOD if task == "weigh" else {"comprehensible": False}
            self._documents.add(str(document))
        return None


class ArmSource:
    """An :class:`~court.ports.EvidenceSource` for one claim in one arm, which records if it was unavailable.

    Attributes:
        failure: Error of the first search that failed because the source was unavailable; None if none did.
    """

    def __init__(self, inner: EvidenceSource) -> None:
        self._inner = inner
        self.failure: Unavailable | None = None

    @property
    def identity(self) -> str:
        """Identity of the source."""
        return self._inner.identity

    @property
    def sends_elsewhere(self) -> bool:
        """True if queries leave the machine."""
        return self._inner.sends_elsewhere

    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        """Returns the results of the source."""
        try:
            return await self._inner.search(query, most=most, within_s=within_s)
        except Unavailable as error:
            # The first: later searches for the claim fail for the same reason, or their results come too late.
            if error.reason in SOURCE_AWAY:
                self.failure = self.failure or error
            raise

    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        """Returns a document of the source; an unreadable one does not mean that the source is unavailable."""
        return await self._inner.read(document_id, within_s=within_s)


_NOT_UNDERSTOOD: Mapping[str, Any] = {
    "comprehensible": False,
    "new": False,
    "useful": False,
    "quotes": [],
    "label": "not enough",
    "enough": False,
    "next": [],
}


def _comprehensible(text: str) -> str:
    """Marks the document as comprehensible in a reply; returns an unparsable reply unchanged."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps({**fields, "comprehensible": True}) if isinstance(fields, dict) else text
