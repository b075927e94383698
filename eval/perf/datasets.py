"""Rows per second that a card reads, compared with building the same values without checks; and memory.

The CPU time of this process for 10^5 generated rows with a text, a picture and labels of two tasks, best of three. The
baseline readers are ``csv.DictReader``, ``json.loads``, pyarrow and ``tarfile``: they look up each label and build the
same :class:`~eval.datasets.card_split.CardMeme` from a row with pydantic's ``model_construct``, which checks nothing.
For information there are also the same readers building a dictionary from each row, the least possible work, and
pandas, if installed, up to its data frame and without building memes.

Memory per row is the additional memory that a separate process takes for ten times as many rows: for reading each kind
of file, for ``datasets check``, and for the sample that a run with ``--limit`` judges. Shown next to it is the memory
per meme of a run without a limit and of a library's rows, both of which keep all memes. Rows of each kind are counted
as well: rows read, refused and left out must add up to the rows written.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from eval.datasets.card import DatasetCard, card_of
from eval.datasets.card_split import CardMeme, CardReader
from eval.datasets.check import check
from eval.datasets.known import dataset_of_card
from eval.datasets.read import read_split, source_of
from eval.datasets.sample import sample
from eval.perf.bench import Result, in_turns, seconds_of
from eval.standin.process import run_module
from retrieval.library.readers import read_source

KINDS = ("csv", "jsonl", "parquet", "tar")
_TIMES = 3
_TONES = ("calm", "loud", "odd")
_HARM = {"1": "harmful", "0": "harmless"}
_NAMES = ("id", "text", "image", "label", "tone")
_BATCH = 2048
_SAMPLE = 1000


def datasets(*, rows: int = 100_000) -> Result:
    """Runs the benchmark: takes some minutes, and 2 kB of disk for each of ten times as many rows."""
    figures: dict[str, float] = {}
    # One kind at a time: 10^6 rows of every kind at once would fill a small disk.
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            figures |= _of_kind(Path(folder), kind, rows)
    bounds = {f"{kind}_over_bare": ">= 0.5" for kind in KINDS}
    # Far less than a meme takes (run_bytes_per_meme): the rest are caches of a fixed size.
    bounds |= {name: "<= 50" for name in figures if name.endswith("bytes_per_further_row")}
    return Result(figures=figures, goals=bounds | {f"{kind}_rows_lost": "== 0" for kind in KINDS})


def _of_kind(data: Path, kind: str, rows: int) -> dict[str, float]:
    write_rows(data, rows, kind)
    works = (
        partial(count_rows, data, kind),
        partial(_bare, data, kind, CardMeme.model_construct),
        partial(_bare, data, kind, dict),
    )
    # The best of them: any disturbance only adds to the time.
    turns = in_turns([_timed(work) for work in works], range(_TIMES))
    ours, bare, dictionaries = (min(times) for times in zip(*turns, strict=True))
    figures = {
        f"{kind}_rows_per_cpu_s": rows / ours,
        f"{kind}_over_bare": bare / ours,
        f"{kind}_over_dictionaries": dictionaries / ours,
    }
    if kind == "csv" and find_spec("pandas"):
        figures["csv_over_pandas"] = min(_timed(lambda: _pandas(data))(0) for _ in range(_TIMES)) / ours
    # What happens to memes does not depend on the kind of file that they came from.
    names = {"read": f"{kind}_"} | ({"check": "check_", "sample": "sample_"} if kind == "jsonl" else {})
    # In separate processes: the peak memory of this one is from the measurements before.
    less = {work: run_module("eval.perf.datasets", [data, kind, work]) for work in names}
    # With this many rows and no more: the memes of a million rows alone would take gigabytes.
    for work in WHOLE if kind == "jsonl" else ():
        whole = run_module("eval.perf.datasets", [data, kind, work])
        figures[f"{work}_bytes_per_meme"] = (whole["bytes"] - less["read"]["bytes"]) / rows
    write_rows(data, rows * 10, kind)
    for work, name in names.items():
        more = run_module("eval.perf.datasets", [data, kind, work])
        # For the additional rows only: the interpreter's own memory is in both measurements.
        figures[f"{name}bytes_per_further_row"] = (more["bytes"] - less[work]["bytes"]) / (rows * 9)
        if work == "read":
            figures[f"{kind}_rows_lost"] = abs(rows * 10 - more["rows"])
            figures[f"{kind}_mib"] = more["bytes"] / 2**20
    return figures


def write_rows(data: Path, rows: int, kind: str) -> None:
    """Writes generated rows as one kind of file."""
    path = data / f"rows.{kind}"
    drawn = _drawn(rows)
    if kind == "csv":
        with path.open("w", newline="") as table:
            writer = csv.DictWriter(table, _NAMES)
            writer.writeheader()
            writer.writerows(drawn)
    elif kind == "jsonl":
        with path.open("w") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in drawn)
    elif kind == "parquet":
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        with parquet.ParquetWriter(path, arrow.schema([(name, arrow.string()) for name in _NAMES])) as writer:
            # In batches, as the file is read: otherwise all rows in memory would count as our memory use.
            while batch := list(islice(drawn, _BATCH)):
                writer.write_batch(arrow.RecordBatch.from_pylist(batch))
    else:
        with tarfile.open(path, "w") as tar:
            for row in drawn:
                for name, content in ((row["image"], b"picture"), (f"{row['id']}.json", json.dumps(row).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
                # tarfile remembers all members and would keep growing.
                tar.members.clear()  # type: ignore[attr-defined] # of which typeshed knows nothing


def _drawn(rows: int) -> Iterator[dict[str, str]]:
    for n in range(rows):
        text = f"a pond as it is seen from place {n}, and a frog that says nothing about it"
        values = (f"m{n}", text, f"m{n}.png", str(n % 2), _TONES[n % 3])
        yield dict(zip(_NAMES, values, strict=True))


def count_rows(data: Path, kind: str) -> int:
    """Reads the rows with a card, and counts memes, refused rows and rows left out."""
    reader = CardReader(_card(kind), data, "all")
    return sum(1 for _ in reader) + reader.refused + len(reader.excluded) + reader.elsewhere


def check_rows(data: Path, kind: str) -> int:
    """Checks the rows as ``datasets check`` does; returns their number."""
    (split,) = asyncio.run(check(dataset_of_card(_card(kind)), data)).splits
    return split.rows


def sample_rows(data: Path, kind: str) -> int:
    """Reads the rows as a run with a limit does; returns the number of rows sampled."""
    # With a limit, because a run without one holds all its memes in memory.
    drawn = partial(sample, limit=_SAMPLE, seed=0)
    return len(read_split(dataset_of_card(_card(kind)), data, "all", choose=drawn).memes)


def whole_rows(data: Path, kind: str) -> int:
    """Reads the rows as a run that judges all of them does; returns their number."""
    return len(read_split(dataset_of_card(_card(kind)), data, "all").memes)


def source_rows(data: Path, kind: str) -> int:
    """Reads the rows without pictures as the build of a precedent library does; returns their number."""
    return len(read_source(source_of(dataset_of_card(_card(kind)), data, "all")).good)


WORKS: dict[str, Callable[[Path, str], int]] = {"read": count_rows, "check": check_rows, "sample": sample_rows}
WHOLE: dict[str, Callable[[Path, str], int]] = {"run": whole_rows, "build": source_rows}
"""Works that keep every meme: for comparison, with no bound."""


def peak_bytes() -> int:
    """Returns the peak resident memory of this process (Linux)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _card(kind: str) -> DatasetCard:
    court = {"harmful": ["harmful"], "benign": ["harmless"]}
    tasks: list[dict[str, Any]] = [
        {"id": "harm", "kind": "binary", "of": "label", "map": _HARM, "court": court},
        {"id": "tone", "kind": "single", "of": "tone", "labels": _TONES},
    ]
    fields = {"id": "id", "text": "text", "picture": "@picture" if kind == "tar" else "image"}
    return card_of(
        {
            "format": 1,
            "id": "drawn",
            "title": "drawn rows",
            "layout": {"kind": kind},
            "splits": [{"name": "all", "role": "test", "files": [f"rows.{kind}"]}],
            "fields": fields,
            "tasks": tasks,
        },
        "drawn",
    )


