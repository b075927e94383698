"""The docket compared with the database alone: appending to it, verifying all of it, and looking things up in it.

- Appending: 32 trials append events of 20 kB concurrently, each its next event once the last one is on disk. The
  baseline is the database's own bulk insert of the same rows, with as many rows per commit as there are trials waiting
  for one, so that both have the same rows on disk whenever a trial continues. SQLite itself checkpoints the baseline's
  write-ahead log, and one commit in many pays for it, so the totals over all turns are compared.
- Verifying 100,000 events: all that `memecourt docket verify` checks, except pictures, over the minimum that any check
  needs, which is reading the same rows and decompressing the bodies. In CPU time of this process. Then one body is
  replaced, which only its commitment can reveal, and verification must find it.
- Looking up content among a million findings of people, over as many known verdicts by their keys, each once, in CPU
  time; the memory is that of the full cache of findings.
- The console's list of trials, with its total, of a large docket over that of a small one, in CPU time: the newest
  trials, and those of one label sorted by their probability.
"""

import asyncio
import contextlib
import itertools
import random
import re
import sqlite3
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from sqlalchemy import Connection, Engine, insert

from court.errors import CourtError, Unavailable
from court.events import (
    AnyEvent,
    Described,
    MemeIdentity,
    ModelCall,
    PolicyReference,
    Procedure,
    Role,
    TrialOpened,
    VerdictGiven,
    Versions,
)
from court.in_force import CaseNotes, ContentKey, content_key
from court.verdict import Label, ScoreMeaning, Strength, Strengths, Verdict
from eval.perf.bench import Result, seconds_of
from serving.console.app import create_app
from serving.console.registry import Reviewing
from serving.docket.audit.audit import Rows
from serving.docket.audit.verify import Fault
from serving.docket.log.notes import VerifierKey
from serving.docket.open import Docket
from serving.docket.store import tables as t
from serving.docket.store.bodies import packed
from serving.docket.store.listing import finding_row
from serving.docket.store.transactions import sqlite_engine, transaction
from serving.judging.known import Findings

_EVENT_CHARS, _BRIEF_CHARS = 20_000, 800
_AT_ONCE = 64  # trials that are written concurrently, to be verified later
_EVENTS = 66  # of a full trial of ten rounds
_LISTS = {"newest": "/trials", "by_label": "/trials?q=label:harmful&sort=-harm"}
_PAGES = 20  # gets of each list
_AT = datetime(2026, 1, 2, tzinfo=UTC)
_CALL = ModelCall(
    role=Role.PROPOSER,
    model="model",
    prompt_id="describe@1",
    prompt_digest=f"sha256:{0:064x}",
    tokens_in=1200,
    tokens_out=180,
    latency_s=1.25,
)
# Words as frequent by rank as in natural language, so that the text compresses like real text; the same in every run.
_CHANCE = random.Random(7)
_OFTEN = [*itertools.accumulate(1 / rank for rank in range(1, 8001))]
_WORDS = ["".join(_CHANCE.choices("etaoinshrdlu", k=_CHANCE.randint(2, 9))) for _ in _OFTEN]


