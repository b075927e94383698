"""Case locks: one reviewer at a time, for a while, and until they have decided.

What they say is kept in the transaction that gives the case back: of two who send at once, or of one who sends twice,
one is heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, delete, select, update

from court.errors import CourtError
from court.events import VerdictReviewed
from court.record import TrialState
from serving.docket.ports import NotDecided, TrialUnknown
from serving.docket.review.blinding import verdict_was_shown
from serving.docket.store import review_tables as t
from serving.docket.store import tables
from serving.docket.store.bodies import event_in, unpacked
from serving.docket.store.database import insert_into, unknown
from serving.docket.store.group_commit import Batch
from serving.docket.store.log_append import open_appender
from serving.docket.store.reviews import ReviewEvent, append_review
from serving.docket.store.tables import stamp
from serving.docket.store.transactions import Rank

LOCK_MINUTES: Final = 15
"""For so long a case is one reviewer's, unless that is renewed."""

_lock = t.locks.c

S = TypeVar("S", bound=ReviewEvent)


class CaseError(CourtError):
    """A case is not this person's to look at now."""


class CaseTaken(CaseError):
    """Somebody else is looking at this case."""

    default_reason = "CASE_TAKEN"


class CaseClosed(CaseError):
    """Raised where a case needs no review any more: it was reviewed meanwhile, or never needed to be."""

    default_reason = "CASE_CLOSED"


class AnotherWanted(CaseError):
    """This case waits for another person's word than this one's."""

    default_reason = "ANOTHER_PERSON_WANTED"


class NotLocked(CaseError):
    """Whoever reviews a case takes it first, and this one was not taken, or for longer ago than a lock lasts."""

    default_reason = "CASE_NOT_HELD"


class AlreadyReviewed(CaseError):
    """Raised where a review was sent twice; it is stored once."""

    default_reason = "SAID_BEFORE"


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock on a case: its holder and its end (UTC)."""

    holder: str
    until: datetime


@dataclass(frozen=True, slots=True)
class LockedReview:
    """Something that is to be kept if the case is the speaker's, who then gives it back.

    Attributes:
        review: Review to store; its number is assigned when it is stored.
        now: Current time, UTC.
    """

    review: ReviewEvent
    now: datetime


def acquire(connection: Connection, trial_id: str, who: str, now: datetime, *, again: bool) -> Lock:
    """Makes a case this person's; see :meth:`serving.docket.review.queue.ReviewQueue.take`."""
    # Of two who take a case at once, the second waits here and then finds the lock of the first.
    row = connection.execute(select(t.cases).where(t.cases.c.trial_id == trial_id).with_for_update()).one_or_none()
    _check_takeable(connection, row, trial_id, who, again=again)
    lock = connection.execute(select(t.locks).where(_lock.trial_id == trial_id)).one_or_none()
    # A lock whose time is over keeps nobody out, even if it was never given back.
    if lock is not None and lock.holder != who and lock.until > stamp(now):
        raise CaseTaken(f"{lock.holder} is looking at this case, until {_clock_of(lock.until)} at the latest.")
    until = now + timedelta(minutes=LOCK_MINUTES)
    statement = insert_into(connection, t.locks).values(trial_id=trial_id, holder=who, until=stamp(until))
    set_ = {"holder": who, "until": stamp(until)}
    connection.execute(statement.on_conflict_do_update(index_elements=[_lock.trial_id], set_=set_))
    return Lock(who, until)


def renew(connection: Connection, trial_id: str, who: str, now: datetime) -> None:
    """Keeps a case for longer. Raises NotHeld where it is not this person's any more."""
    until = stamp(now + timedelta(minutes=LOCK_MINUTES))
    # In one statement: a lock that runs out between a look and a write must not come back.
    if not connection.execute(update(t.locks).where(*_own(trial_id, who, now)).values(until=until)).rowcount:
        raise _not_locked(connection, trial_id, who, now)


def release(connection: Connection, trial_id: str, who: str) -> None:
    """Gives a case back; one that is not held is no error."""
    connection.execute(delete(t.locks).where(_lock.trial_id == trial_id, _lock.holder == who))


def _store(connection: Connection, reviews: Sequence[LockedReview]) -> Sequence[ReviewEvent | CourtError]:
    open_appender(connection)  # before any row is held: see serving.docket.store.reviews
    return [_store_one(connection, one.review, one.now) for one in reviews]


def _store_one(connection: Connection, review: ReviewEvent, now: datetime) -> ReviewEvent | CourtError:
    who = _speaker(review)
    own = select(_lock.holder).where(*_own(review.trial_id, who, now)).with_for_update()
    if connection.execute(own).one_or_none() is None:
        # The first of two equal reviews gave the case back: the second is no mistake of the reviewer's.
        before = [one for one in _reviews_of_kind(connection, review.trial_id, type(review)) if _speaker(one) == who]
        if before and _same(before[-1], review):
            return AlreadyReviewed("This was sent twice, and is kept once.")
        return _not_locked(connection, review.trial_id, who, now)
    if isinstance(review, VerdictReviewed):
        # From the log as well, which may be further than what was drawn from it.
        own_before = any(_speaker(one) == who for one in _reviews_of_kind(connection, review.trial_id, VerdictReviewed))
        review = review.model_copy(
            update={"blind": not own_before and not verdict_was_shown(connection, review.trial_id, who)}
        )
    stored = append_review(connection, review)
    # After an error the reviewer still has the case, and can try again.
    if not isinstance(stored, CourtError):
        release(connection, review.trial_id, who)
    return stored


SAY = Batch(Rank.LOCKED_REVIEW, _store)


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
    entry = tables.entries.c
    own = (entry.trial_id == trial_id, tables.IS_EVENT, entry.kind == kind.__name__, entry.body.is_not(None))
    bodies = connection.execute(select(entry.body).where(*own).order_by(entry.seq)).scalars().all()
    # Reviews quote no precedents: there are no parts to fill in.
    found = [event_in(unpacked(bytes(body)), {}) for body in bodies]
    return [event for event in found if isinstance(event, kind)]


def _speaker(review: ReviewEvent) -> str:
    return review.reviewer if isinstance(review, VerdictReviewed) else review.by


def _same(one: ReviewEvent, other: ReviewEvent) -> bool:
    """True if two reviews differ in nothing but their time and the verdict's visibility by then."""
    left = {"seq", "at", "blind"}
    return one.model_dump(exclude=left) == other.model_dump(exclude=left)


def _check_takeable(connection: Connection, row: Any, trial_id: str, who: str, *, again: bool) -> None:
    if row is None:
        raise unknown(trial_id)
    if row.erased:
        raise TrialUnknown("What was said in this trial has been erased: there is nothing left to look at.")
    if row.state != TrialState.DECIDED:
        raise NotDecided("This trial has no verdict that could be reviewed.")
    if again:
        return
    if not row.waiting:
        raise CaseClosed("Nobody has to look at this case any more: somebody reviewed it, or it never needed that.")
    own = select(t.reviews.c.number).where(t.reviews.c.trial_id == trial_id, t.reviews.c.reviewer == who).limit(1)
    # Whoever asks for a second opinion can't be the one who gives it.
    if row.asked_by == who or connection.execute(own).first() is not None:
        raise AnotherWanted("Your word on this case stands already: it waits for another person's.")


def _clock_of(stamped: str) -> str:
    return f"{datetime.fromisoformat(stamped):%H:%M} UTC"