def _bare(data: Path, kind: str, make: Callable[..., object]) -> int:
    number = 0
    for number, row in enumerate(_BARE[kind](data / f"rows.{kind}"), 1):
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


def _bare_csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _bare_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as file:
        yield from map(json.loads, file)


def _bare_parquet(path: Path) -> Iterator[dict[str, Any]]:
    for batch in import_module("pyarrow.parquet").ParquetFile(path).iter_batches(_BATCH):
        yield from batch.to_pylist()


def _bare_tar(path: Path) -> Iterator[dict[str, Any]]:
    with tarfile.open(path, "r:") as tar:
        for info in tar:
            tar.members.clear()  # type: ignore[attr-defined] # as above
            if info.name.endswith(".json"):
                content = tar.extractfile(info)
                assert content is not None
                yield json.loads(content.read())


_BARE: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "csv": _bare_csv,
    "jsonl": _bare_jsonl,
    "parquet": _bare_parquet,
    "tar": _bare_tar,
}


def _pandas(data: Path) -> None:
    import_module("pandas").read_csv(data / "rows.csv", dtype=str)


def _timed(work: Callable[[], object]) -> Callable[[int], float]:
    return lambda _: seconds_of(work, time.process_time)


if __name__ == "__main__":
    done = (WORKS | WHOLE)[sys.argv[3]](Path(sys.argv[1]), sys.argv[2])
    # Not with getrusage, which starts from the parent's memory at the time of the fork.
    print(json.dumps({"rows": done, "bytes": peak_bytes()}))
