"""The Docket service: reads, lists, exports and reviews trials over gRPC."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from court.errors import BadRequest, CourtError, NotLoaded
from court.events import ReviewOutcome, ReviewWithdrawn, VerdictReviewed
from court.record import TrialRecord, TrialState
from court.verdict import Label
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import NotAllowed, Scope, check_in_force, current
from serving.docket.errors import NotDecided, TrialUnknown
from serving.docket.open import Docket
from serving.docket.ports import TrialReader
from serving.docket.review.corrections import name_of
from serving.docket.store.bodies import event_in
from serving.docket.store.listing import TrialFilter
from serving.docket.store.requests import Lease, RequestName
from serving.docket.store.reviews import REVIEW_KINDS
from serving.export.notice import language_of, write_notice
from serving.export.notice_links import NoticeLinks
from serving.export.tables import Selection
from serving.judging.executor import EventFeed, TrialExecutor
from serving.rpc.calls import Budget, Service, changing
from serving.rpc.convert import MOST_WHY, found_to_be, in_force_of, number, required, signed, within
from serving.rpc.listings import (
    cursor_of,
    line_of,
    page_tokens,
    sealed,
    summary_of,
    token_of,
    trial_of,
    unsealed,
    which_of,
)
from serving.rpc.watch import watch_reviews
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from serving.docket.review.corrections import Corrections
    from serving.rpc.flow_control import ReceiveBudget

_SERVICE = wire.DESCRIPTOR.services_by_name["Docket"]

_PAGE, _MOST_A_PAGE = 50, 1000
_MOST_ID, _MOST_CLAUSE, _MOST_CONTENT = 200, 200, 256
_LATE_S = 2.0
"""Seconds after a review within which another server may still give the answer of before."""

_log = logging.getLogger("memecourt.service")

_OUTCOMES = {wire.ReviewOutcome.Value(f"REVIEW_OUTCOME_{outcome}"): outcome for outcome in ReviewOutcome}


class DocketService(Service[Docket]):
    """Serves ``memecourt.v1.Docket``. Until :meth:`open` has been called it answers UNAVAILABLE.

    A caller that is limited to some namespaces sees only their trials; all others look as if they did not exist.
    """

    def __init__(self, telemetry: Telemetry = SILENT, *, memory: ReceiveBudget) -> None:
        super().__init__(_SERVICE, memory)
        self._telemetry = telemetry
        self._on_change: Callable[[], None] = _ignore
        self._rulings: Corrections | None = None
        self._links: NoticeLinks | None = None
        self._hub = EventFeed()

    def open(
        self,
        executor: TrialExecutor,
        on_change: Callable[[], None] | None = None,
        corrections: Corrections | None = None,
        links: NoticeLinks | None = None,
    ) -> None:
        """Answers calls from now on.

        Args:
            on_change: Called after each review or appeal, before its author gets a response, so that the next request
                follows it.
        """
        self._links = links
        self._on_change = on_change or _ignore
        self._rulings = corrections
        self._begin(executor.docket)

    def close(self) -> None:
        """Refuses new calls; running ones continue, except that subscriptions to reviews end."""
        super().close()
        self._hub.close()

    async def get_trial(self, request: wire.GetTrialRequest, _: Budget) -> wire.GetTrialResponse:
        """Returns one trial with all of its events."""
        with self._call() as docket:
            return wire.GetTrialResponse(trial=trial_of(await _visible_record(docket.trials, request.trial_id)))

    async def list_trials(self, request: wire.ListTrialsRequest, _: Budget) -> wire.ListTrialsResponse:
        """Returns a page of trials, the most recently opened first.

        Each page continues after the last trial of the previous one, so that trials opened in the meantime neither
        repeat nor hide any.
        """
        with self._call() as docket:
            size = number(request.page_size, _PAGE, _MOST_A_PAGE, "page_size")
            which = which_of(request.filter)
            after = cursor_of(within(request.page_token, 1000, "page_token"), which)
            # One more than fits shows whether there is another page.
            lines = await docket.index.list(limit=size + 1, after=after, which=which)
            page = lines[:size]
            more = len(lines) > size
            return wire.ListTrialsResponse(
                trials=[summary_of(line) for line in page],
                next_page_token=token_of((page[-1].opened_at, page[-1].trial_id), which) if more else "",
            )

    async def export_trials(
        self, request: wire.ExportTrialsRequest, _: Budget
    ) -> AsyncGenerator[wire.ExportTrialsResponse, None]:
        """Streams all trials that match a filter and were opened before the call, the oldest first.

        The next trial is read only once the caller has taken the previous one. Each trial is in its state at that
        moment, including verdicts and reviews given since the call began.
        """
        with self._call() as docket:
            which = which_of(request.filter)
            # The end is fixed when the call begins: trials may come in faster than they are exported.
            for newest in await docket.index.list(limit=1, which=which):
                which = replace(which, opened_until=newest.opened_at + timedelta(microseconds=1))
                async for record in Selection(docket.index, docket.trials, which).records():
                    # A long export ends once its token is revoked (GR-1).
                    check_in_force()
                    yield wire.ExportTrialsResponse(trial=trial_of(record))

    async def review_verdict(self, request: wire.ReviewVerdictRequest, _: Budget) -> wire.ReviewVerdictResponse:
        """Upholds or overrules a verdict."""
        with self._call() as docket:
            outcome = _OUTCOMES.get(request.outcome)
            if outcome is None:
                raise BadRequest(
                    "outcome is required: REVIEW_OUTCOME_UPHELD or REVIEW_OUTCOME_OVERRULED.",
                    reason="FIELD_MISSING",
                    field="outcome",
                )
            reason = required(request.reason, MOST_WHY, "reason")
            clause = within(request.clause, _MOST_CLAUSE, "clause")
            reviewer = signed(request.reviewer, "reviewer")
            if request.precedent:
                self._require_precedents(outcome)
            record = await _visible_record(docket.trials, request.trial_id)
            # A verdict never changes, and the docket itself prevents conflicting reviews.
            label = _label(request, outcome, record)
            try:
                with changing():
                    event = await docket.reviews.review(
                        record.trial_id,
                        outcome=outcome,
                        label=label,
                        reason=reason,
                        clause=clause,
                        reviewer=reviewer,
                        at=datetime.now(UTC),
                        precedent=request.precedent,
                    )
            finally:
                # Even if the caller has disconnected: the review may have been stored anyway.
                self._on_change()
            self._publish_review(event)
            # The review is stored: a caller told to retry would review twice.
            with changing():
                now = await docket.trials.record(record.trial_id)
            # Last: the review stands whatever the library does, and subscribers already have it.
            failure = await self._follow(now, event, chosen=request.precedent)
            return wire.ReviewVerdictResponse(
                summary=summary_of(line_of(now)),
                precedent_id=name_of(record.trial_id) if request.precedent and not failure else "",
                precedent_failure=failure,
            )

    async def open_appeal(self, request: wire.OpenAppealRequest, _: Budget) -> wire.OpenAppealResponse:
        """Opens an appeal against a verdict."""
        with self._call() as docket:
            statement = required(request.statement, MOST_WHY, "statement")
            reference = within(request.reference, _MOST_ID, "reference")
            by = signed(request.by, "by")
            record = await _contested(docket, request)
            try:
                with changing():
                    event = await docket.reviews.open_appeal(
                        record.trial_id, by=by, statement=statement, reference=reference, at=datetime.now(UTC)
                    )
            finally:
                self._on_change()
            opened = wire.OpenAppealResponse(trial_id=event.trial_id, seq=event.seq)
            opened.opened_at.FromDatetime(event.at)
            return opened

    async def get_notice(self, request: wire.GetNoticeRequest, _: Budget) -> wire.GetNoticeResponse:
        """Returns the notice on a decided trial."""
        with self._call() as docket:
            record = await _visible_record(docket.trials, request.trial_id)
            language = language_of(record, within(request.language, _MOST_ID, "language"))
            link = await self._links.link_to(record, language) if self._links and record.verdict else None
            text = write_notice(record, language, link)
            response = wire.GetNoticeResponse(text=text, language=language, link=link.address if link else "")
            if link is not None:
                response.link_expires_at.FromDatetime(link.until)
            return response

    async def open_link(self, token: str) -> tuple[TrialRecord, str] | None:
        """Returns the record and the language that the link of a notice opens; None if it opens nothing."""
        with self._call():
            return await self._links.opened(token) if self._links else None

    async def object_to(self, record: TrialRecord, statement: str) -> bool:
        """Opens the appeal of a link; False if it was used meanwhile."""
        with self._call():
            assert self._links is not None
            try:
                with changing():
                    return await self._links.object_to(record, statement)
            finally:
                self._on_change()

    def reviewed(self, event: VerdictReviewed) -> None:
        """Handles a review that this process stored without a call: in its own console."""
        self._on_change()
        self._publish_review(event)

    def withdrawn(self) -> None:
        """Handles a withdrawal, as :meth:`reviewed`."""
        self._on_change()
        self._hub.tell_review()

    def _publish_review(self, event: VerdictReviewed) -> None:
        self._hub.tell_review()
        self._telemetry.metrics.count("reviews", event.outcome)

    def _require_precedents(self, outcome: ReviewOutcome) -> None:
        """Refuses a review that may not make a precedent, before it is stored."""
        if outcome is not ReviewOutcome.OVERRULED:
            raise BadRequest(
                "Only a verdict that is overruled becomes a precedent. Leave precedent out.",
                reason="NOT_OVERRULED",
                field="precedent",
            )
        if Scope.ADMIN not in current().scopes:
            raise NotAllowed(
                f"This token has not the scope {Scope.ADMIN}, which changes the library. Leave precedent out, or ask "
                "with another token.",
                reason="SCOPE_MISSING",
                field="precedent",
            )
        if self._rulings is None or not self._rulings.wanted(chosen=True):
            raise NotLoaded("This server makes no precedents of overrulings. Leave precedent out.", field="precedent")

    async def _follow(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> str:
        """Updates the library after a review, which stands even if that fails; returns the reason of a failure."""
        if self._rulings is None:
            return ""
        try:
            await self._rulings.follow(record, review, chosen=chosen)
        except CourtError as error:
            _log.error("precedent of trial=%s not changed reason=%s", record.trial_id, error.reason)
            return error.reason
        return ""

    async def watch_reviews(
        self, request: wire.WatchReviewsRequest, _: Budget
    ) -> AsyncGenerator[wire.WatchReviewsResponse, None]:
        """Streams reviews as they are stored, by any server."""
        with self._call() as docket:
            async for response in watch_reviews(request, docket.trials, docket.log, self._hub):
                yield response

    async def list_changes(self, request: wire.ListChangesRequest, _: Budget) -> wire.ListChangesResponse:
        """Returns a page of the requests that were given a verdict on a reviewed content before the review."""
        with self._call() as docket:
            size = number(request.page_size, _PAGE, _MOST_A_PAGE, "page_size")
            listing, after = ["changes", request.entry], None
            if token := within(request.page_token, 1000, "page_token"):
                with page_tokens():
                    # Anybody can make a token: encoded, so that half a character is refused here.
                    after = RequestName(*(str(each).encode().decode() for each in unsealed(token, listing)))
            review, record = await _review_in(docket, request.entry)
            leases = await docket.leases.answered(
                record.content,
                review.at + timedelta(seconds=_LATE_S),
                limit=size + 1,
                after=after,
                namespaces=current().namespaces,
            )
            page = leases[:size]
            more = [page[-1].name.namespace, page[-1].name.request_id] if len(leases) > size else []
            found = record.in_force
            return wire.ListChangesResponse(
                requests=[_answered(lease) for lease in page],
                next_page_token=sealed(more, listing) if more else "",
                in_force=in_force_of(found) if found else None,
            )


def _ignore() -> None:
    """Default for ``on_change`` when nothing is judged here."""


async def _visible_record(trials: TrialReader, trial_id: str) -> TrialRecord:
    """Returns the record of a trial that the caller may see.

    Raises:
        TrialUnknown: The trial does not exist, or the caller may not see it: callers can't tell the two apart.
    """
    try:
        record = await trials.record(required(trial_id, _MOST_ID, "trial_id"))
        if current().sees(record.opened.meme.namespace):
            return record
    except TrialUnknown:
        pass
    raise TrialUnknown("There is no trial of that id. ListTrials names those that there are.", field="trial_id")


async def _review_in(docket: Docket, number: int) -> tuple[VerdictReviewed | ReviewWithdrawn, TrialRecord]:
    """Returns the review or withdrawal in an entry of the log that the caller may see, and its trial.

    Raises:
        TrialUnknown: There is none, it was erased, or the caller may not see it: callers can't tell these apart.
    """
    entries = await docket.log.entries(number, 1, REVIEW_KINDS) if number < await docket.log.size() else ()
    for entry in entries:
        if entry.number == number and entry.body is not None:
            with suppress(TrialUnknown, ValueError):
                event = event_in(entry.body, {})
                if isinstance(event, VerdictReviewed | ReviewWithdrawn):
                    return event, await _visible_record(docket.trials, entry.trial_id)
    raise TrialUnknown(
        "There is no review in that entry of the log. WatchReviews names those that there are.", field="entry"
    )


def _answered(lease: Lease) -> wire.AnsweredRequest:
    content = wire.Content(namespace=lease.name.namespace, id=lease.content_id)
    return wire.AnsweredRequest(request_id=lease.name.request_id, content=content)


async def _contested(docket: Docket, request: wire.OpenAppealRequest) -> TrialRecord:
    """Returns the record of the trial that an appeal is against."""
    if request.WhichOneof("verdict") != "content":
        return await _visible_record(docket.trials, request.trial_id)
    content_id = required(request.content.id, _MOST_CONTENT, "content.id")
    namespace = request.content.namespace
    # For a namespace that the caller may not see, the answer is that there is no such content: it reveals nothing.
    if current().sees(namespace):
        which = TrialFilter(
            states=frozenset({TrialState.DECIDED}), namespace=namespace, content_id=content_id, erased=False
        )
        # The newest first: its verdict is the one in force for the content.
        for line in await docket.index.list(limit=1, which=which):
            return await _visible_record(docket.trials, line.trial_id)
    raise TrialUnknown(
        "No trial of that content has a verdict. Where it was given that of an earlier trial, name its verdict_id.",
        field="content",
    )


def _label(request: wire.ReviewVerdictRequest, outcome: ReviewOutcome, record: TrialRecord) -> Label:
    """Returns the label that the review leaves in force.

    Raises:
        BadRequest: The label contradicts the outcome.
    """
    verdict = record.verdict
    if verdict is None:
        raise NotDecided("This trial has no verdict that could be reviewed.")
    if outcome is ReviewOutcome.UPHELD:
        if request.label not in (wire.LABEL_UNSPECIFIED, wire.Label.Value(f"LABEL_{verdict.label}")):
            raise BadRequest(
                f"To uphold the verdict is to leave its label, {verdict.label}. Leave the label out, or overrule it.",
                reason="LABEL_CONTRADICTS",
                field="label",
            )
        return verdict.label
    label = found_to_be(request.label)
    if label is verdict.label:
        raise BadRequest(
            f"The verdict is {verdict.label} already. Uphold it, or overrule it with the other label.",
            reason="LABEL_CONTRADICTS",
            field="label",
        )
    return label
