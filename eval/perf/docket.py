"""The docket beside the database alone: appending to it, and checking all of it.

``docket``: 32 trials append at once, events of 20 kB, over the database's own bulk insert of the same rows. Each trial
appends its next event when the last is on the disk, as trials do. What that costs over the database alone is everything
of ours: a thread and a commit that many share, canonical JSON, salts and commitments, the Merkle tree, a signature a
commit, triggers and indexes. The database alone is given the same events as rows of text by ``executemany``, as many to
a commit as trials can wait for one: the same number of rows is on the disk when anybody goes on. What it takes in one
large commit is told too; who appends that way may lose all of it. Its files grow as the docket's do, with the same
settings, and what is in the log beside them is moved over as SQLite does by itself: every so many pages (32 MB), at
whose turn it is. The docket has a thread for that. So the whole of all turns is compared. In turns, several times, so
that a machine that slows down slows all of them. Then the same once more beside readers: some that open records and
listings as fast as they can, and one that stays in one long read. None may hold up appends.

``docket-verify``: how long it takes to check a whole docket, 100,000 events of full trials, verified from their rows.
What is checked is what `memecourt docket verify` checks, pictures aside: each body against its commitment, each header
and tile against the tree, each checkpoint's signature, sequence numbers, the listing. Beside it stands what no check
could do without: to read the same rows and unpack the bodies, and nothing more. Both are in CPU time of this process;
writing is by the clock. Then another body is put in the place of one, where only its commitment tells, and it must be
found.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, Text, insert

from court.errors import CourtError, Unavailable
from court.events import (
    AnswerGiven,
    AnyEvent,
    Described,
    MemeIdentity,
    ModelCall,
    PolicyReference,
    Procedure,
    QuestionAsked,
    QuestioningEnd,
    Role,
    Side,
    SideRested,
    Summarised,
    TextRead,
    TextSource,
    TrialOpened,
    VerdictGiven,
    Versions,
)
from court.verdict import Label, Strength, Strengths, Verdict
from eval.perf.bench import Result, seconds_of
from serving.docket.audit.audit import Rows
from serving.docket.log.notes import VerifierKey
from serving.docket.log.verify import Fault
from serving.docket.open import Docket
from serving.docket.store.bodies import packed
from serving.docket.store.group_commit import sqlite_engine, transaction
from serving.docket.store.tables import stamp

EVENT_BYTES = 20_000
_READERS = 4

_OFTEN = [*itertools.accumulate(1 / rank for rank in range(1, 8001))]
"""How often each word is said, by rank, as in any language: what is said compresses as texts do."""

_COLUMNS: list[Column[Any]] = [
    Column("trial_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),
    Column("body", Text, nullable=False),
]
_PLAIN = Table("plain", MetaData(), *_COLUMNS)

_AT_ONCE = 64  # trials that are written side by side to be checked
_ROUNDS = 10  # questions of a side
_SENTENCE = (
    "The picture shows two people from Blueland who carry a pot of soup across a bridge while a third one waves. "
)
_CALL = ModelCall(
    role=Role.PROPOSER,
    model="model",
    prompt_id="describe@1",
    prompt_digest=f"sha256:{0:064x}",
    tokens_in=1200,
    tokens_out=180,
    latency_s=1.25,
)


def docket(*, trials: int = 32, events: int = 40, rounds: int = 5) -> Result:
    """Runs the benchmark.

    Args:
        trials: Trials that append at once.
        events: Events of a trial in a round.
        rounds: Rounds, besides one for warming up.
    """
    with TemporaryDirectory() as folder:
        figures = asyncio.run(_appending(Path(folder), trials=trials, events=events, rounds=rounds))
    return Result(
        figures=figures,
        goals={"over_bulk": ">= 0.5", "events_missing": "== 0", "held_up_by_readers": "== 0"},
    )


class _Trials:
    """Makes trials that say so much in made-up words."""

    def __init__(self, trials: int, events: int) -> None:
        self._trials, self._events = trials, events
        # A fixed seed: how well words compress is the same in every run.
        self._chance = random.Random(7)
        self._words = ["".join(self._chance.choices("etaoinshrdlu", k=self._chance.randint(2, 9))) for _ in _OFTEN]

    def of_turn(self, turn: str) -> list[list[AnyEvent]]:
        """The events of each trial of a turn."""
        return [[*self._trial(f"{turn}.{number}")] for number in range(self._trials)]

    def _trial(self, trial_id: str) -> Iterator[AnyEvent]:
        """A trial that was opened and described again and again, in so many words."""
        at = datetime.now(UTC)
        yield _opened(trial_id, at, pixels_sha256=f"{self._chance.getrandbits(256):064x}")
        for seq in range(1, self._events):
            words = self._chance.choices(self._words, cum_weights=_OFTEN, k=EVENT_BYTES // 3)
            text = " ".join(words)[:EVENT_BYTES]
            yield Described(trial_id=trial_id, seq=seq, at=at, description=text, call=_CALL)


async def _appending(folder: Path, *, trials: int, events: int, rounds: int) -> dict[str, float]:
    made = _Trials(trials, events)
    docket = Docket.open(folder / "docket.sqlite")
    # All rows in one commit; and as many to a commit as trials append side by side.
    whole, grouped = _Bulk(folder / "whole.sqlite"), _Bulk(folder / "grouped.sqlite")
    seconds: dict[str, float] = dict.fromkeys(("ours", "whole", "grouped"), 0.0)
    times: list[float] = []
    missing = 0
    try:
        for turn in range(rounds + 1):
            batch = made.of_turn(str(turn))
            rows = _rows(batch)
            # All three in each turn, so that a machine that slows down slows all of them.
            alone = {"whole": whole.take(rows, len(rows)), "grouped": grouped.take(rows, trials)}
            began = time.perf_counter()
            took = await _appended(docket, batch)
            alone["ours"] = time.perf_counter() - began
            # Read back after the clock has stopped: what was acknowledged has to be there.
            missing += sum([len(await docket.trials.events(trial[0].trial_id)) != events for trial in batch])
            if turn:  # the first is for warming up
                seconds = {name: spent + alone[name] for name, spent in seconds.items()}
                times += took
        batch = made.of_turn("beside")
        beside = await _beside_readers(docket, folder / "docket.sqlite", batch)
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
        "held_up_by_readers": trials * events - len(beside),
        "events_missing": missing,
    }


async def _appended(docket: Docket, trials: Sequence[Sequence[AnyEvent]]) -> list[float]:
    """Appends trials, all at once; how long each append took, in seconds."""
    took: list[float] = []

    async def hold(trial: Sequence[AnyEvent]) -> None:
        for event in trial:
            began = time.perf_counter()
            with contextlib.suppress(Unavailable):  # what is not kept in 10 s is missing from the times, and counted
                await docket.writer.append(event)
                took.append(time.perf_counter() - began)

    await asyncio.gather(*map(hold, trials))
    return took


async def _beside_readers(docket: Docket, path: Path, trials: Sequence[Sequence[AnyEvent]]) -> list[float]:
    """Times of the appends that were not given up while others read."""
    with _long_read(path), contextlib.suppress(asyncio.CancelledError):
        readers = [asyncio.create_task(_reading(docket)) for _ in range(_READERS)]
        took = await _appended(docket, trials)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return took


async def _reading(docket: Docket) -> None:
    while True:
        for line in await docket.index.list(limit=50):
            await docket.trials.record(line.trial_id)


@contextmanager
def _long_read(path: Path) -> Iterator[None]:
    """A reader that sees one moment all the while."""
    engine = sqlite_engine(path, 1.0, create=False)
    with engine.connect() as connection:
        # BEGIN alone fixes no moment in SQLite: the first SELECT does. What is written after that moment stays in the
        # log beside the file for as long as the read lasts.
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT count(*) FROM trials").scalar_one()
        yield
    engine.dispose()


def _rows(trials: Sequence[Sequence[AnyEvent]]) -> list[dict[str, object]]:
    """The events of trials as they would be kept without a docket."""
    return [
        {
            "trial_id": event.trial_id,
            "seq": event.seq,
            "kind": event.kind,
            "at": stamp(event.at),
            "body": event.model_dump_json(),
        }
        for trial in trials
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

        def inserted() -> None:
            for first in range(0, len(rows), group):
                with transaction(self._engine) as connection:
                    connection.execute(insert(_PLAIN), rows[first : first + group])

        return seconds_of(inserted)

    def close(self) -> None:
        """Gives its files up."""
        self._engine.dispose()


def _percentile(times: Sequence[float], percent: int) -> float:
    """In milliseconds."""
    return 1000 * statistics.quantiles(times, n=100)[percent - 1]


def docket_verify(*, events: int = 100_000) -> Result:
    """Runs the benchmark; with at least so many events."""
    with TemporaryDirectory() as folder:
        return asyncio.run(_verifying(Path(folder) / "docket.sqlite", events))


async def _verifying(place: Path, events: int) -> Result:
    docket = Docket.open(place)
    try:
        # Rounded up: so many events at least.
        trials = -(-events // len(_full_trial(0)))
        began = time.perf_counter()
        for first in range(0, trials, _AT_ONCE):
            written = [_full_trial(number) for number in range(first, min(first + _AT_ONCE, trials))]
            await _appended(docket, written)
        written_s = time.perf_counter() - began
        # Taken before anything is altered, as whoever checks a docket has to have it.
        key = VerifierKey.parse(await docket.log.vkey())
        began = time.process_time()
        read = await docket.auditor.read(_read)
        read_s = time.process_time() - began
        began = time.process_time()
        report = await docket.auditor.audit([key])
        took_s = time.process_time() - began
        if report.violated or report.size != read[0]:
            raise CourtError("The benchmark's docket does not verify, though nobody has altered it.")
    finally:
        await docket.close()
    _alter(place, report.size // 2)
    docket = Docket.open(place)
    try:
        altered = await docket.auditor.audit([key])
    finally:
        await docket.close()
    return Result(
        figures={
            "entries": report.size,
            "faults": sum(report.counts.values()),
            "found": altered.counts[Fault.BODY_ALTERED],
            "events_per_s": report.size / took_s,
            "megabytes_per_s": read[1] / 1e6 / took_s,
            "over_reading": took_s / read_s,
            "written_per_s": report.size / written_s,
        },
        goals={"entries": f">= {events}", "faults": "== 0", "found": "== 1"},
    )


def _read(connection: Connection) -> tuple[int, int]:
    """Number and bytes of all bodies."""
    entries, size = 0, 0
    for entry in Rows(connection).entries():
        entries += 1
        size += len(entry.body or "")
    return entries, size


def _alter(place: Path, number: int) -> None:
    """Another body, packed as bodies are."""
    with sqlite3.connect(place) as connection:
        # Triggers refuse to change what was logged. Whoever has the file can drop them, and must still be found out.
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE entries SET body = ? WHERE number = ?", (packed("{}"), number))
    # The block above ends the transaction and leaves the connection open.
    connection.close()


def _opened(trial_id: str, at: datetime, *, pixels_sha256: str) -> TrialOpened:
    return TrialOpened(
        trial_id=trial_id,
        seq=0,
        at=at,
        procedure=Procedure.FULL,
        meme=MemeIdentity(
            bytes_sha256=f"{0:064x}",
            pixels_sha256=pixels_sha256,
            format="PNG",
            width=640,
            height=480,
            frame_count=1,
            frames_used=(0,),
        ),
        policy=PolicyReference(id="policy", version="1", digest=f"sha256:{0:064x}"),
        settings={"r_max": _ROUNDS, "epsilon": 0.02},
        versions=Versions(software="1", settings=f"sha256:{0:064x}"),
    )


def _full_trial(number: int) -> list[AnyEvent]:
    """A full trial, with replies of the length that models give."""
    trial_id = f"trial-{number:08d}"
    at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=number)
    events: list[AnyEvent] = [_opened(trial_id, at, pixels_sha256="")]

    def add(event: AnyEvent) -> None:
        # Numbered here: `named` has 0 for all.
        events.append(event.model_copy(update={"seq": len(events)}))

    named = {"trial_id": trial_id, "seq": 0, "at": at}
    add(TextRead(**named, text="Soup for everybody", source=TextSource.OCR))
    add(Described(**named, description=_SENTENCE * 6, call=_CALL))
    for side in Side:
        for round_ in range(1, _ROUNDS + 1):
            add(QuestionAsked(**named, side=side, round=round_, question=_SENTENCE, call=_CALL))
            add(AnswerGiven(**named, side=side, round=round_, answer=_SENTENCE * 3, call=_CALL))
            add(
                Summarised(
                    **named,
                    side=side,
                    round=round_,
                    summary=_SENTENCE * 8,
                    justification=_SENTENCE,
                    entropy=4.1,
                    call=_CALL,
                )
            )
        add(SideRested(**named, side=side, rounds=_ROUNDS, reason=QuestioningEnd.CONVERGED))
    strengths = Strengths(harmful=Strength.WEAK, benign=Strength.STRONG)
    add(
        VerdictGiven(
            **named, verdict=Verdict(label=Label.NOT_HARMFUL, strengths=strengths, rationale=_SENTENCE * 4), call=_CALL
        )
    )
    return events
