"""The expert witness in a trial: for each claim it searches, reads and weighs documents, and gives a finding.

``queries; while queries are left: search, rank, read; helpful and enough: settle; helpful: further queries`` (EMULATE;
docs/expert.md). Documents that could not be understood are deferred and weighed again once there is more evidence.
Claims are checked concurrently with each other and with the examination. A failed step is recorded and does not fail
the trial.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import unicodedata
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from court.deadline import cancel_all, gather_or_cancel
from court.errors import CourtError
from court.events import (
    CheckableClaim,
    ClaimSettled,
    ClaimsFound,
    DocumentWeighed,
    EvidenceSearched,
    ModelCall,
    QueriesPlanned,
    RankedHit,
    Role,
)
from court.expert import replies
from court.expert.documents import CLAIM_CHECKED, BoundedSource
from court.expert.findings import ClaimRecord, Testimony, document_of, testimony_of
from court.expert.messages import ClaimBrief, find_claims
from court.expert.replies import MOST_NEXT, MOST_QUERIES, Weighing
from court.messages import Messages
from court.policy import Policy
from court.ports import EvidenceDocument, EvidenceSource
from court.recorder import EventDraft, Recorder
from court.roles import RoleReply, Speaker
from court.settings import TrialSettings
from court.verdict import ClaimBasis

HELD_BACK = "QUERY_HELD_BACK"
"""Failure code of a search whose query is empty after filtering."""

# Claims are often about figures and dates, so a number counts as a telephone number only with a country prefix, a trunk
# prefix and nine digits, an area code in brackets, or the usual North American grouping.
_CONTACT = re.compile(
    r"""
      [^\s@<>()"',;]+@[^\s@<>()"',;]+\.[^\s@<>()"',;]+            # an e-mail address
    | (?<![\w.])@\w(?:[\w.]*\w)?                                  # a handle
    | (?<![\w.,])(?:\+|00)[1-9](?:[\s().\-/]{0,2}\d){6,}
    | (?<![\w.,])0[1-9](?:[\s.\-/]{0,2}\d){7,}
    | (?<![\w.,])\(\d{2,5}\)(?:[\s.\-/]{0,2}\d){5,}
    | (?<![\w.,\-])\d{3}[\s.\-]\d{3}[\s.\-]\d{4}(?![\w\-])
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W\d_]+")
_NO_NAMES = frozenset(
    _WORD.findall(
        "a above all an and another are as at behind below beside between both by each he her here his in is it its "
        "next no of on one other she some that the their there these they this those three to two under with man men "
        "woman women person people child children picture image photo photograph drawing cartoon text words"
    )
)
"""Words that often begin sentences of an English description and that a query would miss."""
_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")


@dataclass(frozen=True, slots=True)
class OutgoingQuery:
    """A filtered query."""

    text: str
    held_back: int = 0


def names_of_picture(text: str, description: str | None) -> frozenset[str]:
    """Returns case-folded words of a picture's description that may be names and are absent from the meme's text."""
    # Words that also occur in lower case, and words that commonly begin sentences, are not names; any other first word
    # of a sentence may be one.
    if description is None:
        return frozenset()
    # Normalised, as the same letter may be encoded as one character or two.
    words = _WORD.findall(unicodedata.normalize("NFKC", _POSSESSIVE.sub("", description)))
    # Unlike names, ordinary words usually also occur in lower case.
    small = {_folded(word) for word in words if not word[0].isupper()}
    known = _NO_NAMES | small | {_folded(word) for word in _WORD.findall(unicodedata.normalize("NFKC", text))}
    return frozenset(_folded(word) for word in words if word[0].isupper()) - known


def outgoing(query: str, names: Collection[str]) -> OutgoingQuery:
    """Removes contact data and names from a query."""
    left, held_back = _CONTACT.subn(" ", unicodedata.normalize("NFKC", query))

    def without(match: re.Match[str]) -> str:
        nonlocal held_back
        if _folded(match[0]) not in names:
            return match[0]
        held_back += 1
        return " "

    left = _WORD.sub(without, _POSSESSIVE.sub("", left) if names else left)
    # Unchanged if nothing had to be removed.
    if not held_back:
        return OutgoingQuery(query)
    # Drops punctuation left over around removed words.
    sent = [word for word in left.split() if any(char.isalnum() for char in word)]
    return OutgoingQuery(" ".join(sent), held_back)


def _folded(word: str) -> str:
    return word.casefold()


T = TypeVar("T")

TIME = "TIME"
"""Code for claims that were not found before the Judge had to rule."""
_SHARE = 0.5
"""Maximum share of the time left that the Judge waits for the witness."""


