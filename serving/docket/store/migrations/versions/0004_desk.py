"""Format 4: the desk's own tables, beside those of the docket. What they hold of trials is drawn from the log."""

import sqlalchemy as sa
from alembic import op

from serving.docket.store.review_tables import Words
from serving.docket.store.tables import WORD, Name

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Lays them, empty: whoever opens a desk draws it."""
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
        sa.Column("same", WORD, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("label", WORD, nullable=False),
        sa.Column("holds", WORD, nullable=False),
        sa.Column("outcome", WORD, nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("category", WORD, nullable=False),
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
    op.create_table(
        "desk_reviews",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("reviewer", Name, nullable=False),
        sa.Column("at", WORD, nullable=False),
        sa.Column("outcome", WORD, nullable=False),
        sa.Column("label", WORD, nullable=False),
        sa.Column("verdict", WORD, nullable=False),
        sa.Column("blind", sa.Boolean, nullable=False),
    )
    op.create_index("ix_desk_reviews_trial_id", "desk_reviews", ["trial_id"])
    op.create_index("ix_desk_reviews_reviewer", "desk_reviews", ["reviewer"])
    op.create_table(
        "desk_progress",
        sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "desk_locks",
        sa.Column("trial_id", WORD, primary_key=True),
        sa.Column("holder", Name, nullable=False),
        sa.Column("until", WORD, nullable=False),
    )
    op.create_table(
        "desk_seen",
        sa.Column("trial_id", WORD, primary_key=True),
        sa.Column("who", Name, primary_key=True),
        sa.Column("at", WORD, nullable=False),
    )
    op.create_table(
        "desk_searches",
        sa.Column("owner", Name, primary_key=True),
        sa.Column("name", Name, primary_key=True),
        sa.Column("query", Words, nullable=False),
        sa.Column("saved_at", sa.String, nullable=False),
    )
