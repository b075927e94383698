"""Expected figures of a reproduction on synthetic memes with fake models of known ability.

No run is read: the verdict of each trial follows from the memes' key and the model's ability
(:func:`eval.synthetic.oracle.expected`). Precedents are labelled by the hidden rule, as all memes are.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval.reproduce.paper import Paper, Target
from eval.reproduce.study import Benchmark
from eval.scores.metrics import score
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from eval.synthetic.make import KEY, Layout, make, read_key
from eval.synthetic.oracle import Ability, ServedOracle, expected
from eval.synthetic.world import SIZE


@contextlib.contextmanager
def served(servers: Mapping[str, FakeModelServer]) -> Iterator[dict[str, str]]:
    """Runs fake servers on the loopback interface; yields their addresses by name."""
    listening = threading.Event()
    urls: dict[str, str] = {}
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        end = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            for name, server in servers.items():
                urls[name] = f"http://127.0.0.1:{await stack.enter_async_context(serving(server))}/v1"
            loops.append((asyncio.get_running_loop(), end))
            listening.set()
            await end.wait()

    # A thread with a loop of its own: the command that calls the servers runs its own loop meanwhile.
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    if not listening.wait(30):
        raise RuntimeError("the stand-in servers did not start")
    try:
        yield urls
    finally:
        loop, end = loops[0]
        # The event belongs to the other thread's loop: set from here, it would not wake the waiting task.
        loop.call_soon_threadsafe(end.set)
        thread.join()


def oracle_server(model: str, ability: Ability) -> FakeModelServer:
    """A fake server of a model of this ability."""
    oracle = ServedOracle(ability)
    settings = Settings(model=model, play="synthetic", capacity=64)
    return FakeModelServer(settings, answer=oracle.answer, odds=oracle.odds)


def stand_ins() -> contextlib.AbstractContextManager[dict[str, str]]:
    """Runs a fake server of each ability; yields their addresses by size."""
    return served({size: oracle_server(drawn_model(size), ability) for size, ability in ABILITIES.items()})


_PLANTED = Ability(
    harmful=1.0, benign=1.0, groups_told=3, unseen=0.1, lead=2, late=0.8, near=True,
)  # fmt: skip
ABILITIES: Mapping[str, Ability] = {
    "3b": replace(_PLANTED, eyes=0.0, description=0.05, arguments=0.1, answers=0.15, precedents=0.1),
    "7b": replace(_PLANTED, eyes=0.05, description=0.1, arguments=0.2, answers=0.4, precedents=0.15),
    "32b": replace(_PLANTED, eyes=0.05, description=0.1, arguments=0.2, answers=0.6, precedents=0.35),
}
"""Abilities of the fake models that stand in for the paper's: what the paper claims is true of them by construction.

A description leaves out half of the badges, which questions bring out; near precedents help; the side that is right
rests sooner; a stance that comes late misleads; a larger model sees more.
"""
_ALTERED: Mapping[str, dict[str, Any]] = {
    "full": {},
    "no-precedents": {},
    "no-advocates": {"advocates": False},
    "no-captioner": {"captioner": False},
    "dull-judge": {"dull": True},
    "post-stance": {"stance_from_start": False},
}
"""Arguments of the expectation, by arm."""


def drawn_model(size: str) -> str:
    """Name of the fake model of a size."""
    return f"oracle-{size}"


def drawn_paper(paper: Paper, benchmarks: Sequence[Benchmark]) -> Paper:
    """The paper with the figures that the fake models must reach on these benchmarks; rows on others are omitted.

    Raises:
        BadRequest: A benchmark can't be read.
        OSError: A benchmark has no key.
    """
    rows = []
    by_data = {each.data: each for each in benchmarks}
    for row in (row for row in paper.targets if row.data in by_data):
        gold, predicted = _expected(by_data[row.data], row)
        # The oracle is deterministic: there is an exact figure to meet, and no interval.
        figures = score(gold, predicted, resamples=1)
        rows.append(
            row.model_copy(update={"accuracy": 100 * figures.accuracy.value, "macro_f1": 100 * figures.macro_f1.value})
        )
    changes = {"paper": "The oracle on drawn memes", "figures": "must be", "targets": tuple(rows)}
    return paper.model_copy(update=changes)


def _expected(benchmark: Benchmark, row: Target) -> tuple[list[bool], list[bool]]:
    key = {meme.id: meme for meme in read_key(benchmark.plan.data)}
    gold, predicted = [], []
    for meme in benchmark.judged():
        drawn = key[meme.id]
        # All precedents are labelled by the rule, and those that are found are near: here the meme itself.
        shown = () if row.arm == "no-precedents" else ((drawn.text, drawn.badge, drawn.harmful),)
        opinion = expected(drawn.text, drawn.badge, ABILITIES[row.size], precedents=shown, **_ALTERED[row.arm])
        gold.append(drawn.harmful)
        predicted.append(opinion.harmful)
    return gold, predicted


def draw_benchmarks(data: Path, *, test: int, seed: int = 1, size: tuple[int, int] = SIZE) -> None:
    """Draws three benchmarks in place of the paper's, in a folder each, unless they exist.

    Raises BadRequest: A directory is not empty and has no synthetic benchmark.
    """
    layouts = {"harm-c": Layout.HARMEME, "harm-p": Layout.HARMEME, "fhm": Layout.FHM}
    for number, (name, layout) in enumerate(layouts.items()):
        if not (data / name / KEY).exists():
            # Claims are tested on the first alone.
            judged = test if number == 0 else test // 16 * 4
            # A seed for each: two data sets with the same layout would otherwise have the same memes.
            own = seed + 4 * number
            make(data / name, layout, train=2 * judged, val=0, test=judged, seed=own, near=True, size=size)
