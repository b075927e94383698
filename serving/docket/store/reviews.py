"""Store of reviews, appeals, and records of pictures shown and precedents changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from sqlalchemy import Connection, func, select

from court.errors import BadRequest, CourtError
from court.events import AppealOpened, Look, NoteLeft, ReviewOutcome, ReviewWithdrawn, VerdictReviewed
from court.record import TrialState
from court.verdict import Label
from serving.access.callers import SANDBOX
from serving.docket.errors import NotDecided
from serving.docket.log.entries import PictureShown, PrecedentChanged, parse
from serving.docket.store import tables as t
from serving.docket.store.bodies import event_in, unpacked
from serving.docket.store.log_append import EntryDraft, LogAppender, open_appender
from serving.docket.store.tables import erased, unknown
from serving.docket.store.transactions import Batch, Rank, SqlStore
from serving.docket.store.trials import append_events


@dataclass(frozen=True, slots=True)
class AwaitingReview:
    """Counts of verdicts that wait for human review."""

    count: int
    oldest: datetime | None


ReviewEvent = VerdictReviewed | ReviewWithdrawn | NoteLeft | AppealOpened
"""Events by people after a verdict; their sequence numbers are assigned here."""
REVIEW_KINDS = frozenset({"VerdictReviewed", "ReviewWithdrawn"})
"""Kinds of the entries that change what the last review found."""
UNDO: Final = timedelta(minutes=1)
"""Time for which a review from the console can be withdrawn."""
_LATE: Final = timedelta(seconds=5)
"""Time for a withdrawal at the last moment to be stored."""

_AWAITING = select(func.count(), func.min(t.trials.c.opened_at)).where(
    t.trials.c.needs_review, t.trials.c.outcome == "", t.trials.c.namespace != SANDBOX
)
_VIEW = PictureShown.model_fields["kind"].default
_CHANGE = PrecedentChanged.model_fields["kind"].default


class ReviewStore(SqlStore):
    """Appends reviews and access records to the log."""

    async def review(
        self,
        trial_id: str,
        *,
        outcome: ReviewOutcome,
        label: Label,
        reason: str,
        clause: str,
        reviewer: str,
        at: datetime,
        precedent: bool = False,
    ) -> VerdictReviewed:
        """Appends a review to a decided trial.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: The trial has no verdict.
            Unavailable: The review can't be stored now.
        """
        draft = VerdictReviewed(
            trial_id=trial_id,
            seq=0,
            at=at,
            outcome=outcome,
            label=label,
            reason=reason,
            clause=clause,
            reviewer=reviewer,
            precedent=precedent,
        )
        stored = await self._transactions.write(_REVIEW, draft)
        assert isinstance(stored, VerdictReviewed)
        return stored

    async def open_appeal(
        self, trial_id: str, *, by: str, statement: str, reference: str, at: datetime, by_link: bool = False
    ) -> AppealOpened:
        """Appends an appeal to a decided trial; idempotent by ``reference``.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: The trial has no verdict to appeal against.
            Unavailable: The appeal can't be stored now.
        """
        draft = AppealOpened(
            trial_id=trial_id, seq=0, at=at, by=by, statement=statement, reference=reference, by_link=by_link
        )
        stored = await self._transactions.write(_APPEAL, draft)
        assert isinstance(stored, AppealOpened)
        return stored

    async def record_access(
        self, trial_id: str, *, who: str, what: str, at: datetime, kind: Literal["PictureShown"] = "PictureShown"
    ) -> None:
        """Records that somebody views an unblurred picture, before it is shown.

        Raises:
            TrialUnknown: There is none of that id, or its record was erased (TrialErased).
            Unavailable: The access can't be stored now.
        """
        access = PictureShown(kind=kind, trial_id=trial_id, who=who, what=what, at=at)
        await self._transactions.write(_RECORD_ACCESS, access)

    async def views(self, trial_id: str, who: str) -> Mapping[str, datetime]:
        """Returns which parts of a trial a person was shown, by :meth:`record_access`, and when first."""
        entry = t.entries.c
        query = select(entry.body).where(entry.trial_id == trial_id, entry.kind == _VIEW, entry.body.is_not(None))

        def read(connection: Connection) -> Mapping[str, datetime]:
            found = dict[str, datetime]()
            for body in connection.execute(query.order_by(entry.number)).scalars():
                with suppress(ValueError):  # somebody altered the entry
                    view = PictureShown.model_validate(parse(unpacked(bytes(body))))
                    if view.who == who:
                        found.setdefault(view.what, view.at)
            return found

        return await self._transactions.read(read)

    async def record_changes(self, changes: Sequence[PrecedentChanged], *, since: int) -> int:
        """Records changes of one library that are not recorded yet; safe for concurrent servers.

        Args:
            changes: Changes in order, the newest last.
            since: Number of the last change to skip, if none of this library was ever recorded.

        Returns:
            Number of changes that were recorded.
        """
        return await self._transactions.write(_RECORD_CHANGES, (changes, since))

    async def awaiting_review(self) -> AwaitingReview:
        """Counts verdicts that need human review and have none."""

        def read(connection: Connection) -> AwaitingReview:
            count, oldest = connection.execute(_AWAITING).one()
            return AwaitingReview(count, datetime.fromisoformat(oldest) if oldest else None)

        return await self._transactions.read(read)


def settled_at(review: VerdictReviewed) -> datetime:
    """Returns the time from which a review can't be withdrawn, so that webhooks and precedents follow it."""
    return review.at if review.look is Look.UNKNOWN else review.at + UNDO + _LATE


