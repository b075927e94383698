"""How a process ended, in words."""

from __future__ import annotations

import signal


def ending(code: int) -> str:
    """Of the return code of a process: its exit status, or the signal, which need not be one that has a name."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # those for real time are numbered
        return f"signal {-code}"
