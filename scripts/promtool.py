"""Fetches Prometheus's ``promtool``, for the test of deploy/prometheus, and prints where it is.

It is the one that is installed, or comes out of Debian's package, which is unpacked and not installed. Needs apt, and
lists that ``apt-get update`` has fetched. Takes some seconds the first time, and 60 MB.

Run: ``python scripts/promtool.py``; exit code 75 where it can't be had.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "prometheus"
UNAVAILABLE = 75


def main() -> None:
    """Prints the path of promtool; ends with 75 and the reason where there is none."""
    tool = FOLDER / "usr" / "bin" / "promtool"
    if found := shutil.which("promtool"):
        print(found)
        return
    if not tool.exists():
        fetch()
    print(tool)


def fetch() -> None:
    """Unpacks the package of Debian."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        leave("there is no apt here; install Prometheus for its promtool")
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["apt-get", "download", "prometheus"], cwd=FOLDER, capture_output=True, text=True)
    packages = sorted(FOLDER.glob("prometheus_*.deb"))
    if done.returncode or not packages:
        leave(f"apt has no package of Prometheus to download: {done.stderr.strip()}")
    # Extracted and not installed: that needs no root, and starts no server.
    subprocess.run(["dpkg-deb", "--extract", packages[-1], FOLDER], check=True)
    for package in packages:
        package.unlink()


def leave(why: str) -> None:
    """Ends, with the reason on standard error."""
    print(f"promtool can't be had: {why}.", file=sys.stderr)
    sys.exit(UNAVAILABLE)


if __name__ == "__main__":
    main()