def may_be_called(settings: TrialSettings, policy: Policy) -> bool:
    """True if the witness may be called in full trials with these settings, under this policy."""
    if settings.dull_judge or settings.expert == "off":
        return False
    return settings.expert == "always" or policy.turns_on_facts


def asks_for_claims(settings: TrialSettings, policy: Policy) -> bool:
    """True if sides are asked for the claim of fact on which their case rests."""
    return settings.expert == "asked" and may_be_called(settings, policy)


class WitnessOutOfTime(Exception):
    """Raised when the witness can't continue; its claim is then settled with the evidence so far."""


@dataclass(slots=True)
class _Questions:
    found: Weighing = field(default_factory=Weighing)
    calls: list[ModelCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWitness:
    """The witness of one trial. It sees only the meme's text and description, to find claims in them."""

    speaker: Speaker
    source: EvidenceSource
    settings: TrialSettings
    recorder: Recorder
    called: asyncio.Event = field(default_factory=asyncio.Event)
    _names: set[str] = field(default_factory=set, init=False)

    @asynccontextmanager
    async def concurrently(
        self, text: str, description: str | None
    ) -> AsyncIterator[Callable[[], Awaitable[Testimony]]]:
        """Runs the witness concurrently with the block; yields a function that ends it and returns the testimony."""
        # The task starts now and waits: a side may call the witness at any time during the examination.
        working = asyncio.create_task(self._testify(text, description))

        async def due() -> Testimony:
            if self.settings.expert_waits and self.called.is_set():
                # Only a share of the time left: the Judge needs the rest.
                left = self.speaker.deadline.left
                await asyncio.wait([working], timeout=None if left == math.inf else max(_SHARE * left, 0))
            if working.done():
                working.result()  # raises if there was a bug
            # Stopped before closing: a running step would record events after those that settle its claim.
            await cancel_all(working)
            return await self._close()

        try:
            yield due
        finally:
            await cancel_all(working)

    async def _testify(self, text: str, description: str | None) -> None:
        # Derived from the meme and not from claims, which a model has written.
        self._names.update(names_of_picture(text, description))
        await self.called.wait()
        try:
            # One timeout for all claims, as the caller waits for the slowest.
            async with asyncio.timeout(self.settings.expert_s) as clock:
                found = await self._find_claims(text, description)
                if found.claims:
                    await gather_or_cancel(*map(self._settle, found.claims))
        except TimeoutError:
            # Any other TimeoutError is a bug and must not be taken for the time limit.
            if not clock.expired():
                raise
        # Not a failure: _close settles the claims with the evidence so far.
        except WitnessOutOfTime:
            pass

    async def _close(self) -> Testimony:
        """Settles the remaining claims with the evidence so far, and returns the testimony."""
        if not self.called.is_set():
            return Testimony()
        # Recorded even if nothing was found in time, to distinguish the record from one without a witness.
        found = self.recorder.find(ClaimsFound) or await self.recorder.record(ClaimsFound, failure=TIME)
        late = [
            EventDraft(ClaimSettled, {"claim": claim.number, **self._so_far(claim).settled(ClaimBasis.TIME)})
            for claim in found.claims
            if self.recorder.find(ClaimSettled, claim=claim.number) is None
        ]
        # In one write: a trial interrupted here has either all of them or none, and is resumed accordingly.
        await self.recorder.record_all(*late)
        return testimony_of(self.recorder.events)

    async def _find_claims(self, text: str, description: str | None) -> ClaimsFound:
        # A resumed trial uses its record: no step is repeated at a cost, or with another result.
        if known := self.recorder.find(ClaimsFound):
            return known
        most = self.settings.expert_claims
        messages = find_claims(
            self.speaker.fence,
            text=text,
            description=description,
            most=most,
            chars=self.speaker.reply_chars,
            prompts=self.speaker.prompts,
        )

        def read(reply: str, _: bool) -> replies.Statements:
            return replies.parse_statements(reply, most, text, description or "")

        try:
            answer = await self.speaker.say(Role.EXPERT, messages, read)
        except CourtError as error:
            return await self.recorder.record(ClaimsFound, failure=error.reason)
        return await self.recorder.record(
            ClaimsFound, claims=answer.value.claims, left_out=answer.value.left_out, call=answer.call
        )

    async def _settle(self, claim: CheckableClaim) -> None:
        if self.recorder.find(ClaimSettled, claim=claim.number):
            return
        CLAIM_CHECKED.set(claim.number)
        try:
            because = await self._collect(claim)
            settled = await self._classified(claim, because)
        except WitnessOutOfTime:
            return
        await self.recorder.record(ClaimSettled, claim=claim.number, **settled)

    async def _collect(self, claim: CheckableClaim) -> ClaimBasis:
        """Collects evidence until it is sufficient or all queries are used."""
        # FIFO: planned queries come before those suggested by single documents.
        queue = deque((await self._plan(claim)).queries)
        used: set[str] = set()
        known_ids: set[str] = set()
        deferred: list[tuple[DocumentWeighed, int]] = []  # with the number of evidence documents at that time
        # Counted here, as the record of a resumed trial also has later documents.
        weighings, evidence = 0, 0
        while queue and len(used) < self.settings.expert_queries:
            query = OutgoingQuery(queue.popleft())
            if self.source.sends_elsewhere:
                query = outgoing(query.text, self._names)
            # Models repeat queries in different case; a duplicate would waste one of the few.
            if query.text.casefold() in used:
                continue
            used.add(query.text.casefold())
            search = await self._search(claim, len(used), query)
            # Known documents are dropped before truncation, so that each query yields as many new results.
            new = [hit for hit in search.hits if hit.id not in known_ids][: self.settings.expert_results]
            for hit in new:
                known_ids.add(hit.id)
                weighings += 1
                weighed = await self._weigh(claim, weighings, hit)
                if weighed.aside:
                    deferred.append((weighed, evidence))
                if weighed.helpful:
                    evidence += 1
                    if weighed.sufficient:
                        return ClaimBasis.ENOUGH
                    queue.extend(weighed.queries)
                    break  # as published: continues with the next query, not with this query's next result
        # Once, at the end: a later query may have found what makes them understandable.
        for before, evidence_then in deferred:
            if evidence == evidence_then:
                continue  # the request would be identical
            weighings += 1
            weighed = await self._weigh(claim, weighings, before)
            evidence += weighed.helpful
            if weighed.sufficient:
                return ClaimBasis.ENOUGH
        return ClaimBasis.QUERIES_USED

    async def _plan(self, claim: CheckableClaim) -> QueriesPlanned:
        if known := self.recorder.find(QueriesPlanned, claim=claim.number):
            return known
        most = min(MOST_QUERIES, self.settings.expert_queries)
        try:
            reply = await self._ask(
                claim, self._brief(claim).queries(most), lambda text, _: replies.parse_queries(text, most)
            )
        except CourtError as error:
            # The claim itself serves as a query, if not the best one.
            return await self.recorder.record(
                QueriesPlanned, claim=claim.number, queries=(claim.text,), failure=error.reason
            )
        # An empty plan must not settle a claim without a single search.
        queries = reply.value or (claim.text,)
        return await self.recorder.record(QueriesPlanned, claim=claim.number, queries=queries, call=reply.call)

    async def _search(self, claim: CheckableClaim, number: int, query: OutgoingQuery) -> EvidenceSearched:
        if known := self.recorder.find(EvidenceSearched, claim=claim.number, number=number):
            return known
        values = {
            "claim": claim.number,
            "number": number,
            "query": query.text,
            "held_back": query.held_back,
            "source_identity": self.source.identity,
        }
        if not query.text:
            return await self.recorder.record(EvidenceSearched, **values, failure=HELD_BACK)
        began = time.perf_counter()
        try:
            hits = await self._source.search(query.text)
        except CourtError as error:
            spent = time.perf_counter() - began
            return await self.recorder.record(EvidenceSearched, **values, latency_s=spent, failure=error.reason)
        values["latency_s"] = time.perf_counter() - began
        # Nothing to rank, and a model call takes seconds.
        if len(hits) < 2:
            return await self.recorder.record(EvidenceSearched, **values, hits=hits)
        try:
            messages = self._brief(claim).rank(query.text, hits)
            reply = await self._ask(claim, messages, lambda text, _: replies.parse_order(text, len(hits)), step=number)
        except CourtError as error:
            # Falls back to the source's own order.
            return await self.recorder.record(EvidenceSearched, **values, hits=hits, rank_failure=error.reason)
        ranked = tuple(hits[index - 1] for index in reply.value)
        return await self.recorder.record(EvidenceSearched, **values, hits=ranked, call=reply.call)

    async def _weigh(self, claim: CheckableClaim, number: int, found: RankedHit | DocumentWeighed) -> DocumentWeighed:
        if known := self.recorder.find(DocumentWeighed, claim=claim.number, number=number):
            return known
        is_second = isinstance(found, DocumentWeighed)
        values = {
            "claim": claim.number,
            "number": number,
            "document": found.document if isinstance(found, DocumentWeighed) else found.id,
            "title": found.title,
            "source": found.source,
            "date": found.date,
            "second_look": is_second,
        }
        try:
            if isinstance(found, DocumentWeighed):
                document = document_of(found)
            else:
                document = await self._source.read(found)
        except CourtError as error:
            return await self.recorder.record(DocumentWeighed, **values, failure=error.reason)
        # Recorded also with a failure: the text was read, even if no model could weigh it.
        values |= {"text": document.text, "sha256": document.sha256}
        questions, failure = _Questions(), ""
        try:
            await self._question(claim, number, document, questions)
        except CourtError as error:
            failure = error.reason
        weighed = questions.found
        quotes = replies.standing_quotes(weighed.quotes, document.text)
        return await self.recorder.record(
            DocumentWeighed,
            **values,
            comprehensible=weighed.comprehensible,
            helpful=weighed.helpful,
            # Further answers about an unhelpful document are dropped; in a merged call models give them anyway.
            sufficient=weighed.enough if weighed.helpful else None,
            aside=not (weighed.comprehensible or is_second or failure),
            leaning=weighed.leaning if weighed.helpful else None,
            quotes=quotes if weighed.helpful else (),
            # As a set, since verified quotations are distinct too.
            quotes_dropped=len(set(weighed.quotes)) - len(quotes),
            queries=weighed.queries if weighed.helpful and not weighed.enough else (),
            failure=failure,
            calls=tuple(questions.calls),
        )

    async def _question(
        self, claim: CheckableClaim, number: int, document: EvidenceDocument, questions: _Questions
    ) -> None:
        """Asks the questions about a document: in one call, or one by one until an answer makes the rest moot."""
        brief = self._brief(claim)

        async def ask(task: str, messages: Messages[object]) -> Weighing:
            reply = await self._ask(claim, messages, lambda text, _: replies.parse_weighing(task, text), step=number)
            questions.calls.append(reply.call)
            return reply.value

        if self.settings.expert_steps == "merged":
            questions.found = await ask("weigh", brief.ask_about("weigh", document))
            return
        if not (await ask("comprehensible", brief.ask_about("comprehensible", document))).comprehensible:
            return
        questions.found = Weighing(comprehensible=True)
        helped = await ask("helpful", brief.ask_about("helpful", document))
        questions.found = Weighing(comprehensible=True, helpful=helped.helpful, quotes=helped.quotes)
        if not helped.helpful:
            return
        # Including this document, which is recorded as evidence only once all questions are answered.
        grown = self._brief(claim, document)
        settled = await ask("sufficient", grown.sufficient())
        # Set before the last call, so that the answers so far count if it fails.
        questions.found = replace(questions.found, leaning=settled.leaning, enough=settled.enough)
        if not settled.enough:
            more = await self._ask(
                claim,
                grown.more_queries(MOST_NEXT),
                lambda text, _: replies.parse_queries(text, MOST_NEXT),
                step=number,
            )
            questions.calls.append(more.call)
            questions.found = replace(questions.found, queries=more.value)

    async def _classified(self, claim: CheckableClaim, because: ClaimBasis) -> dict[str, object]:
        known = self._so_far(claim)
        if not known.helpful:
            return known.settled(because)  # without evidence, a model could only answer from memory
        # Captured here: numbers in the reply refer to positions in this list.
        texts = [document.text for document in known.evidence]

        def read(reply: str, last: bool) -> replies.Classification:
            return replies.parse_classification(reply, texts, last=last)

        try:
            answer = await self._ask(claim, self._brief(claim).classify(), read)
        except CourtError as error:
            return known.settled(because, failure=error.reason)
        found = answer.value
        values = known.settled(because, label=found.label, quotes=found.quotes, dropped=found.dropped)
        return {**values, "call": answer.call}

    @property
    def _source(self) -> BoundedSource:
        return BoundedSource(self.source, self.speaker.deadline)

    def _so_far(self, claim: CheckableClaim) -> ClaimRecord:
        return ClaimRecord.of(self.recorder.events, claim.number)

    def _brief(self, claim: CheckableClaim, *more: EvidenceDocument) -> ClaimBrief:
        return ClaimBrief(
            fence=self.speaker.fence,
            claim=claim.text,
            evidence=(*self._so_far(claim).evidence, *more),
            chars=self.speaker.reply_chars,
            prompts=self.speaker.prompts,
        )

    async def _ask(
        self, claim: CheckableClaim, messages: Messages[object], parse: Callable[[str, bool], T], *, step: int = 0
    ) -> RoleReply[T]:
        # Without progress, so that calls that the verdict waits for go first at the server.
        return await self.speaker.say(Role.EXPERT, messages, parse, claim=claim.number, step=step)  # type: ignore[arg-type]
