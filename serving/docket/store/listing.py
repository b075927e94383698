"""Tables derived from the log: the listing of trials, and what people found about content."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    true,
    tuple_,
    update,
)

from court.errors import BadRequest
from court.events import (
    EVENT_KINDS,
    AnyEvent,
    Procedure,
    ReviewOutcome,
    ReviewWithdrawn,
    TrialFailed,
    VerdictGiven,
    VerdictReviewed,
    parse_event,
)
from court.in_force import (
    DEFAULT_RULES,
    CaseNotes,
    ContentKey,
    FindingRules,
    InForce,
    PersonFinding,
    case_of,
    finding_of,
    in_force,
    standing,
)
from court.meme import is_text_digest
from court.record import TrialState
from court.verdict import Decision, Label
from retrieval.text import text_key
from serving.docket.store import review_tables
from serving.docket.store import tables as t
from serving.docket.store.bodies import event_in, unpacked
from serving.docket.store.tables import no_record
from serving.docket.store.transactions import SqlStore, Transactions

_row, _entry, _case = t.trials.c, t.entries.c, review_tables.cases.c
HEARD: Final = frozenset(kind.__name__ for kind in EVENT_KINDS if kind.by_person)
"""Kinds of the events that change a finding."""

_found = t.findings.c
COLUMNS: Final = tuple(
    column.label(f"found_{column.name}")
    for column in t.findings.c
    if column.name not in ("content", "wording", "notes")
)
"""Columns of a finding, for a query that joins it."""
SAME_CONTENT: Final = and_(_row.content == _found.content, _row.wording == _found.wording)
_ABOUT = select(*COLUMNS).select_from(t.trials.join(t.findings, SAME_CONTENT))
# Used by every request and built once: building a statement takes longer than running it.
_FINDING = select(*COLUMNS).where(_found.content == bindparam("meme"), _found.wording == bindparam("text"))
_SOME = (*HEARD, "Erased")
_BEGINNINGS = frozenset(kind.__name__ for kind in EVENT_KINDS if kind.state is TrialState.OPEN)
_KEPT = "~"
"""Ends the key of an expired trial's finding while a later one is in force."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed run of a trial, from its opening or last resumption."""

    begun: int
    ended: int
    failed: TrialFailed


