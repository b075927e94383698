"""Environment of a run: its software and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def commit() -> str:
    """Returns the commit of this package's source tree, with ``+`` if it was modified; empty outside of a source tree.

    A package installed below another project's repository also lies in a work tree; only files that this repository
    tracks belong to its commit.
    """
    here = Path(__file__).resolve()
    # An installed package may lie in another project's repository, whose commit is irrelevant.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return ""
    head = _git(here.parent, "rev-parse", "HEAD")
    if head is None:
        return ""
    # Tracked files only: results and notes beside the sources do not affect the run.
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return head.strip() + ("+" if changed else "")


def machine() -> str:
    """Returns the operating system, processor type and number of cores."""
    cores = os.cpu_count() or 1
    return f"{platform.system()} {platform.release()}, {platform.machine()}, {cores} cores"


def python() -> str:
    """Returns Python's implementation and version."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def _git(where: Path, *arguments: str) -> str | None:
    """Runs git and returns its output; None if it fails or is not installed."""
    try:
        output = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output.stdout if output.returncode == 0 else None
