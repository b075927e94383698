"""Runs the whole of ``memecourt-eval reproduce`` without a GPU and without anybody's data (``make reproduce-demo``).

Three drawn benchmarks stand for the paper's data sets, and three stand-in servers of known ability for its models. The
figures that every row must come to follow from the memes and the abilities alone, and stand where the published figures
stand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from eval.cli import cli
from eval.reproduce.drawn import arguments, draw_benchmarks, stand_ins

TRAIN, TEST = 24, 56
"""Memes of each drawn benchmark."""


def main() -> None:
    """Draws the benchmarks below the directory that is named, starts the stand-ins and runs the command."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/reproduce")
    draw_benchmarks(root / "data", train=TRAIN, test=TEST)
    with stand_ins() as urls:
        cli(arguments(root, urls))


if __name__ == "__main__":
    main()