@dataclass(frozen=True, slots=True)
class BlindReviewer:
    """Reviewer who may learn neither the verdicts that wait for them, nor why they wait."""

    name: str
    told_why: bool = False


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Filter of trials that must meet all conditions. Empty or None means no condition.

    Conditions on words, reasons, models, categories, reviewers and waiting are met by what the review queue has read.

    Attributes:
        holds: Labels in force: the last reviewer's, or else the court's.
        words: Each must occur in the text, the description or the rationale, or be an id of the trial.
        trial_id: Beginning of the id.
        decided_under_s: Seconds from the look to the decision, of which a reviewer took less.
        blind: Reviewer who finds nothing by what is hidden from them.
        namespaces: Namespaces that the caller may see. An empty set matches no trial.
        pixels_sha256: SHA-256 of the picture's pixels; for a text without picture, the text's digest.
    """

    labels: frozenset[Label] = frozenset()
    states: frozenset[TrialState] = frozenset()
    opened_from: datetime | None = None
    opened_until: datetime | None = None
    reviewed: bool | None = None
    needs_review: bool | None = None
    namespace: str | None = None
    namespaces: frozenset[str] | None = None
    pixels_sha256: str | None = None
    erased: bool | None = None
    other_than: frozenset[str] = frozenset()
    content_id: str | None = None
    request_id: str | None = None
    trial_id: str = ""
    holds: frozenset[Label] = frozenset()
    outcomes: frozenset[ReviewOutcome] = frozenset()
    waiting: bool | None = None
    words: tuple[str, ...] = ()
    reasons: frozenset[str] = frozenset()
    model: str = ""
    category: str = ""
    reviewer: str = ""
    decided_under_s: float | None = None
    blind: BlindReviewer | None = None

    @property
    def tells(self) -> bool:
        """True if a match gives away what is hidden from a blind reviewer."""
        why = bool(self.reasons) and not (self.blind and self.blind.told_why)
        sets = self.labels or self.holds or self.outcomes or self.category or self.reviewer
        return bool(sets) or why or {self.reviewed, self.needs_review, self.decided_under_s} != {None}


@dataclass(frozen=True, slots=True)
class DocketLine:
    """One trial in a listing.

    Attributes:
        state: State of the trial; OPEN includes interrupted trials.
        precedent: Id of the binding precedent that settled the trial; empty without one.
        found: Finding of people about the content, from whichever trial.
        block_stands: True if the verdict blocks until it is reviewed.
    """

    trial_id: str
    opened_at: datetime
    procedure: Procedure
    namespace: str
    content_id: str
    state: TrialState
    label: Label | None
    needs_human_review: bool
    request_id: str = ""
    review: VerdictReviewed | None = None
    failure_reason: str = ""
    erased: bool = False
    text_alone: bool = False
    policy: str = ""
    precedent: str = ""
    found: PersonFinding | None = None
    rules: FindingRules = DEFAULT_RULES
    block_stands: bool = False

    @property
    def in_force(self) -> InForce | None:
        """Finding in force on the content, as ``TrialRecord.in_force``; None for an erased trial."""
        if self.erased or self.label is None:
            return None
        return in_force(
            self.label,
            needs_review=self.needs_human_review and not self.block_stands,
            at=None,
            trial_id=self.trial_id,
            policy=self.policy,
            precedent=self.precedent,
            found=self.found or finding_of([self.review] if self.review else []),
            rules=self.rules,
        )

    @property
    def decision(self) -> Decision | None:
        """Decision in force, as ``TrialRecord.decision``; None for an erased trial."""
        if self.erased or self.state is TrialState.OPEN:
            return None
        finding = self.in_force
        return finding.decision if finding else Decision.REVIEW


_ALL = TrialFilter()
LISTED = select(t.trials, *COLUMNS).select_from(t.trials.outerjoin(t.findings, SAME_CONTENT))
"""Query of trials with the findings about their content."""
_AT_ONCE = 1024  # ids in one query
_ORDER: Final = (_row.opened_at, _row.trial_id)

# Used by every trial and built once: building a statement takes longer than running it.
_FAILED = (
    select(_row.trial_id)
    .where(_row.pixels_sha256 == bindparam("pixels"), _row.state.in_((TrialState.FAILED, TrialState.OPEN)))
    .limit(1)
)
_ATTEMPTS = (  # in log order: clocks may be set back, and differ between servers
    select(_entry.number, _entry.trial_id, _entry.kind)
    .join(t.trials, _row.trial_id == _entry.trial_id)
    .where(
        _row.pixels_sha256 == bindparam("pixels"),
        _row.procedure != Procedure.SUMMARY,
        t.IS_EVENT,
        _entry.kind.in_([kind.__name__ for kind in EVENT_KINDS if kind.state is not None]),
    )
    .order_by(_entry.number.desc())
)
_BODY = select(_entry.body).where(_entry.number == bindparam("number"))
_LABELS = select(_row.trial_id, _row.label, _row.review).where(
    _row.trial_id.in_(bindparam("trial_ids", expanding=True)), _row.state == TrialState.DECIDED, not_(_row.erased)
)


class TrialIndex(SqlStore):
    """Reads the table of trials."""

    def __init__(self, transactions: Transactions, rules: FindingRules = DEFAULT_RULES) -> None:
        """Reads nothing yet; ``rules`` say what follows from the findings of people."""
        super().__init__(transactions)
        self._rules = rules

    async def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        which: TrialFilter = _ALL,
        oldest_first: bool = False,
    ) -> Sequence[DocketLine]:
        """Lists trials by opening time, the latest first.

        Args:
            after: Cursor: ``opened_at`` and ``trial_id`` of the last line of the previous page.
        """

        def lines(connection: Connection) -> Sequence[DocketLine]:
            last = None if after is None else (t.stamp(after[0]), after[1])
            return self._page(connection, which, _ORDER, limit=limit, last=last, descending=not oldest_first)

        return await self._transactions.read(lines)

    async def search(
        self, which: TrialFilter, *, limit: int, sort: str = "opened", descending: bool = True, after: str = ""
    ) -> Sequence[DocketLine]:
        """Lists trials in one of :data:`SORTS`.

        Args:
            after: Id of the last trial of the previous page.

        Raises:
            BadRequest: There is no such trial to go on after.
        """
        columns = [*_sorted_by(sort, which), *_ORDER]

        def lines(connection: Connection) -> Sequence[DocketLine]:
            last = None
            if after:
                # By its id alone, so that an address holds no value that is hidden from its reader.
                seen = [] if which.namespaces is None else [_row.namespace.in_(sorted(which.namespaces))]
                last = connection.execute(select(*columns).where(_row.trial_id == after, *seen)).one_or_none()
                if last is None:
                    raise BadRequest("That is no place in the list of trials.", field="after")
            return self._page(connection, which, columns, limit=limit, last=last, descending=descending)

        return await self._transactions.read(lines)

    async def count(self, which: TrialFilter) -> int:
        """Counts the trials that meet a filter."""
        query = select(func.count()).select_from(t.trials).where(*_conditions(which))
        return await self._transactions.read(
            lambda connection: sum(connection.execute(query.where(*way)).scalar_one() for way in _ways(which, None))
        )

    def _page(
        self,
        connection: Connection,
        which: TrialFilter,
        columns: Sequence[Any],
        *,
        limit: int,
        last: Sequence[Any] | None,
        descending: bool,
    ) -> Sequence[DocketLine]:
        # Applied to each of the cases below: at most a page of any of them can be on the page.
        keys = [column.label(f"key_{number}") for number, column in enumerate(columns)]
        query = LISTED.add_columns(*keys).where(*_conditions(which)).limit(limit)
        query = query.order_by(*(key.desc() if descending else key for key in keys))
        if last is not None:
            position, end = tuple_(*columns), tuple_(*last)
            query = query.where(position < end if descending else position > end)
        # Reviews are rare, which SQLite can't know. likely() keeps it from using an index for the wrapped condition.
        led = which.reviewed is True and connection.dialect.name == "sqlite"
        pages = [connection.execute(query.where(*way)) for way in _ways(which, func.likely if led else None)]
        merged = heapq.merge(*pages, key=lambda row: tuple(row[-len(keys) :]), reverse=descending)
        return [line_in(row, self._rules) for row in islice(merged, limit)]

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        """Returns the labels in force, by trial: the Judge's, or the reviewer's if overruled.

        Trials that have no verdict or do not exist are missing.
        """
        return await self._transactions.read_batched(lambda connection: _labels(connection, trial_ids))

    async def failures(self, pixels_sha256: str) -> Sequence[Failure]:
        """Returns failures of trials in which a model may have been shown this picture, in stored order.

        Only those since the last verdict by a model that was shown it; trials without models do not count.
        """
        return await self._transactions.read(lambda connection: _failures(connection, pixels_sha256))

    async def ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Returns ids of trials that begin with a text, in order."""
        query = select(_row.trial_id).where(_row.trial_id.startswith(prefix, autoescape=True))
        query = query.order_by(_row.trial_id).limit(limit)
        return await self._transactions.read(lambda connection: connection.execute(query).scalars().all())

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """Returns the ids of all trials by the request that they were opened for, the oldest first."""
        return await self._transactions.read(_requests)


