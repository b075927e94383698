"""Format 2: what the events of a trial come to, and what servers that share a docket agree on."""

import sqlalchemy as sa
from alembic import op
from pydantic import ValidationError

from court.events import TrialOpened, parse_event
from serving.docket.ports import DocketError
from serving.docket.store import schema
from serving.docket.store.tables import Name
from serving.docket.store.trials import trial_change, trial_row

revision = "2"
down_revision = "1"

_KINDS = "'TrialOpened', 'VerdictGiven', 'TrialFailed', 'TrialResumed', 'VerdictReviewed'"


def upgrade() -> None:
    """Only ever in SQLite: the first format that databases have is 2."""
    op.execute("DROP INDEX IF EXISTS ix_events_kind")
    names, words = ("namespace", "content_id", "request_id"), ("pixels_sha256", "state", "label")
    trials = op.create_table(
        "trials",
        sa.Column("trial_id", sa.String, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("opened_at", "procedure")),
        *(sa.Column(name, Name, nullable=False) for name in names),
        *(sa.Column(name, sa.String, nullable=False) for name in words),
        sa.Column("needs_review", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("review", sa.Text),
        sa.Column("failure_reason", sa.String, nullable=False),
    )
    order = ["opened_at", "trial_id"]
    op.create_index("trials_by_time", "trials", order)
    for what, column in (("namespace", "namespace"), ("state", "state"), ("label", "label"), ("outcome", "outcome")):
        op.create_index(f"trials_by_{what}", "trials", [column, *order])
    op.create_index("trials_by_picture", "trials", ["pixels_sha256", "state"])
    op.create_index("trials_by_need", "trials", ["needs_review", "outcome", *order])
    op.create_table(
        "requests",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("request_id", Name, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("payload", "trial_id", "owner")),
    )
    op.create_table(
        "servers",
        sa.Column("owner", sa.String, primary_key=True),
        sa.Column("beats", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "known",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("trial_id", sa.String, nullable=False, index=True),
    )
    op.create_table(
        "looks",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("trial_id", sa.String, nullable=False, unique=True),
        sa.Column("look", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    _fill(op.get_bind(), trials)


def _fill(connection: sa.Connection, trials: sa.Table) -> None:
    query = sa.text(f"SELECT trial_id, body FROM events WHERE kind IN ({_KINDS}) ORDER BY trial_id, seq")
    rows: dict[str, dict[str, object]] = {}
    for trial_id, body in connection.execute(query):
        try:
            event = parse_event(body)
        except ValidationError as error:
            raise DocketError(
                f"The docket can't be upgraded: what it holds of trial {trial_id} is no record. It was altered, or "
                "written by another version of MemeCourt. Restore the docket from a copy.",
            ) from error
        if isinstance(event, TrialOpened):
            # Only between trials: a row is inserted once all events of its trial are in it.
            if len(rows) >= schema.CHUNK:
                connection.execute(sa.insert(trials), list(rows.values()))
                rows.clear()
            # trial_row() knows the columns of later formats as well, which this table does not have.
            rows[trial_id] = {name: value for name, value in trial_row(event).items() if name in trials.c}
        elif trial_id in rows:
            rows[trial_id] |= trial_change(event)
    if rows:
        connection.execute(sa.insert(trials), list(rows.values()))
