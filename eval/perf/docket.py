"""Appending to the docket: 32 trials at once, events of 20 kB, over the database's own bulk insert of the same rows.

Each trial appends its next event when the last is on the disk, as trials do. What that costs over the database alone is
everything of ours: a thread and a commit that many share, canonical JSON, salts and commitments, the Merkle tree, a
signature a commit, triggers and indexes. The database alone is given the same events as rows of text by
``executemany``, as many to a commit as trials can wait for one: the same number of rows is on the disk when anybody
goes on. What it takes in one large commit is told too; who appends that way may lose all of it. Its files grow as the
docket's do, with the same settings, and what is in the log beside them is moved over as SQLite does by itself: every so
many pages (32 MB), at whose turn it is. The docket has a thread for that. So the whole of all turns is compared.

In turns, several times, so that a machine that slows down slows all of them. Then the same once more beside readers:
some that open records and listings as fast as they can, and one that stays in one long read. None may hold up appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Column, Integer, MetaData, String, Table, Text, insert

from court.errors import Unavailable
from court.events import (
    AnyEvent,
    Described,
    MemeIdentity,
    ModelCall,
    PolicyReference,
    Procedure,
    Role,
    TrialOpened,
    Versions,
)
from eval.perf.bench import Result
from serving.docket.open import Docket
from serving.docket.store.group_commit import sqlite_engine, transaction
from serving.docket.store.tables import stamp

TRIALS = 32
"""That append at once."""
EVENT_BYTES = 20_000
_EVENTS = 40
"""Events of a trial in a round."""
_ROUNDS = 5
_READERS = 4

_OFTEN = [*itertools.accumulate(1 / rank for rank in range(1, 8001))]
"""How often each word is said, by rank, as in any language: what is said compresses as texts do."""

_PLAIN = Table(
    "plain",
    MetaData(),
    Column("trial_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),
    Column("body", Text, nullable=False),
)


def measure() -> Result:
    """Runs the benchmark."""
    with TemporaryDirectory() as folder:
        figures = asyncio.run(measured(Path(folder)))
    return Result(
        name="docket",
        figures={name: round(value, 3) for name, value in figures.items()},
        goals={"over_bulk": ">= 0.5", "events_missing": "== 0", "held_up_by_readers": "== 0"},
    )


async def measured(
    folder: Path, trials: int = TRIALS, events: int = _EVENTS, rounds: int = _ROUNDS
) -> dict[str, float]:
    """What :func:`measure` measures, in a folder of its own."""
    chance = random.Random(7)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in _OFTEN]
    docket = Docket.open(folder / "docket.sqlite")
    whole, grouped = _Bulk(folder / "whole.sqlite"), _Bulk(folder / "grouped.sqlite")
    seconds: dict[str, float] = dict.fromkeys(("ours", "whole", "grouped"), 0.0)
    times: list[float] = []
    missing = 0
    try:
        for turn in range(rounds + 1):
            told = [[*_trial(f"{turn}.{number}", events, words, chance)] for number in range(trials)]
            rows = _rows(told)
            alone = {"whole": whole.take(rows, len(rows)), "grouped": grouped.take(rows, trials)}
            began = time.perf_counter()
            took = await _appended(docket, told)
            alone["ours"] = time.perf_counter() - began
            missing += sum([len(await docket.trials.events(trial[0].trial_id)) != events for trial in told])
            if turn:  # the first is for warming up
                seconds = {name: spent + alone[name] for name, spent in seconds.items()}
                times += took
        beside, held_up = await _beside_readers(docket, folder / "docket.sqlite", trials, events, words, chance)
    finally:
        await docket.close()
        whole.close()
        grouped.close()
    count = rounds * trials * events
    return {
        "events_a_second": count / seconds["ours"],
        "bulk_a_second": count / seconds["grouped"],
        "over_bulk": seconds["grouped"] / seconds["ours"],
        "bulk_in_one_commit_a_second": count / seconds["whole"],
        "over_bulk_in_one_commit": seconds["whole"] / seconds["ours"],
        "append_p50_ms": _percentile(times, 50),
        "append_p99_ms": _percentile(times, 99),
        "append_p99_ms_beside_readers": _percentile(beside, 99),
        "held_up_by_readers": held_up,
        "events_missing": missing,
    }


async def _appended(docket: Docket, told: Sequence[Sequence[AnyEvent]]) -> list[float]:
    """Appends trials, all at once; how long each append took, in seconds."""
    took: list[float] = []

    async def hold(trial: Sequence[AnyEvent]) -> None:
        for event in trial:
            began = time.perf_counter()
            with contextlib.suppress(Unavailable):  # what is not kept in 10 s is missing from the times, and counted
                await docket.writer.append(event)
                took.append(time.perf_counter() - began)

    await asyncio.gather(*map(hold, told))
    return took


async def _beside_readers(
    docket: Docket, path: Path, trials: int, events: int, words: Sequence[str], chance: random.Random
) -> tuple[list[float], int]:
    """Times of appends while others read; and how many were given up because others did."""
    told = [[*_trial(f"beside.{number}", events, words, chance)] for number in range(trials)]
    with _long_read(path), contextlib.suppress(asyncio.CancelledError):
        readers = [asyncio.create_task(_reading(docket)) for _ in range(_READERS)]
        took = await _appended(docket, told)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return took, trials * events - len(took)


async def _reading(docket: Docket) -> None:
    while True:
        for line in await docket.index.list(limit=50):
            await docket.trials.record(line.trial_id)


@contextmanager
def _long_read(path: Path) -> Iterator[None]:
    """A reader that sees one moment all the while."""
    engine = sqlite_engine(path, 1.0, create=False)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT count(*) FROM trials").scalar_one()
        yield
    engine.dispose()


def _rows(told: Sequence[Sequence[AnyEvent]]) -> list[dict[str, object]]:
    """The events of trials as they would be kept without a docket."""
    return [
        {
            "trial_id": event.trial_id,
            "seq": event.seq,
            "kind": event.kind,
            "at": stamp(event.at),
            "body": event.model_dump_json(),
        }
        for trial in told
        for event in trial
    ]


class _Bulk:
    """The database alone."""

    def __init__(self, path: Path) -> None:
        self._engine = sqlite_engine(path, 1.0)
        with transaction(self._engine) as connection:
            _PLAIN.create(connection)

    def take(self, rows: Sequence[dict[str, object]], group: int) -> float:
        """Inserts rows, so many to a commit; seconds."""
        began = time.perf_counter()
        for first in range(0, len(rows), group):
            with transaction(self._engine) as connection:
                connection.execute(insert(_PLAIN), rows[first : first + group])
        return time.perf_counter() - began

    def close(self) -> None:
        """Gives its files up."""
        self._engine.dispose()


def _trial(trial_id: str, events: int, words: Sequence[str], chance: random.Random) -> Iterator[AnyEvent]:
    """A trial that was opened and described again and again, in so many words."""
    at = datetime.now(UTC)
    meme = MemeIdentity(
        bytes_sha256="0" * 64,
        pixels_sha256=f"{chance.getrandbits(256):064x}",
        format="PNG",
        width=1,
        height=1,
        frame_count=1,
        frames_used=(0,),
    )
    yield TrialOpened(
        trial_id=trial_id,
        seq=0,
        at=at,
        procedure=Procedure.FULL,
        meme=meme,
        policy=PolicyReference(id="p", version="1", digest="d"),
        settings={},
        versions=Versions(software="perf", settings="d"),
    )
    call = ModelCall(
        role=Role.PROPOSER, model="m", prompt_id="p", prompt_digest="d", tokens_in=1, tokens_out=1, latency_s=1.5
    )
    for seq in range(1, events):
        text = " ".join(chance.choices(words, cum_weights=_OFTEN, k=EVENT_BYTES // 3))[:EVENT_BYTES]
        yield Described(trial_id=trial_id, seq=seq, at=at, description=text, call=call)


def _percentile(times: Sequence[float], percent: int) -> float:
    """In milliseconds."""
    return 1000 * statistics.quantiles(times, n=100)[percent - 1]
