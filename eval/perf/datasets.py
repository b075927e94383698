"""Rows a second that a card reads, beside the standard library building the same values without a check; and memory.

CPU time of this process for 10^5 drawn rows with a text, a picture and labels of two tasks, the best of three. The
bare readers are ``csv.DictReader`` and ``json.loads``: they look each label up, and make the same
:class:`~eval.datasets.card_split.CardMeme` of a row by pydantic's ``model_construct``, which checks nothing. For
information there are also the same readers making a dictionary of a row, which is as little as can be done, and pandas,
where it is installed, as far as its data frame and without making memes.

Memory is what a process of its own takes for ten times as many rows, over what it takes for these: ids are remembered
to find doubles, and nothing else of a row.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eval.datasets.card import DatasetCard, card_of
from eval.datasets.card_split import CardMeme, CardReader
from eval.perf.bench import Result, in_turns, run_module, seconds_of

_TIMES = 3
_TONES = ("calm", "loud", "odd")
_HARM = {"1": "harmful", "0": "harmless"}
_PICTURE = "img/{}.png"


def datasets(*, rows: int = 100_000) -> Result:
    """Runs the benchmark: a minute and a half."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_rows(data, rows)
        figures: dict[str, float] = {}
        for kind in ("csv", "jsonl"):
            works = (
                partial(count_rows, data, kind),
                partial(_bare, data, kind, CardMeme.model_construct),
                partial(_bare, data, kind, dict),
            )
            # The best of them: whatever disturbs a run only adds to its time.
            turns = in_turns([_timed(work) for work in works], range(_TIMES))
            ours, bare, dictionaries = (min(times) for times in zip(*turns, strict=True))
            figures |= {
                f"{kind}_rows_per_cpu_s": rows / ours,
                f"{kind}_over_bare": bare / ours,
                f"{kind}_over_dictionaries": dictionaries / ours,
            }
            if kind == "csv" and find_spec("pandas"):
                figures["csv_over_pandas"] = min(_timed(lambda: _pandas(data))(0) for _ in range(_TIMES)) / ours
        # In a process of its own: the peak of this one is that of the measurements before.
        less = run_module("eval.perf.datasets", [data, "jsonl"])
        write_rows(data, rows * 10)
        more = run_module("eval.perf.datasets", [data, "jsonl"])
    # Of the further rows alone: what the interpreter takes is in both.
    figures["bytes_per_further_row"] = (more - less) / (rows * 9)
    return Result(
        figures=figures,
        goals={"csv_over_bare": ">= 0.5", "jsonl_over_bare": ">= 0.5", "bytes_per_further_row": "<= 200"},
    )


def write_rows(data: Path, rows: int) -> None:
    """Writes drawn rows as a table and as JSON a line."""
    names = ("id", "text", "image", "label", "tone")
    with (data / "rows.csv").open("w", newline="") as table, (data / "rows.jsonl").open("w") as lines:
        writer = csv.writer(table)
        writer.writerow(names)
        for n in range(rows):
            text = f"a pond as it is seen from place {n}, and a frog that says nothing about it"
            row = (f"m{n}", text, _PICTURE.format(n), str(n % 2), _TONES[n % 3])
            writer.writerow(row)
            lines.write(json.dumps(dict(zip(names, row, strict=True))) + "\n")


def count_rows(data: Path, kind: str) -> int:
    """Reads the rows by a card, and counts them."""
    return sum(1 for _ in CardReader(_card(kind), data, "all"))


def peak_bytes() -> int:
    """The most memory that this process has had in main memory (Linux)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _card(kind: str) -> DatasetCard:
    tasks: list[dict[str, Any]] = [
        {"id": "harm", "kind": "binary", "of": "label", "map": _HARM},
        {"id": "tone", "kind": "single", "of": "tone", "labels": _TONES},
    ]
    return card_of(
        {
            "format": 1,
            "id": "drawn",
            "title": "drawn rows",
            "layout": {"kind": kind},
            "splits": [{"name": "all", "role": "test", "files": [f"rows.{kind}"]}],
            "fields": {"id": "id", "text": "text", "picture": "image"},
            "tasks": tasks,
        },
        "drawn",
    )


def _bare(data: Path, kind: str, make: Callable[..., object]) -> int:
    number = 0
    with (data / f"rows.{kind}").open(newline="" if kind == "csv" else None) as file:
        for number, row in enumerate(csv.DictReader(file) if kind == "csv" else map(json.loads, file), 1):
            make(
                id=row["id"],
                split="all",
                file=f"rows.{kind}",
                line=number,
                image=row["image"],
                text=row["text"],
                gold={"harm": (_HARM[row["label"]],), "tone": (row["tone"],)},
            )
    return number


def _pandas(data: Path) -> None:
    import_module("pandas").read_csv(data / "rows.csv", dtype=str)


def _timed(work: Callable[[], object]) -> Callable[[int], float]:
    return lambda _: seconds_of(work, time.process_time)


if __name__ == "__main__":
    count_rows(Path(sys.argv[1]), sys.argv[2])
    # Not by getrusage: it begins with what the parent had when this process was made.
    print(json.dumps(peak_bytes()))
