"""Helpers of tests of cards."""

import csv
from pathlib import Path


def write_table(path: Path, header, rows, delimiter=",", encoding="utf-8", end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
        writer.writerows([header, *rows])
