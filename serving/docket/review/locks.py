"""Case locks: a case belongs to one reviewer at a time, until they decide or the lock expires.

A review is stored in the transaction that releases the case, so that of two concurrent reviews, or of one sent twice,
only one is stored.

A verdict is hidden from a reviewer while its case waits and they have neither seen nor reviewed it. So are verdicts of
other trials of the same meme, since most are equal. The same meme means the same pixels and a text with the same
letters, or for a text without picture the identical text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, delete, select, update

from court.errors import CourtError
from court.events import Look, NoteLeft, ReviewWithdrawn, VerdictReviewed
from court.in_force import standing
from court.record import TrialState
from serving.docket.errors import NotDecided, TrialUnknown
from serving.docket.store import review_tables as t
from serving.docket.store.listing import events_by_people
from serving.docket.store.log_append import open_appender
from serving.docket.store.reviews import UNDO, ReviewEvent, append_review, settled_at
from serving.docket.store.tables import insert_into, stamp, unknown
from serving.docket.store.transactions import Batch, Rank

_case = t.cases.c


def verdict_was_shown(connection: Connection, trial_id: str, who: str) -> bool:
    """True if a reviewer saw, or reviewed, the verdict of a trial or of another one of the same meme."""
    return (
        connection.execute(select(_case.trial_id).where(_case.trial_id == trial_id, t.saw_any(who))).first() is not None
    )


LOCK_MINUTES: Final = 15
"""Minutes until a lock expires unless it is renewed."""

_lock = t.locks.c

S = TypeVar("S", bound=ReviewEvent)


class CaseError(CourtError):
    """The reviewer can't have this case now."""


class CaseTaken(CaseError):
    """Somebody else has locked the case."""

    default_reason = "CASE_TAKEN"


class CaseClosed(CaseError):
    """Raised if a case needs no review: it was reviewed meanwhile, or never needed one."""

    default_reason = "CASE_CLOSED"


class AnotherWanted(CaseError):
    """The case waits for another person's review."""

    default_reason = "ANOTHER_PERSON_WANTED"


class NotLocked(CaseError):
    """The reviewer does not hold the case: they did not take it, or their lock has expired."""

    default_reason = "CASE_NOT_HELD"


class UndoOver(CaseError):
    """The review can't be withdrawn (any more)."""

    default_reason = "UNDO_OVER"


class AlreadyReviewed(CaseError):
    """Raised if a review or a withdrawal was sent twice; it is stored once."""

    default_reason = "SAID_BEFORE"


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock on a case: its holder and its expiry time (UTC)."""

    holder: str
    until: datetime


@dataclass(frozen=True, slots=True)
class LockedReview:
    """Reviews to be stored if their author holds the case of the first, which is then released: all or none.

    The others, of cases like it, are taken for it.
    """

    reviews: tuple[ReviewEvent, ...]
    now: datetime
    follow: bool = False
    """True to have the library of precedents follow them."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A withdrawal to be stored if its review can still be withdrawn, by the clock inside of the transaction."""

    event: ReviewWithdrawn
    clock: Callable[[], datetime]


def acquire(connection: Connection, trial_id: str, who: str, now: datetime, *, reopen: bool) -> Lock:
    """Locks a case for a reviewer; see :meth:`serving.docket.review.queue.ReviewQueue.take`."""
    # Of two concurrent callers, the second waits here and then finds the lock of the first.
    row = connection.execute(select(t.cases).where(t.cases.c.trial_id == trial_id).with_for_update()).one_or_none()
    _check_takeable(connection, row, trial_id, who, reopen=reopen)
    lock = connection.execute(select(t.locks).where(_lock.trial_id == trial_id)).one_or_none()
    # An expired lock blocks nobody, even if it was never released.
    if lock is not None and lock.holder != who and lock.until > stamp(now):
        raise CaseTaken(f"{lock.holder} is looking at this case, until {_clock_of(lock.until)} at the latest.")
    until = now + timedelta(minutes=LOCK_MINUTES)
    statement = insert_into(connection, t.locks).values(trial_id=trial_id, holder=who, until=stamp(until))
    set_ = {"holder": who, "until": stamp(until)}
    connection.execute(statement.on_conflict_do_update(index_elements=[_lock.trial_id], set_=set_))
    return Lock(who, until)


