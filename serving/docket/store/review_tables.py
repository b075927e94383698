"""The tables of the review queue, in the docket's database.

Cases and reviews are projected from the log and can be rebuilt at any time. The other tables are the queue's own data.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    TypeDecorator,
    and_,
    delete,
    exists,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Dialect

from serving.docket.store.tables import WORD, Name

metadata = MetaData()


class Words(TypeDecorator[str]):
    """Column of untrusted searchable text. PostgreSQL accepts no NUL, which becomes a space."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the stored form."""
        # Lone surrogates, which neither database accepts, become question marks.
        return None if value is None else value.replace("\0", " ").encode("utf-8", "replace").decode()


cases = Table(
    "desk_cases",
    metadata,
    Column("trial_id", WORD, primary_key=True),
    Column("opened_at", WORD, nullable=False, default=""),
    Column("namespace", Name, nullable=False, default=""),
    Column("content_id", Name, nullable=False, default=""),
    Column("pixels_sha256", WORD, nullable=False, default=""),  # of a text that was sent alone, the text's digest
    Column("models", Words, nullable=False, default=""),  # each between two line breaks
    Column("text", Words, nullable=False, default=""),  # of the meme
    Column("letters", Words, nullable=False, default=""),  # normalised text and description, for searching
    Column("rationale", Words, nullable=False, default=""),  # likewise, but hidden from blinded reviewers
    Column("same", WORD, nullable=False, default=""),  # equal for texts with the same letters; empty if there are none
    Column("state", WORD, nullable=False, default="OPEN"),
    Column("label", WORD, nullable=False, default=""),  # the court's; empty where there is no verdict
    Column("holds", WORD, nullable=False, default=""),  # the label in force: the last reviewer's, if there is one
    Column("outcome", WORD, nullable=False, default=""),  # of the last review; empty where there was none
    Column("score", Float),  # P(harmful), where the verdict has one
    Column("category", Name, nullable=False, default=""),
    Column("reasons", Text, nullable=False, default="[]"),  # reasons for review: JSON, [reason, why] each
    Column("drawn", Boolean, nullable=False, default=False),  # True if it was randomly sampled
    Column("urgency", Integer, nullable=False, default=0),  # the lowest number is the most urgent
    Column("waiting", Boolean, nullable=False, default=False),  # True if it waits for a review now
    Column("appealed", Boolean, nullable=False, default=False),  # True while an appeal is undecided
    Column("asked_by", Name, nullable=False, default=""),  # reviewer who asked for a second opinion
    Column("erased", Boolean, nullable=False, default=False),
)
Index("desk_cases_waiting", cases.c.waiting, cases.c.urgency, cases.c.opened_at, cases.c.trial_id)
Index("desk_cases_by_time", cases.c.opened_at, cases.c.trial_id)
Index("desk_cases_by_picture", cases.c.pixels_sha256)
Index("desk_cases_by_words", cases.c.same)

reviews = Table(
    "desk_reviews",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # of the entry
    Column("trial_id", WORD, nullable=False, index=True),
    Column("reviewer", Name, nullable=False, index=True),
    Column("at", WORD, nullable=False),
    Column("outcome", WORD, nullable=False),
    Column("label", WORD, nullable=False),
    Column("verdict", WORD, nullable=False),  # the court's label
    Column("blind", Boolean, nullable=False),
    Column("seq", Integer, nullable=False),  # of the event in its trial
    Column("look_s", Float),  # seconds from the look to the decision; NULL if unknown
)

pending = Table(
    "desk_pending",
    metadata,
    # Reviews that the library of precedents has still to follow; stored with them.
    Column("trial_id", WORD, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("due", WORD, nullable=False),
    Column("failure", WORD, nullable=False, default=""),  # reason of the last attempt's failure
)

progress = Table(
    "desk_progress",
    metadata,
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("next", BigInteger, nullable=False),  # number of the entry to read next
)

locks = Table(
    "desk_locks",
    metadata,
    Column("trial_id", WORD, primary_key=True),
    Column("holder", Name, nullable=False),
    Column("until", WORD, nullable=False),
)

seen = Table(
    "desk_seen",
    metadata,
    Column("trial_id", WORD, primary_key=True),
    Column("who", Name, primary_key=True),
    Column("at", WORD, nullable=False),
)

_case, _same_meme_case = cases.c, cases.alias("twin").c


def is_blinded(who: str, namespaces: frozenset[str] | None = None) -> ColumnElement[bool]:
    """Builds the SQL condition that a case's verdict is hidden from a reviewer; see the review queue's locks."""
    # Other trials of the meme that still wait for this reviewer: this verdict would give theirs away.
    waits_too = [_same_meme(), _same_meme_case.waiting, ~_saw_verdict(who, _same_meme_case)]
    if namespaces is not None:
        # A trial that they may not review never gets their review, and would hide this verdict for ever.
        waits_too.append(_same_meme_case.namespace.in_(sorted(namespaces)))
    return and_(~_saw_verdict(who), or_(_case.waiting, exists().where(*waits_too)))


def hidden_ids(who: str, namespaces: frozenset[str] | None = None) -> Select[tuple[str]]:
    """Builds the query of the trials whose verdict is hidden from a reviewer, for a condition of another query."""
    # Found from the cases that wait, which are few: to ask of each trial takes as long as the rest of a search.
    waiting = select(_same_meme_case.pixels_sha256).where(_same_meme_case.waiting).correlate(None)
    some = or_(_case.waiting, _case.pixels_sha256.in_(waiting))
    return select(_case.trial_id).where(some, is_blinded(who, namespaces)).correlate(None)


def has_reason(why: str) -> ColumnElement[bool]:
    """Builds the SQL condition that a case was queued for a reason, a member of ``ReviewPriority``."""
    # A sentence can't be mistaken for a kind, since its quotes are escaped in JSON.
    return _case.reasons.contains(f'["{why}", ', autoescape=True)


def saw_any(who: str) -> ColumnElement[bool]:
    """Builds the SQL condition that a reviewer saw the verdict of a case, or of another of the same meme."""
    return or_(_saw_verdict(who), exists().where(_same_meme(), _saw_verdict(who, _same_meme_case)))


def _saw_verdict(who: str, case: Any = _case) -> ColumnElement[bool]:
    shown = exists().where(seen.c.trial_id == case.trial_id, seen.c.who == who)
    reviewed = exists().where(reviews.c.trial_id == case.trial_id, reviews.c.reviewer == who)
    return or_(shown, reviewed)


def _same_meme() -> ColumnElement[bool]:
    # An erased trial has no meme.
    return and_(
        _same_meme_case.pixels_sha256 == _case.pixels_sha256,
        _case.pixels_sha256 != "",
        _same_meme_case.same == _case.same,
    )


_BLANK = {
    "namespace": "",
    "content_id": "",
    "pixels_sha256": "",
    "models": "",
    "text": "",
    "letters": "",
    "rationale": "",
    "same": "",
    "score": None,
    "category": "",
    "reasons": "[]",
    "asked_by": "",
    "appealed": False,
    "waiting": False,
    "erased": True,
}


def forget(connection: Connection, trial_id: str) -> None:
    """Deletes the queue's data of a trial that is being erased; to be called in the same transaction.

    An empty case remains, so that entries read before the erasure and projected after it don't restore the data.
    """
    if connection.execute(update(cases).where(cases.c.trial_id == trial_id).values(_BLANK)).rowcount == 0:
        connection.execute(cases.insert().values(trial_id=trial_id, **_BLANK))
    for table in (reviews, pending, locks, seen):
        connection.execute(delete(table).where(table.c.trial_id == trial_id))