def docket(
    *,
    trials: int = 32,
    events: int = 40,
    rounds: int = 5,
    verified: int = 100_000,
    findings: int = 1_000_000,
    lookups: int = 20_000,
    listed: int = 10_000,
) -> Result:
    """Runs the benchmark.

    Args:
        listed: Trials of the large docket whose list is got; the small one has a hundred.
        lookups: Contents that are looked up in each turn, each once: none of them is in memory.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        appended = asyncio.run(_append(folder, trials=trials, events=events, rounds=rounds))
        checked = asyncio.run(_verify(folder / "verified.sqlite", verified))
        found = asyncio.run(_find(folder / "findings.sqlite", findings, lookups))
        small, large = (asyncio.run(_list_s(folder / f"{size}.sqlite", size)) for size in (100, listed))
    figures = {f"list_{name}_over_100": large[name] / small[name] for name in _LISTS}
    return appended | checked | found | Result(figures, dict.fromkeys(figures, "<= 2"))


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Docket]:
    docket = Docket.open(path)
    try:
        yield docket
    finally:
        await docket.close()


def _trial(number: int, events: int, *, chars: int = _BRIEF_CHARS, pictured: bool = True) -> list[AnyEvent]:
    """Returns the events of a trial that is opened, described repeatedly, and decided."""
    event: dict[str, Any] = {"trial_id": f"trial-{number:08d}", "at": _AT + timedelta(seconds=number)}
    harmful = number % 4 > 0
    # One in fifty waits for review, for its score.
    sure = 0.55 if number % 50 == 0 else 0.62 + (number * 7919 % 370) / 1000
    strong, weak = ("harmful", "benign") if harmful else ("benign", "harmful")
    opened = TrialOpened(
        **event,
        seq=0,
        procedure=Procedure.FULL,
        meme=MemeIdentity(
            bytes_sha256=f"{0:064x}",
            pixels_sha256=f"{number:064x}" if pictured else "",
            format="PNG",
            width=640,
            height=480,
            frame_count=1,
            frames_used=(0,),
        ),
        policy=PolicyReference(id="policy", version="1", digest=f"sha256:{0:064x}"),
        settings={"r_max": 10, "epsilon": 0.02},
        versions=Versions(software="1", settings=f"sha256:{0:064x}"),
    )
    verdict = Verdict(
        label=Label.HARMFUL if harmful else Label.NOT_HARMFUL,
        strengths=Strengths(**{strong: Strength.STRONG, weak: Strength.WEAK}),
        harm_score=sure if harmful else 1 - sure,
        harm_score_meaning=ScoreMeaning.LABEL_PROBABILITY,
        rationale="Two people from Blueland carry a pot of soup across a bridge.",
    )
    described = [Described(**event, seq=seq, description=_words(chars), call=_CALL) for seq in range(1, events - 1)]
    return [opened, *described, VerdictGiven(**event, seq=events - 1, verdict=verdict, call=_CALL)]


def _words(chars: int) -> str:
    return " ".join(_CHANCE.choices(_WORDS, cum_weights=_OFTEN, k=chars // 3))[:chars]


async def _append(folder: Path, *, trials: int, events: int, rounds: int) -> Result:
    plain = sqlite_engine(folder / "plain.sqlite", 1.0)
    with transaction(plain) as connection:
        connection.exec_driver_sql("CREATE TABLE plain (trial_id TEXT, kind TEXT, body TEXT)")
    ours = bulk = 0.0
    missing = 0
    async with _opened(folder / "docket.sqlite") as docket:
        for turn in range(rounds + 1):
            batch = [_trial(turn * trials + number, events, chars=_EVENT_CHARS) for number in range(trials)]
            rows = [(each.trial_id, each.kind, each.model_dump_json()) for trial in batch for each in trial]
            # Both in each turn, so that a slowdown affects both.
            bulk_s = seconds_of(partial(_insert, plain, rows, trials))
            began = time.perf_counter()
            await _write(docket, batch)
            ours_s = time.perf_counter() - began
            # Read back after the clock has stopped: every acknowledged event must be there.
            missing += sum([len(await docket.trials.events(trial[0].trial_id)) != events for trial in batch])
            if turn:  # the first turn is a warm-up
                ours, bulk = ours + ours_s, bulk + bulk_s
    plain.dispose()
    figures = {"over_bulk": bulk / ours, "events_missing": missing}
    return Result(figures, {"over_bulk": ">= 0.5", "events_missing": "== 0"})


def _insert(engine: Engine, rows: Sequence[tuple[str, str, str]], group: int) -> None:
    for first in range(0, len(rows), group):
        with transaction(engine) as connection:
            connection.exec_driver_sql("INSERT INTO plain VALUES (?, ?, ?)", list(rows[first : first + group]))


async def _write(docket: Docket, trials: Sequence[Sequence[AnyEvent]]) -> None:
    async def append(trial: Sequence[AnyEvent]) -> None:
        for event in trial:
            # An event that is not stored within 10 s counts as missing.
            with contextlib.suppress(Unavailable):
                await docket.writer.append(event)

    await asyncio.gather(*map(append, trials))


async def _fill(docket: Docket, trials: int, events: int, *, pictured: bool = True) -> None:
    for first in range(0, trials, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, trials))
        await _write(docket, [_trial(number, events, pictured=pictured) for number in numbers])


async def _verify(path: Path, events: int) -> Result:
    async with _opened(path) as docket:
        # Rounded up, to have at least that many events; without pictures, which would be missed.
        await _fill(docket, -(-events // _EVENTS), _EVENTS, pictured=False)
        # Taken before anything is altered, as anyone who verifies a docket must have done.
        key = VerifierKey.parse(await docket.log.vkey())
        began = time.process_time()
        entries = await docket.auditor.read(_read)
        between = time.process_time()
        report = await docket.auditor.audit([key])
        over_read = (time.process_time() - between) / (between - began)
        if report.violated or report.size != entries:
            raise CourtError("The benchmark's docket does not verify, though nobody has altered it.")
    _alter(path, report.size // 2)
    async with _opened(path) as docket:
        altered = await docket.auditor.audit([key])
    return Result(
        figures={
            "entries": report.size,
            "faults": sum(report.counts.values()),
            "found": altered.counts[Fault.BODY_ALTERED],
            "verified_over_read": over_read,
        },
        goals={"entries": f">= {events}", "faults": "== 0", "found": "== 1", "verified_over_read": "<= 2"},
    )


def _read(connection: Connection) -> int:
    """Reads all bodies; returns their number."""
    return sum(entry.body != "" for entry in Rows(connection).entries())


def _alter(path: Path, number: int) -> None:
    """Replaces one body by another, compressed in the same way."""
    with sqlite3.connect(path) as connection:
        # Triggers refuse changes to logged rows. Anyone with the file can drop them, and must still be detected.
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE entries SET body = ? WHERE number = ?", (packed("{}"), number))
    # The block above ends the transaction and leaves the connection open.
    connection.close()


async def _find(path: Path, count: int, lookups: int) -> Result:
    async with _opened(path) as store:
        contents = [content_key("", "p", str(number), None) for number in range(count)]
        batch = 50_000
        notes = CaseNotes(label=Label.HARMFUL, words={"ada": Label.HARMFUL}, at=_AT, trial_id="trial")
        for first in range(0, count, batch):
            some = contents[first : first + batch]
            with store.transactions.database.writing() as connection:
                connection.execute(insert(t.findings), [finding_row(content, notes) or {} for content in some])
                connection.execute(insert(t.known), [{"key": each.meme, "trial_id": "trial"} for each in some])
        # In an order unlike that of the tables.
        random.Random(7).shuffle(contents)

        async def cpu_of(look_up: Callable[[ContentKey], Awaitable[object]], some: Sequence[ContentKey]) -> float:
            began = time.process_time()
            for content in some:
                assert await look_up(content)
            return time.process_time() - began

        known, ratios = Findings(store.findings), []
        for first in range(0, min(count, 5 * lookups), lookups):
            turn = contents[first : first + lookups]
            found_s = await cpu_of(known.find, turn)
            ratios.append(found_s / await cpu_of(lambda content: store.verdict_keys.get(content.meme), turn))
        # By what Python allocates: the process reuses memory that it needed to fill the tables.
        tracemalloc.start()
        known = Findings(store.findings)
        await cpu_of(known.find, contents[:lookups])
        grown = tracemalloc.get_traced_memory()[0] / 2**20
        tracemalloc.stop()
    return Result(
        figures={"findings_mib": grown, "finding_over_verdict": statistics.median(ratios)},
        goals={"findings_mib": "<= 200", "finding_over_verdict": "<= 1.5"},
    )


async def _list_s(path: Path, trials: int) -> dict[str, float]:
    """Returns the CPU time of a page of each list, in seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in _LISTS}
    async with _opened(path) as docket:
        await _fill(docket, trials, 3)
        queue = docket.review_queue()
        while not await queue.catch_up():
            pass
        app = create_app(docket, tokens=None, reviewing=Reviewing(queue))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
            proof = re.search(r'name="proof" value="(\w+)"', (await browser.get("/sign-in")).text)
            await browser.post("/sign-in", data={"proof": proof[1] if proof else "", "next": "/"})
            for name, address in [*_LISTS.items()] * _PAGES:
                began = time.process_time()
                page = await browser.get(address)
                seconds[name].append(time.process_time() - began)
                if page.text.count("data-row") != 50:
                    raise CourtError("The benchmark's list does not have a page of trials.")
    return {name: statistics.median(each) for name, each in seconds.items()}
