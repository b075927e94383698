"""The records of trials over gRPC: read, listed, exported, and reviewed by people."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc

from court.errors import BadRequest, CourtError
from court.events import ReviewOutcome, VerdictReviewed
from court.record import TrialRecord, TrialState
from court.verdict import Label
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_in_force, current
from serving.docket.open import Docket
from serving.docket.ports import NotDecided, TrialErased, TrialFilter, TrialReader, TrialUnknown
from serving.rpc.calls import Session, changing, streaming, unary
from serving.rpc.convert import MOST_WHY, found_to_be, number, required, signed, within
from serving.rpc.listings import line_of, place_of, summary_of, token_of, trial_of, which_of
from serving.rpc.watch import watch_reviews
from serving.runner.executor import TrialExecutor
from serving.runner.feed import EventFeed
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from serving.docket.review.corrections import Corrections
    from serving.rpc.flow_control import ReceiveBudget
    from serving.service_call import ServiceCall

SERVICE = wire.DESCRIPTOR.services_by_name["Docket"].full_name

_PAGE, _MOST_A_PAGE = 50, 1000
_EXPORT_PAGE = 100
"""Trials whose ids are held at once while they are exported; of their records, one."""
_MOST_ID, _MOST_CLAUSE, _MOST_CONTENT = 200, 200, 256

_log = logging.getLogger("memecourt.service")

_OUTCOMES = {wire.ReviewOutcome.Value(f"REVIEW_OUTCOME_{outcome}"): outcome for outcome in ReviewOutcome}


class DocketService:
    """Serves ``memecourt.v1.Docket``. Until :meth:`open` has been called it answers UNAVAILABLE.

    A caller that is kept to some namespaces sees their trials only: any other is, to it, not there.
    """

    def __init__(self, telemetry: Telemetry = SILENT, *, memory: ReceiveBudget) -> None:
        """Answers nothing yet.

        Args:
            telemetry: Is told of reviews.
            memory: Memory budget that is waited for before a request is read.
        """
        self._session: Session[Docket] = Session()
        self._telemetry = telemetry
        self._memory = memory
        self._overruled: Callable[[str], None] = _ignore
        self._rulings: Corrections | None = None
        self._hub = EventFeed()

    def open(
        self,
        house: TrialExecutor,
        overruled: Callable[[str], None] | None = None,
        rulings: Corrections | None = None,
    ) -> None:
        """From now on, calls are answered.

        Args:
            house: Executor whose docket is served.
            overruled: Is told the id of a trial that was overruled, before its reviewer is: by whoever gives verdicts
                again, that one must not be given any more.
            rulings: Brings the library of precedents in line with reviews; None where nothing does.
        """
        self._overruled = overruled or _ignore
        self._rulings = rulings
        self._session.open(house.docket)

    def close(self) -> None:
        """From now on, calls are turned away; those being answered go on, but who watches reviews is sent away."""
        self._session.close()
        self._hub.close()

    async def empty(self, seconds: float) -> None:
        """Waits until no call is being answered, at most so many seconds."""
        await self._session.empty(seconds)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler for a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetTrial": unary(wire.GetTrialRequest, self.get_trial, self._memory),
                "ListTrials": unary(wire.ListTrialsRequest, self.list_trials, self._memory),
                "ExportTrials": streaming(wire.ExportTrialsRequest, self.export_trials, self._memory),
                "ReviewVerdict": unary(wire.ReviewVerdictRequest, self.review_verdict, self._memory),
                "OpenAppeal": unary(wire.OpenAppealRequest, self.open_appeal, self._memory),
                "WatchReviews": streaming(wire.WatchReviewsRequest, self.watch_reviews, self._memory),
            },
        )

    async def get_trial(self, request: wire.GetTrialRequest, _: ServiceCall) -> wire.GetTrialResponse:
        """One trial with all of its events."""
        with self._session.call() as docket:
            return wire.GetTrialResponse(trial=trial_of(await _visible_record(docket.trials, request.trial_id)))

    async def list_trials(self, request: wire.ListTrialsRequest, _: ServiceCall) -> wire.ListTrialsResponse:
        """Trials, the last opened first, page by page.

        A page goes on behind the last trial of the one before, so that trials which are opened meanwhile, before it in
        this order, neither push one onto two pages nor let one fall between them.
        """
        with self._session.call() as docket:
            size = number(request.page_size, _PAGE, _MOST_A_PAGE, "page_size")
            which = which_of(request.filter)
            after = place_of(within(request.page_token, 1000, "page_token"), which)
            # One more than fits says whether there is another page.
            lines = await docket.index.list(limit=size + 1, after=after, which=which)
            page = lines[:size]
            more = len(lines) > size
            return wire.ListTrialsResponse(
                trials=[summary_of(line) for line in page],
                next_page_token=token_of((page[-1].opened_at, page[-1].trial_id), which) if more else "",
            )

    async def export_trials(
        self, request: wire.ExportTrialsRequest, _: ServiceCall
    ) -> AsyncGenerator[wire.ExportTrialsResponse, None]:
        """Every trial that a filter lets through, the first opened first; those opened by the time of the call.

        What is read next waits until the caller has taken what was read before. Each trial is as it is when its turn
        comes: a verdict or a review that was given since the call began is in it.
        """
        with self._session.call() as docket:
            which = which_of(request.filter)
            # The end is fixed when the call begins.
            newest = await docket.index.list(limit=1, which=which)
            after = None
            while newest:
                lines = await docket.index.list(limit=_EXPORT_PAGE, after=after, which=which, oldest_first=True)
                for line in lines:
                    # Where trials come in faster than they go out, there would be no end.
                    if line.opened_at > newest[0].opened_at:
                        return
                    try:
                        record = await docket.trials.record(line.trial_id)
                    except TrialErased:  # before it was listed, or since
                        continue
                    # A long export ends once its token is taken out (GR-1).
                    check_in_force()
                    yield wire.ExportTrialsResponse(trial=trial_of(record))
                if len(lines) < _EXPORT_PAGE:
                    return
                after = (lines[-1].opened_at, lines[-1].trial_id)

    async def review_verdict(self, request: wire.ReviewVerdictRequest, _: ServiceCall) -> wire.ReviewVerdictResponse:
        """Upholds or overrules a verdict."""
        with self._session.call() as docket:
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
            record = await _visible_record(docket.trials, request.trial_id)
            # Once a verdict is given it stays; the docket itself sees to it that reviews don't get in each other's way.
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
                    )
            finally:
                # Also where the caller has left meanwhile: the review may have been kept all the same.
                if outcome is ReviewOutcome.OVERRULED:
                    self._overruled(record.trial_id)
            self._publish_review(event)
            # The review is stored by now: a caller that was told to come again would review twice.
            with changing():
                now = await docket.trials.record(record.trial_id)
            # Last: the review stands whatever the library does, and watchers have been told of it already.
            await self._follow(now, event)
            return wire.ReviewVerdictResponse(summary=summary_of(line_of(now)))

    async def open_appeal(self, request: wire.OpenAppealRequest, _: ServiceCall) -> wire.OpenAppealResponse:
        """Opens an appeal against a verdict."""
        with self._session.call() as docket:
            statement = required(request.statement, MOST_WHY, "statement")
            reference = within(request.reference, _MOST_ID, "reference")
            by = signed(request.by, "by")
            record = await _contested(docket, request)
            with changing():
                event = await docket.reviews.open_appeal(
                    record.trial_id, by=by, statement=statement, reference=reference, at=datetime.now(UTC)
                )
            opened = wire.OpenAppealResponse(trial_id=event.trial_id, seq=event.seq)
            opened.opened_at.FromDatetime(event.at)
            return opened

    def reviewed(self, event: VerdictReviewed) -> None:
        """A review was kept in this process by another way than a call: in the console that is served beside."""
        if event.outcome is ReviewOutcome.OVERRULED:
            self._overruled(event.trial_id)
        self._publish_review(event)

    def _publish_review(self, event: VerdictReviewed) -> None:
        self._hub.tell_review()
        self._telemetry.reviewed(event.outcome)

    async def _follow(self, record: TrialRecord, review: VerdictReviewed) -> None:
        """Brings the library in line with a review. Where that fails the review stands, and the log says so."""
        if self._rulings is None:
            return
        try:
            await self._rulings.follow(record, review, chosen=False)
        except CourtError as error:
            _log.error("precedent of trial=%s not changed reason=%s", record.trial_id, error.reason)

    async def watch_reviews(
        self, request: wire.WatchReviewsRequest, _: ServiceCall
    ) -> AsyncGenerator[wire.WatchReviewsResponse, None]:
        """Reviews as they are kept, at whichever server."""
        with self._session.call() as docket:
            async for response in watch_reviews(request, docket.trials, docket.log, self._hub):
                yield response


def _ignore(_: str) -> None:
    """Is told of what was overruled where nobody gives verdicts again."""


async def _visible_record(trials: TrialReader, trial_id: str) -> TrialRecord:
    """The record of a trial that the caller may see.

    Raises:
        BadRequest: No id is given.
        TrialUnknown: There is none of that id, or it is not the caller's business: the two can't be told apart.
    """
    try:
        record = await trials.record(required(trial_id, _MOST_ID, "trial_id"))
        if current().sees(record.opened.meme.namespace):
            return record
    except TrialUnknown:
        pass
    raise TrialUnknown("There is no trial of that id. ListTrials names those that there are.", field="trial_id")


async def _contested(docket: Docket, request: wire.OpenAppealRequest) -> TrialRecord:
    """The record of the verdict that an appeal is against."""
    if request.WhichOneof("verdict") != "content":
        return await _visible_record(docket.trials, request.trial_id)
    content_id = required(request.content.id, _MOST_CONTENT, "content.id")
    namespace = request.content.namespace
    # A namespace that is not the caller's is answered as one without such content: nobody learns what others have.
    if current().sees(namespace):
        which = TrialFilter(
            states=frozenset({TrialState.DECIDED}), namespace=namespace, content_id=content_id, erased=False
        )
        # The newest first: the verdict that holds for the content now.
        for line in await docket.index.list(limit=1, which=which):
            return await _visible_record(docket.trials, line.trial_id)
    raise TrialUnknown(
        "No trial of that content has a verdict. Where it was given that of an earlier trial, name its verdict_id.",
        field="content",
    )


def _label(request: wire.ReviewVerdictRequest, outcome: ReviewOutcome, record: TrialRecord) -> Label:
    """The label that holds when the review does.

    Raises:
        NotDecided: There is no verdict.
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
