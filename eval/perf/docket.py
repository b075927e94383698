"""The docket compared with the database alone: appending to it, and verifying all of it.

``docket``: 32 trials append events of 20 kB concurrently, compared with the database's own bulk insert of the same
rows. Like real trials, each appends its next event once the last one is on disk. The overhead over the database is ours
alone: a thread and a commit that many trials share, canonical JSON, salts and commitments, the Merkle tree, one
signature per commit, triggers and indexes. The baseline gets the same events as rows of text by ``executemany``, with
as many rows per commit as there are trials waiting for one, so both have the same number of rows on disk whenever a
trial continues. The time of one single large commit is reported too, although a crash would then lose all rows. The
baseline's files grow as the docket's do, with the same settings, but SQLite itself checkpoints its write-ahead log
whenever it reaches a number of pages (32 MB), and the commit that reaches it pays for it. The docket has a thread for
that. So the totals over all turns are compared. The turns alternate several times, so that a slowdown affects all
of them. The measurement is then repeated next to readers: some open records and listings as fast as they can, and one
stays in one long read. None may delay appends.

The second part is the time to verify a whole docket of 100,000 events of full trials from their rows. It checks what
`memecourt docket verify` checks, except pictures: each body against its commitment, each header and tile against the
tree, each checkpoint's signature, sequence numbers, the listing. The baseline is the minimum that any check needs:
reading the same rows and decompressing the bodies. Both are in CPU time of this process; writing is in wall-clock time.
Then one body is replaced, which only its commitment can reveal, and verification must find it.

The third part looks up content among a million findings of people, and as many known verdicts by their keys, each once.
Both are in CPU time; the memory is that of the full cache of findings.

The fourth part gets the console's list of trials, with its total, of a large docket and of a small one: in CPU time of
this process, the newest trials, and those of one label sorted by their probability.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import sqlite3
import statistics
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
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
from court.in_force import CaseNotes, ContentKey, content_key
from court.verdict import Label, ScoreMeaning, Strength, Strengths, Verdict
from eval.perf.bench import Result, seconds_of
from serving.console.app import create_app
from serving.console.registry import Reviewing
from serving.docket.audit.audit import Rows
from serving.docket.log.notes import VerifierKey
from serving.docket.log.verify import Fault
from serving.docket.open import Docket
from serving.docket.store import tables as t
from serving.docket.store.bodies import packed
from serving.docket.store.group_commit import sqlite_engine, transaction
from serving.docket.store.listing import finding_row
from serving.docket.store.tables import stamp
from serving.judging.known import Findings

EVENT_BYTES = 20_000
_READERS = 4
_MOST_FINDINGS = 1_000
"""Last ones that are looked up again, from memory."""

_OFTEN = [*itertools.accumulate(1 / rank for rank in range(1, 8001))]
"""Frequency of each word by rank, as in natural language, so that the text compresses like real text."""

_COLUMNS: list[Column[Any]] = [
    Column("trial_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),
    Column("body", Text, nullable=False),
]
_PLAIN = Table("plain", MetaData(), *_COLUMNS)

_AT_ONCE = 64  # trials that are written concurrently, to be verified later
_ROUNDS = 10  # questions of each side
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
    return _append(trials, events, rounds) | _verify(verified) | _find(findings, lookups) | _list(listed)


def _append(trials: int, events: int, rounds: int) -> Result:
    with TemporaryDirectory() as folder:
        figures = asyncio.run(_appending(Path(folder), trials=trials, events=events, rounds=rounds))
    return Result(
        figures=figures,
        goals={"over_bulk": ">= 0.5", "events_missing": "== 0", "held_up_by_readers": "== 0"},
    )


class _Trials:
    """Makes trials with generated words."""

    def __init__(self, trials: int, events: int) -> None:
        self._trials, self._events = trials, events
        # A fixed seed, so that words compress equally well in every run.
        self._chance = random.Random(7)
        self._words = ["".join(self._chance.choices("etaoinshrdlu", k=self._chance.randint(2, 9))) for _ in _OFTEN]

    def of_turn(self, turn: str) -> list[list[AnyEvent]]:
        """Returns the events of each trial of a turn."""
        return [[*self._trial(f"{turn}.{number}")] for number in range(self._trials)]

    def _trial(self, trial_id: str) -> Iterator[AnyEvent]:
        """Yields the events of a trial that is opened and then described repeatedly."""
        at = datetime.now(UTC)
        yield _opened(trial_id, at, pixels_sha256=f"{self._chance.getrandbits(256):064x}")
        for seq in range(1, self._events):
            words = self._chance.choices(self._words, cum_weights=_OFTEN, k=EVENT_BYTES // 3)
            text = " ".join(words)[:EVENT_BYTES]
            yield Described(trial_id=trial_id, seq=seq, at=at, description=text, call=_CALL)


async def _appending(folder: Path, *, trials: int, events: int, rounds: int) -> dict[str, float]:
    made = _Trials(trials, events)
    docket = Docket.open(folder / "docket.sqlite")
    # One with all rows in one commit, one with as many rows per commit as trials append concurrently.
    whole, grouped = _Bulk(folder / "whole.sqlite"), _Bulk(folder / "grouped.sqlite")
    seconds: dict[str, float] = dict.fromkeys(("ours", "whole", "grouped"), 0.0)
    times: list[float] = []
    missing = 0
    try:
        for turn in range(rounds + 1):
            batch = made.of_turn(str(turn))
            rows = _rows(batch)
            # All three in each turn, so that a slowdown affects all of them.
            taken = {"whole": whole.take(rows, len(rows)), "grouped": grouped.take(rows, trials)}
            began = time.perf_counter()
            took = await _appended(docket, batch)
            taken["ours"] = time.perf_counter() - began
            # Read back after the clock has stopped: every acknowledged event must be there.
            missing += sum([len(await docket.trials.events(trial[0].trial_id)) != events for trial in batch])
            if turn:  # the first turn is a warm-up
                seconds = {name: spent + taken[name] for name, spent in seconds.items()}
                times += took
        batch = made.of_turn("beside")
        with_readers = await _appended_while_read(docket, folder / "docket.sqlite", batch)
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
        "append_p99_ms_beside_readers": _percentile(with_readers, 99),
        "held_up_by_readers": trials * events - len(with_readers),
        "events_missing": missing,
    }


async def _appended(docket: Docket, trials: Sequence[Sequence[AnyEvent]]) -> list[float]:
    """Appends all trials concurrently; returns the time of each append, in seconds."""
    took: list[float] = []

    async def append(trial: Sequence[AnyEvent]) -> None:
        for event in trial:
            began = time.perf_counter()
            with contextlib.suppress(Unavailable):  # an append not stored within 10 s has no time and counts as missing
                await docket.writer.append(event)
                took.append(time.perf_counter() - began)

    await asyncio.gather(*map(append, trials))
    return took


async def _appended_while_read(docket: Docket, path: Path, trials: Sequence[Sequence[AnyEvent]]) -> list[float]:
    """Returns the times of the successful appends while others read."""
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
    """Holds one read snapshot open while the block lasts."""
    engine = sqlite_engine(path, 1.0, create=False)
    with engine.connect() as connection:
        # BEGIN alone takes no snapshot in SQLite: the first SELECT does. Whatever is written after it stays in the
        # write-ahead log for as long as the read lasts.
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT count(*) FROM trials").scalar_one()
        yield
    engine.dispose()


def _rows(trials: Sequence[Sequence[AnyEvent]]) -> list[dict[str, object]]:
    """Returns the events of trials as rows that would be stored without a docket."""
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
    """The database alone, as the baseline."""

    def __init__(self, path: Path) -> None:
        self._engine = sqlite_engine(path, 1.0)
        with transaction(self._engine) as connection:
            _PLAIN.create(connection)

    def take(self, rows: Sequence[dict[str, object]], group: int) -> float:
        """Inserts rows, ``group`` of them per commit; returns the seconds taken."""

        def inserted() -> None:
            for first in range(0, len(rows), group):
                with transaction(self._engine) as connection:
                    connection.execute(insert(_PLAIN), rows[first : first + group])

        return seconds_of(inserted)

    def close(self) -> None:
        """Closes the connection and its files."""
        self._engine.dispose()


def _percentile(times: Sequence[float], percent: int) -> float:
    """Returns a percentile in milliseconds."""
    return 1000 * statistics.quantiles(times, n=100)[percent - 1]


def _verify(events: int) -> Result:
    with TemporaryDirectory() as folder:
        return asyncio.run(_verifying(Path(folder) / "docket.sqlite", events))


async def _verifying(place: Path, events: int) -> Result:
    docket = Docket.open(place)
    try:
        # Rounded up, to have at least that many events.
        trials = -(-events // len(_full_trial(0)))
        began = time.perf_counter()
        for first in range(0, trials, _AT_ONCE):
            written = [_full_trial(number) for number in range(first, min(first + _AT_ONCE, trials))]
            await _appended(docket, written)
        written_s = time.perf_counter() - began
        # Taken before anything is altered, as anyone who verifies a docket must have done.
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
            "verified_over_read": took_s / read_s,
            "written_per_s": report.size / written_s,
        },
        goals={"entries": f">= {events}", "faults": "== 0", "found": "== 1", "verified_over_read": "<= 2"},
    )


def _read(connection: Connection) -> tuple[int, int]:
    """Returns the number and total size of all bodies."""
    entries, size = 0, 0
    for entry in Rows(connection).entries():
        entries += 1
        size += len(entry.body or "")
    return entries, size


def _find(findings: int, lookups: int) -> Result:
    with TemporaryDirectory() as folder:
        return asyncio.run(_finding(Path(folder) / "docket.sqlite", findings, lookups))


async def _finding(path: Path, count: int, lookups: int) -> Result:
    """Compares looking up findings with looking up as many verdicts, and measures the memory that this takes."""
    store = Docket.open(path)
    try:
        contents = [content_key("", "p", str(number), None) for number in range(count)]
        at, batch = datetime(2026, 1, 2, tzinfo=UTC), 50_000
        notes = CaseNotes(label=Label.HARMFUL, words={"ada": Label.HARMFUL}, at=at, trial_id="trial")
        for first in range(0, count, batch):
            some = contents[first : first + batch]
            with store.transactions.database.writing() as connection:
                connection.execute(insert(t.findings), [finding_row(content, notes) or {} for content in some])
                connection.execute(insert(t.known), [{"key": each.meme, "trial_id": "trial"} for each in some])
        # In an order unlike that of the tables.
        random.Random(7).shuffle(contents)
        known = Findings(store.findings)

        async def find_verdicts(some: Sequence[ContentKey]) -> float:
            began = time.process_time()
            for content in some:
                assert await store.verdict_keys.get(content.meme)
            return time.process_time() - began

        async def find_findings(some: Sequence[ContentKey]) -> float:
            began = time.process_time()
            for content in some:
                assert await known.find(content)
            return time.process_time() - began

        seconds = []
        turns = [contents[first : first + lookups] for first in range(0, min(count, 5 * lookups), lookups)]
        for turn in turns:
            seconds.append((await find_findings(turn), await find_verdicts(turn)))
        again = await find_findings(turns[-1][-_MOST_FINDINGS:]) / len(turns[-1][-_MOST_FINDINGS:])
        # By what Python allocates: the process reuses memory that it needed to fill the tables.
        tracemalloc.start()
        known = Findings(store.findings)
        await find_findings(turns[0])
        grown = tracemalloc.get_traced_memory()[0] / 2**20
        tracemalloc.stop()
    finally:
        await store.close()
    return Result(
        figures={
            "findings": count,
            "findings_mib": grown,
            "finding_over_verdict": statistics.median(ours / theirs for ours, theirs in seconds),
            "finding_us": 1e6 * statistics.median(ours for ours, _ in seconds) / lookups,
            "finding_at_hand_us": 1e6 * again,
        },
        goals={"findings_mib": "<= 200", "finding_over_verdict": "<= 1.5"},
    )


_LISTS = {"newest": "/trials", "by_label": "/trials?q=label:harmful&sort=-harm"}
_PAGES = 20  # gets of each list


def _list(trials: int) -> Result:
    with TemporaryDirectory() as folder:
        small, large = (asyncio.run(_listing(Path(folder) / f"{size}.sqlite", size)) for size in (100, trials))
    figures = {f"list_{name}_ms": 1000 * large[name] for name in _LISTS}
    figures |= {f"list_{name}_over_100": large[name] / small[name] for name in _LISTS}
    return Result(figures=figures, goals={f"list_{name}_over_100": "<= 2" for name in _LISTS})


async def _listing(place: Path, trials: int) -> dict[str, float]:
    """Returns the CPU time of a page of each list, in seconds."""
    docket = Docket.open(place)
    try:
        for first in range(0, trials, _AT_ONCE):
            await _appended(docket, [_short_trial(number) for number in range(first, min(first + _AT_ONCE, trials))])
        queue = docket.review_queue()
        while not await queue.catch_up():
            pass
        app = create_app(docket, tokens=None, reviewing=Reviewing(queue))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
            sign_in = (await browser.get("/sign-in")).text
            found = re.search(r'name="proof" value="(\w+)"', sign_in)
            await browser.post("/sign-in", data={"proof": found[1] if found else "", "next": "/"})
            seconds: dict[str, list[float]] = {name: [] for name in _LISTS}
            for name, address in [*_LISTS.items()] * _PAGES:
                began = time.process_time()
                page = await browser.get(address)
                seconds[name].append(time.process_time() - began)
                if page.text.count("data-row") != 50:
                    raise CourtError("The benchmark's list does not have a page of trials.")
    finally:
        await docket.close()
    return {name: statistics.median(each) for name, each in seconds.items()}


def _short_trial(number: int) -> list[AnyEvent]:
    trial_id = f"trial-{number:08d}"
    at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=number)
    harmful = number % 4 > 0
    # One in fifty waits for review, for its score.
    sure = 0.55 if number % 50 == 0 else 0.62 + (number * 7919 % 370) / 1000
    label = Label.HARMFUL if harmful else Label.NOT_HARMFUL
    strengths = (Strength.STRONG, Strength.WEAK) if harmful else (Strength.WEAK, Strength.STRONG)
    verdict = Verdict(
        label=label,
        strengths=Strengths(harmful=strengths[0], benign=strengths[1]),
        harm_score=sure if harmful else 1 - sure,
        harm_score_meaning=ScoreMeaning.LABEL_PROBABILITY,
        rationale=_SENTENCE,
    )
    return [
        _opened(trial_id, at, pixels_sha256=f"{number:064x}"),
        TextRead(trial_id=trial_id, seq=1, at=at, text=f"Soup for everybody {number}", source=TextSource.OCR),
        VerdictGiven(trial_id=trial_id, seq=2, at=at, verdict=verdict, call=_CALL),
    ]


def _alter(place: Path, number: int) -> None:
    """Replaces one body by another, compressed in the same way."""
    with sqlite3.connect(place) as connection:
        # Triggers refuse changes to logged rows. Anyone with the file can drop them, and must still be detected.
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
    """Returns the events of a full trial, with replies as long as those of models."""
    trial_id = f"trial-{number:08d}"
    at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=number)
    events: list[AnyEvent] = [_opened(trial_id, at, pixels_sha256="")]

    def add(event: AnyEvent) -> None:
        # Numbered here, because `named` sets 0 for all.
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
