"""Subscriptions to a trial's events or to reviews: in order and without gaps, whichever server stores them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from court.errors import BadRequest
from court.events import AnyEvent, ReviewOutcome, ReviewWithdrawn, TrialOpened, TrialState, VerdictReviewed
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import Scope, check_in_force, check_namespace, current
from serving.docket.errors import DocketError, TrialUnknown
from serving.docket.log.entries import Entry
from serving.docket.ports import TrialReader
from serving.docket.store.bodies import event_in
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.requests import RequestName
from serving.docket.store.reviews import REVIEW_KINDS
from serving.errors import closing
from serving.judging.executor import POLL_S, EventFeed
from serving.judging.judge import TrialRunner
from serving.rpc import listings
from serving.rpc.convert import within

_log = logging.getLogger("memecourt.service")

_LONGEST_ID = 128
_PAGE_SIZE = 100
"""Log entries that are read at once."""


async def _wait_for_more(woken: asyncio.Event, feed: EventFeed) -> None:
    """Waits until there may be more events or something else to check; polls while the court is closing."""
    if not feed.closed:
        await woken.wait()
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await woken.wait()


async def watch_trial(
    request: wire.WatchTrialRequest, *, trials: TrialReader, log: TransparencyLog, runner: TrialRunner, feed: EventFeed
) -> AsyncGenerator[wire.WatchTrialResponse, None]:
    """Streams the events of a trial from a sequence number on, including future ones, until the trial has ended.

    Events are always read from the docket, from the caller's position on: the feed only signals when to read. So no
    event is repeated or skipped, slow callers cost no memory, and it does not matter which server runs the trial.

    Raises:
        BadRequest: No trial is named, or the number is negative.
        NotAllowed: The caller may not see the named request.
        TrialUnknown: The trial does not exist (yet), or the caller may not see it.
        Unauthenticated, Unavailable: The token is not what it was; as :func:`check_in_force`.
        Unavailable: The court is closing, and no trial is running here any more.
    """
    if request.from_seq < 0:
        raise BadRequest("from_seq counts from 0.", reason="OUT_OF_RANGE", field="from_seq")
    trial_id = await trial_named(request, runner)
    with feed.watching(trial_id, log) as woken:
        # Always from the first event, which says whose trial it is and has to be checked.
        seq, has_ended = 0, False
        while True:
            # Before reading: events stored from now on wake this again, and trials that no longer run have stored their
            # end.
            woken.clear()
            is_final = feed.closed and not runner.admission.running
            check_in_force()
            for event in await _events(trials, trial_id, seq):
                if isinstance(event, TrialOpened) and not current().sees(event.meme.namespace):
                    raise unknown_trial()
                # A failed trial may have been resumed: only its last end counts.
                has_ended = has_ended if event.state is None else event.state is not TrialState.OPEN
                seq = event.seq + 1
                # Earlier events were read only for the check.
                if event.seq >= request.from_seq and (not event.for_reviewers or Scope.REVIEW in current().scopes):
                    yield wire.WatchTrialResponse(event=listings.event_of(event))
                    check_in_force()  # the caller may have taken long to receive it
            if has_ended:
                return
            if is_final:
                raise closing()
            await _wait_for_more(woken, feed)


async def _events(trials: TrialReader, trial_id: str, seq: int) -> Sequence[AnyEvent]:
    try:
        return await trials.events(trial_id, seq)
    except TrialUnknown:
        if current().namespaces is None:
            raise
        # The same error as for a trial of somebody else, so that nobody can tell whether it was erased or never
        # existed.
        raise unknown_trial() from None


async def watch_reviews(
    request: wire.WatchReviewsRequest, trials: TrialReader, log: TransparencyLog, feed: EventFeed
) -> AsyncGenerator[wire.WatchReviewsResponse, None]:
    """Streams reviews from a log entry on, including future ones, until the court closes.

    As with trials, reviews are always read from the docket; the feed only signals when to read.

    Raises:
        BadRequest: The log is shorter than the caller's position in it.
        Unauthenticated, Unavailable: The token is not what it was; as :func:`check_in_force`.
        Unavailable: The court closes.
    """
    size = await log.size()
    number = request.from_entry if request.HasField("from_entry") else size
    if number > size:
        raise BadRequest(
            f"The log ends before entry {number}. What told of that entry was another docket, or this one has lost its "
            "end: look into that, then ask from an entry that there is.",
            reason="OUT_OF_RANGE",
            field="from_entry",
        )
    # Sent at once, so that a caller who is disconnected before the first review knows where to resume.
    yield wire.WatchReviewsResponse(next_entry=number)
    with feed.watching_reviews(log) as woken:
        while True:
            woken.clear()
            # Before the log is read: reviews stored before the court closed are still sent.
            closed = feed.closed
            check_in_force()
            page = await log.entries(number, _PAGE_SIZE, REVIEW_KINDS)
            for entry in page:
                # Also for entries that are not sent: the position in the log moves past them.
                number = entry.number + 1
                reviewed = await _reviewed(trials, entry, overruled_only=request.overruled_only)
                if reviewed is not None:
                    yield wire.WatchReviewsResponse(next_entry=number, reviewed=reviewed)
                    check_in_force()  # the caller may have taken long to receive it
            # Tells how far the log was read, so that a caller who reconnects does not go through the same entries
            # again.
            if page and reviewed is None:
                yield wire.WatchReviewsResponse(next_entry=number)
            # There may be more already, and entries that are already stored wake nobody.
            if len(page) == _PAGE_SIZE:
                continue
            if closed:
                raise closing()
            await _wait_for_more(woken, feed)


async def _reviewed(trials: TrialReader, entry: Entry, *, overruled_only: bool) -> wire.ReviewedVerdict | None:
    """Reads the review in a log entry; None if it is filtered out, not visible to the caller, or erased."""
    if entry.body is None:
        return None
    try:
        event = event_in(entry.body, {})
        record = await trials.record(entry.trial_id)
        withdrawn = isinstance(event, ReviewWithdrawn)
        review = record.events[event.of] if isinstance(event, ReviewWithdrawn) else event
        if not isinstance(review, VerdictReviewed):
            raise DocketError("What stands in the entry is no review.")
        if overruled_only and review.outcome is not ReviewOutcome.OVERRULED:
            return None
    except TrialUnknown:
        return None
    except (ValueError, IndexError, DocketError):
        # Somebody altered it, which `memecourt docket verify` reports; later reviews are still sent.
        _log.error("entry %d or its trial can't be read, and the review in it is not told", entry.number)
        return None
    if not current().sees(record.opened.meme.namespace) or record.verdict is None:
        return None
    return listings.reviewed_of(record, review, entry.number, withdrawn=withdrawn)


async def trial_named(request: wire.WatchTrialRequest | wire.GetVerdictRequest, runner: TrialRunner) -> str:
    """Returns the id of the trial that a request names.

    Raises:
        BadRequest: No trial is named.
        NotAllowed: The caller may not see the named request.
        TrialUnknown: No trial was started for that request.
    """
    if request.WhichOneof("trial") == "trial_id":
        return within(request.trial_id, _LONGEST_ID, "trial_id")
    if not request.request.request_id:
        raise BadRequest(
            "Name the trial by its id, or by the request that it is held for.", reason="FIELD_MISSING", field="trial"
        )
    namespace = within(request.request.namespace, _LONGEST_ID, "request.namespace")
    # Before the lookup, so that the answer does not reveal whether there is such a request.
    check_namespace(namespace, "request.namespace")
    name = RequestName(namespace, within(request.request.request_id, _LONGEST_ID, "request.request_id"))
    trial_id = await runner.trial_of(name)
    if trial_id is None:
        raise unknown_trial()
    return trial_id


def unknown_trial() -> TrialUnknown:
    """Builds the error for a trial that does not exist or is not visible; callers can't tell the two apart."""
    return TrialUnknown("There is no such trial, or it has not begun yet.")