SORTS: Final = ("opened", "harm", "reason", "content", "procedure")
"""Orders of :meth:`TrialIndex.search`."""


def _sorted_by(sort: str, which: TrialFilter) -> Sequence[Any]:
    """Returns the columns that decide before the time; what is hidden from a reviewer sorts as if it were missing."""
    # Of what tells something, hidden trials are left out anyway.
    known, own = true() if which.tells else _known(which), _case.trial_id == _row.trial_id
    if sort == "harm":
        return [func.coalesce(select(_case.score).where(own, known).scalar_subquery(), -1.0)]
    if sort == "reason":
        readable = true() if which.blind and which.blind.told_why else known
        urgency = select(-_case.urgency).where(own, readable, _case.reasons != "[]").scalar_subquery()
        return [func.coalesce(urgency, -99)]
    return {"content": [_row.namespace, _row.content_id], "procedure": [_row.procedure]}.get(sort, [])


def _conditions(which: TrialFilter) -> Iterator[ColumnElement[bool]]:
    """Yields the conditions that no index has in the order of a listing."""
    if which.opened_from is not None:
        yield _row.opened_at >= t.stamp(which.opened_from)
    if which.opened_until is not None:
        yield _row.opened_at < t.stamp(which.opened_until)
    if which.erased is not None:
        yield _row.erased if which.erased else not_(_row.erased)
    if which.content_id is not None:
        yield _row.content_id == which.content_id
    if which.request_id is not None:
        yield _row.request_id == which.request_id
    if which.trial_id:
        yield _row.trial_id.startswith(which.trial_id, autoescape=True)
    if which.other_than:
        yield _row.namespace.not_in(sorted(which.other_than))
    if which.waiting is not None:
        waits = _of_case(_case.waiting)
        yield waits if which.waiting else not_(waits)
    for word in which.words:
        ids = (_row.content_id == word, _row.request_id == word, _row.trial_id.startswith(word, autoescape=True))
        # autoescape: % and _ in user input are literal. The court's words only match where they may be known.
        letters, rationale = (
            each.contains(text_key(word), autoescape=True) for each in (_case.letters, _case.rationale)
        )
        yield or_(*ids, _of_case(or_(letters, and_(rationale, _known(which)))))
    if which.reasons:
        yield _of_case(or_(*map(review_tables.has_reason, sorted(which.reasons))))
    if which.model:
        # Including the line breaks around it, so that a part of a model's name does not match.
        yield _of_case(_case.models.contains(f"\n{which.model}\n", autoescape=True))
    if which.category:
        yield _of_case(_case.category == which.category)
    review = review_tables.reviews.c
    if which.reviewer:
        yield exists().where(review.trial_id == _row.trial_id, review.reviewer == which.reviewer)
    if which.decided_under_s is not None:
        yield exists().where(review.trial_id == _row.trial_id, review.look_s < which.decided_under_s)
    if which.blind and which.tells:
        yield _known(which)


