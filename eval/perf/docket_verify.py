"""How long it takes to check a whole docket: 100,000 events of full trials, verified from their rows.

What is checked is what `memecourt docket verify` checks, pictures aside: each body against its commitment, each header
and tile against the tree, each checkpoint's signature, sequence numbers, the listing. Beside it stands what no check
could do without: to read the same rows and unpack the bodies, and nothing more. Both are in CPU time of this process;
writing is by the clock. Then another body is put in the place of one, where only its commitment tells, and it must be
found.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from court.errors import CourtError
from court.events import (
    AnswerGiven,
    AnyEvent,
    Described,
    MemeIdentity,
    ModelCall,
    PolicyReference,
    Procedure,
    QuestionAsked,
    RestReason,
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
from eval.perf.bench import Result
from serving.docket.audit.audit import Rows
from serving.docket.log.notes import VerifierKey
from serving.docket.log.verify import Fault
from serving.docket.open import Docket
from serving.docket.store.bodies import packed

_EVENTS = 100_000
_ROUNDS = 10  # questions of a side
_AT_ONCE = 64  # trials that are written side by side
_SAID = "The picture shows two people from Blueland who carry a pot of soup across a bridge while a third one waves. "


def measure() -> Result:
    """Runs the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder)))


async def _measure(folder: Path) -> Result:
    place = folder / "docket.sqlite"
    docket = Docket.open(place)
    try:
        trials = -(-_EVENTS // len(_events(0)))
        began = time.perf_counter()
        for first in range(0, trials, _AT_ONCE):
            await asyncio.gather(*(_keep(docket, number) for number in range(first, min(first + _AT_ONCE, trials))))
        written_s = time.perf_counter() - began
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
        name="docket-verify",
        figures={
            "entries": report.size,
            "faults": sum(report.counts.values()),
            "found": altered.counts[Fault.BODY_ALTERED],
            "events_per_s": round(report.size / took_s),
            "megabytes_per_s": round(read[1] / 1e6 / took_s, 1),
            "over_reading": round(took_s / read_s, 2),
            "written_per_s": round(report.size / written_s),
        },
        goals={"entries": f">= {_EVENTS}", "faults": "== 0", "found": "== 1"},
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
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE entries SET body = ? WHERE number = ?", (packed("{}"), number))
    connection.close()


async def _keep(docket: Docket, number: int) -> None:
    for event in _events(number):
        await docket.writer.append(event)


def _events(number: int) -> list[AnyEvent]:
    """A full trial, with replies of the length that models give."""
    trial_id = f"trial-{number:08d}"
    at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=number)
    call = ModelCall(
        role=Role.PROPOSER,
        model="model",
        prompt_id="describe@1",
        prompt_digest=f"sha256:{0:064x}",
        tokens_in=1200,
        tokens_out=180,
        latency_s=1.25,
    )
    events: list[AnyEvent] = [
        TrialOpened(
            trial_id=trial_id,
            seq=0,
            at=at,
            procedure=Procedure.FULL,
            meme=MemeIdentity(
                bytes_sha256=f"{number:064x}",
                pixels_sha256="",
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
    ]

    def add(event: AnyEvent) -> None:
        events.append(event.model_copy(update={"seq": len(events)}))

    named = {"trial_id": trial_id, "seq": 0, "at": at}
    add(TextRead(**named, text="Soup for everybody", source=TextSource.OCR))
    add(Described(**named, description=_SAID * 6, call=call))
    for side in Side:
        for round_ in range(1, _ROUNDS + 1):
            add(QuestionAsked(**named, side=side, round=round_, question=_SAID, call=call))
            add(AnswerGiven(**named, side=side, round=round_, answer=_SAID * 3, call=call))
            add(
                Summarised(
                    **named, side=side, round=round_, summary=_SAID * 8, justification=_SAID, entropy=4.1, call=call
                )
            )
        add(SideRested(**named, side=side, rounds=_ROUNDS, reason=RestReason.CONVERGED))
    strengths = Strengths(harmful=Strength.WEAK, benign=Strength.STRONG)
    add(
        VerdictGiven(
            **named, verdict=Verdict(label=Label.NOT_HARMFUL, strengths=strengths, rationale=_SAID * 4), call=call
        )
    )
    return events
