"""Format 1, from which the first migration goes on.

It has no steps: a new docket gets the tables of today from :func:`serving.docket.store.schema.create`, in any format.
"""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Does nothing."""