def _of_case(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(_case.trial_id == _row.trial_id, condition)


def _known(which: TrialFilter) -> ColumnElement[bool]:
    return _row.trial_id.not_in(review_tables.hidden_ids(which.blind.name, which.namespaces)) if which.blind else true()


def _in_force(label: Label) -> Sequence[ColumnElement[bool]]:
    """Returns the ways in which a label is in force."""
    # A reviewer's words can't be mistaken for the field, since their quotes are escaped in JSON.
    overruled = _row.review.contains(f'"label":"{label}"')
    return [
        and_(_row.label == label, _row.outcome != ReviewOutcome.OVERRULED),
        and_(_row.outcome == ReviewOutcome.OVERRULED, overruled),
    ]


def _ways(which: TrialFilter, wrapped: Callable[..., Any] | None) -> Iterator[Sequence[ColumnElement[bool]]]:
    """Splits a filter into mutually exclusive cases that only test for equality.

    Each can be read from an index in listing order and stops when the page is full; several values in one query would
    have to be sorted first.
    """
    labels, states = which.labels, which.states
    decided = bool(labels or which.holds or which.outcomes) or which.reviewed is True or which.needs_review is True
    if decided:
        # Only a verdict has a label, a review or a need for one.
        if states and TrialState.DECIDED not in states:
            return
        states = frozenset()
    outcomes = sorted(which.outcomes) or {None: None, False: [""], True: list(ReviewOutcome)}[which.reviewed]
    if which.outcomes and which.reviewed is False:
        return
    namespaces = which.namespaces
    if which.namespace is not None:
        if namespaces is not None and which.namespace not in namespaces:
            return
        namespaces = frozenset({which.namespace})
    pictures = None if which.pixels_sha256 is None else [which.pixels_sha256]
    if pictures and not decided:
        states = states or frozenset(TrialState)  # needed to use the index of pictures
    some = states and (set(states) != set(TrialState) or pictures)
    choices: Sequence[tuple[Any, Sequence[Any] | None]] = [
        (_row.pixels_sha256, pictures),
        (_row.label, sorted(labels) or None),
        (_row.state, sorted(states) if some else [TrialState.DECIDED] if pictures else None),
        (_row.outcome, outcomes),
        (_row.needs_review, None if which.needs_review is None else [which.needs_review]),
        (_row.namespace, None if namespaces is None else sorted(namespaces)),
    ]
    filters = [(column, values) for column, values in choices if values is not None]
    alternatives: list[list[ColumnElement[bool]]] = [
        [column == value if wrapped is None or column is _row.outcome else wrapped(column == value) for value in values]
        for column, values in filters
    ]
    if which.holds:
        alternatives.append([way for label in sorted(which.holds) for way in _in_force(label)])
    yield from product(*alternatives)


def _requests(connection: Connection) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    query = select(_row.request_id, _row.trial_id).order_by(_row.opened_at, _row.trial_id)
    for request_id, trial_id in connection.execute(query):
        found.setdefault(request_id, []).append(trial_id)
    return found


def _failures(connection: Connection, pixels_sha256: str) -> Sequence[Failure]:
    # Most pictures have no failures, however many trials they have. A failed trial that was decided later has none.
    if connection.execute(_FAILED, {"pixels": pixels_sha256}).first() is None:
        return []
    found: list[Failure] = []
    ended: dict[str, tuple[int, TrialFailed]] = {}
    is_over = False
    # Newest first, so that the end of an attempt is seen before its start.
    for number, trial_id, kind in connection.execute(_ATTEMPTS, {"pixels": pixels_sha256}).all():
        if kind in _BEGINNINGS:
            if trial_id in ended:
                found.append(Failure(number, *ended.pop(trial_id)))
        elif not is_over:
            body = connection.execute(_BODY, {"number": number}).scalar_one()
            try:
                end = event_in(unpacked(bytes(body or b"")), {})
            except ValueError as error:
                raise no_record(trial_id) from error
            if isinstance(end, TrialFailed):
                ended[trial_id] = (number, end)
            # Without a model call, no model was shown the picture. The calls of a panel are recorded with its judges,
            # and its verdict has a judge number.
            is_over = isinstance(end, VerdictGiven) and (end.call is not None or end.judge > 0)
        if is_over and not ended:
            break
    return sorted(found, key=lambda failure: failure.ended)


def _labels(connection: Connection, trial_ids: Sequence[str]) -> Mapping[str, Label]:
    found: dict[str, Label] = {}
    for first in range(0, len(trial_ids), _AT_ONCE):
        parameters = {"trial_ids": _filled(trial_ids[first : first + _AT_ONCE])}
        for trial_id, label, body in connection.execute(_LABELS, parameters):
            review = _reviewed(trial_id, body)
            overruled = review is not None and review.outcome is ReviewOutcome.OVERRULED
            found[trial_id] = review.label if review is not None and overruled else Label(label)
    return found


def _filled(ids: Sequence[str]) -> Sequence[str]:
    """Pads the ids with the last one to a power of two in number: drivers cache statements by their text."""
    return [*ids, *[ids[-1]] * ((1 << (len(ids) - 1).bit_length()) - len(ids))]


def _reviewed(trial_id: str, body: str | None) -> VerdictReviewed | None:
    if body is None:
        return None
    try:
        event = parse_event(body)
    except ValidationError as error:
        raise no_record(trial_id) from error
    assert isinstance(event, VerdictReviewed)
    return event


def line_in(row: Any, rules: FindingRules) -> DocketLine:
    """Returns the line of a row of :data:`LISTED`."""
    return DocketLine(
        trial_id=row.trial_id,
        opened_at=datetime.fromisoformat(row.opened_at),
        procedure=Procedure(row.procedure),
        namespace=row.namespace,
        content_id=row.content_id,
        state=TrialState(row.state),
        label=Label(row.label) if row.label else None,
        needs_human_review=row.needs_review,
        block_stands=row.block_stands,
        request_id=row.request_id,
        review=_reviewed(row.trial_id, row.review),
        failure_reason=row.failure_reason,
        erased=row.erased,
        text_alone=is_text_digest(row.pixels_sha256),
        policy=row.policy,
        precedent=row.precedent,
        found=found_in(row),
        rules=rules,
    )


@dataclass(frozen=True, slots=True)
class FindingChanges:
    """Changes of findings since an entry of the log.

    Attributes:
        size: Number of entries of the log that were taken into account.
        trials: Trials that were reviewed, contested or erased.
        contents: Content of those that are still there.
    """

    size: int
    trials: frozenset[str]
    contents: frozenset[ContentKey]


class FindingStore(SqlStore):
    """Reads the table of findings."""

    async def get(self, content: ContentKey) -> PersonFinding | None:
        """Returns the finding about content, or None."""
        return await self._transactions.read_batched(
            lambda connection: _one(connection.execute(_FINDING, content._asdict()).one_or_none())
        )

    async def expire(self, now: datetime) -> None:
        """Deletes findings of expired trials that rule no longer; an earlier one of another trial is in force again."""
        ended = (_found.until != "", _found.until <= t.stamp(now))

        def remove(connection: Connection) -> None:
            contents = connection.execute(select(_found.content, _found.wording).where(*ended)).all()
            connection.execute(delete(t.findings).where(*ended))
            for content in contents:
                _fold(connection, ContentKey(*content))

        await self._transactions.write_alone(remove)

    async def changes(self, since: int | None) -> FindingChanges:
        """Returns the changes by entries from the number ``since`` on; None for the log's size alone."""

        def read(connection: Connection) -> FindingChanges:
            # First: an entry that comes meanwhile is read again, and none is missed.
            size = connection.execute(select(t.log.c.size)).scalar_one()
            if since is None:
                return FindingChanges(size, frozenset(), frozenset())
            # By kind, so that both databases use the index, whatever else was appended.
            query = select(_entry.trial_id, _row.content, _row.wording).outerjoin(
                t.trials, _row.trial_id == _entry.trial_id
            )
            rows = [
                row
                for kind in _SOME
                for row in connection.execute(query.where(_entry.kind == kind, _entry.number >= since))
            ]
            contents = frozenset(ContentKey(row.content, row.wording) for row in rows if row.content)
            return FindingChanges(size, frozenset(row.trial_id for row in rows), contents)

        return await self._transactions.read_batched(read)


def found_in(row: Any) -> PersonFinding | None:
    """Returns the finding in a row of a query with :data:`COLUMNS`; None if there is none, or it has ended."""
    if row.found_trial_id is None:
        return None
    until = datetime.fromisoformat(row.found_until) if row.found_until else None
    if until is not None and until <= datetime.now(UTC):
        return None
    return PersonFinding(
        label=Label(row.found_label) if row.found_label else None,
        at=datetime.fromisoformat(row.found_at),
        trial_id=row.found_trial_id,
        contested=row.found_contested,
        acquitters=row.found_acquitters,
        policy=row.found_policy,
        until=until,
    )


def finding_about(connection: Connection, trial_id: str) -> PersonFinding | None:
    """Returns the finding about the content of a trial, or None."""
    return _one(connection.execute(_ABOUT.where(_row.trial_id == trial_id)).one_or_none())


def update_finding(connection: Connection, event: AnyEvent) -> None:
    """Goes on with the case about the content of a trial, whose row has been updated."""
    query = select(_row.content, _row.wording, _row.policy).where(_row.trial_id == event.trial_id, _row.content != "")
    for meme, text, policy in connection.execute(query).all():
        content = ContentKey(meme, text)
        stored = connection.execute(select(_found.notes, _found.until).where(_at(content))).one_or_none()
        # What an expired trial left ends with the next finding, and comes back with its withdrawal.
        if isinstance(event, ReviewWithdrawn) or (stored and stored.until and isinstance(event, VerdictReviewed)):
            _fold(connection, content)
        elif stored is None or not stored.until or stored.until > t.stamp(datetime.now(UTC)):
            notes = CaseNotes.model_validate_json(stored.notes) if stored else CaseNotes()
            _put(connection, content, notes.then(event, policy), until=stored.until if stored else "")


def erase_finding(connection: Connection, trial_id: str, *, days: int | None = None) -> None:
    """Removes what a trial says about its content, before its row is blanked.

    Args:
        days: Days for which a finding stays whose trial has expired; None for an erasure, after which none does.
    """
    own = _found.trial_id == trial_id
    before = _one(connection.execute(select(*COLUMNS).where(own)).one_or_none()) if days is not None else None
    if before is not None and days is not None and (until := before.at + timedelta(days=days)) > datetime.now(UTC):
        # Without the names of its reviewers.
        notes = CaseNotes(
            label=before.label, at=before.at, trial_id=trial_id, contested=before.contested, policy=before.policy
        ).model_dump_json()
        connection.execute(update(t.findings).where(own).values(until=t.stamp(until), notes=notes))
        return
    query = select(_row.content, _row.wording).where(_row.trial_id == trial_id, _row.content != "", _row.heard)
    contents = connection.execute(query.union(select(_found.content, _found.wording).where(own))).all()
    connection.execute(delete(t.findings).where(own))
    for content in contents:
        # Without this trial: an earlier finding about another trial of the same content is in force again.
        _fold(connection, ContentKey(*content), without=trial_id)


def _fold(connection: Connection, content: ContentKey, *, without: str = "") -> None:
    """Folds anew the finding about content from all trials, or all but one."""
    before = _one(connection.execute(select(*COLUMNS).where(_at(content))).one_or_none())
    same = (_row.content == content.meme, _row.wording == content.text, _row.trial_id != without, _row.heard)
    query = select(_entry.body, _row.trial_id, _row.policy).join(t.trials, _row.trial_id == _entry.trial_id)
    query = query.where(*same, t.IS_EVENT, _entry.kind.in_(HEARD), _entry.body.is_not(None)).order_by(_entry.number)
    events, policies = list[AnyEvent](), dict[str, str]()
    for body, trial_id, policy in connection.execute(query):
        policies[trial_id] = policy
        with suppress(ValueError):  # somebody altered it, which `memecourt docket verify` reports
            events.append(event_in(unpacked(bytes(body)), {}))
    notes, shelved = case_of(events, policies), content._replace(meme=f"{content.meme}{_KEPT}")
    if before is not None and before.until is not None:
        # That of an expired trial is replaced only by a later one.
        if notes.at is None or notes.at <= before.at:
            return
        _move(connection, content, shelved)
    _put(connection, content, notes)
    left = _one(connection.execute(select(*COLUMNS).where(_at(shelved))).one_or_none())
    if left is not None and (notes.at is None or notes.at <= left.at):
        _move(connection, shelved, content)


def _move(connection: Connection, content: ContentKey, to: ContentKey) -> None:
    connection.execute(delete(t.findings).where(_at(to)))
    connection.execute(update(t.findings).where(_at(content)).values(content=to.meme))


def standing_review(connection: Connection, trial_id: str) -> VerdictReviewed | None:
    """Returns the last review of a trial that was not withdrawn, or None."""
    events = standing(events_by_people(connection, trial_id).values())
    return next((event for event in reversed(events) if isinstance(event, VerdictReviewed)), None)


def events_by_people(connection: Connection, trial_id: str) -> Mapping[int, AnyEvent]:
    """Returns the events of people about a trial, in order, by the number of the entry."""
    query = select(_entry.number, _entry.body).where(_entry.trial_id == trial_id, t.IS_EVENT, _entry.kind.in_(HEARD))
    found = dict[int, AnyEvent]()
    for number, body in connection.execute(query.where(_entry.body.is_not(None)).order_by(_entry.seq)):
        with suppress(ValueError):  # as above
            found[number] = event_in(unpacked(bytes(body)), {})
    return found


def _put(connection: Connection, content: ContentKey, notes: CaseNotes, until: str = "") -> None:
    connection.execute(delete(t.findings).where(_at(content)))
    if (row := finding_row(content, notes, until)) is not None:
        connection.execute(insert(t.findings), row)


def finding_row(content: ContentKey, notes: CaseNotes, until: str = "") -> dict[str, object] | None:
    """Returns the row of a finding; None if there is none."""
    if (found := notes.finding) is None:
        return None
    return {
        "content": content.meme,
        "wording": content.text,
        "trial_id": found.trial_id,
        "label": str(found.label or ""),
        "at": t.stamp(found.at),
        "contested": found.contested,
        "acquitters": found.acquitters,
        "policy": found.policy,
        "notes": notes.model_dump_json(),
        "until": until,
    }


def _at(content: ContentKey) -> ColumnElement[bool]:
    return and_(_found.content == content.meme, _found.wording == content.text)


def _one(row: Any) -> PersonFinding | None:
    return None if row is None else found_in(row)
