"""The expert witness without a chat model: claims are sentences, evidence is the nearest passages.

A finding other than "not enough" needs a natural-language inference (NLI) model, which compares a claim with single
sentences.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

from court.deadline import Deadline, gather_or_cancel
from court.errors import CourtError
from court.events import CheckableClaim, ClaimSettled, ClaimsFound, DocumentWeighed, EvidenceSearched, InferenceGiven
from court.expert.documents import CLAIM_CHECKED, BoundedSource
from court.expert.findings import ClaimRecord, Testimony, testimony_of
from court.expert.outgoing import HELD_BACK, OutgoingQuery, outgoing
from court.expert.witness import WitnessOutOfTime
from court.ports import Entailment, EvidenceDocument, EvidenceSource
from court.recorder import EventDraft, Recorder
from court.settings import TrialSettings
from court.verdict import ClaimBasis, ClaimLabel

_MIN_WORDS = 3
"""Minimum words of a sentence that can be a claim."""
_MOST_SENTENCE = 300
"""Maximum characters of a sentence that are quoted."""
_MOST_SENTENCES = 40
"""Maximum sentences of a document that a claim is compared with."""
# A single line break does not end a sentence, which often spans several lines on a meme.
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n\s*\n")  # noqa: RUF001: these end sentences, too
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff"  # kana and Chinese characters
# In scripts without spaces characters are counted, or a whole sentence would be a single word.
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_CHARACTER = re.compile(f"[{_UNSPACED}]")


def sentences(text: str) -> tuple[str, ...]:
    """Returns the distinct sentences of a text, in order; long sentences are truncated."""
    found = (" ".join(sentence.split())[:_MOST_SENTENCE].strip() for sentence in _END.split(text))
    return tuple(dict.fromkeys(sentence for sentence in found if sentence))


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceWitness:
    """The witness of one trial.

    Attributes:
        entailment: Compares a claim with a sentence; None without an NLI model.
        recorder: Records each step, and finds those on record when a trial is resumed.
        deadline: Time left for the trial.
    """

    source: EvidenceSource
    entailment: Entailment | None
    settings: TrialSettings
    recorder: Recorder
    deadline: Deadline

    async def testify(self, text: str) -> Testimony:
        """Searches evidence about each claim of a text, within the time limit of the settings."""
        found = self.recorder.recall(ClaimsFound)
        if found is None:
            claimed = [sentence for sentence in sentences(text) if _may_claim(sentence)][: self.settings.expert_claims]
            # The claim is its own span, as it is not paraphrased.
            claims = tuple(
                CheckableClaim(number=n, text=sentence, span=sentence) for n, sentence in enumerate(claimed, 1)
            )
            found = await self.recorder.note(ClaimsFound, claims=claims)
        if found.claims:
            try:
                # At most half of the time left: the verdict needs the rest.
                async with asyncio.timeout(min(self.settings.expert_s, max(self.deadline.left / 2, 0))) as clock:
                    await gather_or_cancel(*map(self._settle, found.claims))
            except TimeoutError:
                # Any other timeout is a bug, not the time limit.
                if not clock.expired():
                    raise
            late = [
                EventDraft(ClaimSettled, {"claim": claim.number, **self._settled(claim, ClaimBasis.TIME)})
                for claim in found.claims
                if self.recorder.recall(ClaimSettled, claim=claim.number) is None
            ]
            await self.recorder.note_all(*late)
        return testimony_of(self.recorder.events)

    async def _settle(self, claim: CheckableClaim) -> None:
        if self.recorder.recall(ClaimSettled, claim=claim.number):
            return
        CLAIM_CHECKED.set(claim.number)
        try:
            for number, hit in enumerate((await self._search(claim)).hits[: self.settings.expert_results], 1):
                # In a resumed trial, documents weighed before are kept: the same number is the same hit of the same
                # search.
                if self.recorder.recall(DocumentWeighed, claim=claim.number, number=number) is None:
                    values: dict[str, object] = {
                        "title": hit.title,
                        "source": hit.source,
                        "date": hit.date,
                        "document": hit.id,
                    }
                    try:
                        values |= await self._weighed(claim, await self._source.read(hit))
                    # Also a CourtError, but not a failure of this document.
                    except WitnessOutOfTime:
                        raise
                    except CourtError as error:
                        values |= {"failure": error.reason}
                    await self.recorder.note(DocumentWeighed, claim=claim.number, number=number, **values)
        except WitnessOutOfTime:
            return
        await self.recorder.note(ClaimSettled, claim=claim.number, **self._settled(claim, ClaimBasis.QUERIES_USED))

    async def _search(self, claim: CheckableClaim) -> EvidenceSearched:
        if known := self.recorder.recall(EvidenceSearched, claim=claim.number):
            return known
        # The claim is a sentence of the meme's text, so it can't contain names known only from the picture.
        query = outgoing(claim.text, ()) if self.source.sends_elsewhere else OutgoingQuery(claim.text)
        values = {
            "claim": claim.number,
            "number": 1,
            "query": query.text,
            "held_back": query.held_back,
            "source_identity": self.source.identity,
        }
        if not query.text:
            return await self.recorder.note(EvidenceSearched, **values, failure=HELD_BACK)
        began = time.perf_counter()
        try:
            found: dict[str, object] = {"hits": await self._source.search(query.text)}
        except WitnessOutOfTime:
            raise
        except CourtError as error:
            found = {"failure": error.reason}
        return await self.recorder.note(EvidenceSearched, **values, **found, latency_s=time.perf_counter() - began)

    async def _weighed(self, claim: CheckableClaim, document: EvidenceDocument) -> dict[str, object]:
        """Weighs a document by the sentence with the clearest NLI result, or by the one that shares most words."""
        values: dict[str, object] = {"text": document.text, "sha256": document.sha256, "comprehensible": True}
        passages = sentences(document.text)[:_MOST_SENTENCES]
        if self.entailment is None:
            # Without a model nothing is inferred: the passage is for a person to read and gives no label.
            nearest = max(passages, key=lambda sentence: _shared_words(sentence, claim.text))
            return {**values, "helpful": True, "leaning": ClaimLabel.NOT_ENOUGH, "quotes": (nearest,)}
        inferred = [(sentence, await self.entailment.infer(sentence, claim.text)) for sentence in passages]
        # In either direction: a contradiction counts as much as support.
        clearest, clearest_inference = max(inferred, key=lambda pair: max(pair[1].entailment, pair[1].contradiction))
        inference = InferenceGiven(
            model=self.entailment.identity,
            entailment=clearest_inference.entailment,
            neutral=clearest_inference.neutral,
            contradiction=clearest_inference.contradiction,
        )
        leaning = ClaimLabel.NOT_ENOUGH
        if clearest_inference.entailment >= self.settings.expert_sure:
            leaning = ClaimLabel.SUPPORTED
        elif clearest_inference.contradiction >= self.settings.expert_sure:
            leaning = ClaimLabel.REFUTED
        return {**values, "helpful": True, "leaning": leaning, "quotes": (clearest,), "inference": inference}

    def _settled(self, claim: CheckableClaim, because: ClaimBasis) -> dict[str, object]:
        known = ClaimRecord.of(self.recorder.events, claim.number)
        labels = {weighed.leaning for weighed in known.helpful} - {ClaimLabel.NOT_ENOUGH, None}
        # Conflicting or neutral documents do not settle a claim.
        label = labels.pop() if len(labels) == 1 else ClaimLabel.NOT_ENOUGH
        quotes = [
            (place, quote)
            for place, weighed in enumerate(known.helpful)
            for quote in weighed.quotes
            # A label is supported by its own passages; "not enough" lists all that were found.
            if label in (weighed.leaning, ClaimLabel.NOT_ENOUGH)
        ]
        return known.settled(because, label=label, quotes=quotes)

    @property
    def _source(self) -> BoundedSource:
        return BoundedSource(self.source, self.deadline)


def _may_claim(sentence: str) -> bool:
    """True if a sentence may be a claim; questions and very short sentences are not."""
    # In scripts without spaces, a word has about two characters.
    words = len(_WORD.findall(sentence)) - len(_CHARACTER.findall(sentence)) // 2
    return words >= _MIN_WORDS and not sentence.endswith(("?", "\uff1f"))


def _shared_words(sentence: str, claim: str) -> int:
    return len(_words(sentence) & _words(claim))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
