"""The review queue: people find verdicts that need review, lock one at a time, and review it.

The queue is a projection of the log (:mod:`serving.docket.review.projection`) in the docket's database, so that several
consoles share the queue and the locks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, select, text, tuple_, update

from court.errors import BadRequest
from court.events import Look, NoteLeft, ReviewOutcome, ReviewWithdrawn, VerdictReviewed
from court.meme import is_text_digest
from court.record import TrialState
from court.verdict import Label
from serving.docket.errors import NotDecided
from serving.docket.log.entries import Entry
from serving.docket.ports import TrialReader
from serving.docket.review import locks
from serving.docket.review.agreement import Agreement, agreement
from serving.docket.review.locks import AnotherWanted, CaseClosed, CaseTaken, Lock, LockedReview, Withdrawal
from serving.docket.review.projection import KINDS, USUAL, ReviewPriority, Rules, apply_entries, same_letters
from serving.docket.store import review_tables as t
from serving.docket.store.log_queries import LogFollower, TransparencyLog
from serving.docket.store.reviews import UNDO
from serving.docket.store.tables import insert_into, stamp, unknown
from serving.docket.store.transactions import Transactions

A = TypeVar("A")
P = TypeVar("P")
T = TypeVar("T")

_AGAIN: Final = timedelta(minutes=1)
"""Time after which the library is to follow a review again that it could not."""
_PAGE: Final = 500
"""Log entries that are projected in one transaction."""
OBJECTION_EVERY: Final = 4
"""Cases given out, of which one is an objection by the link of a notice."""

_case = t.cases.c
# The id makes the order total, so that paging neither skips nor repeats cases.
_ORDER = (_case.urgency, _case.opened_at, _case.trial_id)


@dataclass(frozen=True, slots=True)
class Case:
    """A trial in the review queue.

    Attributes:
        opened_at: UTC.
        pixels_sha256: SHA-256 of the picture's pixels; for a text without picture, the text's digest.
        score: P(harmful); None if the verdict has none.
        reasons: Reasons for human review, past or present, the most urgent first, each with a sentence.
    """

    trial_id: str
    opened_at: datetime | None
    namespace: str
    content_id: str
    pixels_sha256: str
    models: tuple[str, ...]
    text: str
    state: TrialState
    label: Label | None
    holds: Label | None
    outcome: ReviewOutcome | None
    score: float | None
    category: str
    reasons: tuple[tuple[ReviewPriority, str], ...]
    waiting: bool
    urgency: int
    asked_by: str
    erased: bool
    lock: Lock | None = None

    @property
    def text_alone(self) -> bool:
        """True if the text was sent without a picture."""
        return is_text_digest(self.pixels_sha256)


@dataclass(frozen=True, slots=True)
class SampledReview:
    """A verdict that was randomly sampled for review.

    Attributes:
        opened_at: UTC.
        found: Label by the first reviewer; None if there is no review, or it gave no label.
    """

    trial_id: str
    opened_at: datetime
    found: Label | None


class ReviewQueue:
    """Queue, search, locks, reviews and agreement of one docket. Any number of processes may use one."""

    def __init__(
        self,
        transactions: Transactions,
        trials: TrialReader,
        log: TransparencyLog,
        rules: Rules = USUAL,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        patience_s: float = 2.0,
    ) -> None:
        """Prepares the queue without reading anything.

        Args:
            clock: Returns the current time, UTC. For locks, clocks of several machines must agree within a minute.
            patience_s: Maximum seconds that a caller waits for the projection to catch up with the log.
        """
        self._transactions = transactions
        self._trials = trials
        self._log = log
        self._rules = rules
        self._clock = clock
        self._patience_s = patience_s
        self._follower = LogFollower(self._project)
        self._turns = itertools.count(1)

    # The log

    async def catch_up(self) -> bool:
        """Projects new log entries into the queue.

        Returns:
            True if everything that was in the log at the call is projected. For a large docket the first run takes
            longer than callers wait: it continues in the background, and searches meanwhile find what is there.

        Raises:
            Unavailable: The docket can't be read or written now.
        """
        return await self._follower.catch_up(self._patience_s)

    async def behind(self) -> int:
        """Returns the number of log entries that the queue has not read yet."""
        return max(0, await self._log.size() - await self._transactions.read(_next))

    async def _project(self) -> None:
        while True:
            # Read again for each page: another process may have projected some of them meanwhile.
            first = await self._transactions.read(_next)
            entries = await self._log.entries(first, _PAGE, KINDS)
            if not entries:
                return
            await self._transactions.write_alone(lambda c, f=first, e=entries: self._take_in(c, f, e))  # type: ignore[misc]

    def _take_in(self, connection: Connection, first: int, entries: Sequence[Entry]) -> None:
        """Projects entries that start at a number, unless another process was quicker."""
        # SQLite allows only one writing transaction at a time and needs no lock here.
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('memecourt.desk'))"))
        # Another process has projected these meanwhile.
        if _next(connection) != first:
            return
        apply_entries(connection, entries, self._rules)
        stands = insert_into(connection, t.progress).values(only=1, next=entries[-1].number + 1)
        connection.execute(
            stands.on_conflict_do_update(index_elements=[t.progress.c.only], set_={"next": stands.excluded.next})
        )

    # Finding

    async def queue(
        self,
        who: str,
        *,
        limit: int,
        after: tuple[int, str, str] | None = None,
        why: ReviewPriority | None = None,
        namespaces: frozenset[str] | None = None,
    ) -> Sequence[Case]:
        """Returns cases that wait for this reviewer: the most urgent first, then the oldest.

        Args:
            who: Reviewer; cases that they have already reviewed or asked about are left out.
        """
        await self.catch_up()
        # A second opinion must come from another person: whoever reviewed or asked is not offered the case again.
        own = exists().where(t.reviews.c.trial_id == _case.trial_id, t.reviews.c.reviewer == who)
        query = select(t.cases).where(_case.waiting, ~own, _case.asked_by != who).order_by(*_ORDER).limit(limit)
        query = query.where(*_saw_verdict(namespaces), *_for(why))
        if after is not None:
            query = query.where(tuple_(*_ORDER) > tuple_(*after))
        return await self._cases(query)

    async def counts(self, namespaces: frozenset[str] | None = None) -> Mapping[ReviewPriority, int]:
        """Counts waiting cases by the most urgent reason of each."""
        await self.catch_up()
        query = (
            select(_case.urgency, func.count()).where(_case.waiting, *_saw_verdict(namespaces)).group_by(_case.urgency)
        )
        rows = await self._transactions.read(lambda connection: connection.execute(query).all())
        found = {urgency: count for urgency, count in rows}
        return {why: found[why.urgency] for why in ReviewPriority if why.urgency in found}

    async def case(self, trial_id: str) -> Case:
        """Returns one case. Raises TrialUnknown."""
        await self.catch_up()
        found = await self._cases(select(t.cases).where(_case.trial_id == trial_id))
        if not found:
            raise unknown(trial_id)
        return found[0]

    async def cases(self, trial_ids: Sequence[str]) -> Mapping[str, Case]:
        """Returns several cases by id; unknown ones are missing."""
        await self.catch_up()
        return {case.trial_id: case for case in await self._cases(select(t.cases).where(_case.trial_id.in_(trial_ids)))}

    async def same_memes(
        self, case: Case, *, limit: int, namespaces: frozenset[str] | None = None
    ) -> Sequence[tuple[Case, bool, bool]]:
        """Returns other trials with the same pixels or with the same letters in the text, the latest first.

        Returns:
            Each case with a flag for equal pixels and one for equal text. Memes without text never have equal text, and
            texts without picture never equal pixels.
        """
        await self.catch_up()
        mark = same_letters(case.text)
        same_picture = _case.pixels_sha256 == case.pixels_sha256
        same_text = and_(_case.same == mark, _case.same != "")
        query = select(t.cases).where(
            same_picture | same_text, _case.trial_id != case.trial_id, ~_case.erased, *_saw_verdict(namespaces)
        )
        found = await self._cases(query.order_by(_case.opened_at.desc(), _case.trial_id.desc()).limit(limit))
        return [
            (
                other,
                not case.text_alone and other.pixels_sha256 == case.pixels_sha256,
                bool(mark) and same_letters(other.text) == mark,
            )
            for other in found
        ]

    # Locking a case

    async def take(self, trial_id: str, who: str, *, reopen: bool = False) -> Lock:
        """Locks a case for a reviewer, or extends the lock.

        Args:
            reopen: True to accept a case that needs no review, or that this reviewer has decided already.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: There is no verdict.
            CaseTaken: Somebody else has it.
            CaseClosed: The case needs no review any more.
            AnotherWanted: The case waits for another reviewer.
        """
        await self.catch_up()
        now = self._clock()
        return await self._transactions.write_alone(
            lambda connection: locks.acquire(connection, trial_id, who, now, reopen=reopen)
        )

    async def take_next(
        self,
        who: str,
        *,
        why: ReviewPriority | None = None,
        namespaces: frozenset[str] | None = None,
        after: tuple[int, str, str] | None = None,
    ) -> Case | None:
        """Locks the most urgent free case, or the first behind a cursor; None if there is none.

        One in :data:`OBJECTION_EVERY` is an objection by the link of a notice, if there is one: a flood of them buries
        neither the other cases nor the oldest of its own kind.
        """
        if why is None and after is None and next(self._turns) % OBJECTION_EVERY == 0:
            objection = await self.take_next(who, why=ReviewPriority.OBJECTION, namespaces=namespaces)
            if objection is not None:
                return objection
        # Page by page: many taken cases may precede a free one.
        while page := await self.queue(who, limit=20, after=after, why=why, namespaces=namespaces):
            for case in page:
                # A reviewer's own case is offered again: closing its page must not block it until the lock expires.
                if case.lock is not None and case.lock.holder != who:
                    continue
                try:
                    await self.take(case.trial_id, who)
                except (CaseTaken, CaseClosed, AnotherWanted):
                    continue  # somebody was quicker
                return case
            after = cursor_of(page[-1])
        return None

    async def renew(self, trial_id: str, who: str) -> None:
        """Extends the lock on a case. Raises NotLocked if it has been lost."""
        now = self._clock()
        await self._transactions.write_alone(lambda connection: locks.renew(connection, trial_id, who, now))

    async def release(self, trial_id: str, who: str) -> None:
        """Unlocks a case; idempotent."""
        await self._transactions.write_alone(lambda connection: locks.release(connection, trial_id, who))

    async def saw(self, who: str, trial_ids: Collection[str]) -> None:
        """Records that a person was shown verdicts: their later reviews of these are not blind."""
        fresh = sorted({*trial_ids} - await self.known_verdicts(list(trial_ids), who)) if trial_ids else []
        # Pages are opened repeatedly: write only if something is new.
        rows = [{"trial_id": trial_id, "who": who, "at": stamp(self._clock())} for trial_id in fresh]
        if rows:
            await self._transactions.write_alone(
                lambda c: c.execute(insert_into(c, t.seen).on_conflict_do_nothing(), rows)
            )

    async def hidden_from(
        self, who: str, trial_ids: Collection[str], namespaces: frozenset[str] | None = None
    ) -> frozenset[str]:
        """Returns those of the trials whose verdict must stay hidden from a reviewer.

        See :mod:`serving.docket.review.locks`.
        """
        await self.catch_up()
        query = select(_case.trial_id).where(_case.trial_id.in_(trial_ids), t.is_blinded(who, namespaces))
        return await self._transactions.read(lambda c: frozenset(c.execute(query).scalars()))

    async def knows_verdict(self, trial_id: str, who: str) -> bool:
        """True if a reviewer saw the verdict, or gave their own."""
        return trial_id in await self.known_verdicts([trial_id], who)

    async def known_verdicts(self, trial_ids: Sequence[str], who: str) -> frozenset[str]:
        """Returns those of the trials whose verdict a reviewer saw, or for which they gave their own."""
        shown = select(t.seen.c.trial_id).where(t.seen.c.trial_id.in_(trial_ids), t.seen.c.who == who)
        reviewed = select(t.reviews.c.trial_id).where(t.reviews.c.trial_id.in_(trial_ids), t.reviews.c.reviewer == who)
        return await self._transactions.read(lambda c: frozenset(c.execute(shown.union(reviewed)).scalars()))

    # Reviewing

    async def review(
        self,
        trial_id: str,
        who: str,
        *,
        label: Label,
        clause: str,
        reason: str,
        look: Look = Look.UNKNOWN,
        look_at: datetime | None = None,
        precedent: bool = False,
        follow: bool = False,
        alike: Mapping[str, tuple[Look, datetime | None]] = MappingProxyType({}),
    ) -> list[VerdictReviewed]:
        """Stores a review by the person who holds the case, and releases it; returns it, and those of cases like it.

        The verdict is upheld if the label is the same, and overruled if not. The review is marked as blind if neither
        this verdict nor that of another trial of the same meme was shown to this person before.

        Args:
            look_at: Time from which the whole meme was shown to this person; None if unknown.
            follow: True to have the library of precedents follow the review (:meth:`due`).
            alike: Waiting cases that the same decision is for, with look and ``look_at``: each gets a review of its
                own, all or none.

        Raises:
            TrialUnknown, NotDecided: There is no verdict.
            BadRequest: Clause or reason is missing, or UNDECIDED was found of a verdict that is not.
            NotLocked: This person does not hold the case (any more).
            CaseTaken, CaseClosed, AnotherWanted: This person can't have one of the cases like it.
            AlreadyReviewed: The identical review was stored already, because it was sent twice.
            Unavailable: The review can't be stored now.
        """
        clause, reason = clause.strip(), reason.strip()
        if not 0 < len(clause) <= 200:
            raise BadRequest(
                "Name the clause of the policy that this rests on.", reason="FIELD_MISSING", field="clause"
            )
        if not 0 < len(reason) <= 2000:
            raise BadRequest(
                "Say why, in at most 2,000 characters: whoever opens this trial later reads it.",
                reason="FIELD_MISSING",
                field="reason",
            )
        now, drafts = self._clock(), list[VerdictReviewed]()
        for each, (looked, since) in {trial_id: (look, look_at), **alike}.items():
            verdict = (await self._trials.record(each)).verdict
            if verdict is None:
                raise NotDecided("This trial has no verdict that could be reviewed.")
            if label is Label.UNDECIDED and verdict.label is not Label.UNDECIDED:
                raise BadRequest(
                    "Say whether the meme is harmful or not harmful.", reason="FIELD_MISSING", field="label"
                )
            # The sequence number is assigned when the event is written, since only then the previous one is known.
            drafts.append(
                VerdictReviewed(
                    trial_id=each,
                    seq=0,
                    at=now,
                    outcome=ReviewOutcome.UPHELD if label is verdict.label else ReviewOutcome.OVERRULED,
                    label=label,
                    reason=reason,
                    clause=clause,
                    reviewer=who,
                    look=looked,
                    look_s=max(0.0, round((now - since).total_seconds(), 1)) if since else None,
                    # One of memes that are alike is enough for the library.
                    precedent=precedent and each == trial_id,
                )
            )
        stored = await self._transactions.write(locks.SAY, LockedReview(tuple(drafts), now, follow))
        return [one for one in stored if isinstance(one, VerdictReviewed)]

    async def withdraw(self, trial_id: str, who: str, seq: int) -> ReviewWithdrawn:
        """Withdraws a person's own review, by its number in the trial; what was found before it holds again.

        Raises:
            UndoOver: There is no such review of theirs, or its minute is over.
            AlreadyReviewed: The withdrawal was sent twice.
            TrialUnknown, Unavailable: As :meth:`review`.
        """
        draft = ReviewWithdrawn(trial_id=trial_id, seq=0, at=self._clock(), by=who, of=seq)
        stored = await self._transactions.write(locks.WITHDRAW, Withdrawal(draft, self._clock))
        assert isinstance(stored, ReviewWithdrawn)
        return stored

    def can_withdraw(self, review: VerdictReviewed) -> bool:
        """True while a review can be withdrawn by its author."""
        return review.look is not Look.UNKNOWN and self._clock() <= review.at + UNDO

    async def due(self) -> Sequence[tuple[str, int]]:
        """Returns trial and number of the reviews that the library has to follow now, in order."""
        row, now = t.pending.c, stamp(self._clock())
        # A later review of the same trial first has its minute, or the library would follow it too early.
        open_ = select(row.trial_id).where(row.due > now)
        query = select(row.trial_id, row.seq).where(row.due != "", row.due <= now, row.trial_id.not_in(open_))
        rows = await self._transactions.read(lambda c: c.execute(query.order_by(row.due, row.seq)).all())
        return [(trial_id, seq) for trial_id, seq in rows]

    async def followed(self, trial_id: str, seq: int, failure: str = "", *, retryable: bool = True) -> None:
        """Records that the library has followed a review, or why it could not."""
        own = (t.pending.c.trial_id == trial_id, t.pending.c.seq == seq)
        due = stamp(self._clock() + _AGAIN) if retryable else ""
        later = update(t.pending).where(*own).values(due=due, failure=failure)
        change = later if failure else delete(t.pending).where(*own)
        await self._transactions.write_alone(lambda c: c.execute(change))

    async def to_follow(self, trial_id: str) -> str | None:
        """Returns why the library could not follow a trial's review yet, empty if it waits; None if it has."""
        query = select(t.pending.c.failure).where(t.pending.c.trial_id == trial_id).order_by(t.pending.c.seq.desc())
        return await self._transactions.read(lambda c: c.execute(query.limit(1)).scalar_one_or_none())

    async def leave_note(self, trial_id: str, who: str, note: str, *, second_opinion: bool = False) -> NoteLeft:
        """Stores a note to colleagues by the person who holds the case.

        Args:
            second_opinion: True to have another person decide, which releases the case.

        Raises:
            TrialUnknown, NotDecided: There is no verdict.
            BadRequest: The note is empty or too long.
            NotLocked, AlreadyReviewed, Unavailable: As :meth:`review`.
        """
        note = note.strip()
        if not 0 < len(note) <= 2000:
            raise BadRequest("Write a note of at most 2,000 characters.", reason="FIELD_MISSING", field="note")
        now = self._clock()
        draft = NoteLeft(trial_id=trial_id, seq=0, at=now, by=who, note=note, second_opinion=second_opinion)
        (stored,) = await self._transactions.write(locks.SAY, LockedReview((draft,), now))
        assert isinstance(stored, NoteLeft)
        return stored

    # Figures

    async def sampled(
        self,
        *,
        since: datetime,
        until: datetime,
        namespace: str | None = None,
        namespaces: frozenset[str] | None = None,
    ) -> Sequence[SampledReview]:
        """Returns randomly sampled verdicts, by opening time of their trials, with the first review of each."""
        await self.catch_up()
        query = select(_case.trial_id, _case.opened_at, _case.label).order_by(_case.opened_at, _case.trial_id)
        query = query.where(_case.drawn, ~_case.erased, _case.label.not_in(["", str(Label.UNDECIDED)]))
        query = query.where(_case.opened_at >= stamp(since), _case.opened_at < stamp(until))
        if namespace is not None:
            query = query.where(_case.namespace == namespace)
        query = query.where(*_saw_verdict(namespaces))
        labels = select(t.reviews.c.trial_id, t.reviews.c.label).order_by(t.reviews.c.number)
        labels = labels.where(t.reviews.c.trial_id.in_(query.with_only_columns(_case.trial_id).order_by(None)))

        def read(connection: Connection) -> Sequence[SampledReview]:
            first: dict[str, str] = {}
            for trial_id, label in connection.execute(labels):
                # In log order: the first review was not influenced by any other.
                first.setdefault(trial_id, label)
            return [
                SampledReview(trial_id, datetime.fromisoformat(at), _label_found(first.get(trial_id)))
                for trial_id, at, _ in connection.execute(query)
            ]

        return await self._transactions.read(read)

    async def agreement(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        blind: bool = False,
        drawn: bool = False,
        namespaces: frozenset[str] | None = None,
    ) -> Agreement:
        """Computes the agreement of reviewers among themselves and with the court.

        Only the first review by each reviewer of a meme counts, in whichever of its trials: later ones may be
        influenced by discussions, and repeat the first.

        Args:
            blind: Only those of reviewers who had not been shown the verdict.
            drawn: True for only randomly sampled trials: only these are representative, since the others were reviewed
                because something was doubtful.
        """

        def counts(word: _FirstWord) -> bool:
            if (blind and not word.blind) or (drawn and not word.drawn):
                return False
            return (since is None or word.at >= stamp(since)) and (until is None or word.at < stamp(until))

        return _agreement([word for word in await self._first_words(namespaces) if counts(word)])

    async def agreement_by(
        self, period: Callable[[date], P], *, since: datetime, namespaces: frozenset[str] | None = None
    ) -> Mapping[P, Agreement]:
        """Computes the agreement for each period, by the day of the review."""
        found: dict[P, list[_FirstWord]] = {}
        for each in await self._first_words(namespaces):
            if each.at >= stamp(since):
                found.setdefault(period(datetime.fromisoformat(each.at).date()), []).append(each)
        return {when: _agreement(words) for when, words in found.items()}

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Reads from the queue's tables, once they have caught up with the log."""
        await self.catch_up()
        return await self._transactions.read(work)

    async def _first_words(self, namespaces: frozenset[str] | None) -> Sequence[_FirstWord]:
        row = t.reviews.c
        meme = (_case.pixels_sha256, _case.same)
        query = select(row.trial_id, *meme, row.reviewer, row.label, row.verdict, row.blind, row.at, _case.drawn)
        query = (
            query.join(t.cases, _case.trial_id == row.trial_id).where(*_saw_verdict(namespaces)).order_by(row.number)
        )
        found = dict[tuple[tuple[str, str], str], _FirstWord]()
        for trial_id, pixels, same, reviewer, *rest in await self.read(
            lambda connection: connection.execute(query).all()
        ):
            # The same meme as for is_blinded (review_tables.py); a trial without digest equals no other.
            key = (pixels, same) if pixels else ("", trial_id)
            # Before any filter: if a reviewer's first review does not count, no later one replaces it.
            found.setdefault((key, reviewer), _FirstWord(key, reviewer, *rest))
        return list(found.values())

    # The database

    async def _cases(self, query: Any) -> Sequence[Case]:
        now = stamp(self._clock())

        def ask(connection: Connection) -> Sequence[Case]:
            rows = connection.execute(query).all()
            row = t.locks.c
            own = row.trial_id.in_([found.trial_id for found in rows])
            # Expired locks are still in the table and must be ignored.
            taken = {
                found.trial_id: Lock(found.holder, datetime.fromisoformat(found.until))
                for found in connection.execute(select(t.locks).where(own, row.until > now))
            }
            return [_case_in(found, taken.get(found.trial_id)) for found in rows]

        return await self._transactions.read(ask)


