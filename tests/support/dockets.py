"""Records and helpers for tests of the docket."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from court.events import AnyEvent, ReviewOutcome, TrialFailed, TrialOpened, TrialResumed, VerdictGiven, VerdictReviewed
from court.record import TrialRecord, TrialState
from court.trial import TrialCase
from court.verdict import Label, Review, ReviewReason, Verdict
from retrieval.library.postgres.address import Address
from serving.docket.audit.audit import Rows
from serving.docket.audit.verify import FromEntries, Report, verify
from serving.docket.log.entries import Entry
from serving.docket.log.notes import VerifierKey
from serving.docket.open import Docket
from serving.docket.store import log_queries
from serving.docket.store.listing import TrialFilter
from tests.support.fakes import RecordingSink, a_meme
from tests.support.playing import run_within
from tests.support.trial import a_court

T = TypeVar("T")

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


_WHOLE = asyncio.run(a_court().run(TrialCase("t", a_meme()), RecordingSink())).events


def events_of(trial_id: str = "t", at: datetime | None = None) -> list[AnyEvent]:
    """Returns the events of a trial that ended in a verdict."""
    return [event.model_copy(update={"trial_id": trial_id, "at": at or event.at}) for event in _WHOLE]


@asynccontextmanager
async def opened_docket(place: Any, **options: Any) -> AsyncIterator[Docket]:
    docket = Docket.open(place, **options)
    try:
        yield docket
    finally:
        await docket.close()


def with_docket(place: Any, work: Callable[[Docket], Awaitable[T]], **options: Any) -> T:
    """Runs work on a docket, and closes it."""
    return run_within(opened_docket(place, **options), work)


async def audited(docket: Docket) -> Report:
    """Returns the report of `memecourt docket verify`, by the docket's own key."""
    return await docket.auditor.audit([VerifierKey.parse(await docket.log.vkey())])


async def audited_without_pictures(docket: Docket) -> Report:
    key = VerifierKey.parse(await docket.log.vkey())
    return await docket.auditor.read(lambda connection: verify(Rows(connection), [key], FromEntries()))


async def append_all(docket: Docket, events: list[AnyEvent]) -> None:
    """Appends events one by one."""
    for event in events:
        await docket.writer.append(event)


async def open_trials(docket: Docket) -> list[str]:
    """Returns the ids of open trials, oldest first: running in some process, or cut off."""
    which = TrialFilter(states=frozenset({TrialState.OPEN}))
    return [line.trial_id for line in await docket.index.list(limit=10_000, which=which, oldest_first=True)]


async def entries_of(docket: Docket, trial_id: str) -> Sequence[Entry]:
    """Returns all entries about a trial, in order."""
    return await docket.auditor.read(lambda connection: log_queries.entries_of(connection, trial_id))


STORES = frozenset(field.name for field in fields(Docket)) - {"auditor", "transactions", "pictures", "rules"}
"""Names of the stores of a docket."""


class Intercepted:
    """A docket that replaces methods of its stores by those of a subclass, or by functions from :meth:`instead`."""

    def __init__(self, docket: Docket) -> None:
        self._docket = docket

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._docket, name)
        return _InterceptedStore(self, found) if name in STORES else found

    def instead(self, method: str) -> Any:
        """Returns the replacement of a store's method; None to keep the method."""
        return getattr(self, method) if hasattr(type(self), method) else None


class _InterceptedStore:
    def __init__(self, docket: Intercepted, store: Any) -> None:
        self._docket, self._store = docket, store

    def __getattr__(self, name: str) -> Any:
        return self._docket.instead(name) or getattr(self._store, name)


async def review_trial(
    docket: Docket,
    trial_id: str,
    outcome: ReviewOutcome = ReviewOutcome.OVERRULED,
    label: Label = Label.NOT_HARMFUL,
    reviewer: str = "Ruth",
) -> VerdictReviewed:
    """Reviews a verdict."""
    return await docket.reviews.review(
        trial_id, outcome=outcome, label=label, reason="satire", clause="3", reviewer=reviewer, at=NOON
    )


def listing_fields(record: TrialRecord) -> dict[str, object]:
    """Returns the fields that a listing must show for a record, derived from its events."""
    review, failed = record.last(VerdictReviewed), record.last(TrialFailed)
    verdict = record.verdict
    return {
        "trial_id": record.trial_id,
        "opened_at": record.opened.at,
        "procedure": record.opened.procedure,
        "namespace": record.opened.meme.namespace,
        "content_id": record.opened.meme.content_id,
        "state": record.state,
        "label": verdict.label if verdict else None,
        "needs_human_review": bool(verdict and verdict.needs_human_review),
        "request_id": record.opened.request_id,
        "review": review,
        "failure_reason": failed.reason if failed and record.state is TrialState.FAILED else "",
    }


def random_records(chance: random.Random, count: int, start: datetime) -> list[list[AnyEvent]]:
    """Returns random trials opened within one day, some at the same moment, with all kinds of ends."""
    whole = events_of()
    opened, verdict_event = whole[0], whole[-1]
    assert isinstance(opened, TrialOpened) and isinstance(verdict_event, VerdictGiven)
    records = []
    for number in range(count):
        at = start + timedelta(minutes=chance.randrange(24 * 60))
        meme = opened.meme.model_copy(
            update={"namespace": chance.choice(["", "north", "so\\uth", "ea\0st"]), "content_id": f"c{number}"}
        )
        events: list[AnyEvent] = [opened.model_copy(update={"meme": meme, "request_id": f"r{number}"})]
        events += whole[1 : chance.randrange(1, len(whole))]
        end = chance.choice(["none", "failed", "failed", "resumed", "verdict", "verdict", "verdict", "verdict"])
        fault = TrialFailed(trial_id="t", seq=0, at=at, step="s", reason="GONE", message="m", retryable=True)
        if end in ("failed", "resumed"):
            events.append(fault)
        if end == "resumed":
            events.append(TrialResumed(trial_id="t", seq=0, at=at, software="test"))
            end = chance.choice(["none", "verdict"])
        if end == "verdict":
            events.append(verdict_event.model_copy(update={"verdict": _verdict(chance, verdict_event.verdict)}))
            for _ in range(chance.choice([0, 0, 1, 2])):
                events.append(
                    VerdictReviewed(
                        trial_id="t",
                        seq=0,
                        at=at,
                        outcome=chance.choice(list(ReviewOutcome)),
                        label=Label.HARMFUL,
                        reason="seen",
                        reviewer="R",
                    )
                )
        common = {"trial_id": f"t{chance.getrandbits(64):016x}", "at": at}
        records.append([event.model_copy(update={**common, "seq": seq}) for seq, event in enumerate(events)])
    return records


def _verdict(chance: random.Random, harmful: Verdict) -> Verdict:
    needs_review = Review(reason=ReviewReason.TEXT_UNSURE, detail="d")
    if chance.random() < 0.3:
        return Verdict(label=Label.UNDECIDED, rationale="r", review=(needs_review,))
    review = (needs_review,) if chance.random() < 0.4 else ()
    if chance.random() < 0.5:
        return harmful.model_copy(update={"review": review})
    strengths = {"harmful": "WEAK", "benign": "STRONG"}
    return Verdict.model_validate({"label": "NOT_HARMFUL", "strengths": strengths, "rationale": "r", "review": review})


def parse_place(text: str) -> Path | Address:
    """Parses a docket's place that was passed to another process as text."""
    return Address(text) if Address.named_by(text) else Path(text)
