"""The file of tokens: callers and their permissions.

It contains only the hash of each token::

    [[token]]
    name = "pipeline"
    sha256 = "9f86d081884c7d65…"
    scopes = ["judge"]
    namespaces = ["forum"]    # left out: those of everybody

A token is 256 random bits from the system. It can't be recovered from its SHA-256, however fast that is to compute; the
slow, salted hashes that passwords need would gain nothing and slow down every call.

Several entries may share a name, so that a token can be replaced without a gap: add the new one, hand it over, remove
the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, Field, ValidationError

from court.errors import BadRequest
from court.values import Value
from serving.access.callers import Caller, Scope
from serving.access.reload import Contents, read_all

WHAT = "The file of tokens"
_PREFIX = "memecourt_"
"""Prefix of every token, so that secret scanners find leaked ones."""
_HEAD = "# Callers of MemeCourt, by the hash of their tokens. `memecourt tokens` writes this file.\n"

# No control characters: `_toml` writes JSON strings, which are only valid TOML without them.
_Name = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$")
]
_Namespace = Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Entry(Value):
    """One token of the file."""

    name: _Name
    """Name of the caller, recorded as the author of reviews and library changes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the token's text, in hexadecimal."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    """Permissions of the token."""
    namespaces: Annotated[tuple[_Namespace, ...], Field(min_length=1)] | None = None
    """Namespaces that the token may submit to and see; all if not given. The empty one is that of content without
    one."""
    expires: AwareDatetime | None = None
    """Expiry time; never if not given."""

    @property
    def in_force(self) -> bool:
        """True until the token expires."""
        return self.expires is None or datetime.now(UTC) < self.expires

    @property
    def caller(self) -> Caller:
        """Caller identified by the token."""
        return Caller(
            self.name, frozenset(self.scopes), None if self.namespaces is None else frozenset(self.namespaces)
        )


class _File(Value):
    token: tuple[Entry, ...] = ()


def parse(data: bytes) -> Sequence[Entry]:
    """Parses a file of tokens.

    Raises:
        BadRequest: The file is malformed. The message names the line or entry without quoting it.
    """
    try:
        entries = _File.model_validate(tomllib.loads(data.decode("utf-8-sig"))).token
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _bad(str(error)) from None
    except ValidationError as error:
        # Without the input, since somebody may have written a token instead of its hash.
        faults = (": ".join((".".join(map(str, e["loc"])), e["msg"])) for e in error.errors(include_input=False))
        raise _bad("; ".join(faults)) from None
    if len({entry.sha256 for entry in entries}) < len(entries):
        raise _bad("the same token stands there twice; each caller has one of its own")
    return entries


def _bad(what: str) -> BadRequest:
    return BadRequest(f"{WHAT} can't be used: {what}.", reason="TOKENS_UNUSABLE", field="tokens")


def read(path: Path) -> Sequence[Entry]:
    """Reads a file of tokens; empty if it does not exist. Raises BadRequest as :func:`parse`."""
    return parse(read_all([path], WHAT)[0]) if path.exists() else ()


@dataclass(slots=True)
class Tokens:
    """The tokens in force."""

    path: Path
    contents: Contents
    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, path: Path) -> Tokens:
        """Reads tokens from a file. Raises BadRequest if it can't be read or used."""
        contents = read_all([path], WHAT)
        return cls(path, contents, _by_hash(contents))

    def use(self, contents: Contents) -> None:
        """Switches to new contents. Raises BadRequest if they are invalid; then nothing changes."""
        # In this order, so that neither changes if the new contents are invalid.
        self.entries = _by_hash(contents)
        self.contents = contents

    def caller(self, token: str) -> Caller | None:
        """Returns the caller of a token; None if it is not in force.

        The hash is looked up, so that the timing reveals nothing about a token.
        """
        return self.caller_of(hash_of(token))

    def caller_of(self, sha256: str) -> Caller | None:
        """Returns the caller of the token with this hash; None if it is not in force."""
        entry = self.entries.get(sha256)
        return entry.caller if entry is not None and entry.in_force else None


def _by_hash(contents: Contents) -> dict[str, Entry]:
    return {entry.sha256: entry for entry in parse(contents[0])}


