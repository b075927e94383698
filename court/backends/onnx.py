"""Import of onnxruntime with its telemetry disabled.

From version 1.32 on, it creates a per-user id under ``~/.cache/Microsoft`` and collects usage data for an address of
its vendor. A court's processes report nothing that their operator did not ask for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

NO_REPORTS: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
"""Environment of a process that loads onnxruntime. The library reads it once, at import; its API for disabling
telemetry comes too late to prevent the id."""


def import_onnxruntime() -> Any:
    """Imports onnxruntime into this process. Raises ImportError."""
    for name, value in NO_REPORTS.items():
        # A value set by the operator takes precedence.
        os.environ.setdefault(name, value)
    # Imported by name: it has few type hints, and is only loaded by processes that run a model.
    return import_module("onnxruntime")
