"""Errors that more than one transport reports."""

from __future__ import annotations

from court.errors import Unavailable


class Busy(Unavailable):
    """As many trials are being held as this server is set up for."""

    default_reason = "BUSY"


def not_in_session() -> Unavailable:
    """What a service says while it is not open."""
    return Unavailable("The court is not in session: it is starting or closing.", reason="NOT_IN_SESSION")
