"""The file of tokens: who may call, and what each caller may do.

It holds no token, only the hash of each::

    [[token]]
    name = "pipeline"
    sha256 = "9f86d081884c7d65…"
    scopes = ["judge"]
    namespaces = ["forum"]    # left out: those of everybody

A token is 256 bits from the system's source of randomness. Such a one can't be guessed from its SHA-256, however fast
that is to compute; the slow, salted hashes that passwords need would buy nothing and cost every call.

Several entries may have one name: that is how a token is replaced without a gap. Add the new one, hand it over, remove
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

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from court.errors import BadRequest
from serving.access.callers import Caller, Scope
from serving.access.reload import Contents, read_all

WHAT = "The file of tokens"
_PREFIX = "memecourt_"
"""Of every token, so that those who look for secrets in the wrong places find it."""
_HEAD = "# Callers of MemeCourt, by the hash of their tokens. `memecourt tokens` writes this file.\n"

# No control characters: `_toml` writes JSON strings, and TOML takes those only without.
_Name = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$")
]
_Namespace = Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Entry(BaseModel):
    """One token of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: _Name
    """Of the caller. Stands in records as who reviewed, and who changed the library."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the token's text, in hexadecimal."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    """What it may do."""
    namespaces: Annotated[tuple[_Namespace, ...], Field(min_length=1)] | None = None
    """Whose content it may hand in and see; everybody's if not given. The empty one is that of content without one."""
    expires: AwareDatetime | None = None
    """When it ends to be in force; never if not given."""

    @property
    def in_force(self) -> bool:
        """True until it expires."""
        return self.expires is None or datetime.now(UTC) < self.expires

    @property
    def caller(self) -> Caller:
        """Caller that the token identifies."""
        return Caller(
            self.name, frozenset(self.scopes), None if self.namespaces is None else frozenset(self.namespaces)
        )


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    token: tuple[Entry, ...] = ()


def parse(data: bytes) -> Sequence[Entry]:
    """The entries of a file of tokens.

    Raises:
        BadRequest: The file is malformed. Faults are named by line or by entry, without quoting them.
    """
    try:
        entries = _File.model_validate(tomllib.loads(data.decode("utf-8-sig"))).token
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _bad(str(error)) from None
    except ValidationError as error:
        # Without the input: somebody may have put a token in the place of its hash.
        faults = (": ".join((".".join(map(str, e["loc"])), e["msg"])) for e in error.errors(include_input=False))
        raise _bad("; ".join(faults)) from None
    if len({entry.sha256 for entry in entries}) < len(entries):
        raise _bad("the same token stands there twice; each caller has one of its own")
    return entries


def _bad(what: str) -> BadRequest:
    return BadRequest(f"{WHAT} can't be used: {what}.", reason="TOKENS_UNUSABLE", field="tokens")


def read(path: Path) -> Sequence[Entry]:
    """The entries of the file at a path; none where there is none. Raises BadRequest as :func:`parse`."""
    return parse(read_all([path], WHAT)[0]) if path.exists() else ()


@dataclass(slots=True)
class Tokens:
    """The tokens that are in force.

    Attributes:
        path: Their file.
        contents: Contents in use.
        callers: Callers by the hash of their token.
    """

    path: Path
    contents: Contents
    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, path: Path) -> Tokens:
        """Reads tokens from a file. Raises BadRequest if it can't be read or used: then no caller is let in."""
        contents = read_all([path], WHAT)
        return cls(path, contents, _by_hash(contents))

    def use(self, contents: Contents) -> None:
        """From now on, those of this file. Raises BadRequest where it can't be used; then nothing changes."""
        # In this order: where the new contents can't be used, neither of the two changes.
        self.entries = _by_hash(contents)
        self.contents = contents

    def caller(self, token: str) -> Caller | None:
        """Returns the caller of a token; None if it is not in force.

        The hash is looked up, so that the time that takes tells nothing of a token.
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
    """Writes a new token's hash into the file, which is made if it is not there; what stands in it stays as it is.

    Args:
        path: The file.
        name: Name of the caller.
        scopes: Scopes that the token opens.
        namespaces: Namespaces of the content it is for; None for all.
        expires: End of the token; None for never.
        widen: True to let a caller whose other tokens are for some namespaces have one for more.

    Returns:
        The token. It is kept nowhere.

    Raises:
        BadRequest: The file or the name can't be used, or the token would be for more than the caller's others are;
            nothing was written.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    with _locked(path):
        # Under the lock: what others have added by now must stay in.
        data = read_all([path], WHAT)[0] if path.exists() else _HEAD.encode()
        _refuse_widening([entry for entry in parse(data) if entry.name == name], namespaces, widen=widen)
        before = data.decode()
        after = (
            before.rstrip("\n")
            + "\n\n"
            + _toml(_entry(name, hash_of(token), scopes, namespaces=namespaces, expires=expires))
        )
        # Before it takes the old file's place: a server must not find one that it can't use.
        parse(after.encode())
        _replace(path, after)
    return token


def remove(path: Path, name: str, number: str | None = None) -> Sequence[Entry]:
    """Takes tokens of a caller out of the file; comments in it are lost.

    Args:
        path: The file.
        name: Name of the caller.
        number: First digits of the hash of the one token that is meant; all of the caller's if not given.

    Returns:
        What was taken out.

    Raises:
        BadRequest: The file can't be used, or there is no such token in it.
    """
    with _locked(path):
        entries = read(path)
        gone = [entry for entry in entries if entry.name == name and entry.sha256.startswith(number or "")]
        if not gone:
            raise BadRequest("There is no such token in the file.", reason="TOKEN_UNKNOWN")
        _replace(path, "\n".join([_HEAD, *(_toml(entry) for entry in entries if entry not in gone)]))
    return gone


def _refuse_widening(others: Sequence[Entry], namespaces: Sequence[str] | None, *, widen: bool) -> None:
    """Raises BadRequest where a caller's other tokens are for some namespaces and a new one would be for more."""
    limits = [set(entry.namespaces) for entry in others if entry.namespaces is not None]
    # One of the others is for all namespaces already, and nothing is more than that.
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
    # JSON's strings and lists are TOML's as well, where there are no control characters in them.
    values = entry.model_dump(mode="json", exclude_none=True)
    return "[[token]]\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps others who add or remove from losing what this one writes. The folder is held: the file is replaced."""
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
    """Writes a file as a whole or not at all; a server may be reading it."""
    # Behind a link it is the file that is replaced, and not the link.
    path = path.resolve()
    # In the same folder: a file is replaced in one step only within a file system.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, "utf-8")
        # A mode that the operator has chosen, such as one that lets the server's group read, is kept.
        if path.exists():
            fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BadRequest(f"{WHAT} can't be written: {error.strerror}.", reason="FILE_UNREADABLE") from None
