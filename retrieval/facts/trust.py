"""Reads the trust in sources from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path

from court.errors import BadRequest

MOST = 100


def read_trust(path: Path) -> dict[str, int]:
    """Reads the table ``[trust]`` of a file, with an integer from 0 to 100 for each source or host.

    Raises:
        BadRequest: The file can't be read or has other content.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise BadRequest(f"The file of trust {path.name} can't be read: {why}.", reason="TRUST_UNREADABLE") from None
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"The file of trust {path.name} is no TOML: {error}.", reason="TRUST_UNREADABLE") from None
    trust = found.pop("trust", None)
    if not isinstance(trust, dict) or found:
        raise BadRequest(
            f'The file of trust {path.name} is one table: [trust], with lines such as "who.int" = 3.',
            reason="TRUST_UNREADABLE",
        )
    for name, value in trust.items():
        # A bool is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise BadRequest(f"The trust in {name!r} is no whole number from 0 to {MOST}.", reason="TRUST_UNREADABLE")
    return dict(trust)
