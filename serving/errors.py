"""Errors that more than one transport reports."""

from __future__ import annotations

from court.errors import BadRequest, Unavailable


class Malformed(BadRequest):
    """Raised for a request that is not in the form that it has to be in."""

    default_reason = "MALFORMED_REQUEST"


class Busy(Unavailable):
    """Raised where the server is already running as many trials as it is set up for."""

    default_reason = "BUSY"


def starting() -> Unavailable:
    """Builds the error of a service that is not open yet."""
    return Unavailable("The court is not in session yet: it is starting. Ask again.", reason="NOT_IN_SESSION")


def closing() -> Unavailable:
    """Builds the error of a service that is closing and will not open again."""
    return Unavailable("The court is closing. Ask another server of it, or again later.", reason="CLOSING")
