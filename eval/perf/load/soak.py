"""A long time at saturation: a server that holds full trials before a model server that fails now and then.

Twice as many callers as there may be trials ask again as soon as they are answered, each time about a new meme with a
picture of its own: one of which two trials broke off would not be tried again, and refusals are no saturation. The
stand-in model server fails by rate. The server's memory, handles and threads are read while it runs; afterwards its
docket is held against what the callers were told: every request that was answered with a verdict has one, every other
one that was accepted has one recorded end, and nothing has two.

``MEMECOURT_PERF_SOAK_S`` says how long, in seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.perf.bench import Result
from eval.perf.load.process import Held, Process, picture, served
from eval.perf.model_server.replies import meme_text
from eval.perf.trials.trials import Speed
from eval.perf.trials.trials import server as stand_in
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries

SECONDS_VARIABLE = "MEMECOURT_PERF_SOAK_S"
SPEED = Speed(call_s=0.02, output_token_s=0.0005)
FAULTS = ("503@0.01", "429:1@0.01", "slow:0.5@0.02", "reset@0.005", "cut@0.005", "garbage@0.005", "wrong_schema@0.005")
INJECTED = ("MODEL_", "REPLY_", "OUTPUT_", "DEADLINE")
"""How the reasons begin that such faults can end a trial with."""
_LOOK_S = 2.0
_USUAL_S = 1200.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        seconds: How long.
        trials: At once.
        faults: Of the stand-in, as :mod:`eval.perf.model_server.faults` writes them.
    """

    seconds: float = _USUAL_S
    trials: int = 16
    faults: Sequence[str] = FAULTS


@dataclass(slots=True)
class _Told:
    """What the callers were told, by request."""

    verdicts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or ended by itself.
    """
    size = size or Scale(seconds=float(os.environ.get(SECONDS_VARIABLE) or _USUAL_S))
    faults = [word for fault in size.faults for word in ("--fault", fault)]
    with (
        TemporaryDirectory(prefix="memecourt-soak-") as directory,
        stand_in("--play", *SPEED.flags, "--capacity", str(2 * size.trials), *faults) as models,
    ):
        options = ("--llm-url", f"{models}/v1", "--model", "stand-in", "--procedure", "full")
        with served(Path(directory) / "home", *options, "--concurrent-trials", size.trials) as server:
            told, looks = asyncio.run(_soaked(server, size))
            rows = _ends(server.docket)
    return Result(name="soak", figures=_figures(told, looks, rows, size), goals=_GOALS)


_GOALS = {
    "memory_over_early": "<= 1.1",
    "handles_over_early": "<= 1.1",
    "threads_over_early": "<= 1.1",
    "errors_not_injected": "== 0",
    "verdicts_missing": "== 0",
    "ends_missing": "== 0",
    "ends_twice": "== 0",
}


def _figures(
    told: _Told, looks: Sequence[Held], rows: Mapping[str, tuple[int, int, str]], size: Scale
) -> dict[str, float]:
    # The first fifth is for caches and threads to come to their size.
    early = looks[len(looks) // 5 : 2 * len(looks) // 5]
    late = looks[-len(early) :]

    def grown(what: str) -> float:
        return _mean([getattr(look, what) for look in late]) / _mean([getattr(look, what) for look in early])

    other = Counter(reason for reason in told.errors.values() if not reason.startswith(INJECTED))
    if other:
        print(f"errors that were not injected: {dict(other)}")
    return {
        "memory_over_early": round(grown("memory"), 4),
        "handles_over_early": round(grown("handles"), 4),
        "threads_over_early": round(grown("threads"), 4),
        "errors_not_injected": sum(other.values()),
        "verdicts_missing": sum(
            name not in rows or rows[name][0] != 1 or rows[name][2] != "DECIDED" for name in told.verdicts
        ),
        # One that was refused before its trial was opened has none.
        "ends_missing": sum(
            state not in ("DECIDED", "FAILED") and not (state == "" and name in told.errors)
            for name, (_, _, state) in rows.items()
        ),
        "ends_twice": sum(verdicts > 1 for verdicts, _, _ in rows.values()),
        "verdicts": len(told.verdicts),
        "errors": len(told.errors),
        "in_docket": len(rows),
        "trials_a_minute": round(60 * len(told.verdicts) / size.seconds, 1),
        "memory_mib": round(late[-1].memory, 1),
        "handles": late[-1].handles,
        "threads": late[-1].threads,
        "loadavg": round(os.getloadavg()[0], 2),
    }


async def _soaked(server: Process, size: Scale) -> tuple[_Told, list[Held]]:
    told, looks, numbers = _Told(), list[Held](), itertools.count()
    end = time.monotonic() + size.seconds

    async def caller(client: AsyncClient) -> None:
        while time.monotonic() < end:
            name, number = uuid.uuid4().hex, next(numbers)
            request = judge_request(picture(number), text=meme_text(name, 2 + number % 3), request_id=name)
            try:
                told.verdicts[name] = (await client.ask(request, timeout=120)).verdict_id
            except JudgeError as error:
                told.errors[name] = error.reason or error.code.name

    async def look() -> None:
        while time.monotonic() < end:
            looks.append(server.held())
            await asyncio.sleep(min(_LOOK_S, size.seconds / 20))

    async with AsyncClient(server.address, retries=Retries(attempts=1)) as client:
        await asyncio.gather(look(), *(caller(client) for _ in range(2 * size.trials)))
    return told, looks


def _ends(docket: Path) -> dict[str, tuple[int, int, str]]:
    """Verdicts, failures and state of the trial that each accepted request was claimed for; no state where none was."""
    with closing(sqlite3.connect(f"file:{docket}?mode=ro", uri=True)) as file:
        rows = file.execute(
            "SELECT r.request_id, "
            "(SELECT COUNT(*) FROM entries e WHERE e.trial_id = r.trial_id AND e.kind = 'VerdictGiven'), "
            "(SELECT COUNT(*) FROM entries e WHERE e.trial_id = r.trial_id AND e.kind = 'TrialFailed'), "
            "COALESCE((SELECT t.state FROM trials t WHERE t.trial_id = r.trial_id), '') FROM requests r "
            "WHERE r.namespace NOT LIKE '\\0%'"  # claims of memes, which no request is named by
        )
        return {name: (verdicts, failures, state) for name, verdicts, failures, state in rows}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
