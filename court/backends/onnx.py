"""onnxruntime, kept from reporting to its makers how it is used.

From version 1.32 on, it gives each user of a machine an id under ``~/.cache/Microsoft`` and collects there, for an
address of its makers that it names, how it is used. A court's processes report nothing that their operator did not ask
for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

NO_REPORTS: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
"""Environment of a process that loads onnxruntime. The library reads it once, while it is loaded; what it has to switch
reports off later comes too late for the id."""


def import_onnxruntime() -> Any:
    """Imports onnxruntime into this process. Raises ImportError."""
    for name, value in NO_REPORTS.items():
        # An operator who set it, to whatever, has decided.
        os.environ.setdefault(name, value)
    # By name: it says little of its types, and is loaded only where a model is run.
    return import_module("onnxruntime")
