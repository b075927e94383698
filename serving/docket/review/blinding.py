"""Blinding: which reviewers must not see the court's verdict before they have given their own.

A verdict is hidden from a reviewer while its case waits and they have neither seen nor reviewed it. So are verdicts of
other trials of the same meme, since most are equal. The same meme means the same pixels and a text with the same
letters, or for a text without picture the identical text.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select

from serving.docket.store import review_tables as t

_case, _same_meme_case = t.cases.c, t.cases.alias("twin").c


def is_blinded(who: str, namespaces: frozenset[str] | None = None) -> ColumnElement[bool]:
    """Builds the SQL condition that a case's verdict is hidden from a reviewer.

    Args:
        namespaces: Namespaces that they may review; None for all.
    """
    # Other trials of the meme that still wait for this reviewer: this verdict would give theirs away.
    waits_too = [_same_meme(), _same_meme_case.waiting, ~saw_verdict(who, _same_meme_case)]
    if namespaces is not None:
        # A trial that they may not review never gets their review, and would hide this verdict for ever.
        waits_too.append(_same_meme_case.namespace.in_(sorted(namespaces)))
    return and_(~saw_verdict(who, _case), or_(_case.waiting, exists().where(*waits_too)))


def saw_verdict(who: str, case: Any = _case) -> ColumnElement[bool]:
    """Builds the SQL condition that a reviewer saw the verdict of a case, or gave their own."""
    shown = exists().where(t.seen.c.trial_id == case.trial_id, t.seen.c.who == who)
    reviewed = exists().where(t.reviews.c.trial_id == case.trial_id, t.reviews.c.reviewer == who)
    return or_(shown, reviewed)


def verdict_was_shown(connection: Connection, trial_id: str, who: str) -> bool:
    """True if a reviewer saw, or reviewed, the verdict of a trial or of another one of the same meme."""
    own_or_duplicate = or_(saw_verdict(who, _case), exists().where(_same_meme(), saw_verdict(who, _same_meme_case)))
    return (
        connection.execute(select(_case.trial_id).where(_case.trial_id == trial_id, own_or_duplicate)).first()
        is not None
    )


def _same_meme() -> ColumnElement[bool]:
    """Builds the SQL condition for the same meme; an erased trial has none."""
    return and_(
        _same_meme_case.pixels_sha256 == _case.pixels_sha256,
        _case.pixels_sha256 != "",
        _same_meme_case.same == _case.same,
    )
