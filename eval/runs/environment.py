"""Environment of a run: its software and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def commit() -> str:
    """Returns the commit of this package's source tree, with ``+`` if it was changed; empty outside of one.

    Installed into an environment below somebody else's repository it lies in a work tree, too; only what that one keeps
    track of is of its commit.
    """
    here = Path(__file__).resolve()
    # An installed package may lie in somebody else's repository, whose commit says nothing of it.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return ""
    head = _git(here.parent, "rev-parse", "HEAD")
    if head is None:
        return ""
    # Tracked files alone: results and notes beside the sources change nothing of what runs.
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return head.strip() + ("+" if changed else "")


def machine() -> str:
    """System, processor kind, number of cores."""
    cores = os.cpu_count() or 1
    return f"{platform.system()} {platform.release()}, {platform.machine()}, {cores} cores"


def python() -> str:
    """Implementation and version."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def _git(where: Path, *arguments: str) -> str | None:
    """Runs git and returns its output; None if it fails, or is not there."""
    try:
        output = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output.stdout if output.returncode == 0 else None
