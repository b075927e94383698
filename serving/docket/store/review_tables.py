"""The tables of the desk, beside a docket's own.

Cases and reviews are drawn from the log, and can be drawn from it anew at any time. The others are the desk's alone.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    delete,
    update,
)
from sqlalchemy.engine import Dialect

from serving.docket.store.tables import WORD, Name

metadata = MetaData()


class Words(TypeDecorator[str]):
    """Column of searchable text from strangers. PostgreSQL takes no NUL: it becomes a space."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the stored form."""
        # Lone surrogates, which neither database takes, become question marks.
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
    Column("letters", Words, nullable=False, default=""),  # what is searched: text and description, folded
    Column("rationale", Words, nullable=False, default=""),  # likewise, but not for who must not know the verdict yet
    Column("same", WORD, nullable=False, default=""),  # texts of the same letters share it; empty where there are none
    Column("state", WORD, nullable=False, default="OPEN"),
    Column("label", WORD, nullable=False, default=""),  # the court's; empty where there is no verdict
    Column("holds", WORD, nullable=False, default=""),  # the label that holds: the last reviewer's, if there was one
    Column("outcome", WORD, nullable=False, default=""),  # of the last review; empty where there was none
    Column("score", Float),  # P(harmful), where the verdict has one
    Column("category", Name, nullable=False, default=""),
    Column("reasons", Text, nullable=False, default="[]"),  # why a person should look: JSON, [reason, why] each
    Column("drawn", Boolean, nullable=False, default=False),  # whether chance picked it
    Column("urgency", Integer, nullable=False, default=0),  # the lowest number is taken first
    Column("waiting", Boolean, nullable=False, default=False),  # whether a person should look now
    Column("asked_by", Name, nullable=False, default=""),  # who wants a second opinion
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

searches = Table(
    "desk_searches",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("query", Words, nullable=False),
    Column("saved_at", String, nullable=False),
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
    "waiting": False,
    "erased": True,
}


def forget(connection: Connection, trial_id: str) -> None:
    """Takes out all that the desk holds of a trial that is being erased; to be called in the same transaction.

    A case without words stays: what was read from the log before and is written after must not come back.
    """
    if connection.execute(update(cases).where(cases.c.trial_id == trial_id).values(_BLANK)).rowcount == 0:
        connection.execute(cases.insert().values(trial_id=trial_id, **_BLANK))
    for table in (reviews, locks, seen):
        connection.execute(delete(table).where(table.c.trial_id == trial_id))
