"""Format 5: pictures outside of the database that are to be removed, so that a crash leaves none of an erased trial."""

import sqlalchemy as sa
from alembic import op

from serving.docket.store.tables import WORD

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """Lays the table, empty."""
    op.create_table("leaving", sa.Column("pixels_sha256", WORD, primary_key=True))
