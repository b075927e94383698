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
    func,
    insert,
    not_,
    select,
    tuple_,
    update,
)

from court.events import (
    AnyEvent,
    AppealOpened,
    Procedure,
    ReviewOutcome,
    ReviewWithdrawn,
    SecondOpinionAsked,
    TrialFailed,
    TrialOpened,
    TrialResumed,
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
from serving.docket.store import tables as t
from serving.docket.store.bodies import event_in, unpacked
from serving.docket.store.database import no_record
from serving.docket.store.transactions import SqlStore, Transactions

_row, _entry = t.trials.c, t.entries.c
HEARD: Final = frozenset(
    {kind.__name__ for kind in (VerdictReviewed, ReviewWithdrawn, SecondOpinionAsked, AppealOpened)}
)
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
_KEPT = "~"
"""Ends the key of an expired trial's finding while a later one is in force."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed run of a trial, from its opening or last resumption.

    Attributes:
        begun: Number of the log entry of its start.
        ended: Number of the log entry of its failure.
    """

    begun: int
    ended: int
    failed: TrialFailed


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Filter of trials that must meet all conditions. Empty or None means no condition.

    Attributes:
        reviewed: True for reviewed verdicts, False for others.
        needs_review: True for verdicts that need human review, False for others.
        namespaces: Namespaces that the caller may see. An empty set matches no trial.
        pixels_sha256: SHA-256 of the picture's pixels; for a text without picture, the text's digest.
        erased: True for erased trials, False for others.
        content_id: Caller's id of the content.
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


@dataclass(frozen=True, slots=True)
class DocketLine:
    """One trial in a listing.

    Attributes:
        state: State of the trial; OPEN includes interrupted trials.
        erased: True if the record was erased, so that nothing of the meme is left.
        text_alone: True if the text was sent without a picture.
        policy: Digest of the policy that was applied; empty if unknown.
        precedent: Id of the binding precedent that settled the trial; empty without one.
        found: Finding of people about the content, from whichever trial.
        rules: Rules for what follows from it.
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
# Timestamps are texts of a fixed format (tables.stamp); this prefix identifies the minute.
_MINUTE_CHARS = len("2026-01-31T23:59")
_AT_ONCE = 1024  # ids in one query

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
        _entry.kind.in_([kind.__name__ for kind in (TrialOpened, TrialResumed, TrialFailed, VerdictGiven)]),
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
            position = tuple_(_row.opened_at, _row.trial_id)
            # Applied to each of the cases below: at most a page of any of them can be on the page.
            query = LISTED.limit(limit)
            if oldest_first:
                query = query.order_by(_row.opened_at, _row.trial_id)
            else:
                query = query.order_by(_row.opened_at.desc(), _row.trial_id.desc())
            if after is not None:
                last = tuple_(t.stamp(after[0]), after[1])
                query = query.where(position > last if oldest_first else position < last)
            if which.opened_from is not None:
                query = query.where(_row.opened_at >= t.stamp(which.opened_from))
            if which.opened_until is not None:
                query = query.where(_row.opened_at < t.stamp(which.opened_until))
            if which.erased is not None:
                query = query.where(_row.erased if which.erased else not_(_row.erased))
            if which.content_id is not None:
                query = query.where(_row.content_id == which.content_id)
            if which.other_than:
                query = query.where(_row.namespace.not_in(sorted(which.other_than)))
            # Reviews are rare, which SQLite can't know. likely() keeps it from using an index for the wrapped
            # condition.
            led = which.reviewed is True and connection.dialect.name == "sqlite"
            wrapped = func.likely if led else None
            pages = [connection.execute(query.where(*way)) for way in _ways(which, wrapped)]
            merged = heapq.merge(*pages, key=lambda row: (row.opened_at, row.trial_id), reverse=not oldest_first)
            return [line_in(row, self._rules) for row in islice(merged, limit)]

        return await self._transactions.read(lines)

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


def _ways(which: TrialFilter, wrapped: Callable[..., Any] | None) -> Iterator[Sequence[ColumnElement[bool]]]:
    """Splits a filter into mutually exclusive cases that only test for equality.

    Each can be read from an index in listing order and stops when the page is full; several values in one query would
    have to be sorted first.
    """
    labels, states = which.labels, which.states
    decided = bool(labels) or which.reviewed is True or which.needs_review is True
    if decided:
        # Only a verdict has a label, a review or a need for one.
        if states and TrialState.DECIDED not in states:
            return
        states = frozenset()
    outcomes = {None: None, False: [""], True: list(ReviewOutcome)}[which.reviewed]
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
    for values in product(*(values for _, values in filters)):
        yield [
            column == value if wrapped is None or column is _row.outcome else wrapped(column == value)
            for (column, _), value in zip(filters, values, strict=True)
        ]


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
        if kind in (TrialOpened.__name__, TrialResumed.__name__):
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
