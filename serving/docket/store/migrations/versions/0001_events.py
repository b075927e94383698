"""Format 1: events and pictures. Only SQLite files have ever had it."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Does nothing: no docket is made in this format any more."""
