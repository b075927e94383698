"""The cost of asking the command for help.

CPU time of whole processes, as the operating system counts it, in pairs with a Python that does nothing; the ratio is
computed for each pair, so that a slowdown of the machine affects both.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from eval.perf.bench import Result, in_turns, medians, seconds_of

_HEAVY = ("torch", "faiss", "onnxruntime", "tokenizers", "numpy", "grpc", "pydantic", "sqlalchemy")
_SCRIPT = (
    # Not standalone, because click would otherwise exit the process before anything is counted.
    "import sys; from serving.cli.main import cli; cli(['--help'], standalone_mode=False);"
    f"print(sum(name in sys.modules for name in {_HEAVY!r}), file=sys.stderr)"
)


def startup(*, turns: int = 15) -> Result:
    """Runs the benchmark."""
    pairs = in_turns([_help, _empty], range(turns))  # the first run of each compiles and fills caches
    looked = subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True)
    figures = medians(
        pairs,
        help_over_empty=lambda helped, empty: helped / empty,
        help_cpu_s=lambda helped, _: helped,
        empty_cpu_s=lambda _, empty: empty,
    )
    return Result(
        figures={**figures, "heavy_modules": int(looked.stderr)},
        goals={"help_over_empty": "<= 6", "heavy_modules": "== 0"},
    )


def _help(_: int) -> float:
    return _cpu_of("-m", "serving.cli", "--help")


def _empty(_: int) -> float:
    return _cpu_of("-c", "pass")


def _cpu_of(*arguments: str) -> float:
    command = [sys.executable, *arguments]
    return seconds_of(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), _children_s)


def _children_s() -> float:
    """Returns the CPU time of all child processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