def hash_of(token: str) -> str:
    """Returns the hash that the file stores for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def add(
    path: Path,
    name: str,
    scopes: Sequence[Scope],
    namespaces: Sequence[str] | None,
    *,
    expires: datetime | None = None,
    widen: bool = False,
) -> str:
    """Appends a new token's hash to the file, which is created if missing; existing contents are unchanged.

    Args:
        widen: True to allow more namespaces than the caller's other tokens are limited to.

    Returns:
        The token, which is not stored anywhere.

    Raises:
        BadRequest: The file or the name is invalid, or the token would have more namespaces than the caller's others;
            nothing was written.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    with _locked(path):
        # Read under the lock, so that concurrent additions are not lost.
        data = read_all([path], WHAT)[0] if path.exists() else _HEAD.encode()
        _refuse_widening([entry for entry in parse(data) if entry.name == name], namespaces, widen=widen)
        before = data.decode()
        after = (
            before.rstrip("\n")
            + "\n\n"
            + _toml(_entry(name, hash_of(token), scopes, namespaces=namespaces, expires=expires))
        )
        # Validated before it replaces the old file: a server must never find an invalid one.
        parse(after.encode())
        _replace(path, after)
    return token


def remove(path: Path, name: str, number: str | None = None) -> Sequence[Entry]:
    """Removes tokens of a caller from the file; comments in it are lost.

    Args:
        number: First digits of the hash of a single token; None for all of the caller's.

    Returns:
        The removed entries.

    Raises:
        BadRequest: The file is invalid, or contains no such token.
    """
    with _locked(path):
        entries = read(path)
        gone = [entry for entry in entries if entry.name == name and entry.sha256.startswith(number or "")]
        if not gone:
            raise BadRequest("There is no such token in the file.", reason="TOKEN_UNKNOWN")
        _replace(path, "\n".join([_HEAD, *(_toml(entry) for entry in entries if entry not in gone)]))
    return gone


def _refuse_widening(others: Sequence[Entry], namespaces: Sequence[str] | None, *, widen: bool) -> None:
    """Raises BadRequest if a new token would have more namespaces than the caller's other tokens."""
    limits = [set(entry.namespaces) for entry in others if entry.namespaces is not None]
    # One of the others already has access to all namespaces.
    if widen or not limits or len(limits) < len(others):
        return
    known = set.union(*limits)
    if namespaces is None or not set(namespaces) <= known:
        raise BadRequest(
            f"The other tokens of this caller are for {', '.join(map(repr, sorted(known)))} alone, and this one would "
            "be for more. Name those with --namespace, or say --widen.",
            reason="TOKEN_WIDENS",
        )


def _entry(
    name: str, sha256: str, scopes: Sequence[Scope], *, namespaces: Sequence[str] | None, expires: datetime | None
) -> Entry:
    granted = tuple(dict.fromkeys(namespaces)) if namespaces else None
    try:
        return Entry(name=name, sha256=sha256, scopes=tuple(scopes), namespaces=granted, expires=expires)
    except ValidationError:
        raise BadRequest(
            "That token can't be made: a caller's name has 1 to 128 characters, none of them invisible, and no space "
            "at either end; a namespace has at most 128, none of them invisible; and one scope at least is wanted.",
            reason="TOKEN_UNUSABLE",
        ) from None


def _toml(entry: Entry) -> str:
    # JSON strings and lists are valid TOML if they contain no control characters.
    values = entry.model_dump(mode="json", exclude_none=True)
    return "[[token]]\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks the file against concurrent changes, by its folder, since the file itself is replaced."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise BadRequest(f"{WHAT} can't be written: {error.strerror}.", reason="FILE_UNREADABLE") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        # Closing the folder releases the lock.
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """Replaces a file atomically, since a server may be reading it."""
    # For a link, replace its target rather than the link.
    path = path.resolve()
    # In the same folder, since replacement is only atomic within a file system.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, "utf-8")
        # Keep a mode that the operator has chosen, such as one that lets the server's group read.
        if path.exists():
            fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BadRequest(f"{WHAT} can't be written: {error.strerror}.", reason="FILE_UNREADABLE") from None
