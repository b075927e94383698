"""Private files, readable only by their owner: docket, pictures, keys, tokens, libraries, run folders.

Commands create all files so, by the umask; files meant to be shared (exports, reports, bundles) get the mode that the
caller's umask would have given them.
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
    """Makes all new files and folders private, in this process and its children."""
    global _callers_umask
    before = os.umask(_OTHERS)
    # Only the first call sees the caller's umask; later ones would find our own.
    if _callers_umask is None:
        _callers_umask = before


def hand_on(path: Path) -> None:
    """Sets the mode that a file would have had by the caller's umask."""
    # Devices and pipes, such as /dev/null, are shared by all programs and keep their mode.
    if _callers_umask is not None and path.is_file():
        path.chmod(0o666 & ~_callers_umask)


def tighten(paths: Iterable[Path]) -> None:
    """Removes other users' permissions on files and folders and logs that once; missing ones are skipped.

    Files of another user are left alone, since that user decides.
    """
    changed = 0
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & _OTHERS:
                # Permissions are only removed: a file with a stricter mode keeps it.
                path.chmod(mode & ~_OTHERS)
                changed += 1
        except OSError:
            continue
    if changed:
        _log.warning("others could read what this service stores: made private files=%d", changed)
