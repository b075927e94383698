"""Visitors of the console: roles, sessions, and protection against cross-site request forgery."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from serving.access.callers import Caller, Scope
from serving.access.tokens import Tokens, hash_of

IDLE_S = 8 * 3600
"""Idle timeout of a session in seconds."""
LONGEST_S = 24 * 3600
"""Maximum lifetime of a session in seconds."""
_MOST_SESSIONS = 1000
"""Maximum number of sessions; the longest idle one is evicted. Each required a valid token."""
# A page fetches its picture immediately: two minutes allow for slow connections.
_GRANT_S = 120
_MOST_GRANTS = 64


class Role(IntEnum):
    """Role of a visitor; each includes the ones before it."""

    VIEWER = 1
    """Read trials, and view their pictures."""
    REVIEWER = 2
    """Uphold and overrule verdicts."""
    ADMIN = 3
    """Change what others see: withdraw precedents, erase."""


_ROLES = {Scope.VIEW: Role.VIEWER, Scope.REVIEW: Role.REVIEWER, Scope.ADMIN: Role.ADMIN}


def role_of(caller: Caller) -> Role | None:
    """Returns the highest role that a caller's scopes give; None if they only allow API calls."""
    return max((role for scope, role in _ROLES.items() if scope in caller.scopes), default=None)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A signed-in user.

    Attributes:
        name: Name in the file of tokens, or ``local``.
        judges: True if the visitor may request trials.
    """

    name: str
    role: Role
    namespaces: frozenset[str] | None = None
    judges: bool = False

    def sees(self, namespace: str) -> bool:
        """True if the visitor may see content of that namespace."""
        return self.namespaces is None or namespace in self.namespaces


LOCAL = Visitor("local", Role.ADMIN, judges=True)
"""Visitor of a console without a file of tokens, which only this machine can reach."""


@dataclass(slots=True)
class Grant:
    """Permission to fetch an unblurred picture after the access was recorded, each frame once.

    Attributes:
        what: Picture to fetch: ``meme``, or ``precedent:`` and its id.
        until: Expiry, in seconds of the monotonic clock.
    """

    trial_id: str
    what: str
    until: float
    fetched: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Session:
    """A signed-in browser.

    Attributes:
        token_hash: Hash of the token that opened the session; empty for :data:`LOCAL`.
        grants: Grants of unblurred pictures, by the key in their addresses.
    """

    token_hash: str
    opened: float
    last_used: float
    grants: dict[str, Grant] = field(default_factory=dict)

    def grant(self, trial_id: str, what: str, now: float) -> str:
        """Allows an unblurred picture to be fetched once within two minutes; returns the key for it."""
        self.grants = {key: one for key, one in self.grants.items() if one.until > now}
        # All have the same lifetime, so the first in the dictionary is the oldest.
        while len(self.grants) >= _MOST_GRANTS:
            del self.grants[next(iter(self.grants))]
        key = secrets.token_urlsafe(16)
        self.grants[key] = Grant(trial_id, what, now + _GRANT_S)
        return key

    def granted(self, key: str, now: float) -> Grant | None:
        """Returns the grant of a key without using it up; None if it grants nothing (any more)."""
        # An animation has several frames, each fetched once with the same key.
        found = self.grants.get(key)
        return found if found is not None and found.until > now else None


class Sessions:
    """The sessions of one console, which are only kept in memory.

    An id is 256 random bits, of which only the hash is stored. It is generated at sign-in and never taken from a
    request, which prevents session fixation.
    """

    def __init__(self, tokens: Tokens | None, now: Callable[[], float] = time.monotonic) -> None:
        """Starts without sessions.

        Args:
            tokens: Tokens of visitors; None for a console that is open to this machine alone.
        """
        self._tokens = tokens
        self._now = now
        # New in each process, like the sessions.
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}

    @property
    def by_token(self) -> bool:
        """True if a token is required."""
        return self._tokens is not None

    def now(self) -> float:
        """The monotonic clock, in seconds."""
        return self._now()

    def open(self, token: str) -> tuple[str, Visitor] | None:
        """Signs a visitor in.

        Returns:
            Id of the new session, and the visitor; None if the token is not in force or gives no role.
        """
        token_hash = hash_of(token) if self._tokens is not None else ""
        visitor = self._visitor(token_hash)
        if visitor is None:
            return None
        now = self._now()
        # Expired sessions are only removed at sign-in; `find` refuses them until then.
        self._sessions = {key: one for key, one in self._sessions.items() if self._alive(one, now)}
        while len(self._sessions) >= _MOST_SESSIONS:
            # Refusing new sessions instead would lock everybody out once the table is full.
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].last_used)]
        id_ = secrets.token_urlsafe(32)
        self._sessions[_hashed(id_)] = Session(token_hash, opened=now, last_used=now)
        return id_, visitor

    def find(self, id_: str) -> tuple[Session, Visitor] | None:
        """Returns a session and its current visitor; None if it has expired or its token is not in force."""
        session = self._sessions.get(_hashed(id_))
        now = self._now()
        if session is None:
            return None
        # Looked up for each request, so that revoking or changing a token takes effect immediately.
        visitor = self._visitor(session.token_hash)
        if visitor is None or not self._alive(session, now):
            self.close(id_)
            return None
        session.last_used = now
        return session, visitor

    def close(self, id_: str) -> None:
        """Ends a session."""
        self._sessions.pop(_hashed(id_), None)

    def proof(self, id_: str) -> str:
        """Returns the anti-forgery token that every form must send back.

        It is derived from the cookie's id, and only readable on our pages.
        """
        return hmac.new(self._key, id_.encode(), hashlib.sha256).hexdigest()

    def proves(self, id_: str, proof: str) -> bool:
        """True if a form came from a page that was rendered for this cookie."""
        # Public pages give everybody the token of an empty cookie, so it must not be accepted. As bytes, since
        # compare_digest only accepts ASCII text.
        return bool(id_) and hmac.compare_digest(self.proof(id_).encode(), proof.encode())

    def _visitor(self, token_hash: str) -> Visitor | None:
        if self._tokens is None:
            return LOCAL
        caller = self._tokens.caller_of(token_hash)
        role = role_of(caller) if caller is not None else None
        if caller is None or role is None:
            return None
        return Visitor(caller.name, role, caller.namespaces, judges=Scope.JUDGE in caller.scopes)

    def _alive(self, session: Session, now: float) -> bool:
        return now - session.last_used < IDLE_S and now - session.opened < LONGEST_S


def _hashed(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()
