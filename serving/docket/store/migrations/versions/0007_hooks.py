"""Format 7: receivers of webhooks, and what they have not taken yet."""

import sqlalchemy as sa
from alembic import op

from serving.docket.store.tables import NUMBER, WORD

revision = "7"
down_revision = "6"


def upgrade() -> None:
    """Lays the tables, empty: a server that has webhooks in its settings enters them."""
    op.create_table(
        "hooks",
        sa.Column("name", WORD, primary_key=True),
        sa.Column("next_entry", sa.BigInteger, nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("paused_until", WORD, nullable=False),
        sa.Column("failing_since", WORD, nullable=False),
        sa.Column("disabled_at", WORD, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("hook", WORD, primary_key=True),
        sa.Column("entry", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("event", WORD, primary_key=True),
        sa.Column("since", WORD, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", WORD, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_index("deliveries_due", "deliveries", ["hook", "due_at"])
