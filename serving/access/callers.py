"""Identity and permissions of the current caller.

The server identifies the caller before a method runs (:mod:`serving.rpc.server`); methods call :func:`current`. On a
server without a file of tokens, everybody who can connect is :data:`ANYBODY`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from court.errors import CourtError, Unavailable

SANDBOX: Final = "sandbox"
"""Namespace of tries: no review, finding, precedent, reuse or figure comes of them, and they are erased after a day."""


class Unauthenticated(CourtError):
    """The server requires authentication, and the call's credentials are missing or invalid."""

    default_reason = "UNAUTHENTICATED"


class NotAllowed(CourtError):
    """The caller is authenticated but lacks permission."""

    default_reason = "NOT_ALLOWED"


class Scope(StrEnum):
    """Permission of a token. Scopes do not include each other: a token that may do everything lists all of them."""

    JUDGE = "judge"
    """Request trials, watch them, and search precedents."""
    REVIEW = "review"
    """Read the docket and review verdicts."""
    ADMIN = "admin"
    """Change the library of precedents."""
    VIEW = "view"
    """Read trials in the console, where REVIEW also allows reviews and ADMIN everything; allows no API call."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authorised caller.

    Attributes:
        name: Name in the file of tokens; empty if the server does not authenticate callers.
        namespaces: Namespaces that it may submit to and see; None for all.
    """

    name: str
    scopes: frozenset[Scope]
    namespaces: frozenset[str] | None = None

    def sees(self, namespace: str) -> bool:
        """True if the caller may see content of that namespace."""
        return self.namespaces is None or namespace in self.namespaces


ANYBODY = Caller(name="", scopes=frozenset(Scope))
"""Every caller of a server without a file of tokens."""

_calling: ContextVar[Caller] = ContextVar("calling", default=ANYBODY)
_now: ContextVar[Callable[[], Caller | None] | None] = ContextVar("now", default=None)


def current() -> Caller:
    """Returns the caller of the current call; also works in tasks started by the call."""
    return _calling.get()


def set_current(caller: Caller, now: Callable[[], Caller | None] | None = None) -> None:
    """Sets the caller of the current call. For the interceptor and for tests.

    Args:
        now: Looks up the token again, returning None if it is not in force; None for a call without a token.
    """
    _calling.set(caller)
    _now.set(now)


def check_in_force() -> None:
    """Ends a long-lived call whose token has changed since the call began.

    Raises:
        Unauthenticated: The token was revoked.
        Unavailable: The token's permissions have changed; a new call uses the current ones.
    """
    now = _now.get()
    # A call without a token can't lose one.
    if now is None:
        return
    caller = now()
    # Revoking a token also ends the streams that it has opened (GR-1).
    if caller is None:
        raise unknown_token()
    # Compared as a whole: a change of scopes or namespaces ends the call just like another name.
    if caller != current():
        raise Unavailable(
            "What this token is for has changed since the call began. Call again.", reason="TOKEN_CHANGED"
        )


def in_force() -> Callable[[], bool]:
    """Returns a function, callable from any context, that is True while this call may continue."""
    # Captured now: the function may be called in another context, with other context variables.
    was, now = current(), _now.get()
    return lambda: now is None or now() == was


def unknown_token() -> Unauthenticated:
    """Builds the error for a token that is not in force."""
    return Unauthenticated(
        "The token is not known here, or no longer: ask whoever runs the server for another.", reason="TOKEN_UNKNOWN"
    )


def check_namespace(namespace: str, field: str = "content.namespace") -> None:
    """Refuses a namespace that the caller has no access to.

    The empty namespace is like any other: a caller limited to some namespaces must name one of them.

    Raises:
        NotAllowed: The caller has no access to the namespace.
    """
    if not current().sees(namespace):
        raise NotAllowed(
            "This token is not for content of that namespace: hand in content of a namespace that it is for, or ask "
            "whoever runs the server for another token.",
            reason="NAMESPACE_NOT_ALLOWED",
            field=field,
        )
