"""Benchmarks of a reproduction: the splits on which a paper's figures are compared with ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from court.errors import BadRequest
from eval.datasets.card import DatasetCard, SplitRole
from eval.datasets.items import JudgedMeme
from eval.datasets.known import find_card
from eval.datasets.protocol import Protocol
from eval.datasets.read import labels_dropped, read_split
from eval.runs.material import judged_memes


@dataclass(frozen=True)
class Benchmark:
    """A split of a data set that a paper's figures are compared on.

    Attributes:
        compared: Name of the data set in the paper's tables.
        dataset: Data set of ours.
        drops: True if memes that the protocol drops are excluded from the precedents, too.
    """

    name: str
    compared: str
    dataset: DatasetCard
    data: Path
    split: str
    protocol: Protocol
    drops: bool

    def judged(self, limit: int | None, seed: int) -> tuple[JudgedMeme, ...]:
        """Memes that a run judges. Raises BadRequest if the split can't be read."""
        read = read_split(self.dataset, self.data, self.split)
        dropped = labels_dropped(self.dataset, (self.protocol,)) if self.drops else ()
        return judged_memes(read.memes, limit, seed, dropped)


def public_benches(data: Path, *, harm_p: Literal["v1", "v0"] = "v1", drops: bool = True) -> tuple[Benchmark, ...]:
    """The paper's public data sets; FHM with both splits that have public labels.

    Args:
        data: Directory that they were unpacked in.
        drops: True if somewhat harmful memes are excluded from the precedents, too.
    """

    def harmeme(name: str, dataset: str) -> Benchmark:
        return Benchmark(
            name, name, find_card(dataset), data=data, split="test", protocol=Protocol.EXTREME, drops=drops
        )

    def fhm(split: str) -> Benchmark:
        name = f"fhm-{split.replace('_', '-')}"
        return Benchmark(name, "fhm", find_card("fhm"), data=data, split=split, protocol=Protocol.PLAIN, drops=False)

    return (
        harmeme("harm-c", "harm-c"),
        harmeme("harm-p", "harm-p" if harm_p == "v1" else "harm-p-v0"),
        fhm("test_seen"),
        fhm("dev_seen"),
    )


def drawn_benches(data: Path) -> tuple[Benchmark, ...]:
    """Synthetic benchmarks in place of the paper's, in folders ``harm-c``, ``harm-p`` and ``fhm``."""
    harmeme, fhm = find_card("synthetic-harmeme"), find_card("synthetic-fhm")
    levels = {"split": "test", "protocol": Protocol.EXTREME, "drops": True}
    return (
        Benchmark("harm-c", "harm-c", harmeme, data=data / "harm-c", **levels),  # type: ignore[arg-type]
        Benchmark("harm-p", "harm-p", harmeme, data=data / "harm-p", **levels),  # type: ignore[arg-type]
        Benchmark("fhm", "fhm", fhm, data=data / "fhm", split="test_seen", protocol=Protocol.PLAIN, drops=False),
    )


def present(benches: Sequence[Benchmark]) -> tuple[tuple[Benchmark, ...], dict[str, str]]:
    """The benchmarks whose data exist, and the reasons why others are missing, by name.

    Raises:
        BadRequest: No data exist, or existing data can't be read.
    """
    found, missing = [], {}
    for bench in benches:
        try:
            # The train split as well: precedents come from it.
            for split in (bench.split, *(train.name for train in bench.dataset.of_role(SplitRole.TRAIN))):
                read_split(bench.dataset, bench.data, split)
        except BadRequest as error:
            # Damaged data must not be mistaken for a benchmark that was omitted on purpose.
            if error.reason != "DATA_MISSING":
                raise
            missing[bench.name] = error.message
        else:
            found.append(bench)
    if not found:
        raise BadRequest(next(iter(missing.values())), reason="DATA_MISSING")
    return tuple(found), missing
