"""How much it costs to ask the command for help.

CPU time of whole processes, as the operating system counts it, in pairs with a Python that does nothing; the ratio is
formed pair by pair, so that a machine that slows down slows both.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from eval.perf.bench import Result

_PAIRS = 15
_HEAVY = ("torch", "faiss", "onnxruntime", "sentence_transformers", "numpy", "grpc", "pydantic", "sqlalchemy")
_LOOK = (
    "import sys; from serving.cli.main import cli; cli(['--help'], standalone_mode=False);"
    f"print(sum(name in sys.modules for name in {_HEAVY!r}), file=sys.stderr)"
)


def measure() -> Result:
    """Runs the benchmark."""
    empty = [sys.executable, "-c", "pass"]
    asked = [sys.executable, "-m", "serving.cli", "--help"]
    _cpu(empty), _cpu(asked)  # the first run of each compiles and fills caches
    pairs = [(_cpu(asked), _cpu(empty)) for _ in range(_PAIRS)]
    looked = subprocess.run([sys.executable, "-c", _LOOK], check=True, capture_output=True, text=True)
    return Result(
        name="startup",
        figures={
            "help_over_empty": round(statistics.median(a / b for a, b in pairs), 2),
            "help_cpu_s": round(statistics.median(a for a, _ in pairs), 4),
            "empty_cpu_s": round(statistics.median(b for _, b in pairs), 4),
            "heavy_modules": float(looked.stderr),
        },
        goals={"help_over_empty": "<= 15", "heavy_modules": "== 0"},
    )


def _cpu(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
