"""Identity and permissions of the current caller.

The server finds out who calls before a method runs (:mod:`serving.rpc.auth`); the methods ask :func:`current`.
Where the server knows no callers, because it was given no file of tokens, whoever can connect is :data:`ANYBODY`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from court.errors import CourtError, Unavailable


class Unauthenticated(CourtError):
    """The server wants to know who calls, and the call does not say it, or says it wrongly."""

    default_reason = "UNAUTHENTICATED"


class NotAllowed(CourtError):
    """The caller is known, and may not do this."""

    default_reason = "NOT_ALLOWED"


class Scope(StrEnum):
    """Permission of a token. Scopes do not include each other: a token that may do everything lists all of them."""

    JUDGE = "judge"
    """Have memes tried, watch trials, search precedents."""
    REVIEW = "review"
    """Read the docket and review verdicts."""
    ADMIN = "admin"
    """Change the library of precedents."""
    VIEW = "view"
    """Read trials on the pages of the console, where REVIEW lets review as well and ADMIN do all; good for no call."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may call.

    Attributes:
        name: Name in the file of tokens; empty if the server knows no callers.
        scopes: Permissions of the caller.
        namespaces: Namespaces that it may hand in and see; None for all.
    """

    name: str
    scopes: frozenset[Scope]
    namespaces: frozenset[str] | None = None

    def sees(self, namespace: str) -> bool:
        """True if the caller may see content of that namespace."""
        return self.namespaces is None or namespace in self.namespaces


ANYBODY = Caller(name="", scopes=frozenset(Scope))
"""Whoever calls a server that was given no file of tokens."""

_calling: ContextVar[Caller] = ContextVar("calling", default=ANYBODY)
_now: ContextVar[Callable[[], Caller | None] | None] = ContextVar("now", default=None)


def current() -> Caller:
    """Returns the caller of the current call. Tasks that are started for the call know it too."""
    return _calling.get()


def set_current(caller: Caller, now: Callable[[], Caller | None] | None = None) -> None:
    """From now on, in this call, that is who calls. For the interceptor and for tests.

    Args:
        caller: Caller of the current call.
        now: Says whose the token is by now, None for nobody's; None for a call without one.
    """
    _calling.set(caller)
    _now.set(now)


def check_in_force() -> None:
    """Ends a call that lasts where its token is not what it was when the call began.

    Raises:
        Unauthenticated: The token was taken out of force.
        Unavailable: The token has other permissions by now. A new call goes by these.
    """
    now = _now.get()
    # A call without a token can't lose one.
    if now is None:
        return
    caller = now()
    # A token that is taken out ends the streams that it has opened, too (GR-1).
    if caller is None:
        raise unknown_token()
    # Compared as a whole: another scope or namespace ends the call as much as another name does.
    if caller != current():
        raise Unavailable(
            "What this token is for has changed since the call began. Call again.", reason="TOKEN_CHANGED"
        )


def in_force() -> Callable[[], bool]:
    """Says from anywhere, at any time, whether :func:`check_in_force` would let this call go on."""
    # Taken now: wherever the function is called from, other context variables may be in force.
    was, now = current(), _now.get()
    return lambda: now is None or now() == was


def unknown_token() -> Unauthenticated:
    """Builds the error for a token that is not in force."""
    return Unauthenticated(
        "The token is not known here, or no longer: ask whoever runs the server for another.", reason="TOKEN_UNKNOWN"
    )


def check_namespace(namespace: str, field: str = "content.namespace") -> None:
    """Refuses content of a namespace that is not the caller's business.

    The empty namespace is one like any other: a caller that is kept to some must name one of them.

    Args:
        namespace: The one.
        field: The part of the request that it stands in.

    Raises:
        NotAllowed: The namespace is not the caller's.
    """
    if not current().sees(namespace):
        raise NotAllowed(
            "This token is not for content of that namespace: hand in content of a namespace that it is for, or ask "
            "whoever runs the server for another token.",
            reason="NAMESPACE_NOT_ALLOWED",
            field=field,
        )
