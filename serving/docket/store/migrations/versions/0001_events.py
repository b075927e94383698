"""Format 1: events and pictures. Only SQLite files have ever had it."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Nothing: no docket is made of this format any more."""
