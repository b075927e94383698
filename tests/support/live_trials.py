"""Full trials of drawn memes at a model server that is not ours, and what must be so of any."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.resources import files

from court.checks import in_words
from court.events import Procedure, TrialChecked
from court.record import TrialAborted, TrialRecord
from serving.judging.request import TrialRequest
from serving.settings import Settings
from serving.wiring import open_court

START_S = 600.0
"""Seconds in which the court must have started, its checks of the server included."""
UNUSABLE = 0.05
"""Share of calls that may need a second reply, or end a trial with one."""
SCENES = ("crowd", "cat", "landscape")
_EVENTS = {"TextRead", "Described", "QuestionAsked", "AnswerGiven", "Summarised", "SideRested", "PrecedentsCited"}


@dataclass(frozen=True)
class LiveTrials:
    """Records of the trials."""

    records: tuple[TrialRecord, ...]

    @property
    def faults(self) -> list[str]:
        """Everything that must not be so; empty if the server will do."""
        found = []
        calls = [reported.call for record in self.records for reported in record.calls]
        broken = [record for record in self.records if record.failure is not None]
        unusable = [call.fault for call in calls if call.fault]
        unusable += [record.failure.message for record in broken]
        if len(unusable) > UNUSABLE * (len(calls) + len(broken)):
            found.append(f"{len(unusable)} of {len(calls) + len(broken)} calls were unusable: {sorted(set(unusable))}")
        for record in self.records:
            kinds = {event.kind for event in record.events}
            if missing := (_EVENTS | {"VerdictGiven"}) - kinds:
                found.append(f"a trial has no {', '.join(sorted(missing))}")
        return found

    @property
    def report(self) -> str:
        """A line for each trial: label, calls, and the checks that failed."""
        lines = []
        for scene, record in zip(SCENES, self.records, strict=True):
            label = record.verdict.label if record.verdict else f"no verdict ({record.failure.reason})"
            checked = record.last(TrialChecked)
            failed = "; ".join(map(in_words, checked.failed)) if checked else ""
            lines.append(f"{scene}: {label}, {len(record.calls)} calls; {failed or 'all checks passed'}")
        return "\n".join(lines)


async def try_drawn_memes(url, model, key, home) -> LiveTrials:
    """Tries three drawn memes, one after the other. Raises TimeoutError if the start hangs."""
    llm = {"url": url, "model": model, **({"api_key": key} if key else {})}
    # Few rounds: what is shown is that the parts fit together.
    trial = {"rounds_min": 1, "rounds_max": 1}
    settings = Settings(docket=home / "docket.sqlite", procedure="FULL", llm=llm, trial=trial)
    records = []
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(START_S):
            executor = await stack.enter_async_context(open_court(settings, tell=print))
        for scene in SCENES:
            image = files("retrieval.starter").joinpath("demo", f"{scene}.png").read_bytes()
            try:
                result = await executor.run(TrialRequest(image=image, procedure=Procedure.FULL))
                records.append(result.record)
            except TrialAborted as aborted:
                records.append(aborted.record)
    return LiveTrials(tuple(records))
