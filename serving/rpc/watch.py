"""Watching a trial, or reviews: what is kept, as it is kept, in order and without gaps, at whichever server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from court.errors import BadRequest
from court.events import (
    AnyEvent,
    ReviewOutcome,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_in_force, check_namespace, current
from serving.docket.log.entries import Entry
from serving.docket.ports import DocketError, RequestName, TransparencyLog, TrialReader, TrialUnknown
from serving.docket.store.bodies import event_in
from serving.errors import not_in_session
from serving.rpc import listings
from serving.rpc.convert import within
from serving.runner.feed import POLL_S, EventFeed
from serving.runner.runner import TrialRunner

_log = logging.getLogger("memecourt.service")

_LONGEST_ID = 128
_REVIEWS = 100
"""Reviews that are read at once."""


async def _more(woken: asyncio.Event, hub: EventFeed) -> None:
    """Returns when there may be more, or something else to see to; while the court closes, that is now and then."""
    if not hub.closed:
        await woken.wait()
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await woken.wait()


async def watch_trial(
    request: wire.WatchTrialRequest,
    *,
    trials: TrialReader,
    log: TransparencyLog,
    reception: TrialRunner,
    hub: EventFeed,
) -> AsyncGenerator[wire.WatchTrialResponse, None]:
    """The events of a trial from a number on, those to come as they are kept, until the trial has ended.

    What is told is always read from the docket, from where the caller is: the hub only says when to look. So nothing is
    told twice or passed over, a caller that is slow to read costs no memory, and it does not matter whose trial it is.

    Raises:
        BadRequest: No trial is named, or the number is negative.
        NotAllowed: The request that is named is none of the caller's business.
        TrialUnknown: There is no such trial, none yet, or none that is the caller's business.
        Unauthenticated, Unavailable: The token is not what it was; as :func:`check_in_force`.
        Unavailable: The court closes, and no trial is held here any more.
    """
    if request.from_seq < 0:
        raise BadRequest("from_seq counts from 0.", reason="OUT_OF_RANGE", field="from_seq")
    trial_id = await trial_named(request, reception)
    with hub.watching(trial_id, log) as woken:
        # From the first event, whatever the caller asks from: the one that says whose trial it is has to be checked.
        seq, over = 0, False
        while True:
            # Before looking: what is kept from now on wakes again, and what runs no longer has kept its end.
            woken.clear()
            at_an_end = hub.closed and not reception.admission.running
            check_in_force()
            for event in await _events(trials, trial_id, seq):
                if isinstance(event, TrialOpened) and not current().sees(event.meme.namespace):
                    raise unknown_trial()
                # A trial that failed may have been resumed: only the last end counts.
                over = isinstance(event, VerdictGiven | TrialFailed) or (over and not isinstance(event, TrialResumed))
                seq = event.seq + 1
                # Earlier ones were read for their check, and not to be sent.
                if event.seq >= request.from_seq:
                    yield wire.WatchTrialResponse(event=listings.event_of(event))
                    check_in_force()  # it may have taken long to be taken
            if over:
                return
            if at_an_end:
                raise not_in_session()
            await _more(woken, hub)


async def _events(trials: TrialReader, trial_id: str, seq: int) -> Sequence[AnyEvent]:
    try:
        return await trials.events(trial_id, seq)
    except TrialUnknown:
        if current().namespaces is None:
            raise
        # Said like of a trial that is another's: what was erased, or is not there, may be told from that by nobody.
        raise unknown_trial() from None


async def watch_reviews(
    request: wire.WatchReviewsRequest, trials: TrialReader, log: TransparencyLog, hub: EventFeed
) -> AsyncGenerator[wire.WatchReviewsResponse, None]:
    """Reviews from an entry of the log on, those to come as they are kept, until the court closes.

    As with trials, what is told is always read from the docket; the hub only says when to look.

    Raises:
        BadRequest: The log does not go as far as the caller says it did.
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
    # At once: a caller who is cut off before the first review knows where to go on.
    yield wire.WatchReviewsResponse(next_entry=number)
    with hub.watching_reviews(log) as woken:
        while True:
            woken.clear()
            # Before the log is read: what was stored until the court closed is still told.
            closed = hub.closed
            check_in_force()
            page = await log.entries(number, _REVIEWS, {"VerdictReviewed"})
            for entry in page:
                # Also for entries that are not told: the place in the log moves on past them.
                number = entry.number + 1
                reviewed = await _reviewed(trials, entry, overruled_only=request.overruled_only)
                if reviewed is not None:
                    yield wire.WatchReviewsResponse(next_entry=number, reviewed=reviewed)
                    check_in_force()  # it may have taken long to be taken
            # Says how far the log was read, so that a caller who comes back is not made to go through the same entries.
            if page and reviewed is None:
                yield wire.WatchReviewsResponse(next_entry=number)
            # There may be more already, and nothing wakes for what is stored by now.
            if len(page) == _REVIEWS:
                continue
            if closed:
                raise not_in_session()
            await _more(woken, hub)


async def _reviewed(trials: TrialReader, entry: Entry, *, overruled_only: bool) -> wire.ReviewedVerdict | None:
    """The review in an entry; None where it is not asked for, none of the caller's business, or erased."""
    if entry.body is None:
        return None
    try:
        event = event_in(entry.body, {})
        if not isinstance(event, VerdictReviewed):
            raise DocketError("What stands in the entry is no review.")
        if overruled_only and event.outcome is not ReviewOutcome.OVERRULED:
            return None
        record = await trials.record(entry.trial_id)
    except TrialUnknown:
        return None
    except (ValueError, DocketError):
        # Somebody altered it, which `memecourt docket verify` tells of; those after it are told all the same.
        _log.error("entry %d or its trial can't be read, and the review in it is not told", entry.number)
        return None
    if not current().sees(record.opened.meme.namespace) or record.verdict is None:
        return None
    return listings.reviewed_of(record, event)


async def trial_named(request: wire.WatchTrialRequest | wire.GetVerdictRequest, reception: TrialRunner) -> str:
    """The id of the trial that a request names.

    Raises:
        BadRequest: No trial is named.
        NotAllowed: The request that is named is none of the caller's business.
        TrialUnknown: None was begun for that request.
    """
    if request.WhichOneof("trial") == "trial_id":
        return within(request.trial_id, _LONGEST_ID, "trial_id")
    if not request.request.request_id:
        raise BadRequest(
            "Name the trial by its id, or by the request that it is held for.", reason="FIELD_MISSING", field="trial"
        )
    namespace = within(request.request.namespace, _LONGEST_ID, "request.namespace")
    # Before the request is looked up: whether there is one must not show in the answer.
    check_namespace(namespace, "request.namespace")
    name = RequestName(namespace, within(request.request.request_id, _LONGEST_ID, "request.request_id"))
    trial_id = await reception.trial_of(name)
    if trial_id is None:
        raise unknown_trial()
    return trial_id


def unknown_trial() -> TrialUnknown:
    """Builds the error for a trial that is not there, or is not the caller's business: the two can't be told apart."""
    return TrialUnknown("There is no such trial, or it has not begun yet.")
