"""Format 1: all tables of a docket, as :mod:`serving.docket.store.tables` and ``review_tables`` have them.

A test compares the two. A new docket is created without Alembic; the first format after this one begins here.
"""

import sqlalchemy as sa
from alembic import op

from serving.docket.store.review_tables import Words
from serving.docket.store.tables import NUMBER, WORD, Name

revision = "1"
down_revision = None


def upgrade() -> None:
    """Creates the tables, empty."""
    op.create_table(
        "checkpoints",
        sa.Column("size", NUMBER, autoincrement=False, primary_key=True),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("hook", WORD, primary_key=True),
        sa.Column("entry", NUMBER, autoincrement=False, primary_key=True),
        sa.Column("event", WORD, primary_key=True),
        sa.Column("since", WORD, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", WORD, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_index("deliveries_due", "deliveries", ["hook", "due_at"])
    op.create_table(
        "document_uses",
        sa.Column("part", sa.LargeBinary(), nullable=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.PrimaryKeyConstraint("part", "trial_id"),
    )
    op.create_index("ix_document_uses_trial_id", "document_uses", ["trial_id"])
    op.create_table(
        "entries",
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("commitment", sa.LargeBinary(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(
        "entries_about_trial",
        "entries",
        ["trial_id", "number"],
        sqlite_where=sa.text("seq < 0"),
        postgresql_where=sa.text("seq < 0"),
    )
    op.create_index("entries_of_kind", "entries", ["kind", "number"])
    op.create_index(
        "entries_of_trial",
        "entries",
        ["trial_id", "seq"],
        unique=True,
        sqlite_where=sa.text("seq >= 0"),
        postgresql_where=sa.text("seq >= 0"),
    )
    op.create_table(
        "findings",
        sa.Column("content", WORD, nullable=False),
        sa.Column("wording", WORD, nullable=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("label", WORD, nullable=False),
        sa.Column("at", WORD, nullable=False),
        sa.Column("contested", sa.Boolean(), nullable=False),
        sa.Column("acquitters", sa.Integer(), nullable=False),
        sa.Column("policy", WORD, nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("until", WORD, nullable=False),
        sa.PrimaryKeyConstraint("content", "wording"),
    )
    op.create_index("ix_findings_trial_id", "findings", ["trial_id"])
    op.create_table(
        "followed",
        sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "hooks",
        sa.Column("name", WORD, nullable=False),
        sa.Column("next_entry", sa.BigInteger(), nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("paused_until", WORD, nullable=False),
        sa.Column("failing_since", WORD, nullable=False),
        sa.Column("disabled_at", WORD, nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "known",
        sa.Column("key", WORD, nullable=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_known_trial_id", "known", ["trial_id"])
    op.create_table(
        "leaving", sa.Column("pixels_sha256", WORD, nullable=False), sa.PrimaryKeyConstraint("pixels_sha256")
    )
    op.create_table(
        "log",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("signed", sa.BigInteger(), nullable=False),
        sa.Column("erased", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "looks",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("trial_id", WORD, nullable=False, unique=True),
        sa.Column("look", sa.LargeBinary(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "parts",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("of", Name(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_parts_of", "parts", ["of"])
    op.create_table(
        "pictures",
        sa.Column("pixels_sha256", WORD, nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("png", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("pixels_sha256", "place"),
    )
    op.create_table(
        "requests",
        sa.Column("namespace", Name(), nullable=False),
        sa.Column("request_id", Name(), nullable=False),
        sa.Column("payload", sa.String(), nullable=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "request_id"),
    )
    op.create_table(
        "servers",
        sa.Column("owner", WORD, nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
    )
    op.create_table(
        "tiles",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", NUMBER, autoincrement=False, nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "place"),
    )
    op.create_table(
        "trials",
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("opened_at", WORD, nullable=False),
        sa.Column("procedure", sa.String(), nullable=False),
        sa.Column("namespace", Name(), nullable=False),
        sa.Column("content_id", Name(), nullable=False),
        sa.Column("request_id", Name(), nullable=False),
        sa.Column("pixels_sha256", WORD, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("label", WORD, nullable=False),
        sa.Column("needs_review", sa.Boolean(), nullable=False),
        sa.Column("outcome", WORD, nullable=False),
        sa.Column("review", sa.Text(), nullable=True),
        sa.Column("failure_reason", sa.String(), nullable=False),
        sa.Column("erased", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("content", WORD, nullable=False),
        sa.Column("wording", WORD, nullable=False),
        sa.Column("policy", WORD, nullable=False),
        sa.Column("heard", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id"),
    )
    op.create_index("trials_by_finding", "trials", ["content", "wording"])
    op.create_index("trials_by_content", "trials", ["namespace", "content_id", "opened_at", "trial_id"])
    op.create_index("trials_by_label", "trials", ["label", "opened_at", "trial_id"])
    op.create_index("trials_by_namespace", "trials", ["namespace", "opened_at", "trial_id"])
    op.create_index("trials_by_need", "trials", ["needs_review", "outcome", "opened_at", "trial_id"])
    op.create_index("trials_by_outcome", "trials", ["outcome", "opened_at", "trial_id"])
    op.create_index("trials_by_picture", "trials", ["pixels_sha256", "state", "opened_at", "trial_id"])
    op.create_index("trials_by_state", "trials", ["state", "opened_at", "trial_id"])
    op.create_index("trials_by_time", "trials", ["opened_at", "trial_id"])
    # ### end Alembic commands ###
    # ### commands auto generated by Alembic - please adjust! ###
    op.create_table(
        "desk_cases",
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("opened_at", WORD, nullable=False),
        sa.Column("namespace", Name(), nullable=False),
        sa.Column("content_id", Name(), nullable=False),
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
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("category", Name(), nullable=False),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("drawn", sa.Boolean(), nullable=False),
        sa.Column("urgency", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Boolean(), nullable=False),
        sa.Column("asked_by", Name(), nullable=False),
        sa.Column("erased", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id"),
    )
    op.create_index("desk_cases_by_picture", "desk_cases", ["pixels_sha256"])
    op.create_index("desk_cases_by_time", "desk_cases", ["opened_at", "trial_id"])
    op.create_index("desk_cases_by_words", "desk_cases", ["same"])
    op.create_index("desk_cases_waiting", "desk_cases", ["waiting", "urgency", "opened_at", "trial_id"])
    op.create_table(
        "desk_locks",
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("holder", Name(), nullable=False),
        sa.Column("until", WORD, nullable=False),
        sa.PrimaryKeyConstraint("trial_id"),
    )
    op.create_table(
        "desk_progress",
        sa.Column("only", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("only"),
    )
    op.create_table(
        "desk_reviews",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("reviewer", Name(), nullable=False),
        sa.Column("at", WORD, nullable=False),
        sa.Column("outcome", WORD, nullable=False),
        sa.Column("label", WORD, nullable=False),
        sa.Column("verdict", WORD, nullable=False),
        sa.Column("blind", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("ix_desk_reviews_reviewer", "desk_reviews", ["reviewer"])
    op.create_index("ix_desk_reviews_trial_id", "desk_reviews", ["trial_id"])
    op.create_table(
        "desk_seen",
        sa.Column("trial_id", WORD, nullable=False),
        sa.Column("who", Name(), nullable=False),
        sa.Column("at", WORD, nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "who"),
    )
    # ### end Alembic commands ###
