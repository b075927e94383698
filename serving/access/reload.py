"""Files that may change while the server runs: certificates, tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from court.errors import BadRequest

EVERY_S = 0.5
"""Between two looks, in seconds. What has changed is in use after three at most."""

_log = logging.getLogger("memecourt.server")

Contents = tuple[bytes, ...]


def read_all(paths: Sequence[Path], what: str) -> Contents:
    """Reads the contents of files.

    Args:
        paths: The files.
        what: They are, for the error.

    Raises:
        BadRequest: One of them can't be read.
    """
    try:
        # A pipe, such as the shell's <(command), would hold everything up, or be empty the second time: then no token
        # would be valid any more.
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
    """Hands on what files hold each time that it has changed; for ever.

    Content is compared, not times: links that are switched, as Kubernetes does it, are seen like that too. It is handed
    on once two looks in a row have found the same, so that a file is not read while it is being written, nor a key
    without its certificate.

    Args:
        paths: The files.
        use: Is given what they hold; raises BadRequest if that can't be used: then what was in use before stays in use.
        what: They are, for the log: "The file of tokens".
        in_use: Contents of the files when they were read first.
        every_s: Seconds between two looks.
    """
    handed_on: Contents | str = in_use
    contents: Contents | str = in_use
    while True:
        await asyncio.sleep(every_s)
        try:
            found: Contents | str = await asyncio.to_thread(read_all, paths, what)
        except BadRequest as error:
            # What can't be read is treated like another content, so that this is logged once as well.
            found = error.message
        if found == contents and found != handed_on:
            # Also where it can't be used: that is logged once, and not at every look.
            handed_on = found
            try:
                if isinstance(found, str):
                    raise BadRequest(found)
                use(found)
                _log.info("%s has changed and is in use", what)
            except BadRequest as error:
                _log.error("%s has changed and can't be used, what was in use stays: %s", what, error.message)
        contents = found
