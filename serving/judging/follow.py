"""Following the log of a court: a candidate tries each meme that the court has decided, in a docket of its own.

The candidate is another library, prompt set, model or policy. It runs in another process than the court and changes no
answer, queue, webhook or metric there. Its trials refer to those of the court, so that the two can be compared. What is
erased in the court's docket is not tried, and is erased in the candidate's, whose log records it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from sqlalchemy import Connection, select
from typing_extensions import override

from court.deadline import gather_or_cancel
from court.errors import CourtError, Unavailable
from court.events import DocumentWeighed, EvidenceSearched
from court.expert.documents import CLAIM_CHECKED
from court.expert.findings import document_of
from court.expert.witness import WitnessOutOfTime
from court.ports import EvidenceDocument, EvidenceHit, EvidenceSource
from court.record import TrialRecord, TrialState
from serving.docket.errors import TrialErased
from serving.docket.log.entries import Entry, erased_of
from serving.docket.open import Docket
from serving.docket.review.projection import is_sampled
from serving.docket.store import tables as t
from serving.docket.store.bodies import GONE, PART, part_owner
from serving.docket.store.tables import insert_into
from serving.judging.executor import TrialExecutor
from serving.judging.rejudge import Rejudged, RejudgeOutcome, find_record, request_again


class RecordedEvidence(EvidenceSource):
    """Plays back the recorded searches and documents."""

    def __init__(self, record: TrialRecord, *, by_claim: bool = True) -> None:
        """Takes searches and documents of a record.

        Args:
            by_claim: True to give each claim what it was given then; False for claims that may be others.
        """
        self._by_claim = by_claim
        # Reversed, so that of several the first stays: it is the one that the witness went by.
        self._searches = {
            (event.claim if by_claim else 0, event.query): event for event in reversed(record.all(EvidenceSearched))
        }
        self._documents = {
            (event.claim if by_claim else 0, event.document): event for event in reversed(record.all(DocumentWeighed))
        }

    @property
    @override
    def identity(self) -> str:
        return next((search.source_identity for search in self._searches.values()), "recorded")

    @property
    @override
    def sends_elsewhere(self) -> bool:
        # Where nothing was held back there was nothing to be, or the source was here: either way, queries stay as they
        # were.
        return any(search.held_back for search in self._searches.values())

    @override
    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        search = self._searches.get((self._claim, query))
        if search is None:
            raise WitnessOutOfTime("The record has no such search.")
        if search.failure:
            raise Unavailable("The source gave no answer.", reason=search.failure)
        # In the order of the source: the record has them as the model ranked them, which the replay does anew.
        hits = sorted(search.hits, key=lambda hit: hit.rank_given)
        return [
            EvidenceHit(id=hit.id, title=hit.title, source=hit.source, snippet=hit.snippet, date=hit.date)
            for hit in hits
        ]

    @override
    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        read = self._documents.get((self._claim, document_id))
        if read is None:
            raise WitnessOutOfTime("The record has no such document.")
        # Without a text there is no digest: then it could not be read, and failure says why.
        if not read.sha256:
            raise Unavailable("The document could not be read.", reason=read.failure)
        return document_of(read)

    @property
    def _claim(self) -> int:
        return CLAIM_CHECKED.get() if self._by_claim else 0


class EvidenceOnRecord(EvidenceSource):
    """Plays back what a trial's record has of a source, and asks the source only for the rest.

    A document that was erased since is still found, without its words, and can't be read: so the record says why it is
    no evidence.
    """

    def __init__(self, record: TrialRecord, source: EvidenceSource) -> None:
        self._recorded = RecordedEvidence(record, by_claim=False)
        self._source = source
        hits = (hit for search in record.all(EvidenceSearched) for hit in search.hits)
        self._erased = {read.document for read in record.all(DocumentWeighed) if read.text == GONE}
        self._erased |= {hit.id for hit in hits if hit.snippet == GONE}

    @property
    @override
    def identity(self) -> str:
        return self._source.identity

    @property
    @override
    def sends_elsewhere(self) -> bool:
        return self._source.sends_elsewhere

    @override
    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        try:
            found = await self._recorded.search(query, most=most, within_s=within_s)
        except WitnessOutOfTime:
            found = await self._source.search(query, most=most, within_s=within_s)
        # Also of what the source finds now: it need not know of the erasure.
        return [replace(hit, snippet="") if hit.id in self._erased else hit for hit in found]

    @override
    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        if document_id in self._erased:
            raise Unavailable("The document was erased.", reason="DOCUMENT_ERASED")
        try:
            return await self._recorded.read(document_id, within_s=within_s)
        except WitnessOutOfTime:
            return await self._source.read(document_id, within_s=within_s)


# Entries per page: an old docket has many.
_PAGE: Final = 500
# Never change this: with another value, a candidate would try everything again.
_NAMES: Final = uuid.UUID("6f0dbe09-7ee5-4f3d-9e0c-3e5a6f1c7d8b")


def candidate_id(trial_id: str) -> str:
    """Returns the id of the candidate's trial that belongs to a trial of the court."""
    return str(uuid.uuid5(_NAMES, trial_id))


