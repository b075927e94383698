"""Who has not been told yet what the court found, and must not be before they have said what they find themselves.

A verdict is kept from a reviewer while its case waits and they were neither shown it nor have reviewed it. With it go
the verdicts of other trials of the same meme (the same pixels, a text of the same letters): most say the same.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select

from serving.docket.store import review_tables as t

_case, _twin = t.cases.c, t.cases.alias("twin").c


def is_blinded(who: str, namespaces: frozenset[str] | None = None) -> ColumnElement[bool]:
    """Whether the verdict of a case is kept from somebody, as a condition on the table of cases.

    Args:
        who: The reviewer.
        namespaces: Whose content they may review; None for everybody's.
    """
    waits_too = [_same_meme(), _twin.waiting, ~seen_by(who, _twin)]
    if namespaces is not None:
        waits_too.append(_twin.namespace.in_(sorted(namespaces)))
    return and_(~seen_by(who, _case), or_(_case.waiting, exists().where(*waits_too)))


def seen_by(who: str, case: Any = _case) -> ColumnElement[bool]:
    """Whether somebody was shown the verdict of a case, or has said what they found, as a condition on that case."""
    shown = exists().where(t.seen.c.trial_id == case.trial_id, t.seen.c.who == who)
    said = exists().where(t.reviews.c.trial_id == case.trial_id, t.reviews.c.reviewer == who)
    return or_(shown, said)


def has_seen_verdict(connection: Connection, trial_id: str, who: str) -> bool:
    """Whether somebody was shown, or has reviewed, the verdict of a trial or of another one of the same meme."""
    own_or_twin = or_(seen_by(who, _case), exists().where(_same_meme(), seen_by(who, _twin)))
    return connection.execute(select(_case.trial_id).where(_case.trial_id == trial_id, own_or_twin)).first() is not None


def _same_meme() -> ColumnElement[bool]:
    """Of an erased trial nothing is known: it is of no meme."""
    return and_(_twin.pixels_sha256 == _case.pixels_sha256, _case.pixels_sha256 != "", _twin.same == _case.same)