def renew(connection: Connection, trial_id: str, who: str, now: datetime) -> None:
    """Extends a lock. Raises NotLocked if it has been lost."""
    until = stamp(now + timedelta(minutes=LOCK_MINUTES))
    # In one statement: a lock that expires between a read and a write must not come back.
    if not connection.execute(update(t.locks).where(*_own(trial_id, who, now)).values(until=until)).rowcount:
        raise _not_locked(connection, trial_id, who, now)


def release(connection: Connection, trial_id: str, who: str) -> None:
    """Releases a lock; idempotent."""
    connection.execute(delete(t.locks).where(_lock.trial_id == trial_id, _lock.holder == who))


def _store(connection: Connection, reviews: Sequence[LockedReview]) -> Sequence[list[ReviewEvent] | CourtError]:
    open_appender(connection)  # before any row is locked: see serving.docket.store.reviews
    return [_store_one(connection, one) for one in reviews]


def _store_one(connection: Connection, locked: LockedReview) -> list[ReviewEvent] | CourtError:
    (review, *others), now = locked.reviews, locked.now
    who = _speaker(review)
    own = select(_lock.holder).where(*_own(review.trial_id, who, now)).with_for_update()
    holds_case = connection.execute(own).one_or_none() is not None
    if not holds_case or isinstance(review, NoteLeft):
        # The first of two equal reviews released the case: the second is not the reviewer's mistake.
        before = [one for one in _standing(connection, review) if _speaker(one) == who]
        if before and _same(before[-1], review):
            return AlreadyReviewed("This was sent twice, and is kept once.")
    if not holds_case:
        return _not_locked(connection, review.trial_id, who, now)
    for index, other in enumerate(others):
        try:
            acquire(connection, other.trial_id, who, now, reopen=False)
        except CourtError as error:
            for taken in others[:index]:
                release(connection, taken.trial_id, who)
            return error
    stored: list[ReviewEvent] = []
    for each in locked.reviews:
        event = _store_review(connection, each, follow=locked.follow)
        # Of the first alone: that the others can be reviewed was seen when they were taken.
        if isinstance(event, CourtError):
            return event
        stored.append(event)
    return stored


def _store_review(connection: Connection, review: ReviewEvent, *, follow: bool) -> ReviewEvent | CourtError:
    who = _speaker(review)
    if isinstance(review, VerdictReviewed):
        # From the log as well, which may be ahead of the projection.
        own_before = any(_speaker(one) == who for one in _reviews_of_kind(connection, review.trial_id, VerdictReviewed))
        review = review.model_copy(
            update={"blind": not own_before and not verdict_was_shown(connection, review.trial_id, who)}
        )
    stored = append_review(connection, review)
    # After an error the reviewer keeps the case, and can try again; with a note alone they go on with it.
    if not isinstance(stored, CourtError) and not (isinstance(stored, NoteLeft) and not stored.second_opinion):
        release(connection, review.trial_id, who)
        if follow and isinstance(stored, VerdictReviewed):
            due = stamp(settled_at(stored))
            connection.execute(t.pending.insert().values(trial_id=stored.trial_id, seq=stored.seq, due=due))
    return stored


def _withdraw(connection: Connection, drafts: Sequence[Withdrawal]) -> Sequence[ReviewEvent | CourtError]:
    open_appender(connection)  # as above
    return [_withdraw_one(connection, one.event, one.clock()) for one in drafts]