@dataclass(frozen=True, slots=True)
class FollowRules:
    """Rules that select trials of the court.

    Attributes:
        share: Share of the court's verdicts, drawn by the trial's id, so that a larger share is a superset.
    """

    share: float = 1.0
    namespace: str | None = None
    since: datetime | None = None
    at_once: int = 1
    within_s: float = 600.0

    def select(self, record: TrialRecord) -> bool:
        """True if the candidate tries the meme of a trial."""
        opened = record.opened
        return (
            # Trials that rejudged others are no traffic.
            not opened.of_trial
            and (self.namespace is None or opened.meme.namespace == self.namespace)
            and (self.since is None or opened.at >= self.since)
        )


class Follower:
    """Tries the memes of a court's docket with a candidate's executor, in the order of the court's log."""

    def __init__(self, court: Docket, candidate: TrialExecutor, rules: FollowRules) -> None:
        self._court = court
        self._candidate = candidate
        self._rules = rules

    async def follow(self) -> AsyncIterator[Rejudged]:
        """Yields the outcomes of all log entries since the last call, in this or an earlier process.

        A repeated call resumes trials that were cut off. An entry counts as done once its outcome was yielded.

        Raises:
            CourtError: A docket is not available; the next call goes on with the same entry.
        """
        first = await self._next_entry()
        while entries := await self._court.log.entries(first, _PAGE, {"VerdictGiven", "Erased"}):
            for erasure, group in groupby(entries, key=lambda entry: entry.kind == "Erased"):
                some = list(group)
                if erasure:
                    await self._mirror(some)
                    await self._done(some[-1])
                    continue
                chosen = [one for one in some if is_sampled(one.trial_id, self._rules.share, "memecourt follow")]
                for begin in range(0, len(chosen), self._rules.at_once):
                    batch = chosen[begin : begin + self._rules.at_once]
                    for followed in await gather_or_cancel(*(self._try(entry.trial_id) for entry in batch)):
                        if followed is not None:
                            yield followed
                    await self._done(batch[-1])
            await self._done(entries[-1])
            first = entries[-1].number + 1

    async def _try(self, trial_id: str) -> Rejudged | None:
        """Returns the outcome of the candidate's trial; None if the rules leave the court's trial out."""
        try:
            old = await self._court.trials.record(trial_id)
        except TrialErased:
            return Rejudged(trial_id, RejudgeOutcome.ERASED)
        if old.verdict is None or not self._rules.select(old):
            return None
        try:
            return Rejudged.compared(old, await self._judge_once(old))
        except CourtError as error:
            return Rejudged.failed(old, error)
        finally:
            # Whatever became of it: its record has the meme.
            if not await _has_record(self._court, trial_id):
                await self._erase([candidate_id(trial_id)])

    async def _judge_once(self, old: TrialRecord) -> TrialRecord:
        """Runs the candidate's trial, resumes one that was cut off, or returns the record of one that was decided."""
        trial_id, executor = candidate_id(old.trial_id), self._with_evidence_of(old)
        record = await find_record(executor.docket, trial_id)
        if record is not None and record.state is TrialState.DECIDED:
            return record
        if record is not None:
            return await executor.resume(trial_id, within_s=self._rules.within_s, batch=True)
        assert old.text is not None, "there is no verdict without"
        # From the court's docket: the candidate's has no picture yet.
        picture = await replace(executor, docket=self._court).picture_of_trial(old)
        # The text as the court read it, so that only the candidate differs.
        request = request_again(old, picture, old.text.text, old.trial_id)
        result = await executor.run(request, within_s=self._rules.within_s, trial_id=trial_id, batch=True)
        return result.record

    def _with_evidence_of(self, old: TrialRecord) -> TrialExecutor:
        """Returns the executor with the evidence that the court's witness found.

        A search endpoint is queried once per meme: the candidate asks it only for the rest.
        """
        court = self._candidate.court_of(old.opened.meme.namespace)
        source = court.evidence_source
        if source is not None and old.opened.settings.get("evidence_source") == source.identity:
            court = replace(court, evidence_source=EvidenceOnRecord(old, source))
        return replace(self._candidate, court=court, courts={})

    async def _mirror(self, erasures: Sequence[Entry]) -> None:
        """Erases in the candidate's docket what was erased in the court's: trials, precedents and documents."""
        await self._erase(sorted({candidate_id(entry.trial_id) for entry in erasures}))
        precedents = {one for entry in erasures for one in await self._buried_by(entry)}
        if precedents:
            # Also those that the candidate has not quoted: its library may contain them and quote them later.
            why = "It was erased from the court's docket."
            await self._candidate.docket.eraser.erase_precedents(
                precedents, who="rejudge", why=why, at=datetime.now(UTC)
            )

    async def _buried_by(self, entry: Entry) -> set[str]:
        """Returns the ids of precedents and names of documents that an erasure in the court's log covers."""
        assert entry.body is not None, "that of an erasure is never erased"
        if not (count := erased_of(entry.body).buried):
            return set()
        # Their tombstones were logged right before it.
        graves = await self._court.log.entries(entry.number - count, count, {PART})
        return {part_owner(grave.body) for grave in graves if grave.body is not None}

    async def _erase(self, trial_ids: Iterable[str]) -> None:
        docket, why = self._candidate.docket, "The trial whose meme it tried was erased."
        found = [trial_id for trial_id in trial_ids if await _has_record(docket, trial_id)]
        if found:
            await docket.eraser.erase_all(dict.fromkeys(found, ()), who="rejudge", why=why, at=datetime.now(UTC))

    async def _next_entry(self) -> int:
        query = select(t.followed.c.next)
        found = await self._candidate.docket.transactions.read(lambda c: c.execute(query).scalar_one_or_none())
        return int(found or 0)

    async def _done(self, entry: Entry) -> None:
        row = {"only": 1, "next": entry.number + 1}

        def store(connection: Connection) -> None:
            change = insert_into(connection, t.followed).values(row)
            connection.execute(change.on_conflict_do_update(index_elements=["only"], set_=row))

        stored = asyncio.create_task(self._candidate.docket.transactions.write_alone(store))
        try:
            await asyncio.shield(stored)
        except asyncio.CancelledError:
            # Its outcomes were yielded: interrupted here, following would yield them again the next time.
            await stored
            raise


async def _has_record(docket: Docket, trial_id: str) -> bool:
    """True if a docket has a record of a trial; False if there never was one, or it was erased."""
    with suppress(TrialErased):
        return await find_record(docket, trial_id) is not None
    return False
