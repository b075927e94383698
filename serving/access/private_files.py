"""Files that their owner alone may read: docket, pictures, keys, tokens, libraries, run folders.

A command makes all its files so, by the umask; what is made to be handed on (exports, reports, bundles) gets the mode
that the caller's umask would have given it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_OTHERS = 0o077
_log = logging.getLogger("memecourt.files")
_callers_umask: int | None = None


def make_files_private() -> None:
    """Makes files and folders from now on for this user alone, in this process and those it starts."""
    global _callers_umask
    before = os.umask(_OTHERS)
    # Only the first call sees the caller's umask; any later one would find our own.
    if _callers_umask is None:
        _callers_umask = before


def hand_on(path: Path) -> None:
    """Gives a file the mode that it would have had by the caller's umask."""
    # Of a device or a pipe, such as /dev/null, nobody asked for another mode, and all programs share it.
    if _callers_umask is not None and path.is_file():
        path.chmod(0o666 & ~_callers_umask)


def tighten(paths: Iterable[Path]) -> None:
    """Takes from others what they may do with these files and folders, and says so once; what is not there is skipped.

    What belongs to another user stays as it is: it is for that user to decide.
    """
    changed = 0
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & _OTHERS:
                # Rights are only taken away: a file with a stricter mode keeps it.
                path.chmod(mode & ~_OTHERS)
                changed += 1
        except OSError:
            continue
    if changed:
        _log.warning("others could read what this service stores: made private files=%d", changed)
