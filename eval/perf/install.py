"""The cost of getting started: size of a fresh environment, first verdicts, a server's memory, asking for help.

Seconds include package downloads and have no goal. CPU time of asking for help is that of whole processes, as the
operating system counts it, in pairs with a Python that does nothing.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from eval.perf.bench import Result, in_turns, medians, seconds_of
from eval.standin.process import served
from eval.synthetic.scenes import draw_meme

_ROOT = Path(__file__).resolve().parents[2]
_HEAVY = ("torch", "faiss", "onnxruntime", "tokenizers", "numpy", "grpc", "pydantic", "sqlalchemy")
_SCRIPT = (
    # Not standalone, because click would otherwise exit the process before anything is counted.
    "import sys; from serving.cli.main import cli; cli(['--help'], standalone_mode=False);"
    f"print(sum(name in sys.modules for name in {_HEAVY!r}), file=sys.stderr)"
)
_MEMES = 8
"""Memes that a server has judged before its memory is read."""
_VERDICTS = (0, 10, 11)
"""Exit codes of `memecourt judge` that say what a meme is."""


def install(*, turns: int = 3) -> Result:
    """Runs the benchmark."""
    return _first_verdicts(turns) | startup()


def _first_verdicts(turns: int) -> Result:
    """Copies the sources and follows the first lines of the README in the copy."""
    with TemporaryDirectory(prefix="memecourt-") as folder:
        # Without hidden files: the .venv and .cache of the checkout must not save the newcomer any time.
        copy = shutil.copytree(
            _ROOT, Path(folder, "memecourt"), ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        )
        # No settings or paths of this process may reach the fresh environment.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("MEMECOURT_", "PYTHON"))}
        environ["MEMECOURT_HOME"] = str(copy / ".demo")
        make = ["make", f"PYTHON={sys.executable}"]
        install_s = seconds_of(lambda: _run([*make, ".venv/server"], copy, environ))
        demo_s = seconds_of(lambda: _run([*make, "demo"], copy, environ))
        memecourt = str(copy / ".venv/bin/memecourt")
        meme = copy / "meme.png"
        draw_meme("cat", "When the alarm rings on Monday\nand you are already late for coffee").save(meme)
        judge = [memecourt, "judge", str(meme)]
        judge_s = statistics.median(
            seconds_of(lambda: _run(judge, copy, environ, good=_VERDICTS)) for _ in range(turns)
        )
        home = Path(environ["MEMECOURT_HOME"])
        with served(home, program=(memecourt,), environment={"PYTHONPATH": ""}) as process:
            _run([*judge, *[str(meme)] * (_MEMES - 1), "--server", process.address], copy, environ, good=_VERDICTS)
            # Includes the processes that decode and embed for it, which a server needs as well.
            server = psutil.Process(process.pid)
            # Each with its proportional share of shared pages.
            memory = sum(each.memory_full_info().pss for each in (server, *server.children(recursive=True)))
        # Links lead out of the environment to the Python that created it, or to files that are counted anyway.
        packages = sum(path.lstat().st_size for path in (copy / ".venv").rglob("*") if not path.is_symlink())
    return Result(
        figures={
            "environment_gb": packages / 1e9,
            "demo_s": install_s + demo_s,
            "judge_s": judge_s,
            "server_mb": memory / 1e6,
        },
        goals={"environment_gb": "<= 0.8", "server_mb": "<= 650"},
    )


def startup(turns: int = 15) -> Result:
    """Compares the CPU time of ``memecourt --help`` with that of an empty Python, in pairs."""
    pairs = in_turns(
        [lambda _: _cpu_of("-m", "serving.cli", "--help"), lambda _: _cpu_of("-c", "pass")], range(turns)
    )  # the first run of each compiles and fills caches
    looked = subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True)
    return Result(
        figures={
            **medians(pairs, help_over_empty=lambda helped, empty: helped / empty),
            "heavy_modules": int(looked.stderr),
        },
        goals={"help_over_empty": "<= 6", "heavy_modules": "== 0"},
    )


def _run(command: list[str], folder: Path, environ: Mapping[str, str], *, good: tuple[int, ...] = (0,)) -> None:
    """Runs a command. Raises RuntimeError with its output if its exit code is not one of the good ones."""
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in good:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _cpu_of(*arguments: str) -> float:
    command = [sys.executable, *arguments]
    return seconds_of(
        lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
        # Of all child processes that have ended: of the user and of the system.
        lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
    )
