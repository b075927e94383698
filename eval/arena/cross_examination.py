"""Questions of real trials as tasks of an arena, to find the best witness under cross-examination.

Each of an advocate's questions builds on the answers before it. Put to other models in the same order, they measure
which model best answers what a court really wants to know. The answers of the trial's Proposer are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest
from court.events import QuestionAsked, Side
from court.record import TrialRecord
from eval.arena.folder import FixedTask
from eval.reports.records import read_records
from eval.runs.results import RunFolder


@dataclass(frozen=True, slots=True)
class CrossExamination:
    """Tasks made from a run's trials."""

    tasks: tuple[FixedTask, ...]
    """One task for each side of each trial that asked anything, in the order of the memes."""
    silent: int
    unread: dict[str, str]


async def tasks_of_run(root: Path, sides: Sequence[Side], *, prefixed: bool = False) -> CrossExamination:
    """Makes tasks from the questions asked in a run's trials.

    Raises BadRequest: The directory contains no run, or none of its trials has a question.
    """
    folder = RunFolder(root)
    manifest = folder.manifest()
    trials = {one.trial: one.meme for one in folder.predictions() if one.trial}
    # A task is text only; the arena takes the picture from the data set.
    found = await read_records(root, list(trials), pictures=False)
    tasks: list[FixedTask] = []
    silent = 0
    for trial, meme in trials.items():
        record = found.records.get(trial)
        # Lost or damaged: the command reports how many.
        if record is None:
            continue
        name = f"{manifest.dataset}/{meme}" if prefixed else meme
        of_trial = [task for side in sides if (task := _task(record, side, name))]
        silent += not of_trial
        tasks += of_trial
    if not tasks:
        why = found.missing or "Trials of the embedded procedure have none; hold the run with --procedure full."
        raise BadRequest(f"{root} has no trial in which a side asked a question. {why}", reason="QUESTIONS_MISSING")
    return CrossExamination(tuple(tasks), silent, found.lost)


def _task(record: TrialRecord, side: Side, meme: str) -> FixedTask | None:
    questions = [event.question for event in record.events if isinstance(event, QuestionAsked) and event.side is side]
    tags = {"side": str(side).lower(), "language": record.text.language if record.text else ""}
    return (
        FixedTask(meme=meme, rounds=tuple(questions), tags={k: v for k, v in tags.items() if v}) if questions else None
    )
