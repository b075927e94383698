"""Trials at saturation with a model server that fails now and then: each has one recorded end."""

import asyncio
import sqlite3
from contextlib import closing

from eval.perf.service import picture
from eval.standin.process import model_server, served
from eval.standin.replies import meme_text
from memecourt.client import AsyncClient, JudgeError, judge_request
from memecourt.retries import Retries
from tests.support.sizes import FULL

REQUESTS = 2000 if FULL else 24
TRIALS = 4
FAULTS = ("503@0.02", "429:1@0.01", "slow:0.2@0.02", "reset@0.02", "cut@0.02", "garbage@0.02", "wrong_schema@0.02")
INJECTED = ("MODEL_", "REPLY_", "OUTPUT_")
"""Prefixes of the reasons with which such faults can end a trial."""


async def judged(address):
    """Verdicts and errors by request; without retries, which would hide an error."""
    verdicts, errors = {}, {}
    numbers = iter(range(REQUESTS))

    async def caller(client):
        for number in numbers:
            # Two to four rounds, so that trials do not end in lockstep, and each of a new picture: one whose trials
            # failed twice would be refused.
            request = judge_request(
                picture(number), text=meme_text(str(number), 2 + number % 3), request_id=f"{number}"
            )
            try:
                verdicts[f"{number}"] = (await client.ask(request, timeout=300)).verdict_id
            except JudgeError as error:
                errors[f"{number}"] = error.reason or error.code.name

    async with AsyncClient(address, retries=Retries(attempts=1)) as client:
        await asyncio.gather(*(caller(client) for _ in range(2 * TRIALS)))
    return verdicts, errors


def ends(docket):
    """Number of verdicts, of failures, and state of the trial of each request in the docket."""
    with closing(sqlite3.connect(f"file:{docket}?mode=ro", uri=True)) as file:
        rows = file.execute(
            "SELECT r.request_id, sum(e.kind = 'VerdictGiven'), sum(e.kind = 'TrialFailed'), t.state "
            "FROM requests r JOIN trials t USING (trial_id) JOIN entries e USING (trial_id) "
            "WHERE r.namespace NOT LIKE '\\0%' GROUP BY r.request_id"  # leases of memes belong to no request
        )
        return {name: tuple(rest) for name, *rest in rows}


def test_trials_with_failing_model_calls_end_once_and_lose_no_verdict(tmp_path):
    faults = [word for fault in FAULTS for word in ("--fault", fault)]
    with (
        model_server("--play", "--output-token-s", "0.0002", "--capacity", str(2 * TRIALS), *faults) as models,
        served(
            tmp_path / "home",
            *("--llm-url", f"{models}/v1", "--model", "stand-in", "--procedure", "full"),
            *("--concurrent-trials", TRIALS),
        ) as server,
    ):
        verdicts, errors = asyncio.run(judged(server.address))
        found = ends(tmp_path / "home" / "docket.sqlite")
    assert len(verdicts) + len(errors) == REQUESTS
    assert not {reason for reason in errors.values() if not reason.startswith(INJECTED)}
    assert {name: found[name] for name in verdicts} == dict.fromkeys(verdicts, (1, 0, "DECIDED"))
    assert {name: found[name] for name in errors} == dict.fromkeys(errors, (0, 1, "FAILED"))
    assert errors, "the faults ended no trial"
