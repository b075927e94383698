"""Makes ``docs/calling`` runnable in ``.cache/node``: its packages from npm, and code generated from our contract.

Run: ``python scripts/node_client.py``. Needs Node and npm. Packages are installed once, as the lock file pins them;
code is generated each time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "node"
_LOCK = "package-lock.json"
_DETAILS = "google/rpc/error_details.proto"


def main() -> None:
    """Installs and generates."""
    same = (FOLDER / "node_modules").is_dir() and (FOLDER / _LOCK).read_bytes() == _client_file(_LOCK).read_bytes()
    if not same:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file in (ROOT / "docs/calling").iterdir():
        if file.name != _LOCK:
            shutil.copy(file, FOLDER)
    if not same:
        npm = shutil.which("npm") or sys.exit("There is no npm here; install Node and npm (Debian: nodejs, npm).")
        shutil.copy(_client_file(_LOCK), FOLDER)
        # No package may run code of its own because it is installed.
        _run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    generate()
    print(f"node {FOLDER.relative_to(ROOT)}/judge.mjs http://127.0.0.1:50051 meme.png")


def generate() -> None:
    """The code of the contract, and of the details that errors carry, which Google's package for Python has."""
    details = FOLDER / "details"
    place = details / _DETAILS
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(str(distribution("googleapis-common-protos").locate_file(_DETAILS))), place)
    buf = Path(sys.executable).parent / "buf"
    for source in (ROOT / "proto", details):
        _run(str(buf), "generate", str(source))


def _client_file(name: str) -> Path:
    return ROOT / "docs/calling" / name


def _run(*command: str) -> None:
    subprocess.run(command, cwd=FOLDER, check=True)


if __name__ == "__main__":
    main()
