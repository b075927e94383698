"""Format 9: which trials quote which texts of documents, so that those go with the last trial that does."""

import sqlalchemy as sa
from alembic import op

from serving.docket.ports import DocketError
from serving.docket.store import schema
from serving.docket.store.bodies import document_owner, is_document, parts_in, unpacked
from serving.docket.store.tables import WORD

revision = "9"
down_revision = "8"

_KINDS = ("EvidenceSearched", "DocumentWeighed", "ClaimSettled", "VerdictGiven")


def upgrade() -> None:
    """Lays the table, and fills it from the events of trials that quote documents."""
    uses = op.create_table(
        "document_uses",
        sa.Column("part", sa.LargeBinary, primary_key=True),
        sa.Column("trial_id", WORD, primary_key=True, index=True),
    )
    assert uses is not None, "an upgrade is never a script"
    connection = op.get_bind()
    parts = sa.table("parts", sa.column("key", sa.LargeBinary), sa.column("number"), sa.column("of", WORD))
    of_documents = sa.select(parts.c.number, parts.c.key).where(parts.c.of.startswith(document_owner("")))
    # Once more, for SQLite compares without regard to case.
    found = connection.execute(of_documents.add_columns(parts.c.of))
    keys = {number: bytes(key) for number, key, owner in found if is_document(owner)}
    if not keys:
        return  # most dockets: no witness was ever called
    entries = sa.table("entries", *map(sa.column, ("number", "trial_id", "kind")), sa.column("body", sa.LargeBinary))
    events = sa.select(entries.c.trial_id, entries.c.kind, entries.c.body).where(
        entries.c.kind.in_(_KINDS), entries.c.body.is_not(None), entries.c.number > min(keys)
    )
    # A set: one trial quotes a text in its search, its reading and its finding.
    rows: set[tuple[str, bytes]] = set()
    for trial_id, kind, body in connection.execute(events):
        try:
            quoted = parts_in(kind, unpacked(bytes(body)))
        except ValueError as error:
            raise DocketError(
                f"The docket can't be upgraded: what it holds of trial {trial_id} is no record. It was altered, or "
                "written by another version of MemeCourt. Restore the docket from a copy.",
            ) from error
        rows |= {(trial_id, keys[number]) for number in quoted if number in keys}
    ordered = [{"part": key, "trial_id": trial_id} for trial_id, key in sorted(rows)]
    for first in range(0, len(ordered), schema.CHUNK):
        connection.execute(sa.insert(uses), ordered[first : first + schema.CHUNK])