class _FirstWord(NamedTuple):
    """The first review of a meme by somebody, in whichever of its trials."""

    meme: tuple[str, str]
    reviewer: str
    label: str
    verdict: str
    blind: bool
    at: str
    drawn: bool


def _agreement(words: Sequence[_FirstWord]) -> Agreement:
    labels: dict[tuple[str, str], dict[str, str]] = {}
    court: dict[tuple[str, str], dict[str, str]] = {}
    for word in words:
        labels.setdefault(word.meme, {})[word.reviewer] = word.label
        court.setdefault(word.meme, {})[word.reviewer] = word.verdict
    return agreement(labels, court, undecided=str(Label.UNDECIDED))


def _label_found(stored: str | None) -> Label | None:
    return Label(stored) if stored and stored != Label.UNDECIDED else None


def cursor_of(case: Case) -> tuple[int, str, str]:
    """Returns the position of a case in the queue."""
    return case.urgency, stamp(case.opened_at) if case.opened_at else "", case.trial_id


def _next(connection: Connection) -> int:
    """Returns the number of the next log entry to project."""
    return int(connection.execute(select(t.progress.c.next)).scalar_one_or_none() or 0)


def _for(why: ReviewPriority | None) -> list[ColumnElement[bool]]:
    return [] if why is None else [t.has_reason(why)]


def _saw_verdict(namespaces: frozenset[str] | None) -> list[ColumnElement[bool]]:
    return [] if namespaces is None else [_case.namespace.in_(sorted(namespaces))]


def _case_in(row: Any, lock: Lock | None) -> Case:
    return Case(
        trial_id=row.trial_id,
        opened_at=datetime.fromisoformat(row.opened_at) if row.opened_at else None,
        namespace=row.namespace,
        content_id=row.content_id,
        pixels_sha256=row.pixels_sha256,
        models=tuple(model for model in row.models.split("\n") if model),
        text=row.text,
        state=TrialState(row.state),
        label=Label(row.label) if row.label else None,
        holds=Label(row.holds) if row.holds else None,
        outcome=ReviewOutcome(row.outcome) if row.outcome else None,
        score=row.score,
        category=row.category,
        reasons=tuple((ReviewPriority(why), words) for why, words in json.loads(row.reasons)),
        waiting=row.waiting,
        urgency=row.urgency,
        asked_by=row.asked_by,
        erased=row.erased,
        lock=lock,
    )