def _withdraw_one(connection: Connection, draft: ReviewWithdrawn, now: datetime) -> ReviewEvent | CourtError:
    trial_id = draft.trial_id
    own = [one for one in _reviews_of_kind(connection, trial_id, VerdictReviewed) if one.seq == draft.of]
    if any(one.of == draft.of for one in _reviews_of_kind(connection, trial_id, ReviewWithdrawn)):
        return AlreadyReviewed("This review is withdrawn.")
    if not own or own[0].reviewer != draft.by or own[0].look is Look.UNKNOWN or now > own[0].at + UNDO:
        return UndoOver("Only your own review can be undone, and for one minute. Take the case and review it again.")
    stored = append_review(connection, draft)
    if not isinstance(stored, CourtError):
        connection.execute(delete(t.pending).where(t.pending.c.trial_id == trial_id, t.pending.c.seq == draft.of))
        # Once they had decided the verdict was shown to them.
        shown = insert_into(connection, t.seen).values(trial_id=trial_id, who=draft.by, at=stamp(now))
        connection.execute(shown.on_conflict_do_nothing())
    return stored


SAY = Batch(Rank.LOCKED_REVIEW, _store)
WITHDRAW = Batch(Rank.LOCKED_REVIEW, _withdraw)


def _own(trial_id: str, who: str, now: datetime) -> tuple[ColumnElement[bool], ...]:
    return _lock.trial_id == trial_id, _lock.holder == who, _lock.until > stamp(now)


def _not_locked(connection: Connection, trial_id: str, who: str, now: datetime) -> NotLocked:
    query = select(t.locks).where(_lock.trial_id == trial_id, _lock.holder != who, _lock.until > stamp(now))
    lock = connection.execute(query).one_or_none()
    last = next(iter(_reviews_of_kind(connection, trial_id, VerdictReviewed)[-1:]), None)
    why = "its time was over, or it was given back"
    if lock is not None:
        why = f"{lock.holder} is looking at it, until {_clock_of(lock.until)} at the latest"
    elif last is not None:
        why = (
            f"{'you' if last.reviewer == who else last.reviewer} reviewed it on {last.at.day} {last.at:%b at %H:%M} UTC"
        )
    return NotLocked(f"This case is not yours, or no longer: {why}. To say what you found, take it again.")


def _reviews_of_kind(connection: Connection, trial_id: str, kind: type[S]) -> Sequence[S]:
    """Returns the reviews of one kind of a trial, in order."""
    return [event for event in events_by_people(connection, trial_id).values() if isinstance(event, kind)]


def _standing(connection: Connection, review: S) -> Sequence[S]:
    """Returns the events of a review's kind, without reviews that were withdrawn."""
    events = standing(events_by_people(connection, review.trial_id).values())
    return [event for event in events if isinstance(event, type(review))]


def _speaker(review: ReviewEvent) -> str:
    return review.reviewer if isinstance(review, VerdictReviewed) else review.by


def _same(one: ReviewEvent, other: ReviewEvent) -> bool:
    """True if two reviews differ only in their time and in what was visible."""
    left = {"seq", "at", "blind", "look", "look_s"}
    return one.model_dump(exclude=left) == other.model_dump(exclude=left)


def _check_takeable(connection: Connection, row: Any, trial_id: str, who: str, *, reopen: bool) -> None:
    if row is None:
        raise unknown(trial_id)
    if row.erased:
        raise TrialUnknown("What was said in this trial has been erased: there is nothing left to look at.")
    if row.state != TrialState.DECIDED:
        raise NotDecided("This trial has no verdict that could be reviewed.")
    if reopen:
        return
    if not row.waiting:
        raise CaseClosed("This case is not waiting: somebody reviewed it, or it needed no review.")
    own = select(t.reviews.c.number).where(t.reviews.c.trial_id == trial_id, t.reviews.c.reviewer == who).limit(1)
    # Whoever asks for a second opinion can't give it.
    if row.asked_by == who or connection.execute(own).first() is not None:
        raise AnotherWanted(
            "You have reviewed this case, or asked for a second opinion: it is waiting for another person."
        )


def _clock_of(stamped: str) -> str:
    return f"{datetime.fromisoformat(stamped):%H:%M} UTC"
