"""The expert witness of a trial in which no model is asked to write: sentences, nearest passages, and no finding.

The claims are the text's sentences, and the evidence is the passages that a source finds nearest to each. A finding
beyond "not enough" needs a model of natural-language inference, which compares a claim with single sentences.
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

_LEAST_WORDS = 3
"""Words of a sentence that can be a claim."""
_MOST_SENTENCE = 300
"""Characters of a sentence that are quoted."""
_MOST_SENTENCES = 40
"""Sentences of a document that a claim is compared with."""
# A single line break is none: on a meme, a sentence takes several lines.
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n\s*\n")  # noqa: RUF001: these end sentences, too
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff"  # kana and Chinese characters
# Scripts without spaces count by their characters, or a whole sentence of theirs would be a single word.
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_CHARACTER = re.compile(f"[{_UNSPACED}]")


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, in order; of a long one, the beginning."""
    found = (" ".join(sentence.split())[:_MOST_SENTENCE].strip() for sentence in _END.split(text))
    return tuple(dict.fromkeys(sentence for sentence in found if sentence))


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceWitness:
    """The witness of one trial.

    Attributes:
        source: Finds documents.
        entailment: Compares a claim with a sentence; None where there is no such model.
        settings: Settings of the trial.
        recorder: Records each step, and finds those of a trial that was cut off.
        deadline: Time that is left of the trial.
    """

    source: EvidenceSource
    entailment: Entailment | None
    settings: TrialSettings
    recorder: Recorder
    deadline: Deadline

    async def testify(self, text: str) -> Testimony:
        """Looks for evidence about each sentence of a text, within the time that the settings give."""
        found = self.recorder.recall(ClaimsFound)
        if found is None:
            claimed = [sentence for sentence in sentences(text) if _may_claim(sentence)][: self.settings.expert_claims]
            # The claim is its own span: nobody has put it into other words.
            claims = tuple(
                CheckableClaim(number=n, text=sentence, span=sentence) for n, sentence in enumerate(claimed, 1)
            )
            found = await self.recorder.note(ClaimsFound, claims=claims)
        if found.claims:
            try:
                # Half of what is left at most: the verdict needs the rest.
                async with asyncio.timeout(min(self.settings.expert_s, max(self.deadline.left / 2, 0))) as clock:
                    await gather_or_cancel(*map(self._settle, found.claims))
            except TimeoutError:
                # Any other timeout is a fault of ours, and not the end of the time.
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
                # Of a trial that is resumed, what was weighed before stands: the same number is the same hit of the
                # same search.
                if self.recorder.recall(DocumentWeighed, claim=claim.number, number=number) is None:
                    values: dict[str, object] = {
                        "title": hit.title,
                        "source": hit.source,
                        "date": hit.date,
                        "document": hit.id,
                    }
                    try:
                        values |= await self._weighed(claim, await self._source.read(hit))
                    # A CourtError as well, and no failure of this document.
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
        # The claim is a sentence of the meme's own: it holds no name that its text does not.
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
        """Weighs a document against a claim: by the sentence that speaks most clearly, or is nearest in words."""
        values: dict[str, object] = {"text": document.text, "sha256": document.sha256, "comprehensible": True}
        passages = sentences(document.text)[:_MOST_SENTENCES]
        if self.entailment is None:
            # Without a model nothing is inferred: it is the passage for a person to read, and no label.
            nearest = max(passages, key=lambda sentence: _shared_words(sentence, claim.text))
            return {**values, "helpful": True, "leaning": ClaimLabel.NOT_ENOUGH, "quotes": (nearest,)}
        inferred = [(sentence, await self.entailment.infer(sentence, claim.text)) for sentence in passages]
        # In either direction: a contradiction weighs as much as support.
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
        # Documents that contradict each other settle nothing, and neither do those that say nothing.
        label = labels.pop() if len(labels) == 1 else ClaimLabel.NOT_ENOUGH
        quotes = [
            (place, quote)
            for place, weighed in enumerate(known.helpful)
            for quote in weighed.quotes
            # Under a label stand the passages that it rests on; under none, all that was found.
            if label in (weighed.leaning, ClaimLabel.NOT_ENOUGH)
        ]
        return known.settled(because, label=label, quotes=quotes)

    @property
    def _source(self) -> BoundedSource:
        return BoundedSource(self.source, self.deadline)


def _may_claim(sentence: str) -> bool:
    """True if a sentence may state something: a question and a few words do not."""
    # Where words are not spaced, one has about two characters.
    words = len(_WORD.findall(sentence)) - len(_CHARACTER.findall(sentence)) // 2
    return words >= _LEAST_WORDS and not sentence.endswith(("?", "\uff1f"))


def _shared_words(sentence: str, claim: str) -> int:
    return len(_words(sentence) & _words(claim))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
