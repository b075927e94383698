"""Format 6: the desk searches rationales apart from the rest, and has one reason for sides and votes that disagree."""

import sqlalchemy as sa
from alembic import op

from serving.docket.store.review_tables import Words
from serving.docket.store.tables import WORD, Name

revision = "6"
down_revision = "5"


def upgrade() -> None:
    """Throws away what the desk had drawn from the log: whoever opens a desk draws it again."""
    for table in ("desk_reviews", "desk_progress"):
        op.execute(sa.text(f"DELETE FROM {table}"))
    op.drop_table("desk_cases")
    op.create_table(
        "desk_cases",
        sa.Column("trial_id", WORD, primary_key=True),
        sa.Column("opened_at", WORD, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("content_id", Name, nullable=False),
        sa.Column("pixels_sha256", WORD, nullable=False),
        sa.Column("models", Words, nullable=False),
        sa.Column("text", Words, nullable=False),
        sa.Column("letters", Words, nullable=False),
        sa.Column("rationale", Words, nullable=False),
        sa.Column("same", WORD, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("label", WORD, nullable=False),
        sa.Column("holds", WORD, nullable=False),
        sa.Column("outcome", WORD, nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("category", Name, nullable=False),
        sa.Column("reasons", sa.Text, nullable=False),
        sa.Column("drawn", sa.Boolean, nullable=False),
        sa.Column("urgency", sa.Integer, nullable=False),
        sa.Column("waiting", sa.Boolean, nullable=False),
        sa.Column("asked_by", Name, nullable=False),
        sa.Column("erased", sa.Boolean, nullable=False),
    )
    op.create_index("desk_cases_waiting", "desk_cases", ["waiting", "urgency", "opened_at", "trial_id"])
    op.create_index("desk_cases_by_time", "desk_cases", ["opened_at", "trial_id"])
    op.create_index("desk_cases_by_picture", "desk_cases", ["pixels_sha256"])
    op.create_index("desk_cases_by_words", "desk_cases", ["same"])
    for before in ("VOTES_DISAGREE", "SIDES_DISAGREE"):
        renamed = sa.text("UPDATE desk_searches SET query = replace(query, :before, :now)")
        op.execute(renamed.bindparams(before=f'"why": "{before}"', now='"why": "DISAGREE"'))
