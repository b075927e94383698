"""Errors of a transparency log.

::

    CourtError
    └── LogError           a part of the log is not what it has to be
        ├── BadProof       a Merkle proof does not show what it should
        ├── BadNote        a signed note, a checkpoint or a key is malformed, or not signed by the keys that are trusted
        └── BadEntry       an entry is malformed, or its body is not the one that it commits to
"""

from __future__ import annotations

from court.errors import CourtError


class LogError(CourtError):
    """A part of the log is invalid."""

    default_reason = "BAD_LOG"


class BadProof(LogError):
    """A Merkle proof does not show what it should."""

    default_reason = "BAD_PROOF"


class BadNote(LogError):
    """A signed note, a checkpoint or a key is malformed, or not signed by the keys that are trusted."""

    default_reason = "BAD_NOTE"


class BadEntry(LogError):
    """An entry is malformed, or its body is not the one that it commits to."""

    default_reason = "BAD_ENTRY"
