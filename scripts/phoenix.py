"""Makes an environment with Arize Phoenix, for ``tests/live/test_phoenix.py``, and prints its Python.

It is an environment of its own: Phoenix brings a hundred packages, and the project must not follow them. pip fetches
from whatever index it is set up with. The environment is kept between runs; a stamp in it says what it was made of, and
it is made anew when that has changed. Takes a minute or two and 900 MB the first time, a moment afterwards.

Run: ``python scripts/phoenix.py [--folder FOLDER]``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import vllm_cpu as environments  # how environments are made and kept, both scripts do alike

PACKAGES = ("arize-phoenix==20.26.1",)
RECIPE = 1
"""To be raised whenever this script makes something else of the same packages."""
FOLDER = Path(__file__).parent.parent / ".cache" / "phoenix"


def main() -> None:
    """Makes the environment if there is none, or another; prints the path of its Python on standard output."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=FOLDER, help="where [default: .cache/phoenix]")
    folder: Path = options.parse_args().folder.absolute()
    # The stamp is read under the lock: another run may just have made the environment.
    with environments.alone(folder):
        if environments.read_stamp(folder) != wanted():
            make(folder)
    print(environments.python_of(folder))


def wanted() -> dict[str, object]:
    """Lists the packages of the environment."""
    return environments.wanted() | {"recipe": RECIPE, "packages": list(PACKAGES)}


def make(folder: Path) -> None:
    """Makes it from nothing; what an interrupted run left is removed."""
    environments.create(folder)
    environments.pip(folder, "install", "--quiet", *PACKAGES)
    if not environments.works(folder, "import phoenix", show=True):
        raise SystemExit("Phoenix was installed but can't be imported; what it said stands above.")
    environments.stamp_of(folder).write_text(json.dumps(wanted()))


if __name__ == "__main__":
    main()