def append_review(connection: Connection, draft: ReviewEvent) -> ReviewEvent | CourtError:
    """Stores a review event in a transaction that has locked the log; returns it with its number."""
    # Concurrent reviews of the same trial wait here.
    query = (
        select(t.trials.c.state, t.trials.c.erased, t.trials.c.namespace)
        .where(t.trials.c.trial_id == draft.trial_id)
        .with_for_update()
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return unknown(draft.trial_id)
    if row.erased:
        return erased(draft.trial_id)
    if row.state != TrialState.DECIDED:
        return NotDecided(
            f"Trial {draft.trial_id} has no verdict that could be reviewed: it is running, was cut off, or failed.",
            field="trial_id",
        )
    if row.namespace == SANDBOX:
        return BadRequest("A try has no reviews and no appeals. Put it on record first.", field="trial_id")
    own = (t.entries.c.trial_id == draft.trial_id, t.IS_EVENT)
    # Nobody else can assign the same number, since the trial's row is locked.
    seq = select(func.max(t.entries.c.seq) + 1).where(*own)
    event = draft.model_copy(update={"seq": connection.execute(seq).scalar_one()})
    append_events(connection, [[event]])
    return event


def _review(connection: Connection, drafts: Sequence[ReviewEvent]) -> Sequence[ReviewEvent | CourtError]:
    open_appender(connection)  # before any trial: the lock order is the log first, then trials
    return [append_review(connection, draft) for draft in drafts]


def _appeal(connection: Connection, drafts: Sequence[AppealOpened]) -> Sequence[ReviewEvent | CourtError]:
    open_appender(connection)  # as above
    return [_same_appeal(connection, draft) or append_review(connection, draft) for draft in drafts]


def _same_appeal(connection: Connection, draft: AppealOpened) -> AppealOpened | None:
    """Returns an earlier appeal with the same reference, or without one with the same text."""
    entry = t.entries.c
    own = (entry.trial_id == draft.trial_id, t.IS_EVENT, entry.kind == draft.kind, entry.body.is_not(None))
    for body in connection.execute(select(entry.body).where(*own).order_by(entry.seq)).scalars():
        before = event_in(unpacked(bytes(body)), {})
        left = {"seq", "at"} | ({"statement"} if draft.reference else set())
        if isinstance(before, AppealOpened) and before.model_dump(exclude=left) == draft.model_dump(exclude=left):
            return before
    return None


def _record_accesses(connection: Connection, accesses: Sequence[PictureShown]) -> Sequence[CourtError | None]:
    log = open_appender(connection)
    named = {access.trial_id for access in accesses}
    # An erasure locks the log first too, so that what is read here stays true until the commit.
    query = select(t.trials.c.trial_id, t.trials.c.erased).where(t.trials.c.trial_id.in_(named))
    there = {trial_id: gone for trial_id, gone in connection.execute(query)}
    log.add([EntryDraft.of(access) for access in accesses if there.get(access.trial_id) is False])
    errors = {trial_id: erased(trial_id) if trial_id in there else unknown(trial_id) for trial_id in named}
    return [None if there.get(access.trial_id) is False else errors[access.trial_id] for access in accesses]


def _record_changes(connection: Connection, changed: Sequence[tuple[Sequence[PrecedentChanged], int]]) -> Sequence[int]:
    log = open_appender(connection)  # nobody else records changes meanwhile
    return [_record_new(connection, log, changes, since) for changes, since in changed]


def _record_new(connection: Connection, log: LogAppender, changes: Sequence[PrecedentChanged], since: int) -> int:
    last = None
    newest = select(t.entries.c.body).where(t.entries.c.kind == _CHANGE).order_by(t.entries.c.number.desc())
    for body in connection.execute(newest.limit(1)).scalars():
        with suppress(ValueError):  # somebody altered the entry
            last = PrecedentChanged.model_validate(parse(unpacked(bytes(body))))
    if last is not None and changes and last.library == changes[-1].library:
        # A rebuilt library counts from 1 again, but its changes are later.
        changes = [each for each in changes if each.number > last.number or each.at > last.at]
    else:
        changes = [each for each in changes if each.number > since]
    log.add([EntryDraft.of(each) for each in changes])
    return len(changes)


_APPEAL = Batch(Rank.REVIEW, _appeal)
_REVIEW = Batch(Rank.REVIEW, _review)
_RECORD_ACCESS = Batch(Rank.ACCESS, _record_accesses)
_RECORD_CHANGES = Batch(Rank.ACCESS, _record_changes)
