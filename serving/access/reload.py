"""Reloads files that change while the server runs: certificates and tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from court.errors import BadRequest

EVERY_S = 0.5
"""Seconds between two checks. A change is in use after at most three."""

_log = logging.getLogger("memecourt.server")

Contents = tuple[bytes, ...]


def read_all(paths: Sequence[Path], what: str) -> Contents:
    """Reads the contents of files.

    Raises:
        BadRequest: One of them can't be read.
    """
    try:
        # A pipe, such as the shell's <(command), would block, or be empty the second time and so invalidate all tokens.
        if any(path.exists() and not path.is_file() and not path.is_dir() for path in paths):
            raise BadRequest(
                f"{what} can't be read: a pipe or a device is no file. Give a file: it is read again while the server "
                "runs.",
                reason="FILE_UNREADABLE",
            )
        return tuple(path.read_bytes() for path in paths)
    except OSError as error:
        raise BadRequest(f"{what} can't be read: {error.strerror}.", reason="FILE_UNREADABLE") from None


async def follow_files(
    paths: Sequence[Path], use: Callable[[Contents], None], what: str, in_use: Contents, every_s: float = EVERY_S
) -> None:
    """Watches files for ever, and passes on their contents after each change.

    Contents are compared rather than times, so that switched links, as in Kubernetes, are noticed too. A change is
    passed on once two consecutive checks agree, so that neither a half-written file nor a key without its certificate
    is used.

    Args:
        use: Called with the new contents; raises BadRequest if they are invalid, and the old ones stay in use.
    """
    handed_on: Contents | str = in_use
    contents: Contents | str = in_use
    while True:
        await asyncio.sleep(every_s)
        try:
            found: Contents | str = await asyncio.to_thread(read_all, paths, what)
        except BadRequest as error:
            # An unreadable file is treated like new contents, so that it is logged only once.
            found = error.message
        if found == contents and found != handed_on:
            # Also if it is invalid, so that this is logged once rather than at every check.
            handed_on = found
            try:
                if isinstance(found, str):
                    raise BadRequest(found)
                use(found)
                _log.info("%s has changed and is in use", what)
            except BadRequest as error:
                _log.error("%s has changed and can't be used, what was in use stays: %s", what, error.message)
        contents = found
