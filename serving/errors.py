"""Errors that more than one transport reports."""

from __future__ import annotations

from court.errors import Unavailable


class Busy(Unavailable):
    """Raised where the server is already running as many trials as it is set up for."""

    default_reason = "BUSY"


def not_in_session() -> Unavailable:
    """Builds the error of a service that is not open."""
    return Unavailable("The court is not in session: it is starting or closing.", reason="NOT_IN_SESSION")
