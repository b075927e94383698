"""Format 8: a docket may go over to another key, and appeals find trials by their content."""

import sqlalchemy as sa
from alembic import op

revision = "8"
down_revision = "7"


def upgrade() -> None:
    """Takes out the trigger that let no key be changed: it is laid again, as it is now, after every migration."""
    of = " ON log" if op.get_bind().dialect.name == "postgresql" else ""
    op.execute(sa.text(f"DROP TRIGGER IF EXISTS log_update{of}"))
    columns = ["namespace", "content_id", "opened_at", "trial_id"]
    op.create_index("trials_by_content", "trials", columns, if_not_exists=True)
