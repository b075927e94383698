"""Database address that can be passed around and displayed without its password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from court.errors import BadRequest

_SCHEMES = ("postgresql", "postgres")
_SHOWN = ("host", "port", "dbname", "user")
"""Query parameters that are displayed; any other may be, or reveal, a secret."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:@\[\]]*)(:[0-9]+)?")
_DEFAULTS = {
    "application_name": "memecourt",
    "connect_timeout": "5",
    # A dead server is detected within half a minute, even while waiting for its answer.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",  # milliseconds without an acknowledgement
}
"""Connection parameters that an address may override."""


class Address:
    """``postgresql://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?…]``, as in libpq."""

    def __init__(self, url: str) -> None:
        """Parses an address. Raises BadRequest without quoting it if it is invalid."""
        try:
            parts = urlsplit(url)
            hosts = parts.netloc.rpartition("@")[2].split(",")
            # Text after a special character that is not percent-encoded would be displayed as another part.
            whole = (
                parts.scheme in _SCHEMES
                and len(parts.path) > 1
                and not any(sign in parts.path[1:] for sign in "/@:")
                and not parts.fragment
                and all(map(_HOST.fullmatch, hosts))
            )
            self._shown = _shown(url) if whole else ""
        except ValueError:
            whole = False
        if not whole:
            # Without quoting the address, which may contain a part of the password.
            raise BadRequest(
                "The address of a database is postgresql://USER@HOST:PORT/DATABASE. A password that holds one of "
                "the signs :/?#[]@ is written in percents (@ as %40), or left to PGPASSWORD or a password file.",
                reason="ADDRESS_UNUSABLE",
                field="library",
            )
        self._url = url

    @staticmethod
    def named_by(value: object) -> bool:
        """True if the value is a database address and not a directory."""
        return isinstance(value, str) and value.partition("://")[0] in _SCHEMES and "://" in value

    def parameters(self) -> dict[str, Any]:
        """Returns connection parameters, including the password. Raises BadRequest."""
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            return {**_DEFAULTS, **conninfo_to_dict(self._url)}
        except ProgrammingError:
            # libpq's message may quote the address.
            raise BadRequest(
                "The address of the database has a part that PostgreSQL does not know.",
                reason="ADDRESS_UNUSABLE",
                field="library",
            ) from None

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"Address({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)


def place_of(value: str) -> Path | Address:
    """Parses the location of a library or docket: a path, or a database address.

    Raises:
        BadRequest: The address has another scheme, which as a path would create a folder such as ``mysql:``, or is
            invalid.
    """
    if Address.named_by(value):
        return Address(value)
    if "://" in value:
        raise BadRequest(
            "A library or a docket is on disk, named by its path, or in PostgreSQL: "
            "postgresql://USER@HOST:PORT/DATABASE.",
            reason="ADDRESS_UNUSABLE",
            field="library",
        )
    return Path(value)


def _shown(url: str) -> str:
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    options = [f"{key}={value}" if key in _SHOWN else f"{key}=***" for key, value in parse_qsl(parts.query)]
    query = f"?{'&'.join(options)}" if options else ""
    return f"{parts.scheme}://{name}{':***' if colon else ''}{at}{hosts}{parts.path}{query}"
