"""Visitors of the console: roles, sessions, and protection against requests forged by other sites."""

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
"""Seconds without a request after which a session is over."""
LONGEST_S = 24 * 3600
"""Seconds after which a session is over in any case."""
_MOST_SESSIONS = 1000
"""At once; the one that was idle longest makes room. Each has cost somebody a token that is in force."""
# A page fetches its picture as soon as it shows it: the two minutes are for slow connections.
_GRANT_S = 120
_MOST_GRANTS = 64


class Role(IntEnum):
    """Role of a visitor; each includes the ones before it."""

    VIEWER = 1
    """Read trials, and look at their pictures."""
    REVIEWER = 2
    """Uphold and overrule verdicts."""
    ADMIN = 3
    """Change what others see: take back precedents, erase."""


_ROLES = {Scope.VIEW: Role.VIEWER, Scope.REVIEW: Role.REVIEWER, Scope.ADMIN: Role.ADMIN}


def role_of(caller: Caller) -> Role | None:
    """The highest role that a caller's scopes give; None where they are for calls alone."""
    return max((role for scope, role in _ROLES.items() if scope in caller.scopes), default=None)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is signed in.

    Attributes:
        name: Name in the file of tokens, or ``local``.
        role: Role of the visitor.
        namespaces: Namespaces that the visitor may see; None for all.
    """

    name: str
    role: Role
    namespaces: frozenset[str] | None = None

    def sees(self, namespace: str) -> bool:
        """True if the visitor may see content of that namespace."""
        return self.namespaces is None or namespace in self.namespaces


LOCAL = Visitor("local", Role.ADMIN)
"""Whoever looks at a console that was given no file of tokens: it is open to this machine alone."""


@dataclass(slots=True)
class Grant:
    """A sharp picture that was asked for and noted, and may be fetched now: each frame once.

    Attributes:
        trial_id: On whose page.
        what: Which picture: ``meme``, or ``precedent:`` and its id.
        until: End of the grant, in seconds of the monotonic clock.
        fetched: Frames that were.
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
        opened: Start of the session, in seconds of the monotonic clock.
        last_used: Last use, in seconds of the monotonic clock.
        grants: Sharp pictures that may be fetched, by what stands in their addresses.
    """

    token_hash: str
    opened: float
    last_used: float
    grants: dict[str, Grant] = field(default_factory=dict)

    def grant(self, trial_id: str, what: str, now: float) -> str:
        """Allows a picture to be fetched sharp, once, within two minutes; returns what to ask for it with."""
        self.grants = {key: one for key, one in self.grants.items() if one.until > now}
        # All last equally long, so the first in the dictionary is the oldest.
        while len(self.grants) >= _MOST_GRANTS:
            del self.grants[next(iter(self.grants))]
        key = secrets.token_urlsafe(16)
        self.grants[key] = Grant(trial_id, what, now + _GRANT_S)
        return key

    def granted(self, key: str, now: float) -> Grant | None:
        """Returns the grant of a key without using it up; None if it grants nothing (any more)."""
        # Not used up: an animation has several frames, each fetched once by the same key.
        found = self.grants.get(key)
        return found if found is not None and found.until > now else None


class Sessions:
    """The sessions of one console. They live in its memory: with the process they end.

    An id is 256 random bits and is kept by its hash alone. It is made at sign-in, never taken from a request, so nobody
    can be made to use one that another knows (session fixation).
    """

    def __init__(self, tokens: Tokens | None, now: Callable[[], float] = time.monotonic) -> None:
        """No sessions yet.

        Args:
            tokens: Tokens of visitors; None for a console that is open to this machine alone.
            now: The monotonic clock, in seconds.
        """
        self._tokens = tokens
        self._now = now
        # New with each process, as the sessions are.
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}

    @property
    def by_token(self) -> bool:
        """True if a token is needed."""
        return self._tokens is not None

    def now(self) -> float:
        """The monotonic clock, in seconds."""
        return self._now()

    def open(self, token: str) -> tuple[str, Visitor] | None:
        """Signs in.

        Args:
            token: Token of the visitor; ignored if none is needed.

        Returns:
            A new session's id, and who that is; None where the token is not in force or good for no page.
        """
        token_hash = hash_of(token) if self._tokens is not None else ""
        visitor = self._visitor(token_hash)
        if visitor is None:
            return None
        now = self._now()
        # Only here: sessions that are over make room when somebody signs in, and `find` refuses them before that.
        self._sessions = {key: one for key, one in self._sessions.items() if self._alive(one, now)}
        while len(self._sessions) >= _MOST_SESSIONS:
            # Refusing the new one instead would lock everybody out once the table is full.
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].last_used)]
        id_ = secrets.token_urlsafe(32)
        self._sessions[_hashed(id_)] = Session(token_hash, opened=now, last_used=now)
        return id_, visitor

    def find(self, id_: str) -> tuple[Session, Visitor] | None:
        """The session of an id, and who that is now; None where it is over, or its token is no longer in force."""
        session = self._sessions.get(_hashed(id_))
        now = self._now()
        if session is None:
            return None
        # Looked up for each request: a token that is taken out or changed ends the session, or changes its role, at
        # once.
        visitor = self._visitor(session.token_hash)
        if visitor is None or not self._alive(session, now):
            self.close(id_)
            return None
        session.last_used = now
        return session, visitor

    def close(self, id_: str) -> None:
        """Signs out."""
        self._sessions.pop(_hashed(id_), None)

    def proof(self, id_: str) -> str:
        """Returns the proof that every form of a page must send back.

        It is derived from the cookie's id, and readable on our pages alone.
        """
        return hmac.new(self._key, id_.encode(), hashlib.sha256).hexdigest()

    def proves(self, id_: str, proof: str) -> bool:
        """True if a form came from a page that was made for this cookie."""
        # Pages for everybody give the proof of no cookie to anyone, so it must prove nothing. As bytes: compare_digest
        # takes no text beyond ASCII.
        return bool(id_) and hmac.compare_digest(self.proof(id_).encode(), proof.encode())

    def _visitor(self, token_hash: str) -> Visitor | None:
        if self._tokens is None:
            return LOCAL
        caller = self._tokens.caller_of(token_hash)
        role = role_of(caller) if caller is not None else None
        return Visitor(caller.name, role, caller.namespaces) if caller is not None and role is not None else None

    def _alive(self, session: Session, now: float) -> bool:
        return now - session.last_used < IDLE_S and now - session.opened < LONGEST_S


def _hashed(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()
